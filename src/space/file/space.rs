//! The part `space` of a study file.

use super::{
    super::{Confidence, Domain, Error, Space, Value, core::Condition},
    diagnostic::{DiagnosticKind, Place},
    foreign,
    node::{Content, Key, Node, Scalar},
    read::{Reader, Values, join, list},
    scalar::{bad, resolve, value},
    table::DOMAIN,
};

/// Keys of which a parameter has exactly one.
const DOMAINS: [&str; 5] = ["float", "int", "choice", "ordinal", "fixed"];
/// The same for messages: `log` with bounds is a domain, too.
const ALLOWED: &str = "exactly one of float, int, log, choice, ordinal, fixed";

/// The branch that a parameter stands in: which parameter has which value there.
#[derive(Debug, Clone, Copy)]
struct Branch<'n> {
    parent: &'n str,
    value: &'n Value,
}

/// The values of a choice, and the parameters below each.
type Branches<'n> = Vec<(Value, &'n Node, String)>;

/// On which parameter another one depends, and on which of its values.
struct When {
    place: Place,
    parent: String,
    values: Vec<(Place, Value)>,
}

/// A space in the making.
struct Making {
    space: Space,
    /// Parameters that could not be read; whatever depends on them is not to blame.
    lost: Vec<String>,
}

