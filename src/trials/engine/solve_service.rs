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
        self.solve_with_places(revision, snapshot).map(|(plan, _)| plan)
    }

    /// The same, and how many trials should be active from now on, where that is not fixed.
    pub fn solve_with_places(
        &mut self,
        revision: u64,
        snapshot: &AllocationSnapshot,
    ) -> Result<(Plan, Option<u32>), alloc::Error> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.study.search.seed);
        rng.set_stream(revision);
        let problem = snapshot.problem(&self.study)?;
        let places = snapshot.places(&self.study, &problem)?;
        Ok((self.policy.allocate(&problem, &mut rng)?, places))
    }
}
