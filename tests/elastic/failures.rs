//! Whatever dies, a training goes on, and loses no more than the step in flight.

use pollux_tune::{actors::TrainingEvent, trials::group::Task};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use crate::common::{Folder, STEPS, assert_same, kill, sgd, state, steps, task, train};

/// `kill -9` of a random rank at a random step, twenty times: every training ends exactly where an undisturbed one does.
#[test]
fn a_killed_rank_loses_nothing() {
    const ROUNDS: usize = 20;
    let folder = Folder::new();
    let mut rng = ChaCha8Rng::seed_from_u64(20);
    let victims: Vec<(u64, u32)> =
        (0..ROUNDS).map(|_| (rng.random_range(1..STEPS / 2), rng.random_range(0..2_u32))).collect();
    let name = |round: usize| format!("round-{round}");
    let undisturbed = task(&folder, "undisturbed", sgd());
    let tasks = (0..ROUNDS).map(|round| task(&folder, &name(round), sgd()));
    let mut killed = 0;
    let (mut reported, mut survived) = (0, 0);
    let all = train([undisturbed].into_iter().chain(tasks).collect(), &[0, 1], |run, event| {
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
        if killed == round && reported >= at {
            kill(run.pid(victim));
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
    let task = Task { checkpoint_every_s: 1e-6, ..task(&folder, "killed", sgd()) };
    let (mut saved, mut killed_at, mut resumed) = (0, None, None);
    let all = train(vec![undisturbed, task], &[0, 1], |run, event| match event {
        _ if run.number == 0 => {}
        TrainingEvent::Checkpointed { steps } => {
            if killed_at.is_none() && *steps >= 30 {
                (0..2).for_each(|slot| kill(run.pid(slot)));
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
    let tasks = ["undisturbed", "disturbed"].map(|name| task(&folder, name, sgd()));
    let mut killed = false;
    let all = train(tasks.into(), &[0], |run, event| {
        if run.number == 1 && !killed && steps(event).is_some_and(|steps| steps >= 20) {
            run.training.rescale(&[0, 1]).expect("slots of the training");
            kill(run.pid(1));
            killed = true;
        }
    });
    assert!(all[1].contains(&TrainingEvent::Lost { slot: 1 }));
    assert_eq!(all[1].iter().rev().find_map(steps), Some(STEPS));
    assert_same(&state(&folder, "disturbed"), &state(&folder, "undisturbed"), "disturbed");
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
    let reason = "there is no trainable `nut` in this program; it knows net".to_owned();
    assert_eq!(all[5].last(), Some(&TrainingEvent::Failed { reason }));
    assert!(matches!(all[6].last(), Some(TrainingEvent::Finished { .. })), "{:?}", all[6].last());
}
