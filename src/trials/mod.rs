//! The life of a study and its trials.
//!
//! The [`engine`] runs a study: which trials there are, which slots they have, and what becomes of them. A [`Search`]
//! suggests and decides for users who run the trials themselves. Both stop trials by a rule of [`stopping`].
//! The promise of a trial, how likely it is to continue at its next decision, weighs in its share of the GPUs: see [`weigh`].
//!
//! *Architecture invariant:* what happens follows from the inputs in their order, and from nothing else. Nothing here does I/O,
//! reads a clock or draws a random number.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)]

pub mod agent;
pub mod engine;
pub mod group;
pub mod node;
#[cfg(feature = "runtime")]
pub(crate) mod outbox;
pub mod pilots;
mod promise;
mod retention;
mod search;
mod seed;
pub mod stopping;

pub use promise::{promise_weight, weigh};
pub use retention::Retention;
pub use search::{End, Error, Search, State, Trial, best};
pub use seed::{Execution, trial_seed};
pub use stopping::Verdict;
