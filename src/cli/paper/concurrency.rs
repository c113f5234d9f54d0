//! The hyper-parameter study of Table 3 with any number of trials at a time: `goodput` against the best fixed batch, and `auto`.

use std::{fmt::Write as _, io::Write};

use crate::space::{Algorithm, Parallel};

use super::{
    super::{
        plot::{Figure, Panel, Scale, Series},
        simulate::Error,
        simulate_study::{Row, find, run_all, variants},
        table3,
    },
    Experiment,
};

/// Trials at a time.
const NUMBERS: [u32; 9] = [1, 2, 3, 4, 6, 8, 10, 12, 16];
/// The number that the paper has.
const USUAL: u32 = 4;
const POLICIES: [&str; 3] = ["static", "static-best", "goodput"];

/// Simulates the same random trials with each number of them at a time, and with a number that changes.
pub(super) fn run(seeds: u32, threads: usize, stderr: &mut (impl Write + Send)) -> Result<Experiment, Error> {
    let (mut study, simulated) = (table3::searched_by(Algorithm::Random), table3::cluster()?);
    let mut run = |parallel, policies: &[&str]| {
        study.search.parallel = parallel;
        let policies: Vec<String> = policies.iter().map(ToString::to_string).collect();
        run_all(variants(&study, &simulated, &policies, false), seeds, threads, stderr)
    };
    let auto = run(Parallel::Auto, &["auto"])?;
    let mut fixed = Vec::new();
    for number in NUMBERS {
        fixed.push((number, run(Parallel::Fixed(number), &POLICIES)?));
    }
    let page = page(&fixed, &auto[0], seeds);
    Ok(Experiment { csv: csv(&fixed, &auto[0]), figure: figure(&fixed, &auto[0]), page })
}

fn makespan_s(row: &Row) -> f64 {
    row.of(|report| report.makespan_s).mean
}

fn page(fixed: &[(u32, Vec<Row>)], auto: &Row, seeds: u32) -> String {
    let head = ["trials at a time", "static", "static-best", "its batch per GPU", "goodput"];
    let ratios = ["to static", "to static-best", "of possible"];
    let mut lines = vec![head.iter().chain(&ratios).map(ToString::to_string).collect::<Vec<_>>()];
    let line = |number: String, [first, best]: [Option<&Row>; 2], ours: &Row| {
        let seconds =
            |row: Option<&Row>| row.map_or_else(String::new, |row| format!("{:.0} s", makespan_s(row)));
        let ratio = |row| ours.ratio(row).map_or_else(String::new, |ratio| format!("{ratio:.3}"));
        let batch = best.map_or_else(String::new, Row::batch);
        let possible = format!("{:.1} %", 100.0 * ours.of_possible());
        vec![
            number,
            seconds(first),
            seconds(best),
            batch,
            seconds(Some(ours)),
            ratio(first),
            ratio(best),
            possible,
        ]
    };
    let mut usual = None;
    let mut best: Option<&Row> = None;
    for (number, rows) in fixed {
        let [first, second] = ["static", "static-best"].map(|name| find(rows, name));
        if let Some(ours) = find(rows, "goodput") {
            lines.push(line(number.to_string(), [first, second], ours));
        }
        usual = if *number == USUAL { first } else { usual };
        best = best.into_iter().chain(second).min_by(|a, b| makespan_s(a).total_cmp(&makespan_s(b)));
    }
    lines.push(line(format!("`auto`; static at {USUAL}, the best static"), [usual, best], auto));
    let mut page = "## Table 3 with any number of trials at a time\n\n".to_owned();
    let _ = writeln!(page, "The same random trials, means of {seeds} seeds; a change of GPUs takes 0.1 s.\n");
    page.push_str(&table3::markdown_table(&lines));
    page
}

