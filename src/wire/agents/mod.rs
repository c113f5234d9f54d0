//! Agents and their head: one TLS connection for each agent, over which commands, events and checkpoints go.
//!
//! The connection is also the lease of the agent. An agent says once a second when it says so, by its own clock, and the head repeats the
//! last that it has heard. An agent that learns of nothing newer than [`FENCE`](crate::trials::agent::FENCE) ends the connection; a head
//! that has heard nothing for [`LEASE`](crate::trials::agent::LEASE) gives the agent up, which is later by any clock, whichever
//! direction of the network fails.

mod connection;
mod dial;
mod files;
mod gateway;
mod service;
#[cfg(test)]
mod tests;
mod transfer;

pub use self::{
    dial::{AgentConnection, ConnectionEnd, ReachedHead, dial, reach},
    files::CheckpointFolders,
    gateway::{AgentGateway, AgentGatewayEvent, AgentId},
    transfer::CheckpointTransfer,
};

/// Under this key the token is in the metadata of a call.
const TOKEN: &str = "pollux-tune-token";
/// How many calls one connection may have: one to join, others for checkpoints.
const CALLS: u32 = 8;
/// How much of a call may be on its way.
const CALL_WINDOW: u32 = 1 << 20;
/// Much more than all calls together, so that calls that stand still hold up no other.
const CONNECTION_WINDOW: u32 = 2 * CALLS * CALL_WINDOW;
