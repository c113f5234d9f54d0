//! Whole studies of real trainings, whose workers and heads are killed.

use std::{
    collections::BTreeMap,
    env,
    io::{self, BufRead, BufReader, Lines, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Stdio},
};

use pollux_tune::{space::Study, store::Reader, trials::engine::Fact};
use proptest::test_runner::{RngAlgorithm, TestRng};
use rand::{Rng, RngExt};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    common::{Folder, head_command, run_study},
    processes::children,
};

const FOLDER: &str = "POLLUX_TUNE_TEST_STUDY";
/// How facts begin in the output of a head.
const HEARD: &str = "fact: ";
const TRIALS: u32 = 6;
const EPOCHS: f64 = 30.0;

fn study() -> Study {
    let yaml = format!(
        "
space: {{lr: {{log: [1e-3, 1e-1]}}, hidden: {{int: [16, 256]}}}}
objective: {{maximize: accuracy}}
trial: {{trainable: net, epochs: {EPOCHS}, initial_batch: 24, max_batch: 200, checkpoint_interval: 1s}}
search: {{trials: {TRIALS}, parallel: 2}}
scheduler: {{interval: 1s}}
"
    );
    Study::from_yaml("study.yaml", &yaml).expect("a study")
}

/// Not a test: the head of the studies below, which says what happens. Started by `cargo test` it does nothing.
#[test]
fn head() {
    let Some(folder) = env::var_os(FOLDER) else { return };
    run_study(study(), &folder, say);
}

/// Past the harness, which would keep it until the end. Everything waits until the test has heard it and lets it go on.
fn say(fact: &Fact) {
    let _ =
        writeln!(io::stdout(), "{HEARD}{fact:?}").and_then(|()| io::stdin().read_line(&mut String::new()));
}

/// A head that does nothing about a fact before the test has asked for the next one.
struct Head {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    go: ChildStdin,
    is_waiting: bool,
}

impl Head {
    fn start(folder: &Path) -> Self {
        let mut process =
            head_command("study::head", FOLDER, folder).stdin(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let go = process.stdin.take().expect("a pipe");
        Self { process, lines, go, is_waiting: false }
    }

    fn workers(&self) -> Vec<Pid> {
        children(self.process.id())
    }

    /// Waits for the next fact; none when the head is gone.
    fn next(&mut self) -> Option<String> {
        if std::mem::take(&mut self.is_waiting) {
            // It may have been killed.
            let _ = writeln!(self.go);
        }
        loop {
            let line = self.lines.next()?.ok()?;
            // The harness talks, too.
            if let Some((_, fact)) = line.split_once(HEARD) {
                self.is_waiting = true;
                return Some(fact.to_owned());
            }
        }
    }
}

/// Exactly the trials that were asked for, each done once, after all of its epochs.
fn check(folder: &Path) {
    let mut ends: BTreeMap<u32, u32> = BTreeMap::new();
    let mut epochs: BTreeMap<u32, f64> = BTreeMap::new();
    for entry in Reader::open(folder).and_then(|reader| reader.entries(0)).expect("a journal") {
        match entry.fact {
            Fact::Measured { trial, epochs: now, .. } => {
                let most = epochs.entry(trial.0).or_default();
                *most = most.max(now);
            }
            Fact::TrialDone { trial, .. } => {
                let most = epochs.get(&trial.0).copied().unwrap_or_default();
                assert!(most >= EPOCHS, "trial {trial} was taken for done at epoch {most}");
                *ends.entry(trial.0).or_default() += 1;
            }
            Fact::TrialFailed { trial, reason } => panic!("trial {trial} has failed: {reason}"),
            _ => {}
        }
    }
    assert_eq!(ends, (0..TRIALS).map(|trial| (trial, 1)).collect());
}

fn random(seed: u8) -> impl Rng {
    TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32])
}

#[test]
fn killed_workers_cost_no_trial() {
    let (folder, mut random) = (Folder::new(), random(1));
    let mut head = Head::start(folder.path());
    let (mut kills, mut quiet) = (0, 12);
    while head.next().is_some() {
        quiet -= 1;
        let workers = head.workers();
        if quiet <= 0 && kills < 6 && !workers.is_empty() {
            // It may have been the end of the study.
            let _ = kill_process(workers[random.random_range(0..workers.len())], Signal::KILL);
            (kills, quiet) = (kills + 1, random.random_range(5..25));
        }
    }
    assert!(head.process.wait().expect("it has ended").success());
    assert!(kills >= 3, "only {kills} workers were killed");
    check(folder.path());
}

#[test]
fn a_killed_head_goes_on_where_it_was() {
    let (folder, mut random) = (Folder::new(), random(2));
    let mut heads = 0;
    loop {
        let mut head = Head::start(folder.path());
        heads += 1;
        let facts = if heads <= 4 { random.random_range(10..50) } else { usize::MAX };
        let mut heard = 0;
        while heard < facts && head.next().is_some() {
            heard += 1;
        }
        if heard == facts {
            head.process.kill().expect("it is ours");
        }
        if head.process.wait().expect("it has ended").success() {
            break;
        }
        assert_eq!(heard, facts, "a head has failed");
    }
    assert!(heads >= 3, "only {heads} heads");
    check(folder.path());
}
