//! A small model, data, and a head for them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use pollux_tune::{
    ids::TrialId,
    space::Params,
    trials::group::Task,
    worker::{
        Batching, BoxError, Dataset, Example, Happening, Optimizer, Pool, Registry, Schedule, Slot,
        Trainable, Training,
    },
};
use rand::RngExt;
use serde_json::json;
use tch::{Device, Kind, Tensor, nn, nn::ModuleT};

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

/// As many workers, each with one thread.
pub(crate) fn pool(workers: usize, folder: &Folder) -> Pool {
    // `make test-cuda` sets it.
    let gpus = env::var_os("POLLUX_TUNE_TEST_GPUS").is_some();
    let slots = (0..workers as u32).map(|slot| Slot { threads: 1, cuda: gpus.then_some(slot) }).collect();
    Pool::new(slots, folder.path(), &["worker", "--exact", "--nocapture"]).expect("workers start")
}

/// The trial of a test; `name` is that of its checkpoint.
pub(crate) fn task(folder: &Folder, name: &str, params: serde_json::Value) -> Task {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let serde_json::Value::Object(params) = params else { panic!("parameters have names") };
    Task {
        trial: TrialId(COUNT.fetch_add(1, Ordering::Relaxed)),
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

/// Trains to the end, and shows everything that happens to `look`, which may intervene.
pub(crate) fn train(
    pool: Pool,
    task: Task,
    slots: &[u32],
    look: impl FnMut(&mut Training, &Happening),
) -> (Pool, Vec<Happening>) {
    train_in_passes(pool, task, slots, 1000, look)
}

/// As `train`, with passes of at most so many examples on a worker.
pub(crate) fn train_in_passes(
    pool: Pool,
    task: Task,
    slots: &[u32],
    per_worker: u32,
    mut look: impl FnMut(&mut Training, &Happening),
) -> (Pool, Vec<Happening>) {
    let batching = Batching::fixed(task.initial_batch, per_worker).expect("fine limits");
    let mut training = Training::start(pool, task, batching, slots).expect("it starts");
    let mut all = Vec::new();
    loop {
        let happening = training.next(SOON).expect("no failure of the head").expect("something happens");
        look(&mut training, &happening);
        let is_end = matches!(happening, Happening::Finished { .. } | Happening::Failed { .. });
        all.push(happening);
        if is_end {
            return (training.into_pool().expect("workers are released"), all);
        }
    }
}

/// Steps that were reported, if it is a report.
pub(crate) fn steps(happening: &Happening) -> Option<u64> {
    match happening {
        Happening::Reported(report) => Some(report.steps),
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
pub(crate) fn kill(pid: u32) {
    let status =
        process::Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill is there");
    assert!(status.success());
}
