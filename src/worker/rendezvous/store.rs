//! What a group keeps in its room, as libtorch wants it: keys and values.

use std::time::Duration;

use thiserror::Error;

/// Why a request to a room was not answered.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StoreError {
    /// Nobody has set what was awaited.
    #[error("{during}: timed out: {message}")]
    Timeout {
        /// The request.
        during: &'static str,
        /// What was awaited.
        message: String,
    },
    /// The worker that hosts the room is gone, or is none of the study.
    #[error("{during}: a peer was lost: {message}")]
    PeerLost {
        /// The request.
        during: &'static str,
        /// What has happened.
        message: String,
    },
    /// The request is wrong. Nothing was sent.
    #[error("{during}: {message}")]
    Invalid {
        /// The request.
        during: &'static str,
        /// What is wrong.
        message: String,
    },
    /// The host has refused it.
    #[error("{during}: {message}")]
    Refused {
        /// The request.
        during: &'static str,
        /// Why.
        message: String,
    },
}

/// The room of a group: each method may be called from any thread.
pub trait GroupStore: Send + Sync {
    /// Sets a key.
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError>;
    /// Waits until the key is there, and reads it.
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError>;
    /// Adds to a counter, which begins at 0, and says what it is now. Its value is the sum as decimal digits.
    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError>;
    /// Waits until all keys are there.
    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<(), StoreError>;
    /// Whether all keys are there already.
    fn contains(&self, keys: &[&str]) -> Result<bool, StoreError>;
    /// Deletes a key, and says whether it was there.
    fn delete(&self, key: &str) -> Result<bool, StoreError>;
}
