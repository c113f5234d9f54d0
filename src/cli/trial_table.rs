//! `pollux-tune trials`: the trials of a study, those that are wanted, in the order that is wanted.

use std::{cmp::Ordering, collections::BTreeSet, io::Write, path::Path, str::FromStr};

use thiserror::Error;

use super::{
    annotate::tags_text,
    inspect::{duration, of_emulation},
    json::{self, Times},
    output::{Format, table},
    terminal,
};
use crate::{
    cli,
    space::{Direction, Objective, Study, Value},
    store::{Annotations, Reader, TrialRow, TrialState},
};

/// What is wanted of the trials.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pub(super) states: Vec<TrialState>,
    /// Those with all of these tags.
    pub(super) tags: Vec<String>,
    /// All of them must hold.
    pub(super) conditions: Vec<Condition>,
    pub(super) sort: Option<String>,
    pub(super) reverse: bool,
    pub(super) count: Option<usize>,
    /// None for those that everybody wants.
    pub(super) columns: Vec<String>,
}

/// What can be wrong with it.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error("there is no column `{name}`; expected one of {allowed}")]
    NoColumn { name: String, allowed: String },
    #[error(
        "`{name}` and `{value}` are compared as texts: they are equal or not, so only = and != can be used"
    )]
    Text { name: String, value: String },
}

/// A column compared with a value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Condition {
    column: String,
    relation: Relation,
    value: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    Less,
    AtMost,
    More,
    AtLeast,
    Equal,
    Other,
}

/// Longer ones first: `<` begins `<=`.
const RELATIONS: [(&str, Relation); 7] = [
    ("<=", Relation::AtMost),
    (">=", Relation::AtLeast),
    ("!=", Relation::Other),
    ("==", Relation::Equal),
    ("<", Relation::Less),
    (">", Relation::More),
    ("=", Relation::Equal),
];

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write a column, one of < <= > >= = != and a value, such as lr<0.01".to_owned();
        let at = text.find(['<', '>', '=', '!']).ok_or_else(wrong)?;
        let (column, rest) = text.split_at(at);
        let found = RELATIONS.iter().find_map(|(sign, relation)| Some((*relation, rest.strip_prefix(sign)?)));
        let (relation, value) = found.ok_or_else(wrong)?;
        let (column, value) = (column.trim().to_owned(), value.trim().to_owned());
        if column.is_empty() || value.is_empty() {
            return Err(wrong());
        }
        Ok(Self { column, relation, value })
    }
}

impl Relation {
    const fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Less => order.is_lt(),
            Self::AtMost => order.is_le(),
            Self::More => order.is_gt(),
            Self::AtLeast => order.is_ge(),
            Self::Equal => order.is_eq(),
            Self::Other => order.is_ne(),
        }
    }
}

/// What a column shows.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Column {
    Trial,
    State,
    Epochs,
    Slots,
    Batch,
    Start,
    End,
    Duration,
    SlotSeconds,
    Reason,
    Tags,
    Note,
    Params,
    Metric(String),
    Param(String),
}

/// Those with a name of their own.
const FIXED: [(&str, Column); 13] = [
    ("trial", Column::Trial),
    ("state", Column::State),
    ("epochs", Column::Epochs),
    ("slots", Column::Slots),
    ("batch", Column::Batch),
    ("start", Column::Start),
    ("end", Column::End),
    ("duration", Column::Duration),
    ("slot_seconds", Column::SlotSeconds),
    ("reason", Column::Reason),
    ("tags", Column::Tags),
    ("note", Column::Note),
    ("parameters", Column::Params),
];

/// The trials of a study, and what their columns can be.
struct Table<'a> {
    study: &'a Study,
    rows: &'a [TrialRow],
    notes: &'a Annotations,
    times: Times,
}

/// Prints the trials.
pub(super) fn list(
    folder: &Path,
    wanted: &Wanted,
    format: Format,
    out: &mut impl Write,
) -> Result<(), cli::Error> {
    let reader = Reader::open(folder)?;
    let (study, rows, status) = (reader.study()?, reader.trials()?, reader.status()?);
    let notes = Annotations::read(reader.folder())?;
    let times = Times { created_s: status.created_s, at_s: status.at_s };
    let all = Table { study: &study, rows: &rows, notes: &notes, times };
    let chosen = all.choose(wanted)?;
    let text = match format {
        Format::Json => {
            let trial = |row: &&TrialRow| {
                json::object(json::trial(&study.objectives, row, &times, &notes.trial(row.trial)))
            };
            chosen.iter().map(trial).collect::<Vec<_>>().join("\n")
        }
        Format::Text => {
            let note = reader.folder().emulated();
            let note = note.map(|devices| format!("{}\n", terminal::folded(&of_emulation(&devices))));
            let mut columns = all.columns(&wanted.columns)?;
            if wanted.columns.is_empty() {
                // What no trial has would only take room.
                let is_told = |column: &Column| chosen.iter().any(|row| all.value(row, column).is_some());
                columns.retain(|(_, column)| matches!(column, Column::Metric(_)) || is_told(column));
            }
            let width = terminal::stdout_width();
            let lines = all.lines(&columns, &chosen);
            let lines: Vec<String> = lines.iter().map(|line| terminal::cut(line, width)).collect();
            format!("{}{}", note.unwrap_or_default(), lines.join("\n"))
        }
    };
    if text.is_empty() {
        return Ok(());
    }
    writeln!(out, "{text}").map_err(cli::Error::Stdout)
}

