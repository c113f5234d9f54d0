//! `pollux-tune pause`, `resume` and `enqueue`: what a user wants of a study, whether or not somebody runs it.

use std::{io::Write, path::Path};

use thiserror::Error;

use super::stop::{LATER, resume as resume_command, runner_here};
use crate::{
    cli,
    space::{Params, Space, Value},
    store::{Journal, Reader, Store, TrialState},
    trials::engine::{Fact, JournalEntry, State, TrialKind},
    wire::{self, ControlRequest, Heard},
};

/// What can be wrong with a wish.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error(
        "the trials of {folder} are run by no `pollux-tune run`, but by the program that asks for them: there is nothing to pause"
    )]
    NothingRuns { folder: String },
    #[error("these parameters cannot be tried in the study in {folder}")]
    Params { folder: String, source: crate::space::Error },
}

/// Who has taken note of a wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// The process that runs the study.
    Head,
    /// The same, but its journal cannot be written for now.
    Noted,
    /// The journal, for the next one.
    Journal,
}

/// Tells the head that runs a study what its user wants, or writes it into the journal if there is none.
fn tell(
    reader: &Reader,
    request: ControlRequest,
    facts: impl FnOnce(&State) -> Vec<Fact>,
) -> Result<Taken, cli::Error> {
    if runner_here(reader)?.is_some() {
        let heard = wire::ask_head(&reader.folder().control(), request)?;
        return Ok(if heard == Heard::Noted { Taken::Noted } else { Taken::Head });
    }
    let mut store = Store::open(reader.folder().root())?;
    let Some((facts, at_s)) = store.state().map(|state| (facts(state), state.at_s)) else {
        return Ok(Taken::Journal);
    };
    // The time between two runs is not the study's.
    let entries: Vec<JournalEntry> = facts.into_iter().map(|fact| JournalEntry { at_s, fact }).collect();
    store.append(&entries)?;
    store.sync()?;
    Ok(Taken::Journal)
}

/// No trial of the study is launched from now on.
pub(super) fn pause(folder: &Path, out: &mut impl Write) -> Result<(), cli::Error> {
    let reader = Reader::open(folder)?;
    let (study, status, shown) = (reader.study()?, reader.status()?, folder.display());
    if study.trial.program.is_none() && !reader.folder().control().exists() {
        return Err(Error::NothingRuns { folder: shown.to_string() }.into());
    }
    let line = if status.done {
        format!("{shown} is done: there is nothing to pause")
    } else if status.paused {
        format!("{shown} is paused already; continue with: pollux-tune resume {shown}")
    } else {
        let runs = [TrialState::Forming, TrialState::Running, TrialState::Pausing];
        let running = runs.iter().filter_map(|state| status.trials.get(state)).sum();
        match tell(&reader, ControlRequest::Pause, |_| vec![Fact::PauseRequested {}])? {
            Taken::Head => {
                let what = what_runs(running, TrialKind::of(&study));
                format!(
                    "{shown} is paused: no trial is launched{what}\ncontinue with: pollux-tune resume {shown}"
                )
            }
            Taken::Noted => format!("{shown} is not paused yet: {LATER}"),
            Taken::Journal => {
                format!("{shown} is paused: a run of it launches no trial until: pollux-tune resume {shown}")
            }
        }
    };
    writeln!(out, "{line}").map_err(cli::Error::Stdout)
}

/// What becomes of the trials that run when a study is paused.
fn what_runs(running: u32, kind: TrialKind) -> String {
    let (one, many) = match kind {
        TrialKind::Elastic => {
            ("saves its state and releases its slots", "save their state and release their slots")
        }
        TrialKind::Restarted => {
            ("is asked to save its state and end", "are asked to save their state and end")
        }
        TrialKind::Rigid => ("runs to its end", "run to their end"),
    };
    match running {
        0 => String::new(),
        1 => format!("; 1 running trial {one}"),
        _ => format!("; {running} running trials {many}"),
    }
}

