//! Studies on disk: an append-only journal of facts, and what can be asked about it.
//!
//! A study is a folder:
//!
//! ```text
//! study.yaml       the study file, as it was last started
//! journal.sqlite   the facts, and tables that follow from them
//! journal.seal     how many facts there must be, and their checksum
//! lock             held by the one process that writes: its number, its machine, and the id of the study
//! checkpoints/     states of trials
//! logs/            what programs have printed
//! emulated         on which devices, if they are emulated
//! notes.json       tags and notes that people have written
//! ```
//!
//! [`Store`] writes, [`Reader`] answers questions, also while a store writes; [`examine`] and [`repair`] are for damaged ones. [`Memory`] keeps facts for as long as it lives;
//! [`KeptSearch`] is a search without a run. `optuna` is for studies of others.
//!
//! *Architecture invariant:* when [`Journal::append`] returns, all facts that it was given survive the death of the process;
//! when it fails, none of them is there, and it can be tried again. When [`Journal::sync`] returns, all facts survive a loss of power.
//! What was changed or lost on disk is refused, never read as something else. Nothing here decides anything.

#[cfg(feature = "cli")]
mod annotations;
mod digest;
mod error;
mod facts;
mod folder;
mod fsck;
mod log;
mod memory;
mod opening;
#[cfg(feature = "cli")]
mod optuna;
mod place;
mod project;
mod reader;
mod seal;
mod search;
mod sqlite;
mod tables;
mod wal;
mod writer;

#[cfg(feature = "cli")]
pub(crate) use self::{
    annotations::{Annotation, Annotations},
    optuna::{OptunaParam, OptunaStudy, OptunaTrial, is_database, optuna_studies, read_optuna, write_optuna},
    search::begin_with,
};
pub use self::{
    error::Error,
    folder::{Folder, Runner},
    fsck::{Examination, Repair, examine, repair},
    log::tail,
    memory::Memory,
    opening::Opening,
    reader::{Reader, Span, Status, TrialRow, TrialState},
    search::KeptSearch,
    writer::Store,
};
use crate::trials::engine::JournalEntry;

/// Keeps facts in their order.
pub trait Journal {
    /// Adds facts: all of them, or none if it fails.
    fn append(&mut self, entries: &[JournalEntry]) -> Result<(), Error>;

    /// Waits until all facts so far are on disk, where the machine may lose power. What is not on a disk has nothing to wait for.
    fn sync(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// All facts from a place on; 0 is the first one.
    fn entries(&self, from: u64) -> Result<Vec<JournalEntry>, Error>;
}
