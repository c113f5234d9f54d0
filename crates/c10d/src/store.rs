//! Stores: what processes find each other by.

use std::{
    ffi::CString,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, ToSocketAddrs},
    os::fd::IntoRawFd,
    ptr::{self, NonNull},
    slice,
    sync::Arc,
    time::Duration,
};

use crate::{
    custom::{self, CALLBACKS, KeyValueStore},
    error::{Error, Result},
    ffi::{self, RawStore, c_string, call, made, millis},
};

/// How long a host may take to reach itself.
const SELF_CONNECT: Duration = Duration::from_secs(30);

/// A store of keys and values that several processes share: libtorch's `TCPStore`.
///
/// One process [hosts](Store::host) it, others [connect](Store::connect). It may be any process, and need not be a member of a
/// group: the one that outlives the groups is a good choice. Each group then gets a [prefix](Store::prefix) of its own.
/// The store lives as long as the last clone or prefix of it in the hosting process.
///
/// Anyone who can reach the port can read and write, and one who sends half a message can stall it: host on an address that only friends
/// reach, or provide a store of your own ([`Store::custom`]).
///
/// ```
/// use std::time::Duration;
///
/// let second = Duration::from_secs(1);
/// let hosted = c10d::Store::host("127.0.0.1:0")?;
/// let client = c10d::Store::connect(hosted.address(), second)?;
///
/// client.prefix("trial-7")?.set("colour", b"blue")?;
/// assert_eq!(hosted.get("trial-7/colour", second)?, b"blue");
/// assert_eq!(client.add("visits", 2)?, 2);
/// # Ok::<(), c10d::Error>(())
/// ```
#[derive(Clone)]
pub struct Store {
    handle: Arc<Handle>,
    address: Arc<str>,
}

/// An owned `intrusive_ptr<c10d::Store>`.
struct Handle(NonNull<RawStore>);

// SAFETY: `TCPStore` takes a lock in each operation, a `KeyValueStore` is `Sync`, and reference counts are atomic; `PrefixStore` only
// adds to the keys.
// The one unlocked setter, `setTimeout`, is never called.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle owns the pointer, and this is the end of it.
        unsafe { ffi::c10d_store_free(self.0.as_ptr()) }
    }
}

impl Store {
    /// Serves a new, empty store at an address of this machine. With port 0 the system finds one; see [`Store::address`].
    pub fn host(address: impl ToSocketAddrs) -> Result<Store> {
        const DURING: &str = "hosting a store";
        let failed = |error: std::io::Error| Error::invalid(DURING, error.to_string());
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let host = c_string(DURING, &reachable(address.ip()).to_string())?;
        let (fd, port, timeout) = (listener.into_raw_fd(), address.port(), millis(SELF_CONNECT));
        let handle = Handle::make(DURING, |out, message| {
            // SAFETY: the string and the places for results outlive the call; the socket is handed over.
            unsafe { ffi::c10d_store_host(fd, host.as_ptr(), port, timeout, out, message) }
        })?;
        Ok(Store { handle, address: address.to_string().into() })
    }

    /// Connects to the store at `host:port`, and tries again until it is there or `timeout` is over.
    pub fn connect(address: &str, timeout: Duration) -> Result<Store> {
        const DURING: &str = "connecting to a store";
        let unclear = || Error::invalid(DURING, format!("{address:?} is not of the form host:port"));
        let (host, port) = address.rsplit_once(':').ok_or_else(unclear)?;
        let port: u16 = port.parse().map_err(|_| unclear())?;
        let host = c_string(DURING, host.trim_start_matches('[').trim_end_matches(']'))?;
        let handle = Handle::make(DURING, |out, message| {
            // SAFETY: the string and the places for results outlive the call.
            unsafe { ffi::c10d_store_connect(host.as_ptr(), port, millis(timeout), out, message) }
        })?;
        Ok(Store { handle, address: address.into() })
    }

