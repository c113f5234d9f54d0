use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use super::Error;

const UNIX: &str = "unix:";

/// Where a head listens.
///
/// ```
/// use pollux_tune::internal::wire::Address;
///
/// let near: Address = "unix:/run/study/head.socket".parse()?;
/// let far: Address = "127.0.0.1:4000".parse()?;
/// assert_eq!((near.to_string().as_str(), far.to_string().as_str()), ("unix:/run/study/head.socket", "127.0.0.1:4000"));
/// assert!("localhost".parse::<Address>().is_err());
/// # Ok::<(), pollux_tune::internal::wire::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// An IP address and a port.
    Tcp(SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let address = match text.strip_prefix(UNIX) {
            Some(path) => Path::new(path).is_absolute().then(|| Self::Unix(path.into())),
            None => text.parse().ok().map(Self::Tcp),
        };
        address.ok_or_else(|| Error::Address(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_what_its_text_says() {
        for text in ["unix:/a b/c:d.socket", "127.0.0.1:0", "[::1]:65535"] {
            assert_eq!(text.parse::<Address>().expect("an address").to_string(), text);
        }
        for text in
            ["", "unix:", "unix:relative", "/a/b", "localhost:1", "127.0.0.1", "127.0.0.1:65536", "tcp:1"]
        {
            let error = text.parse::<Address>().expect_err("no address").to_string();
            assert!(error.starts_with(&format!("`{text}` is no address; expected `unix:`")), "{error}");
        }
    }
}
