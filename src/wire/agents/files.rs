//! Checkpoints on their way from or to a disk. All of it blocks.

use std::{
    fs::{self, File},
    io::{self, BufWriter, ErrorKind, Read, Write},
    path::{Path, PathBuf},
};

use tokio::sync::mpsc::{Receiver, Sender};

use crate::{
    ids::{StudyId, TrialId},
    wire::secret::random_digits,
};

/// As much is sent at once.
const CHUNK: usize = 1 << 20;
/// No checkpoint is longer: what says so is a mistake.
pub(super) const BYTES_MAX: u64 = 1 << 40;
const NAME_MAX: usize = 200;

/// Where a head keeps the checkpoints of its trials.
pub trait CheckpointFolders: Send + Sync + 'static {
    /// The folder with the checkpoints of a trial, which need not be there, or why there is none, for people. May block.
    fn folder(&self, study: StudyId, trial: TrialId) -> Result<PathBuf, String>;

    /// Whether a checkpoint can have this name. It is asked only for names that are no paths.
    fn is_checkpoint(&self, file: &str) -> bool;
}

/// A piece of a file on its way.
#[derive(Debug)]
pub(super) enum Chunk {
    Data(Vec<u8>),
    /// BLAKE3 of all data: the last one.
    Checksum(Vec<u8>),
}

/// Whether a name is that of a file and nothing more.
pub(super) fn is_plain(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !name.is_empty() && name.len() <= NAME_MAX && !name.starts_with('.') && name.bytes().all(is_plain)
}

fn invalid(problem: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, problem)
}

/// Writes a file as it comes in. It has its name when all of it is on disk; until then no other writer uses the same. One that is there
/// already is the same: checkpoints never change.
pub(super) fn store(
    folder: &Path,
    name: &str,
    expected: Option<u64>,
    chunks: &mut Receiver<Chunk>,
) -> io::Result<()> {
    let whole = folder.join(name);
    if whole.try_exists()? {
        return Ok(());
    }
    fs::create_dir_all(folder)?;
    let random = random_digits::<8>().map_err(io::Error::other)?;
    let part = folder.join(format!("{name}.{random}.part"));
    let mut write = || {
        let file = write_chunks(File::create_new(&part)?, expected, chunks)?;
        file.sync_all()?;
        fs::rename(&part, &whole)?;
        File::open(folder)?.sync_all()
    };
    write().inspect_err(|_| {
        // It may not even be there.
        let _ = fs::remove_file(&part);
    })
}

fn write_chunks(file: File, expected: Option<u64>, chunks: &mut Receiver<Chunk>) -> io::Result<File> {
    let mut out = BufWriter::with_capacity(CHUNK, file);
    let mut hash = blake3::Hasher::new();
    let mut written = 0;
    let most = expected.unwrap_or(BYTES_MAX);
    while let Some(chunk) = chunks.blocking_recv() {
        match chunk {
            Chunk::Data(bytes) => {
                written += bytes.len() as u64;
                if written > most {
                    return Err(invalid("it is longer than it was said to be"));
                }
                hash.update(&bytes);
                out.write_all(&bytes)?;
            }
            Chunk::Checksum(checksum) if checksum != hash.finalize().as_bytes() => {
                return Err(invalid(
                    "its checksum is wrong: it was changed on its way, or while it was read",
                ));
            }
            Chunk::Checksum(_) => return out.into_inner().map_err(io::IntoInnerError::into_error),
        }
    }
    Err(io::Error::new(ErrorKind::UnexpectedEof, "it was cut off"))
}

/// Reads a file, until there is no more or nobody wants it.
pub(super) fn read(mut file: File, chunks: &Sender<Chunk>) -> io::Result<()> {
    let mut hash = blake3::Hasher::new();
    loop {
        let mut bytes = Vec::new();
        (&mut file).take(CHUNK as u64).read_to_end(&mut bytes)?;
        let is_end = bytes.is_empty();
        hash.update(&bytes);
        let chunk =
            if is_end { Chunk::Checksum(hash.finalize().as_bytes().to_vec()) } else { Chunk::Data(bytes) };
        if chunks.blocking_send(chunk).is_err() || is_end {
            return Ok(());
        }
    }
}

/// The names of the files in a folder, which need not be there, for which `is_wanted` says so, in order.
pub(super) fn list(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if let Ok(name) = entry.file_name().into_string()
            && is_plain(&name)
            && is_wanted(&name)
            && entry.file_type()?.is_file()
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
