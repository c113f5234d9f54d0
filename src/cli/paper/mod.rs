//! `pollux-tune simulate paper`: the published experiments again, as tables and drawings.
//!
//! [`cases`] are the simulations of workloads, [`drawings`] their figures, [`autoscale`] the training that asks for nodes
//! by itself, [`concurrency`] the hyper-parameter study with any number of trials at a time; other tables of it are in [`table3`].
//!
//! *Architecture invariant:* the order of the cases decides what is written, not the threads they ran on.

mod autoscale;
mod cases;
mod concurrency;
mod drawings;

use std::{fmt::Write as _, fs, io::Write, path::PathBuf};

use crate::{
    cli,
    sim::{Report, Workload, simulate},
};

use self::cases::Case;
use super::{
    output::write_atomically,
    parallel::in_parallel,
    plot::{self, Figure},
    simulate::{Error, figures},
    table3,
};

/// What to do.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) folder: PathBuf,
    /// Which experiments, by name; none for all.
    pub(crate) only: Vec<String>,
    /// How many workloads of each kind, and seeds of a study.
    pub(crate) workloads: usize,
    pub(crate) threads: usize,
}

/// The maximum number of workloads of a kind.
const ALL: usize = 8;

/// All experiments, in the order of the page.
pub(crate) const EXPERIMENTS: [&str; 9] =
    ["load", "fresh", "table2", "interval", "interference", "types", "table3", "concurrency", "autoscale"];

/// The files of an experiment.
pub(crate) struct Experiment {
    pub(crate) csv: String,
    pub(crate) figure: Figure,
    pub(crate) page: String,
}

/// Cases that were simulated, with a report for each workload.
type Done = Vec<(Case, Vec<Report>)>;

/// Runs everything, and writes a folder of tables and drawings. What was written before by another run stays on the page.
pub(crate) fn run(settings: &Settings, stderr: &mut (impl Write + Send)) -> Result<(), cli::Error> {
    let folder = &settings.folder;
    fs::create_dir_all(folder).map_err(cli::Error::system(format!("make {}", folder.display())))?;
    let mut done = Done::new();
    let asked = |name: &str| settings.only.is_empty() || settings.only.iter().any(|only| only == name);
    for name in EXPERIMENTS.into_iter().filter(|name| asked(name)) {
        // The files are there, whether or not this is read.
        let _ = writeln!(stderr, "{name}:");
        let file = |extension: &str| folder.join(format!("{name}.{extension}"));
        let seeds = settings.workloads.clamp(1, ALL) as u32;
        let experiment = match name {
            "table3" => table3::run(seeds, settings.threads, stderr)?,
            "concurrency" => concurrency::run(seeds, settings.threads, stderr)?,
            "autoscale" => autoscale::run()?,
            _ => workloads(name, settings, &mut done, stderr)?,
        };
        write_atomically(&file("csv"), &experiment.csv)?;
        write_atomically(&file("svg"), &plot::svg(&experiment.figure))?;
        let drawing = format!("\n![{}]({name}.svg)\n", experiment.figure.title);
        write_atomically(&file("md"), &(experiment.page + &drawing))?;
    }
    let mut page = "# The published experiments again\n".to_owned();
    for name in EXPERIMENTS {
        if let Ok(text) = fs::read_to_string(folder.join(format!("{name}.md"))) {
            page.push('\n');
            page.push_str(&text);
        }
    }
    write_atomically(&folder.join("README.md"), &page)?;
    let _ = writeln!(stderr, "wrote {}", folder.display());
    Ok(())
}

/// An experiment with workloads.
fn workloads(
    name: &str,
    settings: &Settings,
    done: &mut Done,
    stderr: &mut (impl Write + Send),
) -> Result<Experiment, Error> {
    let cases = match name {
        "load" => cases::load()?,
        "fresh" => cases::fresh()?,
        "table2" => cases::table2()?,
        "interval" => cases::interval()?,
        "interference" => cases::interference()?,
        _ => cases::types()?,
    };
    let reports = run_all(&cases, settings, done, stderr)?;
    let rows: Done = cases.into_iter().zip(reports).collect();
    let experiment =
        Experiment { csv: csv(&rows), figure: drawings::of(name, &rows), page: markdown(name, &rows) };
    done.extend(rows);
    Ok(experiment)
}

/// The reports of each case, one for each workload; what was simulated before is taken from there.
fn run_all(
    cases: &[Case],
    settings: &Settings,
    done: &Done,
    stderr: &mut (impl Write + Send),
) -> Result<Vec<Vec<Report>>, Error> {
    let known = |case: &Case| done.iter().find(|(other, _)| other.is_like(case));
    let mut jobs: Vec<(usize, Workload)> = Vec::new();
    for (place, case) in cases.iter().enumerate().filter(|(_, case)| known(case).is_none()) {
        let workloads = case.jobs.workloads(settings.workloads).map_err(Error::Simulation)?;
        jobs.extend(workloads.into_iter().map(|workload| (place, workload)));
    }
    let results = in_parallel(&jobs, settings.threads, stderr, |(place, workload)| {
        (*place, simulate(workload, &cases[*place].world, &mut |_| {}))
    });
    let mut reports: Vec<Vec<Report>> =
        cases.iter().map(|case| known(case).map_or_else(Vec::new, |(_, reports)| reports.clone())).collect();
    for (place, report) in results {
        reports[place].push(report.map_err(Error::Simulation)?);
    }
    Ok(reports)
}

