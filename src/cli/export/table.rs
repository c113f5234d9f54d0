//! Trials and reports as tables: what CSV and Parquet files hold.

use super::record::{Record, Trial};
use crate::space::{Domain, Form, Value};

/// A table by columns, all of the same length.
#[derive(Debug, PartialEq)]
pub(super) struct Table {
    pub(super) columns: Vec<(String, Column)>,
}

/// Values of one kind; not all rows need to have one.
#[derive(Debug, PartialEq)]
pub(super) enum Column {
    Int(Vec<Option<i64>>),
    Float(Vec<Option<f64>>),
    Bool(Vec<Option<bool>>),
    Text(Vec<Option<String>>),
    /// Moments, in seconds since 1970.
    Time(Vec<Option<f64>>),
}

impl Column {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Int(values) => values.len(),
            Self::Float(values) | Self::Time(values) => values.len(),
            Self::Bool(values) => values.len(),
            Self::Text(values) => values.len(),
        }
    }
}

impl Table {
    pub(super) fn rows(&self) -> usize {
        self.columns.first().map_or(0, |(_, column)| column.len())
    }

    fn add(&mut self, name: impl Into<String>, column: Column) {
        self.columns.push((name.into(), column));
    }
}

/// One row for each trial, with names as those of Optuna's `trials_dataframe`: `values_accuracy`, `params_lr`.
pub(super) fn of_trials(record: &Record) -> Table {
    let trials = &record.trials;
    let floats = |of: &dyn Fn(&Trial) -> Option<f64>| Column::Float(trials.iter().map(of).collect());
    let ints = |of: &dyn Fn(&Trial) -> Option<i64>| Column::Int(trials.iter().map(of).collect());
    let times = |of: &dyn Fn(&Trial) -> Option<f64>| Column::Time(trials.iter().map(of).collect());
    let mut table = Table { columns: Vec::new() };
    table.add("trial", ints(&|trial| Some(trial.row.trial.0.into())));
    table.add("state", Column::Text(trials.iter().map(|trial| Some(trial.row.state.to_string())).collect()));
    for (place, objective) in record.study.objectives.iter().enumerate() {
        let value = |trial: &Trial| trial.row.values.as_ref()?.get(place).copied();
        table.add(format!("values_{}", objective.metric), floats(&value));
    }
    for parameter in record.study.space.parameters() {
        table.add(
            format!("params_{}", parameter.name()),
            params(trials, parameter.name(), parameter.domain()),
        );
    }
    for name in &record.metrics {
        let last = |trial: &Trial| trial.row.metrics.get(name).map(|value| value.value());
        table.add(format!("metrics_{name}"), floats(&last));
    }
    table.add("epochs", floats(&|trial| Some(trial.row.epochs)));
    table.add("created", times(&|trial| Some(trial.row.created_s)));
    table.add("started", times(&Trial::began_s));
    table.add("ended", times(&Trial::ended_s));
    table.add("duration_s", floats(&|trial| Some((trial.ended_s()? - trial.began_s()?).max(0.0))));
    table.add("slot_s", floats(&|trial| Some(trial.row.slot_s)));
    table.add("slots", ints(&|trial| Some(trial.row.slots.into())));
    table.add("batch", ints(&|trial| trial.row.batch.map(u64::cast_signed)));
    table.add("reason", Column::Text(trials.iter().map(|trial| trial.row.reason.clone()).collect()));
    table
}

/// One row for each report of each trial.
pub(super) fn of_reports(record: &Record) -> Table {
    let all =
        || record.trials.iter().flat_map(|trial| trial.reports.iter().map(move |report| (trial, report)));
    let mut table = Table { columns: Vec::new() };
    table.add("trial", Column::Int(all().map(|(trial, _)| Some(trial.row.trial.0.into())).collect()));
    table.add("epochs", Column::Float(all().map(|(_, report)| Some(report.epochs)).collect()));
    table.add("time", Column::Time(all().map(|(_, report)| Some(report.at_s)).collect()));
    for (place, name) in record.metrics.iter().enumerate() {
        let value = |values: &[(usize, f64)]| {
            values.iter().find(|(metric, _)| *metric == place).map(|(_, value)| *value)
        };
        table.add(name.clone(), Column::Float(all().map(|(_, report)| value(&report.values)).collect()));
    }
    table
}

/// A parameter of all trials, in the kind of its domain.
fn params(trials: &[Trial], name: &str, domain: &Domain) -> Column {
    let values = || trials.iter().map(|trial| trial.param(name));
    let ints = || Column::Int(values().map(|value| value?.as_int()).collect());
    let floats = || Column::Float(values().map(|value| value?.as_float()).collect());
    match domain.form() {
        Form::Int { .. } => ints(),
        Form::Float { .. } => floats(),
        Form::Values(all) if all.iter().all(|value| matches!(value, Value::Int(_))) => ints(),
        Form::Values(all) if all.iter().all(|value| value.as_float().is_some()) => floats(),
        Form::Values(all) if all.iter().all(|value| value.as_bool().is_some()) => {
            Column::Bool(values().map(|value| value?.as_bool()).collect())
        }
        Form::Values(_) => Column::Text(values().map(|value| Some(value?.to_string())).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::record::tests::record, *};

    fn column<'a>(table: &'a Table, name: &str) -> &'a Column {
        &table.columns.iter().find(|(known, _)| known == name).expect("the column is there").1
    }

    #[test]
    fn trials_have_a_column_for_each_thing_that_is_known() {
        let table = of_trials(&record());
        assert_eq!(table.rows(), 3);
        assert!(table.columns.iter().all(|(_, column)| column.len() == 3));
        assert_eq!(column(&table, "values_acc"), &Column::Float(vec![Some(0.75), None, None]));
        assert_eq!(column(&table, "params_depth"), &Column::Int(vec![Some(3); 3]));
        assert_eq!(column(&table, "params_flag"), &Column::Bool(vec![Some(true); 3]));
        assert_eq!(column(&table, "params_opt"), &Column::Text(vec![Some("adam".to_owned()); 3]));
        assert_eq!(column(&table, "ended"), &Column::Time(vec![Some(1030.5), Some(1030.5), None]));
        assert_eq!(column(&table, "duration_s"), &Column::Float(vec![Some(20.5), Some(19.25), None]));
    }

    #[test]
    fn reports_have_a_row_each() {
        let table = of_reports(&record());
        assert_eq!(column(&table, "trial"), &Column::Int(vec![Some(0), Some(0), Some(1)]));
        assert_eq!(column(&table, "acc"), &Column::Float(vec![Some(0.5), Some(0.75), Some(0.125)]));
        let Column::Float(loss) = column(&table, "loss") else { panic!("a number") };
        assert!(loss[0] == Some(2.0) && loss[1].is_some_and(f64::is_nan) && loss[2].is_none());
    }
}
