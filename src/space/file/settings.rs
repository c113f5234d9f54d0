use std::{fmt, path::Path, time::Duration};

/// Names that users choose from.
macro_rules! named {
    ($(#[$about:meta])* $type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $type { $($(#[$doc])* $variant),+ }

        impl $type {
            /// All names, in order.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// The name in study files.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// The one of this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

named! {
    /// Which way a metric gets better.
    Direction {
        /// Less is better.
        Minimize = "minimize",
        /// More is better.
        Maximize = "maximize",
    }
}

named! {
    /// How the learning rate follows the batch; see [`LrRule`](crate::goodput::LrRule).
    ScalingRule {
        /// By the gain of `AdaScale`.
        AdaScale = "adascale",
        /// In proportion.
        Linear = "linear",
        /// With the square root.
        SquareRoot = "sqrt",
        /// With the square root after a warm-up.
        Legw = "legw",
        /// Not at all.
        Unscaled = "none",
    }
}

named! {
    /// How the next parameters are chosen.
    Algorithm {
        /// Tree-structured Parzen estimators.
        Tpe = "tpe",
        /// Whatever suits budget and space.
        Auto = "auto",
        /// A Gaussian process.
        Gp = "gp",
        /// At random.
        Random = "random",
        /// A quasi-random sequence.
        Quasi = "quasi",
        /// Every combination.
        Grid = "grid",
    }
}

named! {
    /// When trials are given up.
    StoppingRule {
        /// Never.
        Never = "none",
        /// Asynchronous successive halving.
        Asha = "asha",
        /// Several brackets of it.
        Hyperband = "hyperband",
        /// Worse than the median of the others.
        Median = "median",
        /// Without improvement for a while.
        Patience = "patience",
        /// Worse than a bound.
        Threshold = "threshold",
    }
}

named! {
    /// How GPUs are divided; see [`PolicyKind`](crate::alloc::PolicyKind).
    Policy {
        /// By goodput, with a proven gap.
        Goodput = "goodput",
        /// The search of the paper.
        Pollux = "pollux",
        /// The same number for each trial.
        Static = "static",
        /// By remaining time.
        Optimus = "optimus",
        /// By attained service.
        Tiresias = "tiresias",
    }
}

/// A metric and which way it gets better.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Objective {
    /// The name under which trials report it.
    pub metric: String,
    /// Which way is better.
    pub direction: Direction,
}

impl Objective {
    /// A value of which less is better.
    #[must_use]
    pub fn loss(&self, value: f64) -> f64 {
        match self.direction {
            Direction::Minimize => value,
            Direction::Maximize => -value,
        }
    }
}

/// What a trial runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// A trainable that is built in, by name.
    Trainable(String),
    /// A program and its arguments.
    Command(Vec<String>),
}

/// How a trial is trained.
#[derive(Debug, Clone, PartialEq)]
pub struct TrialSettings {
    /// What it runs; none if the file leaves that to the program that reads it.
    pub program: Option<Program>,
    /// Statistical epochs of a full trial.
    pub epochs: f64,
    /// The total batch that learning rates are meant for.
    pub initial_batch: u32,
    /// The largest total batch.
    pub max_batch: u32,
    /// The largest batch that fits on a GPU.
    pub max_batch_per_gpu: Option<u32>,
    /// The batch of each GPU; none if it is to be adapted.
    pub batch_per_gpu: Option<u32>,
    /// How the learning rate follows the batch.
    pub scaling: ScalingRule,
    /// The time between two checkpoints.
    pub checkpoint_interval: Duration,
    /// The fewest GPUs of a running trial.
    pub min_gpus: u32,
    /// The most GPUs.
    pub max_gpus: Option<u32>,
    /// The longest a trial may take.
    pub timeout: Option<Duration>,
}

/// How parameters are chosen and trials stopped early.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchSettings {
    /// How the next parameters are chosen.
    pub algorithm: Algorithm,
    /// How many trials there are.
    pub trials: u32,
    /// How many are active at a time.
    pub parallel: u32,
    /// What all random choices follow from.
    pub seed: u64,
    /// The longest the study may take.
    pub timeout: Option<Duration>,
    /// When trials are given up.
    pub early_stopping: EarlyStopping,
}

/// When trials are given up.
#[derive(Debug, Clone, PartialEq)]
pub struct EarlyStopping {
    /// By which rule.
    pub rule: StoppingRule,
    /// Statistical epochs before the first decision.
    pub grace: f64,
    /// One in this many goes on at each rung.
    pub reduction: u32,
    /// Statistical epochs without improvement.
    pub patience: f64,
    /// The bound of the rule `threshold`, which always has one.
    pub threshold: Option<f64>,
}

/// How GPUs are divided among trials.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own in study files")]
pub struct SchedulerSettings {
    /// By which policy.
    pub policy: Policy,
    /// The time between two decisions where nothing else asks for one.
    pub interval: Duration,
    /// Whether GPUs are divided as soon as something changes, not only at each interval.
    pub immediate: bool,
    /// The fairness exponent.
    pub p: f64,
    /// Whether two trials on several nodes never share a node.
    pub avoid_interference: bool,
    /// Whether new trials start with what others have learned.
    pub knowledge_sharing: bool,
    /// Whether trials that will probably be stopped are not scaled out.
    pub promise_weighting: bool,
}

/// Nodes of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeGroup {
    /// How many there are.
    pub nodes: u32,
    /// GPUs on each.
    pub gpus: u32,
    /// The type of the GPUs, in lower case.
    pub gpu_type: String,
}

