//! The part `space` of a study file.

use super::{
    super::{Domain, Error, Space, Value},
    diagnostic::{DiagnosticKind, Place},
    node::{Content, Key, Node},
    read::{Reader, Values, join, list},
    scalar::{bad, resolve, value},
    table::DOMAIN,
};

/// Keys of which a parameter has exactly one.
const DOMAINS: [&str; 5] = ["float", "int", "choice", "ordinal", "fixed"];

/// The branch that a parameter stands in: which parameter has which value there.
#[derive(Debug, Clone, Copy)]
struct Branch<'n> {
    parent: &'n str,
    value: &'n Value,
}

/// The values of a choice, and the parameters below each.
type Branches<'n> = Vec<(Value, &'n Node, String)>;

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
        let mut when = None;
        let domain = match &node.content {
            Content::Scalar(_) => self.fixed(node, path),
            Content::List(_) => {
                self.values(node, path).and_then(|all| self.made(node.place, path, Domain::choice(all)))
            }
            Content::Map(_) => {
                let values = self.section(node, DOMAIN, path);
                when = values.raw("when");
                self.domain(&values, &mut branches, path)
            }
        };
        let condition = match (branch, when) {
            (Some(_), Some(node)) => {
                let found = "`when` stands inside of a branch".to_owned();
                let allowed = "one or the other; a branch inside of a branch works";
                self.wrong(node.place, &join(path, "when"), DiagnosticKind::Conflict { found, allowed });
                None
            }
            (Some(Branch { parent, value }), None) => {
                Some((key.place, parent.to_owned(), vec![value.clone()]))
            }
            (None, Some(node)) => self.when(node, &join(path, "when")),
            (None, None) => None,
        };
        let condition = condition.filter(|(_, parent, _)| !making.lost.contains(parent)).and_then(
            |(place, parent, values)| self.made(place, path, making.space.condition(&parent, &values)),
        );
        if let Some(domain) = domain.filter(|_| self.count() == before) {
            self.made(key.place, path, making.space.push(name, domain, condition));
        }
        if self.count() > before {
            making.lost.push(name.to_owned());
        }
        for (value, node, path) in branches.iter().filter(|(_, node, _)| !node.is_null()) {
            self.parameters(making, node, Some(Branch { parent: name, value }), path);
        }
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

    fn domain<'n>(&mut self, values: &Values<'n>, branches: &mut Branches<'n>, path: &str) -> Option<Domain> {
        let given: Vec<_> = DOMAINS.into_iter().filter(|key| values.get(key).is_some()).collect();
        let log = values.raw("log");
        let short = log.filter(|node| given.is_empty() && matches!(node.content, Content::List(_)));
        if let Some(node) = short {
            let path = join(path, "log");
            let (low, high) = self.bounds(node, &path, "numbers", Value::as_float)?;
            self.no_step(values, &path, "with `log`");
            return self.made(node.place, &path, Domain::log(low, high));
        }
        let [kind] = given[..] else {
            let found = if given.is_empty() { "no domain".to_owned() } else { given.join(" and ") };
            let allowed = format!("exactly one of {}", list(DOMAINS.into_iter()));
            self.wrong(values.place, path, bad(found, allowed));
            return None;
        };
        let node = values.raw(kind)?;
        let inner = join(path, kind);
        let logarithmic = log.is_some_and(|log| self.log_flag(log, kind, &join(path, "log")));
        match kind {
            "float" => {
                let (low, high) = self.bounds(node, &inner, "numbers", Value::as_float)?;
                let make = if logarithmic { Domain::log } else { Domain::float };
                let domain = self.made(node.place, &inner, make(low, high))?;
                self.step(values, domain, path)
            }
            "int" => {
                let (low, high) = self.bounds(node, &inner, "whole numbers", Value::as_int)?;
                let make = if logarithmic { Domain::log_int } else { Domain::int };
                let domain = self.made(node.place, &inner, make(low, high))?;
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
            _ => {
                let all = self.values(node, path)?;
                let domain = if kind == "choice" { Domain::choice(all) } else { Domain::ordinal(all) };
                self.made(node.place, path, domain)
            }
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
            let found = format!("there is no `step` {place}");
            self.wrong(
                node.place,
                path,
                DiagnosticKind::Conflict { found, allowed: "one with float or int without log" },
            );
        }
    }

    fn bounds<T>(
        &mut self,
        node: &Node,
        path: &str,
        what: &str,
        read: fn(&Value) -> Option<T>,
    ) -> Option<(T, T)> {
        let bounds = match &node.content {
            Content::List(nodes) => {
                nodes.iter().map(|node| read(&value(node).ok()?)).collect::<Option<Vec<T>>>()
            }
            Content::Scalar(_) | Content::Map(_) => None,
        };
        let pair = bounds.and_then(|bounds| <[T; 2]>::try_from(bounds).ok());
        if pair.is_none() {
            let found = match &node.content {
                Content::List(nodes) => {
                    format!("[{}]", nodes.iter().take(5).map(Node::shown).collect::<Vec<_>>().join(", "))
                }
                _ => node.shown(),
            };
            self.wrong(
                node.place,
                path,
                bad(found, format!("a list of two {what}, the lowest and the highest")),
            );
        }
        pair.map(|[low, high]| (low, high))
    }

    /// The one parent of `when`, and its values.
    fn when(&mut self, node: &Node, path: &str) -> Option<(Place, String, Vec<Value>)> {
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
            Content::List(_) => self.values(node, &path)?,
            Content::Scalar(_) | Content::Map(_) => vec![self.value(node, &path)?],
        };
        Some((key.place, key.scalar.text.clone(), values))
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
