//! What a search may choose from.
//!
//! A [`Dims`] is a search space as the suggesters see it: encoded numbers, cells and choices without names.
//!
//! *Architecture invariant:* a point that a `Dims` accepts has a coordinate exactly where its parameter is
//! active. Nothing here does I/O; randomness is an argument.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)]

mod dim;

pub use dim::{BadDims, Dim, Dims, Parent, Point};
