//! The weights of a trial as safetensors.

use std::{
    collections::BTreeMap,
    io::{BufWriter, Write},
    path::Path,
};

use super::Error;
use crate::{
    cli::{
        self, inspect,
        output::{pluralize, write_whole},
        results,
    },
    ids::TrialId,
    space::{KeepCheckpoints, Program, Study},
    store::{Reader, TrialRow, TrialState},
    worker::checkpoint::{NoModel, SavedModel},
};

/// Which trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chosen {
    Best,
    Number(u32),
}

/// Writes the weights of a trial, and says what they are.
pub(super) fn write(
    reader: &Reader,
    folder: &Path,
    trial: Chosen,
    output: &Path,
    out: &mut impl Write,
) -> Result<(), cli::Error> {
    let study = reader.study()?;
    let row = choose(reader, &study, folder, trial)?;
    let own = reader.folder().checkpoint(row.trial);
    match &study.trial.program {
        _ if reader.folder().emulated().is_some() => return Err(Error::Emulated(folder.to_owned()).into()),
        Some(Program::Command(_)) => return Err(Error::Programs { folder: folder.to_owned(), own }.into()),
        None => return Err(Error::Told(folder.to_owned()).into()),
        Some(Program::Trainable(_) | Program::Python(_)) => {}
    }
    let mut model = SavedModel::find(&own, reader.study_id()?, row.trial).map_err(|no| match no {
        NoModel::Nothing => {
            let why = why_none(&study, &row);
            Error::NoCheckpoint { trial: row.trial.0, folder: folder.to_owned(), why }
        }
        NoModel::Unusable(path, problem) => {
            Error::Unusable { trial: row.trial.0, path, problem: problem.to_string() }
        }
    })?;
    let metadata = metadata(reader, &study, &row, &model)?;
    write_whole(output, |file| {
        let mut out = BufWriter::new(file);
        model.write(&metadata, &mut out)?;
        out.flush()
    })?;
    let (tensors, numbers) = model.size();
    let steps = pluralize(model.position.steps as usize, "step");
    let what =
        format!("trial {} after {steps}: {}, {numbers} numbers", row.trial, pluralize(tensors, "tensor"));
    writeln!(out, "{}: {what}", output.display()).map_err(cli::Error::Stdout)
}

/// Whether the best trial of such a study has weights: it trains with workers of ours, and there is one best.
pub(crate) fn has_best_weights(study: &Study, is_emulated: bool) -> bool {
    let trains = matches!(study.trial.program, Some(Program::Trainable(_) | Program::Python(_)));
    trains && !is_emulated && study.objectives.len() == 1
}

fn choose(reader: &Reader, study: &Study, folder: &Path, which: Chosen) -> Result<TrialRow, cli::Error> {
    match which {
        Chosen::Number(trial) => {
            if let Some(row) = reader.trial(TrialId(trial))? {
                return Ok(row);
            }
            let (folder, count) = (folder.display().to_string(), reader.trials()?.len());
            Err(inspect::Error::NoTrial { trial, folder, count }.into())
        }
        Chosen::Best => {
            let best = reader.best(1)?.pop().ok_or_else(|| Error::NoneFinished(folder.to_owned()))?;
            if study.objectives.len() > 1 {
                let search = results::search(folder)?;
                let front: Vec<String> =
                    search.pareto_front().iter().map(|trial| trial.id.to_string()).collect();
                return Err(Error::Several { folder: folder.to_owned(), front: front.join(", ") }.into());
            }
            Ok(best)
        }
    }
}

/// Why a trial has no checkpoint, and what to do.
fn why_none(study: &Study, row: &TrialRow) -> String {
    let keep = match study.trial.keep_checkpoints {
        KeepCheckpoints::All => "all".to_owned(),
        KeepCheckpoints::Best(0) => "none".to_owned(),
        KeepCheckpoints::Best(1) => "that of the best trial".to_owned(),
        KeepCheckpoints::Best(count) => format!("those of the best {count} trials"),
    };
    let advice =
        "`run --keep-checkpoints all` (or a number of the best) keeps more, also when a study is resumed";
    match row.state {
        TrialState::Done if study.trial.keep_checkpoints != KeepCheckpoints::All => {
            format!("after their end the study keeps {keep}; {advice}")
        }
        TrialState::Stopped => format!("it was stopped early, and the study keeps {keep}; {advice}"),
        TrialState::Done => "it is gone from the folder".to_owned(),
        TrialState::Failed | TrialState::Cancelled => "it ended before one was written".to_owned(),
        _ => "none was written yet (see trial.checkpoint_interval)".to_owned(),
    }
}

/// What the file says of itself, in texts as the format wants it.
fn metadata(
    reader: &Reader,
    study: &Study,
    row: &TrialRow,
    model: &SavedModel,
) -> Result<BTreeMap<String, String>, cli::Error> {
    let metrics = study.objectives.iter().map(|objective| objective.metric.clone());
    let values = row.values.iter().flatten();
    let result: serde_json::Map<_, _> =
        metrics.zip(values).map(|(metric, value)| (metric, (*value).into())).collect();
    let params = serde_json::to_string(&row.params).map_err(|error| cli::Error::Stdout(error.into()))?;
    let texts = [
        // Some libraries refuse a file that does not say so.
        ("format", "pt".to_owned()),
        ("study", reader.study_id()?.to_string()),
        ("trial", row.trial.to_string()),
        ("steps", model.position.steps.to_string()),
        ("params", params),
        ("result", serde_json::Value::Object(result).to_string()),
    ];
    Ok(texts.into_iter().map(|(name, text)| (name.to_owned(), text)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_studies_that_train_have_weights() {
        let study = |objective: &str, trial: &str| {
            let yaml = format!("space: {{x: {{float: [0, 1]}}}}\nobjective: {objective}\n{trial}");
            Study::from_yaml("study.yaml", &yaml).expect("a study")
        };
        let trainable = "trial: {trainable: net, epochs: 1}";
        let net = study("{maximize: a}", trainable);
        assert!(has_best_weights(&net, false));
        assert!(!has_best_weights(&net, true), "emulated");
        assert!(
            !has_best_weights(&study("[{maximize: a}, {minimize: b}]", trainable), false),
            "no single best"
        );
        assert!(!has_best_weights(&study("{maximize: a}", "trial: {command: [train]}"), false), "a program");
        assert!(!has_best_weights(&study("{maximize: a}", ""), false), "told");
    }
}
