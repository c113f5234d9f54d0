//! A small model, data, and trainings of them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use pollux_tune::{
    actors::{Training, TrainingEvent, TrainingSettings},
    ids::{StudyId, TrialId},
    space::Params,
    trials::group::Task,
    worker::{BoxError, Dataset, Example, Optimizer, Registry, Schedule, Slot, Trainable},
};
use rand::RngExt;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tch::{Device, Kind, Tensor, nn, nn::ModuleT};

use crate::processes::children;

/// For what comes sooner or later, also on a busy machine.
const SOON: Duration = Duration::from_secs(120);

const INPUTS: i64 = 32;
const CLASSES: i64 = 4;
pub(crate) const EXAMPLES: u32 = 600;

/// A network of two layers that learns to tell four kinds of noisy points apart.
pub(crate) struct Net {
    layers: nn::SequentialT,
    lr: f64,
    adam: bool,
    mischief: String,
    jitter: f32,
    whole: bool,
}

impl Net {
    pub(crate) fn new(root: &nn::Path, params: &Params) -> Result<Self, BoxError> {
        // Else the weights follow from the seed of the order.
        if let Ok(seed) = params.int("init") {
            tch::manual_seed(seed);
        }
        let hidden = params.int("hidden").unwrap_or(64);
        let mut layers = nn::seq_t()
            .add(nn::linear(root / "first", INPUTS, hidden, nn::LinearConfig::default()))
            .add_fn(Tensor::relu);
        if params.bool("batch_norm").unwrap_or(false) {
            layers = layers.add(nn::batch_norm1d(root / "norm", hidden, nn::BatchNormConfig::default()));
        }
        let layers = layers.add(nn::linear(root / "last", hidden, CLASSES, nn::LinearConfig::default()));
        let mischief = params.text("mischief").unwrap_or("none").to_owned();
        let (lr, adam) = (params.float("lr")?, params.bool("adam").unwrap_or(false));
        let jitter = params.float("jitter").unwrap_or(0.1) as f32;
        let whole = params.bool("whole").unwrap_or(false);
        Ok(Self { layers, lr, adam, mischief, jitter, whole })
    }
}

impl Trainable for Net {
    fn optimizer(&self) -> Optimizer {
        if self.adam { Optimizer::adamw() } else { Optimizer::sgd().momentum(0.9).weight_decay(1e-3) }
    }

    fn learning_rate(&self, schedule: Schedule) -> f64 {
        self.lr * schedule.cosine()
    }

    fn training_data(&self) -> Result<Box<dyn Dataset>, BoxError> {
        Ok(Box::new(Points::new(EXAMPLES, self.jitter)))
    }

    fn test_data(&self) -> Result<Option<Box<dyn Dataset>>, BoxError> {
        Ok(Some(Box::new(Points::new(333, 0.0))))
    }

    fn loss(&self, batch: &[Tensor]) -> Result<Tensor, BoxError> {
        match self.mischief.as_str() {
            "error" => return Err("out of memory, says the test".into()),
            "panic" => panic!("a bug in the trainable, says the test"),
            _ => {}
        }
        let loss = self.layers.forward_t(&batch[0], true).cross_entropy_for_logits(&batch[1]);
        Ok(if self.mischief == "nan" { loss * f64::NAN } else { loss })
    }

    fn may_be_halved(&self) -> bool {
        !self.whole
    }

    fn evaluate(&self, batch: &[Tensor]) -> Result<Vec<(&'static str, Tensor)>, BoxError> {
        let hits = self.layers.forward_t(&batch[0], false).argmax(1, false).eq_tensor(&batch[1]);
        Ok(vec![("accuracy", hits), ("count", Tensor::ones_like(&batch[1]))])
    }
}

/// Points around four corners. Each is moved a little whenever it is learned from.
struct Points {
    inputs: Tensor,
    labels: Tensor,
    jitter: f32,
}

impl Points {
    fn new(count: u32, jitter: f32) -> Self {
        let options = (Kind::Float, Device::Cpu);
        let count = i64::from(count);
        let labels = Tensor::arange(count, (Kind::Int64, Device::Cpu)).remainder(CLASSES);
        // Not from a generator that the initial weights depend on.
        let wave = |from: f64| {
            let angle = Tensor::arange(count * INPUTS, options) * from;
            angle.sin().view([count, INPUTS])
        };
        let corners = (Tensor::arange(CLASSES * INPUTS, options) * 12.9898).sin().view([CLASSES, INPUTS]);
        let inputs = corners.index_select(0, &labels) * 0.5 + wave(78.233) + wave(3.7);
        // Every fifth label is wrong: gradients stay noisy to the end.
        let is_wrong = Tensor::arange(count, (Kind::Int64, Device::Cpu)).remainder(5).eq(0);
        let labels = (labels + is_wrong.to_kind(Kind::Int64)).remainder(CLASSES);
        Self { inputs, labels, jitter }
    }
}

impl Dataset for Points {
    fn len(&self) -> u32 {
        self.labels.numel() as u32
    }

    fn load(&mut self, examples: &[Example]) -> Result<Vec<Tensor>, BoxError> {
        let indices: Vec<i64> = examples.iter().map(|example| i64::from(example.index)).collect();
        let indices = Tensor::from_slice(&indices);
        let shifts: Vec<f32> = examples
            .iter()
            .map(|example| {
                example.augment.clone().map_or(0.0, |mut rng| self.jitter * rng.random_range(-1.0..1.0))
            })
            .collect();
        let inputs = self.inputs.index_select(0, &indices) + Tensor::from_slice(&shifts).unsqueeze(1);
        Ok(vec![inputs, self.labels.index_select(0, &indices)])
    }
}

pub(crate) fn registry() -> Registry {
    Registry::default().with("net", Net::new)
}

/// A folder that is gone at the end, with a path short enough for sockets.
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
        let _ = fs::remove_dir_all(&self.0);
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
        initial_batch: 24,
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
pub(crate) const STEPS: u64 = 6 * EXAMPLES as u64 / 24;

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
        slots: (0..2).map(|slot| Slot { threads: 1, cuda: gpus.then_some(slot) }).collect(),
        start: slots.to_vec(),
        max_batch: None,
        max_batch_per_worker: per_worker,
        worker_arguments: arguments.into(),
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

/// Steps that were reported, if it is a report.
pub(crate) fn steps(event: &TrainingEvent) -> Option<u64> {
    match event {
        TrainingEvent::Reported(report) => Some(report.steps),
        _ => None,
    }
}

/// All vectors of a checkpoint.
pub(crate) fn state(folder: &Folder, name: &str) -> Vec<(String, Tensor)> {
    let mut tensors = Tensor::read_safetensors(folder.path().join(name)).expect("a checkpoint");
    tensors.retain(|(name, _)| name != "header");
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    tensors
}

/// Two trainings have come to the same end.
pub(crate) fn assert_same(ours: &[(String, Tensor)], theirs: &[(String, Tensor)], what: &str) {
    assert_eq!(ours.len(), theirs.len());
    for ((name, ours), (other, theirs)) in ours.iter().zip(theirs) {
        assert_eq!(name, other);
        let difference = (ours - theirs).abs().max().double_value(&[]);
        let size = theirs.abs().max().double_value(&[]);
        assert!(difference <= 2e-4 * size, "{what}: {name} differs by {difference} of {size}");
    }
}

/// Kills a process as an out-of-memory killer would.
pub(crate) fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).expect("it is there");
}
