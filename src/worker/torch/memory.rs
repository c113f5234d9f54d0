//! What a worker learns of the memory of its device: how many examples fit into a pass.

use std::{
    any::Any,
    cell::Cell,
    error::Error as StdError,
    ops::Range,
    panic::{self, AssertUnwindSafe},
};

use super::{BoxError, Error};
use crate::trials::group::{Batch, MemoryLimit};

/// What libtorch says when it cannot get memory: of GPUs, of the libraries that it uses there, and of the processor.
const MESSAGES: [&str; 5] = [
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
];

fn says_so(text: &str) -> bool {
    MESSAGES.iter().any(|message| text.contains(message))
}

/// Whether an error, or one of its causes, is that there was no memory.
pub(super) fn is_exhausted(error: &Error) -> bool {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = cause {
        if says_so(&error.to_string()) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The largest pass of a trial on this worker's device.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Not to be exceeded.
    limit: Option<u32>,
    /// The largest pass that has fitted.
    fitted: u32,
    /// The pass under way.
    attempt: u32,
    /// The largest of this step so far.
    largest: u32,
    /// A pass has failed in the midst of a reduction, which broke the group: the next one is tried here alone before.
    pub(super) is_careful: bool,
    /// What nobody knows yet.
    news: Option<MemoryLimit>,
}

impl Memory {
    /// A batch in as many passes as were planned, or more if they would not fit.
    pub(super) fn fit(&self, batch: Batch, workers: u32) -> Batch {
        let share = batch.total.div_ceil(workers.max(1));
        let least = self.limit.map_or(1, |limit| share.div_ceil(limit));
        Batch { accumulation: batch.accumulation.max(least.max(1) - 1), ..batch }
    }

    /// A pass begins.
    pub(super) fn attempt(&mut self, examples: &Range<u64>) {
        self.attempt = u32::try_from(examples.end - examples.start).unwrap_or(u32::MAX);
        self.largest = self.largest.max(self.attempt);
    }

    /// All passes of a step have fitted.
    pub(super) fn fitted(&mut self) {
        self.fitted = self.fitted.max(std::mem::take(&mut self.largest));
        self.is_careful = false;
    }

    /// The pass under way did not fit. Gives the error back if it cannot be made any smaller.
    pub(super) fn exhausted(&mut self, error: Error) -> Result<Error, Error> {
        let failed = self.attempt;
        self.largest = 0;
        if failed <= 1 {
            return Err(Error::OutOfMemory { source: Box::new(error) });
        }
        if self.fitted >= failed {
            // It did, when there was more room.
            self.fitted = 0;
        }
        let limit = (failed / 2).max(self.fitted);
        self.limit = Some(limit);
        // The first failure of several in a row says how much is certainly too much.
        let failed = self.news.map_or(failed, |news| news.failed);
        self.news = Some(MemoryLimit { failed, limit });
        Ok(error)
    }

    /// What was learned since the last call.
    pub(super) fn news(&mut self) -> Option<MemoryLimit> {
        self.news.take()
    }
}

thread_local! {
    /// Whether this thread runs code of a trainable from which it recovers.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs code of a trainable. Most operations of `tch` panic if there is no memory: that becomes an error.
pub(super) fn guarded<T>(code: impl FnOnce() -> Result<T, BoxError>) -> Result<T, BoxError> {
    let before = IS_GUARDED.replace(true);
    let ran = panic::catch_unwind(AssertUnwindSafe(code));
    IS_GUARDED.set(before);
    ran.unwrap_or_else(|payload| match text(payload.as_ref()) {
        Some(text) if says_so(text) => Err(text.to_owned().into()),
        _ => panic::resume_unwind(payload),
    })
}

/// Whether [`guarded`] takes care of a panic of this thread.
pub(super) fn is_taken_care_of(payload: &dyn Any) -> bool {
    cfg!(panic = "unwind") && IS_GUARDED.get() && text(payload).is_some_and(says_so)
}

fn text(payload: &dyn Any) -> Option<&str> {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied())
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;

    const fn batch(total: u32, accumulation: u32) -> Batch {
        Batch { total, accumulation }
    }

    fn no_memory() -> Error {
        let asked = Tensor::f_zeros([1 << 58], (Kind::Float, Device::Cpu));
        asked.expect_err("nobody has an exabyte").into()
    }

    #[test]
    fn what_libtorch_says_without_memory_is_recognised_as_error_and_as_panic() {
        assert!(is_exhausted(&no_memory()));
        let source =
            "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 14.56 GiB".into();
        assert!(is_exhausted(&Error::User { what: "computing the loss", source }));
        assert!(!is_exhausted(&Error::Unfit("the loss has no gradient".to_owned())));
        let caught = guarded(|| Ok(Tensor::zeros([1 << 58], (Kind::Float, Device::Cpu))));
        let source = caught.expect_err("nobody has an exabyte");
        assert!(is_exhausted(&Error::User { what: "computing the loss", source }));
        let other = panic::catch_unwind(|| guarded::<()>(|| panic!("another mistake")));
        assert!(text(other.expect_err("it goes on").as_ref()) == Some("another mistake"));
    }

    #[test]
    fn passes_are_halved_until_they_fit() {
        let mut memory = Memory::default();
        assert_eq!(memory.fit(batch(128, 0), 1), batch(128, 0));
        for (failed, limit, passes) in [(128_u64, 64, 2), (64, 32, 4)] {
            memory.attempt(&(0..failed));
            assert!(memory.exhausted(no_memory()).is_ok());
            assert_eq!(memory.limit, Some(limit));
            assert_eq!(memory.fit(batch(128, 0), 1), batch(128, passes - 1));
        }
        memory.attempt(&(0..32));
        memory.fitted();
        assert_eq!(memory.news(), Some(MemoryLimit { failed: 128, limit: 32 }));
        assert_eq!(memory.news(), None);
        // More passes than are needed are a plan's own affair, and shares count.
        assert_eq!(memory.fit(batch(128, 5), 1), batch(128, 5));
        assert_eq!(memory.fit(batch(100, 0), 3), batch(100, 1));
    }

    #[test]
    fn what_has_fitted_is_better_than_half() {
        let mut memory = Memory::default();
        memory.attempt(&(0..100));
        memory.fitted();
        memory.attempt(&(0..128));
        assert!(memory.exhausted(no_memory()).is_ok());
        assert_eq!(memory.limit, Some(100));
        // It does not any more.
        memory.attempt(&(0..100));
        assert!(memory.exhausted(no_memory()).is_ok());
        assert_eq!(memory.limit, Some(50));
    }

    #[test]
    fn one_example_that_does_not_fit_is_the_end() {
        let mut memory = Memory::default();
        memory.attempt(&(7..8));
        let error = memory.exhausted(no_memory()).expect_err("it cannot be halved");
        assert!(error.to_string().starts_with("not even one example at a time fits"), "{error}");
    }
}
