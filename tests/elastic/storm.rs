//! A study of real training in a storm: its workers are killed and stopped, its head is killed, its disk is full now and then.
//!
//! `make test` runs a short one; `POLLUX_TUNE_STORM=60` is the number of faults of a long one (`make verify-all`).

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::Child,
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use pollux_tune::{
    space::Study,
    store::Reader,
    trials::engine::{Engine, Fact, TrialKind},
};
use rand::{RngExt, SeedableRng, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    common::{Folder, head_command, run_study},
    disk::SmallDisk,
    processes::children,
};

const FOLDER: &str = "POLLUX_TUNE_TEST_STORM";
const FAULTS: &str = "POLLUX_TUNE_STORM";
const EPOCHS: f64 = 40.0;
/// For what comes sooner or later, also on a busy machine.
const SOON: Duration = Duration::from_secs(600);
/// How long a disk stays full. Any time will do.
const FULL: Duration = Duration::from_secs(3);

/// How many faults there are.
fn wanted() -> u32 {
    env::var(FAULTS).map_or(12, |text| text.parse().expect("a number of faults"))
}

/// Enough trials to have these faults in.
fn trials() -> u32 {
    8.max(wanted())
}

fn study() -> Study {
    let trials = trials();
    let yaml = format!(
        "
space: {{lr: {{log: [1e-2, 1e-1]}}, hidden: {{int: [32, 256]}}}}
objective: {{maximize: accuracy}}
trial: {{trainable: net, epochs: {EPOCHS}, initial_batch: 24, max_batch: 200, checkpoint_interval: 1s, silence: 10s}}
search: {{trials: {trials}, parallel: 2, algorithm: random}}
scheduler: {{interval: 1s}}
"
    );
    Study::from_yaml("study.yaml", &yaml).expect("a study")
}

/// Not a test: the head of the study, which says what happens. Started by `cargo test` it does nothing.
#[test]
fn head() {
    let Some(folder) = env::var_os(FOLDER) else { return };
    run_study(study(), &folder, say);
}

/// Past the harness, which would keep it until the end.
fn say(fact: &Fact) {
    let _ = writeln!(std::io::stdout(), "{}", fact.kind());
}

struct Head {
    process: Child,
    facts: Receiver<String>,
}

impl Head {
    fn start(folder: &Path) -> Self {
        let mut process = head_command("storm::head", FOLDER, folder).spawn().expect("it starts");
        let lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let (send, facts) = mpsc::channel();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| send.send(line)));
        Self { process, facts }
    }

    /// Waits for the next fact; none when the head is gone.
    fn next(&self) -> Option<String> {
        match self.facts.recv_timeout(SOON) {
            Ok(fact) => Some(fact),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("nothing has happened for {} s", SOON.as_secs()),
        }
    }

    /// Those that are processes of their own already: one that stands still between its fork and its exec stops the head itself.
    fn workers(&self) -> Vec<Pid> {
        let is_worker = |pid: &Pid| {
            let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(b"POLLUX_TUNE_WORKER_"))
        };
        children(self.process.id()).into_iter().filter(is_worker).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    KilledWorker,
    StoppedWorker,
    KilledHead,
    FullDisk,
}

/// The accuracy of each trial, after checking that nothing is lost: exactly the trials that were asked for, each done once, after all of
/// its epochs, and a journal that can be replayed.
fn results(folder: &Path) -> BTreeMap<u32, f64> {
    let mut results = BTreeMap::new();
    let mut epochs: BTreeMap<u32, f64> = BTreeMap::new();
    let mut engine = Engine::new(&study(), TrialKind::Elastic).expect("a study");
    for entry in Reader::open(folder).and_then(|reader| reader.entries(0)).expect("a journal") {
        engine.apply(&entry).expect("facts follow from each other");
        match entry.fact {
            Fact::Measured { trial, epochs: now, .. } => {
                let most = epochs.entry(trial.0).or_default();
                *most = most.max(now);
            }
            Fact::TrialDone { trial, values } => {
                let most = epochs.get(&trial.0).copied().unwrap_or_default();
                assert!(most >= EPOCHS, "trial {trial} was taken for done at epoch {most}");
                assert_eq!(results.insert(trial.0, values[0]), None, "trial {trial} was told twice");
            }
            Fact::TrialFailed { trial, reason } => panic!("trial {trial} has failed: {reason}"),
            _ => {}
        }
    }
    assert!(engine.state().done);
    assert_eq!(results.keys().copied().collect::<Vec<_>>(), (0..trials()).collect::<Vec<_>>());
    results
}

