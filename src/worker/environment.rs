//! Errors that are nobody's fault: all trials would meet them until somebody mends what they share.

use std::io::{self, ErrorKind};

use rustix::io::Errno;

/// Whether the environment is to blame for an error of the system: no room on the disk, or no more files, processes or memory.
pub(crate) fn is_to_blame(error: &io::Error) -> bool {
    let is_out_of = |errno: i32| {
        [
            Errno::NFILE,
            Errno::MFILE,
            Errno::AGAIN,
            Errno::NOMEM,
            Errno::NOSPC,
            Errno::DQUOT,
            Errno::ROFS,
            Errno::IO,
        ]
        .iter()
        .any(|known| known.raw_os_error() == errno)
    };
    matches!(
        error.kind(),
        ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::OutOfMemory
    ) || error.raw_os_error().is_some_and(is_out_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_trials_share_is_told_apart_from_what_is_missing() {
        for errno in [Errno::NOSPC, Errno::DQUOT, Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::NOMEM] {
            assert!(is_to_blame(&errno.into()), "{errno}");
        }
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::INVAL] {
            assert!(!is_to_blame(&errno.into()), "{errno}");
        }
    }
}
