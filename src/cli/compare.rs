//! `pollux-tune compare`: two studies, or some trials of one, next to each other.

use std::{collections::BTreeMap, io::Write, path::Path};

use serde_json::json;
use thiserror::Error;

use super::{
    inspect::{self, duration},
    json::{self, Times},
    output::{Format, pluralize, table},
    sparkline::sparkline,
    terminal,
};
use crate::{
    cli,
    ids::TrialId,
    space::{Direction, Objective, Study, Value},
    store::{Annotations, Reader, Status, TrialRow},
    trials::engine::Fact,
};

/// What can be wrong with a comparison.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error("two studies are compared, or trials of one: give another folder, or --trials such as 3,7")]
    Nothing,
    #[error("trials are compared within one study: give one folder with --trials")]
    Both,
}

/// How wide curves are.
const CURVE: usize = 24;

/// A study as it is compared.
struct Side {
    name: String,
    study: Study,
    status: Status,
    rows: Vec<TrialRow>,
    best: Option<TrialRow>,
    emulated: Option<String>,
}

impl Side {
    fn read(folder: &Path) -> Result<Self, cli::Error> {
        let reader = Reader::open(folder)?;
        Ok(Self {
            name: folder.display().to_string(),
            study: reader.study()?,
            status: reader.status()?,
            rows: reader.trials()?,
            best: reader.best(1)?.pop(),
            emulated: reader.folder().emulated(),
        })
    }

    /// Its best value of an objective.
    fn best(&self, metric: &str) -> Option<(TrialId, f64)> {
        let objectives = &self.study.objectives;
        let (place, objective) =
            objectives.iter().enumerate().find(|(_, objective)| objective.metric == metric)?;
        if objectives.len() == 1 {
            let row = self.best.as_ref()?;
            return Some((row.trial, *row.values.as_ref()?.get(place)?));
        }
        let values = self.rows.iter().filter_map(|row| Some((row.trial, *row.values.as_ref()?.get(place)?)));
        values.min_by(|a, b| objective.loss(a.1).total_cmp(&objective.loss(b.1)))
    }

    fn json(&self) -> serde_json::Value {
        let best = |objective: &Objective| {
            let (trial, value) = self.best(&objective.metric).unzip();
            (objective.metric.clone(), json!({"trial": trial.map(|trial| trial.0), "value": value}))
        };
        let trials = self.status.trials.iter().map(|(state, count)| (state.name().to_owned(), json!(count)));
        json!({
            "folder": self.name,
            "wanted": self.status.wanted,
            "trials": trials.collect::<serde_json::Map<_, _>>(),
            "best": self.study.objectives.iter().map(best).collect::<serde_json::Map<_, _>>(),
            "seconds": self.status.at_s - self.status.created_s,
            "slot_seconds": self.rows.iter().map(|row| row.slot_s).sum::<f64>(),
            "emulated": self.emulated,
        })
    }

    fn slot_hours(&self) -> f64 {
        self.rows.iter().map(|row| row.slot_s).sum::<f64>() / 3600.0
    }

    fn ended(&self) -> String {
        let states = self.status.trials.iter().map(|(state, count)| format!("{count} {state}"));
        let states = states.collect::<Vec<_>>().join(", ");
        if states.is_empty() {
            format!("none of {}", self.status.wanted)
        } else {
            format!("{states} of {}", self.status.wanted)
        }
    }
}

/// Compares two studies, or trials of one.
pub(super) fn run(
    folders: &[impl AsRef<Path>],
    trials: &[u32],
    format: Format,
    out: &mut impl Write,
) -> Result<(), cli::Error> {
    let is_json = format == Format::Json;
    let lines = match (folders, trials) {
        ([one], trials) if !trials.is_empty() => {
            let compared = Compared::read(one.as_ref(), trials)?;
            if is_json { vec![compared.json()?] } else { compared.lines()? }
        }
        ([one, other], []) => {
            let (one, other) = (Side::read(one.as_ref())?, Side::read(other.as_ref())?);
            if is_json { vec![studies_json(&one, &other)] } else { compare_studies(&one, &other) }
        }
        ([_], []) => return Err(Error::Nothing.into()),
        _ => return Err(Error::Both.into()),
    };
    let width = terminal::stdout_width().filter(|_| !is_json);
    let lines: Vec<String> = lines.iter().map(|line| terminal::cut(line, width)).collect();
    writeln!(out, "{}", lines.join("\n")).map_err(cli::Error::Stdout)
}

