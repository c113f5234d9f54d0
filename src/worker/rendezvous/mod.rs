//! Where the members of a group find each other: a store of keys and values that only workers of the study can reach.
//!
//! Every worker hosts one from its start, and a group uses that of its first member. Each trial and round has a room of its own, with
//! what it takes to get in ([`handshake`](crate::wire::handshake)), and nothing of it is left when the last member is gone. libtorch's
//! `TCPStore` would let everybody in.

mod client;
mod frame;
mod meeting;
mod room;
mod server;
mod store;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub(super) use client::Remote;
pub(super) use meeting::{Room, await_all};
pub(super) use server::Rendezvous;
pub use store::{GroupStore, StoreError};

/// How long to wait for members that were all alive a moment ago.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// A member that is silent for this long in the middle of a step counts as lost.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(300);
/// The longest wait that is asked of a host at once. A longer one is asked again, so that a host that has fallen silent is noticed.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// How long a message may take that is on its way.
const MESSAGE: Duration = Duration::from_secs(30);
