//! What a worker learns of the memory of its device: how many examples fit into a pass.

use crate::trials::group::{Batch, MemoryLimit};

/// What libtorch says when it cannot get memory: of GPUs, of the libraries that it uses there, and of the processor.
const MESSAGES: [&str; 5] = [
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
];

/// Whether a text of libtorch says that there was no memory.
#[must_use]
pub fn is_out_of_memory(text: &str) -> bool {
    MESSAGES.iter().any(|message| text.contains(message))
}

/// The largest pass of a trial on this worker's device.
#[derive(Debug, Default)]
pub(in crate::worker) struct Memory {
    /// Not to be exceeded.
    limit: Option<u32>,
    /// The largest pass that has fitted.
    fitted: u32,
    /// The pass under way.
    attempt: u32,
    /// The largest of this step so far.
    largest: u32,
    /// A pass has failed in the midst of a reduction, which broke the group: the next one is tried here alone before.
    #[cfg(feature = "torch")]
    pub(in crate::worker) is_careful: bool,
    /// What nobody knows yet.
    news: Option<MemoryLimit>,
}

impl Memory {
    /// A batch in as many passes as were planned, or more if they would not fit.
    pub(in crate::worker) fn fit(&self, batch: Batch, workers: u32) -> Batch {
        let share = batch.total.div_ceil(workers.max(1));
        let least = self.limit.map_or(1, |limit| share.div_ceil(limit));
        Batch { accumulation: batch.accumulation.max(least.max(1) - 1), ..batch }
    }

    /// A pass begins.
    pub(in crate::worker) fn attempt(&mut self, examples: u64) {
        self.attempt = u32::try_from(examples).unwrap_or(u32::MAX);
        self.largest = self.largest.max(self.attempt);
    }

    /// All passes of a step have fitted.
    pub(in crate::worker) fn fitted(&mut self) {
        self.fitted = self.fitted.max(std::mem::take(&mut self.largest));
        #[cfg(feature = "torch")]
        {
            self.is_careful = false;
        }
    }

    /// The pass under way did not fit. False if it cannot be made any smaller.
    pub(in crate::worker) fn exhausted(&mut self) -> bool {
        let failed = self.attempt;
        self.largest = 0;
        if failed <= 1 {
            return false;
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
        true
    }

    /// What was learned since the last call.
    pub(in crate::worker) fn news(&mut self) -> Option<MemoryLimit> {
        self.news.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn batch(total: u32, accumulation: u32) -> Batch {
        Batch { total, accumulation }
    }

    #[test]
    fn passes_are_halved_until_they_fit() {
        let mut memory = Memory::default();
        assert_eq!(memory.fit(batch(128, 0), 1), batch(128, 0));
        for (failed, limit, passes) in [(128_u64, 64, 2), (64, 32, 4)] {
            memory.attempt(failed);
            assert!(memory.exhausted());
            assert_eq!(memory.limit, Some(limit));
            assert_eq!(memory.fit(batch(128, 0), 1), batch(128, passes - 1));
        }
        memory.attempt(32);
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
        memory.attempt(100);
        memory.fitted();
        memory.attempt(128);
        assert!(memory.exhausted());
        assert_eq!(memory.limit, Some(100));
        // It does not any more.
        memory.attempt(100);
        assert!(memory.exhausted());
        assert_eq!(memory.limit, Some(50));
    }

    #[test]
    fn one_example_that_does_not_fit_is_the_end() {
        let mut memory = Memory::default();
        memory.attempt(1);
        assert!(!memory.exhausted());
    }
}
