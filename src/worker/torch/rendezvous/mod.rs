//! Where the members of a group find each other: a store of keys and values that only workers of the study can reach.
//!
//! Every worker hosts one from its start, and a group uses that of its first member. Each trial and round has a room of its own, with
//! what it takes to get in ([`handshake`](crate::wire::handshake)), and nothing of it is left when the last member is gone. libtorch's
//! `TCPStore` would let everybody in.

mod client;
mod frame;
mod room;
mod server;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub(super) use client::Remote;
pub(super) use server::Rendezvous;

/// The longest wait that is asked of a host at once. A longer one is asked again, so that a host that has fallen silent is noticed.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// How long a message may take that is on its way.
const MESSAGE: Duration = Duration::from_secs(30);