    /// A store of your own, for libtorch to use. Its address is what [`Store::address`] gives.
    ///
    /// ```
    /// use std::{collections::BTreeMap, sync::{Arc, Mutex}, time::Duration};
    ///
    /// use c10d::{Error, KeyValueStore, Result, Store};
    ///
    /// /// For the threads of one process, with keys that are there at once or never.
    /// #[derive(Default)]
    /// struct Memory(Mutex<BTreeMap<String, Vec<u8>>>);
    ///
    /// impl KeyValueStore for Memory {
    ///     fn set(&self, key: &str, value: &[u8]) -> Result<()> {
    ///         self.0.lock().unwrap().insert(key.to_owned(), value.to_owned());
    ///         Ok(())
    ///     }
    ///     fn get(&self, key: &str, _: Duration) -> Result<Vec<u8>> {
    ///         let missing = || Error::Timeout { during: "getting a key", message: key.to_owned() };
    ///         self.0.lock().unwrap().get(key).cloned().ok_or_else(missing)
    ///     }
    ///     fn add(&self, key: &str, delta: i64) -> Result<i64> {
    ///         let before = self.get(key, Duration::ZERO).ok().and_then(|value| String::from_utf8(value).ok()?.parse().ok());
    ///         let sum = before.unwrap_or(0) + delta;
    ///         self.set(key, sum.to_string().as_bytes())?;
    ///         Ok(sum)
    ///     }
    ///     fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
    ///         keys.iter().try_for_each(|key| self.get(key, timeout).map(drop))
    ///     }
    ///     fn contains(&self, keys: &[&str]) -> Result<bool> {
    ///         Ok(keys.iter().all(|key| self.0.lock().unwrap().contains_key(*key)))
    ///     }
    ///     fn delete(&self, key: &str) -> Result<bool> {
    ///         Ok(self.0.lock().unwrap().remove(key).is_some())
    ///     }
    /// }
    ///
    /// let second = Duration::from_secs(1);
    /// let store = Store::custom("memory", Arc::new(Memory::default()), second)?;
    /// store.prefix("trial-7")?.set("colour", b"blue")?;
    /// assert_eq!(store.get("trial-7/colour", second)?, b"blue");
    /// assert_eq!(store.add("visits", 2)?, 2);
    /// assert!(matches!(store.get("never", second), Err(Error::Timeout { .. })));
    /// # Ok::<(), c10d::Error>(())
    /// ```
    ///
    /// `timeout` is for what libtorch awaits without a limit of its own.
    pub fn custom(address: &str, store: Arc<dyn KeyValueStore>, timeout: Duration) -> Result<Store> {
        let raw = custom::into_raw(store);
        let handle = Handle::make("making a store", |out, message| {
            // SAFETY: the store is handed over, the callbacks live for ever, and the places for results outlive the call.
            unsafe { ffi::c10d_store_custom(raw, &raw const CALLBACKS, millis(timeout), out, message) }
        })?;
        Ok(Store { handle, address: address.into() })
    }

    /// The same store with `prefix/` before every key.
    pub fn prefix(&self, prefix: &str) -> Result<Store> {
        const DURING: &str = "prefixing a store";
        let added = c_string(DURING, prefix)?;
        let handle = Handle::make(DURING, |out, message| {
            // SAFETY: the store and the string are alive, and so are the places for results.
            unsafe { ffi::c10d_store_prefix(self.raw(), added.as_ptr(), out, message) }
        })?;
        Ok(Store { handle, address: self.address.clone() })
    }