/// Trials of a paused study are launched again.
pub(super) fn resume(folder: &Path, out: &mut impl Write) -> Result<(), cli::Error> {
    let reader = Reader::open(folder)?;
    let (status, shown) = (reader.status()?, folder.display());
    let run = || resume_command(reader.folder());
    let line = if status.paused {
        match tell(&reader, ControlRequest::Resume, |_| vec![Fact::ResumeRequested {}])? {
            Taken::Head => format!("{shown} continues: trials are launched again"),
            Taken::Noted => format!("{shown} does not continue yet: {LATER}"),
            Taken::Journal => format!("{shown} is no longer paused; run it with: {}", run()),
        }
    } else {
        let remedy =
            if status.done || status.is_run { String::new() } else { format!("; run it with: {}", run()) };
        format!("{shown} is not paused{remedy}")
    };
    writeln!(out, "{line}").map_err(cli::Error::Stdout)
}

/// A known point is tried before what the search would choose.
pub(super) fn enqueue(
    folder: &Path,
    values: &[(String, String)],
    out: &mut impl Write,
) -> Result<(), cli::Error> {
    let reader = Reader::open(folder)?;
    let (study, status, shown) = (reader.study()?, reader.status()?, folder.display());
    let wrong = |source| Error::Params { folder: shown.to_string(), source };
    let params = study.space.complete(&typed(&study.space, values)).map_err(wrong)?;
    let request = ControlRequest::Enqueue { params: params.clone() };
    let taken = tell(&reader, request, |state| state.enqueue(params.clone()))?;
    let created: u32 = status.trials.values().sum();
    let mut lines = vec![format!("enqueued: {params}")];
    if taken == Taken::Noted {
        lines.push(LATER.to_owned());
    }
    if created >= status.wanted {
        let wanted = created + 1;
        let more = format!(
            "the study has all its {} trials; for one more: {} --trials {wanted}",
            status.wanted,
            resume_command(reader.folder())
        );
        lines.push(more);
    } else if taken == Taken::Journal {
        lines.push(format!("it is the next trial of: {}", resume_command(reader.folder())));
    } else {
        lines.push("it is tried when there is room for another trial".to_owned());
    }
    if let Some(broken) = study.space.broken(&params) {
        lines.push(format!(
            "note: the constraint `{}` does not hold; it is tried nevertheless",
            broken.text()
        ));
    }
    writeln!(out, "{}", lines.join("\n")).map_err(cli::Error::Stdout)
}

/// Values as a parameter takes them: as a number or truth value where it looks like one and that is allowed, else as text.
fn typed(space: &Space, values: &[(String, String)]) -> Params {
    let value = |(name, text): &(String, String)| {
        let looks = looks_like(text);
        let domain = space.parameters().iter().find(|parameter| parameter.name() == name);
        let is_text = domain.is_some_and(|parameter| {
            parameter.domain().encode(&looks).is_none()
                && parameter.domain().encode(&Value::from(text.as_str())).is_some()
        });
        (name.clone(), if is_text { Value::from(text.as_str()) } else { looks })
    };
    values.iter().map(value).collect()
}

fn looks_like(text: &str) -> Value {
    match (text, text.parse::<i64>(), text.parse::<f64>()) {
        ("true", ..) => true.into(),
        ("false", ..) => false.into(),
        (_, Ok(whole), _) => whole.into(),
        (_, _, Ok(number)) if number.is_finite() => number.into(),
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Study;

    #[test]
    fn values_are_what_their_parameter_takes() {
        let yaml = "{space: {lr: {log: [1e-4, 1]}, layers: {int: [1, 8]}, act: [relu, '1', 'true'], wide: [true, false]}, objective: {minimize: loss}}";
        let space = Study::from_yaml("study.yaml", yaml).unwrap().space;
        let given = |values: &[(&str, &str)]| -> Vec<(String, String)> {
            values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let complete = |values: &[(&str, &str)]| {
            let params = space.complete(&typed(&space, &given(values)));
            params.map(|params| params.to_string()).map_err(|error| error.to_string())
        };
        let all = [("wide", "false"), ("act", "1"), ("layers", "3"), ("lr", "1e-2")];
        assert_eq!(complete(&all).as_deref(), Ok("lr=0.01 layers=3 act=1 wide=false"));
        let typed = typed(&space, &given(&all));
        assert_eq!(typed.get("act"), Some(&Value::from("1")), "a text, though it looks like a number");
        for (wrong, message) in [
            (&[("lr", "7"), ("layers", "3"), ("act", "relu"), ("wide", "true")][..], "`lr`"),
            (&[("lr", "0.1")], "`layers`"),
            (&[("rl", "0.1")], "did you mean `lr`?"),
        ] {
            let error = complete(wrong).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
