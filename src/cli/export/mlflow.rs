//! The file store of MLflow: a folder of an experiment with one of each run, in which each parameter, metric and tag is a file.

use std::{collections::BTreeSet, fmt::Write, path::Path};

use super::{
    record::{Point, Record, Trial},
    tensorboard::{Files, result_tag},
    time,
};
use crate::{space::Value, store::TrialState};

/// MLflow takes no longer values of parameters and tags.
const LONGEST: usize = 6000;

/// The number of an experiment: of the study, so that the same study is the same experiment.
pub(super) fn experiment_id(record: &Record) -> String {
    // As long as those of MLflow.
    (100_000_000_000_000_000 + record.id.0 % 900_000_000_000_000_000).to_string()
}

/// The files of an experiment, which will be in the folder `home`.
pub(super) fn files(record: &Record, home: &Path) -> Files {
    let experiment = experiment_id(record);
    let location = uri(home);
    let created_ms = time::millis(record.created_s);
    let meta = [
        ("artifact_location", quoted(&location)),
        ("creation_time", created_ms.to_string()),
        ("experiment_id", quoted(&experiment)),
        ("last_update_time", created_ms.to_string()),
        ("lifecycle_stage", "active".to_owned()),
        ("name", quoted(&record.name)),
    ];
    let mut files = vec![("meta.yaml".to_owned(), yaml(&meta))];
    for (place, objective) in record.study.objectives.iter().enumerate() {
        let (metric, direction) = (&objective.metric, objective.direction);
        files.push((format!("tags/objective.{place}"), format!("{direction} {metric}").into_bytes()));
    }
    files.push(("tags/step".to_owned(), record.steps.name().into()));
    let names = Names::of(record);
    for trial in &record.trials {
        files.extend(run(record, trial, &names, &experiment, &location));
    }
    files
}

fn run(record: &Record, trial: &Trial, names: &Names, experiment: &str, location: &str) -> Files {
    let row = &trial.row;
    let id = format!("{:024x}{:08x}", record.id.0 & ((1 << 96) - 1), row.trial.0);
    let status = match row.state {
        TrialState::Waiting if trial.began_s().is_none() => 2,
        TrialState::Waiting | TrialState::Forming | TrialState::Running | TrialState::Pausing => 1,
        TrialState::Done => 3,
        TrialState::Failed => 4,
        TrialState::Stopped | TrialState::Cancelled => 5,
    };
    let name = format!("trial {}", row.trial);
    let started_ms = time::millis(trial.began_s().unwrap_or(row.created_s));
    let meta = [
        ("artifact_uri", quoted(&format!("{location}/{id}/artifacts"))),
        (
            "end_time",
            trial.ended_s().map_or_else(|| "null".to_owned(), |at_s| time::millis(at_s).to_string()),
        ),
        ("entry_point_name", "''".to_owned()),
        ("experiment_id", quoted(experiment)),
        ("lifecycle_stage", "active".to_owned()),
        ("run_id", quoted(&id)),
        ("run_name", quoted(&name)),
        ("source_name", "''".to_owned()),
        // A local program.
        ("source_type", "4".to_owned()),
        ("source_version", "''".to_owned()),
        ("start_time", started_ms.to_string()),
        ("status", status.to_string()),
        ("tags", "[]".to_owned()),
        ("user_id", "pollux-tune".to_owned()),
    ];
    let mut files = vec![(format!("{id}/meta.yaml"), yaml(&meta))];
    // Without one of them, MLflow takes it for no run.
    files.extend(["params", "metrics", "artifacts"].map(|name| (format!("{id}/{name}/"), Vec::new())));
    for (parameter, value) in row.params.iter() {
        files.push((format!("{id}/params/{parameter}"), plain(value)));
    }
    for (place, metric) in record.metrics.iter().enumerate() {
        let curve = trial.curve(place, record.steps);
        if !curve.is_empty() {
            files.push((format!("{id}/metrics/{}", names.of_metric(metric)), lines(&curve)));
        }
    }
    let step = record.steps.step(row.epochs);
    for (metric, value) in record.results(trial) {
        let point = Point { step, at_s: trial.ended_s().unwrap_or(row.created_s), value };
        files.push((format!("{id}/metrics/{}", names.of_result(metric)), lines(&[point])));
    }
    let tags = [
        ("mlflow.runName", Some(name)),
        ("mlflow.user", Some("pollux-tune".to_owned())),
        ("mlflow.source.name", Some("pollux-tune".to_owned())),
        ("mlflow.source.type", Some("LOCAL".to_owned())),
        ("state", Some(row.state.to_string())),
        ("reason", row.reason.clone()),
        ("epochs", Some(Value::from(row.epochs).to_string())),
        ("slot_seconds", Some(Value::from(row.slot_s).to_string())),
    ];
    for (tag, text) in tags {
        files.extend(text.map(|text| (format!("{id}/tags/{tag}"), shortened(&text).into())));
    }
    files
}

