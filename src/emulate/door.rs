//! How workers of other nodes come to a table: lines of JSON over a loopback connection that stays open as long as they sit.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
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
    hall::{Chair, Hall, Invitation, Word},
};
use crate::wire::Secret;

/// How long to wait for a node of the same machine that was alive a moment ago.
const CONNECT: Duration = Duration::from_secs(15);
/// The most bytes that are read from one worker: far more than the longest list of members.
const MOST: u64 = 1 << 22;
/// What a worker says that goes without being missed.
const FAREWELL: &str = "farewell";

/// The first line of a connection.
#[derive(Debug, Serialize, Deserialize)]
struct Letter {
    secret: String,
    invitation: Invitation,
}

/// Listens on a free port of this machine. Gives the address.
pub(super) async fn open() -> Result<(TcpListener, String), Error> {
    let failed = || Error::io("listening on a port of 127.0.0.1");
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(failed())?;
    let address = listener.local_addr().map_err(failed())?.to_string();
    Ok((listener, address))
}

/// Lets workers of other nodes in, for ever.
pub(super) async fn serve(listener: TcpListener, hall: Arc<Hall>, secret: Secret) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(host(stream, hall.clone(), secret.clone()));
            }
            // Out of files, most likely: those who wait may leave some in the meantime.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

fn lines(stream: TcpStream) -> (Lines<BufReader<tokio::io::Take<OwnedReadHalf>>>, OwnedWriteHalf) {
    // Only makes it slower, if it fails.
    let _ = stream.set_nodelay(true);
    let (read, write) = stream.into_split();
    (BufReader::new(read.take(MOST)).lines(), write)
}

async fn write(to: &mut OwnedWriteHalf, line: &str) -> std::io::Result<()> {
    to.write_all(format!("{line}\n").as_bytes()).await
}

/// Sits in for a worker of another node, for as long as it is there.
async fn host(stream: TcpStream, hall: Arc<Hall>, secret: Secret) {
    let (mut lines, mut to) = lines(stream);
    let Ok(Ok(Some(line))) = timeout(CONNECT, lines.next_line()).await else { return };
    let Ok(Letter { secret: theirs, invitation }) = serde_json::from_str(&line) else { return };
    if theirs.parse::<Secret>().ok() != Some(secret) {
        return;
    }
    let mut chair = hall.sit(invitation);
    loop {
        tokio::select! {
            line = lines.next_line() => {
                if matches!(line, Ok(Some(line)) if line == FAREWELL) {
                    chair.leave();
                }
                return;
            }
            word = chair.hear() => {
                let is_last = matches!(word, Word::Lost(_));
                let Ok(line) = serde_json::to_string(&word) else { return };
                if write(&mut to, &line).await.is_err() {
                    return;
                }
                if is_last {
                    // The others know.
                    return chair.leave();
                }
            }
        }
    }
}

/// Sits down at a table of another node.
pub(super) fn visit(address: String, secret: &Secret, invitation: Invitation) -> Chair {
    let (tell, words) = mpsc::unbounded_channel();
    let (farewell, told) = oneshot::channel();
    let letter = Letter { secret: secret.reveal().to_owned(), invitation };
    tokio::spawn(async move {
        if let Err(reason) = guest(&address, &letter, &tell, told).await {
            // If nobody listens, nobody cares.
            let _ = tell.send(Word::Lost(format!("the node at {address}, where the group meets, {reason}")));
        }
    });
    Chair::there(words, farewell)
}

async fn guest(
    address: &str,
    letter: &Letter,
    tell: &UnboundedSender<Word>,
    mut told: oneshot::Receiver<()>,
) -> Result<(), String> {
    let letter = serde_json::to_string(letter).map_err(|error| format!("cannot be written to: {error}"))?;
    let connected = timeout(CONNECT, TcpStream::connect(address)).await;
    let stream = connected.map_err(|_| "does not answer".to_owned())?;
    let stream = stream.map_err(|error| format!("cannot be reached: {error}"))?;
    let (mut lines, mut to) = lines(stream);
    write(&mut to, &letter).await.map_err(|error| format!("is gone: {error}"))?;
    loop {
        tokio::select! {
            farewell = &mut told => {
                if farewell.is_ok() {
                    // It is gone as well, if this fails.
                    let _ = write(&mut to, FAREWELL).await;
                }
                return Ok(());
            }
            line = lines.next_line() => {
                let line = line.map_err(|error| format!("is gone: {error}"))?;
                let line = line.ok_or_else(|| "is gone".to_owned())?;
                let word = serde_json::from_str(&line);
                let word = word.map_err(|error| format!("makes no sense: {error}"))?;
                if tell.send(word).is_err() {
                    return Ok(());
                }
            }
        }
    }
}
