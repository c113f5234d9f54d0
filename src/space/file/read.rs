//! Reads mappings by their tables, and collects what is wrong.

use std::{collections::BTreeMap, time::Duration};

use super::{
    super::{Value, error::similar},
    diagnostic::{Diagnostic, DiagnosticKind, Diagnostics, Place, did_you_mean},
    foreign,
    node::{Content, Key, Node, Scalar},
    scalar::{self, bad},
    settings::{InvalidKeepCheckpoints, KeepCheckpoints},
    table::{Field, Kind},
};

/// Collects mistakes while a file is read.
pub(super) struct Reader<'t> {
    text: &'t str,
    problems: Vec<Diagnostic>,
}

/// What a key holds, checked.
#[derive(Debug, Clone)]
pub(super) enum Typed<'n> {
    Text(String),
    /// Each with its place.
    Words(Vec<String>, Vec<Place>),
    Whole(u64),
    Number(f64),
    Duration(Duration),
    Flag(bool),
    Section(Values<'n>),
    Raw(&'n Node),
}

impl Typed<'_> {
    /// Whether both are the same simple value.
    fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one == other,
            (Self::Whole(one), Self::Whole(other)) => one == other,
            (Self::Number(one), Self::Number(other)) => one.total_cmp(other).is_eq(),
            (Self::Duration(one), Self::Duration(other)) => one == other,
            (Self::Flag(one), Self::Flag(other)) => one == other,
            _ => false,
        }
    }
}

/// The keys of a mapping, with defaults filled in.
#[derive(Debug, Clone)]
pub(super) struct Values<'n> {
    pub(super) place: Place,
    given: BTreeMap<&'static str, (Place, Typed<'n>)>,
}

impl<'n> Values<'n> {
    pub(super) fn get(&self, key: &str) -> Option<&Typed<'n>> {
        self.given.get(key).map(|(_, value)| value)
    }

    /// Where a key is, or where it could be.
    pub(super) fn place(&self, key: &str) -> Place {
        self.given.get(key).map_or(self.place, |(place, _)| *place)
    }

    /// Whether a key holds something else than it has by default.
    pub(super) fn is_changed(&self, key: &str, table: &[Field]) -> bool {
        let Some(value) = self.get(key) else { return false };
        let field = table.iter().find(|field| field.key == key);
        let usual = field.and_then(|field| {
            let text = field.default?;
            simple(field.kind, &Scalar { text: text.to_owned(), plain: true })
        });
        !usual.is_some_and(|usual| value.same(&usual))
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        match self.get(key) {
            Some(Typed::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(super) fn words(&self, key: &str) -> Option<&[String]> {
        match self.get(key) {
            Some(Typed::Words(words, _)) => Some(words),
            _ => None,
        }
    }

    /// Where each word of a command is.
    pub(super) fn word_places(&self, key: &str) -> &[Place] {
        match self.get(key) {
            Some(Typed::Words(_, places)) => places,
            _ => &[],
        }
    }

    pub(super) fn whole(&self, key: &str) -> Option<u64> {
        match self.get(key) {
            Some(Typed::Whole(number)) => Some(*number),
            _ => None,
        }
    }

    /// A count, which the table keeps below 2^32.
    pub(super) fn count(&self, key: &str) -> Option<u32> {
        self.whole(key).and_then(|number| u32::try_from(number).ok())
    }

    pub(super) fn number(&self, key: &str) -> Option<f64> {
        match self.get(key) {
            Some(Typed::Number(number)) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn duration(&self, key: &str) -> Option<Duration> {
        match self.get(key) {
            Some(Typed::Duration(duration)) => Some(*duration),
            _ => None,
        }
    }

    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key) {
            Some(Typed::Flag(flag)) => Some(*flag),
            _ => None,
        }
    }

    pub(super) fn section(&self, key: &str) -> Option<&Values<'n>> {
        match self.get(key) {
            Some(Typed::Section(values)) => Some(values),
            _ => None,
        }
    }

    pub(super) fn raw(&self, key: &str) -> Option<&'n Node> {
        match self.get(key) {
            Some(Typed::Raw(node)) => Some(node),
            _ => None,
        }
    }
}

impl<'t> Reader<'t> {
    pub(super) const fn new(text: &'t str) -> Self {
        Self { text, problems: Vec::new() }
    }

    pub(super) fn wrong(&mut self, place: Place, path: &str, mistake: impl Into<DiagnosticKind>) {
        self.problems.push(Diagnostic::new(place, path.to_owned(), mistake.into(), self.text));
    }

    /// How many mistakes there are so far.
    pub(super) fn count(&self) -> usize {
        self.problems.len()
    }

