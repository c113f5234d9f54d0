//! Stores that are not libtorch's: written in Rust, and called by libtorch.

use std::{
    ffi::{c_char, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    slice,
    sync::Arc,
    time::Duration,
};

use crate::{
    error::{Error, Result},
    ffi::{self, Kind, RawText},
};

/// How long to wait where libtorch sets no limit: as long as it does by default.
const LIMIT: Duration = Duration::from_secs(300);

/// Keys and values that several processes share, by other means than libtorch's `TCPStore`: through connections that know who is
/// there, for example.
///
/// All operations may be called from any thread. Waiting has to end in time, with [`Error::Timeout`]; that the others cannot be reached
/// is [`Error::PeerLost`]. See [`Store::custom`](crate::Store::custom).
pub trait KeyValueStore: Send + Sync {
    /// Sets a key.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;
    /// Waits until the key is there, and reads it.
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>>;
    /// Adds to a counter, which begins at 0, and says what it is now. Its value is the sum as decimal digits.
    fn add(&self, key: &str, delta: i64) -> Result<i64>;
    /// Waits until all keys are there.
    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()>;
    /// Whether all keys are there already.
    fn contains(&self, keys: &[&str]) -> Result<bool>;
    /// Deletes a key, and says whether it was there.
    fn delete(&self, key: &str) -> Result<bool>;
}

/// As `Callbacks` in `shim/store.inc`.
#[repr(C)]
pub(crate) struct Callbacks {
    set: unsafe extern "C" fn(*const c_void, *const c_char, usize, *const u8, usize, *mut RawText) -> i32,
    get: unsafe extern "C" fn(*const c_void, *const c_char, usize, i64, *mut RawText) -> i32,
    add: unsafe extern "C" fn(*const c_void, *const c_char, usize, i64, *mut i64, *mut RawText) -> i32,
    wait: unsafe extern "C" fn(
        *const c_void,
        *const *const c_char,
        *const usize,
        usize,
        i64,
        *mut RawText,
    ) -> i32,
    check: unsafe extern "C" fn(
        *const c_void,
        *const *const c_char,
        *const usize,
        usize,
        *mut bool,
        *mut RawText,
    ) -> i32,
    remove: unsafe extern "C" fn(*const c_void, *const c_char, usize, *mut bool, *mut RawText) -> i32,
    drop: unsafe extern "C" fn(*const c_void),
}

pub(crate) static CALLBACKS: Callbacks = Callbacks { set, get, add, wait, check, remove, drop: release };

/// What C++ keeps of a store. [`release`] takes it back.
pub(crate) fn into_raw(store: Arc<dyn KeyValueStore>) -> *const c_void {
    Box::into_raw(Box::new(store)).cast_const().cast()
}

/// A call that came from C++.
struct Call<'a> {
    store: &'a Arc<dyn KeyValueStore>,
    out: *mut RawText,
}

impl Call<'_> {
    /// # Safety
    ///
    /// The pointer came from [`into_raw`] and was not released; `out` is a string of C++. Both outlive the call.
    unsafe fn new<'a>(store: *const c_void, out: *mut RawText) -> Call<'a> {
        // SAFETY: see above.
        Call { store: unsafe { &*store.cast() }, out }
    }

    /// Runs the body. What it gives is left in `out`, and so is the text of an error. Panics must not reach C++.
    fn run(&self, body: impl FnOnce(&dyn KeyValueStore) -> Result<Vec<u8>>) -> i32 {
        let outcome = catch_unwind(AssertUnwindSafe(|| body(&**self.store)));
        let (code, bytes) = match outcome {
            Ok(Ok(bytes)) => (0, bytes),
            Ok(Err(error)) => (kind(&error).code(), error.to_string().into_bytes()),
            Err(_) => (Kind::Other.code(), b"the store panicked".to_vec()),
        };
        // SAFETY: `out` is a string of C++ that is alive, and the bytes are.
        let left = unsafe { ffi::c10d_text_append(self.out, bytes.as_ptr(), bytes.len()) };
        if left { code } else { Kind::Other.code() }
    }
}

const fn kind(error: &Error) -> Kind {
    match error {
        Error::Timeout { .. } => Kind::Timeout,
        Error::PeerLost { .. } => Kind::Network,
        Error::Invalid { .. } => Kind::Invalid,
        Error::Aborted { .. } | Error::Other { .. } => Kind::Other,
    }
}

/// Milliseconds of libtorch's, where 0 stands for no limit.
fn timeout(milliseconds: i64) -> Duration {
    match u64::try_from(milliseconds) {
        Ok(0) | Err(_) => LIMIT,
        Ok(milliseconds) => Duration::from_millis(milliseconds),
    }
}

