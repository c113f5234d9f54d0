//! A training that is rescaled ends where an undisturbed one does.

use pollux_tune::{trials::group::Batch, worker::Happening};
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

/// The batch changes in the middle of an epoch, also into several passes: every example still comes once, and counts for less.
#[test]
fn the_batch_changes_and_no_example_is_lost() {
    let folder = Folder::new();
    let mut larger = [(10, Batch { total: 60, accumulation: 0 }), (20, Batch { total: 90, accumulation: 2 })]
        .iter()
        .peekable();
    let mut used = vec![24];
    let (_, all) =
        train(pool(2, &folder), task(&folder, "batches", sgd()), &[0, 1], |training, happening| {
            if let Happening::Reported(report) = happening {
                used.push(report.batch.expect("a batch").total);
            }
            if let (Some(steps), Some((at, batch))) = (steps(happening), larger.peek())
                && steps >= *at
            {
                training.use_batch(*batch);
                larger.next();
            }
        });
    used.dedup();
    assert_eq!(used, [24, 60, 90]);
    let mut reports = all.iter().filter_map(|happening| match happening {
        Happening::Reported(report) => Some(report),
        _ => None,
    });
    let mut before = (0, 0);
    for report in reports.clone() {
        // Workers report every step, and some steps may share a report.
        let (steps, examples) = (report.steps - before.0, report.examples - before.1);
        assert!((24 * steps..=90 * steps).contains(&examples), "{report:?} after {before:?}");
        before = (report.steps, report.examples);
    }
    let last = reports.next_back().expect("a report");
    // Larger batches learn less from an example: more examples than statistical epochs.
    assert!(last.epochs >= 6.0);
    assert!(last.examples as f64 / f64::from(EXAMPLES) > last.epochs + 0.1, "{last:?}");
    let Some(Happening::Finished { metrics }) = all.last() else { panic!("{:?}", all.last()) };
    assert!(metrics["accuracy"] > 0.7, "{metrics:?}");
}
