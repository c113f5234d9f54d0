//! `pollux-tune simulate paper`: the published experiments again, as tables and drawings.
//!
//! *Architecture invariant:* the order of the cases decides what is written, not the threads they ran on.

use std::{
    fmt::Write as _,
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use crate::{
    alloc::{Cluster, Fairness, PolicyKind},
    sim::{self, Aim, Report, Rules, Workload, simulate},
};
use anyhow::Context;

use super::{
    fit::write_whole,
    parallel::in_parallel,
    plot::{self, Figure, Panel, Scale, Series},
    simulate::{Error, figures},
    table3,
};

/// What to do.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) folder: PathBuf,
    /// How many workloads of each kind, and seeds of a study.
    pub(crate) workloads: usize,
    pub(crate) threads: usize,
}

/// One line of a table: a policy in one setting, over some workloads.
struct Case {
    table: &'static str,
    setting: String,
    policy: PolicyKind,
    /// Mean completion time in seconds as published, over all eight workloads (for Sia, over ten of which five are here).
    published_s: Option<f64>,
    folder: &'static str,
    world: sim::Settings,
}

/// As many workloads as there are of a kind, at most.
const ALL: usize = 8;
const T4: &str = "16x4xt4";
const MIXED: &str = "6x4xt4,3x8xrtx2080ti,2x8xa100";

/// Of the authors' simulator: load, then Pollux, Optimus with an oracle, Tiresias.
const LOADS: [(&str, [f64; 3]); 4] = [
    ("osdi21/load-0.5", [1534.0, 2395.0, 2091.0]),
    ("osdi21/load-1.0", [2751.0, 5682.0, 4038.0]),
    ("osdi21/load-1.5", [3685.0, 7235.0, 6182.0]),
    ("osdi21/load-2.0", [5289.0, 9721.0, 10_040.0]),
];
const INTERVALS: [(f64, f64); 5] =
    [(30.0, 2729.0), (60.0, 2751.0), (120.0, 2806.0), (240.0, 2969.0), (480.0, 3354.0)];
/// Without avoidance, and with it, where only no interference at all was published.
const INTERFERENCE: [(f64, f64); 3] = [(0.0, 2758.0), (0.25, 3177.0), (0.5, 3903.0)];
/// Sia's own table, in hours.
const SIA: [(&str, f64); 3] = [("sia/philly", 0.6), ("sia/saturn", 0.7), ("sia/newtrace", 0.7)];

fn cases() -> anyhow::Result<Vec<Case>> {
    use PolicyKind::{Goodput, Optimus, Pollux, Tiresias};
    let world = |policy| -> anyhow::Result<sim::Settings> {
        Ok(sim::Settings::new(Cluster::parse(T4).map_err(Error::Setting)?, policy, Rules::Osdi21))
    };
    let mut cases = Vec::new();
    let mut add = |table, setting: String, published_s, folder, world: sim::Settings| {
        cases.push(Case { table, setting, policy: world.policy, published_s, folder, world });
    };
    for (folder, [pollux, optimus, tiresias]) in LOADS {
        let figures =
            [(Goodput, None), (Pollux, Some(pollux)), (Optimus, Some(optimus)), (Tiresias, Some(tiresias))];
        for (policy, published) in figures {
            let setting = folder.trim_start_matches("osdi21/load-").to_owned();
            add("load", setting, published, folder, world(policy)?);
        }
    }
    for (interval_s, published) in INTERVALS {
        for (policy, published) in [(Goodput, None), (Pollux, Some(published))] {
            let world = sim::Settings { interval_s, ..world(policy)? };
            add("interval", format!("{interval_s}"), published, "osdi21/load-1.0", world);
        }
    }
    for (interference, published) in INTERFERENCE {
        for avoid_interference in [false, true] {
            let published = (!avoid_interference).then_some(published);
            let setting =
                format!("{interference}, {}", if avoid_interference { "avoided" } else { "not avoided" });
            let world = sim::Settings { interference, avoid_interference, ..world(Pollux)? };
            add("interference", setting, published, "osdi21/load-1.0", world);
        }
    }
    for folder in ["osdi21/load-1.0", "osdi21/realistic"] {
        for p in [-10.0, -1.0, 1.0] {
            let aim = Aim::Speedup(Fairness::new(p).map_err(Error::Setting)?);
            add(
                "fairness",
                format!("{folder}, p = {p}"),
                None,
                folder,
                sim::Settings { aim, ..world(Pollux)? },
            );
        }
    }
    for policy in [Goodput, Optimus, Tiresias] {
        add("fairness", "osdi21/realistic".to_owned(), None, "osdi21/realistic", world(policy)?);
    }
    for (folder, hours) in SIA {
        let cluster = Cluster::parse(MIXED).map_err(Error::Setting)?;
        let world = sim::Settings::new(cluster, Goodput, Rules::Sosp23);
        add("types", folder.to_owned(), Some(3600.0 * hours), folder, world);
    }
    Ok(cases)
}

/// Runs everything, and writes a folder of tables and drawings.
pub(crate) fn run(settings: &Settings, notes: &mut (impl Write + Send)) -> anyhow::Result<()> {
    let (folder, cases) = (&settings.folder, cases()?);
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let reports = run_all(&cases, settings, notes)?;
    let mut page = "# The published experiments again\n".to_owned();
    for table in ["load", "interval", "interference", "fairness", "types"] {
        let rows: Vec<_> = cases.iter().zip(&reports).filter(|(case, _)| case.table == table).collect();
        write(folder, &format!("{table}.csv"), &csv(&rows))?;
        page.push_str(&markdown(table, &rows, settings.workloads));
    }
    let table3 = table3::run(settings.workloads.clamp(1, ALL) as u32, settings.threads, notes)?;
    write(folder, "table3.csv", &table3.csv)?;
    write(folder, "table3.svg", &plot::svg(&table3.figure))?;
    page.push_str(&table3.page);
    write(folder, "load.svg", &plot::svg(&figure(&cases, &reports)))?;
    page.push_str("\n![Mean completion time by load, and fairness](load.svg)\n");
    write(folder, "README.md", &page)?;
    // The files are there, whether or not anybody hears of it.
    let _ = writeln!(notes, "wrote {}", folder.display());
    Ok(())
}

