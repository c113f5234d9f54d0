//! A small network with its data, which does what tests need: it waits at a step until it may go on, and it fails in any way.

use std::{
    cell::Cell,
    env,
    fs::{self, File},
    io::Write,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use pollux_tune::{
    space::Params,
    worker::{BoxError, Dataset, Example, Optimizer, Registry, Schedule, Trainable},
};
use rand::RngExt;
use rustix::process::{Signal, getpid, kill_process};
use tch::{Device, Kind, Tensor, nn, nn::ModuleT};

const INPUTS: i64 = 32;
const CLASSES: i64 = 4;
pub(crate) const EXAMPLES: u32 = 600;
/// The batch with which steps are counted.
pub(crate) const BATCH: u32 = 24;
/// What an example takes of a training that is slow.
const EXAMPLE: Duration = Duration::from_millis(2);
/// Where mischief that comes late does.
const LATE: u64 = 30;

/// A network of two layers that learns to tell four kinds of noisy points apart.
pub(crate) struct Net {
    layers: nn::SequentialT,
    lr: f64,
    adam: bool,
    mischief: Mischief,
    jitter: f32,
    whole: bool,
    gates: Vec<Stop>,
    brake: Duration,
    /// While this file is there, every example takes its time.
    slow: Option<PathBuf>,
    room: Option<Room>,
    /// Made by the first worker that kills itself, so that there is no second one.
    marker: Option<PathBuf>,
    /// Steps behind it, once it has taken one itself.
    steps: Cell<u64>,
}

/// A device without room for larger batches than some.
struct Room {
    /// The largest batch.
    fits: i64,
    /// How a larger one fails: `error`, `panic`, or in the `backward` pass.
    how: String,
    /// Who asks for too much leaves a line here.
    log: Option<PathBuf>,
    /// A variable, whose gradient is to become too large.
    bias: Tensor,
}

impl Room {
    fn new(root: &nn::Path, params: &Params) -> Option<Self> {
        let fits = params.int("fits").ok()?;
        let (how, is_here) = match params.text("exhausted").unwrap_or("error") {
            how if how.ends_with(" on 1") => (how.trim_end_matches(" on 1"), slot() == Some(1)),
            how => (how, true),
        };
        let bias = (root / "first").get("bias").expect("a layer has it");
        let log = params.text("log").ok().map(PathBuf::from);
        is_here.then(|| Self { fits, how: how.to_owned(), log, bias })
    }

    /// The loss of a batch that may be too large.
    fn pass(&self, examples: i64, loss: Tensor) -> Result<Tensor, BoxError> {
        if examples <= self.fits {
            return Ok(loss);
        }
        if let Some(log) = &self.log {
            let mut log = File::options().append(true).create(true).open(log)?;
            writeln!(log, "{examples}")?;
        }
        // No machine has so much.
        let options = (Kind::Float, Device::Cpu);
        match self.how.as_str() {
            "error" => drop(Tensor::f_zeros([TOO_MUCH], options)?),
            "panic" => drop(Tensor::zeros([TOO_MUCH], options)),
            _ => {
                // A table of one number again and again, whose gradient has to be a table as well.
                let table = self.bias.narrow(0, 0, 1).unsqueeze(1).expand([TOO_MUCH, 1], false);
                let first = Tensor::from_slice(&[0_i64]).to_device(self.bias.device());
                return Ok(loss + Tensor::embedding(&table, &first, -1, false, false).sum(Kind::Float) * 0.0);
            }
        }
        Ok(loss)
    }
}

/// Elements that no machine has memory for.
const TOO_MUCH: i64 = 1 << 46;

/// What a trial does wrong: its kind, and whether it does so from the first step on, or late, or only on the second slot.
struct Mischief {
    kind: String,
    from: u64,
}

impl Mischief {
    /// `kind`, `late kind`, and either of them with ` on 1`.
    fn new(text: &str) -> Self {
        let (text, is_here) = match text.strip_suffix(" on 1") {
            Some(text) => (text, slot() == Some(1)),
            None => (text, true),
        };
        let (kind, from) = text.strip_prefix("late ").map_or((text, 0), |kind| (kind, LATE));
        Self { kind: if is_here { kind } else { "none" }.to_owned(), from }
    }

    /// Whether something of this kind is to happen now.
    fn is(&self, kind: &str, steps: u64) -> bool {
        self.kind == kind && steps >= self.from
    }
}

/// The number of this worker. Trainings have a node for each slot, studies one node with all of them.
fn slot() -> Option<u32> {
    let number = |name: &str| env::var(name).ok()?.parse::<u32>().ok();
    Some(number("POLLUX_TUNE_WORKER_NODE")? + number("POLLUX_TUNE_WORKER_SLOT")?)
}

/// Where a training waits.
struct Stop {
    after_steps: u64,
    slot: Option<u32>,
    lock: PathBuf,
}

/// A step that a training does not get past until it is opened: workers that come there wait for a lock that the test holds. Workers
/// that have just come know after their first step how many are behind them.
pub(crate) struct Gate {
    lock: File,
    path: PathBuf,
}

impl Gate {
    /// A gate that is closed. It opens when it is dropped, too.
    pub(crate) fn closed(folder: &Path, name: &str) -> Self {
        let path = folder.join(format!("gate-{name}"));
        let lock = File::create(&path).expect("a file");
        lock.lock().expect("nobody else has it");
        Self { lock, path }
    }

    pub(crate) fn open(&self) {
        self.lock.unlock().expect("it was locked");
    }

    /// For the parameter `gates`: the worker of a slot, or all, wait in the step after so many.
    pub(crate) fn after(&self, steps: u64, slot: Option<u32>) -> String {
        let slot = slot.map(|slot| slot.to_string()).unwrap_or_default();
        format!("{steps};{slot};{}|", self.path.display())
    }

    /// The processes that wait.
    pub(crate) fn waiting(&self) -> Vec<u32> {
        let inode = format!(":{} ", fs::metadata(&self.path).expect("a file").ino());
        let locks = fs::read_to_string("/proc/locks").expect("the locks of this machine");
        let waits = locks.lines().filter(|line| line.contains("->") && line.contains(&inode));
        waits.filter_map(|line| line.split_whitespace().nth(5)?.parse().ok()).collect()
    }
}

impl Stop {
    /// What [`Gate::after`] has written, any number of times.
    fn all(text: &str) -> Vec<Self> {
        let stop = |text: &str| {
            let mut parts = text.splitn(3, ';');
            let after_steps = parts.next()?.parse().ok()?;
            let slot = parts.next()?.parse().ok();
            Some(Self { after_steps, slot, lock: parts.next()?.into() })
        };
        text.split_terminator('|').map(|text| stop(text).expect("a gate")).collect()
    }

    fn wait(&self) {
        // The folder is gone with its test.
        if let Ok(lock) = File::open(&self.lock) {
            let _ = lock.lock_shared();
        }
    }
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
        if let Ok(share) = params.float("dropout") {
            layers = layers.add_fn_t(move |x, train| x.dropout(share, train));
        }
        let layers = layers.add(nn::linear(root / "last", hidden, CLASSES, nn::LinearConfig::default()));
        let mischief = Mischief::new(params.text("mischief").unwrap_or("none"));
        if mischief.is("no model", 0) {
            return Err("there is no such model, says the test".into());
        }
        let (lr, adam) = (params.float("lr")?, params.bool("adam").unwrap_or(false));
        let jitter = params.float("jitter").unwrap_or(0.1) as f32;
        let whole = params.bool("whole").unwrap_or(false);
        let gates = Stop::all(params.text("gates").unwrap_or_default());
        let brake = Duration::from_millis(params.int("brake_ms").unwrap_or(0).cast_unsigned());
        let marker = params.text("marker").ok().map(PathBuf::from);
        let slow = params.text("slow").ok().map(PathBuf::from);
        let (room, steps) = (Room::new(root, params), Cell::new(0));
        Ok(Self { layers, lr, adam, mischief, jitter, whole, gates, brake, slow, room, marker, steps })
    }
}

