//! How a run has ended, for programs.

use std::{io::Write, path::Path};

use serde_json::json;

use super::super::{ExitStatus, json as shape};
use crate::{actors::Finished, cli, trials::engine::Outcome};

/// Writes the last line of `run --json`.
pub(super) fn write_json(
    finished: &Finished,
    folder: &Path,
    out: &mut impl Write,
) -> Result<ExitStatus, cli::Error> {
    let search = finished.search();
    let objectives = &search.study().objectives;
    let best = if objectives.len() > 1 { search.pareto_front() } else { search.best(super::BEST) };
    let best: Vec<_> = best.into_iter().map(|trial| shape::ranked(objectives, trial)).collect();
    let (outcome, reason, status) = match &finished.outcome {
        Outcome::Done => ("done", None, ExitStatus::Success),
        Outcome::Stopped => ("stopped", None, ExitStatus::Interrupted),
        Outcome::Failed(reason) => ("failed", Some(reason), ExitStatus::Failure),
    };
    let folder = folder.display().to_string();
    let object =
        json!({"event": "end", "outcome": outcome, "reason": reason, "folder": folder, "best": best});
    writeln!(out, "{}", shape::object(object)).map_err(cli::Error::Stdout)?;
    Ok(status)
}
