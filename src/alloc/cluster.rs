use std::{collections::BTreeMap, fmt};

use super::Error;
use crate::goodput::GpuType;

/// The number of a node. It stays the same while other nodes come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One machine: some GPUs of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The type of all its GPUs.
    pub gpu_type: GpuType,
    /// How many of its GPUs can be used now.
    pub gpus: u32,
    /// The network island it belongs to, such as a rack or a Slurm partition. A trial never spans two groups.
    pub group: u32,
}

/// The machines that trials can be placed on. Nodes and GPUs may come and go between two questions.
///
/// ```
/// use pollux_tune::alloc::{Cluster, NodeId};
/// let mut cluster = Cluster::parse("2x8xa100, 4x4xt4")?;
/// assert_eq!(cluster.total_gpus(), 32);
/// cluster.set_gpus(NodeId(1), 7)?; // one GPU of the second node died
/// assert_eq!(cluster.total_gpus(), 31);
/// # Ok::<(), pollux_tune::alloc::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cluster {
    nodes: BTreeMap<NodeId, Node>,
}

impl Cluster {
    /// A cluster without nodes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads `NODESxGPUSxTYPE` terms with commas between, such as `16x4xt4` or `2x8xa100,4x4xt4`.
    /// Nodes are numbered from 0 in that order, all in one group.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut cluster = Self::new();
        for term in text.split(',') {
            let bad = || Error::BadCluster { text: term.trim().to_owned() };
            let mut parts = term.trim().splitn(3, 'x');
            let mut count =
                || parts.next().and_then(|part| part.trim().parse::<u32>().ok()).filter(|&n| n > 0);
            let (nodes, gpus) = (count().ok_or_else(bad)?, count().ok_or_else(bad)?);
            let gpu_type = parts.next().and_then(|name| GpuType::new(name).ok()).ok_or_else(bad)?;
            for _ in 0..nodes {
                let id = NodeId(cluster.nodes.len() as u32);
                cluster.add(id, Node { gpu_type: gpu_type.clone(), gpus, group: 0 })?;
            }
        }
        Ok(cluster)
    }

    /// Adds a node under a number that is not taken.
    pub fn add(&mut self, id: NodeId, node: Node) -> Result<(), Error> {
        if self.nodes.contains_key(&id) {
            return Err(Error::DuplicateNode(id));
        }
        self.nodes.insert(id, node);
        Ok(())
    }

    /// Takes a node away, and returns it.
    pub fn remove(&mut self, id: NodeId) -> Result<Node, Error> {
        self.nodes.remove(&id).ok_or(Error::UnknownNode(id))
    }

    /// Changes how many GPUs of a node can be used: one died, or came back.
    pub fn set_gpus(&mut self, id: NodeId, gpus: u32) -> Result<(), Error> {
        self.nodes.get_mut(&id).ok_or(Error::UnknownNode(id))?.gpus = gpus;
        Ok(())
    }

    /// The node of this number.
    #[must_use]
    pub fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    /// All nodes, by number.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().map(|(id, node)| (*id, node))
    }

    /// How many nodes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// All GPUs of all nodes.
    #[must_use]
    pub fn total_gpus(&self) -> u32 {
        self.nodes.values().map(|node| node.gpus).sum()
    }

    /// For each GPU type, the GPUs of the largest node and of all nodes.
    #[must_use]
    pub fn gpus_by_type(&self) -> BTreeMap<GpuType, (u32, u32)> {
        let mut by_type = BTreeMap::new();
        for node in self.nodes.values() {
            let (largest, total) = by_type.entry(node.gpu_type.clone()).or_insert((0, 0));
            *largest = node.gpus.max(*largest);
            *total += node.gpus;
        }
        by_type
    }
}
