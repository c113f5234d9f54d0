//! What the crate promises, tried with real processes.

mod common;
mod failures;
mod group;
mod leaks;
mod reducer;
mod store;
