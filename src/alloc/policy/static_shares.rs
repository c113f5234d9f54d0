use rand_chacha::ChaCha8Rng;

use super::{
    Error, Plan, Policy, Problem,
    instance::Instance,
    placement::{Placer, request, sort_pools},
};

/// `static`: every trial gets the GPUs its user asks for and keeps them until it is done, the baseline of the
/// paper's experiment with hyper-parameter search (section 5.3).
///
/// Trials start in the order of the problem, on one node where a node can hold them, else on wholly free
/// nodes of one type. A request above what limits, table or cluster allow is lowered to what they allow. Of
/// several GPU types the one with most free GPUs is taken.
#[derive(Debug, Clone, Copy, Default)]
pub struct StaticPolicy;

impl Policy for StaticPolicy {
    fn name(&self) -> &'static str {
        "static"
    }

    fn allocate(&mut self, problem: &Problem, _rng: &mut ChaCha8Rng) -> Result<Plan, Error> {
        let instance = Instance::new(problem)?;
        let mut placer = Placer::new(&instance);
        let movable = || (0..instance.trials.len()).filter(|&trial| !instance.trials[trial].pinned);
        for trial in movable() {
            placer.keep(trial);
        }
        for trial in movable() {
            if placer.has(trial) {
                continue;
            }
            let Some((gpus, mut pools)) = request(&instance, trial) else { continue };
            sort_pools(&instance, trial, &mut pools, &placer.free_by_pool());
            pools.into_iter().any(|pool| placer.pack(trial, pool, gpus));
        }
        Plan::from_rows(problem, &instance, &placer.into_rows(), None)
    }
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
        StaticPolicy.allocate(problem, &mut ChaCha8Rng::seed_from_u64(0)).unwrap()
    }

    #[test]
    fn running_trials_keep_their_gpus_and_others_wait_for_a_whole_node() {
        let plan = solve(&problem("2x4xt4", vec![trial(0, 3), running(1, 4, &[(0, 2)]), trial(2, 3)]));
        assert_eq!(shown(&plan), "3@1 | 2@0 | none");
        let reasons: Vec<_> = plan.placements.iter().map(|decision| decision.reason).collect();
        assert_eq!(reasons, [Reason::Started, Reason::Kept, Reason::Waiting]);
    }

    #[test]
    fn a_trial_larger_than_a_node_takes_free_nodes_of_one_type() {
        let plan = solve(&problem("1x4xt4,3x4xa100", vec![trial(0, 1), trial(1, 6), trial(2, 4)]));
        assert_eq!(shown(&plan), "1@1 | 4@2 2@3 | 4@0");
    }

    #[test]
    fn requests_are_clamped_to_the_limits() {
        let low = TrialRequest { min_gpus: 2, ..trial(0, 0) };
        let high = TrialRequest { max_gpus: 1, ..trial(1, 9) };
        assert_eq!(shown(&solve(&problem("1x4xt4", vec![low, high]))), "2@0 | 1@0");
    }
}
