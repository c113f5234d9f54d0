//! The picture of a study: of a small one, of a large one, of a very large one and of one in which much goes wrong.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use pollux_tune::{
    ids::{Generation, GpuType, NodeId, SlotId, TrialId},
    space::Study,
    store::{Journal, Store},
    trials::engine::{Fact, JournalEntry, Metrics, TrialKind},
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::world::{Faults, NONE, World};

/// An empty folder for one test.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("timelines").join(name);
    if path.exists() {
        fs::remove_dir_all(&path).expect("what an earlier run left can be removed");
    }
    path
}

fn yaml(trials: u32) -> String {
    format!(
        "space: {{lr: {{log: [1e-4, 1]}}}}\nobjective: {{maximize: accuracy}}\n\
         trial: {{trainable: toy, epochs: 10}}\nsearch: {{trials: {trials}}}\n"
    )
}

/// A trial of a made-up study.
struct Trial {
    slots: Vec<SlotId>,
    generation: u32,
    epochs: f64,
    skill: f64,
    weight: f64,
}

/// A made-up study whose trials share all slots, in other parts whenever one begins or ends.
struct Story {
    entries: Vec<JournalEntry>,
    running: BTreeMap<TrialId, Trial>,
    slots: Vec<SlotId>,
    now_s: f64,
    rng: ChaCha8Rng,
}

impl Story {
    fn new(nodes: &[(&str, u32)], trials: u32) -> Self {
        let (entries, slots, rng) = (Vec::new(), Vec::new(), ChaCha8Rng::seed_from_u64(4));
        let mut story = Self { entries, running: BTreeMap::new(), slots, now_s: 1000.0, rng };
        story.fact(Fact::StudyCreated { yaml: yaml(trials) });
        story.fact(Fact::HeadStarted {});
        for (node, (gpu_type, count)) in (0..).map(NodeId).zip(nodes) {
            let gpu_type = GpuType::new(gpu_type).expect("it is a name");
            story.fact(Fact::NodeJoined { node, name: String::new(), gpu_type, island: 0, slots: *count });
            story.slots.extend((0..*count).map(|index| SlotId { node, index }));
        }
        story
    }

    fn fact(&mut self, fact: Fact) {
        self.entries.push(JournalEntry { at_s: self.now_s, fact });
    }

    fn begin(&mut self, trial: TrialId) {
        let skill = self.rng.random_range(0.3..0.96);
        let params = [("lr", skill.into())].into_iter().collect();
        self.fact(Fact::TrialCreated { trial, params, point: vec![Some(0.5)] });
        let weight = self.rng.random_range(0.5..2.0);
        self.running.insert(trial, Trial { slots: Vec::new(), generation: 0, epochs: 0.0, skill, weight });
    }

    /// Shares the slots out anew.
    fn share(&mut self, pause_s: f64) {
        let all: f64 = self.running.values().map(|trial| trial.weight).sum();
        let (mut from, mut sum, mut changed) = (0, 0.0, Vec::new());
        for (id, trial) in &mut self.running {
            sum += trial.weight;
            let to = ((sum / all * self.slots.len() as f64).round() as usize).max(from + 1);
            let slots = self.slots[from.min(self.slots.len())..to.min(self.slots.len())].to_vec();
            from = to;
            if slots != trial.slots && !slots.is_empty() {
                let holders = std::mem::replace(&mut trial.slots, slots.clone());
                trial.generation += 1;
                let (trial, generation) = (*id, trial.generation);
                changed.push(Fact::TrialStarted {
                    trial,
                    generation: Generation(generation),
                    slots,
                    batch: None,
                    holders,
                });
            }
        }
        let formed: Vec<Fact> = changed
            .iter()
            .filter_map(|fact| match *fact {
                Fact::TrialStarted { trial, generation, .. } => Some(Fact::GroupFormed { trial, generation }),
                _ => None,
            })
            .collect();
        for fact in changed {
            self.fact(fact);
        }
        self.now_s += pause_s;
        for fact in formed {
            self.fact(fact);
        }
    }

    /// All trials train for a while; some end.
    fn train(&mut self, step_s: f64, epochs_per_s: f64) -> bool {
        self.now_s += step_s;
        let mut ended = Vec::new();
        for (&id, trial) in &mut self.running {
            trial.epochs += step_s * epochs_per_s * (trial.slots.len() as f64).powf(0.7);
            let noise = self.rng.random_range(-0.01..0.01);
            let accuracy = 0.1 + (trial.skill - 0.1) * (1.0 - (-0.5 * trial.epochs).exp()) + noise;
            let metrics = Metrics::from([("accuracy".to_owned(), accuracy.into())]);
            ended.push(Fact::Measured {
                trial: id,
                generation: Generation(trial.generation),
                number: 1,
                epochs: trial.epochs,
                metrics,
                gpu_type: None,
                steps: vec![],
                noise: None,
                noise_batch: None,
            });
            if trial.epochs >= 10.0 {
                ended.push(Fact::TrialDone { trial: id, values: vec![accuracy] });
            } else if trial.epochs >= 2.0 && trial.skill < 0.6 {
                ended.push(Fact::TrialStopped { trial: id, reason: "rank 3 of 3".to_owned().into() });
            }
        }
        let before = self.running.len();
        for fact in ended {
            if matches!(fact, Fact::TrialDone { .. } | Fact::TrialStopped { .. }) {
                self.running.remove(&fact.trial().expect("it is about a trial"));
            }
            self.fact(fact);
        }
        self.running.len() < before
    }

