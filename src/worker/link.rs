//! Connections between workers: the end of a machine or a cable sends no message, and would not be noticed for many minutes.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::AsFd,
    time::Duration,
};

use rustix::net::sockopt;

/// Who has acknowledged nothing for so long is gone.
pub(crate) const LINK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait until a machine that was there a moment ago takes a call: long enough to call three times.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection on which nothing was said for so long is tried out,
const PROBE_AFTER: Duration = Duration::from_secs(5);
/// so often,
const PROBES: u32 = 5;
/// in this interval.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Where a worker listens, on a free port: at the address of its machine, or else for its own machine only.
pub(crate) fn listening(machine_address: Option<IpAddr>) -> SocketAddr {
    SocketAddr::new(machine_address.unwrap_or_else(|| Ipv4Addr::LOCALHOST.into()), 0)
}

/// Has a TCP connection fail within [`LINK_TIMEOUT`] when the other end can no longer be reached, whether something is on its way or not.
pub(crate) fn watch(connection: impl AsFd) -> io::Result<()> {
    let connection = connection.as_fd();
    sockopt::set_socket_keepalive(connection, true)?;
    sockopt::set_tcp_keepidle(connection, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(connection, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(connection, PROBES)?;
    sockopt::set_tcp_user_timeout(connection, LINK_TIMEOUT.as_millis() as u32)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_that_is_watched_fails_in_time() {
        let listener = TcpListener::bind(listening(None)).expect("a free port");
        let stream = TcpStream::connect(listener.local_addr().expect("it listens")).expect("it listens");
        watch(&stream).expect("a TCP connection");
        assert!(sockopt::socket_keepalive(&stream).expect("an option"));
        assert_eq!(sockopt::tcp_user_timeout(&stream), Ok(LINK_TIMEOUT.as_millis() as u32));
        let probed = sockopt::tcp_keepintvl(&stream).expect("an option")
            * sockopt::tcp_keepcnt(&stream).expect("an option");
        assert_eq!(sockopt::tcp_keepidle(&stream).expect("an option") + probed, LINK_TIMEOUT);
    }

    #[test]
    fn a_worker_without_an_address_of_its_machine_can_be_reached_from_nowhere_else() {
        assert!(listening(None).ip().is_loopback());
        let address = "fd00::7".parse().expect("an address");
        assert_eq!(listening(Some(address)).ip(), address);
    }
}
