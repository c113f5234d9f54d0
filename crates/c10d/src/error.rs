//! What can go wrong, told apart by what a caller can do about it.

use crate::ffi::{Failure, Kind};

/// What the shim tells Gloo when a group is aborted; Gloo passes it on.
const ABORTED: &str = "the group was aborted";

/// What libtorch and Gloo say when a peer, or the host of a store, is gone.
const LOST: [&str; 11] = [
    "connection reset",
    "connection closed",
    "connection refused",
    "connection was closed",
    "broken pipe",
    "failed to recv",
    "failed to send",
    "failed to connect",
    "no route to host",
    "remote process exited",
    "unexpected end of file",
];

/// Why an operation on a store, a group or a reducer failed.
///
/// After any error of a collective but [`Invalid`](Error::Invalid), the group is of no use: drop it and form another.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Somebody did not come, or did not answer, in time.
    #[error("{during}: timed out: {message}")]
    Timeout {
        /// The operation.
        during: &'static str,
        /// What libtorch says.
        message: String,
    },
    /// The connection to a peer or to the host of the store broke, most likely because that process died.
    #[error("{during}: a peer was lost: {message}")]
    PeerLost {
        /// The operation.
        during: &'static str,
        /// What libtorch says.
        message: String,
    },
    /// The group was aborted in this process, or had failed before.
    #[error("{during}: {message}")]
    Aborted {
        /// The operation.
        during: &'static str,
        /// Why the group can no longer be used.
        message: String,
    },
    /// An argument is wrong. Nothing was sent.
    #[error("{during}: {message}")]
    Invalid {
        /// The operation.
        during: &'static str,
        /// What is wrong.
        message: String,
    },
    /// Anything else that libtorch reports.
    #[error("{during}: {message}")]
    Other {
        /// The operation.
        during: &'static str,
        /// What libtorch says.
        message: String,
    },
}

/// The result of an operation on a store, a group or a reducer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn invalid(during: &'static str, message: impl Into<String>) -> Error {
        Error::Invalid { during, message: message.into() }
    }

    pub(crate) fn aborted(during: &'static str) -> Error {
        Error::Aborted { during, message: ABORTED.to_owned() }
    }

    /// The failure of an operation that talks to others.
    pub(crate) fn of(during: &'static str, failure: Failure) -> Error {
        let Failure { kind, message } = failure;
        let lower = message.to_lowercase();
        if lower.contains(ABORTED) {
            return Error::aborted(during);
        }
        // Of a connection that there was: the system has given up on it.
        let link = ["read error", "writev"].iter().any(|words| lower.contains(words));
        // A connection that is refused until time is up counts as a timeout: nobody has come yet.
        let late = !link && ["timed out", "timeout"].iter().any(|words| lower.contains(words));
        if late || kind == Kind::Timeout {
            return Error::Timeout { during, message };
        }
        if link || kind == Kind::Network || LOST.iter().any(|words| lower.contains(words)) {
            return Error::PeerLost { during, message };
        }
        match kind {
            Kind::Invalid => Error::Invalid { during, message },
            _ => Error::Other { during, message },
        }
    }

    /// The failure of an operation that has not begun to talk to others: what libtorch checks first are the arguments.
    pub(crate) fn at_launch(during: &'static str, failure: Failure) -> Error {
        match Error::of(during, failure) {
            Error::Other { during, message } => Error::Invalid { during, message },
            error => error,
        }
    }

    /// Whether the group can go on after this error of a collective.
    pub(crate) fn leaves_the_group_intact(&self) -> bool {
        matches!(self, Error::Invalid { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant(kind: Kind, message: &str) -> &'static str {
        match Error::of("test", Failure { kind, message: message.to_owned() }) {
            Error::Timeout { .. } => "timeout",
            Error::PeerLost { .. } => "peer lost",
            Error::Aborted { .. } => "aborted",
            Error::Invalid { .. } => "invalid",
            Error::Other { .. } => "other",
        }
    }

    #[test]
    fn messages_of_libtorch_and_gloo_are_told_apart() {
        for (kind, message, expected) in [
            (Kind::Other, "[pair.cc:553] Connection closed by peer [127.0.0.1]:4242", "peer lost"),
            (Kind::Other, "[pair.cc:544] Read error [127.0.0.1]:4242: Connection reset by peer", "peer lost"),
            (Kind::Other, "[pair.cc:534] writev [127.0.0.1]:4242: Broken pipe", "peer lost"),
            (Kind::Other, "[pair.cc:544] Read error [10.0.0.2]:4242: Connection timed out", "peer lost"),
            (Kind::Other, "[pair.cc:534] writev [10.0.0.2]:4242: No route to host", "peer lost"),
            (Kind::Network, "failed to recv, got 0 bytes", "peer lost"),
            (Kind::Other, "[buffer.cc:81] Timed out waiting 300ms for recv operation to complete", "timeout"),
            (Kind::Other, "[context.cc:45] Application timeout caused pair closure", "timeout"),
            (Kind::Other, "Wait timeout after 300ms, keys: /0/0/0", "timeout"),
            (Kind::Other, "Operation timed out!", "timeout"),
            (Kind::Timeout, "The client socket has given up", "timeout"),
            (Kind::Other, "[pair.cc:1] the group was aborted", "aborted"),
            (Kind::Invalid, "invalid root rank", "invalid"),
            (Kind::Other, "out of memory", "other"),
        ] {
            assert_eq!(variant(kind, message), expected, "{message}");
        }
    }

    #[test]
    fn before_anything_is_sent_libtorch_complains_of_arguments() {
        let failure = || Failure { kind: Kind::Other, message: "tensors must be contiguous".to_owned() };
        assert!(Error::at_launch("test", failure()).leaves_the_group_intact());
        assert!(!Error::of("test", failure()).leaves_the_group_intact());
    }
}
