//! The exact best division of two nodes among the trials on them: the step of the local search.
//!
//! A dynamic program over the trials; its states are the GPUs used on either node and whether a distributed trial is
//! there already. Moving, growing, shrinking, swapping and evicting trials are all special cases.

use super::{
    dual::Dual,
    menu::{Menu, PoolMenu},
    state::State,
};
use crate::{
    alloc::instance::{Row, gpus_of},
    goodput::Tier,
};

/// A share of the two nodes for one trial.
#[derive(Clone, Copy)]
struct Share {
    gpus: [u32; 2],
    /// Bit i: it is distributed and uses node i.
    spread: usize,
    utility: f64,
}

/// How states are numbered: GPUs used on the first node, on the second, and where distributed trials are.
struct Table {
    rows: usize,
    stride: usize,
    flags: usize,
    states: usize,
}

impl Table {
    const fn new(room: [u32; 2], flags: usize) -> Self {
        let (rows, stride) = (room[0] as usize + 1, (room[1] as usize + 1) * flags);
        Self { rows, stride, flags, states: rows * stride }
    }

    /// How far a share moves the state. The lowest bits are the flags, so a free flag is set by adding it.
    const fn shift(&self, share: &Share) -> usize {
        share.gpus[0] as usize * self.stride + share.gpus[1] as usize * self.flags + share.spread
    }
}

/// Buffers that are used again from pair to pair.
#[derive(Default)]
pub(super) struct PairSearch {
    trials: Vec<usize>,
    shares: Vec<Vec<Share>>,
    values: Vec<f64>,
    next: Vec<f64>,
    /// By trial and state, the chosen share.
    choices: Vec<u16>,
    /// Inner steps done, the measure of effort.
    pub(super) steps: u64,
    /// Where the search gives up.
    pub(super) limit: u64,
}

const UNREACHED: f64 = f64::NEG_INFINITY;

impl PairSearch {
    /// Divides two nodes (or one, where there is no other) again among their trials and `waiting` ones. Returns
    /// whether the plan got better.
    pub(super) fn improve(
        &mut self,
        state: &mut State,
        nodes: &[usize],
        waiting: &[usize],
        dual: &Dual,
        lean: bool,
    ) -> bool {
        self.trials.clear();
        for &trial in nodes.iter().flat_map(|&node| &state.on_node[node]) {
            if state.menus[trial].is_some() && !self.trials.contains(&trial) {
                self.trials.push(trial);
            }
        }
        self.trials.extend(waiting.iter().filter(|&&trial| state.rows[trial].is_empty()));
        self.trials.sort_unstable();
        let slack = self.slack(state, nodes, dual);
        let before: f64 = self.trials.iter().map(|&trial| state.utilities[trial]).sum();
        if slack <= dual.rounding * (1.0 + before.abs()) {
            return false;
        }
        let (mut room, mut taken) = ([0; 2], [0; 2]);
        for (side, &node) in nodes.iter().enumerate() {
            (room[side], taken[side]) = (state.free[node], state.spread[node]);
            for row in self.trials.iter().map(|&trial| &state.rows[trial]) {
                let here = gpus_on(row, node);
                room[side] += here;
                taken[side] -= u32::from(here > 0 && row.len() > 1);
            }
        }
        let avoid = state.instance.avoid_interference;
        let blocked = usize::from(avoid && taken[0] > 0) | usize::from(avoid && taken[1] > 0) << 1;
        self.shares.resize_with(self.shares.len().max(self.trials.len()), Vec::new);
        let wish = Wish { nodes, room, lean, dual, slack };
        for (position, &trial) in self.trials.iter().enumerate() {
            wish.list_shares(state, trial, &mut self.shares[position]);
        }
        let spreading = self.shares[..self.trials.len()].iter().flatten().any(|share| share.spread != 0);
        let table = if spreading { Table::new(room, 4) } else { Table::new(room, 1) };
        let (best, value) = self.solve(&table, if spreading { blocked } else { 0 });
        if value <= before + dual.rounding * (1.0 + before.abs()) {
            return false;
        }
        self.apply(state, nodes, &table, best);
        true
    }

    /// The largest gain from dividing the nodes again: what their trials lose against their best choice at the prices,
    /// and what the free GPUs are worth.
    fn slack(&self, state: &State, nodes: &[usize], dual: &Dual) -> f64 {
        let pool = |node: usize| state.instance.nodes[node].pool;
        let free: f64 = nodes.iter().map(|&node| dual.prices[pool(node)] * f64::from(state.free[node])).sum();
        let loss = |&trial: &usize| {
            let row = &state.rows[trial];
            let price = row.first().map_or(0.0, |&(node, _)| dual.prices[pool(node)]);
            dual.gains[trial] - price.mul_add(-f64::from(gpus_of(row)), state.utilities[trial])
        };
        free + self.trials.iter().map(loss).sum::<f64>()
    }