/// The GPUs of a study, displayed as [`Cluster::parse`](crate::alloc::Cluster::parse) reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSpec {
    /// In the order of their numbers.
    pub groups: Vec<NodeGroup>,
}

impl NodeGroup {
    /// The most nodes of a group.
    pub const NODES_MAX: u32 = 65_536;
    /// The most GPUs of a node.
    pub const GPUS_MAX: u32 = 1024;

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().splitn(3, 'x');
        let mut count = |most: u32| {
            let number = parts.next()?.trim().parse::<u32>().ok()?;
            (1..=most).contains(&number).then_some(number)
        };
        let (nodes, gpus) = (count(Self::NODES_MAX)?, count(Self::GPUS_MAX)?);
        let gpu_type = parts.next()?.trim().to_lowercase();
        (!gpu_type.is_empty()).then_some(Self { nodes, gpus, gpu_type })
    }
}

impl ClusterSpec {
    /// Whether a text is the name of a file with a cluster, rather than a cluster.
    #[must_use]
    pub fn names_file(text: &str) -> bool {
        Path::new(text).extension().is_some_and(|end| end == "yaml" || end == "yml")
    }

    /// Reads `2x8xa100,4x4xt4`; an error says what is wrong with it.
    ///
    /// ```
    /// use pollux_tune::space::ClusterSpec;
    ///
    /// assert_eq!(ClusterSpec::parse("2x8xA100").unwrap().groups[0].gpus, 8);
    /// assert!(ClusterSpec::parse("8xa100").unwrap_err().contains("NODESxGPUSxTYPE"));
    /// ```
    pub fn parse(text: &str) -> Result<Self, String> {
        let group = |part: &str| {
            let (nodes, gpus) = (NodeGroup::NODES_MAX, NodeGroup::GPUS_MAX);
            let allowed = "allowed is NODESxGPUSxTYPE with commas between, as in `2x8xa100,4x4xt4`";
            NodeGroup::parse(part).ok_or_else(|| {
                format!(
                    "`{part}` is not a group of nodes: {allowed}, up to {nodes} nodes of up to {gpus} GPUs"
                )
            })
        };
        Ok(Self { groups: text.split(',').map(group).collect::<Result<_, _>>()? })
    }
}

impl fmt::Display for ClusterSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, NodeGroup { nodes, gpus, gpu_type }) in self.groups.iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            write!(f, "{comma}{nodes}x{gpus}x{gpu_type}")?;
        }
        Ok(())
    }
}
