//! The room of a group, for libtorch.

use std::{sync::Arc, time::Duration};

use c10d::{Error, KeyValueStore, Result};

use crate::worker::rendezvous::{GroupStore, StoreError};

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Timeout { during, message } => Self::Timeout { during, message },
            StoreError::PeerLost { during, message } => Self::PeerLost { during, message },
            StoreError::Invalid { during, message } => Self::Invalid { during, message },
            StoreError::Refused { during, message } => Self::Other { during, message },
        }
    }
}

/// A room as libtorch sees it.
pub(super) struct TorchStore(pub(super) Arc<dyn GroupStore>);

impl KeyValueStore for TorchStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        Ok(self.0.set(key, value)?)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        Ok(self.0.get(key, timeout)?)
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        Ok(self.0.add(key, delta)?)
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        Ok(self.0.wait(keys, timeout)?)
    }

    fn contains(&self, keys: &[&str]) -> Result<bool> {
        Ok(self.0.contains(keys)?)
    }

    fn delete(&self, key: &str) -> Result<bool> {
        Ok(self.0.delete(key)?)
    }
}

#[cfg(test)]
mod tests {
    use c10d::Store;

    use super::*;
    use crate::{
        ids::{Round, TrialId},
        wire::Secret,
        worker::rendezvous::{Remote, Rendezvous},
    };

    /// For what comes sooner or later, also on a busy machine.
    const SOON: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);
    const ROOM: (TrialId, Round) = (TrialId(1), Round(4));

    #[test]
    fn libtorch_can_use_it() {
        let secret = Secret::random().expect("random numbers");
        let host = Rendezvous::host(None, &secret).expect("a free port");
        let remote = Remote::connect(host.address(), &secret, ROOM, SOON).expect("it is let in");
        let store = |room| Store::custom(host.address(), Arc::new(TorchStore(room)), SOON).expect("a store");
        let (here, there) = (store(host.enter(ROOM.0, ROOM.1)), store(Arc::new(remote)));
        there.prefix("all").and_then(|all| all.set("key", &[0, 255])).expect("it fits");
        assert_eq!(here.get("all/key", SOON).expect("it was set"), [0, 255]);
        assert_eq!(there.add("count", 1).expect("a counter"), 1);
        for store in [&here, &there] {
            assert!(matches!(store.wait(&["never"], SHORT), Err(Error::Timeout { .. })));
        }
        drop(host);
        let lost = loop {
            // The thread of the host may take a moment to end.
            if let Err(error) = there.add("count", 1) {
                break error;
            }
        };
        assert!(matches!(lost, Error::PeerLost { .. }), "{lost}");
    }
}