impl Reader<'_> {
    /// The space, as far as it can be read.
    pub(super) fn space(&mut self, values: &Values<'_>) -> Space {
        let mut making = Making { space: Space::default(), lost: Vec::new() };
        let allowed = "a mapping of parameters, such as {lr: {log: [1e-5, 1e-1]}}";
        match values.raw("space") {
            Some(node) if !node.is_null() => self.parameters(&mut making, node, None, "space"),
            _ => self.wrong(values.place, "space", DiagnosticKind::Missing { allowed: allowed.to_owned() }),
        }
        if let Some(node) = values.raw("constraints") {
            self.constraints(&mut making, node);
        }
        making.space
    }

    fn parameters(&mut self, making: &mut Making, node: &Node, branch: Option<Branch<'_>>, path: &str) {
        let Content::Map(entries) = &node.content else {
            let allowed = "a mapping of parameters, each a name and a domain";
            self.wrong(node.place, path, bad(node.shown(), allowed));
            return;
        };
        for (key, node) in self.entries(entries, path) {
            self.parameter(making, key, node, branch, &join(path, &key.scalar.text));
        }
    }

    fn parameter(
        &mut self,
        making: &mut Making,
        key: &Key,
        node: &Node,
        branch: Option<Branch<'_>>,
        path: &str,
    ) {
        let name = key.scalar.text.as_str();
        let before = self.count();
        let mut branches = Branches::new();
        let (mut when, mut prior) = (None, None);
        let domain = match &node.content {
            Content::Scalar(scalar) => match foreign::text(&scalar.text) {
                Some(domain) => {
                    let allowed = "a domain, or a fixed value".to_owned();
                    let hint = Some(format!("write `{domain}`"));
                    self.wrong(
                        node.place,
                        path,
                        DiagnosticKind::BadValue { found: node.shown(), allowed, hint },
                    );
                    None
                }
                None => self.fixed(node, path),
            },
            Content::List(_) => self.one_of(node, path, Domain::choice),
            Content::Map(entries) => {
                if let Some((key, domain)) = foreign::parameter(entries) {
                    self.foreign(key, &domain, path);
                    None
                } else {
                    let values = self.section(node, DOMAIN, path);
                    when = values.raw("when");
                    prior = self.prior(&values, path);
                    let is_clean = self.count() == before;
                    self.domain(&values, &mut branches, path, is_clean)
                }
            }
        };
        let condition = self.condition(making, key, (branch, when), path);
        if let Some(domain) = domain.filter(|_| self.count() == before) {
            self.made(key.place, path, making.space.push(name, domain, condition));
        }
        if let Some((place, value, confidence)) = prior.filter(|_| self.count() == before) {
            let path = join(path, "prior");
            self.made(place, &path, making.space.expect_value(name, &value, confidence));
        }
        if self.count() > before {
            making.lost.push(name.to_owned());
        }
        for (value, node, path) in branches.iter().filter(|(_, node, _)| !node.is_null()) {
            self.parameters(making, node, Some(Branch { parent: name, value }), path);
        }
    }

    /// The condition of a parameter: its branch, or its `when`.
    fn condition(
        &mut self,
        making: &Making,
        key: &Key,
        given: (Option<Branch<'_>>, Option<&Node>),
        path: &str,
    ) -> Option<Condition> {
        let When { place, parent, values } = match given {
            (Some(_), Some(node)) => {
                let found = "`when` stands inside of a branch".to_owned();
                let allowed = "one or the other; a branch inside of a branch works";
                self.wrong(node.place, &join(path, "when"), DiagnosticKind::Conflict { found, allowed });
                return None;
            }
            (Some(Branch { parent, value }), None) => {
                let values = vec![(key.place, value.clone())];
                When { place: key.place, parent: parent.to_owned(), values }
            }
            (None, Some(node)) => self.when(node, &join(path, "when"))?,
            (None, None) => return None,
        };
        if making.lost.contains(&parent) {
            return None;
        }
        let all: Vec<Value> = values.iter().map(|(_, value)| value.clone()).collect();
        let made = making.space.condition(&parent, &all);
        let place = match &made {
            Err(Error::BadCondition { value: wrong, .. }) => {
                let found = values.iter().find(|(_, value)| value.to_string() == *wrong);
                found.map_or(place, |(place, _)| *place)
            }
            _ => place,
        };
        self.made(place, path, made)
    }

    /// A parameter in the words of another tool.
    fn foreign(&mut self, key: &Key, domain: &str, path: &str) {
        let word = &key.scalar.text;
        let allowed = list(DOMAIN.iter().map(|field| field.key));
        let hint = Some(format!("write `{domain}`"));
        let mistake = DiagnosticKind::UnknownKey { key: word.clone(), allowed, hint };
        self.wrong(key.place, &join(path, word), mistake);
    }

    /// What was made, or the reason why not among the problems.
    fn made<T>(&mut self, place: Place, path: &str, made: Result<T, Error>) -> Option<T> {
        made.map_err(|error| self.wrong(place, path, error)).ok()
    }

    fn fixed(&mut self, node: &Node, path: &str) -> Option<Domain> {
        let value = self.value(node, path)?;
        self.made(node.place, path, Domain::fixed(value))
    }

    fn value(&mut self, node: &Node, path: &str) -> Option<Value> {
        value(node).map_err(|mistake| self.wrong(node.place, path, mistake)).ok()
    }

    /// A domain of the values of a list.
    fn one_of(
        &mut self,
        node: &Node,
        path: &str,
        make: fn(Vec<Value>) -> Result<Domain, Error>,
    ) -> Option<Domain> {
        let all = self.values(node, path)?;
        let is_wrong = |(place, value): (usize, &Value)| {
            let is_twice = all[..place].iter().any(|before| before.same(value));
            (is_twice || Domain::fixed(value.clone()).is_err()).then_some(place)
        };
        let wrong = all.iter().enumerate().find_map(is_wrong);
        let made = make(all);
        match (wrong, &node.content) {
            (Some(at), Content::List(nodes)) => self.made(nodes[at].place, &format!("{path}[{at}]"), made),
            _ => self.made(node.place, path, made),
        }
    }

    /// All values of a list, or none of them.
    fn values(&mut self, node: &Node, path: &str) -> Option<Vec<Value>> {
        let Content::List(nodes) = &node.content else {
            self.wrong(node.place, path, bad(node.shown(), "a list of values"));
            return None;
        };
        let values: Vec<Option<Value>> = nodes
            .iter()
            .enumerate()
            .map(|(place, node)| self.value(node, &format!("{path}[{place}]")))
            .collect();
        values.into_iter().collect()
    }

    fn domain<'n>(
        &mut self,
        values: &Values<'n>,
        branches: &mut Branches<'n>,
        path: &str,
        is_clean: bool,
    ) -> Option<Domain> {
        let given: Vec<_> = DOMAINS.into_iter().filter(|key| values.get(key).is_some()).collect();
        let log = values.raw("log");
        let short = log.filter(|node| given.is_empty() && matches!(node.content, Content::List(_)));
        if let Some(node) = short {
            let path = join(path, "log");
            let (low, high) = self.bounds(node, &path, "number", Value::as_float)?;
            self.no_step(values, &path, "with `log`");
            let is_fine = |bound: f64| bound > 0.0 && bound.is_finite();
            return self.made(blamed(node, [is_fine(low), is_fine(high)]), &path, Domain::log(low, high));
        }
        let [kind] = given[..] else {
            // An unknown key was probably meant to be the domain.
            if is_clean || !given.is_empty() {
                let found = if given.is_empty() { "no domain".to_owned() } else { given.join(" and ") };
                self.wrong(values.place, path, bad(found, ALLOWED));
            }
            return None;
        };
        let node = values.raw(kind)?;
        let inner = join(path, kind);
        let logarithmic = log.is_some_and(|log| self.log_flag(log, kind, &join(path, "log")));
        match kind {
            "float" => {
                let (low, high) = self.bounds(node, &inner, "number", Value::as_float)?;
                let make = if logarithmic { Domain::log } else { Domain::float };
                let is_fine = |bound: f64| bound.is_finite() && !(logarithmic && bound <= 0.0);
                let place = blamed(node, [is_fine(low), is_fine(high)]);
                let domain = self.made(place, &inner, make(low, high))?;
                self.step(values, domain, path)
            }
            "int" => {
                let (low, high) = self.bounds(node, &inner, "whole number", Value::as_int)?;
                let make = if logarithmic { Domain::log_int } else { Domain::int };
                let is_fine = |bound: i64| make(bound, bound).is_ok();
                let place = blamed(node, [is_fine(low), is_fine(high)]);
                let domain = self.made(place, &inner, make(low, high))?;
                self.step(values, domain, path)
            }
            _ => {
                self.no_step(values, &inner, "here");
                self.listed(kind, node, branches, &inner)
            }
        }
    }

    fn listed<'n>(
        &mut self,
        kind: &str,
        node: &'n Node,
        branches: &mut Branches<'n>,
        path: &str,
    ) -> Option<Domain> {
        match (kind, &node.content) {
            ("fixed", _) => self.fixed(node, path),
            ("choice", Content::Map(entries)) => {
                for (key, below) in self.entries(entries, path) {
                    let path = join(path, &key.scalar.text);
                    match resolve(&key.scalar) {
                        Ok(value) => branches.push((value, below, path)),
                        Err(mistake) => self.wrong(key.place, &path, mistake),
                    }
                }
                let all: Vec<Value> = branches.iter().map(|(value, ..)| value.clone()).collect();
                self.made(node.place, path, Domain::choice(all))
            }
            ("choice", _) => self.one_of(node, path, Domain::choice),
            _ => self.one_of(node, path, Domain::ordinal),
        }
    }

    fn log_flag(&mut self, node: &Node, kind: &str, path: &str) -> bool {
        let flag = value(node).ok().and_then(|value| value.as_bool());
        if flag.is_none() || !matches!(kind, "float" | "int") {
            let allowed = "true or false with float or int, or the bounds of a float without them";
            self.wrong(node.place, path, bad(node.shown(), allowed));
        }
        flag.unwrap_or(false)
    }

    fn step(&mut self, values: &Values<'_>, domain: Domain, path: &str) -> Option<Domain> {
        let Some(node) = values.raw("step") else { return Some(domain) };
        let path = join(path, "step");
        let step = self.value(node, &path)?;
        self.made(node.place, &path, domain.with_step(step))
    }

    fn no_step(&mut self, values: &Values<'_>, path: &str, place: &str) {
        if let Some(node) = values.raw("step") {
            let (key, allowed) = ("step".to_owned(), "it with float, or with int without log".to_owned());
            let mistake = DiagnosticKind::NoEffect { key, place: place.to_owned(), allowed };
            self.wrong(node.place, path, mistake);
        }
    }

    fn bounds<T>(
        &mut self,
        node: &Node,
        path: &str,
        what: &str,
        read: fn(&Value) -> Option<T>,
    ) -> Option<(T, T)> {
        let Content::List(nodes) = &node.content else {
            let allowed = format!("a list of two {what}s, the lowest and the highest");
            self.wrong(node.place, path, bad(node.shown(), allowed));
            return None;
        };
        let [low, high] = nodes.as_slice() else {
            let found =
                if nodes.len() == 1 { "one value".to_owned() } else { format!("{} values", nodes.len()) };
            let allowed = format!("a list of two {what}s, the lowest and the highest");
            self.wrong(node.place, path, bad(found, allowed));
            return None;
        };
        let mut bound = |node: &Node, which: &str| {
            let number = value(node).ok().and_then(|value| read(&value));
            if number.is_none() {
                let allowed = format!("a {what} as the {which} value");
                let is_quoted = |scalar: &Scalar| {
                    let plain = Scalar { text: scalar.text.clone(), plain: true };
                    !scalar.plain && resolve(&plain).is_ok_and(|value| read(&value).is_some())
                };
                let hint = match &node.content {
                    Content::Scalar(scalar) if is_quoted(scalar) => {
                        Some("write it without quotes".to_owned())
                    }
                    _ => None,
                };
                self.wrong(node.place, path, DiagnosticKind::BadValue { found: node.shown(), allowed, hint });
            }
            number
        };
        let (low, high) = (bound(low, "lowest"), bound(high, "highest"));
        low.zip(high)
    }

    /// What is expected of a parameter.
    fn prior(&mut self, values: &Values<'_>, path: &str) -> Option<(Place, Value, Confidence)> {
        let confidence = values.text("confidence").and_then(Confidence::from_name);
        if let Some(node) = values.raw("prior") {
            let value = self.value(node, &join(path, "prior"))?;
            return Some((node.place, value, confidence.unwrap_or(Confidence::Medium)));
        }
        if confidence.is_some() {
            self.no_effect(values, path, "confidence", "without a `prior`".to_owned(), "it next to one");
        }
        None
    }

    /// The one parent of `when`, and its values.
    fn when(&mut self, node: &Node, path: &str) -> Option<When> {
        let Content::Map(entries) = &node.content else {
            self.wrong(
                node.place,
                path,
                bad(node.shown(), "an earlier parameter and its value, {name: value}"),
            );
            return None;
        };
        let [(key, node)] = entries.as_slice() else {
            let found = format!("{} parameters", entries.len());
            self.wrong(node.place, path, bad(found, "one parameter; conditions of its own come on top"));
            return None;
        };
        let path = join(path, &key.scalar.text);
        let values = match &node.content {
            Content::List(nodes) => {
                nodes.iter().map(|node| node.place).zip(self.values(node, &path)?).collect()
            }
            Content::Scalar(_) | Content::Map(_) => vec![(node.place, self.value(node, &path)?)],
        };
        Some(When { place: key.place, parent: key.scalar.text.clone(), values })
    }

    fn constraints(&mut self, making: &mut Making, node: &Node) {
        let nodes = match &node.content {
            Content::List(nodes) => nodes.as_slice(),
            Content::Scalar(_) if !node.is_null() => std::slice::from_ref(node),
            _ => {
                let allowed = "a list of constraints, such as `min_lr < lr`";
                self.wrong(node.place, "constraints", bad(node.shown(), allowed));
                return;
            }
        };
        for (number, node) in nodes.iter().enumerate() {
            let path = format!("constraints[{number}]");
            let Content::Scalar(scalar) = &node.content else {
                self.wrong(node.place, &path, bad(node.shown(), "a text, such as `min_lr < lr`"));
                continue;
            };
            let Err(error) = making.space.constrain(&scalar.text) else { continue };
            if making.lost.iter().any(|name| scalar.text.contains(name)) {
                continue;
            }
            let mut place = node.place;
            if let (Error::BadConstraint { column, .. }, true) = (&error, place.width > 1) {
                place.column += column - 1 + usize::from(!scalar.plain);
                place.width = 1;
            }
            self.wrong(place, &path, error);
        }
    }
}

/// The first bound that is wrong by itself, else the second one.
fn blamed(node: &Node, is_fine: [bool; 2]) -> Place {
    let at = usize::from(is_fine[0]);
    match &node.content {
        Content::List(nodes) => nodes.get(at).map_or(node.place, |bound| bound.place),
        Content::Scalar(_) | Content::Map(_) => node.place,
    }
}