    /// Fills the table; the answer is the best final state and its value, unreachable if the effort was spent before.
    fn solve(&mut self, table: &Table, blocked: usize) -> (usize, f64) {
        self.values.clear();
        self.values.resize(table.states, UNREACHED);
        self.values[blocked] = 0.0;
        self.choices.clear();
        self.choices.resize(table.states * self.trials.len(), 0);
        for position in 0..self.trials.len() {
            if self.steps >= self.limit {
                return (0, UNREACHED);
            }
            self.next.clear();
            self.next.resize(table.states, UNREACHED);
            let choices = &mut self.choices[position * table.states..(position + 1) * table.states];
            for (number, share) in self.shares[position].iter().enumerate() {
                let [a, b] = share.gpus.map(|gpus| gpus as usize);
                let shift = table.shift(share);
                for used in 0..table.rows - a {
                    let base = used * table.stride;
                    for state in base..base + table.stride - b * table.flags {
                        let value = self.values[state] + share.utility;
                        if value > self.next[(state + shift).min(table.states - 1)]
                            && state & share.spread == 0
                        {
                            self.next[state + shift] = value;
                            choices[state + shift] = number as u16;
                        }
                    }
                }
                self.steps += ((table.rows - a) * (table.stride - b * table.flags)) as u64;
            }
            std::mem::swap(&mut self.values, &mut self.next);
        }
        let better = |best, state| if self.values[state] > self.values[best] { state } else { best };
        let best = (0..table.states).fold(0, better);
        (best, self.values[best])
    }

    fn apply(&self, state: &mut State, nodes: &[usize], table: &Table, best: usize) {
        let mut at = best;
        let mut rows = Vec::with_capacity(self.trials.len());
        for position in (0..self.trials.len()).rev() {
            let share = &self.shares[position][self.choices[position * table.states + at] as usize];
            at -= table.shift(share);
            rows.push((self.trials[position], share.gpus));
        }
        let mut placed = Vec::with_capacity(rows.len());
        for (trial, gpus) in rows {
            let mut row = state.clear(trial);
            row.retain(|(node, _)| !nodes.contains(node));
            row.extend(nodes.iter().copied().zip(gpus).filter(|&(_, gpus)| gpus > 0));
            row.sort_unstable();
            placed.push((trial, row));
        }
        for (trial, row) in placed {
            state.put(trial, row);
        }
    }
}

/// Which shares of two nodes are tried.
struct Wish<'a> {
    nodes: &'a [usize],
    room: [u32; 2],
    /// Leaves out what is rarely best on large nodes: spreading over both when one would do.
    lean: bool,
    dual: &'a Dual,
    /// A share that is worse than the best choice at the prices by more than this cannot be part of a better division
    /// (reduced-cost fixing).
    slack: f64,
}

impl Wish<'_> {
    fn list_shares(&self, state: &State, trial: usize, shares: &mut Vec<Share>) {
        shares.clear();
        let Some(menu) = &state.menus[trial] else { return };
        let nodes = self.nodes;
        let current = &state.instance.trials[trial].current;
        let mut held = [0; 2];
        let mut has = [0; 2];
        let mut pools = [state.instance.nodes[nodes[0]].pool; 2];
        for (side, &node) in nodes.iter().enumerate() {
            held[side] = gpus_on(current, node);
            has[side] = gpus_on(&state.rows[trial], node);
            pools[side] = state.instance.nodes[node].pool;
        }
        let elsewhere =
            |row: &'_ Row| row.iter().filter(|(node, _)| !nodes.contains(node)).copied().collect::<Row>();
        let rest = elsewhere(&state.rows[trial]);
        let keep = menu.keep.filter(|_| elsewhere(current) == rest);
        let outside = Outside {
            gpus: gpus_of(&rest),
            nodes: rest.len() as u32,
            pool: rest.first().map(|&(node, _)| state.instance.nodes[node].pool),
        };
        let avoid = state.instance.avoid_interference;
        let min = self.dual.gains[trial] - self.slack;
        for a in 0..=self.room[0] {
            for b in 0..=self.room[1] {
                let gpus = [a, b];
                let needless =
                    a > 0 && b > 0 && outside.nodes == 0 && a + b <= self.room[0].max(self.room[1]);
                if self.lean && needless && gpus != has && gpus != held {
                    continue;
                }
                let kept = keep.filter(|_| held == gpus);
                let utility = kept.unwrap_or_else(|| outside.utility(menu, pools, gpus));
                let pool = if a > 0 {
                    pools[0]
                } else if b > 0 {
                    pools[1]
                } else {
                    outside.pool.unwrap_or(0)
                };
                let price = self.dual.prices[pool] * f64::from(outside.gpus + a + b);
                if utility > UNREACHED && (utility - price >= min || gpus == has) {
                    let distributed = outside.nodes + u32::from(a > 0) + u32::from(b > 0) > 1;
                    let spread =
                        if avoid && distributed { usize::from(a > 0) | usize::from(b > 0) << 1 } else { 0 };
                    shares.push(Share { gpus, spread, utility });
                }
            }
        }
    }
}

fn gpus_on(row: &Row, node: usize) -> u32 {
    row.iter().find(|&&(other, _)| other == node).map_or(0, |&(_, gpus)| gpus)
}

/// What a trial has outside the two nodes.
struct Outside {
    gpus: u32,
    nodes: u32,
    pool: Option<usize>,
}

impl Outside {
    fn utility(&self, menu: &Menu, pools: [usize; 2], gpus: [u32; 2]) -> f64 {
        let total = self.gpus + gpus[0] + gpus[1];
        if total == 0 {
            return menu.idle;
        }
        let used = self.nodes + u32::from(gpus[0] > 0) + u32::from(gpus[1] > 0);
        let mut pool = self.pool;
        for side in 0..2 {
            if gpus[side] > 0 && *pool.get_or_insert(pools[side]) != pools[side] {
                return UNREACHED;
            }
        }
        let tier = Tier::spanning(used as usize);
        pool.map_or(UNREACHED, |pool| PoolMenu::utility(&menu.pools[pool], tier, total))
    }
}
