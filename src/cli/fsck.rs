//! `pollux-tune fsck`: whether the journal of a study is whole, and what can be kept of one that is not.

use std::{io::Write, path::Path};

use super::{error::ExitStatus, output::pluralize};
use crate::{
    cli,
    ids::TrialId,
    store::{self, Examination, Repair},
};

/// So many trials are listed by their numbers.
const LISTED: usize = 20;

/// Prints what is whole of a study, and repairs it if that is wanted.
pub(super) fn run(folder: &Path, is_repair: bool, out: &mut impl Write) -> Result<ExitStatus, cli::Error> {
    let Repair { found, damaged, .. } = if is_repair {
        store::repair(folder)?
    } else {
        let found = store::examine(folder)?;
        return show(folder, &found, out)
            .map(|()| if found.problems.is_empty() { ExitStatus::Success } else { ExitStatus::Failure })
            .map_err(cli::Error::Stdout);
    };
    let mut tell = || {
        show(folder, &found, out)?;
        let Some(damaged) = &damaged else { return Ok(()) };
        writeln!(out, "repaired: the first {} are kept", pluralize(found.facts as usize, "fact"))?;
        writeln!(out, "  the damaged files are in {}", damaged.display())
    };
    tell().map_err(cli::Error::Stdout)?;
    Ok(ExitStatus::Success)
}

fn show(folder: &Path, found: &Examination, out: &mut impl Write) -> std::io::Result<()> {
    let is_whole = found.problems.is_empty();
    writeln!(out, "{} is {}", folder.display(), if is_whole { "whole" } else { "damaged" })?;
    if let Some(study) = found.study {
        writeln!(out, "  study    {study}")?;
    }
    let results = pluralize(found.results as usize, "result");
    writeln!(out, "  facts    {} of {} are whole, with {results}", found.facts, found.written)?;
    for problem in &found.problems {
        writeln!(out, "  problem  {problem}")?;
    }
    if found.facts < found.written {
        let lost = found.written - found.facts;
        writeln!(out, "  lost     {} after fact {}", pluralize(lost as usize, "fact"), found.facts)?;
    }
    if !found.lost.is_empty() {
        writeln!(out, "  lost     the ends of trials {}", list(&found.lost))?;
    }
    Ok(())
}

fn list(trials: &[TrialId]) -> String {
    let mut list: Vec<String> = trials.iter().take(LISTED).map(ToString::to_string).collect();
    if trials.len() > LISTED {
        list.push(format!("and {} more", trials.len() - LISTED));
    }
    list.join(", ")
}
