//! Table 3 of the paper in `pollux-tune simulate paper`: the hyper-parameter study, and what brings how much.

use std::{fmt::Write as _, io::Write};

use crate::{
    alloc::Cluster,
    sim::{SimulatedCluster, TrialReport},
    space::{Algorithm, Study},
};

use super::{
    paper::Experiment,
    plot::{Figure, Panel, Scale, Series, distribution},
    simulate::Error,
    simulate_study::{PAPER_REALLOC_S, Row, cells, find, paper_cells, run_all, variants},
};

/// The study as it is in `search-spaces`, and without the width, which is then the measured one.
const STUDY: &str = include_str!("../../search-spaces/table3.yaml");
const ONE_WIDTH: &str = include_str!("../../search-spaces/table3-one-width.yaml");
const CLUSTER: &str = "2x8xa100";

/// A table of the study: how it is called in the CSV file, and what it shows.
struct Table {
    name: &'static str,
    title: String,
    rows: Vec<Row>,
}

fn read(text: &str) -> Study {
    Study::from_yaml("table3.yaml", text).expect("it is a study that comes along")
}

/// The study with another search.
pub(crate) fn searched_by(algorithm: Algorithm) -> Study {
    let mut study = read(STUDY);
    study.search.algorithm = algorithm;
    study
}

/// Where it runs.
pub(crate) fn cluster() -> Result<SimulatedCluster, Error> {
    Ok(SimulatedCluster::new(Cluster::parse(CLUSTER).map_err(Error::Setting)?))
}

/// Simulates the study with some seeds: as it is, with the same trials under every policy and what contributes, with the changes of
/// GPUs of the paper, and with one width.
pub(crate) fn run(seeds: u32, threads: usize, stderr: &mut (impl Write + Send)) -> Result<Experiment, Error> {
    let (same, one_width) = (searched_by(Algorithm::Random), read(ONE_WIDTH));
    let (by_default, by_tpe) = (read(STUDY), searched_by(Algorithm::Tpe));
    let simulated = cluster()?;
    let expensive = SimulatedCluster { realloc_s: PAPER_REALLOC_S, ..simulated.clone() };
    let expensive_title = format!("The same, where a change of GPUs takes {PAPER_REALLOC_S} s");
    let wanted = [
        (
            "random",
            "The same random trials under every policy; a change of GPUs takes 0.1 s",
            &same,
            &simulated,
            true,
        ),
        ("expensive", expensive_title.as_str(), &same, &expensive, false),
        ("width", "The same with networks of the measured width only; 0.1 s", &one_width, &simulated, false),
        (
            "default",
            "The study as it is, with the default search, where trials differ from policy to policy; 0.1 s",
            &by_default,
            &simulated,
            false,
        ),
        ("tpe", "The same with TPE; 0.1 s", &by_tpe, &simulated, false),
    ];
    let mut tables = Vec::new();
    for (name, title, study, simulated, ablation) in wanted {
        let rows = run_all(variants(study, simulated, &[], ablation), seeds, threads, stderr)?;
        tables.push(Table { name, title: title.to_owned(), rows });
    }
    Ok(Experiment { csv: csv(&tables), figure: figure(&tables[0].rows), page: page(&tables, seeds) })
}

fn page(tables: &[Table], seeds: u32) -> String {
    let mut page = "## Table 3: a hyper-parameter study on two DGX A100\n\n".to_owned();
    page.push_str("| policy | top 5 | mean trial | makespan | of static |\n|---|---|---|---|---|\n");
    for cells in paper_cells() {
        let _ = writeln!(page, "| the paper's {} |", cells.join(" | "));
    }
    let _ = writeln!(page, "\nOurs, {seeds} seeds, means and standard deviations. Accuracy is synthetic.");
    for Table { title, rows, .. } in tables {
        let _ = writeln!(page, "\n{title}:\n");
        page.push_str(&markdown(rows));
    }
    page
}

fn markdown(rows: &[Row]) -> String {
    markdown_table(&cells(rows))
}

/// Rows of a table, the first one its head.
pub(crate) fn markdown_table(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (number, cells) in rows.iter().enumerate() {
        let _ = writeln!(text, "| {} |", cells.join(" | "));
        if number == 0 {
            let _ = writeln!(text, "|{}", "---|".repeat(cells.len()));
        }
    }
    text
}

fn csv(tables: &[Table]) -> String {
    let mut text =
        "table,policy,batch_per_gpu,seed,avg_jct_s,makespan_s,top5,gpu_hours,reallocations,bound_s\n"
            .to_owned();
    for Table { name, rows, .. } in tables {
        for row in rows {
            for (seed, report) in row.reports.iter().enumerate() {
                let _ = writeln!(
                    text,
                    "{name},{},{},{seed},{},{},{},{},{},{}",
                    row.variant.name,
                    row.batch(),
                    report.avg_jct_s(),
                    report.makespan_s,
                    report.top(5),
                    report.gpu_hours(),
                    report.reallocations(),
                    report.bound_s,
                );
            }
        }
    }
    text
}

/// The policies that are drawn: as many as can be told apart.
const DRAWN: [&str; 4] = ["static-best", "pollux", "goodput", "auto"];

/// Trials that are done by the time, and trials by the time they take, over all seeds.
fn figure(rows: &[Row]) -> Figure {
    let shares = |row: &Row, of: &dyn Fn(&TrialReport) -> f64| {
        let values = row.reports.iter().flat_map(|report| &report.trials).map(of).collect();
        Series { label: row.variant.name.clone(), points: Vec::new(), line: distribution(values) }
    };
    let panel = |title: &str, x_label: &str, of: &dyn Fn(&TrialReport) -> f64| Panel {
        title: title.to_owned(),
        x_label: x_label.to_owned(),
        x_scale: Scale::Linear,
        y_label: "share of trials".to_owned(),
        y_scale: Scale::Linear,
        series: DRAWN.iter().filter_map(|name| find(rows, name)).map(|row| shares(row, of)).collect(),
    };
    Figure {
        title: "A hyper-parameter study on two DGX A100".to_owned(),
        caption:
            "simulated from measured step times; 100 trials, 4 at a time but for auto; a change of GPUs takes 0.1 s"
                .to_owned(),
        panels: [
            panel("Trials that are done", "seconds", &|trial| trial.ended_s),
            panel("Time of a trial", "seconds", &|trial| trial.ended_s - trial.created_s),
        ],
    }
}
