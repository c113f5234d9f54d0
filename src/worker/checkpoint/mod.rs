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
mod survey;
#[cfg(test)]
mod tests;

pub use self::bytes::{check_checkpoint, make_checkpoint, seal_checkpoint};
#[cfg(feature = "cli")]
pub(crate) use self::survey::{Survey, survey};
pub(crate) use self::{
    envelope::{Contents, Kind, Position, Problem},
    files::checkpoint_steps,
    folder::{CheckpointFolder, Durability, Loaded, NotSaved, State, Unreadable},
    identity::Identity,
};