impl Trainable for Net {
    fn optimizer(&self) -> Optimizer {
        if self.adam { Optimizer::adamw() } else { Optimizer::sgd().momentum(0.9).weight_decay(1e-3) }
    }

    fn learning_rate(&self, schedule: Schedule) -> f64 {
        // It is asked once in each step, for what is behind it.
        let steps = schedule.epochs * f64::from(EXAMPLES) / f64::from(BATCH);
        self.steps.set(steps.round() as u64 + 1);
        self.lr * schedule.cosine()
    }

    fn training_data(&self) -> Result<Box<dyn Dataset>, BoxError> {
        if self.mischief.is("no data", 0) {
            File::open("/no/such/file")?;
        }
        let mut points = Points::new(EXAMPLES, self.jitter);
        if self.mischief.kind == "bad data" {
            points.bad_after = Some(self.mischief.from * u64::from(BATCH));
        }
        Ok(Box::new(points))
    }

    fn test_data(&self) -> Result<Option<Box<dyn Dataset>>, BoxError> {
        Ok(Some(Box::new(Points::new(333, 0.0))))
    }

    fn loss(&self, batch: &[Tensor]) -> Result<Tensor, BoxError> {
        let steps = self.steps.get();
        self.gates
            .iter()
            .filter(|gate| gate.after_steps <= steps && gate.slot.is_none_or(|of| slot() == Some(of)))
            .for_each(Stop::wait);
        thread::sleep(self.brake);
        if self.slow.as_ref().is_some_and(|slow| slow.exists()) {
            thread::sleep(EXAMPLE * batch[1].size()[0] as u32);
        }
        let is = |kind| self.mischief.is(kind, steps);
        if is("error") {
            return Err("out of memory, says the test".into());
        }
        assert!(!is("panic"), "a bug in the trainable, says the test");
        if is("memory") {
            drop(Tensor::f_zeros([TOO_MUCH], (Kind::Float, Device::Cpu))?);
        }
        if is("killed") && self.marker.as_ref().is_some_and(|marker| File::create_new(marker).is_ok()) {
            // As the kernel does where memory ends.
            let _ = kill_process(getpid(), Signal::KILL);
        }
        let loss = self.layers.forward_t(&batch[0], true).cross_entropy_for_logits(&batch[1]);
        let loss = if is("nan") { loss * f64::NAN } else { loss };
        match &self.room {
            Some(room) => room.pass(batch[1].size()[0], loss),
            None => Ok(loss),
        }
    }

