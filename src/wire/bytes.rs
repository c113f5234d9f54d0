//! Single messages as bytes, as they stand in a frame of gRPC: what tests and fuzzing need to be a head or a worker without a
//! connection.

use prost::Message;

use super::{Error, Hello, convert, proto};
use crate::trials::group::{WorkerCommand, WorkerEvent};

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
