//! How workers join a rendezvous on another node: after both sides have proved that they know the secret, lines of JSON over a TCP
//! connection that stays open for as long as they are members.

use std::{net::IpAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{
        mpsc::{self, UnboundedSender},
        oneshot,
    },
    time::timeout,
};

use super::{
    error::Error,
    rendezvous::{JoinRequest, Membership, Notice, Rendezvous},
};
use crate::{
    ids::{Round, TrialId},
    wire::{Secret, Strangers, handshake},
    worker::link,
};

/// How long to wait for a node that was alive a moment ago.
const CONNECT: Duration = Duration::from_secs(15);
/// The maximum number of bytes that are read from one worker: far more than the longest list of members.
const BYTES_MAX: u64 = 1 << 22;
/// The line of a worker that goes without being lost.
const LEAVE: &str = "leave";

/// Listens on a free port of the machine's address, or else of the loopback interface. Gives the address.
pub(super) async fn listen(machine_address: Option<IpAddr>) -> Result<(TcpListener, String), Error> {
    let place = link::listening(machine_address);
    let failed = || Error::io(format!("listening on a port of {}", place.ip()));
    let listener = TcpListener::bind(place).await.map_err(failed())?;
    let address = listener.local_addr().map_err(failed())?.to_string();
    Ok((listener, address))
}

/// Lets workers of other nodes join, for ever, at the address that they know.
pub(super) async fn serve_remote(
    listener: TcpListener,
    address: String,
    rendezvous: Arc<Rendezvous>,
    secret: Secret,
) {
    let strangers = Strangers::default();
    loop {
        match listener.accept().await {
            Ok((mut stream, _)) => {
                let mut stranger = strangers.enter();
                let (address, rendezvous, secret) = (address.clone(), rendezvous.clone(), secret.clone());
                tokio::spawn(async move {
                    let room = tokio::select! {
                        room = handshake::answer(&mut stream, &secret, &address) => room,
                        () = &mut stranger => return,
                    };
                    if let Ok(room) = room {
                        stranger.visit().admit();
                        serve_one(stream, room, rendezvous).await;
                    }
                });
            }
            // Out of files, most likely: those who wait may leave some in the meantime.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

fn lines(stream: TcpStream) -> (Lines<BufReader<tokio::io::Take<OwnedReadHalf>>>, OwnedWriteHalf) {
    // Only makes it slower, if it fails.
    let _ = stream.set_nodelay(true);
    // A loss is then noticed later.
    let _ = link::watch(&stream);
    let (read, write) = stream.into_split();
    (BufReader::new(read.take(BYTES_MAX)).lines(), write)
}

async fn write(to: &mut OwnedWriteHalf, line: &str) -> std::io::Result<()> {
    to.write_all(format!("{line}\n").as_bytes()).await
}

/// Stands in for a worker of another node, for as long as it is there.
async fn serve_one(stream: TcpStream, room: (TrialId, Round), rendezvous: Arc<Rendezvous>) {
    let (mut lines, mut to) = lines(stream);
    let Ok(Ok(Some(line))) = timeout(CONNECT, lines.next_line()).await else { return };
    let Ok(request) = serde_json::from_str::<JoinRequest>(&line) else { return };
    if (request.trial, request.round) != room {
        return;
    }
    let mut membership = rendezvous.join(request);
    loop {
        tokio::select! {
            line = lines.next_line() => {
                if matches!(line, Ok(Some(line)) if line == LEAVE) {
                    membership.leave();
                }
                return;
            }
            notice = membership.next() => {
                let is_last = matches!(notice, Notice::Lost(_));
                let Ok(line) = serde_json::to_string(&notice) else { return };
                if write(&mut to, &line).await.is_err() {
                    return;
                }
                if is_last {
                    // The others know.
                    return membership.leave();
                }
            }
        }
    }
}

/// Joins a rendezvous on another node.
pub(super) fn join_remote(address: String, secret: &Secret, request: JoinRequest) -> Membership {
    let (send, notices) = mpsc::unbounded_channel();
    let (leave, leaving) = oneshot::channel();
    let secret = secret.clone();
    tokio::spawn(async move {
        if let Err(reason) = stay(&address, &secret, &request, &send, leaving).await {
            let reason = format!("the node at {address}, where the group meets, {reason}");
            // The other side may be gone.
            let _ = send.send(Notice::Lost(reason));
        }
    });
    Membership::remote(notices, leave)
}

/// Keeps the connection of a member.
async fn stay(
    address: &str,
    secret: &Secret,
    request: &JoinRequest,
    notices: &UnboundedSender<Notice>,
    mut leaving: oneshot::Receiver<()>,
) -> Result<(), String> {
    let room = (request.trial, request.round);
    let request = serde_json::to_string(request).map_err(|error| format!("cannot be written to: {error}"))?;
    let connect = async {
        let mut stream = TcpStream::connect(address).await?;
        handshake::call(&mut stream, secret, address, room).await?;
        Ok::<_, std::io::Error>(stream)
    };
    let stream = timeout(CONNECT, connect).await.map_err(|_| "does not answer".to_owned())?;
    let stream = stream.map_err(|error| format!("cannot be reached: {error}"))?;
    let (mut lines, mut to) = lines(stream);
    write(&mut to, &request).await.map_err(|error| format!("is gone: {error}"))?;
    loop {
        tokio::select! {
            leave = &mut leaving => {
                if leave.is_ok() {
                    // It is gone as well, if this fails.
                    let _ = write(&mut to, LEAVE).await;
                }
                return Ok(());
            }
            line = lines.next_line() => {
                let line = line.map_err(|error| format!("is gone: {error}"))?;
                let line = line.ok_or_else(|| "is gone".to_owned())?;
                let notice = serde_json::from_str(&line);
                let notice = notice.map_err(|error| format!("makes no sense: {error}"))?;
                if notices.send(notice).is_err() {
                    return Ok(());
                }
            }
        }
    }
}
