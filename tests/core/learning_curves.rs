//! What early stopping saves and what it costs, on synthetic learning curves and on measured ones.

use std::{cmp::Reverse, collections::BinaryHeap};

use pollux_tune::{
    ids::TrialId,
    space::{Direction, EarlyStopping, StoppingRule, Study},
    trials::stopping::{EndKind, Stopper, Verdict, stopper},
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{
    curves::{EPOCHS, LearningCurve, family},
    replay::{self, Choice, Conditions as Plan, Table},
};

const TRIALS: u32 = 400;

/// How a study goes.
#[derive(Debug, Clone, Copy)]
struct Conditions {
    /// Trials that run at the same time.
    workers: usize,
    /// Reports come at such distances, in epochs.
    reports: (f64, f64),
    /// The speed of each worker changes by up to this factor, from report to report.
    rescale: f64,
    /// The chance, at each report, that a trial falls back to its last checkpoint, of which it writes one each three epochs.
    restarts: f64,
    /// The chance, at each report, that its user stops a trial.
    user_stops: f64,
}

/// Everything in order: one trial after the other, a report at each epoch.
const CALM: Conditions =
    Conditions { workers: 1, reports: (1.0, 1.0), rescale: 1.0, restarts: 0.0, user_stops: 0.0 };

/// Eight trials at a time whose speeds change all the while, reports at any progress, restarts and impatient users.
const ROUGH: Conditions =
    Conditions { workers: 8, reports: (0.2, 1.3), rescale: 2.0, restarts: 0.02, user_stops: 0.002 };

/// What became of a study.
#[derive(Debug, Clone, Default)]
struct Outcome {
    /// Epochs trained, over those of the full study.
    cost: f64,
    /// The true final value of the trial that reported the best one, over the best of the family.
    regret: f64,
    done: usize,
    stopped: usize,
    stopped_by_user: usize,
    restarts: usize,
}

struct Worker {
    trial: usize,
    progress: f64,
    checkpoint: f64,
    speed: f64,
}

/// Runs trials with a stopper until all have ended. The best trial is looked for among those that the user lets go on.
fn run(curves: &[LearningCurve], stopper: &mut dyn Stopper, conditions: Conditions, seed: u64) -> Outcome {
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    let mut workers: Vec<Worker> = (0..conditions.workers)
        .map(|trial| Worker { trial, progress: 0.0, checkpoint: 0.0, speed: rng.random_range(1.0..4.0) })
        .collect();
    let mut next = workers.len();
    // Times in whole numbers, so that they can be ordered.
    let mut queue: BinaryHeap<_> = (0..workers.len()).map(|worker| Reverse((0_u64, worker))).collect();
    let (mut outcome, mut trained) = (Outcome::default(), 0.0);
    let mut found: Option<(f64, usize)> = None;
    let mut users = vec![false; curves.len()];
    while let Some(Reverse((time, at))) = queue.pop() {
        let worker = &mut workers[at];
        let step =
            rng.random_range(conditions.reports.0..=conditions.reports.1).min(EPOCHS - worker.progress);
        trained += step;
        worker.progress += step;
        worker.speed =
            (worker.speed * conditions.rescale.powf(rng.random_range(-1.0..=1.0))).clamp(0.25, 16.0);
        let later = time + (1e6 * step / worker.speed) as u64 + 1;
        let trial = TrialId(worker.trial as u32);
        let value = curves[worker.trial].measured(worker.progress, rng);
        let verdict = stopper.report(trial, worker.progress, value).expect("it is running");
        let by_user = rng.random_bool(conditions.user_stops);
        let ended = match verdict {
            Verdict::Stop(_) => {
                outcome.stopped += 1;
                Some(EndKind::Stopped)
            }
            Verdict::Continue if worker.progress >= EPOCHS => {
                outcome.done += 1;
                if found.is_none_or(|(best, _)| value < best) {
                    found = Some((value, worker.trial));
                }
                Some(EndKind::Done)
            }
            Verdict::Continue if by_user => {
                outcome.stopped_by_user += 1;
                users[worker.trial] = true;
                Some(EndKind::Cancelled)
            }
            Verdict::Continue => None,
        };
        if let Some(end) = ended {
            stopper.end(trial, end).expect("it ends once");
            if next == curves.len() {
                continue;
            }
            (worker.trial, worker.progress, worker.checkpoint) = (next, 0.0, 0.0);
            next += 1;
        } else if rng.random_bool(conditions.restarts) {
            outcome.restarts += 1;
            worker.progress = worker.checkpoint;
        } else if worker.progress - worker.checkpoint >= 3.0 {
            worker.checkpoint = worker.progress;
        }
        queue.push(Reverse((later, at)));
    }
    let finals =
        curves.iter().zip(&users).filter(|(_, by_user)| !**by_user).map(|(curve, _)| curve.at(EPOCHS));
    let best = finals.fold(f64::INFINITY, f64::min);
    outcome.cost = trained / (EPOCHS * curves.len() as f64);
    outcome.regret = found.map_or(f64::INFINITY, |(_, trial)| curves[trial].at(EPOCHS) / best - 1.0);
    outcome
}

fn study(rule: StoppingRule, grace: f64, reduction: f64, conditions: Conditions, seed: u64) -> Outcome {
    let settings = EarlyStopping { rule, grace, reduction, patience: 10.0, threshold: None };
    let mut stopper = stopper(&settings, EPOCHS, Direction::Minimize).expect("the settings are fine");
    run(&family(TRIALS, seed), &mut *stopper, conditions, seed)
}

fn finds_the_best_at_a_quarter_of_the_cost(conditions: Conditions) -> Vec<Outcome> {
    let outcomes: Vec<Outcome> =
        (0..20).map(|seed| study(StoppingRule::Asha, 4.0, 2.0, conditions, seed)).collect();
    for (seed, outcome) in outcomes.iter().enumerate() {
        assert!(outcome.regret <= 0.01, "seed {seed}: {outcome:?}");
        assert!(outcome.cost <= 0.25, "seed {seed}: {outcome:?}");
        let ended = outcome.done + outcome.stopped + outcome.stopped_by_user;
        assert_eq!(ended, TRIALS as usize, "seed {seed}: {outcome:?}");
    }
    outcomes
}

#[test]
fn asha_finds_the_best_at_a_quarter_of_the_cost() {
    finds_the_best_at_a_quarter_of_the_cost(CALM);
}

#[test]
fn asha_does_so_with_trials_that_are_rescaled_restarted_and_stopped() {
    let outcomes = finds_the_best_at_a_quarter_of_the_cost(ROUGH);
    for outcome in outcomes {
        assert!(outcome.restarts > 50 && outcome.stopped_by_user > 3, "{outcome:?}");
    }
}

/// The best configuration of some families is late: curves cross after most decisions.
#[test]
fn the_curves_cross() {
    let late = (0..20).filter(|&seed| {
        let curves = family(TRIALS, seed);
        let value = |epochs: f64| move |a: &&_, b: &&_| compare(a, b, epochs);
        let best = curves.iter().min_by(value(EPOCHS)).expect("there are curves");
        let better = curves.iter().filter(|curve| curve.at(4.0) < best.at(4.0)).count();
        better > 10
    });
    let late = late.count();
    assert!(late >= 10, "only in {late} of 20 families");
}

fn compare(a: &LearningCurve, b: &LearningCurve, epochs: f64) -> std::cmp::Ordering {
    a.at(epochs).total_cmp(&b.at(epochs))
}

/// Promises half-way between two rungs, and whether the trial went on at the next.
fn promises(seed: u64) -> Vec<(f64, bool)> {
    let (rule, grace, reduction) = (StoppingRule::Asha, 3.0, 3.0);
    let settings = EarlyStopping { rule, grace, reduction, patience: 10.0, threshold: None };
    let mut asha = stopper(&settings, EPOCHS, Direction::Minimize).expect("the settings are fine");
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    let mut promises = Vec::new();
    for (trial, curve) in (0..).map(TrialId).zip(family(TRIALS, seed)) {
        let mut promise = None;
        for epoch in 1_u32..=81 {
            let progress = f64::from(epoch);
            let verdict = asha.report(trial, progress, curve.measured(progress, rng)).expect("it is running");
            let goes_on = verdict == Verdict::Continue;
            match epoch {
                6 | 18 => promise = Some(asha.promise(trial)),
                9 | 27 => promises.extend(promise.take().map(|promise| (promise, goes_on))),
                _ => {}
            }
            if !goes_on {
                break;
            }
        }
    }
    promises
}

/// Trials that are likely to go on at their next rung mostly do, and few of the unlikely ones.
#[test]
fn promises_are_kept() {
    let promises: Vec<(f64, bool)> = (0..5).flat_map(promises).collect();
    let share_of = |among: &dyn Fn(f64) -> bool| {
        let fates: Vec<bool> = promises.iter().filter(|one| among(one.0)).map(|one| one.1).collect();
        assert!(fates.len() > 50, "{promises:?}");
        fates.iter().filter(|goes_on| **goes_on).count() as f64 / fates.len() as f64
    };
    let (likely, unlikely) = (share_of(&|promise| promise > 0.8), share_of(&|promise| promise < 0.4));
    assert!(likely > 0.8 && unlikely < 0.2, "{likely} {unlikely}");
}

#[test]
#[ignore = "prints a table of docs/search.md"]
#[expect(clippy::print_stdout, reason = "it prints a table")]
fn table() {
    let rows = [
        (StoppingRule::Asha, EPOCHS / 16.0, 1.25),
        (StoppingRule::Asha, 1.0, 3.0),
        (StoppingRule::Asha, 4.0, 2.0),
        (StoppingRule::Asha, 5.0, 3.0),
        (StoppingRule::Hyperband, EPOCHS / 16.0, 2.0),
        (StoppingRule::Hyperband, 1.0, 3.0),
        (StoppingRule::Hyperband, 4.0, 2.0),
        (StoppingRule::Median, EPOCHS / 16.0, 2.0),
        (StoppingRule::Patience, 4.0, 2.0),
    ];
    for (rule, grace, reduction) in rows {
        let cells = [CALM, ROUGH].map(|conditions| {
            let outcomes: Vec<Outcome> =
                (0..200).map(|seed| study(rule, grace, reduction, conditions, seed)).collect();
            let count = outcomes.len() as f64;
            let found = outcomes.iter().filter(|outcome| outcome.regret <= 0.01).count();
            let cost = outcomes.iter().map(|outcome| outcome.cost).sum::<f64>() / count;
            let most = outcomes.iter().map(|outcome| outcome.cost).fold(0.0, f64::max);
            format!("{:.1} % | {:.0} % | {:.0} %", 100.0 * found as f64 / count, 100.0 * cost, 100.0 * most)
        });
        let halving = matches!(rule, StoppingRule::Asha | StoppingRule::Hyperband);
        let reduction = if halving { reduction.to_string() } else { String::new() };
        println!("| `{rule}` | {grace:.1} | {reduction} | {} |", cells.join(" | "));
    }
}

/// What a study file gets that names only the rule.
fn default_of(rule: StoppingRule, epochs: f64) -> EarlyStopping {
    let yaml = format!(
        "{{space: {{x: {{float: [0, 1]}}}}, objective: {{minimize: loss}}, trial: {{epochs: {epochs}}}, \
         search: {{early_stopping: {{rule: {rule}}}}}}}"
    );
    Study::from_yaml("study.yaml", &yaml).expect("it is well-formed").search.early_stopping
}

/// In how many pairs of studies the rule was better than its twin without, and in how many it was worse.
fn against_none(table: &Table, rule: StoppingRule, plan: Plan, budget: f64) -> (u32, u32) {
    const SEEDS: u64 = 40;
    let none = default_of(StoppingRule::Never, table.epochs);
    let own = default_of(rule, table.epochs);
    let best =
        |settings: &EarlyStopping, seed: u64| replay::study(table, settings, plan, &[budget], seed).best[0];
    let (mut better, mut worse) = (0, 0);
    for seed in 0..SEEDS {
        let (own, none) = (best(&own, seed), best(&none, seed));
        better += u32::from(own < none);
        worse += u32::from(own > none);
    }
    (better, worse)
}

/// Whether one of the two counts is larger by more than two standard deviations of a fair coin.
fn is_clear(more: u32, less: u32) -> bool {
    f64::from(more) - f64::from(less) > 2.0 * f64::from(more + less).sqrt()
}

/// Of the tables at two budgets, those on which a rule is clearly better than none; it must not be clearly worse on any.
fn clearly_better(tables: &[Table], rule: StoppingRule, plan: Plan) -> (usize, usize) {
    let (mut better, mut all) = (0, 0);
    for table in tables {
        for budget in [5.0, 15.0] {
            let (more, less) = against_none(table, rule, plan, budget);
            assert!(!is_clear(less, more), "{} at {budget}: {rule} {more}, none {less}", table.name);
            (better, all) = (better + usize::from(is_clear(more, less)), all + 1);
        }
    }
    (better, all)
}

const CALMLY: Plan = Plan { choice: Choice::Random, workers: 1, reports: usize::MAX };

#[test]
fn the_default_is_never_worse_than_none_and_mostly_better_on_measured_curves() {
    let tables = replay::tables().expect("the files are fine");
    let (better, all) = clearly_better(&tables, StoppingRule::Asha, CALMLY);
    assert!(better * 4 >= all * 3, "{better} of {all}");
    for table in &tables {
        let cost = |seed| {
            replay::study(table, &default_of(StoppingRule::Asha, table.epochs), CALMLY, &[20.0], seed).cost
        };
        let mean = (0..20).map(cost).sum::<f64>() / 20.0;
        assert!((0.35..0.75).contains(&mean), "{}: {mean}", table.name);
    }
}

#[test]
fn the_default_is_so_with_three_reports_and_with_four_trials_at_a_time() {
    let tables = replay::tables().expect("the files are fine");
    for plan in [Plan { reports: 3, ..CALMLY }, Plan { workers: 4, ..CALMLY }] {
        let (better, all) = clearly_better(&tables, StoppingRule::Asha, plan);
        // There is less to save where three reports are all there is.
        let least = if plan.reports == 3 { all / 4 } else { all / 2 };
        assert!(better >= least, "{plan:?}: {better} of {all}");
    }
}

#[test]
fn the_default_is_so_on_families_that_cross() {
    for choice in [Choice::Random, Choice::Suggested(replay::tpe, 5)] {
        let (better, all) =
            clearly_better(&replay::families(), StoppingRule::Asha, Plan { choice, ..CALMLY });
        assert!(better * 2 >= all, "{choice:?}: {better} of {all}");
    }
}

/// An expert would decide first after a few percent of the training, whatever its length.
#[test]
fn grace_follows_the_epochs() {
    for (epochs, grace) in [(3.0, 0.1875), (20.0, 1.25), (100.0, 6.25), (0.5, 0.031_25)] {
        for rule in [StoppingRule::Asha, StoppingRule::Hyperband, StoppingRule::Median, StoppingRule::Never] {
            let settings = default_of(rule, epochs);
            assert!((settings.grace - grace).abs() < 1e-12, "{epochs}: {settings:?}");
            let reduction = if rule == StoppingRule::Hyperband { 2.0 } else { 1.25 };
            assert!((settings.reduction - reduction).abs() < 1e-12, "{rule}: {settings:?}");
            stopper(&settings, epochs, Direction::Minimize).expect("the defaults are fine");
        }
    }
}
