use std::{error::Error as StdError, io, iter, path::PathBuf};

use super::{Address, HostPort};

/// Why a head and its workers cannot talk to each other.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text that is no address.
    #[error(
        "`{0}` is no address; expected `unix:` with an absolute path, or an IP address with a port such as \
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
    #[error("{} is not a safe folder for a socket: it {problem}; {remedy}", path.display())]
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
    #[error("a secret has {allowed} hexadecimal digits; found a text of {found} bytes")]
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
    /// Plain text would leave the machine.
    #[error(
        "{address} is not on this machine, and what workers say is not encrypted; expected `unix:` or a loopback address \
         such as `127.0.0.1:4000`; other machines need an agent (`pollux-tune agent`)"
    )]
    PlainText {
        /// The address.
        address: Address,
    },
    /// A text that is no port of a machine.
    #[error(
        "`{0}` is not HOST:PORT; expected a name or an IP address with a port, such as `login1:4000` or `[fe80::1]:4000`"
    )]
    HostPort(String),
    /// A file with a secret cannot be used.
    #[error("{doing} {}", path.display())]
    File {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Others could read or replace a secret.
    #[error("{} {problem}; {remedy}", path.display())]
    FileAccess {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A file with a secret is damaged. No value is shown.
    #[error("{}: {problem}; get the file from the head again, or remove it if it is in the folder of the study: the next run makes another", path.display())]
    FileContents {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// There is no join file.
    #[error("there is no join file {}; a head writes one into the folder `cluster` of its study", path.display())]
    NoJoinFile {
        /// Where it was expected.
        path: PathBuf,
    },
    /// A certificate cannot be made.
    #[error("making the certificate of the head")]
    Certificate(#[from] rcgen::Error),
    /// A join file without an address.
    #[error("the join file has no address of the head; give one as HOST:PORT")]
    NoAddress,
    /// The head of a join file does not answer now. It may later.
    #[error("cannot reach the head: {reason}")]
    HeadAway {
        /// Why not, for each address.
        reason: String,
    },
    /// Somebody else is where the head should be. Nothing was said to it.
    #[error(
        "{address} is not the head of the join file, it has another certificate: {reason}; the token was not sent. Get the join file of \
         the study again, or correct its addresses"
    )]
    OtherHead {
        /// Where.
        address: HostPort,
        /// What is wrong with its certificate.
        reason: String,
    },
    /// The head does not want this agent.
    #[error("the head refuses this agent: {0}")]
    AgentRefused(String),
    /// A checkpoint does not get to the other side.
    #[error("the checkpoint {file} cannot be transferred: {problem}")]
    Transfer {
        /// The name of its file.
        file: String,
        /// Why not.
        problem: String,
    },
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

impl Error {
    /// Whether an agent can come in later with the same join file and the same program.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        matches!(self, Self::HeadAway { .. })
    }
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
