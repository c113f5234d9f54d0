//! A plan in the making: who has what, and what is free.

use super::menu::Menu;
use crate::{
    alloc::instance::{Instance, Row},
    goodput::Tier,
};

pub(super) struct State<'a> {
    pub(super) instance: &'a Instance,
    pub(super) menus: &'a [Option<Menu>],
    pub(super) rows: Vec<Row>,
    pub(super) free: Vec<u32>,
    /// Distributed trials on each node.
    pub(super) spread: Vec<u32>,
    /// Trials on each node.
    pub(super) on_node: Vec<Vec<usize>>,
    /// Grows whenever the trials on a node change.
    pub(super) version: Vec<u32>,
    /// By trial; 0 for pinned ones, of which there is nothing to choose.
    pub(super) utilities: Vec<f64>,
}

impl<'a> State<'a> {
    /// Pinned trials have their GPUs, all others none.
    pub(super) fn new(instance: &'a Instance, menus: &'a [Option<Menu>]) -> Self {
        let trials = instance.trials.len();
        let mut state = Self {
            instance,
            menus,
            rows: vec![Row::new(); trials],
            free: instance.nodes.iter().map(|node| node.gpus).collect(),
            spread: vec![0; instance.nodes.len()],
            on_node: vec![Vec::new(); instance.nodes.len()],
            version: vec![0; instance.nodes.len()],
            utilities: menus.iter().map(|menu| menu.as_ref().map_or(0.0, |menu| menu.idle)).collect(),
        };
        for (trial, data) in instance.trials.iter().enumerate() {
            if data.pinned {
                state.put(trial, data.current.clone());
            }
        }
        state
    }

    /// Sum of the utilities of trials that are not pinned: what can be improved.
    pub(super) fn total(&self) -> f64 {
        self.utilities.iter().sum()
    }

    pub(super) fn clear(&mut self, trial: usize) -> Row {
        let row = std::mem::take(&mut self.rows[trial]);
        for &(node, gpus) in &row {
            self.free[node] += gpus;
            self.spread[node] -= u32::from(row.len() > 1);
            self.on_node[node].retain(|&other| other != trial);
            self.version[node] += 1;
        }
        self.utilities[trial] = self.menus[trial].as_ref().map_or(0.0, |menu| menu.idle);
        row
    }

    /// Gives a trial without GPUs this row, which must fit.
    pub(super) fn put(&mut self, trial: usize, row: Row) {
        for &(node, gpus) in &row {
            self.free[node] -= gpus;
            self.spread[node] += u32::from(row.len() > 1);
            self.on_node[node].push(trial);
            self.version[node] += 1;
        }
        if self.menus[trial].is_some() {
            self.utilities[trial] = self.instance.utility(trial, self.instance.speedup(trial, &row));
        }
        self.rows[trial] = row;
    }

    /// Whether one more distributed trial may use a node.
    pub(super) fn may_spread(&self, node: usize) -> bool {
        !self.instance.avoid_interference || self.spread[node] == 0
    }

    pub(super) fn fits(&self, row: &Row) -> bool {
        row.iter().all(|&(node, gpus)| self.free[node] >= gpus && (row.len() == 1 || self.may_spread(node)))
    }

    /// The best row for a trial without GPUs among what is free: its old GPUs, one node, or several.
    pub(super) fn best_row(&self, trial: usize) -> Row {
        let Some(menu) = &self.menus[trial] else { return Row::new() };
        let current = &self.instance.trials[trial].current;
        let mut best = (menu.idle, Row::new());
        if let Some(keep) = menu.keep.filter(|_| self.fits(current)) {
            best = (keep, current.clone());
        }
        for (pool, choices) in menu.pools.iter().enumerate() {
            let nodes = &self.instance.pools[pool].nodes;
            let room = nodes.iter().map(|&node| self.free[node]).max().unwrap_or(0);
            let gpus = choices.best_upto(Tier::Local, room);
            if gpus > 0 && choices.utility(Tier::Local, gpus) > best.0 {
                best = (choices.utility(Tier::Local, gpus), self.tightest(pool, gpus));
            }
            let room = nodes.iter().filter(|&&node| self.may_spread(node)).map(|&node| self.free[node]).sum();
            let gpus = choices.best_upto(Tier::Node, room);
            if gpus > 1
                && choices.utility(Tier::Node, gpus) > best.0
                && let Some(row) = self.several(pool, gpus)
            {
                best = (choices.utility(Tier::Node, gpus), row);
            }
        }
        best.1
    }

    /// `gpus` GPUs on the node where they leave the least behind; none if no node has as many.
    pub(super) fn tightest(&self, pool: usize, gpus: u32) -> Row {
        let nodes = self.instance.pools[pool].nodes.iter().copied();
        let best = nodes.filter(|&node| self.free[node] >= gpus).min_by_key(|&node| self.free[node]);
        best.map(|node| vec![(node, gpus)]).unwrap_or_default()
    }

    /// `gpus` GPUs on as few nodes as possible, but at least two.
    pub(super) fn several(&self, pool: usize, gpus: u32) -> Option<Row> {
        let mut nodes: Vec<usize> = self.instance.pools[pool]
            .nodes
            .iter()
            .copied()
            .filter(|&node| self.free[node] > 0 && self.may_spread(node))
            .collect();
        nodes.sort_by_key(|&node| (std::cmp::Reverse(self.free[node]), node));
        let mut row = Row::new();
        let mut left = gpus;
        for &node in &nodes {
            if left == 0 {
                break;
            }
            let take = left.min(self.free[node]);
            row.push((node, take));
            left -= take;
        }
        if left > 0 {
            return None;
        }
        if let [(node, all)] = row[..] {
            // One node would hold them all: put the last one elsewhere.
            let other = *nodes.get(1)?;
            row = if all > 1 { vec![(node, all - 1), (other, 1)] } else { return None };
        }
        row.sort_unstable();
        Some(row)
    }
}
