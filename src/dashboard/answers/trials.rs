//! Trials as a table, in pages.

use std::cmp::Ordering;

use serde::Deserialize;
use serde_json::json;

use super::{Answer, Problem, annotated, objectives, reason, trial_row, value_of};
use crate::{dashboard::studies::View, ids::TrialId, space::Value};

const DEFAULT_PAGE: usize = 50;
const LARGEST_PAGE: usize = 500;

/// Which trials, and in which order.
#[derive(Debug, Default, Deserialize)]
pub(in crate::dashboard) struct Query {
    #[serde(default)]
    offset: usize,
    limit: Option<usize>,
    /// `id`, `state`, `epochs`, `slots`, `started`, `duration`, `slot_seconds`, `reason`, `value:METRIC` or `param:NAME`.
    sort: Option<String>,
    #[serde(default)]
    descending: bool,
    /// Names of states, with commas.
    state: Option<String>,
    /// Text that occurs in `name=value` of a parameter, a tag, or a number of a trial.
    search: Option<String>,
}

/// What a trial is sorted by; nothing comes last, whichever way.
enum Sort {
    Number(f64),
    Text(String),
}

/// What a trial of a study is sorted by.
type SortBy = Box<dyn Fn(&View<'_>, TrialId) -> Option<Sort>>;

fn order(a: Option<&Sort>, b: Option<&Sort>, descending: bool) -> Ordering {
    let turned = |order: Ordering| if descending { order.reverse() } else { order };
    match (a, b) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(Sort::Number(a)), Some(Sort::Number(b))) => turned(a.total_cmp(b)),
        (Some(Sort::Text(a)), Some(Sort::Text(b))) => turned(a.cmp(b)),
        (Some(Sort::Number(_)), Some(Sort::Text(_))) => turned(Ordering::Less),
        (Some(Sort::Text(_)), Some(Sort::Number(_))) => turned(Ordering::Greater),
    }
}

/// By what, for each trial.
fn sort_by(view: &View<'_>, name: &str) -> Result<SortBy, Problem> {
    let times = |view: &View<'_>, trial: TrialId| {
        let times = view.model.trials.get(trial.0 as usize)?;
        Some(times.ended_s.unwrap_or(view.model.clock.now_s) - times.started_s?)
    };
    let ended = |view: &View<'_>, trial: TrialId| {
        let (active, ended) = (view.model.state.active.get(&trial), view.model.state.ended.get(&trial));
        let of_active = active.map(|active| (active.epochs, active.usage.slot_s));
        ended.map(|ended| (ended.epochs, ended.slot_s)).or(of_active)
    };
    Ok(match name {
        "id" => Box::new(|_, trial| Some(Sort::Number(f64::from(trial.0)))),
        "state" => Box::new(|view, trial| Some(Sort::Text(view.model.state_of(trial).name().to_owned()))),
        "slots" => Box::new(|view, trial| {
            let active = view.model.state.active.get(&trial)?;
            Some(Sort::Number(active.slots().len() as f64))
        }),
        "started" => {
            Box::new(|view, trial| Some(Sort::Number(view.model.trials.get(trial.0 as usize)?.started_s?)))
        }
        "reason" => {
            Box::new(|view, trial| Some(Sort::Text(reason(&view.model.state.ended.get(&trial)?.end)?)))
        }
        "epochs" => Box::new(move |view, trial| Some(Sort::Number(ended(view, trial)?.0))),
        "slot_seconds" => Box::new(move |view, trial| Some(Sort::Number(ended(view, trial)?.1))),
        "duration" => Box::new(move |view, trial| Some(Sort::Number(times(view, trial)?))),
        _ => {
            let place = name
                .strip_prefix("value:")
                .map(|metric| objectives(view).iter().position(|objective| objective.metric == metric));
            if let Some(Some(place)) = place {
                return Ok(Box::new(move |view, trial| value_of(view, trial, place).map(Sort::Number)));
            }
            let known = |name: &&str| {
                let study = view.model.study.as_ref();
                study.is_some_and(|study| study.space.parameters().iter().any(|other| other.name() == *name))
            };
            let Some(parameter) = name.strip_prefix("param:").filter(known).map(str::to_owned) else {
                return Err(Problem::Bad(format!("trials cannot be sorted by {name:?}")));
            };
            Box::new(move |view, trial| {
                let value = view.model.params(trial)?.get(&parameter)?;
                Some(value.as_float().map_or_else(|| Sort::Text(value.to_string()), Sort::Number))
            })
        }
    })
}

/// A page of trials, and how many there are in all.
pub(in crate::dashboard) fn trials(view: &View<'_>, query: &Query) -> Answer {
    let states: Option<Vec<&str>> =
        query.state.as_deref().filter(|states| !states.is_empty()).map(|states| states.split(',').collect());
    let search = query.search.as_deref().map(str::trim).filter(|text| !text.is_empty());
    let notes = view.notes();
    let is_tagged = |trial, text| notes.trials.get(&trial).is_some_and(|known| known.tags.contains(text));
    let is_shown = |trial: &TrialId| {
        let in_state =
            states.as_ref().is_none_or(|states| states.contains(&view.model.state_of(*trial).name()));
        in_state && search.is_none_or(|text| matches(view, *trial, text) || is_tagged(*trial, text))
    };
    let mut found: Vec<TrialId> = view.model.ids().filter(is_shown).collect();
    let name = query.sort.as_deref().unwrap_or("id");
    let sort = sort_by(view, name)?;
    let mut keyed: Vec<(Option<Sort>, TrialId)> =
        found.drain(..).map(|trial| (sort(view, trial), trial)).collect();
    keyed.sort_by(|a, b| order(a.0.as_ref(), b.0.as_ref(), query.descending).then(a.1.cmp(&b.1)));
    let limit = query.limit.unwrap_or(DEFAULT_PAGE).clamp(1, LARGEST_PAGE);
    let page = keyed.iter().skip(query.offset).take(limit);
    let rows: Vec<_> =
        page.map(|(_, trial)| annotated(trial_row(view, *trial), &notes.trial(*trial))).collect();
    Ok(
        json!({"total": view.model.trials.len(), "found": keyed.len(), "offset": query.offset, "trials": rows}),
    )
}

fn matches(view: &View<'_>, trial: TrialId, text: &str) -> bool {
    let shown = |(name, value): (&str, &Value)| {
        format!("{name}={value}").contains(text) || format!("{name}={}", value.short()).contains(text)
    };
    trial.to_string() == text || view.model.params(trial).is_some_and(|params| params.iter().any(shown))
}
