use super::Error;

/// How far apart the replicas of a trial are, which decides what synchronizing them costs.
///
/// A rack level is added here as one more variant: parameters, fit and tables are indexed by tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Several GPUs of one node.
    Local,
    /// GPUs of at least two nodes.
    Node,
}

impl Tier {
    /// Every tier, nearest first.
    pub const ALL: [Self; 2] = [Self::Local, Self::Node];
    /// How many tiers there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The tier of GPUs on this number of nodes.
    #[must_use]
    pub const fn spanning(nodes: usize) -> Self {
        if nodes > 1 { Self::Node } else { Self::Local }
    }

    /// The position of this tier in [`Tier::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// What the throughput model sees of an allocation: how many GPUs on how many nodes.
///
/// ```
/// use pollux_tune::goodput::{Shape, Tier};
/// assert_eq!(Shape::new(8, 2)?.tier(), Some(Tier::Node));
/// assert_eq!(Shape::single().tier(), None);
/// assert!(Shape::new(1, 2).is_err());
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    gpus: u32,
    nodes: u32,
}

impl Shape {
    /// `gpus` GPUs on `nodes` nodes.
    pub const fn new(gpus: u32, nodes: u32) -> Result<Self, Error> {
        if gpus == 0 || nodes == 0 || nodes > gpus {
            return Err(Error::BadShape { gpus, nodes });
        }
        Ok(Self { gpus, nodes })
    }

    /// One GPU.
    #[must_use]
    pub const fn single() -> Self {
        Self { gpus: 1, nodes: 1 }
    }

    /// `gpus` GPUs (at least one) at this tier, on as few nodes as the tier allows.
    #[must_use]
    pub fn at_tier(gpus: u32, tier: Tier) -> Self {
        let gpus = gpus.max(1);
        let nodes = match tier {
            Tier::Local => 1,
            Tier::Node => gpus.min(2),
        };
        Self { gpus, nodes }
    }

    /// GPUs in all, K in the paper.
    #[must_use]
    pub const fn gpus(self) -> u32 {
        self.gpus
    }

    /// Nodes with at least one of the GPUs, N in the paper.
    #[must_use]
    pub const fn nodes(self) -> u32 {
        self.nodes
    }

    /// The tier over which gradients are synchronized; none for a single GPU.
    #[must_use]
    pub const fn tier(self) -> Option<Tier> {
        match (self.gpus, self.nodes) {
            (1, _) => None,
            (_, 1) => Some(Tier::Local),
            _ => Some(Tier::Node),
        }
    }
}
