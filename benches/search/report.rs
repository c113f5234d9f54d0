//! Markdown tables.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{Error, Write},
};

use crate::{
    runs::{Runs, Sample, Setting},
    stats::{compare, geometric_mean, median},
    study::SIZES,
};

/// Each of ours with what it is compared with.
const PAIRS: [(&str, &[&str]); 4] = [
    (
        "our tpe",
        &[
            "optuna",
            "optuna-univariate",
            "hyperopt",
            "parzen",
            "parzen-grouped",
            "tpe",
            "optimizer",
            "optimizer-multivariate",
            "our halton",
            "our random",
        ],
    ),
    ("our tpe", &["optuna-gp"]),
    ("our gp", &["optuna-gp", "our tpe"]),
    ("our auto", &["optuna", "optuna-gp", "our tpe", "our gp"]),
];
const RANDOM: &str = "our random";
/// No ratio to the regret of random search counts as smaller: a regret of 0 would make the mean 0.
const SMALLEST_RATIO: f64 = 1e-3;

/// All tables.
pub(crate) fn markdown(runs: &Runs) -> Result<String, Error> {
    let mut text = String::new();
    for (ours, peers) in PAIRS {
        let ran = |name: &str| runs.samples.values().any(|samples| samples.contains_key(name));
        let peers: Vec<&str> = peers.iter().copied().filter(|peer| ran(peer)).collect();
        if ran(ours) && !peers.is_empty() {
            quality(&mut text, runs, ours, &peers)?;
            means(&mut text, runs, ours, &peers)?;
        }
    }
    costs(&mut text, runs, "our gp", "optuna-gp")?;
    speed(&mut text, runs)?;
    let versions: Vec<String> =
        runs.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    writeln!(text, "\nVersions: {}", versions.join(", "))?;
    missing(&mut text, runs)?;
    Ok(text)
}

/// One row for each setting, and how often ours was better or worse.
fn quality(text: &mut String, runs: &Runs, ours: &str, peers: &[&str]) -> Result<(), Error> {
    let mut tally: BTreeMap<&str, [u32; 3]> = BTreeMap::new();
    writeln!(text, "\nMedian regret; `+` where {ours} is significantly better, `-` where it is worse.\n")?;
    writeln!(text, "| trials | workers | problem | {ours} | {} |", peers.join(" | "))?;
    writeln!(text, "|---|---|---|---|{}", "---|".repeat(peers.len()))?;
    for (setting, samples) in &runs.samples {
        let Some(own) = samples.get(ours) else { continue };
        if !peers.iter().any(|peer| !peer.starts_with("our ") && samples.contains_key(*peer)) {
            continue;
        }
        let mut cells = Vec::new();
        for &peer in peers {
            cells.push(samples.get(peer).map_or_else(String::new, |theirs| {
                let verdict = compare(&own.regrets(), &theirs.regrets());
                tally.entry(peer).or_default()[verdict as usize] += 1;
                format!("{}{}", short(median(&theirs.regrets())), ["", " +", " -"][verdict as usize])
            }));
        }
        let Setting { trials, workers, problem } = *setting;
        let own = short(median(&own.regrets()));
        writeln!(
            text,
            "| {trials} | {workers} | {} | {own} | {} |",
            runs.problems[problem],
            cells.join(" | ")
        )?;
    }
    writeln!(text)?;
    for peer in peers {
        let [same, better, worse] = tally.get(peer).copied().unwrap_or_default();
        writeln!(text, "- {ours} against {peer}: {better} times better, {same} the same, {worse} worse")?;
    }
    Ok(())
}