/// # Safety
///
/// The pointer has as many bytes, which outlive the use of the text.
unsafe fn text<'a>(key: *const c_char, length: usize) -> Result<&'a str> {
    // SAFETY: see above. C++ gives a pointer that is not null also for an empty string.
    let bytes = unsafe { slice::from_raw_parts(key.cast(), length) };
    std::str::from_utf8(bytes).map_err(|_| Error::invalid("reading a key", "it is not text"))
}

/// # Safety
///
/// There are as many pointers and lengths, and each pointer has as many bytes as its length says; all outlive the use of the texts.
unsafe fn texts<'a>(keys: *const *const c_char, lengths: *const usize, count: usize) -> Result<Vec<&'a str>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: see above.
    let keys = unsafe { slice::from_raw_parts(keys, count) };
    // SAFETY: see above.
    let lengths = unsafe { slice::from_raw_parts(lengths, count) };
    // SAFETY: see above.
    keys.iter().zip(lengths).map(|(key, length)| unsafe { text(*key, *length) }).collect()
}

/// # Safety
///
/// For this and all callbacks below: called by `CustomStore` in `shim/store.inc` only, with the store that it was made with and with
/// pointers to strings, values and results that outlive the call.
unsafe extern "C" fn set(
    store: *const c_void,
    key: *const c_char,
    key_length: usize,
    value: *const u8,
    length: usize,
    out: *mut RawText,
) -> i32 {
    // SAFETY: see above.
    let call = unsafe { Call::new(store, out) };
    // SAFETY: see above; a vector without elements may have a null pointer.
    let value = if length == 0 { &[][..] } else { unsafe { slice::from_raw_parts(value, length) } };
    // SAFETY: see above.
    let key = unsafe { text(key, key_length) };
    call.run(|store| store.set(key?, value).map(|()| Vec::new()))
}

/// # Safety
///
/// As for [`set`].
unsafe extern "C" fn get(
    store: *const c_void,
    key: *const c_char,
    key_length: usize,
    timeout_ms: i64,
    out: *mut RawText,
) -> i32 {
    // SAFETY: see above.
    let call = unsafe { Call::new(store, out) };
    // SAFETY: see above.
    let key = unsafe { text(key, key_length) };
    call.run(|store| store.get(key?, timeout(timeout_ms)))
}

/// # Safety
///
/// As for [`set`].
unsafe extern "C" fn add(
    store: *const c_void,
    key: *const c_char,
    key_length: usize,
    delta: i64,
    sum: *mut i64,
    out: *mut RawText,
) -> i32 {
    // SAFETY: see above.
    let call = unsafe { Call::new(store, out) };
    // SAFETY: see above.
    let key = unsafe { text(key, key_length) };
    // SAFETY: see above.
    let sum = unsafe { &mut *sum };
    call.run(|store| {
        *sum = store.add(key?, delta)?;
        Ok(Vec::new())
    })
}

/// # Safety
///
/// As for [`set`].
unsafe extern "C" fn wait(
    store: *const c_void,
    keys: *const *const c_char,
    lengths: *const usize,
    count: usize,
    timeout_ms: i64,
    out: *mut RawText,
) -> i32 {
    // SAFETY: see above.
    let call = unsafe { Call::new(store, out) };
    // SAFETY: see above.
    let keys = unsafe { texts(keys, lengths, count) };
    call.run(|store| store.wait(&keys?, timeout(timeout_ms)).map(|()| Vec::new()))
}

/// # Safety
///
/// As for [`set`].
unsafe extern "C" fn check(
    store: *const c_void,
    keys: *const *const c_char,
    lengths: *const usize,
    count: usize,
    all: *mut bool,
    out: *mut RawText,
) -> i32 {
    // SAFETY: see above.
    let call = unsafe { Call::new(store, out) };
    // SAFETY: see above.
    let keys = unsafe { texts(keys, lengths, count) };
    // SAFETY: see above.
    let all = unsafe { &mut *all };
    call.run(|store| {
        *all = store.contains(&keys?)?;
        Ok(Vec::new())
    })
}

/// # Safety
///
/// As for [`set`].
unsafe extern "C" fn remove(
    store: *const c_void,
    key: *const c_char,
    key_length: usize,
    existed: *mut bool,
    out: *mut RawText,
) -> i32 {
    // SAFETY: see above.
    let call = unsafe { Call::new(store, out) };
    // SAFETY: see above.
    let key = unsafe { text(key, key_length) };
    // SAFETY: see above.
    let existed = unsafe { &mut *existed };
    call.run(|store| {
        *existed = store.delete(key?)?;
        Ok(Vec::new())
    })
}

/// # Safety
///
/// The pointer came from [`into_raw`], and this is the end of it.
unsafe extern "C" fn release(store: *const c_void) {
    // SAFETY: see above.
    let store = unsafe { Box::from_raw(store.cast_mut().cast::<Arc<dyn KeyValueStore>>()) };
    // A panic must not reach C++, and nobody can be told.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(store)));
}
