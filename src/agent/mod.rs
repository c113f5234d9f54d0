//! The head's hand on one machine.
//!
//! *Architecture invariant:* an agent decides nothing about trials: what is to be done comes from the head.

#[cfg(feature = "cli")]
pub(crate) mod devices;
