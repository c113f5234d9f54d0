use std::{error::Error as StdError, io, iter, path::PathBuf};

use super::Address;

/// Why a head and its workers cannot talk to each other.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text that is no address.
    #[error(
        "`{0}` is no address; allowed are `unix:` with an absolute path, and an IP address with a port such as \
         `127.0.0.1:4000`"
    )]
    Address(String),
    /// A path that cannot be written as text, or is too long for a socket.
    #[error("{} cannot be the path of a socket: it {problem}; choose a folder with another path, or an IP address", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A folder in which somebody else could replace the socket.
    #[error("{} is no safe folder for a socket: it {problem}; {remedy}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// The folder of a socket cannot be made or looked at.
    #[error("using the folder {} for a socket", path.display())]
    FolderAccess {
        /// The folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A text that is no secret. It is not shown.
    #[error("a secret has {allowed} hexadecimal digits; this text of {found} bytes is none")]
    Secret {
        /// Its length.
        found: usize,
        /// The length of secrets.
        allowed: usize,
    },
    /// There is nothing to make a secret from.
    #[error("the system gives no random numbers")]
    Random(#[from] getrandom::Error),
    /// Somebody else listens at the address.
    #[error("{address} is in use; end the program that listens there, or choose {}", remedy(address))]
    InUse {
        /// The address.
        address: Address,
    },
    /// The address cannot be listened at.
    #[error("listening at {address}")]
    Listen {
        /// The address.
        address: Address,
        /// Why not.
        source: io::Error,
    },
    /// Whoever listens needs a tokio runtime.
    #[error("a gateway can only be opened inside a tokio runtime")]
    NoRuntime,
    /// A thread or its runtime cannot be had.
    #[error("starting the thread that talks to the head")]
    Thread(#[source] io::Error),
    /// Nobody answers at the address.
    #[error("cannot reach the head at {address}: {reason}")]
    Unreachable {
        /// The address.
        address: Address,
        /// Why not.
        reason: String,
    },
    /// The head does not want this worker.
    #[error("the head refuses this worker: {0}")]
    Refused(String),
    /// The head of a study cannot be reached through the file that it writes.
    #[error("cannot reach the head of the study through {}: it starts or ends, try again", file.display())]
    Control {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The head has not done what it was asked to.
    #[error("the head of the study has not done it: {0}")]
    NotDone(String),
    /// An invalid message.
    #[error("{what}: {problem}")]
    Message {
        /// Which message.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

/// An error with all its causes on one line, for another process or a log. A message never includes that of its source.
pub(crate) fn with_causes(error: &(dyn StdError + 'static)) -> String {
    let chain = iter::successors(Some(error), |error| StdError::source(*error));
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

const fn remedy(address: &Address) -> &'static str {
    match address {
        Address::Unix(_) => "another path",
        Address::Tcp(_) => "another port; port 0 stands for any that is free",
    }
}
