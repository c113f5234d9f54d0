//! Whatever dies, a training goes on, and loses no more than the step in flight.

use pollux_tune::{actors::TrainingEvent, trials::group::Task};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use crate::{
    common::{Folder, STEPS, assert_same, kill, sgd, state, steps, task, train},
    net::Gate,
};

/// `kill -9` of a random rank at a random step, twenty times: every training ends exactly where an undisturbed one does. Both
/// ranks are in the step when it happens, or one of them waits for the other in its reduction.
#[test]
fn a_killed_rank_loses_nothing() {
    const ROUNDS: usize = 20;
    let folder = Folder::new();
    let mut rng = ChaCha8Rng::seed_from_u64(20);
    let victims: Vec<(u64, u32)> =
        (0..ROUNDS).map(|_| (rng.random_range(1..STEPS / 2), rng.random_range(0..2_u32))).collect();
    let name = |round: usize| format!("round-{round}");
    let gates: Vec<Gate> = (0..ROUNDS).map(|round| Gate::closed(folder.path(), &name(round))).collect();
    let tasks = gates.iter().zip(&victims).enumerate().map(|(round, (gate, (at, _)))| {
        let who = [None, Some(0), Some(1)][rng.random_range(0..3)];
        task(&folder, &name(round), json!({"lr": 0.05, "gates": gate.after(*at, who)}))
    });
    let tasks: Vec<Task> = [task(&folder, "undisturbed", sgd())].into_iter().chain(tasks).collect();
    let mut killed = 0;
    let (mut reported, mut survived) = (0, 0);
    let all = train(tasks, &[0, 1], |run, event| {
        let Some(round) = run.number.checked_sub(1) else { return };
        match event {
            TrainingEvent::Reported(report) => reported = report.steps,
            TrainingEvent::Broken { steps, .. } => survived = survived.max(steps.unwrap_or(0)),
            // Whoever goes on does so from no earlier step than anyone has seen done.
            TrainingEvent::Formed { steps, .. } if killed > round => {
                assert!(*steps >= survived && *steps >= reported, "{steps} after {survived} and {reported}");
            }
            TrainingEvent::Finished { .. } => (reported, survived) = (0, 0),
            _ => {}
        }
        let (at, victim) = victims[round];
        if killed == round && reported == at {
            kill(run.pid(victim));
            gates[round].open();
            killed += 1;
        }
    });
    let undisturbed = state(&folder, "undisturbed");
    for (round, (events, (_, victim))) in all[1..].iter().zip(victims).enumerate() {
        assert!(events.contains(&TrainingEvent::Lost { slot: victim }), "round {round}: nobody died");
        let last = events.last();
        assert!(matches!(last, Some(TrainingEvent::Finished { .. })), "round {round}: {last:?}");
        assert_eq!(events.iter().rev().find_map(steps), Some(STEPS), "round {round}");
        assert_same(&state(&folder, &name(round)), &undisturbed, &format!("round {round}"));
    }
}

/// When all workers die at once, the training goes on from its checkpoint.
#[test]
fn a_group_that_is_wholly_killed_goes_on_from_its_checkpoint() {
    let folder = Folder::new();
    let undisturbed = task(&folder, "undisturbed", sgd());
    // It does not come to its end before it is killed, and gets there slowly enough to have a checkpoint.
    let gate = Gate::closed(folder.path(), "end");
    let params = json!({"lr": 0.05, "brake_ms": 10, "gates": gate.after(STEPS - 1, None)});
    let task = Task { checkpoint_every_s: 1e-6, ..task(&folder, "killed", params) };
    let (mut saved, mut killed_at, mut resumed) = (0, None, None);
    let all = train(vec![undisturbed, task], &[0, 1], |run, event| match event {
        _ if run.number == 0 => {}
        TrainingEvent::Checkpointed { steps } => {
            if killed_at.is_none() && *steps >= 30 {
                (0..2).for_each(|slot| kill(run.pid(slot)));
                gate.open();
                killed_at = Some(*steps);
            }
            if resumed.is_none() {
                saved = *steps;
            }
        }
        TrainingEvent::Formed { steps, .. } if killed_at.is_some() && resumed.is_none() => {
            resumed = Some(*steps);
        }
        _ => {}
    });
    let resumed = resumed.expect("it was resumed");
    assert!(resumed >= saved, "{resumed} after a checkpoint of {saved}");
    let last = all[1].last();
    assert!(matches!(last, Some(TrainingEvent::Finished { .. })), "{last:?}");
    assert_same(&state(&folder, "killed"), &state(&folder, "undisturbed"), "killed");
}

