//! Studies on emulated devices: the real program with its real processes, of which some are killed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader, Lines},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Stdio},
};

use pollux_tune::{
    ids::{Generation, SlotId},
    store::Reader,
    trials::engine::Fact,
};
use proptest::test_runner::{RngAlgorithm, TestRng};
use rand::{Rng, RngExt};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    common::{ends, entries, folder},
    processes::children,
};

const TRIALS: u32 = 6;
const EPOCHS: f64 = 4.0;

/// A head of its own, and what it says.
struct Head {
    process: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Head {
    fn start(folder: &Path, more: &[&str]) -> Self {
        let file = folder.with_extension("yaml");
        let text = format!(
            "space: {{lr: {{log: [1e-4, 1e-1]}}, width: {{int: [32, 128]}}}}\nobjective: {{maximize: accuracy}}\n\
             trial: {{trainable: cifar10, epochs: {EPOCHS}, checkpoint_interval: 20s}}\n\
             search: {{trials: {TRIALS}, parallel: 3}}\ncluster: 2x2xt4\n"
        );
        fs::write(&file, text).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_pollux-tune"))
            .arg("run")
            .arg(file)
            .args(["--emulate", "--time-scale", "0.002", "--folder"])
            .arg(folder)
            .args(more)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        Self { process, lines }
    }

    /// The next thing that happens; none at the end.
    fn next(&mut self) -> Option<String> {
        self.lines.next().map(Result::unwrap)
    }

    /// Its emulated nodes.
    fn nodes(&self) -> Vec<Pid> {
        children(self.process.id())
    }

    fn end(mut self) -> Option<i32> {
        while self.next().is_some() {}
        self.process.wait().unwrap().code()
    }
}

/// Everything was run once, to its end, by one group at a time.
fn check(folder: &Path) {
    assert_eq!(ends(folder), (0..TRIALS).map(|trial| (trial, 1)).collect());
    let mut epochs: BTreeMap<u32, f64> = BTreeMap::new();
    let mut generations: BTreeMap<u32, Generation> = BTreeMap::new();
    for fact in entries(folder) {
        match fact {
            Fact::Measured { trial, epochs: now, .. } => {
                let most = epochs.entry(trial.0).or_default();
                *most = most.max(now);
            }
            Fact::TrialStarted { trial, generation, .. } => {
                let before = generations.insert(trial.0, generation).unwrap_or(Generation::NONE);
                assert_eq!(generation, before.next(), "generations only grow");
            }
            Fact::TrialDone { trial, .. } => {
                let most = epochs.get(&trial.0).copied().unwrap_or_default();
                assert!(most >= EPOCHS, "trial {trial} was taken for done at epoch {most}");
            }
            Fact::TrialFailed { trial, reason } => panic!("trial {trial} has failed: {reason}"),
            _ => {}
        }
    }
    assert!(Reader::open(folder).unwrap().status().unwrap().done);
}

fn clean(folder: &Path) {
    fs::remove_dir_all(folder).unwrap();
    fs::remove_file(folder.with_extension("yaml")).unwrap();
}

fn random(seed: u8) -> impl Rng {
    TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32])
}

#[test]
fn slots_move_among_trials_and_the_study_is_named_emulated() {
    let root = folder("moves");
    assert_eq!(Head::start(&root, &[]).end(), Some(0));
    check(&root);
    let facts = entries(&root);
    let mut slots: BTreeMap<u32, Vec<SlotId>> = BTreeMap::new();
    let (mut grown, mut moved) = (0, 0);
    for fact in &facts {
        if let Fact::TrialStarted { trial, slots: new, .. } = fact {
            let before = slots.insert(trial.0, new.clone()).unwrap_or_default();
            grown += usize::from(!before.is_empty() && new.len() > before.len());
            moved += usize::from(!before.is_empty());
        }
    }
    assert!(grown > 0 && moved > 0, "{grown} {moved}");
    let devices = Reader::open(&root).unwrap().folder().emulated().unwrap();
    assert_eq!(devices, "2x2xt4, time scale 0.002");
    clean(&root);
}

