//! The keys and values of one group.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::Notify;

use crate::ids::{Round, TrialId};

/// The longest key in bytes.
const KEY_MAX: usize = 1 << 10;
/// What all keys and values of a room may take, in bytes.
const ROOM_MAX: usize = 32 << 20;
/// What a key takes besides itself and its value.
const OVERHEAD: usize = 64;

#[derive(Debug, Default)]
struct Values {
    by_key: BTreeMap<String, Vec<u8>>,
    bytes: usize,
}

impl Values {
    fn set(&mut self, key: &str, value: &[u8]) -> Result<(), String> {
        if key.len() > KEY_MAX {
            return Err(format!("a key has {} bytes; expected at most {KEY_MAX}", key.len()));
        }
        let before = self.by_key.get(key).map_or(0, |value| size(key, value));
        let bytes = self.bytes - before + size(key, value);
        if bytes > ROOM_MAX {
            return Err(format!("the keys of a group would take {bytes} bytes; expected at most {ROOM_MAX}"));
        }
        self.bytes = bytes;
        self.by_key.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn contains(&self, keys: &[impl AsRef<str>]) -> bool {
        keys.iter().all(|key| self.by_key.contains_key(key.as_ref()))
    }
}

const fn size(key: &str, value: &[u8]) -> usize {
    key.len() + value.len() + OVERHEAD
}

/// What the members of one group tell each other. Errors are what is wrong with a request.
#[derive(Debug, Default)]
pub(super) struct Room {
    values: Mutex<Values>,
    /// For those who block, and for those who do not.
    changed: Condvar,
    notify: Notify,
}

impl Room {
    fn values(&self) -> MutexGuard<'_, Values> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self) {
        self.changed.notify_all();
        self.notify.notify_waiters();
    }

    pub(super) fn set(&self, key: &str, value: &[u8]) -> Result<(), String> {
        self.values().set(key, value)?;
        self.announce();
        Ok(())
    }

    pub(super) fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.values().by_key.get(key).cloned()
    }

    pub(super) fn add(&self, key: &str, delta: i64) -> Result<i64, String> {
        let mut values = self.values();
        let before = match values.by_key.get(key) {
            Some(value) => std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok()),
            None => Some(0),
        };
        let sum = before.and_then(|before| before.checked_add(delta));
        let sum = sum.ok_or_else(|| format!("`{key}` is no counter"))?;
        values.set(key, sum.to_string().as_bytes())?;
        drop(values);
        self.announce();
        Ok(sum)
    }

    pub(super) fn contains(&self, keys: &[impl AsRef<str>]) -> bool {
        self.values().contains(keys)
    }

    pub(super) fn delete(&self, key: &str) -> bool {
        let mut values = self.values();
        let removed = values.by_key.remove(key);
        if let Some(value) = &removed {
            values.bytes -= size(key, value);
        }
        removed.is_some()
    }

    /// Until all keys are there. The caller limits the time.
    pub(super) async fn wait(&self, keys: &[impl AsRef<str>]) {
        loop {
            let changed = self.notify.notified();
            tokio::pin!(changed);
            // What comes after the look is not missed.
            changed.as_mut().enable();
            if self.contains(keys) {
                return;
            }
            changed.await;
        }
    }

    /// Blocks until all keys are there; whether they are.
    pub(super) fn wait_blocking(&self, keys: &[impl AsRef<str>], timeout: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.values(), timeout, |values| !values.contains(keys));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

/// The rooms of one host. One is there for as long as anybody is in it.
#[derive(Debug, Default)]
pub(super) struct Rooms(Mutex<BTreeMap<(TrialId, Round), Weak<Room>>>);

impl Rooms {
    pub(super) fn enter(&self, name: (TrialId, Round)) -> Arc<Room> {
        let mut rooms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rooms.retain(|_, room| room.strong_count() > 0);
        if let Some(room) = rooms.get(&name).and_then(Weak::upgrade) {
            return room;
        }
        let room = Arc::new(Room::default());
        rooms.insert(name, Arc::downgrade(&room));
        room
    }
}
