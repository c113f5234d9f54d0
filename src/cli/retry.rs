//! `pollux-tune retry`: failed trials are to run again with the next `run`.

use std::{io::Write, path::Path};

use super::stop::resume;
use crate::{
    cli,
    ids::TrialId,
    store::{Journal, Reader, Store},
    trials::engine::{Fact, JournalEntry},
};

/// Puts failed trials back, these or all, and prints how to run them.
pub(super) fn run(folder: &Path, trials: &[u32], out: &mut impl Write) -> Result<(), cli::Error> {
    // Unlike a writer, it makes nothing.
    let reader = Reader::open(folder)?;
    let mut store = Store::open(folder)?;
    let trials: Vec<TrialId> = trials.iter().copied().map(TrialId).collect();
    let Some((facts, at_s)) = store.state().map(|state| (state.retry(&trials), state.at_s)) else {
        return Ok(());
    };
    let facts = facts?;
    let retried = facts.iter().filter_map(|fact| match fact {
        Fact::TrialRetried { trial } => Some(trial.to_string()),
        _ => None,
    });
    let retried: Vec<String> = retried.collect();
    if retried.is_empty() {
        return writeln!(out, "no trial of {} has failed", folder.display()).map_err(cli::Error::Stdout);
    }
    // The time between two runs is not the study's.
    let entries: Vec<JournalEntry> = facts.into_iter().map(|fact| JournalEntry { at_s, fact }).collect();
    store.append(&entries)?;
    store.sync()?;
    let (what, runs) = if retried.len() == 1 { ("trial", "runs") } else { ("trials", "run") };
    let line = format!("{what} {} {runs} again with: {}", retried.join(", "), resume(reader.folder()));
    writeln!(out, "{line}").map_err(cli::Error::Stdout)
}