#[test]
fn killed_nodes_are_replaced_and_nothing_is_lost() {
    for seed in 0..4 {
        let mut random = random(seed);
        let root = folder(&format!("node-{seed}"));
        let mut head = Head::start(&root, &[]);
        let (mut kills, mut next) = (0, random.random_range(3..20));
        for line in 0.. {
            if head.next().is_none() {
                break;
            }
            if line >= next && kills < 4 {
                let nodes = head.nodes();
                if let Some(victim) = nodes.get(random.random_range(0..nodes.len().max(1))) {
                    // It may have been the end of the study.
                    let _ = kill_process(*victim, Signal::KILL);
                    kills += 1;
                }
                next = line + random.random_range(1..25);
            }
        }
        assert_eq!(head.end(), Some(0), "seed {seed}");
        check(&root);
        let lost = entries(&root).iter().filter(|fact| matches!(fact, Fact::SlotLost { .. })).count();
        assert!(kills > 0 && lost > 0, "seed {seed}: {kills} kills, {lost} slots lost");
        clean(&root);
    }
}

#[test]
fn a_killed_head_goes_on_from_its_journal() {
    for seed in 0..3 {
        let mut random = random(100 + seed);
        let root = folder(&format!("head-{seed}"));
        let mut kills = 0;
        loop {
            let mut head = Head::start(&root, &[]);
            let most = if kills < 5 { random.random_range(2..40) } else { u32::MAX };
            let heard = (0..most).take_while(|_| head.next().is_some()).count();
            if heard < most as usize {
                assert_eq!(head.end(), Some(0), "seed {seed}");
                break;
            }
            head.process.kill().unwrap();
            kills += 1;
            // Its workers end by themselves; the next head must not mind those that have not yet.
            head.end();
        }
        assert!(kills > 0, "seed {seed}");
        check(&root);
        clean(&root);
    }
}

#[test]
fn an_interrupted_study_keeps_its_states() {
    let root = folder("interrupted");
    let mut head = Head::start(&root, &[]);
    while !head.next().is_some_and(|line| line.contains("at epoch 2")) {}
    let pid = Pid::from_raw(head.process.id().cast_signed()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(head.end(), Some(130));
    let facts = entries(&root);
    let paused = facts.iter().filter(|fact| matches!(fact, Fact::TrialPaused { .. })).count();
    assert!(paused > 0, "running trials write their state");
    assert_eq!(Head::start(&root, &[]).end(), Some(0));
    check(&root);
    clean(&root);
}

#[test]
fn emulated_and_real_trials_do_not_mix() {
    let root = folder("mix");
    fs::create_dir_all(&root).unwrap();
    assert_eq!(Head::start(&root, &["--trials", "1"]).end(), Some(0));
    let before: PathBuf = root.join("emulated");
    fs::remove_file(before).unwrap();
    assert_eq!(Head::start(&root, &[]).end(), Some(2));
    clean(&root);
}

/// Workers that are killed before they have said a word are no reason to give up.
#[test]
fn nodes_that_are_killed_at_once_are_started_again() {
    let root = folder("at-once");
    let mut head = Head::start(&root, &[]);
    let mut victims = BTreeSet::new();
    while victims.len() < 8 && head.process.try_wait().unwrap().is_none() {
        for node in head.nodes() {
            if victims.insert(node.as_raw_nonzero()) {
                let _ = kill_process(node, Signal::KILL);
            }
        }
        std::thread::yield_now();
    }
    assert_eq!(head.end(), Some(0));
    check(&root);
    clean(&root);
}

/// What cannot be run leaves no trace.
#[test]
fn impossible_wishes_are_told_before_anything_is_written() {
    let root = folder("impossible");
    let file = root.with_extension("yaml");
    let text =
        "space: {lr: {log: [1e-4, 1e-1]}}\nobjective: {maximize: accuracy}\ntrial: {trainable: cifar10}\n";
    let run = |text: &str, place: &Path, cluster: &str| {
        fs::write(&file, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pollux-tune"));
        let output = command.arg("run").arg(&file).args(["--emulate", cluster, "--folder"]).arg(place);
        let output = output.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run(text, &root, "1x4xh100");
    assert_eq!(
        (code, said.as_str()),
        (
            Some(2),
            "error: `cifar10` was not measured on GPUs of type `h100`; expected one of a100, rtx2080ti, t4\n"
        )
    );
    let (code, said) = run(&text.replace("cifar10", "mnist"), &root, "1x4xt4");
    assert!(
        code == Some(2) && said.contains("no measurements of `mnist`; expected one of bert, cifar10"),
        "{said}"
    );
    let (code, said) = run(text, &root, "");
    assert!(code == Some(2) && said.contains("names no `cluster` to emulate"), "{said}");
    assert!(!root.exists());
    // The folder is a file.
    let (code, said) = run(text, &file, "1x4xt4");
    assert!(code == Some(2) && said.contains("give a folder that can be written"), "{said}");
    fs::remove_file(&file).unwrap();
}
