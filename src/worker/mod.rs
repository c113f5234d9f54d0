//! Elastic training in a worker process.
//!
//! So far it knows which example comes when: see [`Order`].
//!
//! *Architecture invariant:* what a trial learns from, and in which order, follows from its seed and its position, and not from the
//! number of its workers.

mod order;

pub use order::{Order, share};
