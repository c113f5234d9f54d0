//! Table 3 of the paper in `pollux-tune simulate paper`: the hyper-parameter study, and what brings how much.

use std::{fmt::Write as _, io::Write};

use crate::{alloc::Cluster, sim::World, space::Study};

use super::{
    plot::{Figure, Panel, Scale, Series},
    simulate::Error,
    simulate_study::{PAPER_REALLOC_S, Row, cells, paper_cells, run_all, variants},
};

/// The study, as it is in `search-spaces`.
const STUDY: &str = include_str!("../../search-spaces/table3.yaml");
const CLUSTER: &str = "2x8xa100";

/// What is to be written.
pub(crate) struct Table3 {
    pub(crate) csv: String,
    pub(crate) figure: Figure,
    pub(crate) page: String,
}

/// Simulates the study with some seeds: with cheap changes of GPUs and what contributes, and with those of the paper.
pub(crate) fn run(seeds: u32, threads: usize, notes: &mut (impl Write + Send)) -> Result<Table3, Error> {
    let study = Study::from_yaml("table3.yaml", STUDY).expect("it is a study that comes along");
    let world = World::new(Cluster::parse(CLUSTER).map_err(Error::Setting)?);
    let cheap = run_all(variants(&study, &world, &[], true), seeds, threads, notes)?;
    let dear = World { realloc_s: PAPER_REALLOC_S, ..world };
    let dear = run_all(variants(&study, &dear, &[], false), seeds, threads, notes)?;
    let mut page = "\n## Table 3: a hyper-parameter study on two DGX A100\n\n".to_owned();
    page.push_str("| policy | top 5 | mean trial | makespan | of static |\n|---|---|---|---|---|\n");
    for cells in paper_cells() {
        let _ = writeln!(page, "| the paper's {} |", cells.join(" | "));
    }
    let _ = writeln!(page, "\nOurs, {seeds} seeds, where a change of GPUs takes a second:\n");
    page.push_str(&markdown(&cheap));
    let _ = writeln!(page, "\nWhere it takes {PAPER_REALLOC_S} s:\n");
    page.push_str(&markdown(&dear));
    page.push_str("\n![Trials done, and their times](table3.svg)\n");
    Ok(Table3 { csv: csv(&[("cheap", &cheap), ("dear", &dear)]), figure: figure(&cheap), page })
}

fn markdown(rows: &[Row]) -> String {
    let mut text = String::new();
    for (number, cells) in cells(rows).iter().enumerate() {
        let _ = writeln!(text, "| {} |", cells.join(" | "));
        if number == 0 {
            let _ = writeln!(text, "|{}", "---|".repeat(cells.len()));
        }
    }
    text
}

fn csv(tables: &[(&str, &[Row])]) -> String {
    let mut text =
        "moves,policy,batch_per_gpu,seed,avg_jct_s,makespan_s,top5,gpu_hours,reallocations\n".to_owned();
    for (moves, rows) in tables {
        for row in *rows {
            for (seed, report) in row.reports.iter().enumerate() {
                let _ = writeln!(
                    text,
                    "{moves},{},{},{seed},{},{},{},{},{}",
                    row.variant.name,
                    row.batch(),
                    report.avg_jct_s(),
                    report.makespan_s,
                    report.top(5),
                    report.gpu_hours(),
                    report.reallocations(),
                );
            }
        }
    }
    text
}

/// The policies of the table, without what was switched off.
const DRAWN: usize = 4;

/// Trials that are done by the time, and trials that take at most so long, over all seeds.
fn figure(rows: &[Row]) -> Figure {
    let shares = |row: &Row, of: &dyn Fn(&crate::sim::TrialReport) -> f64| {
        let trials = row.reports.iter().flat_map(|report| &report.trials);
        let mut values: Vec<f64> = trials.map(of).collect();
        values.sort_by(f64::total_cmp);
        let count = values.len() as f64;
        let line = values.into_iter().enumerate().map(|(place, value)| (value, (place + 1) as f64 / count));
        Series { label: row.variant.name.clone(), points: Vec::new(), line: line.collect() }
    };
    let panel = |title: &str, x_label: &str, of: &dyn Fn(&crate::sim::TrialReport) -> f64| Panel {
        title: title.to_owned(),
        x_label: x_label.to_owned(),
        x_scale: Scale::Linear,
        y_label: "share of trials".to_owned(),
        y_scale: Scale::Linear,
        series: rows.iter().take(DRAWN).map(|row| shares(row, of)).collect(),
    };
    Figure {
        title: "A hyper-parameter study on two DGX A100".to_owned(),
        caption:
            "simulated from measured step times; 100 trials, 4 at a time; a change of GPUs takes a second"
                .to_owned(),
        panels: [
            panel("Trials that are done", "seconds", &|trial| trial.ended_s),
            panel("Time of a trial", "seconds", &|trial| trial.ended_s - trial.created_s),
        ],
    }
}
