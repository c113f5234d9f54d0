//! A member's side.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{
    MESSAGE, WAIT_MAX,
    frame::{HEADER, Request, Response, length},
    server::late,
    store::{GroupStore, StoreError},
};
use crate::{
    ids::{Round, TrialId},
    wire::{Secret, handshake},
    worker::link::{self, CALL_TIMEOUT},
};

/// A room that another process hosts.
#[derive(Debug)]
pub(in crate::worker) struct Remote {
    address: String,
    /// None after it has failed.
    connection: Mutex<Option<TcpStream>>,
}

fn gone(during: &'static str, address: &str, error: &io::Error) -> StoreError {
    let reason = match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "it does not answer".to_owned(),
        _ => error.to_string(),
    };
    StoreError::PeerLost {
        during,
        message: format!("the worker at {address}, where the group meets: {reason}"),
    }
}

impl Remote {
    /// Connects to the first member of a group.
    pub(in crate::worker) fn connect(
        address: &str,
        secret: &Secret,
        (trial, round): (TrialId, Round),
        timeout: Duration,
    ) -> Result<Self, StoreError> {
        let connect = || {
            let resolved = address.to_socket_addrs()?.next();
            let resolved = resolved.ok_or_else(|| io::Error::from(ErrorKind::AddrNotAvailable))?;
            let mut stream = TcpStream::connect_timeout(&resolved, timeout.min(CALL_TIMEOUT))?;
            link::watch(&stream)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(MESSAGE))?;
            handshake::call_blocking(&mut stream, secret, address, (trial, round))?;
            Ok(stream)
        };
        let stream = connect().map_err(|error| gone("joining a group", address, &error))?;
        Ok(Self { address: address.to_owned(), connection: Mutex::new(Some(stream)) })
    }

    /// Asks for something, and waits for the answer. Each request has one, in order.
    fn ask(
        &self,
        during: &'static str,
        request: &Request,
        patience: Duration,
    ) -> Result<Response, StoreError> {
        let sent =
            request.encode().map_err(|error| StoreError::Invalid { during, message: error.to_string() })?;
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let exchange = |stream: &mut TcpStream| {
            stream.set_read_timeout(Some(MESSAGE + patience))?;
            stream.write_all(&sent)?;
            let mut header = [0; HEADER];
            stream.read_exact(&mut header)?;
            let mut body = vec![0; length(header)?];
            stream.read_exact(&mut body)?;
            Response::decode(&body)
        };
        let answer = match connection.as_mut() {
            Some(stream) => exchange(stream),
            None => Err(ErrorKind::NotConnected.into()),
        };
        match answer {
            Ok(Response::Refused(message)) => Err(StoreError::Refused { during, message }),
            Ok(response) => Ok(response),
            Err(error) => {
                // An answer that is late must not be taken for that to the next request.
                *connection = None;
                Err(gone(during, &self.address, &error))
            }
        }
    }

    /// Asks again and again until the time is up; none if it was in vain.
    fn await_answer(
        &self,
        during: &'static str,
        timeout: Duration,
        request: impl Fn(u32) -> Request,
    ) -> Result<Option<Response>, StoreError> {
        let began = Instant::now();
        loop {
            let left = timeout.saturating_sub(began.elapsed());
            let wait = left.min(WAIT_MAX);
            let wait_ms = wait.as_micros().div_ceil(1000) as u32;
            match self.ask(during, &request(wait_ms), wait)? {
                Response::NotYet if began.elapsed() < timeout => {}
                Response::NotYet => return Ok(None),
                response => return Ok(Some(response)),
            }
        }
    }

    fn unexpected(&self, during: &'static str, response: &Response) -> StoreError {
        let message = format!("the worker at {} answers something else: {response:?}", self.address);
        StoreError::Refused { during, message }
    }
}

fn owned(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

impl GroupStore for Remote {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        const DURING: &str = "setting a key";
        let request = Request::Set { key: key.to_owned(), value: value.to_owned() };
        match self.ask(DURING, &request, Duration::ZERO)? {
            Response::Done => Ok(()),
            other => Err(self.unexpected(DURING, &other)),
        }
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        const DURING: &str = "getting a key";
        match self.await_answer(DURING, timeout, |wait_ms| Request::Get { key: key.to_owned(), wait_ms })? {
            Some(Response::Value(value)) => Ok(value),
            None => Err(late(DURING, &[key])),
            Some(other) => Err(self.unexpected(DURING, &other)),
        }
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        const DURING: &str = "adding to a key";
        match self.ask(DURING, &Request::Add { key: key.to_owned(), delta }, Duration::ZERO)? {
            Response::Sum(sum) => Ok(sum),
            other => Err(self.unexpected(DURING, &other)),
        }
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<(), StoreError> {
        const DURING: &str = "waiting for keys";
        match self.await_answer(DURING, timeout, |wait_ms| Request::Wait { keys: owned(keys), wait_ms })? {
            Some(Response::Done) => Ok(()),
            None => Err(late(DURING, keys)),
            Some(other) => Err(self.unexpected(DURING, &other)),
        }
    }

    fn contains(&self, keys: &[&str]) -> Result<bool, StoreError> {
        const DURING: &str = "looking for keys";
        match self.ask(DURING, &Request::Contains { keys: owned(keys) }, Duration::ZERO)? {
            Response::Flag(all) => Ok(all),
            other => Err(self.unexpected(DURING, &other)),
        }
    }

    fn delete(&self, key: &str) -> Result<bool, StoreError> {
        const DURING: &str = "deleting a key";
        match self.ask(DURING, &Request::Delete { key: key.to_owned() }, Duration::ZERO)? {
            Response::Flag(existed) => Ok(existed),
            other => Err(self.unexpected(DURING, &other)),
        }
    }
}