    pub(super) fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Whether nothing is wrong with a section and what is in it.
    pub(super) fn is_clean_below(&self, section: &str) -> bool {
        !self.problems.iter().any(|problem| problem.path().split(['.', '[']).next() == Some(section))
    }

    pub(super) fn finish(self, file: &str) -> Diagnostics {
        Diagnostics::new(file, self.problems)
    }

    /// The entries of a mapping, each key once.
    pub(super) fn entries<'n>(&mut self, entries: &'n [(Key, Node)], path: &str) -> Vec<(&'n Key, &'n Node)> {
        let mut kept: Vec<(&Key, &Node)> = Vec::new();
        for (key, node) in entries {
            let name = &key.scalar.text;
            match kept.iter().find(|(known, _)| known.scalar.text == *name) {
                Some((first, _)) => {
                    let first = first.place.line;
                    let mistake = DiagnosticKind::DuplicateKey { key: name.clone(), first };
                    self.wrong(key.place, &join(path, name), mistake);
                }
                None => kept.push((key, node)),
            }
        }
        kept
    }

    /// The keys of a mapping, by its table. What is wrong or missing has its default.
    pub(super) fn section<'n>(&mut self, node: &'n Node, table: &'static [Field], path: &str) -> Values<'n> {
        let mut values = Values { place: node.place, given: BTreeMap::new() };
        match &node.content {
            Content::Map(entries) => {
                let section = path;
                for (key, node) in self.entries(entries, path) {
                    let name = key.scalar.text.as_str();
                    let path = join(path, name);
                    let Some(field) = table.iter().find(|field| field.key == name) else {
                        self.wrong(key.place, &path, unknown(name, node, section, entries, table));
                        continue;
                    };
                    if let Some(value) = self.typed(field.kind, node, &path) {
                        values.given.insert(field.key, (node.place, value));
                    }
                }
            }
            _ if node.is_null() => {}
            _ => {
                let allowed =
                    format!("a mapping with the keys {}", list(table.iter().map(|field| field.key)));
                let hint = foreign::section(node, path, table);
                self.wrong(node.place, path, DiagnosticKind::BadValue { found: node.shown(), allowed, hint });
            }
        }
        fill(&mut values, table);
        values
    }

    fn typed<'n>(&mut self, kind: Kind, node: &'n Node, path: &str) -> Option<Typed<'n>> {
        match kind {
            Kind::Section(table) => Some(Typed::Section(self.section(node, table, path))),
            Kind::Raw(_) => Some(Typed::Raw(node)),
            Kind::Words => self.command(node, path),
            _ => {
                let value = match &node.content {
                    Content::Scalar(scalar) => simple(kind, scalar),
                    Content::List(_) | Content::Map(_) => None,
                };
                if value.is_none() {
                    let hint = match &node.content {
                        Content::Scalar(scalar) => hint(kind, scalar),
                        Content::List(_) | Content::Map(_) => None,
                    };
                    let (found, allowed) = (node.shown(), allowed(kind));
                    self.wrong(node.place, path, DiagnosticKind::BadValue { found, allowed, hint });
                }
                value
            }
        }
    }

    fn command<'n>(&mut self, node: &Node, path: &str) -> Option<Typed<'n>> {
        let allowed = "a list of texts: the program and its arguments";
        let word = |node: &Node| match &node.content {
            Content::Scalar(scalar) if !scalar.is_null() => Some(scalar.text.clone()),
            _ => None,
        };
        let words: Option<Vec<String>> = match &node.content {
            Content::List(nodes) => nodes.iter().map(word).collect(),
            // Quotes would need a shell to be understood.
            Content::Scalar(scalar) if !scalar.text.contains(['"', '\'', '\\', '$', '`']) => {
                Some(scalar.text.split_whitespace().map(str::to_owned).collect())
            }
            _ => None,
        };
        let words = words.filter(|words| words.first().is_some_and(|program| !program.is_empty()));
        let Some(words) = words else {
            self.wrong(node.place, path, bad(node.shown(), allowed));
            return None;
        };
        let places = match &node.content {
            Content::List(nodes) => nodes.iter().map(|node| node.place).collect(),
            _ => vec![node.place; words.len()],
        };
        Some(Typed::Words(words, places))
    }
}

fn fill(values: &mut Values<'_>, table: &'static [Field]) {
    for field in table {
        if values.given.contains_key(field.key) {
            continue;
        }
        let scalar = |text: &str| Scalar { text: text.to_owned(), plain: true };
        let default = match field.kind {
            Kind::Section(table) => {
                let mut inner = Values { place: values.place, given: BTreeMap::new() };
                fill(&mut inner, table);
                Some(Typed::Section(inner))
            }
            kind => field.default.and_then(|text| simple(kind, &scalar(text))),
        };
        if let Some(default) = default {
            values.given.insert(field.key, (values.place, default));
        }
    }
}

