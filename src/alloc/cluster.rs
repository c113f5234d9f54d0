use std::{collections::BTreeMap, fmt, path::Path};

use super::Error;
use crate::ids::{GpuType, NodeId};

/// One machine: some GPUs of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The type of all its GPUs.
    pub gpu_type: GpuType,
    /// How many of its GPUs can be used now.
    pub gpus: u32,
    /// The network island it belongs to, such as a rack or a Slurm partition. A trial never spans two islands.
    pub island: u32,
}

impl Node {
    /// A node has at most this many GPUs.
    pub const GPUS_MAX: u32 = 1024;
}

/// Nodes of one kind: a term of a [`ClusterSpec`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSet {
    /// How many there are.
    pub nodes: u32,
    /// GPUs on each.
    pub gpus: u32,
    /// The type of the GPUs.
    pub gpu_type: GpuType,
}

impl NodeSet {
    /// The largest number of nodes.
    pub const NODES_MAX: u32 = 65_536;

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, 'x');
        let mut count = |max: u32| {
            let number = parts.next()?.trim().parse::<u32>().ok()?;
            (1..=max).contains(&number).then_some(number)
        };
        let (nodes, gpus) = (count(Self::NODES_MAX)?, count(Node::GPUS_MAX)?);
        Some(Self { nodes, gpus, gpu_type: GpuType::new(parts.next()?).ok()? })
    }
}

/// The machines of a cluster as users describe them: `NODESxGPUSxTYPE` terms with commas between, such as `16x4xt4` or
/// `2x8xa100,4x4xt4`.
///
/// ```
/// use pollux_tune::alloc::ClusterSpec;
/// assert_eq!(ClusterSpec::parse("2x8xA100, 4x4xt4")?.to_string(), "2x8xa100,4x4xt4");
/// assert!(ClusterSpec::parse("8xa100").unwrap_err().to_string().contains("NODESxGPUSxTYPE"));
/// # Ok::<(), pollux_tune::alloc::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSpec {
    /// In the order of their numbers.
    pub node_sets: Vec<NodeSet>,
}

impl ClusterSpec {
    /// Reads the terms.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let term = |term: &str| {
            NodeSet::parse(term.trim()).ok_or_else(|| Error::BadCluster { text: term.trim().to_owned() })
        };
        Ok(Self { node_sets: text.split(',').map(term).collect::<Result<_, _>>()? })
    }

    /// Whether a text is the name of a file with a cluster, rather than a cluster.
    #[must_use]
    pub fn names_file(text: &str) -> bool {
        Path::new(text).extension().is_some_and(|end| end == "yaml" || end == "yml")
    }
}

impl fmt::Display for ClusterSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, NodeSet { nodes, gpus, gpu_type }) in self.node_sets.iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            write!(f, "{comma}{nodes}x{gpus}x{gpu_type}")?;
        }
        Ok(())
    }
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
    /// A cluster without nodes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a [`ClusterSpec`]. Nodes are numbered from 0 in its order, all in one island.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Ok(ClusterSpec::parse(text)?.into())
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

    /// For each GPU type, the GPUs of its largest node, and how many of its GPUs a trial could have that may have `max_gpus`:
    /// what [`GoodputModel::table`](crate::goodput::GoodputModel::table) takes.
    pub fn room(&self, max_gpus: u32) -> impl Iterator<Item = (GpuType, u32, u32)> + use<> {
        let mut by_type: BTreeMap<GpuType, (u32, u32)> = BTreeMap::new();
        for node in self.nodes.values() {
            let (largest, total) = by_type.entry(node.gpu_type.clone()).or_default();
            *largest = node.gpus.max(*largest);
            *total = total.saturating_add(node.gpus);
        }
        by_type.into_iter().map(move |(gpu_type, (largest, total))| (gpu_type, largest, total.min(max_gpus)))
    }
}

impl From<ClusterSpec> for Cluster {
    fn from(spec: ClusterSpec) -> Self {
        let sets = spec.node_sets.into_iter();
        let nodes = sets.flat_map(|NodeSet { nodes, gpus, gpu_type }| {
            std::iter::repeat_n(Node { gpu_type, gpus, island: 0 }, nodes as usize)
        });
        Self { nodes: (0..).map(NodeId).zip(nodes).collect() }
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
