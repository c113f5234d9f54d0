//! The head's hand on one machine.
//!
//! An agent starts the processes and programs of its machine and relays what they say, as the head tells it
//! ([`AgentCommand`](crate::trials::agent::AgentCommand), [`AgentEvent`](crate::trials::agent::AgentEvent)). That of the head's own machine
//! lives in the head's process, all others in processes of their own.
//!
//! *Architecture invariants:* an agent decides nothing about trials; all that it has started ends before it serves the next head, so
//! that no slot is used by two.

#[cfg(feature = "cli")]
pub(crate) mod devices;
mod error;
mod process;
mod program;
#[cfg(feature = "cli")]
mod remote;
mod serve;
mod shipping;
#[cfg(test)]
mod tests;

pub use self::{error::Error, program::launch_if_program};
pub(crate) use self::{
    process::SystemSpawner,
    program::is_there,
    serve::{Machine, serve},
    shipping::wanted,
};
#[cfg(feature = "cli")]
pub(crate) use self::{
    program::{can_make_cgroups, end_programs},
    remote::{AgentEnd, Join, RemoteAgent},
};
