//! What finished trials say about the parameters.

use std::collections::BTreeSet;

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use serde_json::{Value, json};

use super::{Answer, Problem, objectives, overview::Which};
use crate::{
    dashboard::{
        Commands,
        studies::{View, Watched},
        thin::spread,
    },
    ids::TrialId,
    space::{Parameter, Study},
    tpe::{self, pareto::pareto_front},
    wire::with_causes,
};

/// The most trials that are told apart.
const MOST: usize = 1500;

fn done(view: &View<'_>) -> Vec<TrialId> {
    view.model.ids().filter(|trial| view.model.values(*trial).is_some()).collect()
}

fn losses(view: &View<'_>, trial: TrialId) -> Vec<f64> {
    let values = view.model.values(trial).unwrap_or_default();
    objectives(view).iter().zip(values).map(|(objective, value)| objective.loss(*value)).collect()
}

/// Trials that no other one beats in all objectives.
fn front(view: &View<'_>, done: &[TrialId]) -> BTreeSet<TrialId> {
    let losses: Vec<Vec<f64>> = done.iter().map(|trial| losses(view, *trial)).collect();
    pareto_front(&losses).into_iter().map(|place| done[place]).collect()
}

/// Parameters and results of finished trials: all, or the best third and an even choice of the others.
pub(in crate::dashboard) fn analysis(view: &View<'_>) -> Value {
    let done = done(view);
    let front = front(view, &done);
    let chosen: BTreeSet<TrialId> = if done.len() <= MOST {
        done.iter().copied().collect()
    } else {
        let results = done.iter().filter_map(|trial| Some((*trial, view.model.values(*trial)?)));
        let best = crate::trials::best(objectives(view), results, MOST / 3);
        let others = spread(done.len(), MOST - MOST / 3).into_iter().map(|place| done[place]);
        best.into_iter().chain(others).chain(front.iter().copied().take(MOST / 3)).collect()
    };
    let names: Vec<&str> =
        view.model.study.iter().flat_map(|study| study.space.parameters()).map(Parameter::name).collect();
    let row = |trial: &TrialId| {
        let params = view.model.params(*trial);
        let params: Vec<Value> =
            names.iter().map(|name| json!(params.and_then(|params| params.get(name)).map(plain))).collect();
        json!([trial.0, view.model.values(*trial), front.contains(trial), params])
    };
    json!({
        "done": done.len(),
        "parameters": names,
        "columns": ["trial", "values", "front", "parameters"],
        "trials": chosen.iter().map(row).collect::<Vec<_>>(),
    })
}

/// A value of a parameter as JSON.
fn plain(value: &crate::space::Value) -> Value {
    match value {
        crate::space::Value::Bool(value) => json!(value),
        crate::space::Value::Int(value) => json!(value),
        crate::space::Value::Float(value) => json!(value),
        crate::space::Value::Text(value) => json!(value),
    }
}

/// How much of the variance of an objective each parameter explains.
pub(in crate::dashboard) fn importance(study: &Watched, commands: &dyn Commands, which: &Which) -> Answer {
    let (file, points, values) = study.view(commands, |view| {
        which.check(view)?;
        let file: Study = view
            .model
            .study
            .clone()
            .ok_or_else(|| Problem::Refused("the study file cannot be read".to_owned()))?;
        let done = done(view);
        let points: Vec<_> =
            done.iter().map(|trial| view.model.trials[trial.0 as usize].point.clone()).collect();
        let values: Vec<f64> =
            done.iter().filter_map(|trial| losses(view, *trial).get(which.objective).copied()).collect();
        Ok((file, points, values))
    })?;
    let shares = study.importance((which.objective, values.len()), || -> Result<_, String> {
        let dims = file.space.to_dims().map_err(|error| with_causes(&error))?;
        let rng = &mut ChaCha8Rng::seed_from_u64(file.search.seed);
        let shares = tpe::importance(&dims, &points, &values, rng).map_err(|error| with_causes(&error))?;
        let mut named: Vec<(String, f64)> =
            (0..).zip(shares).map(|(dim, share)| (file.space.name(dim).to_owned(), share)).collect();
        named.sort_by(|a, b| b.1.total_cmp(&a.1));
        Ok(named)
    });
    Ok(match shares {
        Ok(shares) => json!({"done": values.len(), "shares": shares}),
        // With few trials that is as it should be.
        Err(note) => json!({"done": values.len(), "shares": null, "note": note}),
    })
}