fn undisturbed() -> BTreeMap<u32, f64> {
    let folder = Folder::new();
    let mut head = Head::start(folder.path());
    while head.next().is_some() {}
    assert!(head.process.wait().expect("it has ended").success());
    results(folder.path())
}

#[test]
fn a_study_in_a_storm_loses_nothing() {
    let (wanted, folder, mut random) = (wanted() as usize, Folder::new(), ChaCha8Rng::seed_from_u64(60));
    let (disk, place) = (SmallDisk::mount(folder.path(), 48 << 20), folder.path().join("study"));
    let mut kinds = vec![Fault::KilledWorker, Fault::KilledWorker, Fault::KilledHead, Fault::StoppedWorker];
    if disk.is_some() {
        kinds.push(Fault::FullDisk);
    }
    let mut head = Head::start(&place);
    let mut faults: BTreeMap<Fault, usize> = BTreeMap::new();
    let (mut quiet, mut longest) = (10_u32, Duration::ZERO);
    let mut since: Option<Instant> = None;
    let mut was_full = false;
    loop {
        let Some(fact) = head.next() else {
            let status = head.process.wait().expect("it has ended");
            assert!(status.success(), "the head has failed: {status}");
            break;
        };
        if let Some(since) = since.take_if(|_| fact == "measured") {
            longest = longest.max(since.elapsed());
        }
        if fact == "checkpoint_failed" && std::mem::take(&mut was_full) {
            since = since.or_else(|| Some(Instant::now()));
            *faults.entry(Fault::FullDisk).or_default() += 1;
        }
        if quiet > 0 || faults.values().sum::<usize>() >= wanted {
            quiet = quiet.saturating_sub(1);
            continue;
        }
        quiet = random.random_range(1..8);
        let kind = *kinds.choose(&mut random).expect("there are some");
        let workers = head.workers();
        match (kind, workers.choose(&mut random)) {
            // It may have been the end of the study, or of the worker: that is no fault.
            (Fault::KilledWorker, Some(worker)) if kill_process(*worker, Signal::KILL).is_ok() => {}
            (Fault::StoppedWorker, Some(worker)) if kill_process(*worker, Signal::STOP).is_ok() => {}
            (Fault::KilledWorker | Fault::StoppedWorker, _) => continue,
            (Fault::KilledHead, _) => {
                head.process.kill().expect("it is ours");
                head.process.wait().expect("it has ended");
                head = Head::start(&place);
            }
            (Fault::FullDisk, _) => {
                let filler = disk.as_ref().map(SmallDisk::fill);
                thread::sleep(FULL);
                filler.map(fs::remove_file).transpose().expect("it is there");
                // It counts when somebody has met it.
                was_full = true;
                continue;
            }
        }
        since = since.or_else(|| Some(Instant::now()));
        *faults.entry(kind).or_default() += 1;
    }
    let disturbed = results(&place);
    let _ = writeln!(
        std::io::stderr(),
        "{faults:?}, at most {:.1} s until the next report of a trial",
        longest.as_secs_f64()
    );
    assert!(faults.values().sum::<usize>() >= wanted, "the study has ended after {faults:?} already");
    let undisturbed = undisturbed();
    for (trial, accuracy) in &disturbed {
        let usual = undisturbed[trial];
        assert!((accuracy - usual).abs() < 0.1, "trial {trial}: {accuracy} instead of {usual}");
    }
    let mean = |results: &BTreeMap<u32, f64>| results.values().sum::<f64>() / results.len() as f64;
    let (ours, usual) = (mean(&disturbed), mean(&undisturbed));
    let _ = writeln!(std::io::stderr(), "mean accuracy {ours:.4}, undisturbed {usual:.4}");
    assert!((ours - usual).abs() < 0.03, "{ours} instead of {usual}");
}
