//! Figures of the experiments with workloads.

use crate::{
    alloc::PolicyKind,
    sim::{JobReport, Report},
};

use super::{
    super::plot::{Figure, Panel, Point, Scale, Series, distribution},
    Case, Done, mean,
};

const CAPTION: &str = "the workloads of Pollux (OSDI'21), by the rules of its simulator";

/// The figure of an experiment.
pub(super) fn of(name: &str, rows: &Done) -> Figure {
    match name {
        "load" => load(rows),
        "fresh" => fresh(rows),
        "table2" => table2(rows),
        "interval" => interval(rows),
        "interference" => interference(rows),
        _ => types(rows),
    }
}

struct Axes<'a> {
    title: &'a str,
    x: (&'a str, Scale),
    y: (&'a str, Scale),
}

fn panel(axes: &Axes<'_>, series: Vec<Series>) -> Panel {
    Panel {
        title: axes.title.to_owned(),
        x_label: axes.x.0.to_owned(),
        x_scale: axes.x.1,
        y_label: axes.y.0.to_owned(),
        y_scale: axes.y.1,
        series,
    }
}

fn figure(title: &str, caption: &str, panels: [Panel; 2]) -> Figure {
    Figure { title: title.to_owned(), caption: caption.to_owned(), panels }
}

const RHO: Axes<'_> = Axes {
    title: "Finish-time fairness",
    x: ("rho", Scale::Log10),
    y: ("share of jobs with at most that", Scale::Linear),
};

/// A line through some cases: a figure of each over its setting.
fn line<'a>(
    label: &str,
    rows: impl Iterator<Item = &'a (Case, Vec<Report>)>,
    figure: impl Fn(&Report) -> f64,
) -> Series {
    let at = |(case, reports): &(Case, Vec<Report>)| (case.place, mean(reports, &figure));
    Series { label: label.to_owned(), points: Vec::new(), line: rows.map(at).collect() }
}

/// What was published of some cases, as points.
fn published<'a>(label: &str, rows: impl Iterator<Item = &'a (Case, Vec<Report>)>) -> Series {
    let point = |(case, _): &(Case, Vec<Report>)| {
        case.published_s.map(|y| Point { x: case.place, y, low: y, high: y })
    };
    Series { label: label.to_owned(), points: rows.filter_map(point).collect(), line: Vec::new() }
}

/// How many jobs of a case have at most which figure.
fn shares((_, reports): &(Case, Vec<Report>), label: &str, of: impl Fn(&JobReport) -> f64) -> Series {
    let values = reports.iter().flat_map(|report| &report.jobs).map(of).collect();
    Series { label: label.to_owned(), points: Vec::new(), line: distribution(values) }
}

fn load(rows: &Done) -> Figure {
    let policies = [PolicyKind::Goodput, PolicyKind::Pollux, PolicyKind::Optimus, PolicyKind::Tiresias];
    let of = |policy| rows.iter().filter(move |(case, _)| case.policy() == policy);
    let times = policies.map(|policy| line(&policy.to_string(), of(policy), Report::avg_jct_s));
    let at_one = |policy| of(policy).find(|(case, _)| case.place.total_cmp(&1.0).is_eq());
    let rhos = policies.into_iter().filter_map(|policy| {
        at_one(policy).map(|row| shares(row, &format!("{policy}, load 1"), |job| job.rho))
    });
    let axes = Axes {
        title: "Mean completion time",
        x: ("jobs, relative to 160 in 8 hours", Scale::Linear),
        y: ("seconds", Scale::Linear),
    };
    let panels = [panel(&axes, times.to_vec()), panel(&RHO, rhos.collect())];
    figure("Policies on 16 nodes of 4 T4", CAPTION, panels)
}

