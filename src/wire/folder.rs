//! The private folder of a head's socket.

use std::{
    env,
    fs::{self, DirBuilder, File, Metadata},
    io::{self, ErrorKind},
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt, MetadataExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};

use super::{Address, Error, secret::random_digits};

const PREFIX: &str = "pollux-tune-";
/// Random bytes in the name of a folder.
const RANDOM: usize = 8;
const SOCKET: &str = "head.socket";
/// Paths of sockets have to be shorter than 108 bytes, on some systems 104.
const PATH_MAX: usize = 100;
/// Write permission for the group and for all others.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;
/// How often to choose another name.
const ATTEMPTS: u32 = 8;

/// A folder that only this user can enter, for the socket of a head. It is gone when this is dropped.
///
/// Its name is random, and it is locked for as long as its head lives: who finds one without a lock knows that its head was killed.
///
/// ```
/// use pollux_tune::internal::wire::{Gateway, Secret, SocketFolder};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let folder = SocketFolder::new()?;
/// let (gateway, _events) = Gateway::open(&folder.address(), &Secret::random()?)?;
/// assert_eq!(*gateway.address(), folder.address());
/// # Ok::<(), pollux_tune::internal::wire::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SocketFolder {
    path: PathBuf,
    _lock: File,
}

impl SocketFolder {
    /// A new folder in that for temporary files. Removes the folders of heads that were killed.
    pub fn new() -> Result<Self, Error> {
        Self::inside(&base())
    }

    /// As [`SocketFolder::new`], in a folder of the caller's choice.
    pub fn inside(base: &Path) -> Result<Self, Error> {
        check_base(base)?;
        remove_leftovers(base);
        let mut attempt = 1;
        loop {
            let path = base.join(format!("{PREFIX}{}", random_digits::<RANDOM>()?));
            let failed = |source| Error::FolderAccess { path: path.clone(), source };
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::AlreadyExists && attempt < ATTEMPTS => {
                    attempt += 1;
                    continue;
                }
                Err(error) => return Err(failed(error)),
            }
            check(&path)?;
            // Another head that starts may take it for a leftover before it is locked.
            match lock(&path) {
                Ok(Some(lock)) => return Ok(Self { path, _lock: lock }),
                Ok(None) if attempt < ATTEMPTS => attempt += 1,
                Ok(None) => return Err(failed(ErrorKind::WouldBlock.into())),
                Err(error) if error.kind() == ErrorKind::NotFound && attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Where the socket of the head belongs.
    #[must_use]
    pub fn address(&self) -> Address {
        Address::Unix(self.path.join(SOCKET))
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        // Somebody may have tidied up already.
        let _ = remove(&self.path);
    }
}

/// Removes the folder and its socket, and nothing else.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path.join(SOCKET)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => fs::remove_dir(path),
    }
}

/// Not `XDG_RUNTIME_DIR`, which goes when the user logs out: a study may last longer. Programs that tidy up the folder for
/// temporary files leave alone what is locked.
fn base() -> PathBuf {
    let chosen = env::temp_dir();
    let length = chosen.as_os_str().len() + PREFIX.len() + 2 * RANDOM + SOCKET.len() + 2;
    if length <= PATH_MAX { chosen } else { PathBuf::from("/tmp") }
}

fn is_ours(found: &Metadata) -> bool {
    found.uid() == rustix::process::geteuid().as_raw()
}

/// Nobody else may be able to remove or replace folders that are made here.
fn check_base(path: &Path) -> Result<(), Error> {
    let remedy = "set TMPDIR to a folder of your own";
    let wrong = |problem| Error::Folder { path: path.to_owned(), problem, remedy };
    let found = fs::metadata(path).map_err(|source| Error::FolderAccess { path: path.to_owned(), source })?;
    if !found.is_dir() {
        return Err(wrong("is not a folder"));
    }
    if !is_ours(&found) && found.uid() != 0 {
        return Err(wrong("belongs to another user"));
    }
    if found.mode() & OTHERS_WRITE != 0 && found.mode() & STICKY == 0 {
        return Err(wrong("lets other users replace what is in it"));
    }
    Ok(())
}

/// A folder with a socket belongs to this user, and nobody else can write to it.
pub(super) fn check(path: &Path) -> Result<(), Error> {
    let remedy = "remove it, or give a folder of your own that only you can write to";
    let wrong = |problem| Error::Folder { path: path.to_owned(), problem, remedy };
    let found =
        fs::symlink_metadata(path).map_err(|source| Error::FolderAccess { path: path.to_owned(), source })?;
    if found.is_symlink() {
        return Err(wrong("is a symbolic link"));
    }
    if !found.is_dir() {
        return Err(wrong("is not a folder"));
    }
    if !is_ours(&found) {
        return Err(wrong("belongs to another user"));
    }
    if found.mode() & OTHERS_WRITE != 0 {
        return Err(wrong("lets other users write to it"));
    }
    Ok(())
}

/// The lock of a folder, for as long as the file is open; none if somebody has it.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let folder = File::open(path)?;
    match folder.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => return Ok(None),
        Err(fs::TryLockError::Error(error)) => return Err(error),
    }
    let (locked, there) = (folder.metadata()?, fs::symlink_metadata(path)?);
    let same = (locked.dev(), locked.ino()) == (there.dev(), there.ino());
    if same { Ok(Some(folder)) } else { Err(ErrorKind::NotFound.into()) }
}

/// Removes what killed heads of this user have left. What cannot be removed stays: it is in nobody's way.
fn remove_leftovers(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let random = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).unwrap_or_default();
        let path = entry.path();
        if random.len() != 2 * RANDOM || !random.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            continue;
        }
        if check(&path).is_err() {
            continue;
        }
        if let Ok(Some(_lock)) = lock(&path)
            && is_deserted(&path.join(SOCKET))
        {
            let _ = remove(&path);
        }
    }
}

/// Whether nobody listens at a socket.
fn is_deserted(socket: &Path) -> bool {
    match fs::symlink_metadata(socket) {
        Ok(found) if found.file_type().is_socket() => {
            matches!(UnixStream::connect(socket), Err(error) if error.kind() == ErrorKind::ConnectionRefused)
        }
        Ok(_) => false,
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}
