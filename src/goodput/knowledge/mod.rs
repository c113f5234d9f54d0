//! What the trials of one study teach each other.
//!
//! They share their code and differ in hyper-parameters, so that a new trial need not start from nothing: a
//! regression of the throughput model on the hyper-parameters that matter for speed
//! ([`StudyKnowledge::prior`]), the noise scale over training progress and batch
//! ([`StudyKnowledge::noise_prior`]), and how far the study has scaled out
//! ([`StudyKnowledge::exploration_cap`]). Pollux learns each of them again for every job.
//!
//! *Architecture invariant:* the same records in any order give the same knowledge, up to rounding, and nothing is fitted
//! before the caller asks for it ([`StudyKnowledge::refit`], or a [`Comparison`] on another thread).

mod compare;
mod features;
mod joint;
mod noise;
mod study;
#[cfg(test)]
mod tests;

pub use compare::{Compared, Comparison};
pub use features::Features;
pub use study::{Sharing, StudyKnowledge};
