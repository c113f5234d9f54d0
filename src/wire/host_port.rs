use std::{fmt, net::Ipv6Addr, str::FromStr};

use super::Error;

/// A port of a machine that may be called by its name.
///
/// ```
/// use pollux_tune::internal::wire::HostPort;
///
/// for text in ["login1.cluster:4000", "10.0.0.1:4000", "[fe80::1]:4000"] {
///     assert_eq!(text.parse::<HostPort>()?.to_string(), text);
/// }
/// assert!("login1".parse::<HostPort>().is_err());
/// # Ok::<(), pollux_tune::internal::wire::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    host: String,
    port: u16,
}

impl HostPort {
    /// The name or the IP address of the machine.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl FromStr for HostPort {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parse = || {
            let (host, port) = text.rsplit_once(':')?;
            let port = port.parse().ok().filter(|port| *port != 0)?;
            let is_name = |host: &str| {
                let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
                !host.is_empty() && host.len() <= 253 && host.bytes().all(allowed)
            };
            let host = match host.strip_prefix('[') {
                Some(rest) => rest.strip_suffix(']').filter(|address| address.parse::<Ipv6Addr>().is_ok())?,
                None => Some(host).filter(|host| is_name(host))?,
            };
            Some(Self { host: host.to_owned(), port })
        };
        parse().ok_or_else(|| Error::HostPort(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_a_name_or_an_address_and_a_port() {
        for text in ["a:1", "gpu-1.x_y:65535", "1.2.3.4:5", "[::1]:6"] {
            assert_eq!(text.parse::<HostPort>().expect("it is one").to_string(), text);
        }
        for text in
            ["", ":1", "a", "a:", "a:0", "a:65536", "a b:1", "::1:6", "[a]:1", "[::1]", "a/b:1", "http://a:1"]
        {
            let error = text.parse::<HostPort>().expect_err("it is none").to_string();
            assert!(error.starts_with(&format!("`{text}` is not HOST:PORT")), "{error}");
        }
    }
}
