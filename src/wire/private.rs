//! Files that hold secrets: of this user, and for nobody else to read.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, ErrorKind, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::Path,
};

use super::{Error, secret::random_digits};

/// What the group and all others may do.
const OTHERS: u32 = 0o077;
/// What all others may do, and the group must not.
const OTHERS_AND_GROUP_WRITE: u32 = 0o027;
/// No file of this kind is longer.
const BYTES_MAX: u64 = 1 << 20;

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File { doing, path: path.to_owned(), source }
}

fn unsafe_file(path: &Path, problem: &'static str, remedy: &'static str) -> Error {
    Error::FileAccess { path: path.to_owned(), problem, remedy }
}

/// Makes a folder that only this user can enter. One that is there already has to be such a folder.
pub(super) fn make_folder(path: &Path) -> Result<(), Error> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(failed("making the folder", path)(error));
        }
        Ok(()) | Err(_) => {}
    }
    let found = fs::symlink_metadata(path).map_err(failed("looking at the folder", path))?;
    if !found.is_dir() {
        return Err(unsafe_file(path, "is not a folder", "remove it"));
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(unsafe_file(path, "belongs to another user", "run the study as that user"));
    }
    if found.mode() & OTHERS != 0 {
        return Err(unsafe_file(
            path,
            "can be entered by others",
            "`chmod 700` it if nobody has changed what is in it, else remove it",
        ));
    }
    Ok(())
}

/// Writes a file as a whole, or leaves the one that was there. At no time anybody else can read it.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Error> {
    let failed = || failed("writing", path);
    let name = path.file_name().ok_or_else(|| failed()(ErrorKind::InvalidInput.into()))?;
    let mut part = name.to_owned();
    part.push(format!(".{}.part", random_digits::<8>()?));
    let part = path.with_file_name(part);
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&part, path)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(|error| {
        // It may not even be there.
        let _ = fs::remove_file(&part);
        failed()(error)
    })
}

/// Reads a file that nobody else can read; none if there is none.
///
/// One of root may be readable for a group: that is how Kubernetes gives secrets to the user of a pod.
pub(super) fn read(path: &Path) -> Result<Option<String>, Error> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed("opening", path))?,
    };
    let found = file.metadata().map_err(failed("looking at", path))?;
    if !found.is_file() {
        return Err(unsafe_file(path, "is not a file", "give the path of the file itself"));
    }
    let is_ours = found.uid() == rustix::process::geteuid().as_raw();
    if !is_ours && found.uid() != 0 {
        return Err(unsafe_file(path, "belongs to another user", "make a copy of your own with mode 600"));
    }
    if found.mode() & if is_ours { OTHERS } else { OTHERS_AND_GROUP_WRITE } != 0 {
        return Err(unsafe_file(
            path,
            "can be read by others, and holds a secret",
            "`chmod 600` it, and stop those who may have read it: a study gets a new secret when its folder `cluster` is removed",
        ));
    }
    let mut text = String::new();
    (&mut file).take(BYTES_MAX + 1).read_to_string(&mut text).map_err(failed("reading", path))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(unsafe_file(path, "is too long", "give the path of the file that the head has written"));
    }
    Ok(Some(text))
}
