//! From prices to a plan: place what the prices suggest, then improve pairs of nodes until nothing helps.

use std::cmp::Reverse;

use super::{
    dual::Dual,
    menu::{Menu, PoolMenu},
    pair::PairSearch,
    state::State,
};
use crate::{
    alloc::instance::{Row, gpus_of},
    goodput::Tier,
};

/// Below this many nodes every pair is looked at; above, each node meets a few partners.
const ALL_PAIRS: usize = 24;
/// Nodes whose product of GPUs is above this are divided without needless spreading.
const LEAN: u32 = 36;
/// Nodes are divided together as long as there are at most this many ways to use their GPUs, else one by one.
const STATES_MAX: u32 = 10_000;
/// Waiting trials that are offered to a pair of nodes.
const OFFERED: usize = 2;

/// What becomes of a trial whose chosen pool is full.
#[derive(Clone, Copy)]
pub(super) enum Overflow {
    /// The best of the other pools at the prices.
    Elsewhere,
    /// It takes what all others leave.
    Last,
}

/// Every trial gets what it would choose at the prices, if it can be placed; otherwise the best that is left. Returns
/// whether a chosen pool was full, so that `overflow` made a difference.
pub(super) fn construct(state: &mut State, dual: &Dual, overflow: Overflow) -> bool {
    let mut wanted: Vec<(usize, usize, u32)> = Vec::new();
    for (trial, menu) in state.menus.iter().enumerate() {
        let Some(menu) = menu else { continue };
        let Some((pool, gpus)) = menu.choose(&dual.prices).0 else { continue };
        let current = &state.instance.trials[trial].current;
        let home = current.first().is_some_and(|&(node, _)| state.instance.nodes[node].pool == pool);
        if home && gpus_of(current) == gpus && menu.keep.is_some() && state.fits(current) {
            state.put(trial, current.clone());
        } else {
            wanted.push((trial, pool, gpus));
        }
    }
    wanted.sort_by_key(|&(trial, _, gpus)| (Reverse(gpus), trial));
    let mut overflowed = false;
    for (trial, pool, gpus) in wanted {
        let Some(menu) = &state.menus[trial] else { continue };
        let placed = place(state, &menu.pools[pool], pool, gpus).or_else(|| {
            overflowed = true;
            match overflow {
                Overflow::Elsewhere => elsewhere(state, menu, dual),
                Overflow::Last => None,
            }
        });
        if let Some((_, row)) = placed {
            state.put(trial, row);
        }
    }
    fill(state);
    overflowed
}

/// A row for this many GPUs of a pool, on one node if there is one, with its utility.
fn place(state: &State, choices: &PoolMenu, pool: usize, gpus: u32) -> Option<(f64, Row)> {
    let utility = |tier| Some(choices.utility(tier, gpus)).filter(|utility| *utility > f64::NEG_INFINITY);
    let alone = Some(state.tightest(pool, gpus)).filter(|row| !row.is_empty());
    utility(Tier::Local).zip(alone).or_else(|| utility(Tier::Node).zip(state.several(pool, gpus)))
}

/// Where the chosen pool is full, the best at the prices of what others would still hold. Pools that are alike have the
/// same price, and all trials choose the first of them.
fn elsewhere(state: &State, menu: &Menu, dual: &Dual) -> Option<(f64, Row)> {
    let mut best = (menu.idle, None);
    for (pool, (choices, &price)) in menu.pools.iter().zip(&dual.prices).enumerate() {
        let gpus = choices.demand(price).0 as u32;
        if let Some(found) = place(state, choices, pool, gpus).filter(|_| gpus > 0) {
            let gain = price.mul_add(-f64::from(gpus), found.0);
            if gain > best.0 {
                best = (gain, Some(found));
            }
        }
    }
    best.1
}

/// Everybody keeps the GPUs they have; who has none takes what is left.
pub(super) fn keep(state: &mut State) {
    for trial in 0..state.rows.len() {
        let current = &state.instance.trials[trial].current;
        let kept = state.menus[trial].as_ref().is_some_and(|menu| menu.keep.is_some());
        if kept && state.rows[trial].is_empty() && state.fits(current) {
            state.put(trial, current.clone());
        }
    }
    fill(state);
}

/// Lets each trial in turn take the best of what is free, those without GPUs first.
fn fill(state: &mut State) {
    let mut order: Vec<usize> = (0..state.rows.len()).filter(|&trial| state.menus[trial].is_some()).collect();
    order.sort_by_key(|&trial| (!state.rows[trial].is_empty(), trial));
    for trial in order {
        let (old, before) = (state.rows[trial].clone(), state.utilities[trial]);
        state.clear(trial);
        let row = state.best_row(trial);
        state.put(trial, row);
        if state.utilities[trial] < before {
            state.clear(trial);
            state.put(trial, old);
        }
    }
}

/// Improves pairs of nodes until none gets better or `effort` inner steps are spent.
pub(super) fn improve(state: &mut State, search: &mut PairSearch, dual: &Dual, effort: u64) {
    let nodes: Vec<usize> =
        (0..state.free.len()).filter(|&node| state.instance.nodes[node].gpus > 0).collect();
    search.limit = search.steps.saturating_add(effort);
    let eager = eager(state, dual);
    if let [only] = nodes[..] {
        let offered = waiting(state, &eager, state.instance.nodes[only].gpus as usize + OFFERED);
        search.improve(state, &[only], &offered, dual, false);
        return;
    }
    // The versions of both nodes when a pair was last looked at: unchanged nodes need no second look.
    let mut seen = vec![(u32::MAX, u32::MAX); nodes.len() * strides(nodes.len()).len()];
    loop {
        let mut better = false;
        for (turn, stride) in strides(nodes.len()).into_iter().enumerate() {
            for first in 0..nodes.len() {
                let second = first + stride;
                if second >= nodes.len() || search.steps >= search.limit {
                    break;
                }
                let pair = [nodes[first], nodes[second]];
                let versions = (state.version[pair[0]], state.version[pair[1]]);
                let slot = &mut seen[turn * nodes.len() + first];
                if *slot == versions {
                    continue;
                }
                *slot = versions;
                let [a, b] = pair.map(|node| state.instance.nodes[node].gpus);
                let offered = waiting(state, &eager, OFFERED);
                if (a + 1) * (b + 1) > STATES_MAX {
                    for node in pair {
                        better |= search.improve(state, &[node], &offered, dual, true);
                    }
                } else {
                    better |= search.improve(state, &pair, &offered, dual, a * b > LEAN);
                }
            }
        }
        if !better || search.steps >= search.limit {
            return;
        }
    }
}

/// Distances between nodes that are paired.
fn strides(nodes: usize) -> Vec<usize> {
    if nodes <= ALL_PAIRS {
        return (1..nodes).collect();
    }
    [1, 2, 3, 5, 8, 13].into_iter().filter(|&stride| stride < nodes).collect()
}

/// Trials by what they gain from GPUs at the prices, most first.
fn eager(state: &State, dual: &Dual) -> Vec<usize> {
    let gain = |(trial, menu): (usize, &Option<Menu>)| {
        menu.as_ref().map(|menu| (dual.gains[trial] - menu.idle, trial))
    };
    let mut gains: Vec<(f64, usize)> = state.menus.iter().enumerate().filter_map(gain).collect();
    gains.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    gains.into_iter().map(|(_, trial)| trial).collect()
}

/// The first few of `eager` that have no GPUs.
fn waiting(state: &State, eager: &[usize], max: usize) -> Vec<usize> {
    eager.iter().copied().filter(|&trial| state.rows[trial].is_empty()).take(max).collect()
}
