//! The C interface of `shim/`, and how its answers become results.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    marker::{PhantomData, PhantomPinned},
    ptr::{self, NonNull},
    time::Duration,
};

use crate::{custom::Callbacks, error::Error};

/// A type that only C++ knows.
macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[repr(C)]
        pub(crate) struct $name {
            _data: [u8; 0],
            // Neither `Send` nor `Sync` nor `Unpin` by itself.
            _marker: PhantomData<(*mut u8, PhantomPinned)>,
        }
    )*};
}

opaque!(RawStore RawText RawGroup RawWatch RawWork RawReducer);

/// As `Bucket` in `shim/reducer.inc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct RawBucket {
    pub(crate) elements: u64,
    pub(crate) local_sq: f64,
    pub(crate) reduced_sq: f64,
}

/// What sort of exception was thrown; as `Kind` in `shim/status.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Timeout,
    Network,
    Invalid,
    Other,
}

impl Kind {
    /// Its number there; 0 stands for success.
    pub(crate) const fn code(self) -> i32 {
        match self {
            Self::Timeout => 1,
            Self::Network => 2,
            Self::Invalid => 3,
            Self::Other => 4,
        }
    }
}

/// An exception that the shim has caught.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) message: String,
}

/// An `at::Tensor`, which is what a `tch::Tensor` points to.
pub(crate) type TensorPtr = *const c_void;

/// Where an entry point leaves the text of an exception.
pub(crate) type Message = *mut *mut c_char;

// SAFETY: the declarations repeat those of `shim/*.inc`: the same names, argument types and results.
unsafe extern "C" {
    pub(crate) fn c10d_store_host(
        listener: c_int,
        host: *const c_char,
        port: u16,
        timeout_ms: i64,
        out: *mut *mut RawStore,
        message: Message,
    ) -> i32;
    pub(crate) fn c10d_store_connect(
        host: *const c_char,
        port: u16,
        timeout_ms: i64,
        out: *mut *mut RawStore,
        message: Message,
    ) -> i32;
    pub(crate) fn c10d_store_custom(
        store: *const c_void,
        callbacks: *const Callbacks,
        timeout_ms: i64,
        out: *mut *mut RawStore,
        message: Message,
    ) -> i32;
    pub(crate) fn c10d_text_append(text: *mut RawText, bytes: *const u8, length: usize) -> bool;
    pub(crate) fn c10d_store_prefix(
        store: *const RawStore,
        prefix: *const c_char,
        out: *mut *mut RawStore,
        message: Message,
    ) -> i32;
    pub(crate) fn c10d_store_set(
        store: *const RawStore,
        key: *const c_char,
        value: *const u8,
        length: usize,
        message: Message,
    ) -> i32;
    pub(crate) fn c10d_store_get(
        store: *const RawStore,
        key: *const c_char,
        timeout_ms: i64,
        value: *mut *mut u8,
        length: *mut usize,
        message: Message,
    ) -> i32;
    pub(crate) fn c10d_store_add(
        store: *const RawStore,
        key: *const c_char,
        delta: i64,
        sum: *mut i64,
        message: Message,
    ) -> i32;
    pub(crate) fn c10d_store_wait(
        store: *const RawStore,
        keys: *const *const c_char,
        count: usize,
        timeout_ms: i64,
        message: Message,
    ) -> i32;
    pub(crate) fn c10d_store_check(
        store: *const RawStore,
        keys: *const *const c_char,
        count: usize,
        all: *mut bool,
        message: Message,
    ) -> i32;
    pub(crate) fn c10d_store_delete(
        store: *const RawStore,
        key: *const c_char,
        existed: *mut bool,
        message: Message,
    ) -> i32;
    pub(crate) fn c10d_store_free(store: *mut RawStore);
    pub(crate) fn c10d_free(memory: *mut c_void);

    pub(crate) fn c10d_group_gloo(
        store: *const RawStore,
        rank: i32,
        size: i32,
        connect_ms: i64,
        link_ms: i64,
        timeout_ms: i64,
        host: *const c_char,
        interface: *const c_char,
        out: *mut *mut RawGroup,
        message: Message,
    ) -> i32;
    #[cfg(feature = "cuda")]
    pub(crate) fn c10d_group_nccl(
        store: *const RawStore,
        rank: i32,
        size: i32,
        timeout_ms: i64,
        device: i32,
        out: *mut *mut RawGroup,
        message: Message,
    ) -> i32;
    pub(crate) fn c10d_group_all_reduce(
        group: *const RawGroup,
        tensor: TensorPtr,
        operation: i32,
        out: *mut *mut RawWork,
        message: Message,
    ) -> i32;
    pub(crate) fn c10d_group_broadcast(
        group: *const RawGroup,
        tensor: TensorPtr,
        root: i32,
        out: *mut *mut RawWork,
        message: Message,
    ) -> i32;
    pub(crate) fn c10d_group_broadcast_all(
        group: *const RawGroup,
        tensors: *const TensorPtr,
        count: usize,
        bytes: usize,
        root: i32,
        message: Message,
    ) -> i32;
    pub(crate) fn c10d_group_all_gather(
        group: *const RawGroup,
        input: TensorPtr,
        outputs: *const TensorPtr,
        out: *mut *mut RawWork,
        message: Message,
    ) -> i32;
    pub(crate) fn c10d_group_barrier(group: *const RawGroup, out: *mut *mut RawWork, message: Message)
    -> i32;
    pub(crate) fn c10d_group_abort(group: *const RawGroup);
    pub(crate) fn c10d_group_free(group: *mut RawGroup);
    pub(crate) fn c10d_group_watch(group: *const RawGroup) -> *mut RawWatch;
    pub(crate) fn c10d_watch_abort(watch: *const RawWatch);
    pub(crate) fn c10d_watch_free(watch: *mut RawWatch);
    pub(crate) fn c10d_work_wait(
        group: *const RawGroup,
        work: *const RawWork,
        timeout_ms: i64,
        message: Message,
    ) -> i32;
    pub(crate) fn c10d_work_free(work: *mut RawWork);

    pub(crate) fn c10d_reducer_new(
        group: *const RawGroup,
        parameters: *const TensorPtr,
        count: usize,
        first_bucket_bytes: i64,
        bucket_bytes: i64,
        find_unused: bool,
        average: bool,
        norms: bool,
        out: *mut *mut RawReducer,
        message: Message,
    ) -> i32;
    pub(crate) fn c10d_reducer_measure(reducer: *mut RawReducer, norms: bool, message: Message) -> i32;
    pub(crate) fn c10d_reducer_weigh(
        reducer: *mut RawReducer,
        weights: *const TensorPtr,
        count: usize,
        message: Message,
    ) -> i32;
    pub(crate) fn c10d_reducer_backward(reducer: *mut RawReducer, loss: TensorPtr, message: Message) -> i32;
    pub(crate) fn c10d_reducer_accumulate(loss: TensorPtr, message: Message) -> i32;
    pub(crate) fn c10d_reducer_buckets(
        reducer: *const RawReducer,
        buckets: *mut RawBucket,
        room: usize,
        count: *mut usize,
        message: Message,
    ) -> i32;
    pub(crate) fn c10d_reducer_free(reducer: *mut RawReducer);
}

