//! `pollux-tune simulate`: what a cluster would do with a list of jobs.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use crate::{
    alloc::{self, Cluster, ClusterSpec, Fairness, PolicyKind},
    cli,
    sim::{self, Aim, JobReport, Progress, Report, Rules, Workload, simulate},
};
use serde_json::{Value, json};
use thiserror::Error;

use super::{output::Format, study};

/// What to simulate.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) workload: PathBuf,
    pub(crate) policy: String,
    pub(crate) cluster: String,
    pub(crate) rules: Rules,
    pub(crate) interval_s: f64,
    pub(crate) p: Option<f64>,
    pub(crate) interference: f64,
    pub(crate) avoid_interference: bool,
    pub(crate) restart_delay_s: f64,
    pub(crate) seed: u64,
    pub(crate) format: Format,
}

/// What can be wrong with a question to the simulator.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// The jobs in a file cannot be understood.
    #[error("{}", located(.file, .mistake))]
    Workload { file: PathBuf, mistake: sim::Error },
    /// The study file has no cluster.
    #[error("{} names no cluster: add a line such as `cluster: 2x8xa100`", .file.display())]
    NoCluster { file: PathBuf },
    /// A setting makes no sense.
    #[error(transparent)]
    Setting(#[from] alloc::Error),
    /// There is something else.
    #[error("{} exists: give another folder to --keep", .0.display())]
    Exists(PathBuf),
    /// The simulation is not possible.
    #[error(transparent)]
    Simulation(sim::Error),
}

/// `file:line: what is wrong`.
fn located(file: &Path, error: &sim::Error) -> String {
    let text = error.to_string();
    match text.strip_prefix("line ") {
        Some(rest) => format!("{}:{rest}", file.display()),
        None => format!("{}: {text}", file.display()),
    }
}

/// Reads a workload.
fn read(file: &Path) -> Result<Workload, cli::Error> {
    let text = fs::read_to_string(file).map_err(cli::Error::reading(file))?;
    Ok(Workload::parse(&text).map_err(|mistake| Error::Workload { file: file.to_owned(), mistake })?)
}

/// A cluster as text, or that of a study file.
pub(crate) fn cluster(text: &str, stderr: &mut impl Write) -> Result<Cluster, cli::Error> {
    if !ClusterSpec::names_file(text) {
        return Ok(Cluster::parse(text).map_err(Error::Setting)?);
    }
    Ok(study::load_cluster(Path::new(text), stderr)?.into())
}

/// Simulates a workload and prints what became of it.
pub(crate) fn workload(
    settings: &Settings,
    out: &mut impl Write,
    stderr: &mut impl Write,
) -> Result<(), cli::Error> {
    let workload = read(&settings.workload)?;
    let policy: PolicyKind = settings.policy.parse().map_err(Error::Setting)?;
    let cluster = cluster(&settings.cluster, stderr)?;
    let mut world = sim::Settings::new(cluster, policy, settings.rules);
    if let Some(p) = settings.p {
        world.aim = Aim::Speedup(Fairness::new(p).map_err(Error::Setting)?);
    }
    world.interval_s = settings.interval_s;
    world.interference = settings.interference;
    world.avoid_interference = settings.avoid_interference;
    world.restart_delay_s = settings.restart_delay_s;
    world.seed = settings.seed;
    let mut printer = ProgressPrinter { stderr, shown: 0 };
    let report =
        simulate(&workload, &world, &mut |progress| printer.print(progress)).map_err(Error::Simulation)?;
    match settings.format {
        Format::Text => print(settings, &report, out),
        Format::Json => writeln!(out, "{}", json(settings, &report)),
    }
    .map_err(cli::Error::Stdout)
}

/// Prints how far a simulation is, for each tenth of the jobs.
struct ProgressPrinter<'a, W: Write> {
    stderr: &'a mut W,
    shown: usize,
}

impl<W: Write> ProgressPrinter<'_, W> {
    fn print(&mut self, progress: &Progress) {
        let tenth = 10 * progress.completed / progress.jobs;
        if tenth > self.shown {
            self.shown = tenth;
            let Progress { now_s, completed, active, jobs } = progress;
            // The result does not depend on it.
            let _ = writeln!(
                self.stderr,
                "{:>6.2} h: {completed} of {jobs} jobs done, {active} run or wait",
                now_s / 3600.0
            );
        }
    }
}

fn print(settings: &Settings, report: &Report, out: &mut impl Write) -> io::Result<()> {
    let hours = |seconds: f64| format!("{:.0} s ({:.2} h)", seconds, seconds / 3600.0);
    let rows = [
        ("jobs", report.jobs.len().to_string()),
        ("mean completion time", hours(report.avg_jct_s())),
        ("median", hours(report.jct_quantile_s(0.5))),
        ("99th percentile", hours(report.jct_quantile_s(0.99))),
        ("makespan", hours(report.makespan_s())),
        ("GPU hours", format!("{:.1}", report.gpu_hours())),
        ("restarts per job", format!("{:.2}", report.restarts_per_job())),
        ("worst finish-time fairness", format!("{:.2}", report.worst_rho())),
        ("jobs with one above 1", format!("{:.1} %", 100.0 * report.unfair_share())),
    ];
    writeln!(out, "{} under {} on {}", settings.workload.display(), settings.policy, settings.cluster)?;
    writeln!(out)?;
    for (name, value) in rows {
        writeln!(out, "{name:28} {value}")?;
    }
    Ok(())
}

/// The figures of a report, for programs.
pub(crate) fn figures(report: &Report) -> serde_json::Map<String, Value> {
    let pairs = [
        ("avg_jct_s", report.avg_jct_s()),
        ("p50_jct_s", report.jct_quantile_s(0.5)),
        ("p99_jct_s", report.jct_quantile_s(0.99)),
        ("makespan_s", report.makespan_s()),
        ("gpu_hours", report.gpu_hours()),
        ("restarts_per_job", report.restarts_per_job()),
        ("worst_rho", report.worst_rho()),
        ("unfair_share", report.unfair_share()),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect()
}

fn json(settings: &Settings, report: &Report) -> Value {
    let mut object = serde_json::Map::new();
    object.insert("workload".to_owned(), json!(settings.workload.display().to_string()));
    object.insert("policy".to_owned(), json!(settings.policy));
    object.insert("cluster".to_owned(), json!(settings.cluster));
    let rules = match settings.rules {
        Rules::Own => Value::Null,
        Rules::Osdi21 => json!("osdi21"),
        Rules::Sosp23 => json!("sosp23"),
    };
    object.insert("compat".to_owned(), rules);
    object.insert("seed".to_owned(), json!(settings.seed));
    object.extend(figures(report));
    let job = |job: &JobReport| {
        json!({
            "name": job.name, "application": job.application, "submitted": job.submitted_s,
            "completed": job.completed_s, "jct_s": job.jct_s(), "restarts": job.restarts,
            "gpu_hours": job.gpu_hours, "rho": job.rho,
        })
    };
    object.insert("jobs".to_owned(), report.jobs.iter().map(job).collect());
    Value::Object(object)
}
