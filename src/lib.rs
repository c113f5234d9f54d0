//! Hyper-parameter optimization that schedules GPUs by *goodput*.
//!
//! The crate is a pure core that decides, with thin shells that act:
//!
//! - [`goodput`]: how fast a training job makes progress on a given set of GPUs, learned while it trains;
//! - [`alloc`]: which trial gets which GPUs;
//! - [`space`]: what can be searched;
//! - [`tpe`]: what to try next;
//! - [`trials`]: the life of a study, and when a trial is given up;
//! - [`sim`]: what a cluster would do with a list of jobs, in virtual time;
//! - [`store`]: studies on disk;
//! - [`actors`]: studies that run;
//! - [`worker`]: training on worker processes that come and go, with the feature `torch`;
//! - [`emulate`]: worker processes that only pretend to train, for whole clusters on one machine;
//! - [`wire`]: what a head and its workers tell each other;
//! - [`cli`]: the program, for those who build their own.
//!
//! The first two follow *Pollux* (Qiao et al., OSDI'21); `docs/goodput.md` lists every departure and why.

#[cfg(feature = "runtime")]
pub mod actors;
pub mod alloc;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "runtime")]
pub mod emulate;
pub mod goodput;
pub mod ids;
pub mod sim;
pub mod space;
#[cfg(feature = "runtime")]
pub mod store;
pub mod tpe;
pub mod trials;
#[cfg(feature = "runtime")]
pub mod wire;
#[cfg(feature = "runtime")]
pub mod worker;

#[cfg(all(doctest, feature = "runtime"))]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;

#[cfg(all(doctest, feature = "cli", feature = "torch"))]
#[doc = include_str!("../docs/training.md")]
struct TrainingDoctests;

#[cfg(doctest)]
#[doc = include_str!("../docs/search-spaces.md")]
struct SearchSpaceDoctests;

#[cfg(doctest)]
#[doc = include_str!("../docs/ask-tell.md")]
struct AskTellDoctests;