/// Makes a call and turns its status and message into a result.
pub(crate) fn call(entry: impl FnOnce(Message) -> i32) -> Result<(), Failure> {
    let mut message: *mut c_char = ptr::null_mut();
    let status = entry(&raw mut message);
    let text = if message.is_null() {
        "no message".to_owned()
    } else {
        // SAFETY: an entry point leaves null, or a string of its own that ends with a zero byte.
        let text = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
        // SAFETY: that string was allocated by `malloc`, and nobody else has it.
        unsafe { c10d_free(message.cast()) };
        text
    };
    let kind = match status {
        0 => return Ok(()),
        1 => Kind::Timeout,
        2 => Kind::Network,
        3 => Kind::Invalid,
        _ => Kind::Other,
    };
    Err(Failure { kind, message: text.trim_end().to_owned() })
}

/// What an entry point has made, after it has said that all went well.
pub(crate) fn made<T>(raw: *mut T) -> NonNull<T> {
    NonNull::new(raw).expect("the shim makes what was asked for, or fails")
}

/// Milliseconds as the shim takes them: libtorch reads 0 as "for ever", so the least is 1.
pub(crate) fn millis(timeout: Duration) -> i64 {
    // About 30 years: libtorch adds these to its clock.
    const MOST: i64 = 1_000_000_000_000;
    i64::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(MOST).clamp(1, MOST)
}

/// A text for C++.
pub(crate) fn c_string(during: &'static str, text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::invalid(during, format!("{text:?} has a zero byte")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_timeout_becomes_none_at_all() {
        assert_eq!(millis(Duration::ZERO), 1);
        assert_eq!(millis(Duration::from_micros(1_500)), 2);
        assert_eq!(millis(Duration::from_secs(30)), 30_000);
        assert_eq!(millis(Duration::MAX), 1_000_000_000_000);
    }
}
