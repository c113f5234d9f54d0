//! Whether files that are open are still those that their names mean.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// A file by its name, and which file that was.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    identity: (u64, u64),
}

impl Place {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(&fs::metadata(path)?) })
    }

    /// Whether the name still means the same file.
    pub(super) fn is_same(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|now| identity(&now) == self.identity)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

fn identity(of: &fs::Metadata) -> (u64, u64) {
    (of.dev(), of.ino())
}

/// Whether a name means this open file.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let (open, named) = (file.metadata(), fs::metadata(path));
    matches!((open, named), (Ok(open), Ok(named)) if identity(&open) == identity(&named))
}

/// Waits until the names in a folder are on disk.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
