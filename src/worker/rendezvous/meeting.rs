//! How the members of a group find each other.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{GroupStore, Remote, Rendezvous, STEP_TIMEOUT, StoreError};
use crate::trials::group::{Form, Member};

/// How often to look whether the head has sent something else while others are awaited.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The room of a group, and where it is.
pub(in crate::worker) struct Room {
    #[cfg_attr(not(feature = "torch"), expect(dead_code, reason = "only libtorch wants a name for it"))]
    pub(in crate::worker) address: String,
    pub(in crate::worker) store: Arc<dyn GroupStore>,
}

impl Rendezvous {
    /// The room of the first member: whoever else dies, a group without its first member is broken anyway.
    pub(in crate::worker) fn room(
        &self,
        form: &Form,
        place: u32,
        timeout: Duration,
    ) -> Result<Room, StoreError> {
        match (place, form.members.first()) {
            (0, _) => {
                Ok(Room { address: self.address().to_owned(), store: self.enter(form.trial, form.round) })
            }
            (_, Some(Member { rendezvous_addr: address, .. })) => {
                let remote = Remote::connect(address, self.secret(), (form.trial, form.round), timeout)?;
                Ok(Room { address: address.clone(), store: Arc::new(remote) })
            }
            (_, None) => Err(StoreError::Invalid {
                during: "joining a group",
                message: "a group without members".to_owned(),
            }),
        }
    }
}

/// Waits until all members are there. Connecting to one that never joins would take the whole timeout; this may be aborted before. It is
/// over when a member has been silent for as long as one may be in the middle of a step.
pub(in crate::worker) async fn await_all(store: &dyn GroupStore, everybody: usize) -> Result<(), StoreError> {
    let began = Instant::now();
    if usize::try_from(store.add("here", 1)?) == Ok(everybody) {
        store.set("everybody", b"")?;
    }
    loop {
        match store.wait(&["everybody"], POLL_INTERVAL) {
            Ok(()) => return Ok(()),
            Err(StoreError::Timeout { .. }) if began.elapsed() < STEP_TIMEOUT => {
                tokio::task::yield_now().await;
            }
            Err(error) => return Err(error),
        }
    }
}
