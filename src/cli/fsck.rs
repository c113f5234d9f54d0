//! `pollux-tune fsck`: whether the journal of a study is whole, and what can be kept of one that is not.

use std::{io::Write, path::Path};

use super::{error::ExitStatus, output::pluralize};
use crate::{
    cli,
    ids::{StudyId, TrialId},
    store::{self, Examination, Folder, Repair},
    worker::checkpoint::{self, Survey},
};

/// So many trials are listed by their numbers.
const LISTED: usize = 20;

/// Prints what is whole of a study, and repairs it if that is wanted.
pub(super) fn run(folder: &Path, is_repair: bool, out: &mut impl Write) -> Result<ExitStatus, cli::Error> {
    let Repair { found, damaged, .. } = if is_repair {
        store::repair(folder)?
    } else {
        let found = store::examine(folder)?;
        show(folder, &found, out).map_err(cli::Error::Stdout)?;
        let are_whole = checkpoints(folder, found.study, out)?;
        let is_whole = found.problems.is_empty() && are_whole;
        return Ok(if is_whole { ExitStatus::Success } else { ExitStatus::Failure });
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

/// Prints what is whole of the checkpoints. Gives whether all are.
fn checkpoints(folder: &Path, study: Option<StudyId>, out: &mut impl Write) -> Result<bool, cli::Error> {
    let place = Folder::new(folder).checkpoints();
    let found = checkpoint::survey(&place, study).map_err(cli::Error::reading(&place))?;
    let tell = |Survey { whole, unusable }: &Survey, out: &mut dyn Write| {
        if whole + unusable.len() > 0 {
            let all = pluralize(whole + unusable.len(), "checkpoint");
            writeln!(out, "  states   {whole} of {all} are whole and of this study")?;
        }
        for (path, problem) in unusable.iter().take(LISTED) {
            writeln!(out, "  problem  {} {problem}", path.display())?;
        }
        if unusable.len() > LISTED {
            writeln!(out, "  problem  and {} more", unusable.len() - LISTED)?;
        }
        if !unusable.is_empty() {
            writeln!(
                out,
                "           they are not used: their trials go on from the checkpoint before, or start over"
            )?;
        }
        std::io::Result::Ok(())
    };
    tell(&found, out).map_err(cli::Error::Stdout)?;
    Ok(found.unusable.is_empty())
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
