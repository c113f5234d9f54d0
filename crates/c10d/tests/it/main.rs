//! What the crate promises, tried with real processes.

#![expect(clippy::cast_possible_wrap, reason = "ranks and sizes are small")]
#![expect(clippy::print_stderr, clippy::print_stdout, reason = "measured times are for people")]
#![expect(clippy::float_cmp, reason = "values that are exact in binary")]

mod common;
mod failures;
mod group;
mod leaks;
mod links;
#[path = "../../../../tests/support/machines.rs"]
mod machines;
#[path = "../../../../tests/support/packages.rs"]
mod packages;
mod reducer;
mod store;
