//! Hyper-parameter optimization that schedules GPUs by *goodput*.
//!
//! A study tries many settings of a training, and has a fixed set of GPUs. This crate suggests what to try, divides the GPUs among
//! the trials so that the study as a whole makes most progress, and gives up trials that will not be among the best. `docs/` in
//! the repository has the guides; here is where to begin in Rust. [`prelude`] has the names that most programs need.
//!
//! # Tune a function
//!
//! [`actors::Runner`] runs a study to its end: functions as here, programs, or trainables that are trained on worker processes
//! which come and go (feature `torch`). With a folder it resumes after a crash.
//!
#![cfg_attr(feature = "runtime", doc = "```")]
#![cfg_attr(not(feature = "runtime"), doc = "```ignore")]
//! use pollux_tune::prelude::*;
//!
//! let study = Study::from_yaml("study.yaml", "
//! space: {lr: {log: [1e-5, 1]}, layers: {int: [1, 8]}}
//! objective: {minimize: loss}
//! trial: {epochs: 9}
//! search: {trials: 20, parallel: 4, early_stopping: {rule: asha}}
//! ")?;
//! let finished = Runner::new(study).run_function(|trial| {
//!     let (lr, layers) = (trial.params().float("lr")?, trial.params().int("layers")?);
//!     for epoch in 1..=9 {
//!         let loss = (lr - 0.01).abs() + 1.0 / (layers * epoch) as f64;
//!         trial.report(epoch as f64, [("loss", loss)])?; // an error if the trial was stopped
//!     }
//!     Ok(Metrics::new()) // the last report counts
//! })?;
//! println!("{}", finished.best(1)[0].params);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Ask and tell
//!
//! Those who run the trials themselves ask a [`trials::Search`] what to try, and tell it the results.
//!
//! ```
//! use pollux_tune::prelude::*;
//!
//! let study = Study::from_yaml("study.yaml", "
//! space: {lr: {log: [1e-5, 1]}}
//! objective: {minimize: loss}
//! search: {trials: 20}
//! ")?;
//! let mut search = Search::new(&study)?;
//! while !search.is_finished() {
//!     let trial = search.ask()?;
//!     let loss = (trial.params.float("lr")?.log10() + 3.0).powi(2);
//!     search.tell(trial.id, loss)?;
//! }
//! println!("{}", search.best(1)[0].params);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Simulate
//!
//! How long would a study take on another cluster? [`sim::simulate_study`] runs it in virtual time, with the code that runs live
//! studies and trainings that were measured.
//!
//! ```
//! use pollux_tune::prelude::*;
//!
//! let study = Study::from_yaml("study.yaml", "
//! space: {lr: {log: [1e-3, 1]}, width: [32, 64]}
//! objective: {maximize: accuracy}
//! trial: {trainable: cifar10, epochs: 5, max_batch: 4Ki, max_batch_per_gpu: 1Ki}
//! search: {trials: 6, parallel: 2}
//! ")?;
//! let report = simulate_study(&study, &SimulatedCluster::new(Cluster::parse("2x4xt4")?))?;
//! println!("{} s", report.makespan_s);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Modules
//!
//! The pure core takes values and returns values: no I/O, no clock, no randomness of its own. It is all there is with
//! `default-features = false`.
//!
//! | module | |
//! |---|---|
//! | [`space`] | what can be searched, and study files |
//! | [`tpe`] | what to try next: suggesters, the Pareto front, importance of parameters |
//! | [`trials`] | the life of a study: [`trials::Search`], the [engine](trials::engine), [early stopping](trials::stopping) |
//! | [`goodput`] | how fast a trial makes progress on given GPUs, learned while it trains |
//! | [`alloc`] | which trial gets which GPUs |
//! | [`sim`] | jobs and studies in virtual time |
//! | [`ids`] | the numbers and names of trials, nodes, slots and GPU types |
//!
//! With the feature `runtime` studies run:
//!
//! | module | |
//! |---|---|
//! | [`actors`] | [`actors::Runner`] and what is behind it |
//! | [`store`] | studies on disk, and what can be asked about them |
//! | [`worker`] | elastic training on worker processes; most of it with the feature `torch` |
//!
//! With `cli`, the default, [`cli`] is the program, for those who build their own. `torch` adds training with libtorch,
//! `cuda` training on GPUs.
//!
//! Goodput and the allocator follow *Pollux* (Qiao et al., OSDI'21); `docs/goodput.md` lists every departure and why.

#[cfg(feature = "runtime")]
pub mod actors;
#[cfg(feature = "runtime")]
mod agent;
pub mod alloc;
#[cfg(feature = "cli")]
mod chaos;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cli")]
mod dashboard;
#[cfg(feature = "runtime")]
mod emulate;
pub mod goodput;
pub mod ids;
pub mod prelude;
pub mod sim;
#[cfg(feature = "runtime")]
mod slurm;
pub mod space;
#[cfg(feature = "runtime")]
pub mod store;
pub mod tpe;
pub mod trials;
#[cfg(feature = "runtime")]
mod wire;
#[cfg(feature = "runtime")]
pub mod worker;

/// For the tests and benchmarks of this package: no part of the interface, and may change at any time.
#[cfg(feature = "runtime")]
#[doc(hidden)]
pub mod internal {
    /// Requests of `pollux-tune ask-tell`.
    #[cfg(feature = "cli")]
    pub mod ask_tell {
        pub use crate::cli::answer_requests;
    }
    /// Checkpoints as bytes.
    pub mod checkpoint {
        pub use crate::worker::checkpoint::{check_checkpoint, make_checkpoint, seal_checkpoint};
    }
    /// Emulated workers.
    pub mod emulate {
        pub use crate::emulate::*;
    }
    /// Pilots of Slurm.
    pub mod slurm {
        pub use crate::slurm::*;
    }
    /// Messages between a head and its workers.
    pub mod wire {
        pub use crate::wire::*;
    }
}

#[cfg(all(doctest, feature = "runtime"))]
#[doc = include_str!("../docs/rust.md")]
struct RustPageDoctests;

#[cfg(all(doctest, feature = "cli", feature = "torch"))]
#[doc = include_str!("../docs/training.md")]
struct TrainingDoctests;

#[cfg(doctest)]
#[doc = include_str!("../docs/search-spaces.md")]
struct SearchSpaceDoctests;

#[cfg(all(doctest, feature = "runtime"))]
#[doc = include_str!("../docs/rust.md")]
struct RustDoctests;

#[cfg(doctest)]
#[doc = include_str!("../docs/ask-tell.md")]
struct AskTellDoctests;
