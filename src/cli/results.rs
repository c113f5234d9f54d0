//! `pollux-tune best` and `pollux-tune importance`: what a search has found, from its journal.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use crate::{
    cli,
    space::{Objective, Value},
    store::{Folder, Reader},
    trials::{Search, Trial, engine::SuggestService},
};
use serde_json::json;
use thiserror::Error;

use super::{
    ask_tell::{Share, read},
    inspect::of_emulation,
    json,
    output::{Format, brief_params, pluralize, table},
    terminal,
};

/// The longest bar of a share.
const BAR: f64 = 40.0;

/// What can be wrong with a question about results.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error("there is no objective `{name}` in {}; expected one of {}", .file.display(), .allowed.join(", "))]
    NoObjective { name: String, file: PathBuf, allowed: Vec<String> },
    #[error("{}", .file.display())]
    TooLittle { file: PathBuf, source: crate::trials::Error },
}

/// The search behind the study in a folder, or behind a journal of `ask-tell` of an earlier version.
pub(crate) fn search(path: &Path) -> Result<Search, cli::Error> {
    if !path.is_dir() {
        return Ok(read(path)?.search);
    }
    let reader = Reader::open(path)?;
    let mut suggesting = SuggestService::new(&reader.study()?)?;
    reader.replay(|entry| suggesting.apply(&entry).map_err(cli::Error::from))?;
    Ok(suggesting.into_search())
}

fn goals(search: &Search) -> Vec<String> {
    let goal = |Objective { metric, direction }: &Objective| format!("{direction} {metric}");
    search.study().objectives.iter().map(goal).collect()
}

/// The best trials, or all that no other beats if there are several objectives.
pub(crate) fn best(
    journal: &Path,
    count: usize,
    format: Format,
    out: &mut impl Write,
) -> Result<(), cli::Error> {
    let search = search(journal)?;
    let several = search.study().objectives.len() > 1;
    let trials = if several { search.pareto_front() } else { search.best(count) };
    let text = match format {
        Format::Json => {
            let trial = |trial: &&Trial| json::ranked(&search.study().objectives, trial);
            json::object(json!({"best": trials.iter().map(trial).collect::<Vec<_>>()}))
        }
        Format::Text => {
            let note =
                Folder::new(journal).emulated().map(|devices| format!("\n  {}", of_emulation(&devices)));
            let width = terminal::stdout_width();
            let table = best_table(&search, &trials, several, width);
            format!("{table}{}", terminal::folded(&note.unwrap_or_default()))
        }
    };
    writeln!(out, "{text}").map_err(cli::Error::Stdout)
}

/// On a terminal, numbers are rounded and lines end where it ends; else all digits are there.
fn best_table(search: &Search, trials: &[&Trial], several: bool, width: Option<usize>) -> String {
    let done = search.trials().filter(|trial| trial.values().is_some()).count();
    if done == 0 {
        return format!("{}: no trial has a result", goals(search).join(" and "));
    }
    let of = pluralize(done, "finished trial");
    let which = if several {
        format!("{} of {of} that no other one beats in all objectives", trials.len())
    } else {
        format!("the best of {of}")
    };
    let mut lines = vec![format!("{}: {which}", goals(search).join(" and "))];
    let mut rows = vec![vec!["trial".to_owned()]];
    rows[0].extend(search.study().objectives.iter().map(|objective| objective.metric.clone()));
    for trial in trials {
        let mut row = vec![trial.id.to_string()];
        row.extend(trial.values().unwrap_or_default().iter().map(|value| Value::from(*value).short()));
        rows.push(row);
    }
    for (place, row) in rows.iter_mut().enumerate() {
        row.push(match place {
            0 => "parameters".to_owned(),
            _ if width.is_some() => brief_params(&trials[place - 1].params),
            _ => trials[place - 1].params.to_string(),
        });
    }
    lines.extend(table(&rows).iter().map(|line| terminal::cut(line, width)));
    lines.join("\n")
}

/// How much each parameter matters for an objective, the first one unless another is named.
pub(crate) fn importance(
    journal: &Path,
    objective: Option<&str>,
    format: Format,
    out: &mut impl Write,
) -> Result<(), cli::Error> {
    let search = search(journal)?;
    let objectives = &search.study().objectives;
    let place = match objective {
        None => 0,
        Some(name) => objectives.iter().position(|known| known.metric == name).ok_or_else(|| {
            let allowed = objectives.iter().map(|known| known.metric.clone()).collect();
            Error::NoObjective { name: name.to_owned(), file: journal.to_owned(), allowed }
        })?,
    };
    let too_little = |source| Error::TooLittle { file: journal.to_owned(), source };
    let shares = search.importance(place).map_err(too_little)?;
    let metric = &objectives[place].metric;
    let done = search.trials().filter(|trial| trial.values().is_some()).count();
    let text = match format {
        Format::Json => {
            let rows: Vec<Share> = shares.into_iter().map(Share::from).collect();
            json::object(json!({"objective": metric, "trials": done, "importance": rows}))
        }
        Format::Text => {
            let width = shares.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
            let mut lines =
                vec![format!("share of the variance of {metric} in {}:", pluralize(done, "finished trial"))];
            lines.extend(shares.iter().map(|(name, share)| {
                let bar = "#".repeat((share * BAR).round() as usize);
                format!("  {name:width$}  {share:.3}  {bar}").trim_end().to_owned()
            }));
            lines.join("\n")
        }
    };
    writeln!(out, "{text}").map_err(cli::Error::Stdout)
}