/// A newcomer that dies before it has joined does not disturb those who train.
#[test]
fn a_newcomer_that_dies_disturbs_nobody() {
    let folder = Folder::new();
    let gate = Gate::closed(folder.path(), "gate");
    let params = json!({"lr": 0.05, "gates": gate.after(20, None)});
    let tasks = vec![task(&folder, "undisturbed", sgd()), task(&folder, "disturbed", params)];
    let mut killed = false;
    let all = train(tasks, &[0], |run, event| {
        if run.number == 1 && !killed && steps(event) == Some(20) {
            run.training.rescale(&[0, 1]).expect("slots of the training");
            kill(run.pid(1));
            killed = true;
        }
        if *event == (TrainingEvent::Lost { slot: 1 }) {
            gate.open();
        }
    });
    assert!(all[1].contains(&TrainingEvent::Lost { slot: 1 }));
    assert_eq!(all[1].iter().rev().find_map(steps), Some(STEPS));
    assert_same(&state(&folder, "disturbed"), &state(&folder, "undisturbed"), "disturbed");
}

/// A trial that fails while it changes its workers fails like any other, and the workers are there for the next one.
#[test]
fn a_failure_in_the_middle_of_a_rescale_leaves_the_workers_intact() {
    let folder = Folder::new();
    let mut tasks = Vec::new();
    let cases = [
        ("no model on 1", "making the model failed"),
        ("no data on 1", "opening the training data failed: No such file"),
        ("late error", "computing the loss failed"),
        ("late panic", "a bug in the trainable"),
        ("late nan", "the loss is NaN"),
        ("late error on 1", "computing the loss failed"),
    ];
    let gates: Vec<Gate> =
        (0..cases.len()).map(|number| Gate::closed(folder.path(), &number.to_string())).collect();
    for ((mischief, _), gate) in cases.iter().zip(&gates) {
        let params = json!({"lr": 0.05, "mischief": mischief, "gates": gate.after(30, Some(0))});
        tasks.push(task(&folder, mischief, params));
        tasks.push(task(&folder, "fine", sgd()));
    }
    let mut number = usize::MAX;
    let all = train(tasks, &[0], |run, event| {
        if run.number.is_multiple_of(2) && steps(event) == Some(30) && number != run.number {
            run.training.rescale(&[0, 1]).expect("slots of the training");
            number = run.number;
        }
        match event {
            // The newcomer waits for the others.
            TrainingEvent::Forming { group: 2, .. } => gates[run.number / 2].open(),
            // It may have been before that; the next one begins with one worker.
            TrainingEvent::Failed { .. } => {
                gates[run.number / 2].open();
                run.training.rescale(&[0]).expect("slots of the training");
            }
            _ => {}
        }
    });
    for ((mischief, expected), events) in cases.iter().zip(all.chunks(2)) {
        let Some(TrainingEvent::Failed { reason }) = events[0].last() else {
            panic!("{mischief}: {:?}", events[0].last())
        };
        assert!(reason.contains(expected), "{mischief}: {reason}");
        let last = events[1].last();
        assert!(matches!(last, Some(TrainingEvent::Finished { .. })), "after {mischief}: {last:?}");
    }
}

/// What the trainable does wrong is reported as its own failure, with the reason, and the workers are there for the next trial.
#[test]
fn a_trial_that_fails_says_why_and_leaves_the_workers_intact() {
    let folder = Folder::new();
    let cases = [
        (json!({"lr": 0.1, "mischief": "error"}), "computing the loss failed: out of memory, says the test"),
        (json!({"lr": 0.1, "mischief": "nan"}), "the loss is NaN at step"),
        (json!({"lr": 0.1, "mischief": "panic"}), "a bug in the trainable, says the test"),
        (json!({}), "making the model failed: there is no parameter `lr` in this assignment"),
        (json!({"lr": -1.0}), "the learning rate is -"),
    ];
    let mut tasks: Vec<Task> =
        cases.iter().map(|(params, _)| task(&folder, "failed", params.clone())).collect();
    tasks.push(Task { trainable: "nut".to_owned(), ..task(&folder, "unknown", sgd()) });
    tasks.push(task(&folder, "fine", sgd()));
    let all = train(tasks, &[0, 1], |_, _| {});
    for (events, (_, expected)) in all.iter().zip(cases) {
        let Some(TrainingEvent::Failed { reason }) = events.last() else { panic!("{:?}", events.last()) };
        assert!(reason.contains(expected), "{reason}");
    }
    let reason = "there is no trainable `nut` in this program; it knows net, own".to_owned();
    assert_eq!(all[5].last(), Some(&TrainingEvent::Failed { reason }));
    assert!(matches!(all[6].last(), Some(TrainingEvent::Finished { .. })), "{:?}", all[6].last());
}