    /// Runs all trials, so many at a time, each step of so many seconds.
    fn run(mut self, trials: u32, parallel: usize, step_s: f64, epochs_per_s: f64) -> Vec<JournalEntry> {
        let mut next = 0;
        let mut changed = true;
        while next < trials || !self.running.is_empty() {
            while self.running.len() < parallel && next < trials {
                self.begin(TrialId(next));
                next += 1;
                changed = true;
            }
            if changed {
                self.share(step_s / 6.0);
            }
            changed = self.train(step_s, epochs_per_s);
        }
        self.fact(Fact::StudyDone {});
        self.entries
    }
}

fn program(folder: &Path, arguments: &[&str]) -> Output {
    let mut run = Command::new(env!("CARGO_BIN_EXE_pollux-tune"));
    run.arg("timeline").arg(folder).args(arguments).output().expect("it can be run")
}

/// Draws a study, and returns the picture.
fn drawn(name: &str, entries: &[JournalEntry]) -> String {
    let root = folder(name);
    Store::open(&root).expect("it can be made").append(entries).expect("it can be written");
    let output = program(&root, &[]);
    assert!(output.status.success(), "{output:?}");
    let path = root.join("timeline.svg");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{}\n", path.display()));
    let text = fs::read_to_string(path).expect("it is there");
    assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"));
    assert!(!text.contains("NaN") && !text.contains("inf"));
    text
}

#[test]
fn a_small_study_is_drawn() {
    let entries = Story::new(&[("cpu", 2)], 8).run(8, 2, 4.0, 0.08);
    let text = drawn("small", &entries);
    assert!(text.contains(">8 trials to maximize accuracy</text>"), "{text}");
    assert!(text.contains(">minutes since the study began</text>"), "{text}");
    for trial in 0..8 {
        assert!(text.contains(&format!(">{trial}</text>")), "trial {trial} has a number");
    }
    assert!(!text.contains("run again") && text.contains("the best trial"), "{text}");
}

#[test]
fn a_study_of_hours_stays_readable() {
    let entries = Story::new(&[("a100", 8), ("a100", 8)], 100).run(100, 4, 60.0, 0.002);
    let text = drawn("large", &entries);
    assert!(text.len() < 300_000, "{} bytes", text.len());
    assert!(text.matches("<text").count() < 600, "{}", text.matches("<text").count());
    assert_eq!(text.matches("<title>trial ").count(), 100, "all of them can be pointed at");
}

#[test]
fn thousands_of_trials_fit_into_a_few_megabytes() {
    let nodes: Vec<(&str, u32)> = (0..8).map(|node| (if node < 4 { "a100" } else { "t4" }, 8)).collect();
    let entries = Story::new(&nodes, 5000).run(5000, 32, 30.0, 0.03);
    let text = drawn("huge", &entries);
    assert!(text.len() < 3_000_000, "{} bytes of {} facts", text.len(), entries.len());
}

#[test]
fn whatever_happens_is_drawn() {
    let yaml = "
space: {x: {float: [0, 1]}, act: [relu, gelu]}
objective: {minimize: loss}
trial: {trainable: toy, epochs: 6, initial_batch: 64, max_batch: 512}
search: {trials: 12, parallel: 4, algorithm: random, early_stopping: {rule: asha, grace: 1, reduction: 2}}
scheduler: {interval: 5s}
";
    let study = Study::from_yaml("study.yaml", yaml).expect("it is a study");
    let faults = Faults {
        worker: 20,
        node: 5,
        drain: 10,
        group: 20,
        environment: 10,
        trial: 5,
        head: 3,
        messages: 100,
    };
    let mut world = World::new(&study, TrialKind::Elastic, &[("t4", 3), ("a100", 2)], 11);
    for _ in 0..600 {
        world.step(faults);
    }
    while world.outcome.is_none() {
        world.step(NONE);
    }
    let text = drawn("eventful", &world.journal);
    assert!(world.restarts > 0 && text.contains("run again") && text.contains("in which the study ran"));
    // At any moment of its life, too.
    for part in 2..20 {
        drawn("unfinished", &world.journal[..part * world.journal.len() / 20]);
    }
}

#[test]
fn a_picture_is_drawn_where_it_is_wanted_and_only_of_studies() {
    let root = folder("where");
    let output = program(&root, &[]);
    let error = String::from_utf8_lossy(&output.stderr).replace(&root.display().to_string(), "FOLDER");
    assert_eq!((output.status.code(), error.as_str()), (Some(2), "error: FOLDER holds no study\n"));
    assert!(!root.exists(), "looking makes nothing");
    let entries = Story::new(&[("cpu", 1)], 1).run(1, 1, 1.0, 1.0);
    Store::open(&root).expect("it can be made").append(&entries).expect("it can be written");
    let wanted = root.join("other.svg");
    let output = program(&root, &["--svg", &wanted.display().to_string()]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{}\n", wanted.display()));
    assert!(wanted.exists() && !root.join("timeline.svg").exists());
    assert_eq!(program(&root, &["--svg", "journal.sqlite"]).status.code(), Some(2));
}
