//! Trainings of the small network, for those who intervene.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use pollux_tune::{
    actors::{Runner, Training, TrainingEvent, TrainingSettings},
    ids::{GpuType, StudyId, TrialId},
    space::Study,
    trials::{
        engine::{Fact, Outcome},
        group::Task,
    },
    worker::{Slot, gpu_id},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tch::Tensor;

pub(crate) use crate::checkpoint_files::assert_same;
use crate::{
    checkpoint_files::{checkpoints_in, last_state},
    net::{BATCH, EXAMPLES, Gate},
    processes::children,
};

/// For what comes sooner or later, also on a busy machine.
const SOON: Duration = Duration::from_secs(120);

/// A folder that is gone when its test has passed, with a path short enough for sockets.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("pollux-elastic-{}-{number}", process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What a failed test leaves helps to understand it.
        if !thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// The trial of a test; `name` is that of its checkpoint.
pub(crate) fn task(folder: &Folder, name: &str, params: serde_json::Value) -> Task {
    let serde_json::Value::Object(params) = params else { panic!("parameters have names") };
    Task {
        study: StudyId(1),
        trial: TrialId(0),
        trainable: "net".to_owned(),
        params,
        seed: 11,
        epochs: 6.0,
        initial_batch: BATCH,
        lr_rule: "adascale".to_owned(),
        checkpoint: folder.path().join(name),
        checkpoint_every_s: 1000.0,
        report_every_s: 1e-6,
        evaluate_every: 2.0,
        measure_noise: true,
        mixed_precision: false,
    }
}

pub(crate) fn sgd() -> serde_json::Value {
    json!({"lr": 0.05})
}

/// The steps of a task at its initial batch.
pub(crate) const STEPS: u64 = (6 * EXAMPLES / BATCH) as u64;

/// A training with two workers, for those who intervene.
pub(crate) struct Run {
    pub(crate) training: Training,
    /// The task that trains, from 0.
    pub(crate) number: usize,
    tag: String,
}

impl Run {
    /// The process on a slot.
    pub(crate) fn pid(&self, slot: u32) -> Pid {
        worker_of(slot, &self.tag).expect("there is a worker on every slot")
    }
}

/// The worker process on a slot, among those with a word in their arguments.
fn worker_of(slot: u32, tag: &str) -> Option<Pid> {
    let (node, tag) = (format!("POLLUX_TUNE_WORKER_NODE={slot}"), tag.to_owned());
    let has = |pid: Pid, file: &str, word: &str| {
        let text = fs::read(format!("/proc/{}/{file}", pid.as_raw_nonzero())).unwrap_or_default();
        text.split(|byte| *byte == 0).any(|part| part == word.as_bytes())
    };
    let is_it = |pid: &Pid| has(*pid, "environ", &node) && has(*pid, "cmdline", &tag);
    children(process::id()).into_iter().find(is_it)
}

/// Trains tasks to their ends, one after the other, and shows everything that happens to `look`, which may intervene. Gives what has
/// happened to each.
pub(crate) fn train(
    tasks: Vec<Task>,
    slots: &[u32],
    look: impl FnMut(&Run, &TrainingEvent),
) -> Vec<Vec<TrainingEvent>> {
    train_in_passes(tasks, slots, 1000, look)
}

/// As `train`, with passes of at most so many examples on a worker.
pub(crate) fn train_in_passes(
    tasks: Vec<Task>,
    slots: &[u32],
    per_worker: u32,
    mut look: impl FnMut(&Run, &TrainingEvent),
) -> Vec<Vec<TrainingEvent>> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Tests run side by side: the workers of each can be told from the others.
    let tag = format!("training-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let arguments = ["worker", "--exact", "--nocapture", "--skip", &tag].map(str::to_owned);
    // `make test-cuda` sets it.
    let gpus = env::var_os("POLLUX_TUNE_TEST_GPUS").is_some();
    let settings = TrainingSettings {
        slots: (0..2).map(|slot| Slot { threads: 1, cuda: gpus.then(|| gpu_id(slot)) }).collect(),
        start: slots.to_vec(),
        max_batch: None,
        max_batch_per_worker: per_worker,
        worker_arguments: arguments.into(),
        python: None,
        silence: None,
    };
    let mut all = vec![Vec::new(); tasks.len()];
    let training = Training::start(tasks, &settings).expect("it starts");
    let mut run = Run { training, number: 0, tag };
    while run.number < all.len() {
        let event = run.training.next(SOON).expect("no failure of the head").expect("something happens");
        look(&run, &event);
        let is_end = matches!(event, TrainingEvent::Finished { .. } | TrainingEvent::Failed { .. });
        all[run.number].push(event);
        run.number += usize::from(is_end);
    }
    all
}

