//! The life of a study and its trials.
//!
//! So far it knows when a trial is given up: see [`stopping`]. The promise of a trial, how likely it is to go on at its next
//! decision, weighs in its share of the GPUs: see [`weigh`].
//!
//! *Architecture invariant:* what happens follows from the inputs in their order, and from nothing else. Nothing here does I/O,
//! reads a clock or draws a random number.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)]

mod promise;
pub mod stopping;

pub use promise::{promise_weight, weigh};
