//! Hyper-parameter optimization that schedules GPUs by *goodput*.
//!
//! The crate is a pure core that decides, with thin shells that act. So far it holds the core's
//! mathematical heart, what can be searched, and how:
//!
//! - [`goodput`]: how fast a training job makes progress on a given set of GPUs, learned while it trains;
//! - [`alloc`]: which trial gets which GPUs;
//! - [`space`]: what can be searched;
//! - [`tpe`]: what to try next;
//! - [`trials`]: a search as a whole, and when a trial is given up;
//! - [`sim`]: what a cluster would do with a list of jobs, in virtual time;
//! - [`worker`]: which example a training sees when, however many workers it has.
//!
//! The first two follow *Pollux* (Qiao et al., OSDI'21); `docs/goodput.md` lists every departure and why.

pub mod alloc;
pub mod goodput;
pub mod sim;
pub mod space;
pub mod tpe;
pub mod trials;
pub mod worker;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;

#[cfg(doctest)]
#[doc = include_str!("../docs/search-spaces.md")]
struct SearchSpaceDoctests;

#[cfg(doctest)]
#[doc = include_str!("../docs/ask-tell.md")]
struct AskTellDoctests;