    fn may_be_halved(&self) -> bool {
        !self.whole
    }

    fn evaluate(&self, batch: &[Tensor]) -> Result<Vec<(&'static str, Tensor)>, BoxError> {
        let is = |kind| self.mischief.is(kind, self.steps.get());
        if is("evaluation") {
            return Err("the test data have no labels, says the test".into());
        }
        assert!(!is("evaluation panic"), "a bug in the evaluation, says the test");
        if let Some(room) = &self.room
            && batch[1].size()[0] > 8 * room.fits
        {
            drop(Tensor::f_zeros([TOO_MUCH], (Kind::Float, Device::Cpu))?);
        }
        let hits = self.layers.forward_t(&batch[0], false).argmax(1, false).eq_tensor(&batch[1]);
        Ok(vec![("accuracy", hits), ("count", Tensor::ones_like(&batch[1]))])
    }
}

/// Points around four corners. Each is moved a little whenever it is learned from.
struct Points {
    inputs: Tensor,
    labels: Tensor,
    jitter: f32,
    /// After so many examples there are none that can be read.
    bad_after: Option<u64>,
    loaded: u64,
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
        Self { inputs, labels, jitter, bad_after: None, loaded: 0 }
    }
}

impl Dataset for Points {
    fn len(&self) -> u32 {
        self.labels.numel() as u32
    }

    fn load(&mut self, examples: &[Example]) -> Result<Vec<Tensor>, BoxError> {
        self.loaded += examples.len() as u64;
        if self.bad_after.is_some_and(|after| self.loaded > after) {
            return Err("the image is truncated, says the test".into());
        }
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
