use std::fmt;

use serde::{Deserialize, Serialize};

use super::NodeId;

/// One GPU of a node, or one share of its processors, with its worker process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(NodeId, u32)", into = "(NodeId, u32)")]
pub struct SlotId {
    /// The machine.
    pub node: NodeId,
    /// The place on it, from 0.
    pub index: u32,
}

impl From<(NodeId, u32)> for SlotId {
    fn from((node, index): (NodeId, u32)) -> Self {
        Self { node, index }
    }
}

impl From<SlotId> for (NodeId, u32) {
    fn from(slot: SlotId) -> Self {
        (slot.node, slot.index)
    }
}

impl fmt::Display for SlotId {
    /// `2.0`: the first slot of node 2.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node, self.index)
    }
}