/// Two studies for programs: what each has reached, and the settings in which they differ.
fn studies_json(a: &Side, b: &Side) -> String {
    let differences = differences(&settings(&a.study), &settings(&b.study));
    let difference =
        |(name, a, b): &(String, Option<String>, Option<String>)| json!({"name": name, "values": [a, b]});
    json::object(json!({
        "studies": [a.json(), b.json()],
        "differences": differences.iter().map(difference).collect::<Vec<_>>(),
    }))
}

fn compare_studies(a: &Side, b: &Side) -> Vec<String> {
    let cells = |name: &str, a: String, b: String| vec![name.to_owned(), a, b];
    let mut rows = vec![cells("", a.name.clone(), b.name.clone())];
    rows.push(cells("trials", a.ended(), b.ended()));
    let mut metrics: Vec<(&str, Direction)> = Vec::new();
    for objective in a.study.objectives.iter().chain(&b.study.objectives) {
        if metrics.iter().all(|(known, _)| *known != objective.metric) {
            metrics.push((&objective.metric, objective.direction));
        }
    }
    for (metric, direction) in metrics {
        let shown = |side: &Side| {
            side.best(metric).map_or_else(
                || "-".to_owned(),
                |(trial, value)| format!("{} (trial {trial})", Value::from(value).short()),
            )
        };
        rows.push(cells(&format!("best {metric} ({direction})"), shown(a), shown(b)));
    }
    let time = |side: &Side| duration(side.status.at_s - side.status.created_s);
    rows.push(cells("time", time(a), time(b)));
    let hours = |side: &Side| format!("{:.2}", side.slot_hours());
    rows.push(cells("slot-hours", hours(a), hours(b)));
    let emulated = |side: &Side| side.emulated.as_ref().map_or_else(|| "no".to_owned(), Clone::clone);
    if a.emulated.is_some() || b.emulated.is_some() {
        rows.push(cells("emulated", emulated(a), emulated(b)));
    }
    let mut lines = table(&rows);
    let differences = differences(&settings(&a.study), &settings(&b.study));
    if differences.is_empty() {
        lines.push("all settings are the same".to_owned());
        return lines;
    }
    lines.push(format!(
        "{}:",
        pluralize(differences.len(), "setting") + if differences.len() == 1 { " differs" } else { " differ" }
    ));
    let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let differ = differences.into_iter().map(|(name, a, b)| cells(&name, shown(a), shown(b)));
    lines.extend(table(&differ.collect::<Vec<_>>()));
    lines
}

/// All settings of a study by their path, from its file with every setting written out.
fn settings(study: &Study) -> BTreeMap<String, String> {
    let (mut found, mut path): (BTreeMap<String, String>, Vec<(usize, String)>) =
        (BTreeMap::new(), Vec::new());
    for line in study.to_yaml().lines() {
        let text = line.trim_start();
        let depth = line.len() - text.len();
        path.retain(|(at, _)| *at < depth);
        let at = |path: &[(usize, String)], key: &str| {
            path.iter()
                .map(|(_, name)| name.as_str())
                .chain([key])
                .filter(|part| !part.is_empty())
                .collect::<Vec<_>>()
                .join(".")
        };
        if let Some(entry) = text.strip_prefix("- ") {
            // Entries of a list belong together.
            let list = found.entry(at(&path, "")).or_default();
            let comma = if list.is_empty() { "" } else { ", " };
            *list = format!("{list}{comma}{entry}");
            continue;
        }
        let Some((key, value)) = text.split_once(':') else { continue };
        match value.trim() {
            "" => path.push((depth, key.to_owned())),
            value => _ = found.insert(at(&path, key), value.to_owned()),
        }
    }
    found
}

/// Settings that are not the same: name, one, the other.
fn differences(
    a: &BTreeMap<String, String>,
    b: &BTreeMap<String, String>,
) -> Vec<(String, Option<String>, Option<String>)> {
    let names: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let differ = names.into_iter().filter(|name| a.get(*name) != b.get(*name));
    differ.map(|name| (name.clone(), a.get(name).cloned(), b.get(name).cloned())).collect()
}

/// Trials as they are compared.
struct Compared {
    reader: Reader,
    study: Study,
    status: Status,
    rows: Vec<TrialRow>,
}

impl Compared {
    fn read(folder: &Path, trials: &[u32]) -> Result<Self, cli::Error> {
        let reader = Reader::open(folder)?;
        let (study, status) = (reader.study()?, reader.status()?);
        let mut rows = Vec::new();
        for &trial in trials {
            let Some(row) = reader.trial(TrialId(trial))? else {
                let (folder, count) = (folder.display().to_string(), reader.trials()?.len());
                return Err(inspect::Error::NoTrial { trial, folder, count }.into());
            };
            rows.push(row);
        }
        Ok(Self { reader, study, status, rows })
    }

