//! Answers to [`Solve`](super::AllocatorRequest::Solve).

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::AllocationSnapshot;
use crate::{
    alloc::{self, Plan, Policy},
    space::Study,
};

/// The policy of a study, with what it remembers from one question to the next.
///
/// It may live on another thread: a question is complete in itself.
pub struct SolveService {
    study: Study,
    policy: Box<dyn Policy>,
}

impl SolveService {
    /// The policy that a study names.
    pub fn new(study: &Study) -> Result<Self, alloc::Error> {
        Ok(Self { study: study.clone(), policy: study.scheduler.policy.build() })
    }

    /// Who gets which GPUs. Random choices follow from the seed of the study and the number of the question.
    pub fn solve(&mut self, revision: u64, snapshot: &AllocationSnapshot) -> Result<Plan, alloc::Error> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.study.search.seed);
        rng.set_stream(revision);
        self.policy.allocate(&snapshot.problem(&self.study)?, &mut rng)
    }
}