impl<'a> Table<'a> {
    /// The metrics that any of them has, those of the objectives first.
    fn metrics(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.study.objectives.iter().map(|objective| objective.metric.clone()).collect();
        let others: BTreeSet<&String> = self.rows.iter().flat_map(|row| row.metrics.keys()).collect();
        names.extend(
            others
                .into_iter()
                .filter(|name| !self.study.objectives.iter().any(|it| it.metric == **name))
                .cloned(),
        );
        names
    }

    /// A column by its name; a parameter or metric that has the name of another column is `params.NAME` or `metrics.NAME`.
    fn column(&self, name: &str) -> Result<Column, Error> {
        let is_metric = |name: &str| self.metrics().iter().any(|known| known == name);
        let is_param = |name: &str| self.study.space.parameters().iter().any(|known| known.name() == name);
        if let Some(name) = name.strip_prefix("metrics.").filter(|name| is_metric(name)) {
            return Ok(Column::Metric(name.to_owned()));
        }
        if let Some(name) = name.strip_prefix("params.").filter(|name| is_param(name)) {
            return Ok(Column::Param(name.to_owned()));
        }
        if let Some((_, column)) = FIXED.iter().find(|(known, _)| *known == name) {
            return Ok(column.clone());
        }
        if is_metric(name) {
            return Ok(Column::Metric(name.to_owned()));
        }
        if is_param(name) {
            return Ok(Column::Param(name.to_owned()));
        }
        let fixed = FIXED.iter().map(|(name, _)| (*name).to_owned());
        let params = self.study.space.parameters().iter().map(|known| known.name().to_owned());
        let allowed: Vec<String> = fixed.chain(self.metrics()).chain(params).collect();
        Err(Error::NoColumn { name: name.to_owned(), allowed: allowed.join(", ") })
    }

    fn columns(&self, names: &[String]) -> Result<Vec<(String, Column)>, Error> {
        if !names.is_empty() {
            return names.iter().map(|name| Ok((name.clone(), self.column(name)?))).collect();
        }
        let usual = ["trial", "state", "epochs", "slots", "batch", "duration"];
        let fixed = FIXED.iter().filter(|(name, _)| usual.contains(name));
        let mut columns: Vec<(String, Column)> =
            fixed.map(|(name, column)| ((*name).to_owned(), column.clone())).collect();
        let objectives = self.study.objectives.iter().map(|objective| objective.metric.clone());
        columns.extend(objectives.map(|metric| (metric.clone(), Column::Metric(metric))));
        columns.push(("parameters".to_owned(), Column::Params));
        Ok(columns)
    }

