//! What a user of the library writes: a model, its loss and its data.

use std::{collections::BTreeMap, error::Error as StdError, sync::Arc};

use rand_chacha::ChaCha8Rng;
use tch::{Tensor, nn};

use super::{Error, StepTaken, UpdateRule};
use crate::space::{Params, TrainableSpec};

/// What a user's code may fail with.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// One trial's model with its hyper-parameters, ready to be trained by any number of workers.
///
/// Every worker of a trial makes its own from the same hyper-parameters. Which workers there are, the batch, the order of the
/// examples, the reduction of gradients, checkpoints and hand-overs are not its business.
///
/// ```
/// use pollux_tune::space::Params;
/// use pollux_tune::worker::{BoxError, Dataset, Example, Optimizer, Registry, Schedule, Trainable};
/// use tch::{Kind, Tensor, nn, nn::Module};
///
/// struct Line {
///     layer: nn::Linear,
///     lr: f64,
/// }
///
/// /// Points of y = 2x + 1.
/// struct Points;
///
/// impl Dataset for Points {
///     fn len(&self) -> u32 {
///         1000
///     }
///
///     fn load(&mut self, examples: &[Example]) -> Result<Vec<Tensor>, BoxError> {
///         let x: Vec<f32> = examples.iter().map(|example| example.index as f32 / 1000.0).collect();
///         let x = Tensor::from_slice(&x).unsqueeze(1);
///         Ok(vec![x.shallow_clone(), x * 2.0 + 1.0])
///     }
/// }
///
/// impl Trainable for Line {
///     fn optimizer(&self) -> Optimizer {
///         Optimizer::sgd().momentum(0.9)
///     }
///
///     fn learning_rate(&self, schedule: Schedule) -> f64 {
///         self.lr * schedule.cosine()
///     }
///
///     fn training_data(&self) -> Result<Box<dyn Dataset>, BoxError> {
///         Ok(Box::new(Points))
///     }
///
///     fn loss(&self, batch: &[Tensor]) -> Result<Tensor, BoxError> {
///         Ok(self.layer.forward(&batch[0]).mse_loss(&batch[1], tch::Reduction::Mean))
///     }
/// }
///
/// let registry = Registry::default().with("line", |root: &nn::Path, params: &Params| {
///     let layer = nn::linear(root, 1, 1, nn::LinearConfig::default());
///     Ok(Line { layer, lr: params.float("lr")? })
/// });
/// assert_eq!(registry.names().collect::<Vec<_>>(), ["line"]);
/// ```
pub trait Trainable {
    /// How gradients become steps.
    fn optimizer(&self) -> Optimizer;

    /// The learning rate at the initial batch. What a larger batch makes of it is up to the scaling rule.
    fn learning_rate(&self, schedule: Schedule) -> f64;

    /// What to learn from.
    fn training_data(&self) -> Result<Box<dyn Dataset>, BoxError>;

    /// What to evaluate on; without it, there are no metrics but the loss of training.
    fn test_data(&self) -> Result<Option<Box<dyn Dataset>>, BoxError> {
        Ok(None)
    }

    /// The mean loss of a batch, in training mode.
    fn loss(&self, batch: &[Tensor]) -> Result<Tensor, BoxError>;

    /// Whether the loss of a batch is the mean of those of its halves, more or less. A worker that is alone then computes one step
    /// in eight in two halves, and learns the noise scale from their difference. Say no where examples of a batch are compared
    /// with each other, as in contrastive losses: gradients of steps in a row take the place of halves, which takes the
    /// movement of the weights for noise.
    fn may_be_halved(&self) -> bool {
        true
    }

    /// The longest gradient of a step: a longer one is scaled down to this norm, over all variables, as PyTorch's `clip_grad_norm_` does.
    /// The noise scale is that of the gradient before.
    fn max_gradient_norm(&self) -> Option<f64> {
        None
    }

    /// Called on every worker after each optimizer step. It may change variables, also those that are not trained, as long as it does the
    /// same on all workers: nothing else than variables is saved, and handed over to workers that join.
    fn after_step(&mut self, _step: &StepTaken) -> Result<(), BoxError> {
        Ok(())
    }

    /// Called on every worker before an evaluation, for example to put averaged weights in the place of those that are trained.
    fn before_evaluation(&mut self) -> Result<(), BoxError> {
        Ok(())
    }

    /// Called on every worker after an evaluation, also after one that has failed, to undo that.
    fn after_evaluation(&mut self) -> Result<(), BoxError> {
        Ok(())
    }

    /// Metrics of a batch in evaluation mode, each **summed** over its examples, so that batches and workers can be added up.
    fn evaluate(&self, _batch: &[Tensor]) -> Result<Vec<(&'static str, Tensor)>, BoxError> {
        Ok(Vec::new())
    }
}

/// Examples that can be had by their number. It lives on a thread of its own, ahead of the training.
pub trait Dataset: Send {
    /// How many examples there are.
    fn len(&self) -> u32;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The examples, stacked in this order: one tensor for the inputs, one for the targets, or whatever the loss wants.
    fn load(&mut self, examples: &[Example]) -> Result<Vec<Tensor>, BoxError>;
}

/// An example to be loaded.
#[derive(Debug, Clone)]
pub struct Example {
    /// Its number.
    pub index: u32,
    /// What to augment it with; none in an evaluation. It depends on the seed and the position in the training only, so
    /// that the same example comes out on whichever worker it is loaded.
    pub augment: Option<ChaCha8Rng>,
}