/// A file of a metric: milliseconds, value and step on each line.
fn lines(curve: &[Point]) -> Vec<u8> {
    let mut text = String::new();
    for Point { step, at_s, value } in curve {
        // Of all others Python reads the same number, and `nan` as well.
        let value = if value.is_nan() { "nan".to_owned() } else { format!("{value:?}") };
        _ = writeln!(text, "{} {value} {step}", time::millis(*at_s));
    }
    text.into_bytes()
}

fn plain(value: &Value) -> Vec<u8> {
    let text = match value {
        // As Python writes them.
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        value => value.to_string(),
    };
    shortened(&text).into()
}

/// Not longer than MLflow allows, and in one line: what follows would be read as something else.
fn shortened(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST).collect()
}

fn yaml(entries: &[(&str, String)]) -> Vec<u8> {
    let mut text = String::new();
    for (name, value) in entries {
        _ = writeln!(text, "{name}: {value}");
    }
    text.into_bytes()
}

/// A text of YAML: JSON is one, too.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The address of a folder, which is absolute.
fn uri(path: &Path) -> String {
    let mut uri = String::from("file://");
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'~' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                uri.push(*byte as char);
            }
            byte => _ = write!(uri, "%{byte:02X}"),
        }
    }
    uri
}

/// Names of metrics as files, which no two have in common.
struct Names(Vec<(String, String)>);

impl Names {
    fn of(record: &Record) -> Self {
        let results = record.study.objectives.iter().map(|objective| result_tag(&objective.metric));
        let mut names: Vec<(String, String)> = Vec::new();
        let mut taken = BTreeSet::new();
        for name in record.metrics.iter().cloned().chain(results) {
            let mut file = file_name(&name);
            let is_inside =
                |one: &str, other: &str| other.strip_prefix(one).is_some_and(|rest| rest.starts_with('/'));
            if taken.iter().any(|known: &String| is_inside(known, &file) || is_inside(&file, known)) {
                file = file.replace('/', "_");
            }
            while !taken.insert(file.clone()) {
                file.push('_');
            }
            names.push((name, file));
        }
        Self(names)
    }

    fn of_metric(&self, metric: &str) -> &str {
        let known = self.0.iter().find(|(name, _)| name == metric);
        known.map_or("metric", |(_, file)| file)
    }

    fn of_result(&self, metric: &str) -> &str {
        self.of_metric(&result_tag(metric))
    }
}

/// Of a name what MLflow allows, and a path that leads nowhere else.
fn file_name(name: &str) -> String {
    let allowed = |c: char| if c.is_alphanumeric() || "_-. :/".contains(c) { c } else { '_' };
    let name: String = name.chars().take(200).map(allowed).collect();
    let is_plain = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if is_plain { name } else { format!("_{}", name.replace('/', "_")) }
}

#[cfg(test)]
mod tests {
    use super::{super::record::tests::record, *};

    #[test]
    fn names_of_metrics_lead_nowhere_else() {
        let names = ["acc", "val/acc", "a%b", "../../x", "/etc/x", "a//b", "", "..", "a b"].map(file_name);
        assert_eq!(names, ["acc", "val/acc", "a_b", "_.._.._x", "__etc_x", "_a__b", "_", "_..", "a b"]);
    }

    #[test]
    fn no_two_metrics_have_a_file_in_common() {
        let mut record = record();
        record.metrics = ["a", "a%", "a/b", "a_", "a_b"].map(str::to_owned).to_vec();
        let names = Names::of(&record);
        let files: BTreeSet<&String> = names.0.iter().map(|(_, file)| file).collect();
        assert_eq!(files.len(), 6);
        assert!(files.iter().all(|file| !file.starts_with("a/")), "`a` is a file, and no folder: {files:?}");
    }

    #[test]
    fn a_run_has_its_parameters_and_its_curve() {
        let record = record();
        let files = files(&record, Path::new("/tmp/my runs/1"));
        let text = |end: &str| {
            let found = files.iter().find(|(path, _)| path.ends_with(end)).expect("it is there");
            String::from_utf8(found.1.clone()).expect("text")
        };
        assert!(text("meta.yaml").starts_with("artifact_location: \"file:///tmp/my%20runs/1\"\n"));
        assert_eq!(text("0700000000/params/flag"), "True");
        assert_eq!(text("0700000000/metrics/loss"), "1010000 2.0 1\n1020000 nan 2\n");
        assert_eq!(text("0700000000/metrics/result/acc"), "1030500 0.75 3\n");
        assert_eq!(text("0700000001/tags/state"), "stopped");
    }
}
