//! A small file system, to be filled.

use std::{
    fs,
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
    process::Command,
};

/// It is gone at the end.
pub(crate) struct SmallDisk {
    path: PathBuf,
    bytes: usize,
}

impl SmallDisk {
    /// In an empty folder, or one that is made for it. Where this user may not mount one, it says so, and there is none.
    pub(crate) fn mount(path: &Path, bytes: usize) -> Option<Self> {
        fs::create_dir_all(path).expect("a folder");
        let size = format!("size={bytes}");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(path).output();
        if mount.is_ok_and(|mount| mount.status.success()) {
            return Some(Self { path: path.to_owned(), bytes });
        }
        let _ = writeln!(io::stderr(), "skipped: this user may not mount a small disk");
        None
    }

    /// Leaves no room at all. Gives the file that takes it.
    pub(crate) fn fill(&self) -> PathBuf {
        let filler = self.path.join("filler");
        let mut file = fs::File::create(&filler).expect("a file");
        let mut written = 0;
        for size in [1 << 16, 1 << 12, 1] {
            let full = loop {
                match file.write_all(&vec![1; size]) {
                    Ok(()) => written += size,
                    Err(error) => break error,
                }
                assert!(written < 2 * self.bytes, "this is not the small disk");
            };
            assert_eq!(full.kind(), ErrorKind::StorageFull);
        }
        filler
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Those who are stopped may still use it; it may be unmounted already.
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).output();
    }
}
