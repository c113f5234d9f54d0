//! What to try next.
//!
//! A [`Suggester`] is asked for points of a search space and gets the results of their trials. [`Tpe`] models where
//! good trials are, [`Gp`] models the results, and [`Auto`] picks one of them; [`Random`], [`Halton`] and
//! [`Grid`] do not learn; [`Enqueue`] puts known points before any of them.
//!
//! The estimator is layered by its mathematics: `normal`, then `distribution` (kernels of one parameter), then
//! `parzen` (mixtures over all), then `split` (good and other trials), then `sampler`. Each knows only those
//! before it. The Gaussian process has a folder of its own, `gp`. With several objectives, [`pareto`] says which trials
//! are better.
//!
//! [`importance()`] says which parameters matter, once a study has results.
//!
//! *Architecture invariant:* a suggestion depends on nothing but the trials so far, in the order they were
//! asked for, and the generator. So it is the same on every machine, and after a restart that replays the trials.
//! Smaller values are better. Nothing here does I/O.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)]

mod auto;
mod distribution;
mod draw;
mod earlier;
mod enqueue;
mod error;
mod expert;
mod gp;
mod grid;
mod halton;
mod history;
mod importance;
mod normal;
pub mod pareto;
mod parzen;
mod random;
mod sampler;
mod split;
mod suggester;

pub use auto::Auto;
pub use enqueue::Enqueue;
pub use error::Error;
pub use gp::Gp;
pub use grid::Grid;
pub use halton::Halton;
pub use importance::importance;
pub use random::Random;
pub use sampler::{Tpe, TpeOptions};
pub use suggester::{Outcome, Suggester};