/// Names of earlier versions, which study files and journals may still have, and what they are now.
const RENAMED: [(&str, &str); 1] = [("quasi", "halton")];

/// The value of a scalar, if it is one of this kind.
fn simple<'n>(kind: Kind, scalar: &Scalar) -> Option<Typed<'n>> {
    let text = scalar.text.as_str();
    match kind {
        Kind::Text => (!text.trim().is_empty() && !scalar.is_null()).then(|| Typed::Text(text.to_owned())),
        Kind::OneOf(names) => {
            let text = RENAMED.iter().find(|(old, _)| *old == text).map_or(text, |(_, new)| new);
            names.contains(&text).then(|| Typed::Text(text.to_owned()))
        }
        Kind::Form(form) => (form.fits)(text).then(|| Typed::Text(text.to_owned())),
        Kind::Duration => scalar::duration(text).map(Typed::Duration),
        Kind::Size => {
            scalar::size(text).filter(|size| (1..=u64::from(u32::MAX)).contains(size)).map(Typed::Whole)
        }
        Kind::Whole { min, max } => {
            let Ok(Value::Int(number)) = scalar::resolve(scalar) else { return None };
            u64::try_from(number).ok().filter(|number| (min..=max).contains(number)).map(Typed::Whole)
        }
        Kind::Number { min, max } => {
            let number = scalar::resolve(scalar).ok()?.as_float()?;
            (min..=max).contains(&number).then_some(Typed::Number(number))
        }
        Kind::Positive | Kind::Finite => {
            let number = scalar::resolve(scalar).ok()?.as_float().filter(|number| number.is_finite())?;
            (number > 0.0 || matches!(kind, Kind::Finite)).then_some(Typed::Number(number))
        }
        Kind::Flag => scalar::resolve(scalar).ok()?.as_bool().map(Typed::Flag),
        Kind::Share => text.parse::<KeepCheckpoints>().ok().map(|_| Typed::Text(text.to_owned())),
        Kind::Words | Kind::Section(_) | Kind::Raw(_) => None,
    }
}

/// In words, for messages.
fn allowed(kind: Kind) -> String {
    match kind {
        Kind::Text => "a text".to_owned(),
        Kind::OneOf(names) => format!("one of {}", list(names.iter().copied())),
        Kind::Form(form) => form.allowed.to_owned(),
        Kind::Positive => "a number above 0".to_owned(),
        Kind::Finite => "a number".to_owned(),
        Kind::Duration => "a duration with units, such as 30s, 5m or 1h30m".to_owned(),
        Kind::Size => format!("a whole number from 1 to {}, such as 512, 4k (4000) or 4Ki (4096)", u32::MAX),
        Kind::Whole { min, max } => format!("a whole number from {min} to {max}"),
        Kind::Number { min, max } => format!("a number from {min} to {max}"),
        Kind::Flag => "true or false".to_owned(),
        Kind::Share => InvalidKeepCheckpoints::ALLOWED.to_owned(),
        Kind::Words | Kind::Section(_) | Kind::Raw(_) => String::new(),
    }
}

/// What a wrong value was probably meant to be.
fn hint(kind: Kind, scalar: &Scalar) -> Option<String> {
    let plain = Scalar { text: scalar.text.clone(), plain: true };
    match kind {
        Kind::OneOf(names) => {
            let word = foreign::meaning(&scalar.text, names).map(|name| format!("write `{name}`"));
            word.or_else(|| similar(&scalar.text, names.iter().copied()).map(did_you_mean))
        }
        Kind::Duration if scalar.text.parse().is_ok_and(|seconds: f64| seconds >= 0.0) => {
            Some(format!("write `{}s` for seconds", scalar.text))
        }
        _ if !scalar.plain && simple(kind, &plain).is_some() => Some("write it without quotes".to_owned()),
        _ => None,
    }
}

fn unknown(key: &str, node: &Node, section: &str, beside: &[(Key, Node)], table: &[Field]) -> DiagnosticKind {
    let known = || table.iter().map(|field| field.key);
    let hint = foreign::key(key, node, section, beside).or_else(|| similar(key, known()).map(did_you_mean));
    DiagnosticKind::UnknownKey { key: key.to_owned(), allowed: list(known()), hint }
}

pub(super) fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

pub(super) fn join(path: &str, key: &str) -> String {
    let key: String = key.chars().take(60).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if path.is_empty() { key } else { format!("{path}.{key}") }
}