/// How far a training has come, in statistical epochs: what a learning rate may depend on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Done so far.
    pub epochs: f64,
    /// To be done in all.
    pub total: f64,
}

impl Schedule {
    /// The part that is done, from 0 to 1.
    #[must_use]
    pub fn fraction(self) -> f64 {
        (self.epochs / self.total).clamp(0.0, 1.0)
    }

    /// From 1 at the start to 0 at the end, along half a wave.
    #[must_use]
    pub fn cosine(self) -> f64 {
        f64::midpoint(1.0, libm::cos(std::f64::consts::PI * self.fraction()))
    }
}

/// How gradients become steps. The learning rate is not part of it.
#[derive(Debug, Clone)]
pub enum Optimizer {
    /// SGD, with momentum and weight decay as in PyTorch.
    Sgd {
        /// What is left of the earlier steps' direction, from 0 to below 1.
        momentum: f64,
        /// Look ahead along the momentum (Nesterov).
        nesterov: bool,
        /// L2 penalty, added to the gradient.
        weight_decay: f64,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
    AdamW {
        /// Decay of the first moments.
        beta1: f64,
        /// Decay of the second moments.
        beta2: f64,
        /// What is added to the root of the second moments.
        eps: f64,
        /// What is taken from the weights in a step, as a part of the learning rate.
        weight_decay: f64,
    },
    /// One of your own. The noise scale is that of the plain gradient, as with SGD.
    Own(Arc<dyn UpdateRule>),
}

impl Optimizer {
    /// Plain SGD.
    #[must_use]
    pub const fn sgd() -> Self {
        Self::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 }
    }

    /// `AdamW` with the usual settings.
    #[must_use]
    pub const fn adamw() -> Self {
        Self::AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }
    }

    /// An optimizer of your own.
    #[must_use]
    pub fn own(rule: impl UpdateRule + 'static) -> Self {
        Self::Own(Arc::new(rule))
    }

    /// With this momentum, or first decay of `AdamW`. One of your own has settings of its own.
    #[must_use]
    pub const fn momentum(mut self, value: f64) -> Self {
        match &mut self {
            Self::Sgd { momentum, .. } => *momentum = value,
            Self::AdamW { beta1, .. } => *beta1 = value,
            Self::Own(_) => {}
        }
        self
    }

    /// With this weight decay. One of your own has settings of its own.
    #[must_use]
    pub const fn weight_decay(mut self, value: f64) -> Self {
        match &mut self {
            Self::Sgd { weight_decay, .. } | Self::AdamW { weight_decay, .. } => *weight_decay = value,
            Self::Own(_) => {}
        }
        self
    }
}

type Build = Box<dyn Fn(&nn::Path, &Params) -> Result<Box<dyn Trainable>, BoxError> + Send + Sync>;

/// The trainables that a program knows, by name.
#[derive(Default)]
pub struct Registry {
    entries: BTreeMap<String, Entry>,
}

struct Entry {
    build: Build,
    spec: TrainableSpec,
}

impl Registry {
    /// Adds a trainable: `build` makes its variables below the path it is given, which it must do in the same order every time.
    #[must_use]
    pub fn with<T, F>(mut self, name: &str, build: F) -> Self
    where
        T: Trainable + 'static,
        F: Fn(&nn::Path, &Params) -> Result<T, BoxError> + Send + Sync + 'static,
    {
        let boxed = move |root: &nn::Path, params: &Params| -> Result<Box<dyn Trainable>, BoxError> {
            Ok(Box::new(build(root, params)?))
        };
        let entry = Entry { build: Box::new(boxed), spec: TrainableSpec::new(name) };
        self.entries.insert(name.to_owned(), entry);
        self
    }

    /// Says which parameters a trainable reads and which metrics it reports, so that `pollux-tune check` finds others in study files.
    #[must_use]
    pub fn describe(mut self, spec: TrainableSpec) -> Self {
        if let Some(entry) = self.entries.get_mut(&spec.name) {
            entry.spec = spec;
        }
        self
    }

    /// What is known of each trainable.
    #[must_use]
    pub fn specs(&self) -> Vec<TrainableSpec> {
        self.entries.values().map(|entry| entry.spec.clone()).collect()
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Whether there is one of this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Whether a trainable can be made with these parameters, and has its data.
    pub fn check(&self, name: &str, params: &Params) -> Result<(), Error> {
        let variables = nn::VarStore::new(tch::Device::Cpu);
        let trainable = self.build(name, &variables.root(), params)?;
        let failed = |source| Error::User { what: "opening the data", source };
        trainable.training_data().map_err(failed)?;
        trainable.test_data().map_err(failed)?;
        Ok(())
    }

    /// Makes the trainable of this name.
    pub(super) fn build(
        &self,
        name: &str,
        root: &nn::Path,
        params: &Params,
    ) -> Result<Box<dyn Trainable>, Error> {
        let Some(Entry { build, .. }) = self.entries.get(name) else {
            let known = self.names().collect::<Vec<_>>().join(", ");
            return Err(Error::UnknownTrainable { name: name.to_owned(), known });
        };
        build(root, params).map_err(|source| Error::User { what: "making the model", source })
    }
}
