//! A training that is rescaled ends where an undisturbed one does.

use pollux_tune::worker::{Batching, Happening, Training};
use serde_json::json;

use crate::common::{EXAMPLES, Folder, STEPS, assert_same, pool, sgd, state, steps, task, train};

/// Trains with a group that changes whenever so many steps were reported, and says which groups there were.
fn rescaled(params: serde_json::Value, plan: &[(u64, &[u32])]) -> Vec<Vec<u32>> {
    let folder = Folder::new();
    let pool = pool(2, &folder);
    let (pool, _) = train(pool, task(&folder, "undisturbed", params.clone()), &[0], |_, _| {});
    let mut plan = plan.iter().peekable();
    let mut groups = Vec::new();
    let (_, all) = train(pool, task(&folder, "rescaled", params), &[0], |training, happening| {
        if let Happening::Formed { slots, .. } = happening {
            groups.push(slots.clone());
        }
        if let (Some(steps), Some((at, slots))) = (steps(happening), plan.peek())
            && steps >= *at
            && training.is_settled()
        {
            training.reshape(slots).expect("slots of the pool");
            plan.next();
        }
    });
    assert!(plan.peek().is_none(), "the training has ended before its last change");
    let last = all.iter().rev().find_map(steps).expect("there are reports");
    assert_eq!(last, STEPS, "every step was taken once");
    let undisturbed = state(&folder, "undisturbed");
    assert_same(&state(&folder, "rescaled"), &undisturbed, "rescaled");
    groups
}

#[test]
fn growing_and_shrinking_change_nothing() {
    let groups = rescaled(sgd(), &[(20, &[0, 1]), (50, &[0]), (80, &[0, 1])]);
    assert_eq!(groups, [vec![0], vec![0, 1], vec![0], vec![0, 1]]);
}

#[test]
fn adamw_keeps_its_moments() {
    let groups = rescaled(json!({"lr": 0.003, "adam": true}), &[(20, &[0, 1]), (50, &[0]), (80, &[0, 1])]);
    assert_eq!(groups.len(), 4);
}

#[test]
fn a_move_to_other_slots_hands_the_state_over() {
    let groups = rescaled(sgd(), &[(20, &[1]), (50, &[0]), (80, &[1, 0])]);
    assert_eq!(groups, [vec![0], vec![1], vec![0], vec![0, 1]]);
}

/// Batches that workers cannot share evenly are weighted as they are.
#[test]
fn an_odd_batch_is_split_fairly() {
    let folder = Folder::new();
    let mut odd = task(&folder, "one", sgd());
    odd.initial_batch = 25;
    let pool = pool(2, &folder);
    let (pool, _) = train(pool, odd.clone(), &[0], |_, _| {});
    odd.checkpoint = folder.path().join("two");
    train(pool, odd, &[0, 1], |_, _| {});
    assert_same(&state(&folder, "two"), &state(&folder, "one"), "two workers");
}

/// Batch normalization sees other batches on two workers than on one; still, the result is as good.
#[test]
fn batch_normalization_learns_on_any_number_of_workers() {
    let folder = Folder::new();
    let params = json!({"lr": 0.05, "batch_norm": true});
    let mut pool = pool(2, &folder);
    for slots in [&[0][..], &[0, 1]] {
        let (back, all) =
            train(pool, task(&folder, &format!("{}", slots.len()), params.clone()), slots, |_, _| {});
        pool = back;
        let Some(Happening::Finished { metrics }) = all.last() else { panic!("{:?}", all.last()) };
        assert!(metrics["accuracy"] > 0.7, "{metrics:?}");
        // Each example of the test data counts once.
        assert!((metrics["count"] - 1.0).abs() < 1e-9, "{metrics:?}");
    }
}

/// The batch changes in the middle of an epoch, by what was measured: every example still comes once.
#[test]
fn the_batch_adapts_and_no_example_is_lost() {
    let folder = Folder::new();
    let pool = pool(2, &folder);
    let mut task = task(&folder, "adaptive", sgd());
    task.epochs = 20.0;
    let batching = Batching::adaptive(24, 300, 100).expect("fine limits");
    let mut training = Training::start(pool, task, batching, &[0, 1]).expect("it starts");
    let (mut batches, mut last) = (Vec::new(), None);
    let metrics = loop {
        let next = training.next(std::time::Duration::from_secs(120)).expect("a head").expect("news");
        match next {
            Happening::Reported(report) => last = Some(report),
            Happening::Retuned(batch) => batches.push(batch),
            Happening::Finished { metrics } => break metrics,
            Happening::Failed { reason } => panic!("{reason}"),
            _ => {}
        }
    };
    let last = last.expect("a report");
    assert!(!batches.is_empty(), "the batch was never changed");
    assert!(last.batch.expect("a batch").total > 24, "{last:?}");
    // Larger batches learn less from an example: more examples than statistical epochs.
    assert!(last.epochs >= 20.0);
    assert!(last.examples as f64 / f64::from(EXAMPLES) > last.epochs, "{last:?}");
    assert!(metrics["accuracy"] > 0.7, "{metrics:?}");
}