    /// The trials that are wanted, in the order that is wanted.
    fn choose(&self, wanted: &Wanted) -> Result<Vec<&'a TrialRow>, Error> {
        let mut conditions = Vec::new();
        for condition in &wanted.conditions {
            conditions.push((self.column(&condition.column)?, condition));
        }
        let mut chosen = Vec::new();
        for row in self.rows {
            let is_wanted = wanted.states.is_empty() || wanted.states.contains(&row.state);
            let mut holds = is_wanted && self.has_tags(row, &wanted.tags);
            for (column, condition) in &conditions {
                holds = holds && self.holds(row, column, condition)?;
            }
            if holds {
                chosen.push(row);
            }
        }
        if let Some(name) = &wanted.sort {
            let column = self.column(name)?;
            // Of an objective the best is wanted first.
            let falls = |objective: &Objective| objective.direction == Direction::Maximize;
            let is_falling = matches!(&column, Column::Metric(metric) if self.study.objectives.iter().any(|it| it.metric == *metric && falls(it)));
            chosen.sort_by(|a, b| match (self.value(a, &column), self.value(b, &column)) {
                (Some(a), Some(b)) => {
                    let order = order(&a, &b);
                    if is_falling == wanted.reverse { order } else { order.reverse() }
                }
                // What has none comes last.
                (a, b) => a.is_none().cmp(&b.is_none()),
            });
        } else if wanted.reverse {
            chosen.reverse();
        }
        chosen.truncate(wanted.count.unwrap_or(usize::MAX));
        Ok(chosen)
    }

    fn has_tags(&self, row: &TrialRow, wanted: &[String]) -> bool {
        wanted.iter().all(|tag| self.notes.trials.get(&row.trial).is_some_and(|one| one.tags.contains(tag)))
    }

    /// Whether a condition holds; not of what a trial does not have.
    fn holds(&self, row: &TrialRow, column: &Column, condition: &Condition) -> Result<bool, Error> {
        let Condition { relation, value: wanted, .. } = condition;
        let Some(value) = self.value(row, column) else { return Ok(false) };
        let is_text = |value: &Value| matches!(value, Value::Text(_));
        if let (Some(value), Ok(wanted)) = (value.as_float(), wanted.parse::<f64>()) {
            return Ok(relation.holds(value.total_cmp(&wanted)));
        }
        match relation {
            Relation::Equal => Ok(value.to_string() == *wanted),
            Relation::Other => Ok(value.to_string() != *wanted),
            _ => {
                let name = condition.column.clone();
                let value = if is_text(&value) { value.to_string() } else { wanted.clone() };
                Err(Error::Text { name, value })
            }
        }
    }

    fn value(&self, row: &TrialRow, column: &Column) -> Option<Value> {
        let count = |number: u64| Value::from(i64::try_from(number).unwrap_or(i64::MAX));
        match column {
            Column::Trial => Some(count(row.trial.0.into())),
            Column::State => Some(Value::from(row.state.to_string())),
            Column::Epochs => Some(row.epochs.into()),
            Column::Slots => (row.slots > 0).then(|| count(row.slots.into())),
            Column::Batch => row.batch.map(count),
            Column::Start => Some(self.times.start_s(row).into()),
            Column::End => self.times.end_s(row).map(Value::from),
            Column::Duration => Some(self.times.duration_s(row).into()),
            Column::SlotSeconds => Some(row.slot_s.into()),
            Column::Reason => row.reason.as_ref().map(|reason| Value::from(first_line(reason))),
            Column::Tags => tags_text(&self.notes.trial(row.trial)).map(Value::from),
            Column::Note => self.notes.trial(row.trial).note.map(|note| Value::from(first_line(&note))),
            Column::Params => Some(Value::from(row.params.to_string())),
            Column::Metric(name) => {
                let place = self.study.objectives.iter().position(|objective| objective.metric == *name);
                let result = place.and_then(|place| row.values.as_ref()?.get(place).copied());
                let last = row.metrics.get(name).map(|value| value.value());
                result.or(last).filter(|value| value.is_finite()).map(Value::from)
            }
            Column::Param(name) => row.params.get(name).cloned(),
        }
    }

    fn cell(&self, row: &TrialRow, column: &Column) -> String {
        let Some(value) = self.value(row, column) else { return "-".to_owned() };
        match (column, &value) {
            (Column::Epochs, Value::Float(epochs)) => format!("{epochs:.2}"),
            (Column::Start | Column::End | Column::Duration, Value::Float(seconds)) => duration(*seconds),
            (Column::SlotSeconds, Value::Float(seconds)) => format!("{seconds:.0}"),
            (_, Value::Float(_)) => value.short(),
            _ => value.to_string(),
        }
    }

    fn lines(&self, columns: &[(String, Column)], rows: &[&TrialRow]) -> Vec<String> {
        let mut all: Vec<Vec<String>> = vec![columns.iter().map(|(name, _)| name.clone()).collect()];
        all.extend(rows.iter().map(|row| columns.iter().map(|(_, column)| self.cell(row, column)).collect()));
        table(&all)
    }
}

