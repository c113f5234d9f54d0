//! The names that most programs need: `use pollux_tune::prelude::*;`.

#[cfg(feature = "runtime")]
pub use crate::actors::{
    Event, Finished, Runner, StopHandle, Stopped, Trial, launch_if_program, serve_if_node,
};
#[cfg(feature = "runtime")]
pub use crate::store::Reader;
#[cfg(feature = "torch")]
pub use crate::worker::{
    BoxError, Dataset, Example, Optimizer, Registry, Schedule, Slot, Trainable, serve_if_worker,
};
pub use crate::{
    alloc::{Cluster, PolicyKind},
    ids::{GpuType, TrialId},
    sim::{SimulatedCluster, StudyReport, simulate_study},
    space::{Direction, Domain, Params, Space, Study, Value},
    trials::{
        End, Search,
        engine::{Metrics, Number},
    },
};
