//! The head is killed while real workers train: they save what they have learned, and nothing of it is lost.

#![expect(clippy::print_stdout, reason = "the figures are read with --nocapture")]

use std::{
    env, fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use pollux_tune::{
    ids::TrialId,
    space::Study,
    store::{Folder as StudyFolder, Reader},
    trials::engine::Fact,
};
use rustix::process::{Pid, test_kill_process};

use crate::{
    checkpoint_files::checkpoints_in,
    common::{Folder, head_command, run_study},
    net::Gate,
    processes::children,
};

const FOLDER: &str = "POLLUX_TUNE_TEST_HEAD_LOSS";
/// Its file in that folder.
const STUDY: &str = "given.yaml";
/// After so many steps the workers wait, and their head is killed.
const HELD: u64 = 30;
/// After so many they wait again.
const RESUMED: u64 = 100;
const PATIENCE: Duration = Duration::from_secs(120);

/// One trial of two workers, which would write no checkpoint before its end.
fn study(gates: &str) -> String {
    format!(
        "
space: {{lr: {{float: [0.04, 0.05]}}, gates: {{choice: ['{gates}']}}}}
objective: {{maximize: accuracy}}
trial:
  trainable: net
  epochs: 6
  initial_batch: 24
  max_batch: 24
  min_gpus: 2
  max_gpus: 2
  checkpoint_interval: 1h
search: {{trials: 1, parallel: 1}}
scheduler: {{interval: 1s}}
"
    )
}

/// Not a test: the head of the study below. Started by `cargo test` it does nothing.
#[test]
fn head() {
    let Some(folder) = env::var_os(FOLDER) else { return };
    let yaml = fs::read_to_string(Path::new(&folder).join(STUDY)).expect("the test has written it");
    run_study(Study::from_yaml(STUDY, &yaml).expect("a study"), &folder, |_| ());
}

/// Waits until something is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}: not in time");
        thread::yield_now();
    }
}

/// The steps of the checkpoints of the trial, the last one first.
fn saved(folder: &Path) -> Vec<u64> {
    let steps = |path: &std::path::PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        name.split('-').next().and_then(|steps| steps.parse().ok()).expect("its steps")
    };
    checkpoints_in(&StudyFolder::new(folder).checkpoint(TrialId(0))).iter().map(steps).collect()
}

#[test]
fn a_killed_head_costs_no_step() {
    let folder = Folder::new();
    let [held, resumed] = ["held", "resumed"].map(|name| Gate::closed(folder.path(), name));
    let gates = held.after(HELD, None) + &resumed.after(RESUMED, None);
    fs::write(folder.path().join(STUDY), study(&gates)).expect("a file");
    let start = || head_command("head_loss::head", FOLDER, folder.path()).spawn().expect("it starts");
    let mut first = start();
    until("both workers come to their gate", || held.waiting().len() == 2);
    let workers: Vec<Pid> = children(first.id());
    assert_eq!(workers.len(), 3);
    let killed = Instant::now();
    first.kill().expect("it is ours");
    first.wait().expect("it has ended");
    // The next one comes at once, and its workers wait for those that still save.
    let mut second = start();
    held.open();
    until("the workers end", || workers.iter().all(|pid| test_kill_process(*pid).is_err()));
    println!(
        "a head is killed: its workers have saved and ended after {:.1} s",
        killed.elapsed().as_secs_f64()
    );
    until("the training goes on", || resumed.waiting().len() == 2);
    println!("a head is killed: the next one trains after {:.1} s", killed.elapsed().as_secs_f64());
    let steps = saved(folder.path());
    assert!(matches!(steps[..], [steps] if steps > HELD && steps <= HELD + 3), "{steps:?}");
    resumed.open();
    assert!(second.wait().expect("it has ended").success());

    let entries = Reader::open(folder.path()).and_then(|reader| reader.entries(0)).expect("a journal");
    let mut epochs = Vec::new();
    let mut ends = 0;
    for entry in &entries {
        match &entry.fact {
            Fact::Measured { epochs: now, .. } => epochs.push(*now),
            Fact::TrialDone { .. } => ends += 1,
            Fact::TrialFailed { reason, .. } => panic!("the trial has failed: {reason}"),
            _ => {}
        }
    }
    assert_eq!(ends, 1);
    assert!(epochs.is_sorted(), "steps were taken twice: {epochs:?}");
}
