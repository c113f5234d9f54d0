//! Studies that run: actors that carry what happens to the engine, and what it decides into the world.
//!
//! [`Runner`] runs a study to its end. Inside, the `Supervisor` owns the engine and the journal, and
//! does nothing but: input in, facts written down, commands handed out. Questions go to the
//! `Suggester` and the `Allocator`, each on a thread of its own, because their
//! answers take a while. Trials are run by groups: functions on threads, programs as processes, trainables by elastic groups
//! of workers.
//!
//! *Architecture invariants:* no actor decides anything; a fact is written down before anybody acts on it; an actor that dies
//! takes the others along, and all begin again from the journal.

mod agents;
mod allocator;
mod clock;
mod control;
mod custom;
mod door;
mod elastic;
mod error;
mod event;
mod exit;
mod function;
mod group;
mod hosts;
mod message;
mod node;
mod pilots;
mod programs;
mod provision;
mod retention;
mod runner;
mod runtime;
mod scripted;
mod session;
mod suggester;
mod supervisor;
#[cfg(test)]
mod tests;
mod training;
mod training_events;

#[cfg(feature = "cli")]
pub(crate) use self::runner::{check_program_room, check_room, emulated_nodes, program_slots};
pub use self::{
    error::Error,
    event::{Event, Events},
    function::{Stopped, Trial},
    group::GroupMessage,
    runner::{Finished, Runner, StopHandle},
    session::check,
    training::{Training, TrainingSettings},
    training_events::TrainingEvent,
};
pub use crate::{
    agent::{Error as AgentError, launch_if_program},
    emulate::serve_if_node,
};
