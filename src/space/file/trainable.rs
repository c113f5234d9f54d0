//! Whether a study file fits the trainable that it names, as far as a program knows it.

use super::{
    super::error::similar,
    diagnostic::{DiagnosticKind, Diagnostics, did_you_mean},
    node::{Content, Key, Node},
    read::{Reader, Values, join, list},
    study::{Study, read},
    table::{OBJECTIVE, STUDY},
};

/// What a program knows of a trainable.
///
/// ```
/// use pollux_tune::space::{Study, TrainableSpec};
/// let known = [TrainableSpec::new("cnn").parameters(["lr", "momentum"]).metrics(["accuracy", "loss"])];
/// let check = |yaml: &str| Study::check_trainable("study.yaml", yaml, &known, true).map_err(|wrong| wrong.to_string());
/// assert!(check("{space: {lr: 0.1}, objective: {minimize: loss}, trial: {trainable: cnn}}").is_ok());
/// let wrong = check("{space: {lr: 0.1}, objective: {minimize: los}, trial: {trainable: cnn}}").unwrap_err();
/// assert!(wrong.ends_with("expected one of accuracy, loss; did you mean `loss`?"), "{wrong}");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrainableSpec {
    /// Its name in study files.
    pub name: String,
    /// All parameters that it reads; none if that is not known.
    pub parameters: Option<Vec<String>>,
    /// All metrics that it reports; none if that is not known.
    pub metrics: Option<Vec<String>>,
}

impl TrainableSpec {
    /// A trainable of which only the name is known.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), parameters: None, metrics: None }
    }

    /// All parameters that it reads: others are mistakes.
    #[must_use]
    pub fn parameters<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.parameters = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// All metrics that it reports: others are mistakes.
    #[must_use]
    pub fn metrics<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.metrics = Some(names.into_iter().map(Into::into).collect());
        self
    }
}

impl Study {
    /// Whether the trainable of a study file is one of those that are `known`, has the parameters of the file and reports its
    /// objectives. Unless these are `all` there are, nothing is said of others. Files without a trainable are right in any case, and
    /// other mistakes of the file are not looked for.
    pub fn check_trainable(
        file: &str,
        text: &str,
        known: &[TrainableSpec],
        all: bool,
    ) -> Result<(), Diagnostics> {
        read(file, text, |reader| {
            let Some(node) = document(text) else { return Some(()) };
            let values = Reader::new(text).section(&node, STUDY, "");
            let trial = values.section("trial")?;
            let Some(name) = trial.text("trainable") else { return Some(()) };
            match known.iter().find(|spec| spec.name == name) {
                Some(spec) => {
                    reader.parameters_of(spec, &values);
                    reader.metrics_of(spec, &values);
                }
                None if all => {
                    let names = || known.iter().map(|spec| spec.name.as_str());
                    let allowed = match known {
                        [] => "another program: this one has no trainables".to_owned(),
                        _ => format!("one of {}", list(names())),
                    };
                    let hint = similar(name, names()).map(did_you_mean);
                    let found = format!("`{name}`, which is not a trainable of this program");
                    let mistake = DiagnosticKind::BadValue { found, allowed, hint };
                    reader.wrong(trial.place("trainable"), "trial.trainable", mistake);
                }
                None => {}
            }
            Some(())
        })
    }
}

/// The document of a text without mistakes of syntax.
pub(super) fn document(text: &str) -> Option<Node> {
    super::node::parse(text).ok().flatten()
}

impl Reader<'_> {
    fn parameters_of(&mut self, spec: &TrainableSpec, values: &Values<'_>) {
        let Some(known) = &spec.parameters else { return };
        let Some(node) = values.raw("space") else { return };
        let mut keys = Vec::new();
        parameters(node, "space", &mut keys);
        for (key, path) in keys {
            let name = key.scalar.text.as_str();
            if !known.iter().any(|known| known == name) {
                let found = format!("`{name}`, which the trainable `{}` does not read", spec.name);
                let allowed = format!("one of {}", list(known.iter().map(String::as_str)));
                let hint = similar(name, known.iter().map(String::as_str)).map(did_you_mean);
                self.wrong(key.place, &path, DiagnosticKind::BadValue { found, allowed, hint });
            }
        }
    }

    fn metrics_of(&mut self, spec: &TrainableSpec, values: &Values<'_>) {
        let (Some(known), Some(node)) = (&spec.metrics, values.raw("objective")) else { return };
        let objectives: Vec<(&Node, String)> = match &node.content {
            Content::List(nodes) => {
                nodes.iter().enumerate().map(|(at, node)| (node, format!("objective[{at}]"))).collect()
            }
            Content::Map(_) | Content::Scalar(_) => vec![(node, "objective".to_owned())],
        };
        for (node, path) in objectives {
            let values = Reader::new("").section(node, OBJECTIVE, &path);
            let metrics = ["metric", "minimize", "maximize"].into_iter();
            for (key, metric) in metrics.filter_map(|key| Some((key, values.text(key)?))) {
                if !known.iter().any(|known| known == metric) {
                    let found = format!("`{metric}`, which the trainable `{}` does not report", spec.name);
                    let allowed = format!("one of {}", list(known.iter().map(String::as_str)));
                    let hint = similar(metric, known.iter().map(String::as_str)).map(did_you_mean);
                    let mistake = DiagnosticKind::BadValue { found, allowed, hint };
                    self.wrong(values.place(key), &join(&path, key), mistake);
                }
            }
        }
    }
}

/// The names of all parameters, those in branches too.
fn parameters<'n>(node: &'n Node, path: &str, found: &mut Vec<(&'n Key, String)>) {
    let Content::Map(entries) = &node.content else { return };
    for (key, node) in entries {
        let path = join(path, &key.scalar.text);
        found.push((key, path.clone()));
        let Content::Map(domain) = &node.content else { continue };
        let choices = domain.iter().filter(|(key, _)| key.scalar.text == "choice");
        for (_, choices) in choices {
            let Content::Map(branches) = &choices.content else { continue };
            for (value, below) in branches {
                parameters(below, &join(&join(&path, "choice"), &value.scalar.text), found);
            }
        }
    }
}
