//! How a lack of memory is noticed, whichever way it comes.

use std::{
    any::Any,
    cell::Cell,
    error::Error as StdError,
    panic::{self, AssertUnwindSafe},
};

use super::{BoxError, Error};
use crate::worker::memory::is_out_of_memory;

/// Whether an error, or one of its causes, is that there was no memory.
pub(super) fn is_exhausted(error: &Error) -> bool {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = cause {
        if is_out_of_memory(&error.to_string()) {
            return true;
        }
        cause = error.source();
    }
    false
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
        Some(text) if is_out_of_memory(text) => Err(text.to_owned().into()),
        _ => panic::resume_unwind(payload),
    })
}

/// Whether [`guarded`] takes care of a panic of this thread.
pub(super) fn is_taken_care_of(payload: &dyn Any) -> bool {
    cfg!(panic = "unwind") && IS_GUARDED.get() && text(payload).is_some_and(is_out_of_memory)
}

fn text(payload: &dyn Any) -> Option<&str> {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied())
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;

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
}
