//! The newest facts of a journal, in the file beside it (`SQLite` calls it the WAL), and whether the disk has them.
//!
//! After a wait for the disk that has failed, the system takes what it could not write for written: the next wait succeeds without it
//! (Linux does so with all common file systems). So all bytes are handed to the system again before the next wait counts.

use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::FileExt,
    path::Path,
};

/// As much is written again at once.
const PIECE: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Wal {
    file: File,
    /// What the system takes for written may not be on disk.
    is_doubtful: bool,
}

impl Wal {
    /// Waits until all of it is on disk. A process before this one may have been told that it is not, unless it is `known` to be.
    pub(super) fn open(path: &Path, known: bool) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let mut wal = Self { file, is_doubtful: !known };
        wal.sync()?;
        Ok(wal)
    }

    /// Whether bytes are written again before the next wait: whoever relies on them has to look what they are.
    pub(super) const fn is_doubtful(&self) -> bool {
        self.is_doubtful
    }

    /// Waits until all of it is on disk.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.sync_by(File::sync_data)
    }

    fn sync_by(&mut self, wait: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        if std::mem::replace(&mut self.is_doubtful, true) {
            self.write_again()?;
        }
        wait(&self.file)?;
        self.is_doubtful = false;
        Ok(())
    }

    /// Readers find the same bytes all the time, and nobody else writes.
    fn write_again(&self) -> io::Result<()> {
        let (mut piece, mut at) = (vec![0; PIECE], 0);
        loop {
            match self.file.read_at(&mut piece, at) {
                Ok(0) => return Ok(()),
                Ok(read) => {
                    self.file.write_all_at(&piece[..read], at)?;
                    at += read as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, os::unix::fs::MetadataExt, process};

    use super::*;

    /// When a file was last written to.
    fn written(file: &File) -> (i64, i64) {
        let metadata = file.metadata().expect("it is open");
        (metadata.mtime(), metadata.mtime_nsec())
    }

    #[test]
    fn after_a_wait_that_failed_all_bytes_are_written_again() {
        let path = env::temp_dir().join(format!("pollux-tune-wal-{}", process::id()));
        let bytes: Vec<u8> = (0..PIECE + 12_345).map(|at| (at % 251) as u8).collect();
        fs::write(&path, &bytes).expect("a file");
        let mut wal = Wal::open(&path, true).expect("it is there");
        let long_ago = std::time::SystemTime::UNIX_EPOCH;
        wal.file.set_modified(long_ago).expect("it is ours");
        wal.sync().expect("it is on disk");
        assert_eq!(written(&wal.file), (0, 0), "nothing to write again");
        for error in [ErrorKind::StorageFull, ErrorKind::Other] {
            wal.sync_by(|_| Err(error.into())).expect_err("it is full");
            assert!(wal.is_doubtful());
        }
        wal.file.set_modified(long_ago).expect("it is ours");
        wal.sync_by(|file| {
            assert_ne!(written(file), (0, 0), "the system takes it for written");
            Ok(())
        })
        .expect("there is room");
        assert!(!wal.is_doubtful());
        assert_eq!(fs::read(&path).expect("a file"), bytes);
        let again = Wal::open(&path, false).expect("it is there");
        assert!(!again.is_doubtful());
        fs::remove_file(path).expect("it is there");
    }
}
