use crate::ids::TrialId;

/// Who trains a trial, for [`trial_seed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Execution {
    /// Workers, emulated ones included.
    Live,
    /// [`simulate_study`](crate::sim::simulate_study).
    Simulated,
}

/// The seed of a trial: its initial weights, the order of its examples, the noise of its simulated results.
///
/// Live trials have `seed + trial`. Seeds are not journaled, so a trial that is resumed computes its own again, and the formula
/// cannot change. In simulations that would give studies of neighbouring seeds the same trials one number apart, while
/// published figures are means over such studies: there the seeds of studies are far apart. For a study of seed 0
/// both are the same.
///
/// ```
/// use pollux_tune::{ids::TrialId, trials::{Execution, trial_seed}};
/// assert_eq!(trial_seed(5, TrialId(2), Execution::Live), 7);
/// assert_eq!(trial_seed(5, TrialId(2), Execution::Simulated), 5_000_017);
/// ```
#[must_use]
pub fn trial_seed(study_seed: u64, trial: TrialId, execution: Execution) -> u64 {
    let base = match execution {
        Execution::Live => study_seed,
        Execution::Simulated => study_seed.wrapping_mul(1_000_003),
    };
    base.wrapping_add(u64::from(trial.0))
}