    /// Where the store is hosted, as `host:port`. A host that listens everywhere, as on `0.0.0.0:0`, does not know by which
    /// address others reach it: only the port is of use then.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sets a key. libtorch does not wait for an answer, so a host that is gone may be noticed only by the next operation.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        const DURING: &str = "setting a key";
        let key = c_string(DURING, key)?;
        // SAFETY: the store, the key and the value are alive during the call.
        call(|message| unsafe {
            ffi::c10d_store_set(self.raw(), key.as_ptr(), value.as_ptr(), value.len(), message)
        })
        .map_err(|failure| Error::of(DURING, failure))
    }

    /// Waits until the key is there, and reads it.
    pub fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        const DURING: &str = "getting a key";
        let key = c_string(DURING, key)?;
        let (mut value, mut length) = (ptr::null_mut(), 0);
        // SAFETY: the store and the key are alive, and so are the places for results.
        call(|message| unsafe {
            let timeout = millis(timeout);
            ffi::c10d_store_get(self.raw(), key.as_ptr(), timeout, &raw mut value, &raw mut length, message)
        })
        .map_err(|failure| Error::of(DURING, failure))?;
        // SAFETY: after success `value` points to `length` bytes that were allocated by `malloc` for us.
        let bytes = unsafe { slice::from_raw_parts(value, length) }.to_vec();
        // SAFETY: see above; the bytes were copied.
        unsafe { ffi::c10d_free(value.cast()) };
        Ok(bytes)
    }

    /// Adds to a counter, which begins at 0, and says what it is now.
    pub fn add(&self, key: &str, delta: i64) -> Result<i64> {
        const DURING: &str = "adding to a key";
        let key = c_string(DURING, key)?;
        let mut sum = 0;
        // SAFETY: the store and the key are alive, and so is the place for the result.
        call(|message| unsafe {
            ffi::c10d_store_add(self.raw(), key.as_ptr(), delta, &raw mut sum, message)
        })
        .map_err(|failure| Error::of(DURING, failure))?;
        Ok(sum)
    }

    /// Waits until all keys are there. Other users of this connection, its clones and prefixes, wait as well.
    pub fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        const DURING: &str = "waiting for keys";
        let keys = Keys::new(DURING, keys)?;
        // SAFETY: the store and the keys are alive during the call.
        call(|message| unsafe {
            let timeout = millis(timeout);
            ffi::c10d_store_wait(self.raw(), keys.pointers.as_ptr(), keys.pointers.len(), timeout, message)
        })
        .map_err(|failure| Error::of(DURING, failure))
    }

    /// Whether all keys are there already.
    pub fn contains(&self, keys: &[&str]) -> Result<bool> {
        const DURING: &str = "looking for keys";
        let keys = Keys::new(DURING, keys)?;
        let mut all = false;
        // SAFETY: the store and the keys are alive, and so is the place for the result.
        call(|message| unsafe {
            let (first, count) = (keys.pointers.as_ptr(), keys.pointers.len());
            ffi::c10d_store_check(self.raw(), first, count, &raw mut all, message)
        })
        .map_err(|failure| Error::of(DURING, failure))?;
        Ok(all)
    }

    /// Deletes a key, and says whether it was there.
    pub fn delete(&self, key: &str) -> Result<bool> {
        const DURING: &str = "deleting a key";
        let key = c_string(DURING, key)?;
        let mut existed = false;
        // SAFETY: the store and the key are alive, and so is the place for the result.
        call(|message| unsafe {
            ffi::c10d_store_delete(self.raw(), key.as_ptr(), &raw mut existed, message)
        })
        .map_err(|failure| Error::of(DURING, failure))?;
        Ok(existed)
    }

    pub(crate) fn raw(&self) -> *const RawStore {
        self.handle.0.as_ptr()
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.address).finish()
    }
}

impl Handle {
    fn make(
        during: &'static str,
        entry: impl FnOnce(*mut *mut RawStore, ffi::Message) -> i32,
    ) -> Result<Arc<Handle>> {
        let mut raw = ptr::null_mut();
        call(|message| entry(&raw mut raw, message)).map_err(|failure| Error::of(during, failure))?;
        Ok(Arc::new(Handle(made(raw))))
    }
}

/// Keys as C++ takes them.
struct Keys {
    pointers: Vec<*const std::ffi::c_char>,
    _texts: Vec<CString>,
}

impl Keys {
    fn new(during: &'static str, keys: &[&str]) -> Result<Keys> {
        let texts: Vec<CString> = keys.iter().map(|key| c_string(during, key)).collect::<Result<_>>()?;
        Ok(Keys { pointers: texts.iter().map(|text| text.as_ptr()).collect(), _texts: texts })
    }
}

/// An address at which a server that listens on `ip` can be reached from its own machine.
fn reachable(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}
