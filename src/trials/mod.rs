//! The life of a study and its trials.
//!
//! The [`engine`] runs a study: which trials there are, which slots they have, and what becomes of them. A [`Search`]
//! suggests, listens and decides for those who run the trials themselves. Both give up trials by a rule of [`stopping`].
//! The promise of a trial, how likely it is to go on at its next decision, weighs in its share of the GPUs: see [`weigh`].
//!
//! *Architecture invariant:* what happens follows from the inputs in their order, and from nothing else. Nothing here does I/O,
//! reads a clock or draws a random number.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)]

pub mod engine;
mod group;
mod promise;
mod search;
pub mod stopping;

pub use group::{Group, GroupAction};
pub use promise::{promise_weight, weigh};
pub use search::{End, Error, Search, State, Trial, best};
pub use stopping::Verdict;
