//! Machines whose workers cannot reach each other, as far as that shows.
//!
//! Nobody tells which link is broken. But if the group of a trial over two machines gives up while all its workers live (which it does
//! after several rounds without a step), the two are not placed together for a while: the allocator sees one of them as an island of
//! its own. At first that is short, for those that have no other place.

use std::collections::{BTreeMap, BTreeSet};

use super::State;
use crate::ids::{NodeId, SlotId};

/// How long two machines are not placed together; twice as long after each further failure.
const APART_S: f64 = 60.0;
/// The longest.
const LONGEST_S: f64 = 3600.0;

/// Two machines that may not reach each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rift {
    /// How often groups over both have failed since one of them made progress.
    pub failures: u32,
    /// Until when they are not placed together.
    pub until_s: f64,
}

/// The pairs of machines among slots, the smaller number first.
fn pairs(slots: &[SlotId]) -> Vec<(NodeId, NodeId)> {
    let nodes: Vec<NodeId> =
        slots.iter().map(|slot| slot.node).collect::<BTreeSet<_>>().into_iter().collect();
    let with = |(place, &first): (usize, &NodeId)| -> Vec<(NodeId, NodeId)> {
        nodes[place + 1..].iter().map(|&second| (first, second)).collect()
    };
    nodes.iter().enumerate().flat_map(with).collect()
}

impl State {
    /// A group has failed, and all its workers live.
    pub(super) fn break_links(&mut self, at_s: f64, slots: &[SlotId]) {
        for pair in pairs(slots) {
            let rift = self.rifts.entry(pair).or_insert(Rift { failures: 0, until_s: at_s });
            rift.failures = rift.failures.saturating_add(1);
            let doublings = (rift.failures - 1).min(8);
            rift.until_s = at_s + (APART_S * f64::from(1_u32 << doublings)).min(LONGEST_S);
        }
    }

    /// A group has made progress: all its machines reach each other.
    pub(super) fn mend_links(&mut self, slots: &[SlotId]) {
        for pair in pairs(slots) {
            self.rifts.remove(&pair);
        }
    }

    /// A machine has come or gone: what is known of its links is no more.
    pub(super) fn forget_links(&mut self, node: NodeId) {
        self.rifts.retain(|(first, second), _| *first != node && *second != node);
    }

    /// Machines that have to be islands of their own, so that no two of them that cannot reach each other are placed together.
    pub(super) fn apart(&self) -> BTreeSet<NodeId> {
        let mut open: Vec<(NodeId, NodeId)> =
            self.rifts.iter().filter(|(_, rift)| rift.until_s > self.at_s).map(|(pair, _)| *pair).collect();
        let mut apart = BTreeSet::new();
        while !open.is_empty() {
            let mut rifts: BTreeMap<NodeId, usize> = BTreeMap::new();
            for (first, second) in &open {
                *rifts.entry(*first).or_default() += 1;
                *rifts.entry(*second).or_default() += 1;
            }
            // The one with the most is the most likely to be cut off.
            let Some((&worst, _)) = rifts.iter().max_by_key(|(node, count)| (**count, **node)) else { break };
            apart.insert(worst);
            open.retain(|(first, second)| *first != worst && *second != worst);
        }
        apart
    }
}
