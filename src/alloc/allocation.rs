use std::{collections::BTreeMap, fmt};

use crate::{goodput::Shape, ids::NodeId};

/// The GPUs of one trial: how many on which node. Empty while the trial waits.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Allocation(BTreeMap<NodeId, u32>);

impl Allocation {
    /// No GPUs.
    #[must_use]
    pub const fn none() -> Self {
        Self(BTreeMap::new())
    }

    /// All GPUs of an allocation.
    #[must_use]
    pub fn gpus(&self) -> u32 {
        self.0.values().copied().fold(0, u32::saturating_add)
    }

    /// Whether there are no GPUs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it spans more than one node.
    #[must_use]
    pub fn is_distributed(&self) -> bool {
        self.0.len() > 1
    }

    /// GPUs on one node.
    #[must_use]
    pub fn on(&self, node: NodeId) -> u32 {
        self.0.get(&node).copied().unwrap_or(0)
    }

    /// Nodes with the number of GPUs used there, by node number.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, u32)> {
        self.0.iter().map(|(node, gpus)| (*node, *gpus))
    }

    /// What the throughput model sees of it; none when it is empty.
    #[must_use]
    pub fn shape(&self) -> Option<Shape> {
        Shape::new(self.gpus(), self.0.len() as u32).ok()
    }
}

impl FromIterator<(NodeId, u32)> for Allocation {
    /// Counts for the same node add up; zeros are dropped.
    fn from_iter<I: IntoIterator<Item = (NodeId, u32)>>(counts: I) -> Self {
        let mut nodes = BTreeMap::new();
        for (node, gpus) in counts {
            if gpus > 0 {
                let held: &mut u32 = nodes.entry(node).or_default();
                *held = held.saturating_add(gpus);
            }
        }
        Self(nodes)
    }
}

impl fmt::Display for Allocation {
    /// `4@0 2@1`: four GPUs of node 0, two of node 1.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (position, (node, gpus)) in self.iter().enumerate() {
            let space = if position == 0 { "" } else { " " };
            write!(f, "{space}{gpus}@{node}")?;
        }
        Ok(())
    }
}
