//! Freeze and thaw (Swersky et al. 2014), as an experiment: trials are paused and resumed by a model of their curves. It was not good
//! enough to become a rule, see `docs/search.md`.

use pollux_tune::ids::TrialId;

use super::replay::{Choice, Chooser, Row, Table};

/// A decision for each such part of a training.
const STEPS: usize = 16;
/// How optimistic it is about what a trial may become, in standard deviations.
const OPTIMISM: f64 = 0.5;
/// The number of full trainings before anything is paused, for the model.
const FIRST: usize = 2;

struct Trial {
    row: Row,
    trained: usize,
}

/// What the best finished trial is worth at each of the budgets, one trial at a time.
pub(crate) fn study(table: &Table, budgets: &[f64], seed: u64) -> Vec<f64> {
    let points = table.at.len();
    let step = (points / STEPS).max(1);
    let mut chooser = Chooser::new(table, Choice::Random, seed);
    let (mut trials, mut ended, mut used, mut best): (Vec<Trial>, Vec<Row>, usize, Vec<f64>) =
        Default::default();
    let mut found = f64::INFINITY;
    while best.len() < budgets.len() {
        let next =
            if ended.len() < FIRST { unfinished(&trials) } else { promising(&trials, &ended, points, found) };
        let next = next.unwrap_or_else(|| {
            let row = chooser.next(TrialId(trials.len() as u32));
            trials.push(Trial { row, trained: 0 });
            trials.len() - 1
        });
        let trial = &mut trials[next];
        let rest = points - trial.trained;
        for _ in 0..if rest < 2 * step { rest } else { step } {
            (trial.trained, used) = (trial.trained + 1, used + 1);
            if trial.trained == points {
                found = found.min(trial.row.end);
                if trial.row.end.is_finite() {
                    ended.push(trial.row.clone());
                }
            }
            while budgets.get(best.len()).is_some_and(|budget| used as f64 >= budget * points as f64) {
                best.push(found);
            }
        }
    }
    best
}

/// The value of a trial that has not finished and not diverged.
fn value(trial: &Trial) -> Option<f64> {
    let value = *trial.row.values.get(trial.trained.checked_sub(1)?)?;
    (trial.trained < trial.row.values.len() && value.is_finite()).then_some(value)
}

fn unfinished(trials: &[Trial]) -> Option<usize> {
    trials.iter().position(|trial| value(trial).is_some())
}

/// The trial whose end may become the best, unless a new one is more likely to: what is still to come is taken to be as it was for the trials
/// that have ended, and a new one to be as the middle of all.
fn promising(trials: &[Trial], ended: &[Row], points: usize, found: f64) -> Option<usize> {
    let to_come = |trained: usize| {
        let changes =
            ended.iter().map(|row| row.end - row.values[trained - 1]).filter(|change| change.is_finite());
        mean_and_deviation(&changes.collect::<Vec<f64>>())
    };
    let models: Vec<(f64, f64)> = (1..=points).map(to_come).collect();
    let expected: Vec<(usize, f64, f64)> = trials
        .iter()
        .enumerate()
        .filter_map(|(at, trial)| {
            let (mean, deviation) = models[trial.trained.checked_sub(1)?];
            Some((at, value(trial)? + mean, deviation))
        })
        .collect();
    let mut all: Vec<f64> = ended.iter().map(|row| row.end).chain(expected.iter().map(|one| one.1)).collect();
    all.sort_by(f64::total_cmp);
    let middle = all[all.len() / 2];
    let spread = mean_and_deviation(&all).1.min(2.0 * (middle - all[0]).max(1e-9));
    let likely = |&(at, mean, deviation): &(usize, f64, f64)| (at, mean - OPTIMISM * deviation);
    let bar = found.min(middle - OPTIMISM * spread);
    let best = expected.iter().map(likely).min_by(|a, b| a.1.total_cmp(&b.1))?;
    (best.1 < bar).then_some(best.0)
}

/// Of a prediction from this sample; without a sample it says nothing.
fn mean_and_deviation(sample: &[f64]) -> (f64, f64) {
    let count = sample.len() as f64;
    if sample.len() < 2 {
        return (0.0, 0.0);
    }
    let mean = sample.iter().sum::<f64>() / count;
    let squares: f64 = sample.iter().map(|x| (x - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0) * (1.0 + 1.0 / count)).sqrt())
}
