//! A training that is rescaled ends where an undisturbed one does.

use pollux_tune::{
    actors::TrainingEvent,
    trials::group::{Batch, Task},
};
use serde_json::json;

use crate::{
    common::{Folder, Rescales, STEPS, assert_same, sgd, state, steps, task, train},
    net::{EXAMPLES, Gate},
};

/// Trains with a group that changes after so many steps, and says which groups there were.
pub(crate) fn rescaled(trainable: &str, params: &serde_json::Value, plan: &[(u64, &[u32])]) -> Vec<Vec<u32>> {
    let folder = Folder::new();
    let mut rescales = Rescales::new(&folder, plan);
    let of = |task: Task| Task { trainable: trainable.to_owned(), ..task };
    let tasks = [
        of(task(&folder, "undisturbed", params.clone())),
        of(task(&folder, "rescaled", rescales.params(params.clone()))),
    ];
    let mut groups = Vec::new();
    let all = train(tasks.into(), &[0], |run, event| {
        if run.number == 0 {
            return;
        }
        if let TrainingEvent::Formed { slots, .. } = event {
            groups.push(slots.clone());
        }
        rescales.follow(run, event);
    });
    rescales.check();
    let last = all[1].iter().rev().find_map(steps).expect("there are reports");
    assert_eq!(last, STEPS, "every step was taken once");
    let undisturbed = state(&folder, "undisturbed");
    assert_same(&state(&folder, "rescaled"), &undisturbed, "rescaled");
    groups
}

#[test]
fn growing_and_shrinking_change_nothing() {
    let groups = rescaled("net", &sgd(), &[(20, &[0, 1]), (50, &[0]), (80, &[0, 1])]);
    assert_eq!(groups, [vec![0], vec![0, 1], vec![0], vec![0, 1]]);
}

#[test]
fn adamw_keeps_its_moments() {
    let groups =
        rescaled("net", &json!({"lr": 0.003, "adam": true}), &[(20, &[0, 1]), (50, &[0]), (80, &[0, 1])]);
    assert_eq!(groups.len(), 4);
}

#[test]
fn a_move_to_other_slots_hands_the_state_over() {
    let groups = rescaled("net", &sgd(), &[(20, &[1]), (50, &[0]), (80, &[1, 0])]);
    assert_eq!(groups, [vec![0], vec![1], vec![0], vec![0, 1]]);
}

/// Batches that workers cannot share evenly are weighted as they are.
#[test]
fn an_odd_batch_is_split_fairly() {
    let folder = Folder::new();
    for (name, slots) in [("one", &[0][..]), ("two", &[0, 1])] {
        let odd = Task { initial_batch: 25, ..task(&folder, name, sgd()) };
        let all = train(vec![odd], slots, |_, _| {});
        let used = |event: &TrainingEvent| match event {
            TrainingEvent::Reported(report) => report.batch.map(|batch| batch.total),
            _ => None,
        };
        assert!(all[0].iter().filter_map(used).all(|total| total == 25), "{name}");
    }
    assert_same(&state(&folder, "two"), &state(&folder, "one"), "two workers");
}

/// Batch normalization sees other batches on two workers than on one; still, the result is as good.
#[test]
fn batch_normalization_learns_on_any_number_of_workers() {
    let folder = Folder::new();
    let params = json!({"lr": 0.05, "batch_norm": true});
    for slots in [&[0][..], &[0, 1]] {
        let task = task(&folder, &format!("{}", slots.len()), params.clone());
        let all = train(vec![task], slots, |_, _| {});
        let Some(TrainingEvent::Finished { metrics }) = all[0].last() else { panic!("{:?}", all[0].last()) };
        assert!(metrics["accuracy"] > 0.7, "{metrics:?}");
        // Each example of the test data counts once.
        assert!((metrics["count"] - 1.0).abs() < 1e-9, "{metrics:?}");
    }
}

/// The batch changes in the middle of an epoch, also into several passes: every example still comes once, and counts for less.
#[test]
fn the_batch_changes_and_no_example_is_lost() {
    let folder = Folder::new();
    let mut larger = [Batch { total: 60, accumulation: 0 }, Batch { total: 90, accumulation: 2 }].iter();
    // It goes slowly, and waits until all were told of the next batch. Steps count as those of the first batch here.
    let gates = [10, 60].map(|at| (Gate::closed(folder.path(), &at.to_string()), at));
    let stops: String = gates.iter().map(|(gate, at)| gate.after(*at, None)).collect();
    let slow = json!({"lr": 0.05, "brake_ms": 10, "gates": stops});
    let (mut used, mut opened) = (vec![24], gates.iter());
    let all = train(vec![task(&folder, "batches", slow)], &[0, 1], |run, event| match event {
        TrainingEvent::Reported(report) => {
            let is_new = used.last() != Some(&report.batch.expect("a batch").total);
            used.push(report.batch.expect("a batch").total);
            if report.steps == 10 || is_new {
                larger.next().into_iter().for_each(|batch| run.training.use_batch(*batch));
            }
        }
        TrainingEvent::Retuned(_) => opened.next().into_iter().for_each(|(gate, _)| gate.open()),
        _ => {}
    });
    let all = &all[0];
    used.dedup();
    assert_eq!(used, [24, 60, 90]);
    let mut reports = all.iter().filter_map(|event| match event {
        TrainingEvent::Reported(report) => Some(report),
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
    let Some(TrainingEvent::Finished { metrics }) = all.last() else { panic!("{:?}", all.last()) };
    assert!(metrics["accuracy"] > 0.7, "{metrics:?}");
}
