//! Collectives under way.

use std::{fmt, ptr::NonNull, time::Duration};

use tch::{Tensor, no_grad};

use crate::{
    error::{Error, Result},
    ffi::{self, RawWork, call, millis},
    group::ProcessGroup,
};

/// A collective that has begun, and the tensors it works on.
///
/// Dropping it does not end it: the peers count on this rank.
#[must_use = "the result is there only after `wait`"]
pub struct Work {
    handle: Handle,
    group: ProcessGroup,
    during: &'static str,
    tensors: Vec<Tensor>,
    /// What the sums are to be divided by.
    divisor: Option<usize>,
}

/// An owned `intrusive_ptr<c10d::Work>`.
struct Handle(NonNull<RawWork>);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle owns the pointer, and this is the end of it. c10d keeps work that is under way.
        unsafe { ffi::c10d_work_free(self.0.as_ptr()) }
    }
}

impl Work {
    pub(crate) fn new(
        group: ProcessGroup,
        during: &'static str,
        raw: NonNull<RawWork>,
        tensors: Vec<Tensor>,
        divisor: Option<usize>,
    ) -> Work {
        Work { handle: Handle(raw), group, during, tensors, divisor }
    }

    /// Waits for the end, at most for the group's timeout and, if given, this one. A wait in vain ends the group.
    pub fn wait(self, timeout: Option<Duration>) -> Result<Tensor> {
        let mut tensors = self.wait_all(timeout)?;
        Ok(tensors.swap_remove(0))
    }

    pub(crate) fn wait_all(self, timeout: Option<Duration>) -> Result<Vec<Tensor>> {
        let Work { handle, group, during, mut tensors, divisor } = self;
        let timeout = timeout.map_or(-1, millis);
        // SAFETY: the group and the work are alive.
        call(|message| unsafe { ffi::c10d_work_wait(group.raw(), handle.0.as_ptr(), timeout, message) })
            .map_err(|failure| group.fail(Error::of(during, failure)))?;
        if let Some(divisor) = divisor {
            no_grad(|| tensors.iter_mut().for_each(|sum| *sum /= divisor as f64));
        }
        Ok(tensors)
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("during", &self.during).finish_non_exhaustive()
    }
}
