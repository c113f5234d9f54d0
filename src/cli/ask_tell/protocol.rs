//! The lines that come in and go out.

use crate::{
    space::Params,
    trials::{End, Trial, engine::Number, stopping::EndKind},
};
use serde::{Deserialize, Deserializer, Serialize};

/// A request of a client.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Request {
    /// A number of new trials.
    Ask(u32),
    /// An intermediate value.
    Report(Report),
    /// The end of a trial.
    Tell(Tell),
    /// Parameters to try next.
    Enqueue(Params),
    /// A number of the best trials.
    Best(usize),
    /// The trials that no other beats in all objectives.
    Front {},
    /// How much each parameter matters.
    Importance {},
    /// How many trials there are.
    Status {},
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Report {
    pub(super) id: u32,
    /// Statistical epochs, or whatever the trial counts its progress in.
    #[serde(alias = "step")]
    pub(super) epochs: f64,
    #[serde(deserialize_with = "measured")]
    pub(super) value: f64,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tell {
    pub(super) id: u32,
    #[serde(default, deserialize_with = "some_measured")]
    value: Option<f64>,
    values: Option<Vec<Number>>,
    state: Option<EndKind>,
    reason: Option<String>,
}

impl Tell {
    /// How the trial ended, or what is missing.
    pub(super) fn end(self) -> Result<End, &'static str> {
        let reason = self.reason.unwrap_or_default();
        // `null` next to a state is no value.
        let unfinished = !matches!(self.state, None | Some(EndKind::Done));
        let value = self.value.filter(|value| !(unfinished && value.is_nan()));
        match (self.state, value, self.values) {
            (None | Some(EndKind::Done), Some(value), None) => Ok(End::Done(vec![value])),
            (None | Some(EndKind::Done), None, Some(values)) => {
                Ok(End::Done(values.into_iter().map(Number::value).collect()))
            }
            (Some(EndKind::Stopped), None, None) => Ok(End::Stopped(reason.into())),
            (Some(EndKind::Cancelled), None, None) => Ok(End::Cancelled(reason)),
            (Some(EndKind::Failed), None, None) => Ok(End::Failed(reason)),
            _ => Err(
                "`tell` needs an `id` and one of `value`, `values` and `state` (\"failed\", \"stopped\" or \"cancelled\")",
            ),
        }
    }
}

/// A number; `null` is one that is not finite.
fn measured<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Number::deserialize(from).map(Number::value)
}

fn some_measured<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    measured(from).map(Some)
}

/// A reply to a client.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Reply {
    /// A new trial.
    Trial { id: u32, params: Params },
    /// There will be no more trials.
    Finished { finished: String },
    /// Whether a trial continues.
    Verdict {
        id: u32,
        stop: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A trial has ended.
    Ended { id: u32, state: EndKind },
    /// Parameters wait for a trial.
    Enqueued { enqueued: usize },
    /// The best trials, the best first.
    Best { best: Vec<Ranked> },
    /// The Pareto front.
    Front { front: Vec<Ranked> },
    /// Shares of the variance by parameter, the most important first.
    Importance { importance: Vec<Share> },
    /// How the search stands.
    Status { status: Status },
    /// What was wrong; nothing has changed.
    Error { error: String, line: usize },
}

impl Reply {
    /// Trials that have a result, the best first.
    pub(crate) fn best(trials: Vec<&Trial>) -> Self {
        Self::Best { best: trials.into_iter().map(Ranked::from).collect() }
    }
}

/// How much a parameter matters.
#[derive(Debug, Serialize)]
pub(crate) struct Share {
    name: String,
    share: f64,
}

impl From<(&str, f64)> for Share {
    fn from((name, share): (&str, f64)) -> Self {
        Self { name: name.to_owned(), share }
    }
}

/// A trial with its result.
#[derive(Debug, Serialize)]
pub(crate) struct Ranked {
    id: u32,
    params: Params,
    values: Vec<f64>,
}