/// Numbers before texts, each in their order.
fn order(a: &Value, b: &Value) -> Ordering {
    match (a.as_float(), b.as_float()) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        (a_number, b_number) => {
            b_number.is_some().cmp(&a_number.is_some()).then_with(|| a.to_string().cmp(&b.to_string()))
        }
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// A state by its name, for the command line.
pub(super) fn state(text: &str) -> Result<TrialState, String> {
    let found = TrialState::all().find(|state| state.name() == text);
    found.ok_or_else(|| {
        let names: Vec<String> = TrialState::all().map(|state| state.to_string()).collect();
        format!("expected one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ids::TrialId, space::Params};

    fn study() -> Study {
        let yaml = "{space: {lr: {log: [1e-4, 1]}, act: [relu, gelu], state: {int: [1, 3]}}, objective: {maximize: accuracy}, trial: {epochs: 10}}";
        Study::from_yaml("study.yaml", yaml).unwrap()
    }

    fn row(trial: u32, state: TrialState, lr: f64, act: &str, accuracy: Option<f64>) -> TrialRow {
        let params = Params::from_iter([("lr", lr.into()), ("act", act.into()), ("state", 2.into())]);
        let metrics = accuracy.iter().map(|value| ("accuracy".to_owned(), (*value).into())).collect();
        let times = (1000.0 + f64::from(trial), state.is_end().then_some(1100.0));
        TrialRow {
            trial: TrialId(trial),
            state,
            params,
            created_s: times.0,
            ended_s: times.1,
            epochs: 1.0,
            metrics,
            values: None,
            reason: None,
            generation: 1,
            slots: 0,
            batch: None,
            slot_s: 0.0,
        }
    }

    fn chosen(wanted: &Wanted) -> Result<Vec<u32>, String> {
        let rows = [
            row(0, TrialState::Done, 0.1, "relu", Some(0.5)),
            row(1, TrialState::Failed, 0.001, "gelu", None),
            row(2, TrialState::Running, 0.01, "relu", Some(0.9)),
        ];
        let study = study();
        let mut notes = Annotations::default();
        notes.trials.entry(TrialId(2)).or_default().tags.extend(["good", "long"].map(str::to_owned));
        notes.trials.entry(TrialId(0)).or_default().tags.insert("good".to_owned());
        let times = Times { created_s: 1000.0, at_s: 1200.0 };
        let table = Table { study: &study, rows: &rows, notes: &notes, times };
        let chosen = table.choose(wanted).map_err(|error| error.to_string())?;
        Ok(chosen.iter().map(|row| row.trial.0).collect())
    }

    fn conditions(all: &[&str]) -> Wanted {
        Wanted { conditions: all.iter().map(|text| text.parse().unwrap()).collect(), ..Wanted::default() }
    }

    #[test]
    fn trials_are_chosen_by_what_they_have() {
        assert_eq!(chosen(&conditions(&["lr<0.1"])), Ok(vec![1, 2]));
        assert_eq!(chosen(&conditions(&["lr <= 0.1", "act=relu"])), Ok(vec![0, 2]));
        assert_eq!(chosen(&conditions(&["act!=relu"])), Ok(vec![1]));
        assert_eq!(chosen(&conditions(&["accuracy>=0.5"])), Ok(vec![0, 2]), "not what has none");
        assert_eq!(chosen(&conditions(&["duration>150"])), Ok(vec![2]), "it still runs");
        assert_eq!(chosen(&conditions(&["state=done"])), Ok(vec![0]));
        assert_eq!(chosen(&conditions(&["params.state=2", "trial>0"])), Ok(vec![1, 2]));
        let running = Wanted { states: vec![TrialState::Running], ..Wanted::default() };
        assert_eq!(chosen(&running), Ok(vec![2]));
        let tagged = |tags: &[&str]| Wanted {
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            ..Wanted::default()
        };
        assert_eq!(chosen(&tagged(&["good"])), Ok(vec![0, 2]));
        assert_eq!(chosen(&tagged(&["good", "long"])), Ok(vec![2]), "all of them");
        assert_eq!(chosen(&conditions(&["tags=good, long"])), Ok(vec![2]));
        let error = chosen(&conditions(&["act<relu"])).unwrap_err();
        assert_eq!(
            error,
            "`act` and `relu` are compared as texts: they are equal or not, so only = and != can be used"
        );
        let error = chosen(&conditions(&["loss<1"])).unwrap_err();
        assert!(error.starts_with("there is no column `loss`; expected one of trial, state,"), "{error}");
        assert!(error.ends_with("accuracy, lr, act, state"), "{error}");
        for wrong in ["lr", "<1", "lr<", "lr!1"] {
            assert!(wrong.parse::<Condition>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn trials_come_in_the_order_that_is_wanted() {
        let by = |sort: &str, reverse| {
            chosen(&Wanted { sort: Some(sort.to_owned()), reverse, ..Wanted::default() })
        };
        assert_eq!(by("lr", false), Ok(vec![1, 2, 0]));
        assert_eq!(by("lr", true), Ok(vec![0, 2, 1]));
        assert_eq!(by("accuracy", false), Ok(vec![2, 0, 1]), "the best first, and last what has none");
        assert_eq!(by("accuracy", true), Ok(vec![0, 2, 1]));
        assert_eq!(by("act", false), Ok(vec![1, 0, 2]));
        let last = Wanted { reverse: true, count: Some(1), ..Wanted::default() };
        assert_eq!(chosen(&last), Ok(vec![2]));
    }

    #[test]
    fn states_have_the_names_that_are_shown() {
        assert_eq!(state("starting"), Ok(TrialState::Forming));
        assert!(state("finished").unwrap_err().contains("waiting, starting, running"));
    }
}
