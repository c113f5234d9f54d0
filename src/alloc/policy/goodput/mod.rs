//! The default policy: FITNESS is a separable sum, so solve it as one.
//!
//! 1. [`menu`]: what every trial gains from every number of GPUs of every pool, or from staying where it is.
//! 2. [`dual`]: the price of a GPU at which demand meets supply, and the bound that follows from it.
//! 3. [`search`]: from the present allocation, divide pairs of nodes again, exactly, until no pair gets better; unless
//!    that is proven optimal, do the same from what trials choose at those prices (in two ways, where not all find a place
//!    in the pool they chose), and take the better plan. So no plan is worse than keeping the present allocation.
//! 4. [`exact`]: on small problems, branch and bound proves the optimum or finds it.

mod dual;
mod exact;
mod menu;
mod pair;
mod search;
mod state;
#[cfg(test)]
mod tests;

use rand_chacha::ChaCha8Rng;

use self::{
    dual::Dual,
    exact::{Exact, is_small},
    menu::Menu,
    pair::PairSearch,
    search::Overflow,
    state::State,
};
use super::{Error, Plan, Policy, Problem, instance::Instance};

/// How much a [`GoodputPolicy`] may search. Budgets are counted, not timed, so that answers repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoodputOptions {
    /// Inner steps of the local search.
    pub local_steps: u64,
    /// Rows looked at by branch and bound; 0 turns it off.
    pub exact_rows: u64,
}

impl Default for GoodputOptions {
    fn default() -> Self {
        Self { local_steps: 20_000_000, exact_rows: 1_000_000 }
    }
}

/// Maximises FITNESS with a proven gap (`goodput`): see [`Plan::gap`]. It draws no random numbers.
///
/// ```
/// use pollux_tune::{alloc::*, goodput::*, ids::*};
/// use rand::SeedableRng;
/// let t4 = GpuType::new("t4")?;
/// let table = GoodputTable::from([(t4, Curve::linear(8, 4))]);
/// let trials = (0..3).map(|id| TrialRequest::new(TrialId(id), table.clone())).collect();
/// let problem = Problem::new(Cluster::parse("2x4xt4")?, trials);
/// let plan = GoodputPolicy::default().allocate(&problem, &mut rand_chacha::ChaCha8Rng::seed_from_u64(0))?;
/// let gpus: Vec<u32> = plan.placements.iter().map(|trial| trial.allocation.gpus()).collect();
/// assert_eq!(gpus.iter().sum::<u32>(), 8);
/// assert_eq!(plan.gap(), Some(0.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct GoodputPolicy {
    options: GoodputOptions,
}

impl GoodputPolicy {
    /// A policy with these budgets.
    #[must_use]
    pub const fn new(options: GoodputOptions) -> Self {
        Self { options }
    }
}

impl Policy for GoodputPolicy {
    fn name(&self) -> &'static str {
        "goodput"
    }

    fn allocate(&mut self, problem: &Problem, _rng: &mut ChaCha8Rng) -> Result<Plan, Error> {
        let instance = Instance::new(problem)?;
        let menus: Vec<Option<Menu>> =
            (0..instance.trials.len()).map(|trial| Menu::new(&instance, trial)).collect();
        let empty = State::new(&instance, &menus);
        let supply: Vec<u32> =
            instance.pools.iter().map(|pool| pool.nodes.iter().map(|&node| empty.free[node]).sum()).collect();
        let dual = Dual::solve(&menus, &supply, instance.fairness.rounding());
        // What runs stays where it is unless moving helps: the plan that grows out of keeping everything comes first, and
        // wins ties.
        let mut search = PairSearch::default();
        let mut best = State::new(&instance, &menus);
        search::keep(&mut best);
        search::improve(&mut best, &mut search, &dual, self.options.local_steps);
        for overflow in [Overflow::Elsewhere, Overflow::Last] {
            if dual.proves(best.total()) {
                break;
            }
            let mut fresh = State::new(&instance, &menus);
            let overflowed = search::construct(&mut fresh, &dual, overflow);
            search::improve(&mut fresh, &mut search, &dual, self.options.local_steps);
            if fresh.total() > best.total() + dual.rounding * (1.0 + best.total().abs()) {
                best = fresh;
            }
            // Where everybody found a place, the other way would build the same plan again.
            if !overflowed {
                break;
            }
        }

        let total = best.total();
        let mut bound = total.max(dual.bound);
        let mut rows = best.rows;
        let pinned = instance.total_utility(&rows) - total;
        if !dual.proves(total) && is_small(&instance, &empty) {
            let proof = Exact::new(empty, &dual, total, self.options.exact_rows).run();
            rows = proof.rows.unwrap_or(rows);
            if proof.complete {
                bound = instance.total_utility(&rows) - pinned;
            }
        }
        Plan::from_rows(problem, &instance, &rows, Some(pinned + bound))
    }
}