fn table2(rows: &Done) -> Figure {
    let label = |case: &Case| match case.policy() {
        PolicyKind::Pollux => format!("pollux, p = {}", case.place),
        PolicyKind::Goodput => "goodput".to_owned(),
        policy => format!("{policy}, {}", case.setting),
    };
    let chosen = |adapts: bool, of: fn(&JobReport) -> f64| {
        let adapted = |case: &Case| matches!(case.policy(), PolicyKind::Pollux | PolicyKind::Goodput);
        let rows = rows.iter().filter(move |(case, _)| adapted(case) == adapts);
        rows.map(move |row| shares(row, &label(&row.0), of)).collect::<Vec<_>>()
    };
    let title = |title| Axes { title, ..RHO };
    let rho = |job: &JobReport| job.rho;
    let panels = [
        panel(&title("Finish-time fairness, what adapts"), chosen(true, rho)),
        panel(&title("Finish-time fairness, fixed requests"), chosen(false, rho)),
    ];
    figure("Table 2: the exponent p, and what users request", CAPTION, panels)
}

fn interval(rows: &Done) -> Figure {
    let of = |policy| rows.iter().filter(move |(case, _)| case.policy() == policy);
    let lines = |figure: fn(&Report) -> f64| {
        [PolicyKind::Goodput, PolicyKind::Pollux].map(|policy| line(&policy.to_string(), of(policy), figure))
    };
    let axes =
        |title, y| Axes { title, x: ("seconds between two decisions", Scale::Log2), y: (y, Scale::Linear) };
    let mut times = lines(Report::avg_jct_s).to_vec();
    times.push(published("pollux, published", of(PolicyKind::Pollux)));
    let panels = [
        panel(&axes("Mean completion time", "seconds"), times),
        panel(&axes("Changes of GPUs", "for each job"), lines(Report::restarts_per_job).to_vec()),
    ];
    figure("How often is decided", CAPTION, panels)
}

fn interference(rows: &Done) -> Figure {
    let of = |avoided| rows.iter().filter(move |(case, _)| case.world.avoid_interference == avoided);
    let lines = |figure: fn(&Report) -> f64| {
        [("not avoided", false), ("avoided", true)].map(|(label, avoided)| line(label, of(avoided), figure))
    };
    let axes = |title, y| Axes {
        title,
        x: ("share of its speed that a job loses", Scale::Linear),
        y: (y, Scale::Linear),
    };
    let mut times = lines(Report::avg_jct_s).to_vec();
    times.push(published("not avoided, published", of(false)));
    let panels = [
        panel(&axes("Mean completion time", "seconds"), times),
        panel(&axes("GPU hours", "of all jobs"), lines(Report::gpu_hours).to_vec()),
    ];
    figure("Interference of distributed jobs, under pollux", CAPTION, panels)
}

fn types(rows: &Done) -> Figure {
    let title = "goodput on 24 T4, 24 RTX 2080 Ti and 16 A100";
    by_workload(rows, title, "the workloads of Sia (SOSP'23), in its world", |case| case.setting.clone())
}

fn fresh(rows: &Done) -> Figure {
    let label = |case: &Case| format!("{}, {}", case.policy(), case.setting);
    by_workload(rows, "Workloads drawn from the published ones, 16 nodes of 4 T4", CAPTION, label)
}

/// Completion times of all jobs, and the means of workloads.
fn by_workload(rows: &Done, title: &str, caption: &str, label: impl Fn(&Case) -> String) -> Figure {
    let times = rows.iter().map(|row| shares(row, &label(&row.0), |job| job.jct_s() / 3600.0));
    let means = rows.iter().map(|(case, reports)| {
        let point = |(number, report): (usize, &Report)| {
            let y = report.avg_jct_s() / 3600.0;
            Point { x: (number + 1) as f64, y, low: y, high: y }
        };
        let points: Vec<Point> = reports.iter().enumerate().map(point).collect();
        Series { label: label(case), points, line: Vec::new() }
    });
    let shares = Axes {
        title: "Completion times",
        x: ("hours", Scale::Log10),
        y: ("share of jobs with at most that", Scale::Linear),
    };
    let each = Axes {
        title: "Mean completion time of each workload",
        x: ("workload", Scale::Linear),
        y: ("hours", Scale::Linear),
    };
    let panels = [panel(&shares, times.collect()), panel(&each, means.collect())];
    figure(title, caption, panels)
}
