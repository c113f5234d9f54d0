//! Optimizers of a user's own, and what hooks are told.

use std::fmt;

use tch::Tensor;

use super::{BoxError, Schedule};

/// An optimizer of your own: what a step does to a variable, given its gradient. [`Optimizer::own`](super::Optimizer::own) takes one.
///
/// All workers of a trial take the same step with the same gradients. So it may depend on nothing else than what it is given, and all it
/// remembers has to be in the state of the variables: that is saved, and handed over to workers that join.
///
/// ```
/// use pollux_tune::worker::{BoxError, Optimizer, UpdateRule, Variable};
///
/// /// Lion (Chen et al. 2023).
/// #[derive(Debug)]
/// struct Lion {
///     weight_decay: f64,
/// }
///
/// impl UpdateRule for Lion {
///     fn state(&self) -> usize {
///         1 // the momentum
///     }
///
///     fn update(&self, variable: &mut Variable<'_>, learning_rate: f64, _step: u64) -> Result<(), BoxError> {
///         let Variable { weights, gradient, state, .. } = variable;
///         let direction = (&state[0] * 0.9 + &*gradient * 0.1).sign();
///         weights.f_mul_scalar_(1.0 - learning_rate * self.weight_decay)?.f_sub_(&(direction * learning_rate))?;
///         state[0].f_mul_scalar_(0.99)?.f_add_(&(&*gradient * 0.01))?;
///         Ok(())
///     }
/// }
///
/// let optimizer = Optimizer::own(Lion { weight_decay: 0.01 });
/// ```
pub trait UpdateRule: fmt::Debug + Send + Sync {
    /// How many tensors it remembers for each variable, of the shape of the variable. They begin as zeros.
    fn state(&self) -> usize {
        0
    }

    /// Takes a step: changes the weights, and what it remembers. Steps count from 1; no gradients are recorded meanwhile.
    fn update(&self, variable: &mut Variable<'_>, learning_rate: f64, step: u64) -> Result<(), BoxError>;
}

/// A variable of a model in a step.
#[derive(Debug)]
pub struct Variable<'a> {
    /// Its name, such as `layer.weight`.
    pub name: &'a str,
    /// What is to be changed in place.
    pub weights: Tensor,
    /// The gradient, the mean over the whole batch. It is not to be changed.
    pub gradient: Tensor,
    /// What [`UpdateRule::state`] has asked for, to be changed in place.
    pub state: Vec<Tensor>,
}

/// A step that was taken, for [`Trainable::after_step`](super::Trainable::after_step).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct StepTaken {
    /// How many there were so far, with this one.
    pub steps: u64,
    /// How far the training has come with it.
    pub schedule: Schedule,
    /// The examples of the step, over all workers.
    pub batch: u32,
    /// The learning rate that was used, scaled to the batch.
    pub learning_rate: f64,
    /// Which of the workers this one is, from 0.
    pub rank: u32,
    /// How many workers there are.
    pub workers: u32,
}
