//! Trials that fail inside of studies of real training: the study goes on to its end, and each has the right reason.

use std::{env, fs};

use pollux_tune::{
    actors::Runner,
    ids::{GpuType, TrialId},
    space::Study,
    trials::{End, engine::Fact},
    worker::{Slot, gpu_id},
};

use crate::{
    accounts::{in_time, settle},
    common::Folder,
};

/// What a trial does wrong, and a part of the reason that it ends with; empty if it is done in spite of it.
type Case = (&'static str, &'static str);

const FINE: Case = ("none", "");

/// Runs a trial of each case, so many at a time, and checks what came of them.
fn run(cases: &'static [Case], workers: u32, parallel: usize, min_gpus: u32) {
    let folder = Folder::new();
    let list = cases.iter().map(|(mischief, _)| *mischief).collect::<Vec<_>>().join(", ");
    let yaml = format!(
        "
space: {{mischief: [{list}], lr: 0.05, marker: {{fixed: {}/marker}}}}
objective: {{maximize: accuracy}}
trial: {{trainable: net, epochs: 3, initial_batch: 24, max_batch: 48, min_gpus: {min_gpus}}}
search: {{trials: {}, parallel: {parallel}, algorithm: grid}}
scheduler: {{interval: 1s}}
",
        folder.path().display(),
        cases.len()
    );
    let study =
        Study::from_yaml("study.yaml", &yaml).unwrap_or_else(|problems| panic!("{}", problems.report()));
    let place = folder.path().join("study");
    let runner = Runner::new(study).folder(&place).worker_arguments(["worker", "--exact", "--nocapture"]);
    run_on(runner, workers);
    for account in settle(&place, cases.len() as u32).values() {
        let mischief = account.params.text("mischief").expect("a parameter");
        let (_, expected) = cases.iter().find(|(of, _)| *of == mischief).expect("a case");
        match &account.end {
            End::Done(_) => assert!(expected.is_empty(), "{mischief} is done"),
            End::Failed(reason) => {
                assert!(!expected.is_empty() && reason.contains(expected), "{mischief}: {reason}");
            }
            end => panic!("{mischief}: {end:?}"),
        }
    }
}

/// Runs a study on so many workers, to its end.
fn run_on(runner: Runner, workers: u32) {
    in_time(move || {
        let gpus = env::var_os("POLLUX_TUNE_TEST_GPUS").is_some();
        let slots: Vec<Slot> =
            (0..workers).map(|slot| Slot { threads: 1, cuda: gpus.then(|| gpu_id(slot)) }).collect();
        runner.run_trainable(&GpuType::new("cpu").expect("a name"), &slots).map(drop).expect("it runs");
    });
}

const AT_ONCE: [Case; 9] = [
    FINE,
    ("error", "computing the loss failed: out of memory, says the test"),
    ("panic", "a bug in the trainable, says the test"),
    ("nan", "the loss is NaN at step 0"),
    ("no model", "making the model failed: there is no such model, says the test"),
    ("no data", "opening the training data failed: No such file"),
    ("bad data", "the image is truncated, says the test"),
    ("memory", "memory"),
    ("killed", ""),
];

const LATE: [Case; 9] = [
    FINE,
    ("late error", "computing the loss failed: out of memory, says the test"),
    ("late panic", "a bug in the trainable, says the test"),
    ("late nan", "the loss is NaN at step"),
    ("late bad data", "the image is truncated, says the test"),
    ("evaluation", "the test data have no labels, says the test"),
    ("evaluation panic", "a bug in the evaluation, says the test"),
    ("late memory", "memory"),
    ("late killed", ""),
];

#[test]
fn trials_that_fail_at_once_one_after_the_other() {
    run(&AT_ONCE, 1, 1, 1);
}

#[test]
fn trials_that_fail_at_once_side_by_side() {
    run(&AT_ONCE, 3, 3, 1);
}

#[test]
fn trials_that_fail_late_one_after_the_other() {
    run(&LATE, 1, 1, 1);
}

#[test]
fn trials_that_fail_late_side_by_side() {
    run(&LATE, 3, 3, 1);
}

/// The other rank waits in a reduction that will never be complete.
#[test]
fn trials_that_fail_on_one_of_two_ranks() {
    run(
        &[
            FINE,
            ("error on 1", "computing the loss failed: out of memory, says the test"),
            ("late error on 1", "computing the loss failed: out of memory, says the test"),
            ("late panic on 1", "a bug in the trainable, says the test"),
            ("late nan on 1", "the loss is NaN at step"),
            ("no data on 1", "opening the training data failed: No such file"),
            ("late bad data on 1", "the image is truncated, says the test"),
            ("evaluation on 1", "the test data have no labels, says the test"),
            ("late killed on 1", ""),
        ],
        2,
        1,
        2,
    );
}

/// What lies where a trial finds its checkpoint is no reason to stand still, whatever becomes of it.
#[test]
fn checkpoints_that_cannot_be_read() {
    let folder = Folder::new();
    let yaml = "
space: {lr: [0.01, 0.02, 0.03]}
objective: {maximize: accuracy}
trial: {trainable: net, epochs: 2, initial_batch: 24}
search: {trials: 3, parallel: 1, algorithm: grid}
";
    let place = folder.path().join("study");
    let checkpoints = place.join("checkpoints");
    let runner = Runner::new(Study::from_yaml("study.yaml", yaml).expect("a study"))
        .folder(&place)
        .worker_arguments(["worker", "--exact", "--nocapture"])
        .watch(move |_, entries| {
            for entry in entries {
                // Before anything is done about the fact.
                if let Fact::TrialCreated { trial: trial @ TrialId(0 | 1), .. } = entry.fact {
                    let _ = fs::create_dir_all(&checkpoints);
                    fs::write(checkpoints.join(format!("trial-{trial}")), b"not a checkpoint")
                        .expect("a file");
                }
            }
        });
    run_on(runner, 1);
    let done = settle(&place, 3).values().filter(|account| matches!(account.end, End::Done(_))).count();
    assert!(done >= 1, "the last one is not concerned");
}

#[test]
fn all_trials_fail() {
    run(&[AT_ONCE[1], AT_ONCE[2], LATE[3], LATE[5], AT_ONCE[5]], 2, 2, 1);
}
