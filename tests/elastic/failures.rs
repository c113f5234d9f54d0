//! Whatever dies, a training goes on, and loses no more than the step in flight.

use pollux_tune::worker::Happening;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use crate::common::{Folder, STEPS, assert_same, kill, pool, sgd, state, steps, task, train};

/// `kill -9` of a random rank at a random step, twenty times: every training ends exactly where an undisturbed one does.
#[test]
fn a_killed_rank_loses_nothing() {
    let folder = Folder::new();
    let (mut pool, _) = train(pool(2, &folder), task(&folder, "undisturbed", sgd()), &[0, 1], |_, _| {});
    let undisturbed = state(&folder, "undisturbed");
    let mut rng = ChaCha8Rng::seed_from_u64(20);
    for round in 0..20 {
        let (at, victim) = (rng.random_range(1..STEPS / 2), rng.random_range(0..2_u32));
        let mut killed = false;
        let (mut reported, mut survived) = (0, 0);
        let name = format!("round-{round}");
        let (back, all) = train(pool, task(&folder, &name, sgd()), &[0, 1], |training, happening| {
            match happening {
                Happening::Reported(report) => reported = report.steps,
                Happening::Broken { steps, .. } => survived = survived.max(steps.unwrap_or(0)),
                // Whoever goes on does so from no earlier step than anyone has seen done.
                Happening::Formed { steps, .. } if killed => {
                    assert!(
                        *steps >= survived && *steps >= reported,
                        "{steps} after {survived} and {reported}"
                    );
                }
                _ => {}
            }
            if !killed && reported >= at {
                kill(training.pool().pid(victim).expect("a process"));
                killed = true;
            }
        });
        pool = back;
        assert!(all.contains(&Happening::Gone { slot: victim }), "round {round}: nobody died");
        assert!(matches!(all.last(), Some(Happening::Finished { .. })), "round {round}: {:?}", all.last());
        assert_eq!(all.iter().rev().find_map(steps), Some(STEPS), "round {round}");
        assert_same(&state(&folder, &name), &undisturbed, &format!("round {round}"));
    }
}

/// When all workers die at once, the training goes on from its checkpoint.
#[test]
fn a_group_that_is_wholly_killed_goes_on_from_its_checkpoint() {
    let folder = Folder::new();
    let (pool, _) = train(pool(2, &folder), task(&folder, "undisturbed", sgd()), &[0, 1], |_, _| {});
    let mut task = task(&folder, "killed", sgd());
    task.checkpoint_every_s = 1e-6;
    let (mut saved, mut killed_at, mut resumed) = (0, None, None);
    let (_, all) = train(pool, task, &[0, 1], |training, happening| match happening {
        Happening::Checkpointed { steps } => {
            if killed_at.is_none() && *steps >= 30 {
                (0..2).for_each(|slot| kill(training.pool().pid(slot).expect("a process")));
                killed_at = Some(*steps);
            }
            if resumed.is_none() {
                saved = *steps;
            }
        }
        Happening::Formed { steps, .. } if killed_at.is_some() && resumed.is_none() => resumed = Some(*steps),
        _ => {}
    });
    let resumed = resumed.expect("it was resumed");
    assert!(resumed >= saved, "{resumed} after a checkpoint of {saved}");
    assert!(matches!(all.last(), Some(Happening::Finished { .. })), "{:?}", all.last());
    assert_same(&state(&folder, "killed"), &state(&folder, "undisturbed"), "killed");
}

/// A newcomer that dies before it has joined does not disturb those who train.
#[test]
fn a_newcomer_that_dies_disturbs_nobody() {
    let folder = Folder::new();
    let (pool, _) = train(pool(2, &folder), task(&folder, "undisturbed", sgd()), &[0], |_, _| {});
    let mut killed = false;
    let (_, all) = train(pool, task(&folder, "disturbed", sgd()), &[0], |training, happening| {
        if !killed && steps(happening).is_some_and(|steps| steps >= 20) {
            training.reshape(&[0, 1]).expect("slots of the pool");
            kill(training.pool().pid(1).expect("a process"));
            killed = true;
        }
    });
    assert!(all.contains(&Happening::Gone { slot: 1 }));
    assert_eq!(all.iter().rev().find_map(steps), Some(STEPS));
    assert_same(&state(&folder, "disturbed"), &state(&folder, "undisturbed"), "disturbed");
}

/// What the trainable does wrong is told as its own failure, with the reason, and the workers are there for the next trial.
#[test]
fn a_trial_that_fails_says_why_and_leaves_the_pool_intact() {
    let folder = Folder::new();
    let mut pool = pool(2, &folder);
    let cases = [
        (json!({"lr": 0.1, "mischief": "error"}), "computing the loss failed: out of memory, says the test"),
        (json!({"lr": 0.1, "mischief": "nan"}), "the loss is NaN at step"),
        (json!({"lr": 0.1, "mischief": "panic"}), "a bug in the trainable, says the test"),
        (json!({}), "making the model failed: there is no parameter `lr` in this assignment"),
        (json!({"lr": -1.0}), "the learning rate is -"),
    ];
    for (params, expected) in cases {
        let (back, all) = train(pool, task(&folder, "failed", params), &[0, 1], |_, _| {});
        pool = back;
        let Some(Happening::Failed { reason }) = all.last() else { panic!("{:?}", all.last()) };
        assert!(reason.contains(expected), "{reason}");
    }
    let mut unknown = task(&folder, "unknown", sgd());
    unknown.trainable = "nut".to_owned();
    let (pool, all) = train(pool, unknown, &[0], |_, _| {});
    let reason = "there is no trainable `nut` in this program; it knows net".to_owned();
    assert_eq!(all.last(), Some(&Happening::Failed { reason }));
    let (_, all) = train(pool, task(&folder, "fine", sgd()), &[0, 1], |_, _| {});
    assert!(matches!(all.last(), Some(Happening::Finished { .. })), "{:?}", all.last());
}

/// A checkpoint that does not belong to the trial is not taken for its own.
#[test]
fn a_checkpoint_of_another_model_is_refused() {
    let folder = Folder::new();
    let (pool, _) = train(pool(1, &folder), task(&folder, "first", sgd()), &[0], |_, _| {});
    let other = task(&folder, "first", json!({"lr": 0.1, "hidden": 16}));
    let (pool, all) = train(pool, other, &[0], |_, _| {});
    let Some(Happening::Failed { reason }) = all.last() else { panic!("{:?}", all.last()) };
    assert!(reason.ends_with("is of another model (`net`); remove it or choose another folder"), "{reason}");
    std::fs::write(folder.path().join("broken"), b"not a checkpoint").expect("a file");
    let (_, all) = train(pool, task(&folder, "broken", sgd()), &[0], |_, _| {});
    let Some(Happening::Failed { reason }) = all.last() else { panic!("{:?}", all.last()) };
    assert!(reason.contains("broken cannot be read"), "{reason}");
}
