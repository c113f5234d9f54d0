//! Checkpoints: the states of trials on disk, for when all workers of a trial are gone.
//!
//! Both ways to train use the same files ([`envelope`]) in the same folders ([`CheckpointFolder`]). Each file says whose state it holds
//! and has a checksum over everything, and no file is ever changed or replaced: what is not whole, or not this trial's, is not used.

mod bytes;
mod envelope;
mod files;
mod folder;
mod identity;
#[cfg(feature = "cli")]
mod model;
#[cfg(feature = "cli")]
mod survey;
#[cfg(test)]
mod tests;
mod writer;

pub use self::bytes::{check_checkpoint, make_checkpoint, seal_checkpoint};
pub(crate) use self::{
    envelope::{Contents, Kind, Position, Problem, Stored},
    files::checkpoint_steps,
    folder::{CheckpointFolder, Durability, Loaded, NotSaved, State, Unreadable},
    identity::Identity,
    writer::CheckpointWriter,
};
#[cfg(feature = "cli")]
pub(crate) use self::{
    model::{NoModel, SavedModel},
    survey::{Survey, survey},
};

/// Variables of a model in Rust begin at multiples of this many numbers in their vector: 64 bytes, for vector instructions.
#[cfg(any(feature = "cli", feature = "torch"))]
pub(crate) const ALIGNMENT: u64 = 16;
