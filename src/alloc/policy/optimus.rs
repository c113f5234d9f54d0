use rand_chacha::ChaCha8Rng;

use super::{
    Error, Plan, Policy, Problem,
    instance::{Instance, gpus_of},
    placement::{Placer, sort_pools},
};

/// `optimus`: GPUs go one by one to the trial whose time left shrinks most (Peng et al., 2018), with an
/// oracle's knowledge of the work left, as Pollux was compared with it.
///
/// In the order of the problem every trial gets the smallest number of GPUs it runs with, while there are any. Then
/// the trial with the largest `remaining / goodput(k) - remaining / goodput(k + 1)` gets
/// one more, k GPUs on as few nodes as hold them, until nobody gains. Trials whose number did not change keep
/// their nodes; the others are placed in ascending size on the nodes with most free GPUs. What moving costs
/// plays no part.
///
/// A trial considers the GPU type it has or, when it waits or nothing is left there, the one with most GPUs
/// left. The original knows neither interference nor trials that cannot span nodes: where such a trial finds
/// no place for its number of GPUs it gets fewer.
#[derive(Debug, Clone, Copy, Default)]
pub struct OptimusPolicy;

/// GPUs granted to one trial, before they are placed.
#[derive(Debug, Clone, Copy)]
struct Grant {
    trial: usize,
    pool: usize,
    min: u32,
    gpus: u32,
}

impl Policy for OptimusPolicy {
    fn name(&self) -> &'static str {
        "optimus"
    }

    fn allocate(&mut self, problem: &Problem, _rng: &mut ChaCha8Rng) -> Result<Plan, Error> {
        let instance = Instance::new(problem)?;
        let mut placer = Placer::new(&instance);
        let mut left = placer.free_by_pool();
        let mut grants = first_grants(&instance, &mut left);
        grow(&instance, &mut grants, &mut left);
        place(&instance, &mut placer, grants);
        Plan::from_rows(problem, &instance, &placer.into_rows(), None)
    }
}

/// The smallest number of GPUs for every trial, while there are any.
fn first_grants(instance: &Instance, left: &mut [u32]) -> Vec<Grant> {
    let mut grants = Vec::new();
    for trial in 0..instance.trials.len() {
        let data = &instance.trials[trial];
        if data.pinned {
            continue;
        }
        let mut pools: Vec<usize> = (0..instance.pools.len()).collect();
        sort_pools(instance, trial, &mut pools, left);
        let grant = pools.into_iter().find_map(|pool| {
            let largest = data.largest_in(pool).min(left[pool]);
            let min = (data.min..=largest).find(|&gpus| instance.packed_speedup(trial, pool, gpus) > 0.0)?;
            Some(Grant { trial, pool, min, gpus: min })
        });
        if let Some(grant) = grant {
            left[grant.pool] -= grant.gpus;
            grants.push(grant);
        }
    }
    grants
}

/// One GPU after another to the trial that gains most, the first among equals.
fn grow(instance: &Instance, grants: &mut [Grant], left: &mut [u32]) {
    let mut gains: Vec<f64> = grants.iter().map(|grant| gain_s(instance, grant)).collect();
    loop {
        let mut best: Option<usize> = None;
        for (index, grant) in grants.iter().enumerate() {
            let open = left[grant.pool] > 0 && gains[index] > 0.0;
            if open && best.is_none_or(|best| gains[index] > gains[best]) {
                best = Some(index);
            }
        }
        let Some(index) = best else { return };
        let grant = &mut grants[index];
        grant.gpus += 1;
        left[grant.pool] -= 1;
        gains[index] = gain_s(instance, grant);
    }
}

/// Seconds by which one more GPU would shorten a trial; 0 where it cannot use one more.
fn gain_s(instance: &Instance, grant: &Grant) -> f64 {
    let data = &instance.trials[grant.trial];
    // A trial at its end, or of unknown length, counts as one unit of work, so that it takes what nobody else
    // wants.
    let remaining = data.remaining.max(1.0);
    let time_s =
        |gpus| remaining / (instance.packed_speedup(grant.trial, grant.pool, gpus) * data.fair_goodput);
    let (now, then) = (time_s(grant.gpus), time_s(grant.gpus.saturating_add(1)));
    if then.is_finite() { now - then } else { 0.0 }
}

fn place(instance: &Instance, placer: &mut Placer, mut grants: Vec<Grant>) {
    grants.retain(|grant| {
        let same = gpus_of(&instance.trials[grant.trial].current) == grant.gpus;
        !(same && instance.home(grant.trial) == Some(grant.pool) && placer.keep(grant.trial))
    });
    grants.sort_by_key(|grant| grant.gpus);
    for grant in grants {
        (grant.min..=grant.gpus).rev().any(|gpus| placer.spread(grant.trial, grant.pool, gpus));
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::{
        super::placement::tests::{problem, running, shown, trial},
        *,
    };
    use crate::alloc::{Reason, RemainingWork, TrialRequest};

    fn solve(problem: &Problem) -> Plan {
        OptimusPolicy.allocate(problem, &mut ChaCha8Rng::seed_from_u64(0)).unwrap()
    }

    fn long(trial: TrialRequest, examples: f64) -> TrialRequest {
        TrialRequest { remaining: RemainingWork::Examples(examples), ..trial }
    }

    #[test]
    fn gpus_go_where_they_save_most_time() {
        // With k^0.8, the gains of 1 -> 2, 2 -> 3, 3 -> 4 GPUs are 0.43, 0.16 and 0.09 of the time on one
        // GPU.
        let trials = vec![long(trial(0, 1), 100.0), long(trial(1, 1), 1000.0), long(trial(2, 1), 10.0)];
        assert_eq!(shown(&solve(&problem("1x6xt4", trials))), "1@0 | 4@0 | 1@0");
    }

    #[test]
    fn absolute_goodput_counts_not_speedup() {
        let mut fast = long(trial(0, 1), 1000.0);
        let curve = crate::goodput::Curve::build(4, 4, |shape| 100.0 * f64::from(shape.gpus()).powf(0.8));
        let t4 = crate::ids::GpuType::new("t4").unwrap();
        fast.table = std::sync::Arc::new([(t4, curve.unwrap())].into_iter().collect());
        assert_eq!(shown(&solve(&problem("1x3xt4", vec![fast, long(trial(1, 1), 1000.0)]))), "1@0 | 2@0");
    }

    #[test]
    fn unchanged_trials_keep_their_nodes_and_later_ones_wait() {
        let capped = TrialRequest { max_gpus: 1, ..running(0, 1, &[(1, 1)]) };
        let plan = solve(&problem("2x1xt4", vec![capped, trial(1, 1), trial(2, 1)]));
        assert_eq!(shown(&plan), "1@1 | 1@0 | none");
        assert_eq!(plan.placements[2].reason, Reason::Waiting);
    }

    #[test]
    fn a_distributed_trial_that_would_collide_gets_fewer_gpus() {
        let wide = |id| TrialRequest { min_gpus: 3, max_gpus: 6, ..long(trial(id, 1), 10.0) };
        let mut question = problem("3x4xt4", vec![wide(0), wide(1)]);
        assert_eq!(shown(&solve(&question)), "4@0 2@1 | 4@2");
        question.avoid_interference = false;
        assert_eq!(shown(&solve(&question)), "4@0 2@1 | 2@1 4@2");
    }
}