/// The geometric mean of the regret relative to random search, over the problems that all of them ran.
fn means(text: &mut String, runs: &Runs, ours: &str, peers: &[&str]) -> Result<(), Error> {
    writeln!(
        text,
        "\nMedian regret relative to random search, geometric mean of the problems that all ran (at least"
    )?;
    writeln!(text, "{SMALLEST_RATIO} each).\n")?;
    let names: Vec<&str> =
        [ours].into_iter().chain(peers.iter().copied()).filter(|name| *name != RANDOM).collect();
    writeln!(text, "| trials | workers | problems | {} |", names.join(" | "))?;
    writeln!(text, "|---|---|---|{}", "---|".repeat(names.len()))?;
    let groups: BTreeSet<(usize, usize)> = runs.samples.keys().map(|s| (s.trials, s.workers)).collect();
    for (trials, workers) in groups {
        let in_group = runs.samples.iter().filter(|(s, _)| (s.trials, s.workers) == (trials, workers));
        let in_group: Vec<&BTreeMap<String, Sample>> = in_group.map(|(_, samples)| samples).collect();
        // An optimizer that did not run at all in this group does not empty the table.
        let here: Vec<&str> = names
            .iter()
            .copied()
            .filter(|name| in_group.iter().any(|samples| samples.contains_key(*name)))
            .collect();
        let common: Vec<&&BTreeMap<String, Sample>> =
            in_group.iter().filter(|samples| here.iter().all(|name| samples.contains_key(*name))).collect();
        if !here.contains(&ours) || here.iter().all(|name| name.starts_with("our ")) || common.is_empty() {
            continue;
        }
        let mean = |name: &&str| {
            let ratio = |samples: &&&BTreeMap<String, Sample>| {
                let of = |name: &str| samples.get(name).map(|sample| median(&sample.regrets()));
                Some((of(name)? / of(RANDOM)?).max(SMALLEST_RATIO))
            };
            let ratios: Option<Vec<f64>> = common.iter().map(ratio).collect();
            ratios.map_or_else(String::new, |ratios| format!("{:.3}", geometric_mean(&ratios)))
        };
        let cells: Vec<String> = names.iter().map(mean).collect();
        writeln!(text, "| {trials} | {workers} | {} | {} |", common.len(), cells.join(" | "))?;
    }
    Ok(())
}

/// What a trial costs two optimizers in the same studies.
fn costs(text: &mut String, runs: &Runs, ours: &str, peer: &str) -> Result<(), Error> {
    let mut rows = Vec::new();
    for (setting, samples) in &runs.samples {
        if let (Some(own), Some(theirs)) = (samples.get(ours), samples.get(peer)) {
            rows.push((setting, median(&own.seconds()) * 1e3, median(&theirs.seconds()) * 1e3));
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(text, "\nTime of the processor for each trial, ms.\n")?;
    writeln!(text, "| trials | workers | problem | {ours} | {peer} | ratio |\n|---|---|---|---|---|---|")?;
    for (Setting { trials, workers, problem }, own, theirs) in &rows {
        let (problem, ratio) = (runs.problems[*problem], own / theirs);
        writeln!(text, "| {trials} | {workers} | {problem} | {own:.3} | {theirs:.1} | {ratio:.4} |")?;
    }
    let ratios: Vec<f64> = rows.iter().map(|(_, own, theirs)| own / theirs).collect();
    writeln!(text, "\nGeometric mean of the ratios: {:.4}", geometric_mean(&ratios))
}

/// One ask and one tell.
fn speed(text: &mut String, runs: &Runs) -> Result<(), Error> {
    writeln!(text, "\nTime of the processor for one ask and one tell after so many trials, median, ms.\n")?;
    let sizes: Vec<String> = SIZES.iter().map(u32::to_string).collect();
    writeln!(text, "| | {} |\n|---|{}", sizes.join(" | "), "---|".repeat(SIZES.len()))?;
    for (name, times) in &runs.speed_ms {
        let cell = |size: &u32| times.get(size).map_or_else(String::new, |ms| milliseconds(*ms));
        let cells: Vec<String> = SIZES.iter().map(cell).collect();
        writeln!(text, "| {name} | {} |", cells.join(" | "))?;
    }
    Ok(())
}

/// Where a peer has fewer seeds than another one.
fn missing(text: &mut String, runs: &Runs) -> Result<(), Error> {
    for (Setting { trials, workers, problem }, samples) in &runs.samples {
        let most = samples.values().map(|sample| sample.regrets().len()).max().unwrap_or_default();
        for (name, sample) in samples.iter().filter(|(_, sample)| sample.regrets().len() < most) {
            let (problem, seeds) = (runs.problems[*problem], sample.regrets().len());
            writeln!(text, "\nOnly {seeds} seeds: {name} on {problem}, {trials} trials, {workers} workers")?;
        }
    }
    Ok(())
}

fn milliseconds(ms: f64) -> String {
    if ms < 10.0 { format!("{ms:.3}") } else { format!("{ms:.0}") }
}

pub(crate) fn short(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        v if v < 1e-3 => format!("{v:.1e}"),
        v if v < 0.01 => format!("{v:.4}"),
        v if v < 1.0 => format!("{v:.3}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}
