use std::collections::{BTreeMap, BTreeSet};

use rand_chacha::ChaCha8Rng;

use super::{
    Error, Plan, Policy, Problem,
    instance::{Instance, gpus_of},
    placement::{Placer, request, sort_pools},
};
use crate::ids::TrialId;

/// `tiresias`: the least served trials run first, with the GPUs their users ask for (Gu et al., 2019).
///
/// Two queues: trials that have had less GPU time than a threshold, in the order of the problem, then the others, in the
/// order in which they passed it. A trial runs if its whole request fits the GPUs that are left, so a later, smaller one may
/// overtake; else it waits or is preempted. Trials never move back to the first queue.
///
/// The original counts GPUs only. Here a trial may also find no place because of interference avoidance or
/// because the GPUs are scattered and it cannot span nodes; what it leaves goes to the next in the same
/// order. Of several GPU types a trial prefers the one it has, then the one with most GPUs left.
#[derive(Debug, Clone)]
pub struct TiresiasPolicy {
    threshold_gpu_s: f64,
    /// The second queue.
    demoted: Vec<TrialId>,
}

impl Default for TiresiasPolicy {
    fn default() -> Self {
        Self { threshold_gpu_s: Self::THRESHOLD_GPU_S, demoted: Vec::new() }
    }
}

/// A trial with the pool and the number of GPUs it may have.
type Admission = (usize, usize, u32);

impl TiresiasPolicy {
    /// The GPU time that moves a trial to the second queue by default, in GPU-seconds: the 16 GPU-hours that
    /// Pollux was compared with.
    pub const THRESHOLD_GPU_S: f64 = 57_600.0;

    /// Moves trials to the second queue after this GPU time, in GPU-seconds.
    pub fn new(threshold_gpu_s: f64) -> Result<Self, Error> {
        if threshold_gpu_s.is_finite() && threshold_gpu_s >= 0.0 {
            return Ok(Self { threshold_gpu_s, demoted: Vec::new() });
        }
        let (owner, what) = ("tiresias".to_owned(), "the queue threshold in GPU-seconds");
        Err(Error::OutOfRange { owner, what, value: threshold_gpu_s, allowed: "a finite number, at least 0" })
    }

    /// Trials that are not pinned, first queue first.
    fn queue(&mut self, instance: &Instance) -> Vec<usize> {
        let position: BTreeMap<TrialId, usize> =
            instance.trials.iter().map(|trial| trial.id).zip(0..).collect();
        self.demoted.retain(|id| position.contains_key(id));
        let known: BTreeSet<TrialId> = self.demoted.iter().copied().collect();
        let served = instance.trials.iter().filter(|trial| trial.attained_gpu_s >= self.threshold_gpu_s);
        self.demoted.extend(served.map(|trial| trial.id).filter(|id| !known.contains(id)));
        let second: BTreeSet<TrialId> = self.demoted.iter().copied().collect();
        let first = instance.trials.iter().map(|trial| trial.id).filter(|id| !second.contains(id));
        let both = first.chain(self.demoted.iter().copied()).map(|id| position[&id]);
        both.filter(|&trial| !instance.trials[trial].pinned).collect()
    }
}

impl Policy for TiresiasPolicy {
    fn name(&self) -> &'static str {
        "tiresias"
    }

    fn allocate(&mut self, problem: &Problem, _rng: &mut ChaCha8Rng) -> Result<Plan, Error> {
        let instance = Instance::new(problem)?;
        let mut placer = Placer::new(&instance);
        let queue = self.queue(&instance);
        let admitted = admit(&instance, &queue, placer.free_by_pool());
        for &(trial, pool, gpus) in &admitted {
            if instance.home(trial) == Some(pool) && gpus_of(&instance.trials[trial].current) == gpus {
                placer.keep(trial);
            }
        }
        for &(trial, pool, gpus) in &admitted {
            if !placer.has(trial) {
                placer.spread(trial, pool, gpus);
            }
        }
        for &trial in &queue {
            if !placer.has(trial) {
                fill_gap(&instance, &mut placer, trial);
            }
        }
        Plan::from_rows(problem, &instance, &placer.into_rows(), None)
    }
}

