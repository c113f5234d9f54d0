use std::collections::BTreeMap;

use super::Error;
use crate::ids::{GpuType, NodeId};

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

impl Node {
    /// A node has at most this many GPUs.
    pub const GPUS_MAX: u32 = 1024;
}

/// The machines that trials can be placed on. Nodes and GPUs may come and go between two questions.
///
/// ```
/// use pollux_tune::{alloc::Cluster, ids::NodeId};
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
    /// A cluster that is read from text has at most this many nodes in a term.
    pub const NODES_MAX: u32 = 65_536;

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
            let mut count = |most: u32| {
                let number = parts.next().and_then(|part| part.trim().parse::<u32>().ok());
                number.filter(|number| (1..=most).contains(number)).ok_or_else(bad)
            };
            let (nodes, gpus) = (count(Self::NODES_MAX)?, count(Node::GPUS_MAX)?);
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
        check_gpus(id, node.gpus)?;
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
        check_gpus(id, gpus)?;
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
        self.nodes.values().map(|node| node.gpus).fold(0, u32::saturating_add)
    }

    /// For each GPU type, the GPUs of its largest node, and how many of its GPUs a trial could have that may have `most`:
    /// what [`GoodputModel::table`](crate::goodput::GoodputModel::table) takes.
    pub fn room(&self, most: u32) -> impl Iterator<Item = (GpuType, u32, u32)> + use<> {
        let mut by_type: BTreeMap<GpuType, (u32, u32)> = BTreeMap::new();
        for node in self.nodes.values() {
            let (largest, total) = by_type.entry(node.gpu_type.clone()).or_default();
            *largest = node.gpus.max(*largest);
            *total = total.saturating_add(node.gpus);
        }
        by_type.into_iter().map(move |(gpu_type, (largest, total))| (gpu_type, largest, total.min(most)))
    }
}

fn check_gpus(id: NodeId, gpus: u32) -> Result<(), Error> {
    if gpus <= Node::GPUS_MAX {
        return Ok(());
    }
    let (owner, value) = (format!("node {id}"), f64::from(gpus));
    Err(Error::OutOfRange { owner, what: "the number of GPUs", value, allowed: "0 to 1024" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_read_and_wrong_ones_are_named() {
        let cluster = Cluster::parse(" 2x8xA100 , 1 x 4 x t4").unwrap();
        let nodes: Vec<String> =
            cluster.iter().map(|(id, node)| format!("{id}:{}x{}", node.gpus, node.gpu_type)).collect();
        assert_eq!(nodes, ["0:8xa100", "1:8xa100", "2:4xt4"]);
        for wrong in
            ["", "8", "2x8", "0x8xt4", "2x0xt4", "-1x8xt4", "2x8x", "2x8xt4,", "4000000000x1xt4", "1x4096xt4"]
        {
            let message = Cluster::parse(wrong).unwrap_err().to_string();
            assert!(message.contains("write NODESxGPUSxTYPE"), "{wrong}: {message}");
        }
    }

    #[test]
    fn nodes_and_gpus_come_and_go() {
        let mut cluster = Cluster::parse("2x4xt4").unwrap();
        let node = cluster.remove(NodeId(0)).unwrap();
        assert_eq!(cluster.remove(NodeId(0)), Err(Error::UnknownNode(NodeId(0))));
        assert_eq!(cluster.add(NodeId(1), node.clone()), Err(Error::DuplicateNode(NodeId(1))));
        cluster.add(NodeId(9), Node { gpus: 2, ..node.clone() }).unwrap();
        cluster.set_gpus(NodeId(1), 0).unwrap();
        assert_eq!((cluster.len(), cluster.total_gpus()), (2, 2));
        assert!(cluster.add(NodeId(10), Node { gpus: u32::MAX, ..node }).is_err());
        assert!(cluster.set_gpus(NodeId(9), u32::MAX).is_err());
        assert_eq!(cluster.set_gpus(NodeId(5), 1), Err(Error::UnknownNode(NodeId(5))));
    }
}
