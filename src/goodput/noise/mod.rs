//! The pre-conditioned gradient noise scale (Pollux OSDI'21 eq. 5), measured while a trial trains.
//!
//! [`GradientSample`] turns squared norms into an estimate for one step, [`NoiseEstimator`] averages the
//! estimates, and [`Preconditioner`] says how the gradients are weighted before their norms are taken.
//! Tensors stay with the caller.
//!
//! *Architecture invariant:* an estimate that is not finite never enters an average.

mod estimate;
mod precondition;
mod smooth;
#[cfg(test)]
mod tests;

pub use estimate::{ConsecutiveNorms, GradientNorms, GradientSample, GradientStats};
pub use precondition::{Optimizer, Preconditioner};
pub use smooth::{NoiseEstimator, NoiseState};
