//! Sockets to listen at.

use std::{
    fs,
    io::{self, ErrorKind},
    net::{SocketAddr, TcpListener},
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::{self, Path, PathBuf},
};

use tokio::net;

use super::{Address, Error, folder};

/// For `map_err`.
fn failed(address: Address) -> impl FnOnce(io::Error) -> Error {
    move |source| match source.kind() {
        ErrorKind::AddrInUse => Error::InUse { address },
        _ => Error::Listen { address, source },
    }
}

/// What is not encrypted must not leave the machine.
pub(super) fn check_loopback(address: SocketAddr) -> Result<(), Error> {
    if address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err(Error::PlainText { address: Address::Tcp(address) })
}

/// Also gives the port, if any was allowed.
pub(super) fn tcp(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let listen = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    listen().map_err(failed(Address::Tcp(address)))
}

/// A socket that only this user can connect to, and its absolute path. One whose owner has died is replaced.
pub(super) fn unix(path: &Path) -> Result<(UnixListener, PathBuf), Error> {
    let wrong = |problem| Error::Path { path: path.to_owned(), problem };
    let failed = || failed(Address::Unix(path.to_owned()));
    let path = path::absolute(path).map_err(failed())?;
    if path.to_str().is_none() {
        return Err(wrong("is not text"));
    }
    check_folder(&path)?;
    match fs::symlink_metadata(&path) {
        Ok(found) if !found.file_type().is_socket() => return Err(wrong("is a file that is not a socket")),
        Ok(_) => match UnixStream::connect(&path) {
            Ok(_) => return Err(Error::InUse { address: Address::Unix(path) }),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                fs::remove_file(&path).map_err(failed())?;
            }
            Err(error) => return Err(failed()(error)),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed()(error)),
    }
    let listener = UnixListener::bind(&path).map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => wrong("is too long for one, which takes about 100 bytes"),
        _ => failed()(error),
    })?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(failed())?;
    listener.set_nonblocking(true).map_err(failed())?;
    Ok((listener, path))
}

/// That the folder of a socket is one in which nobody else can put another one.
pub(super) fn check_folder(path: &Path) -> Result<(), Error> {
    match path.parent() {
        Some(parent) => folder::check(parent),
        None => Err(Error::Path { path: path.to_owned(), problem: "is in no folder" }),
    }
}

/// Whether the process at the other end belongs to the user of this one.
pub(super) fn same_user(stream: &net::UnixStream) -> io::Result<()> {
    let (theirs, ours) = (stream.peer_cred()?.uid(), rustix::process::geteuid().as_raw());
    if theirs == ours {
        return Ok(());
    }
    let problem = format!("the process at the other end belongs to user {theirs}, not to {ours}");
    Err(io::Error::new(ErrorKind::PermissionDenied, problem))
}