    fn json(&self) -> Result<String, cli::Error> {
        let notes = Annotations::read(self.reader.folder())?;
        let times = Times { created_s: self.status.created_s, at_s: self.status.at_s };
        let trial =
            |row: &TrialRow| json::trial(&self.study.objectives, row, &times, &notes.trial(row.trial));
        Ok(json::object(json!({"trials": self.rows.iter().map(trial).collect::<Vec<_>>()})))
    }

    fn lines(&self) -> Result<Vec<String>, cli::Error> {
        Ok(trial_lines(self, &read_curves(&self.reader, &self.study, &self.rows)?))
    }
}

fn trial_lines(compared: &Compared, curves: &BTreeMap<(TrialId, usize), String>) -> Vec<String> {
    let Compared { study, status, rows, .. } = compared;
    let line = |name: &str, cell: &dyn Fn(&TrialRow) -> String| {
        let mut cells = vec![name.to_owned()];
        cells.extend(rows.iter().map(cell));
        // The last column of a table is not aligned.
        cells.push(String::new());
        cells
    };
    let short = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| Value::from(value).short());
    let mut all =
        vec![line("trial", &|row| row.trial.to_string()), line("state", &|row| row.state.to_string())];
    for (place, objective) in study.objectives.iter().enumerate() {
        let metric = &objective.metric;
        let value = |row: &TrialRow| {
            let last = row.metrics.get(metric).map(|value| value.value());
            short(row.values.as_ref().and_then(|values| values.get(place).copied()).or(last))
        };
        all.push(line(metric, &value));
        all.push(line("", &|row| curves.get(&(row.trial, place)).cloned().unwrap_or_default()));
    }
    all.push(line("epochs", &|row| format!("{:.2}", row.epochs)));
    all.push(line("duration", &|row| duration(row.ended_s.unwrap_or(status.at_s) - row.created_s)));
    all.push(line("slot-seconds", &|row| format!("{:.0}", row.slot_s)));
    for parameter in study.space.parameters() {
        let name = parameter.name();
        let cell = |row: &TrialRow| {
            row.params.get(name).map_or_else(
                || "-".to_owned(),
                |value| match value {
                    Value::Float(_) => value.short(),
                    value => value.to_string(),
                },
            )
        };
        let values: Vec<String> = rows.iter().map(cell).collect();
        let mark = if values.iter().any(|value| *value != values[0]) { "* " } else { "" };
        all.push(line(&format!("{mark}{name}"), &cell));
    }
    let mut lines = table(&all);
    lines.push("* differs".to_owned());
    lines
}

/// What trials reported of each objective, drawn.
fn read_curves(
    reader: &Reader,
    study: &Study,
    rows: &[TrialRow],
) -> Result<BTreeMap<(TrialId, usize), String>, cli::Error> {
    let mut points: BTreeMap<(TrialId, usize), Vec<(f64, f64)>> = BTreeMap::new();
    reader.replay(|entry| -> Result<(), cli::Error> {
        if let Fact::Measured { trial, epochs, metrics, .. } = &entry.fact
            && rows.iter().any(|row| row.trial == *trial)
        {
            for (place, objective) in study.objectives.iter().enumerate() {
                if let Some(value) = metrics.get(&objective.metric) {
                    points.entry((*trial, place)).or_default().push((*epochs, value.value()));
                }
            }
        }
        Ok(())
    })?;
    let draw = |mut points: Vec<(f64, f64)>| {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        sparkline(&points, CURVE)
    };
    Ok(points.into_iter().map(|(key, points)| (key, draw(points))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_a_path_and_those_that_differ_are_named() {
        let study = |yaml: &str| Study::from_yaml("study.yaml", yaml).unwrap();
        let one = study(
            "{space: {lr: {log: [1e-5, 1]}, act: [a, b]}, objective: {minimize: loss}, search: {trials: 7}}",
        );
        let other = study(
            "{space: {lr: {log: [1e-4, 1]}}, objective: [{minimize: loss}, {maximize: f1}], search: {trials: 7, algorithm: random}}",
        );
        assert_eq!(settings(&one).get("search.trials").map(String::as_str), Some("7"));
        let found = differences(&settings(&one), &settings(&other));
        let names: Vec<&str> = found.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["objective", "search.algorithm", "space.act", "space.lr"]);
        assert_eq!(found[0].2.as_deref(), Some("{minimize: loss}, {maximize: f1}"));
        assert_eq!(found[2].2, None);
        assert_eq!(differences(&settings(&one), &settings(&one)), []);
    }
}
