//! `pollux-tune fit`: the throughput model of measured step times.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use crate::goodput::{self, Observations, ThroughputParams, Tier};
use serde_json::json;

use super::{
    Error, figure,
    output::{Format, pluralize, write_atomically},
    plot,
    profile::{self, Row},
};

/// What to fit, and what to make of it.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) format: Format,
    pub(crate) drawing: Option<Drawing>,
}

/// A drawing to make.
#[derive(Debug)]
pub(crate) struct Drawing {
    pub(crate) path: PathBuf,
    pub(crate) title: String,
}

/// The names of the files, without folders and extensions.
pub(crate) fn default_title(files: &[PathBuf]) -> String {
    let names: Vec<_> = files.iter().filter_map(|file| Some(file.file_stem()?.to_string_lossy())).collect();
    names.join(", ")
}

/// Fits the model, draws it and prints it.
pub(crate) fn run(settings: &Settings, out: &mut impl Write, stderr: &mut impl Write) -> Result<(), Error> {
    let mut rows = Vec::new();
    for file in &settings.files {
        rows.append(&mut profile::read(file)?);
    }
    let report = Report::new(&rows).map_err(|error| {
        let files: Vec<_> = settings.files.iter().map(|file| file.display().to_string()).collect();
        profile::Error::Unfit { files: files.join(", "), source: error }
    })?;
    if let Some(Drawing { path, title }) = &settings.drawing {
        let figure = figure::of_fit(title, &rows, &report.params, report.mean_error);
        write_atomically(path, &plot::svg(&figure))?;
        // The drawing is there, whether or not this is read.
        let _ = writeln!(stderr, "wrote {}", path.display());
    }
    match settings.format {
        Format::Text => report.print(out),
        Format::Json => writeln!(out, "{}", report.json()),
    }
    .map_err(Error::Stdout)
}

/// How many of the worst rows are shown.
const WORST: usize = 3;

struct Report<'a> {
    rows: usize,
    configurations: usize,
    /// The maximum number of GPUs that was measured at each tier; 0 at tiers without measurements.
    max_gpus: [u32; Tier::COUNT],
    /// One batch size cannot separate fixed from proportional cost.
    several_batches: bool,
    params: ThroughputParams,
    mean_error: f64,
    rmsle: f64,
    worst: Vec<Compared<'a>>,
}

/// One parameter of the model as it is shown.
struct Parameter {
    label: String,
    /// Its name in JSON, where times are in seconds.
    key: &'static str,
    value: f64,
    unit: &'static str,
    /// From the value to the unit.
    scale: f64,
    measured: bool,
}

struct Compared<'a> {
    row: &'a Row,
    fitted_s: f64,
    /// Fitted over measured time, less one.
    error: f64,
}

