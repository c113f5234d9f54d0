//! How messages get from a head to its workers and agents, and back.
//!
//! A worker process hosts one rank of one trial at a time. Commands go down to it, events come up: plain values, which travel as
//! protobuf in one gRPC call that lasts as long as the worker (`proto/pollux_tune.proto`). The head opens a [`Gateway`]; a
//! worker attaches itself with [`attach`], or with [`attach_blocking`] if it has no runtime.
//!
//! An agent does the same for a machine: [`dial`] leads it over TLS to the [`AgentGateway`] of its head, which it knows from a [`JoinFile`].
//!
//! *Architecture invariant:* what a worker, an agent or a head means is a plain value of `trials::group` or `trials::agent`; this module only converts and carries it. What
//! protobuf needs never leaves this module.

mod address;
mod admission;
mod agents;
mod attach;
mod build;
mod bytes;
mod control;
mod convert;
mod convert_agent;
mod error;
mod fields;
mod folder;
mod gateway;
pub(crate) mod handshake;
mod hello;
mod host_port;
mod identity;
mod join_file;
mod private;
mod program;
#[expect(clippy::pedantic, unreachable_pub, reason = "it is generated")]
#[rustfmt::skip]
mod proto;
mod secret;
mod socket;
#[cfg(test)]
mod tests;
mod tls;

use std::time::Duration;

pub use address::Address;
pub(crate) use admission::Strangers;
pub use agents::{
    AgentConnection, AgentGateway, AgentGatewayEvent, AgentId, CheckpointFolders, CheckpointTransfer,
    ConnectionEnd, ReachedHead, dial, reach,
};
pub use attach::{CommandReceiver, EventSender, attach, attach_blocking};
pub use build::build;
pub use bytes::{
    decode_agent_command, decode_agent_event, decode_agent_hello, decode_command, decode_event, decode_hello,
    encode_agent_command, encode_agent_event, encode_agent_hello, encode_command, encode_event,
};
pub use control::{ControlDoor, ControlRequest, Heard, ask_head};
pub use error::Error;
pub(crate) use error::with_causes;
pub use folder::SocketFolder;
pub use gateway::{Gateway, GatewayEvent, WorkerHandle, WorkerId};
pub use hello::{Hello, VERSION};
pub use host_port::HostPort;
pub use identity::HeadIdentity;
pub use join_file::JoinFile;
pub(crate) use program::{take_name, this_program};
pub use secret::Secret;
pub(crate) use secret::random_number;

/// Under this key the secret is in the metadata of the call.
const SECRET: &str = "pollux-tune-secret";
/// How often each side asks a silent one whether it is still there, and how long it waits for the answer. Dead processes are noticed
/// at once; this is for dead machines.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(30);
/// The largest message in bytes: room for reports of very many evaluations.
const LARGEST: usize = 64 << 20;
