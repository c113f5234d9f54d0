//! What does not fit into the memory of a device is learned, at the cost of a pass.

use std::fs;

use pollux_tune::{
    actors::{Runner, TrainingEvent},
    goodput::BatchPlan,
    ids::GpuType,
    space::Study,
    store::Reader,
    trials::{
        engine::{Fact, Outcome},
        group::{Batch, MemoryLimit},
    },
    worker::Slot,
};
use serde_json::json;
use tch::Tensor;

use crate::common::{Folder, STEPS, assert_same, sgd, state, steps, task, train, train_in_passes};

/// The largest pass that fits in these tests: a quarter of the batch.
const FITS: u32 = 6;

/// Draws random numbers and keeps statistics: both would be others if a pass counted twice.
fn params() -> serde_json::Value {
    json!({"lr": 0.05, "dropout": 0.2, "batch_norm": true})
}

fn exhausted(how: &str) -> serde_json::Value {
    let mut params = params();
    (params["fits"], params["exhausted"]) = (FITS.into(), how.into());
    params
}

fn assert_equal(ours: &[(String, Tensor)], theirs: &[(String, Tensor)]) {
    // All but the counters, of which the noise of the gradient depends on when it was measured.
    for ((name, ours), (other, theirs)) in ours.iter().zip(theirs) {
        assert_eq!(name, other);
        assert!(ours == theirs || ours.kind() != tch::Kind::Float, "{name} differs");
    }
}

fn learned(events: &[TrainingEvent]) -> Vec<(u32, MemoryLimit)> {
    let learned = |event: &TrainingEvent| match event {
        TrainingEvent::OutOfMemory { slot, memory } => Some((*slot, *memory)),
        _ => None,
    };
    events.iter().filter_map(learned).collect()
}

fn groups(events: &[TrainingEvent]) -> usize {
    events.iter().filter(|event| matches!(event, TrainingEvent::Formed { .. })).count()
}

/// Trains until it has learned, and as it would have if it had known. Gives what has happened.
fn as_if_known(how: &str, slots: &[u32]) -> Vec<TrainingEvent> {
    let folder = Folder::new();
    let learning = task(&folder, "learned", exhausted(how));
    let mut all = train(vec![learning], slots, |_, _| {});
    let told = task(&folder, "told", params());
    train_in_passes(vec![told], slots, FITS, |_, _| {});
    let events = all.remove(0);
    assert_eq!(events.iter().rev().find_map(steps), Some(STEPS), "every step was taken once: {events:?}");
    assert_equal(&state(&folder, "learned"), &state(&folder, "told"));
    events
}

#[test]
fn a_step_that_does_not_fit_is_taken_in_more_passes() {
    for how in ["error", "panic", "backward"] {
        let events = as_if_known(how, &[0]);
        // The first step is measured by its halves.
        assert_eq!(learned(&events), [(0, MemoryLimit { failed: 12, limit: FITS })], "{how}");
        assert_eq!(groups(&events), 1);
        let retuned = |event: &TrainingEvent| {
            matches!(event, TrainingEvent::Retuned(Batch { total: 24, accumulation: 3 }))
        };
        assert!(events.iter().any(retuned), "{events:?}");
    }
}

#[test]
fn members_of_a_group_need_not_fail_together() {
    let events = as_if_known("error", &[0, 1]);
    let mut told = learned(&events);
    told.sort_unstable_by_key(|(slot, _)| *slot);
    let limit = MemoryLimit { failed: 12, limit: FITS };
    assert_eq!((told, groups(&events)), (vec![(0, limit), (1, limit)], 1));
}

/// Gradients are on their way already: the group cannot stay, but it comes again.
#[test]
fn a_failure_amid_a_reduction_breaks_the_group_once() {
    let events = as_if_known("backward", &[0, 1]);
    assert!(!learned(&events).is_empty());
    assert!(learned(&events).iter().all(|(_, memory)| memory.limit == FITS), "{events:?}");
    assert!((2..=3).contains(&groups(&events)), "{events:?}");
}

#[test]
fn one_member_alone_takes_more_passes() {
    let folder = Folder::new();
    let mut one = sgd();
    (one["fits"], one["exhausted"]) = (3.into(), "panic on 1".into());
    let tasks = vec![task(&folder, "one", one), task(&folder, "none", sgd())];
    let all = train(tasks, &[0, 1], |_, _| {});
    assert_eq!(learned(&all[0]), [(1, MemoryLimit { failed: 12, limit: 3 })]);
    assert_eq!((groups(&all[0]), learned(&all[1]).len()), (1, 0));
    assert_same(&state(&folder, "one"), &state(&folder, "none"), "one with more passes");
}

#[test]
fn one_example_that_does_not_fit_is_the_trials_own_failure() {
    for (how, slots) in [("error", &[0][..]), ("panic", &[0, 1])] {
        let folder = Folder::new();
        let params = json!({"lr": 0.05, "fits": 0, "exhausted": how});
        let all = train(vec![task(&folder, "none", params)], slots, |_, _| {});
        let Some(TrainingEvent::Failed { reason }) = all[0].last() else { panic!("{:?}", all[0]) };
        assert!(reason.starts_with("not even one example at a time fits into the memory"), "{reason}");
        assert!(reason.contains("DefaultCPUAllocator"), "{reason}");
    }
}

/// Three trials in turn, of which only the first one asks for too much; then another head, which still knows.
#[test]
fn a_study_learns_once() {
    let folder = Folder::new();
    let log = folder.path().join("asked");
    let yaml = |trials: u32| {
        format!(
            "
space: {{lr: {{log: [1e-3, 1e-1]}}, fits: {FITS}, exhausted: panic, log: {}}}
objective: {{maximize: accuracy}}
trial: {{trainable: net, epochs: 2, initial_batch: 24, max_batch: 96, max_gpus: 1}}
search: {{trials: {trials}, parallel: 1, seed: 3}}
scheduler: {{interval: 1s}}
",
            log.display()
        )
    };
    let place = folder.path().join("study");
    for trials in [2, 3] {
        let study = Study::from_yaml("study.yaml", &yaml(trials)).expect("a study");
        let finished = Runner::new(study)
            .folder(&place)
            .worker_arguments(["worker", "--exact", "--nocapture"])
            .run_trainable(&GpuType::cpu(), &[Slot { threads: 1, cuda: None }])
            .expect("it runs");
        assert_eq!(finished.outcome, Outcome::Done);
    }
    assert_eq!(fs::read_to_string(&log).expect("somebody has asked"), "12\n");
    let entries = Reader::open(&place).and_then(|reader| reader.entries(0)).expect("a journal");
    let facts: Vec<Fact> = entries.into_iter().map(|entry| entry.fact).collect();
    let at = facts.iter().position(|fact| matches!(fact, Fact::BatchLimited { limit: FITS, failed: 12, .. }));
    let at = at.expect("it was learned");
    let batch = |fact: &Fact| match fact {
        Fact::TrialStarted { batch, .. } => *batch,
        Fact::Retuned { batch, .. } => Some(*batch),
        _ => None,
    };
    let after: Vec<BatchPlan> = facts[at..].iter().filter_map(batch).collect();
    assert!(after.len() >= 3 && after.iter().all(|plan| plan.per_gpu <= FITS), "{after:?}");
    let done = facts.iter().filter(|fact| matches!(fact, Fact::TrialDone { .. })).count();
    assert_eq!((done, facts.iter().filter(|fact| matches!(fact, Fact::BatchLimited { .. })).count()), (3, 1));
}