fn write(folder: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = folder.join(name);
    write_whole(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The reports of each case, one for each workload.
fn run_all(
    cases: &[Case],
    settings: &Settings,
    notes: &mut (impl Write + Send),
) -> anyhow::Result<Vec<Vec<Report>>> {
    let mut jobs: Vec<(usize, Workload)> = Vec::new();
    for (case, Case { folder, .. }) in cases.iter().enumerate() {
        jobs.extend(
            Workload::builtin(folder).into_iter().take(settings.workloads).map(|workload| (case, workload)),
        );
    }
    let results = in_parallel(&jobs, settings.threads, notes, |(case, workload)| {
        (*case, simulate(workload, &cases[*case].world, &mut |_| {}))
    });
    let mut reports: Vec<Vec<Report>> = cases.iter().map(|_| Vec::new()).collect();
    for (case, report) in results {
        reports[case].push(report.map_err(Error::Simulation)?);
    }
    Ok(reports)
}

fn mean(reports: &[Report], of: impl Fn(&Report) -> f64) -> f64 {
    reports.iter().map(of).sum::<f64>() / reports.len().max(1) as f64
}

fn csv(rows: &[(&Case, &Vec<Report>)]) -> String {
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
            let _ = writeln!(text, "{setting},{},{},{}", case.policy, number + 1, values.join(","));
        }
    }
    text
}

fn markdown(table: &str, rows: &[(&Case, &Vec<Report>)], workloads: usize) -> String {
    let title = match table {
        "load" => "Load: mean completion time in seconds, 16 nodes of 4 T4",
        "interval" => "Seconds between two decisions",
        "interference" => "Interference",
        "fairness" => "The exponent p, and requests as users make them",
        _ => "Several GPU types, in the world of Sia",
    };
    let mut text = format!("\n## {title}\n\n");
    text.push_str("| setting | policy | published | ours | ratio | p99 | makespan | GPU hours | restarts | worst rho | above 1 |\n");
    text.push_str("|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (case, reports) in rows {
        let ours = mean(reports, Report::avg_jct_s);
        // What was published is a mean over all workloads.
        let comparable = case.published_s.filter(|_| workloads >= ALL);
        let [published, ratio] = comparable.map_or([const { String::new() }; 2], |published| {
            [format!("{published:.0}"), format!("{:.3}", ours / published)]
        });
        let _ = writeln!(
            text,
            "| {} | `{}` | {published} | {ours:.0} | {ratio} | {:.0} | {:.0} | {:.0} | {:.1} | {:.1} | {:.0} % |",
            case.setting,
            case.policy,
            mean(reports, |report| report.jct_quantile_s(0.99)),
            mean(reports, Report::makespan_s),
            mean(reports, Report::gpu_hours),
            mean(reports, Report::restarts_per_job),
            mean(reports, Report::worst_rho),
            100.0 * mean(reports, Report::unfair_share),
        );
    }
    text
}

/// Mean completion times by load, and how many jobs have at most which rho at load 1.
fn figure(cases: &[Case], reports: &[Vec<Report>]) -> Figure {
    let policies = [PolicyKind::Goodput, PolicyKind::Pollux, PolicyKind::Optimus, PolicyKind::Tiresias];
    let of = |policy: PolicyKind| {
        cases.iter().zip(reports).filter(move |(case, _)| case.table == "load" && case.policy == policy)
    };
    let loads = policies.map(|policy| {
        let at = |(case, reports): (&Case, &Vec<Report>)| {
            Some((case.setting.parse::<f64>().ok()?, mean(reports, Report::avg_jct_s)))
        };
        Series { label: policy.to_string(), points: Vec::new(), line: of(policy).filter_map(at).collect() }
    });
    let fairness = policies.map(|policy| {
        let at_one = of(policy).filter(|(case, _)| case.setting == "1.0");
        let mut rhos: Vec<f64> = at_one
            .flat_map(|(_, reports)| reports)
            .flat_map(|report| &report.jobs)
            .map(|job| job.rho)
            .collect();
        rhos.sort_by(f64::total_cmp);
        let share = |(place, rho): (usize, &f64)| (*rho, (place + 1) as f64 / rhos.len() as f64);
        Series {
            label: policy.to_string(),
            points: Vec::new(),
            line: rhos.iter().enumerate().map(share).collect(),
        }
    });
    let panel = |title: &str, x_label: &str, y_label: &str, x_scale, series: [Series; 4]| Panel {
        title: title.to_owned(),
        x_label: x_label.to_owned(),
        x_scale,
        y_label: y_label.to_owned(),
        y_scale: Scale::Linear,
        series: series.to_vec(),
    };
    Figure {
        title: "Policies on 16 nodes of 4 T4".to_owned(),
        caption: "the workloads of Pollux (OSDI'21), by the rules of its simulator".to_owned(),
        panels: [
            panel(
                "Mean completion time",
                "jobs, relative to 160 in 8 hours",
                "seconds",
                Scale::Linear,
                loads,
            ),
            panel("Finish-time fairness", "rho", "share of jobs with at most that", Scale::Log10, fairness),
        ],
    }
}