impl<'a> Report<'a> {
    fn new(rows: &'a [Row]) -> Result<Self, goodput::Error> {
        let mut seen = Observations::default();
        for row in rows {
            seen.record(row.shape, row.per_gpu, row.accumulation, row.step_s)?;
        }
        let goodput::Fit { params, rmsle } = goodput::fit(&seen, None, None)?;
        let compare = |row: &'a Row| {
            let fitted_s = params.iter_time_s(row.shape, f64::from(row.per_gpu), row.accumulation);
            Compared { row, fitted_s, error: fitted_s / row.step_s - 1.0 }
        };
        let mut worst: Vec<_> = rows.iter().map(compare).collect();
        let mean_error = worst.iter().map(|compared| compared.error.abs()).sum::<f64>() / rows.len() as f64;
        worst.sort_by(|a, b| b.error.abs().total_cmp(&a.error.abs()));
        worst.truncate(WORST);
        let max_gpus = Tier::ALL.map(|tier| {
            let at_tier = rows.iter().filter(|row| row.shape.tier() == Some(tier));
            at_tier.map(|row| row.shape.gpus()).max().unwrap_or(0)
        });
        let several_batches = rows.iter().any(|row| row.per_gpu != rows[0].per_gpu);
        let (rows, configurations) = (rows.len(), seen.len());
        Ok(Self { rows, configurations, max_gpus, several_batches, params, mean_error, rmsle, worst })
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "{}, {}",
            pluralize(self.rows, "row"),
            pluralize(self.configurations, "configuration")
        )?;
        writeln!(out)?;
        writeln!(out, "{:26} {:>10}  unit", "parameter", "value")?;
        for Parameter { label, value, unit, scale, measured, .. } in self.parameters() {
            let remark = if measured { "" } else { ", assumed: not measured" };
            writeln!(out, "{label:26} {:>10}  {unit}{remark}", significant(scale * value))?;
        }
        writeln!(out)?;
        writeln!(out, "mean error {:.1} %, RMSLE {:.3}", 100.0 * self.mean_error, self.rmsle)?;
        writeln!(out)?;
        self.print_worst(out)
    }

    /// All parameters in the order of the paper.
    fn parameters(&self) -> Vec<Parameter> {
        let parameter = |label: &str, key, value, unit, measured| {
            let scale = if key == "gamma" { 1.0 } else { 1e3 };
            Parameter { label: label.to_owned(), key, value, unit, scale, measured }
        };
        let compute = self.params.compute();
        let mut list = vec![
            parameter("alpha_grad", "alpha_grad_s", compute.alpha_s, "ms/pass", self.several_batches),
            parameter("beta_grad", "beta_grad_s", compute.beta_s, "ms/example", self.several_batches),
        ];
        let keys = [("alpha_sync_local_s", "beta_sync_local_s"), ("alpha_sync_node_s", "beta_sync_node_s")];
        for ((tier, max_gpus), (alpha, beta)) in Tier::ALL.into_iter().zip(self.max_gpus).zip(keys) {
            let (sync, place) = (self.params.sync(tier), place(tier));
            list.push(parameter(
                &format!("alpha_sync, {place}"),
                alpha,
                sync.alpha_s,
                "ms/step",
                max_gpus >= 2,
            ));
            let unit = "ms/step for each GPU above 2";
            list.push(parameter(&format!("beta_sync, {place}"), beta, sync.beta_s, unit, max_gpus > 2));
        }
        let overlap = "1 (no overlap) to 10 (full overlap)";
        let synchronized = self.max_gpus.iter().any(|&max_gpus| max_gpus >= 2);
        list.push(parameter("gamma", "gamma", self.params.gamma(), overlap, synchronized));
        list
    }

    fn print_worst(&self, out: &mut impl Write) -> io::Result<()> {
        let names: Vec<_> = self
            .worst
            .iter()
            .map(|Compared { row, .. }| format!("{}:{}", row.file.display(), row.line))
            .collect();
        let title = "worst rows";
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(title.len());
        writeln!(
            out,
            "{title:width$}  {:>5} {:>5} {:>9} {:>12} {:>11} {:>11} {:>8}",
            "GPUs", "nodes", "local_bsz", "accumulation", "measured ms", "fitted ms", "error %"
        )?;
        for (name, Compared { row, fitted_s, error }) in names.iter().zip(&self.worst) {
            writeln!(
                out,
                "{name:width$}  {:>5} {:>5} {:>9} {:>12} {:>11} {:>11} {:>+8.1}",
                row.shape.gpus(),
                row.shape.nodes(),
                row.per_gpu,
                row.accumulation,
                significant(1e3 * row.step_s),
                significant(1e3 * fitted_s),
                100.0 * error
            )?;
        }
        Ok(())
    }

    fn json(&self) -> serde_json::Value {
        let parameters = self.parameters();
        let values: serde_json::Map<_, _> =
            parameters.iter().map(|parameter| (parameter.key.to_owned(), json!(parameter.value))).collect();
        let assumed: Vec<_> = parameters
            .iter()
            .filter(|parameter| !parameter.measured)
            .map(|parameter| parameter.key)
            .collect();
        let worst = self.worst.iter().map(|Compared { row, fitted_s, error }| {
            json!({
                "file": row.file.to_string_lossy(),
                "line": row.line,
                "gpus": row.shape.gpus(),
                "nodes": row.shape.nodes(),
                "local_bsz": row.per_gpu,
                "accumulation": row.accumulation,
                "measured_s": row.step_s,
                "fitted_s": fitted_s,
                "error": error,
            })
        });
        json!({
            "rows": self.rows,
            "configurations": self.configurations,
            "params": values,
            "assumed": assumed,
            "mean_error": self.mean_error,
            "rmsle": self.rmsle,
            "worst": worst.collect::<Vec<_>>(),
        })
    }
}

/// A tier as text.
pub(crate) const fn place(tier: Tier) -> &'static str {
    match tier {
        Tier::Local => "one node",
        Tier::Node => "several nodes",
    }
}

/// A number with four significant digits.
fn significant(value: f64) -> String {
    if value > 0.0 && !(1e-4..1e7).contains(&value) {
        return format!("{value:.3e}");
    }
    let magnitude = if value > 0.0 { value.log10().floor() as i32 } else { 0 };
    let decimals = (3 - magnitude).clamp(0, 7) as usize;
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_four_digits() {
        let shown = [0.0, 1e-12, 0.012_345_6, 1.0, 35.018_7, 123_456.7].map(significant);
        assert_eq!(shown, ["0.000", "1.000e-12", "0.01235", "1.000", "35.02", "123457"]);
    }

    #[test]
    fn the_default_title_names_the_files() {
        let files = ["a/placements-t4.csv", "scalability-t4.csv"].map(PathBuf::from);
        assert_eq!(default_title(&files), "placements-t4, scalability-t4");
    }
}
