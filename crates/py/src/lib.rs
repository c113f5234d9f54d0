//! The Rust side of the Python package `pollux-tune`: what decides is the library, models and functions are Python's.

mod error;
mod rehearsal;
mod search;
mod worker;

use pyo3::prelude::*;

/// `pollux_tune._core`.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    search::register(module)?;
    rehearsal::register(module)?;
    worker::register(module)
}