fn csv(fixed: &[(u32, Vec<Row>)], auto: &Row) -> String {
    let mut text = "parallel,policy,batch_per_gpu,seed,makespan_s,top5,bound_s\n".to_owned();
    let fixed = fixed.iter().flat_map(|(number, rows)| rows.iter().map(|row| (number.to_string(), row)));
    for (parallel, row) in fixed.chain([("auto".to_owned(), auto)]) {
        for (seed, report) in row.reports.iter().enumerate() {
            let (makespan, top, bound) = (report.makespan_s, report.top(5), report.bound_s);
            let _ = writeln!(
                text,
                "{parallel},{},{},{seed},{makespan},{top},{bound}",
                row.variant.name,
                row.batch()
            );
        }
    }
    text
}

fn figure(fixed: &[(u32, Vec<Row>)], auto: &Row) -> Figure {
    let series = |label: &str, line| Series { label: label.to_owned(), points: Vec::new(), line };
    let over_numbers = |label: &str, of: &dyn Fn(&Row) -> f64| {
        let value = |(number, rows): &(u32, Vec<Row>)| Some((f64::from(*number), of(find(rows, label)?)));
        series(label, fixed.iter().filter_map(value).collect())
    };
    let panel = |title: &str, y_label: &str, of: &dyn Fn(&Row) -> f64| {
        let level = [NUMBERS[0], NUMBERS[NUMBERS.len() - 1]].map(|number| (f64::from(number), of(auto)));
        let policies = POLICIES.iter().map(|label| over_numbers(label, of));
        Panel {
            title: title.to_owned(),
            x_label: "trials at a time".to_owned(),
            x_scale: Scale::Log2,
            y_label: y_label.to_owned(),
            y_scale: Scale::Linear,
            series: policies.chain([series("auto", level.to_vec())]).collect(),
        }
    };
    Figure {
        title: "How many trials at a time".to_owned(),
        caption:
            "100 trials on two DGX A100, simulated from measured step times; a change of GPUs takes 0.1 s"
                .to_owned(),
        panels: [
            panel("Time of the study", "seconds", &makespan_s),
            panel("Time that is needed at least, of it", "share", &Row::of_possible),
        ],
    }
}

#[cfg(test)]
mod tests {
    use crate::sim::StudyReport;

    use super::*;

    /// Rows of these policies that took so long, of which a half was needed.
    fn rows(parallel: Parallel, makespans_s: &[(&str, f64)]) -> Vec<Row> {
        let mut study = table3::searched_by(Algorithm::Random);
        study.search.parallel = parallel;
        let policies: Vec<String> = makespans_s.iter().map(|(name, _)| (*name).to_owned()).collect();
        let variants = variants(&study, &table3::cluster().unwrap(), &policies, false);
        let row = |(variant, (_, makespan_s)): (_, &(&str, f64))| {
            let report =
                StudyReport { trials: Vec::new(), makespan_s: *makespan_s, bound_s: makespan_s / 2.0 };
            Row { variant, reports: vec![report] }
        };
        variants.into_iter().zip(makespans_s).map(row).collect()
    }

    #[test]
    fn a_number_that_changes_is_compared_with_the_best_fixed_one() {
        let fixed = |number, first, best, ours| {
            let times = [("static", first), ("static-best", best), ("goodput", ours)];
            (number, rows(Parallel::Fixed(number), &times))
        };
        let fixed =
            [fixed(1, 900.0, 600.0, 540.0), fixed(4, 800.0, 500.0, 400.0), fixed(16, 700.0, 650.0, 390.0)];
        let auto = rows(Parallel::Auto, &[("auto", 400.0)]).swap_remove(0);
        let page = page(&fixed, &auto, 1);
        assert!(page.contains("| 1 | 900 s | 600 s | 128 | 540 s | 0.600 | 0.900 | 50.0 % |"), "{page}");
        assert!(
            page.contains("the best static | 800 s | 500 s | 128 | 400 s | 0.500 | 0.800 | 50.0 % |"),
            "{page}"
        );
        assert_eq!(csv(&fixed, &auto).lines().count(), 1 + 3 * 3 + 1);
        for panel in figure(&fixed, &auto).panels {
            assert_eq!(panel.series.iter().map(|series| series.line.len()).collect::<Vec<_>>(), [3, 3, 3, 2]);
        }
    }
}
