//! Branch and bound over every row of every trial: proves the optimum of small problems.

use super::{dual::Dual, state::State};
use crate::{
    alloc::instance::{Instance, Pool, Row, gpus_of},
    goodput::Tier,
};

/// A search is worth it only while a trial has at most this many rows to choose from.
const ROWS_MAX: u64 = 5_000;
const TRIALS_MAX: usize = 16;

/// Whether the problem is small enough to be tried.
pub(super) fn is_small(instance: &Instance, state: &State) -> bool {
    let rows_of = |pool: &Pool| {
        pool.nodes.iter().fold(1u64, |rows, &node| rows.saturating_mul(u64::from(state.free[node]) + 1))
    };
    let rows = instance.pools.iter().map(rows_of).fold(0u64, u64::saturating_add);
    rows <= ROWS_MAX && state.menus.iter().flatten().count() <= TRIALS_MAX
}

pub(super) struct Exact<'a, 'b> {
    state: State<'a>,
    dual: &'b Dual,
    order: Vec<usize>,
    /// By depth, what the trials from there on can gain at most at the prices.
    ahead: Vec<f64>,
    /// Nodes that some trial could stay on are not interchangeable with others.
    special: Vec<bool>,
    best_total: f64,
    best_rows: Option<Vec<Row>>,
    budget: u64,
}

/// The answer of the search.
pub(super) struct Proof {
    /// A better plan than the one that was given, if there is one.
    pub(super) rows: Option<Vec<Row>>,
    /// Everything was searched: the better of the two plans is optimal.
    pub(super) complete: bool,
}

impl<'a, 'b> Exact<'a, 'b> {
    /// `state` has only pinned trials placed; `incumbent` is the sum of utilities to beat.
    pub(super) fn new(state: State<'a>, dual: &'b Dual, incumbent: f64, budget: u64) -> Self {
        let gain = |trial: usize| dual.gains[trial];
        let mut order: Vec<usize> =
            (0..state.rows.len()).filter(|&trial| state.menus[trial].is_some()).collect();
        order.sort_by(|&a, &b| gain(a).total_cmp(&gain(b)).then(a.cmp(&b)));
        let mut ahead = vec![0.0; order.len() + 1];
        for depth in (0..order.len()).rev() {
            ahead[depth] = ahead[depth + 1] + gain(order[depth]);
        }
        let mut special = vec![false; state.free.len()];
        for &trial in &order {
            state.instance.trials[trial].current.iter().for_each(|&(node, _)| special[node] = true);
        }
        Self { state, dual, order, ahead, special, best_total: incumbent, best_rows: None, budget }
    }

    pub(super) fn run(mut self) -> Proof {
        self.descend(0, 0.0);
        Proof { rows: self.best_rows, complete: self.budget > 0 }
    }

    fn descend(&mut self, depth: usize, total: f64) {
        let Some(&trial) = self.order.get(depth) else {
            if total > self.threshold() {
                self.best_total = total;
                self.best_rows = Some(self.state.rows.clone());
            }
            return;
        };
        let value_free: f64 = self
            .state
            .instance
            .nodes
            .iter()
            .zip(&self.state.free)
            .map(|(node, &free)| self.dual.prices[node.pool] * f64::from(free))
            .sum();
        let others = total + value_free + self.ahead[depth + 1];
        for (reduced, utility, row) in self.rows(trial, self.threshold() - others) {
            // Rows come best first, so the rest cannot do better either.
            if self.budget == 0 || others + reduced <= self.threshold() {
                return;
            }
            self.state.put(trial, row);
            self.descend(depth + 1, total + utility);
            self.state.clear(trial);
        }
    }

    /// What a plan must exceed to be better than the best so far.
    fn threshold(&self) -> f64 {
        self.best_total + 1e-12 * (1.0 + self.best_total.abs())
    }

    /// Every row that fits and whose utility minus price is above `min`, up to exchanging like nodes, with utility
    /// minus price and utility; best first. Every row that is looked at counts.
    fn rows(&mut self, trial: usize, min: f64) -> Vec<(f64, f64, Row)> {
        let instance = self.state.instance;
        let mut rows = Vec::new();
        let Some(menu) = &self.state.menus[trial] else { return rows };
        let mut looked_at = 2;
        rows.push((menu.idle, menu.idle, Row::new()));
        let current = &instance.trials[trial].current;
        if let Some(keep) = menu.keep.filter(|_| self.state.fits(current)) {
            let price: f64 = current
                .iter()
                .map(|&(node, gpus)| self.dual.prices[instance.nodes[node].pool] * f64::from(gpus))
                .sum();
            rows.push((keep - price, keep, current.clone()));
        }
        for (pool, choices) in menu.pools.iter().enumerate() {
            let price = self.dual.prices[pool];
            self.each_row(&instance.pools[pool].nodes, &mut Row::new(), &mut |row| {
                let tier = Tier::spanning(row.len());
                let gpus = gpus_of(row);
                let utility = choices.utility(tier, gpus);
                let reduced = price.mul_add(-f64::from(gpus), utility);
                looked_at += 1;
                if reduced > min && row != current && self.state.fits(row) {
                    rows.push((reduced, utility, row.clone()));
                }
            });
        }
        self.budget = self.budget.saturating_sub(looked_at);
        rows.sort_by(|a, b| b.0.total_cmp(&a.0));
        rows
    }

    fn each_row(&self, nodes: &[usize], row: &mut Row, visit: &mut impl FnMut(&Row)) {
        let Some((&node, others)) = nodes.split_first() else {
            if !row.is_empty() {
                visit(row);
            }
            return;
        };
        self.each_row(others, row, visit);
        for gpus in 1..=self.state.free[node] {
            row.push((node, gpus));
            if self.is_canonical(row, node, gpus) {
                self.each_row(others, row, visit);
            }
            row.pop();
        }
    }

    /// Among like nodes the earlier ones are used first, and get the larger numbers.
    fn is_canonical(&self, row: &Row, node: usize, gpus: u32) -> bool {
        let alike = |other: usize| {
            !self.special[other]
                && self.state.instance.nodes[other].pool == self.state.instance.nodes[node].pool
                && self.state.free[other] == self.state.free[node]
                && self.state.spread[other] == self.state.spread[node]
        };
        self.special[node]
            || (0..node).filter(|&other| alike(other)).all(|other| {
                row.iter().find(|&&(used, _)| used == other).is_some_and(|&(_, used)| used >= gpus)
            })
    }
}
