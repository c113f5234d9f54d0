//! How a worker process talks to its head: lines of JSON over a Unix socket.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};

use super::error::Error;

/// The end that speaks.
#[derive(Debug)]
pub(super) struct Speaker {
    stream: UnixStream,
}

/// The end that listens.
#[derive(Debug)]
pub(super) struct Listener {
    stream: BufReader<UnixStream>,
}

pub(super) fn connect(path: &Path) -> Result<(Speaker, Listener), Error> {
    let stream = UnixStream::connect(path).map_err(Error::io(format!("connecting to {}", path.display())))?;
    split(stream)
}

pub(super) fn split(stream: UnixStream) -> Result<(Speaker, Listener), Error> {
    let other = stream.try_clone().map_err(Error::io("sharing a connection"))?;
    Ok((Speaker { stream }, Listener { stream: BufReader::new(other) }))
}

impl Speaker {
    pub(super) fn say(&mut self, message: &impl Serialize) -> Result<(), Error> {
        let mut line = serde_json::to_vec(message)
            .map_err(|error| Error::Protocol(format!("a message cannot be written: {error}")))?;
        line.push(b'\n');
        self.stream.write_all(&line).map_err(Error::io("speaking to the other side"))
    }
}

impl Listener {
    /// The next message; none when the other side is gone.
    pub(super) fn hear<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        let mut line = String::new();
        // The rest of a message whose sender has died is no message.
        if self.stream.read_line(&mut line).is_err() || !line.ends_with('\n') {
            return Ok(None);
        }
        let message = serde_json::from_str(&line);
        message
            .map(Some)
            .map_err(|error| Error::Protocol(format!("a message cannot be read: {error}: {}", line.trim())))
    }
}