impl From<&Trial> for Ranked {
    fn from(trial: &Trial) -> Self {
        let values = trial.values().unwrap_or_default().to_vec();
        Self { id: trial.id.0, params: trial.params.clone(), values }
    }
}

/// A trial that has no result yet.
#[derive(Debug, Serialize)]
pub(crate) struct Running {
    id: u32,
    params: Params,
    /// Its progress, as it reported.
    epochs: f64,
}

impl From<&Trial> for Running {
    fn from(trial: &Trial) -> Self {
        let epochs = trial.last.map_or(0.0, |(epochs, _)| epochs);
        Self { id: trial.id.0, params: trial.params.clone(), epochs }
    }
}

/// How many trials there are of each kind.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Status {
    pub(super) trials: u32,
    pub(super) asked: usize,
    pub(super) running: Vec<Running>,
    pub(super) done: usize,
    pub(super) stopped: usize,
    pub(super) cancelled: usize,
    pub(super) failed: usize,
    pub(super) learned: u32,
}

/// A line of JSON; `NaN` and `Infinity` outside of texts, as Python writes them, become `null`.
pub(super) fn plain_json(line: &str) -> String {
    let (mut plain, mut rest, mut quoted) = (String::with_capacity(line.len()), line, false);
    while let Some(first) = rest.chars().next() {
        let literal =
            ["NaN", "-Infinity", "Infinity"].into_iter().find(|literal| !quoted && rest.starts_with(literal));
        let taken = match (literal, first) {
            (Some(literal), _) => {
                plain.push_str("null");
                rest = &rest[literal.len()..];
                continue;
            }
            (None, '\\') if quoted => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            (None, _) => first.len_utf8(),
        };
        quoted ^= first == '"';
        plain.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_not_finite_are_understood() {
        assert_eq!(
            plain_json(r#"{"a": NaN, "b": [-Infinity,Infinity]}"#),
            r#"{"a": null, "b": [null,null]}"#
        );
        let text = r#"{"NaN": "an \"Infinity\" of \\", "é": 1}"#;
        assert_eq!(plain_json(text), text);
        assert_eq!(plain_json("\"\\"), "\"\\");
    }

    #[test]
    fn requests_are_read() {
        let read = |line: &str| serde_json::from_str::<Request>(line).map_err(|error| error.to_string());
        assert_eq!(read(r#"{"ask": 2}"#), Ok(Request::Ask(2)));
        assert!(matches!(read(r#"{"report": {"id": 1, "step": 2, "value": null}}"#), Ok(Request::Report(_))));
        let end = |line: &str| match read(line) {
            Ok(Request::Tell(tell)) => tell.end().map_err(str::to_owned),
            other => Err(format!("{other:?}")),
        };
        assert_eq!(end(r#"{"tell": {"id": 1, "value": 0.5}}"#), Ok(End::Done(vec![0.5])));
        assert_eq!(end(r#"{"tell": {"id": 1, "values": [1, 2]}}"#), Ok(End::Done(vec![1.0, 2.0])));
        let failed = Ok(End::Failed("out of memory".to_owned()));
        assert_eq!(end(r#"{"tell": {"id": 1, "state": "failed", "reason": "out of memory"}}"#), failed);
        assert!(end(r#"{"tell": {"id": 1}}"#).is_err_and(|error| error.contains("needs an `id` and one of")));
        assert!(end(r#"{"tell": {"id": 1, "state": "done"}}"#).is_err());
        assert!(
            matches!(end(r#"{"tell": {"id": 1, "value": null}}"#), Ok(End::Done(values)) if values[0].is_nan())
        );
        assert!(read(r#"{"tell": {"id": 1, "vlaue": 2}}"#).is_err_and(|error| error.contains("vlaue")));
        assert!(read(r#"{"enqueue": {"lr": [1]}}"#).is_err_and(|error| error.contains("`lr` is [1]")));
    }
}
