//! A study as Optuna has it.

use serde_json::{Value as Json, json};

use super::{
    record::{Record, Trial},
    time,
};
use crate::{
    space::{Direction, Domain, Form, Value},
    store::{OptunaParam, OptunaStudy, OptunaTrial, TrialState},
};

/// The study with all trials, and with enqueued parameters as trials that wait.
pub(super) fn study(record: &Record) -> OptunaStudy {
    let direction = |direction| match direction {
        Direction::Minimize => "MINIMIZE".to_owned(),
        Direction::Maximize => "MAXIMIZE".to_owned(),
    };
    let objectives = &record.study.objectives;
    let names: Vec<&String> = objectives.iter().map(|objective| &objective.metric).collect();
    let waiting = record.queue.iter().map(|params| OptunaTrial {
        state: "WAITING".to_owned(),
        system_attributes: vec![("fixed_params".to_owned(), json!(params))],
        ..OptunaTrial::default()
    });
    OptunaStudy {
        name: record.name.clone(),
        directions: objectives.iter().map(|objective| direction(objective.direction)).collect(),
        system_attributes: vec![("study:metric_names".to_owned(), json!(names))],
        user_attributes: vec![
            ("pollux_tune:study".to_owned(), json!(record.id.to_string())),
            ("pollux_tune:step".to_owned(), json!(record.steps.name())),
            ("pollux_tune:yaml".to_owned(), json!(record.study.to_yaml())),
        ],
        trials: record.trials.iter().map(|trial| of_trial(record, trial)).chain(waiting).collect(),
    }
}

fn of_trial(record: &Record, trial: &Trial) -> OptunaTrial {
    let row = &trial.row;
    let state = match row.state {
        TrialState::Waiting if trial.began_s().is_none() => "WAITING",
        TrialState::Waiting | TrialState::Forming | TrialState::Running | TrialState::Pausing => "RUNNING",
        TrialState::Done => "COMPLETE",
        TrialState::Stopped => "PRUNED",
        TrialState::Failed | TrialState::Cancelled => "FAIL",
    };
    // That is how Optuna has trials that are still to be started: it asks for parameters again, and gets these.
    let is_waiting = state == "WAITING";
    let fixed = is_waiting.then(|| ("fixed_params".to_owned(), json!(row.params)));
    let params = record.study.space.parameters().iter().filter(|_| !is_waiting);
    let params = params
        .filter_map(|parameter| param(parameter.name(), parameter.domain(), trial.param(parameter.name())?));
    let objective = record.study.objectives.first().and_then(|objective| record.metric(&objective.metric));
    let curve = objective.map(|metric| trial.curve(metric, record.steps)).unwrap_or_default();
    let intermediate: Vec<(i64, f64)> = curve.iter().map(|point| (point.step, point.value)).collect();
    let values = match row.state {
        TrialState::Done => row.values.iter().flatten().copied().map(Some).collect(),
        // As Optuna does.
        TrialState::Stopped if record.study.objectives.len() == 1 => {
            let last = intermediate.last().map(|(_, value)| *value);
            last.filter(|value| value.is_finite()).map(Some).into_iter().collect()
        }
        _ => Vec::new(),
    };
    OptunaTrial {
        state: state.to_owned(),
        started: trial.began_s().map(time::local),
        ended: trial.ended_s().map(time::local),
        values,
        params: params.collect(),
        intermediate,
        system_attributes: fixed.into_iter().collect(),
        user_attributes: user_attributes(trial),
    }
}

fn user_attributes(trial: &Trial) -> Vec<(String, Json)> {
    let row = &trial.row;
    let metrics = row.metrics.iter().map(|(name, value)| (name.clone(), json!(value)));
    let own = [
        ("state", json!(row.state.to_string())),
        ("reason", json!(row.reason)),
        ("epochs", json!(row.epochs)),
        ("slot_seconds", json!(row.slot_s)),
        ("batch", json!(row.batch)),
    ];
    let own = own.into_iter().filter(|(_, value)| !value.is_null());
    let own = own.map(|(name, value)| (format!("pollux_tune:{name}"), value));
    metrics.chain(own).collect()
}

/// A value in the terms of Optuna; none if the domain of today has no such value.
fn param(name: &str, domain: &Domain, value: &Value) -> Option<OptunaParam> {
    let number = |kind: &str, low: Json, high: Json, step: Json, log: bool| json!({"name": kind, "attributes": {"low": low, "high": high, "step": step, "log": log}});
    let (value, distribution) = match domain.form() {
        Form::Float { low, high, step, log } => {
            (value.as_float()?, number("FloatDistribution", json!(low), json!(high), json!(step), log))
        }
        Form::Int { low, high, step, log } => {
            (value.as_float()?, number("IntDistribution", json!(low), json!(high), json!(step), log))
        }
        Form::Values(all) => {
            let place = all.iter().position(|known| known.same(value))?;
            let choices: Vec<Json> = all.iter().map(plain).collect();
            (place as f64, json!({"name": "CategoricalDistribution", "attributes": {"choices": choices}}))
        }
    };
    Some(OptunaParam { name: name.to_owned(), value, distribution })
}

fn plain(value: &Value) -> Json {
    match value {
        Value::Bool(value) => json!(value),
        Value::Int(value) => json!(value),
        Value::Float(value) => json!(value),
        Value::Text(text) => json!(text),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::record::tests::record, *};

    #[test]
    fn each_domain_has_its_distribution() {
        let shown = |domain: Domain, value: Value| {
            let param = param("x", &domain, &value).expect("it is in the domain");
            let distribution = &param.distribution;
            (
                param.value,
                distribution["name"].as_str().map(str::to_owned),
                distribution["attributes"].clone(),
            )
        };
        let name = |name: &str| Some(name.to_owned());
        let steps = Domain::float(0.1, 0.75).and_then(|domain| domain.with_step(0.1)).expect("a domain");
        assert_eq!(
            shown(steps, 0.3.into()),
            (0.3, name("FloatDistribution"), json!({"low": 0.1, "high": 0.7, "step": 0.1, "log": false}))
        );
        let whole = Domain::int(1, 8).and_then(|domain| domain.with_step(3)).expect("a domain");
        assert_eq!(
            shown(whole, 4.into()),
            (4.0, name("IntDistribution"), json!({"low": 1, "high": 7, "step": 3, "log": false}))
        );
        assert_eq!(
            shown(Domain::log_int(1, 64).expect("a domain"), 4.into()).2,
            json!({"low": 1, "high": 64, "step": 1, "log": true})
        );
        let mixed: [Value; 3] = ["a".into(), true.into(), 2.5.into()];
        assert_eq!(
            shown(Domain::ordinal(mixed).expect("a domain"), true.into()),
            (1.0, name("CategoricalDistribution"), json!({"choices": ["a", true, 2.5]}))
        );
    }

    #[test]
    fn trials_have_the_states_of_optuna() {
        let study = study(&record());
        let states: Vec<&str> = study.trials.iter().map(|trial| trial.state.as_str()).collect();
        assert_eq!(states, ["COMPLETE", "PRUNED", "WAITING"]);
        assert_eq!(study.trials[0].intermediate, [(1, 0.5), (2, 0.75)]);
        assert_eq!(study.trials[1].values, [Some(0.125)], "the last that it had reported");
        assert!(study.trials[2].params.is_empty() && study.trials[2].started.is_none());
        assert_eq!(study.trials[2].system_attributes[0].1["opt"], "adam");
    }
}
