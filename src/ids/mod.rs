//! The names of things: trials, machines, slots, types of GPUs and generations of worker groups.
//!
//! A leaf: every other module uses these types, and none has one of its own for the same thing.
//!
//! *Architecture invariant:* nothing here imports another module of the crate.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)]

mod gpu;
mod gpu_names;
mod slot;
mod study;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::{
    gpu::{EmptyGpuType, GpuType},
    slot::SlotId,
    study::{InvalidStudyId, StudyId},
};

/// Numbers with a meaning. They are written as plain numbers, in text and in journals.
macro_rules! number {
    ($(#[$about:meta])* $name:ident($inner:ty)) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// The number of a trial in its study, from 0.
    TrialId(u32)
}

number! {
    /// The number of a node. It stays the same while other nodes come and go.
    NodeId(u32)
}

number! {
    /// The number of a configuration of a trial's worker group, from 1. It grows with every change that the engine decides on, also
    /// over restarts of the head: what an older generation reports does not count.
    Generation(u32)
}

impl Generation {
    /// Before the first one.
    pub const NONE: Self = Self(0);

    /// The one after it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

number! {
    /// The number of a rendezvous of a trial's workers. It grows with every group that they form, also where the engine decided on no
    /// change, as after the death of a member; no two groups of a trial have the same.
    Round(u64)
}

impl Round {
    /// The one before the first of a generation: rounds of later generations are always higher.
    #[must_use]
    pub const fn before(generation: Generation) -> Self {
        Self((generation.0 as u64) << 32)
    }

    /// The one after it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
