//! Single messages as bytes, as they stand in a frame of gRPC: what tests and fuzzing need to be a head, a worker or an
//! agent without a connection.

use prost::Message;

use super::{
    Error, Hello, convert,
    convert_agent::{Said, agent_hello},
    proto,
};
use crate::trials::{
    agent::{AgentCommand, AgentEvent, AgentHello},
    group::{WorkerCommand, WorkerEvent},
};

fn damaged(what: &'static str) -> impl Fn(prost::DecodeError) -> Error {
    move |error| Error::Message { what, problem: error.to_string() }
}

/// A command as a head sends it.
#[must_use]
pub fn encode_command(command: WorkerCommand) -> Vec<u8> {
    proto::Command::from(command).encode_to_vec()
}

/// A command as a worker receives it.
pub fn decode_command(bytes: &[u8]) -> Result<WorkerCommand, Error> {
    proto::Command::decode(bytes).map_err(damaged("a command"))?.try_into()
}

/// An event as a worker sends it.
#[must_use]
pub fn encode_event(event: WorkerEvent) -> Vec<u8> {
    proto::Event::from(event).encode_to_vec()
}

/// An event as a head receives it.
pub fn decode_event(bytes: &[u8]) -> Result<WorkerEvent, Error> {
    proto::Event::decode(bytes).map_err(damaged("an event"))?.try_into()
}

/// The first message of a worker, as a head receives it.
pub fn decode_hello(bytes: &[u8]) -> Result<Hello, Error> {
    convert::hello(&proto::Event::decode(bytes).map_err(damaged("the first message of a worker"))?)
}

/// A command as a head sends it to an agent.
#[must_use]
pub fn encode_agent_command(command: AgentCommand) -> Vec<u8> {
    proto::AgentCommand::from(Said::Message(command)).encode_to_vec()
}

/// A command as an agent receives it; none if the head only says that it is there.
pub fn decode_agent_command(bytes: &[u8]) -> Result<Option<AgentCommand>, Error> {
    let said = proto::AgentCommand::decode(bytes).map_err(damaged("a command to an agent"))?;
    Ok(message(said.try_into()?))
}

/// An event as an agent sends it.
#[must_use]
pub fn encode_agent_event(event: AgentEvent) -> Vec<u8> {
    proto::AgentEvent::from(Said::Message(event)).encode_to_vec()
}

/// An event as a head receives it of an agent; none if the agent only says that it is there.
pub fn decode_agent_event(bytes: &[u8]) -> Result<Option<AgentEvent>, Error> {
    let said = proto::AgentEvent::decode(bytes).map_err(damaged("an event of an agent"))?;
    Ok(message(said.try_into()?))
}

fn message<T>(said: Said<T>) -> Option<T> {
    match said {
        Said::Heartbeat { .. } => None,
        Said::Message(message) => Some(message),
    }
}

/// The first message of an agent, as the agent sends it.
#[must_use]
pub fn encode_agent_hello(hello: AgentHello) -> Vec<u8> {
    proto::AgentEvent::from(hello).encode_to_vec()
}

/// The first message of an agent, as a head receives it.
pub fn decode_agent_hello(bytes: &[u8]) -> Result<AgentHello, Error> {
    agent_hello(proto::AgentEvent::decode(bytes).map_err(damaged("the first message of an agent"))?)
}
