use rand_chacha::ChaCha8Rng;

use super::{Error, Plan, Problem};

/// A way to share GPUs among trials.
///
/// A policy may keep what it learned from one question to the next (the paper's search keeps its population),
/// but never a clock: the same questions with the same generator give the same answers.
pub trait Policy: Send {
    /// The name users choose it by.
    fn name(&self) -> &'static str;

    /// Decides which trial gets which GPUs.
    fn allocate(&mut self, problem: &Problem, rng: &mut ChaCha8Rng) -> Result<Plan, Error>;
}