/// Changes of the workers of a training, each after so many steps. The training waits there until its workers were told to form the next
/// group, and goes slowly, so that it has not taken all steps when they hear of it.
pub(crate) struct Rescales<'a> {
    plan: &'a [(u64, &'a [u32])],
    gates: Vec<Gate>,
    done: usize,
}

impl<'a> Rescales<'a> {
    pub(crate) fn new(folder: &Folder, plan: &'a [(u64, &'a [u32])]) -> Self {
        let gates = plan.iter().map(|(at, _)| Gate::closed(folder.path(), &at.to_string())).collect();
        Self { plan, gates, done: 0 }
    }

    /// The parameters of the trial, with those that make it wait.
    pub(crate) fn params(&self, mut params: serde_json::Value) -> serde_json::Value {
        let stops: String =
            self.gates.iter().zip(self.plan).map(|(gate, (at, _))| gate.after(*at, None)).collect();
        (params["gates"], params["brake_ms"]) = (stops.into(), 10.into());
        params
    }

    /// Something has happened to the trial.
    pub(crate) fn follow(&mut self, run: &Run, event: &TrainingEvent) {
        if let (TrainingEvent::Forming { group: 2.., .. }, Some(last)) = (event, self.done.checked_sub(1)) {
            self.gates[last].open();
        }
        if let (Some(steps), Some((at, slots))) = (steps(event), self.plan.get(self.done))
            && steps == *at
        {
            assert!(run.training.is_settled(), "the last change takes longer than {steps} steps");
            run.training.rescale(slots).expect("slots of the training");
            self.done += 1;
        }
    }

    pub(crate) fn check(&self) {
        assert_eq!(self.done, self.plan.len(), "the training has ended before its last change");
    }
}

/// Steps that were reported, if it is a report.
pub(crate) fn steps(event: &TrainingEvent) -> Option<u64> {
    match event {
        TrainingEvent::Reported(report) => Some(report.steps),
        _ => None,
    }
}

/// The checkpoints of a trial, the last one first.
pub(crate) fn checkpoints(folder: &Folder, name: &str) -> Vec<PathBuf> {
    checkpoints_in(&folder.path().join(name))
}

/// All vectors of the last checkpoint.
pub(crate) fn state(folder: &Folder, name: &str) -> Vec<(String, Tensor)> {
    last_state(&folder.path().join(name))
}

/// Kills a process as an out-of-memory killer would.
pub(crate) fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).expect("it is there");
}

/// Runs a study on three slots to its end, and shows every fact to `say`.
pub(crate) fn run_study(study: Study, folder: &OsStr, say: fn(&Fact)) {
    let gpus = env::var_os("POLLUX_TUNE_TEST_GPUS").is_some();
    let slots = [0, 1, 2].map(|slot| Slot { threads: 1, cuda: gpus.then(|| gpu_id(slot)) });
    let finished = Runner::new(study)
        .folder(folder)
        .worker_arguments(["worker", "--exact", "--nocapture"])
        .watch(move |_, entries| entries.iter().for_each(|entry| say(&entry.fact)))
        .run_trainable(&GpuType::new("cpu").expect("a name"), &slots)
        .expect("it runs");
    assert_eq!(finished.outcome, Outcome::Done);
}

/// This program as the head of a study: the test of this name, which finds the folder in a variable.
pub(crate) fn head_command(test: &str, variable: &str, folder: &Path) -> process::Command {
    let mut head = process::Command::new(env::current_exe().expect("this program"));
    head.args([test, "--exact", "--nocapture"]).env(variable, folder);
    head.stdout(process::Stdio::piped()).stderr(process::Stdio::null());
    head
}
