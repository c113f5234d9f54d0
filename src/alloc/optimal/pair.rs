//! The exact best division of two nodes among the trials on them: the step of the local search.
//!
//! A dynamic program over the trials; its states are the GPUs used on either node and whether a distributed trial is
//! there already. Moving, growing, shrinking, swapping and evicting trials are all special cases.

use super::{
    menu::{Menu, PoolMenu},
    state::State,
};
use crate::{alloc::instance::Row, goodput::Tier};

/// A share of the two nodes for one trial.
#[derive(Clone, Copy)]
struct Share {
    gpus: [u32; 2],
    /// Bit i: it is distributed and uses node i.
    spread: usize,
    utility: f64,
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
}

const UNREACHED: f64 = f64::NEG_INFINITY;
/// A new plan must be better by more than rounding.
const TOLERANCE: f64 = 1e-9;

impl PairSearch {
    /// Divides two nodes (or one, where there is no other) anew among their trials and `waiting` ones. Returns
    /// whether the plan got better.
    pub(super) fn improve(
        &mut self,
        state: &mut State,
        nodes: &[usize],
        waiting: &[usize],
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
        if self.trials.is_empty() {
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
        for (position, &trial) in self.trials.iter().enumerate() {
            list_shares(state, trial, nodes, room, lean, &mut self.shares[position]);
        }
        let before: f64 = self.trials.iter().map(|&trial| state.utilities[trial]).sum();
        let (best, value) = self.solve(room, blocked);
        if value <= before + TOLERANCE * (1.0 + before.abs()) {
            return false;
        }
        self.apply(state, nodes, room, best);
        true
    }

    /// Fills the table; the answer is the best final state and its value.
    fn solve(&mut self, room: [u32; 2], blocked: usize) -> (usize, f64) {
        let states = (room[0] as usize + 1) * (room[1] as usize + 1) * 4;
        self.values.clear();
        self.values.resize(states, UNREACHED);
        self.values[blocked] = 0.0;
        self.choices.clear();
        self.choices.resize(states * self.trials.len(), 0);
        let stride = (room[1] as usize + 1) * 4;
        for position in 0..self.trials.len() {
            self.next.clear();
            self.next.resize(states, UNREACHED);
            let choices = &mut self.choices[position * states..(position + 1) * states];
            for (number, share) in self.shares[position].iter().enumerate() {
                let [a, b] = share.gpus.map(|gpus| gpus as usize);
                let shift = a * stride + b * 4;
                for used in 0..=room[0] as usize - a {
                    let base = used * stride;
                    for state in base..base + (room[1] as usize + 1 - b) * 4 {
                        let value = self.values[state] + share.utility;
                        if value > UNREACHED && state & share.spread == 0 {
                            let target = state + shift + share.spread;
                            if value > self.next[target] {
                                self.next[target] = value;
                                choices[target] = number as u16;
                            }
                        }
                    }
                }
                self.steps += ((room[0] as usize + 1 - a) * (room[1] as usize + 1 - b)) as u64;
            }
            std::mem::swap(&mut self.values, &mut self.next);
        }
        let best = (0..states)
            .fold(0, |best, state| if self.values[state] > self.values[best] { state } else { best });
        (best, self.values[best])
    }

    fn apply(&self, state: &mut State, nodes: &[usize], room: [u32; 2], best: usize) {
        let states = self.values.len();
        let stride = (room[1] as usize + 1) * 4;
        let mut at = best;
        let mut rows = Vec::with_capacity(self.trials.len());
        for position in (0..self.trials.len()).rev() {
            let share = &self.shares[position][self.choices[position * states + at] as usize];
            at -= share.gpus[0] as usize * stride + share.gpus[1] as usize * 4 + share.spread;
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

/// All shares of the two nodes that a trial could have. `lean` leaves out what is rarely best on large nodes: spreading
/// over both nodes when one would do.
fn list_shares(
    state: &State,
    trial: usize,
    nodes: &[usize],
    room: [u32; 2],
    lean: bool,
    shares: &mut Vec<Share>,
) {
    shares.clear();
    let Some(menu) = &state.menus[trial] else { return };
    let current = &state.instance.trials[trial].current;
    let elsewhere =
        |row: &Row| -> Row { row.iter().copied().filter(|(node, _)| !nodes.contains(node)).collect() };
    let rest = elsewhere(&state.rows[trial]);
    let mut held = [0; 2];
    let mut pools = [state.instance.nodes[nodes[0]].pool; 2];
    for (side, &node) in nodes.iter().enumerate() {
        (held[side], pools[side]) = (gpus_on(current, node), state.instance.nodes[node].pool);
    }
    let keep = menu.keep.filter(|_| elsewhere(current) == rest);
    let outside = Outside {
        gpus: rest.iter().map(|&(_, gpus)| gpus).sum(),
        nodes: rest.len() as u32,
        pool: rest.first().map(|&(node, _)| state.instance.nodes[node].pool),
    };
    let avoid = state.instance.avoid_interference;
    for a in 0..=room[0] {
        for b in 0..=room[1] {
            if lean && a > 0 && b > 0 && outside.nodes == 0 && a + b <= room[0].max(room[1]) {
                continue;
            }
            let gpus = [a, b];
            let mut utility = outside.utility(menu, pools, gpus);
            if let Some(kept) = keep.filter(|_| held == gpus) {
                utility = kept;
            }
            if utility > UNREACHED {
                let distributed = outside.nodes + u32::from(a > 0) + u32::from(b > 0) > 1;
                let spread =
                    if avoid && distributed { usize::from(a > 0) | usize::from(b > 0) << 1 } else { 0 };
                shares.push(Share { gpus, spread, utility });
            }
        }
    }
}

fn gpus_on(row: &Row, node: usize) -> u32 {
    row.iter().find(|&&(other, _)| other == node).map_or(0, |&(_, gpus)| gpus)
}

/// What a trial has beside the two nodes.
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
        let tier = if used > 1 { Tier::Node } else { Tier::Local };
        pool.map_or(UNREACHED, |pool| PoolMenu::utility(&menu.pools[pool], tier, total))
    }
}