/// Who runs, by numbers of GPUs alone.
fn admit(instance: &Instance, queue: &[usize], mut left: Vec<u32>) -> Vec<Admission> {
    let mut admitted = Vec::new();
    for &trial in queue {
        let Some((gpus, mut pools)) = request(instance, trial) else { continue };
        sort_pools(instance, trial, &mut pools, &left);
        if let Some(&pool) = pools.iter().find(|&&pool| left[pool] >= gpus) {
            left[pool] -= gpus;
            admitted.push((trial, pool, gpus));
        }
    }
    admitted
}

/// Places a trial on what others could not use after all.
fn fill_gap(instance: &Instance, placer: &mut Placer, trial: usize) {
    let Some((gpus, mut pools)) = request(instance, trial) else { return };
    if gpus_of(&instance.trials[trial].current) == gpus && placer.keep(trial) {
        return;
    }
    sort_pools(instance, trial, &mut pools, &placer.free_by_pool());
    pools.into_iter().any(|pool| placer.spread(trial, pool, gpus));
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::{
        super::placement::tests::{problem, running, shown, trial},
        *,
    };
    use crate::alloc::{Reason, TrialRequest};

    fn solve(problem: &Problem) -> Plan {
        TiresiasPolicy::new(100.0).unwrap().allocate(problem, &mut ChaCha8Rng::seed_from_u64(0)).unwrap()
    }

    #[test]
    fn a_served_trial_gives_way_and_a_small_one_overtakes() {
        let served = TrialRequest { attained_gpu_s: 100.0, ..running(0, 4, &[(0, 4)]) };
        let plan = solve(&problem("2x4xt4", vec![served, trial(1, 6), trial(2, 4), trial(3, 2)]));
        assert_eq!(shown(&plan), "none | 4@0 2@1 | none | 2@1");
        let reasons: Vec<_> = plan.placements.iter().map(|decision| decision.reason).collect();
        assert_eq!(reasons, [Reason::Preempted, Reason::Started, Reason::Waiting, Reason::Started]);
    }

    #[test]
    fn the_second_queue_is_in_the_order_of_demotion() {
        let mut policy = TiresiasPolicy::new(100.0).unwrap();
        let mut ask = |served: [f64; 2]| {
            let trials =
                (0..2).map(|id| TrialRequest { attained_gpu_s: served[id as usize], ..trial(id, 4) });
            let question = problem("1x4xt4", trials.collect());
            shown(&policy.allocate(&question, &mut ChaCha8Rng::seed_from_u64(0)).unwrap())
        };
        assert_eq!(ask([0.0, 100.0]), "4@0 | none");
        assert_eq!(ask([100.0, 100.0]), "none | 4@0");
    }

    #[test]
    fn running_trials_keep_their_nodes_and_new_ones_take_the_emptiest() {
        let plan = solve(&problem("3x4xt4", vec![trial(0, 1), running(1, 2, &[(0, 2)]), trial(2, 4)]));
        assert_eq!(shown(&plan), "1@1 | 2@0 | 4@2");
    }

    #[test]
    fn gpus_that_interference_keeps_from_one_trial_go_to_the_next() {
        // Trial 2 could only span nodes 0 and 1 like trial 0, so trial 3, not admitted by count, runs.
        let spread = running(0, 4, &[(0, 2), (1, 2)]);
        let plan = solve(&problem("2x4xt4", vec![spread, trial(1, 1), trial(2, 3), trial(3, 1)]));
        assert_eq!(shown(&plan), "2@0 2@1 | 1@0 | none | 1@1");
    }

    #[test]
    fn the_threshold_must_be_a_number() {
        assert!(TiresiasPolicy::new(f64::NAN).is_err() && TiresiasPolicy::new(-1.0).is_err());
    }
}