fn mean(reports: &[Report], of: impl Fn(&Report) -> f64) -> f64 {
    reports.iter().map(of).sum::<f64>() / reports.len().max(1) as f64
}

fn csv(rows: &Done) -> String {
    let mut text = String::new();
    for (case, reports) in rows {
        for (number, report) in reports.iter().enumerate() {
            let figures = figures(report);
            if text.is_empty() {
                let names: Vec<&str> = figures.keys().map(String::as_str).collect();
                let _ = writeln!(text, "setting,policy,workload,{}", names.join(","));
            }
            let values: Vec<String> = figures.values().map(ToString::to_string).collect();
            let setting = case.setting.replace(',', ";");
            let _ = writeln!(text, "{setting},{},{},{}", case.policy(), number + 1, values.join(","));
        }
    }
    text
}

/// What an experiment is, and where published figures are from.
fn heading(name: &str) -> (&'static str, &'static str) {
    match name {
        "load" => (
            "Load: mean completion time in seconds, 16 nodes of 4 T4",
            "Load 1 are 160 jobs in 8 hours. Published: the authors' simulator.",
        ),
        "fresh" => (
            "Workloads that were not looked at before",
            "160 jobs in 8 hours, each drawn at random from the 1280 of the published workloads, on 16 nodes of 4 T4. Half of the \
             wrong epochs are too many.",
        ),
        "table2" => (
            "Table 2: the exponent p, and jobs as users request them",
            "Published: the authors' testbed, of which the figures are rounded; one workload, not eight. What adapts does \
             not look at requests.",
        ),
        "interval" => ("Seconds between two decisions", "Published: the authors' simulator."),
        "interference" => (
            "Interference of distributed jobs on one node, under `pollux`",
            "Published: the authors' simulator, without avoidance.",
        ),
        _ => (
            "Several GPU types, in the world of Sia",
            "Published: Sia's simulator, ten workloads of each kind, of which five are here, with one decimal of an hour.",
        ),
    }
}

fn markdown(name: &str, rows: &Done) -> String {
    let (title, source) = heading(name);
    let count = rows.iter().map(|(_, reports)| reports.len()).max().unwrap_or(0);
    let mut text =
        format!("## {title}\n\n{source} Ours: means over {count} workloads, times in seconds.\n\n");
    text.push_str("| setting | policy | published | ours | ratio | p99 | makespan | GPU hours | restarts | worst rho | above 1 |\n");
    text.push_str("|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (case, reports) in rows {
        let ours = mean(reports, Report::avg_jct_s);
        // What was published is a mean over all workloads.
        let comparable = case.published_s.filter(|_| reports.len() == case.jobs.count());
        let [published, ratio] = comparable.map_or([const { String::new() }; 2], |published| {
            [format!("{published:.0}"), format!("{:.3}", ours / published)]
        });
        let _ = writeln!(
            text,
            "| {} | `{}` | {published} | {ours:.0} | {ratio} | {:.0} | {:.0} | {:.0} | {:.1} | {:.1} | {:.0} % |",
            case.setting,
            case.policy(),
            mean(reports, |report| report.jct_quantile_s(0.99)),
            mean(reports, Report::makespan_s),
            mean(reports, Report::gpu_hours),
            mean(reports, Report::restarts_per_job),
            mean(reports, Report::worst_rho),
            100.0 * mean(reports, Report::unfair_share),
        );
    }
    if name == "fresh" {
        text.push_str(&compared(rows));
    }
    text
}

/// What the other cases need, relative to the first one, by workload and on the mean.
fn compared(rows: &Done) -> String {
    let Some(((first, baseline), others)) = rows.split_first() else { return String::new() };
    let mut text = String::new();
    for (case, reports) in others {
        let ratios = reports.iter().zip(baseline).map(|(ours, theirs)| ours.avg_jct_s() / theirs.avg_jct_s());
        let (low, high) =
            ratios.fold((f64::INFINITY, 0.0_f64), |(low, high), ratio| (low.min(ratio), high.max(ratio)));
        let ratio = mean(reports, Report::avg_jct_s) / mean(baseline, Report::avg_jct_s);
        let (policy, other) = (case.policy(), first.policy());
        let _ = writeln!(
            text,
            "\nMean completion time of `{policy}`, {}: **{ratio:.3}** of that of `{other}` ({low:.3} to {high:.3} by workload).",
            case.setting,
        );
    }
    text
}

#[cfg(test)]
mod tests;
