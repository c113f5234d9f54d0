//! The host's side.

use std::{
    io,
    net::{IpAddr, TcpListener},
    sync::Arc,
    thread,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{self, TcpStream},
    runtime::Builder,
    sync::oneshot,
    time::{sleep, timeout},
};

use super::{
    MESSAGE, WAIT_MAX,
    frame::{HEADER, Request, Response, length},
    room::{Room, Rooms},
    store::{GroupStore, StoreError},
};
use crate::{
    ids::{Round, TrialId},
    wire::{Secret, Strangers, handshake},
    worker::{Error, link},
};

/// When to try again to accept a connection if that fails: for want of file descriptors, most likely.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// Hosts the rooms of groups whose first member is this worker, for as long as it lives.
#[derive(Debug)]
pub(in crate::worker) struct Rendezvous {
    address: String,
    secret: Secret,
    rooms: Arc<Rooms>,
    /// Dropped to end it.
    _running: oneshot::Sender<()>,
}

impl Rendezvous {
    /// On a free port of the machine's address, or else of the loopback interface, in a thread of its own.
    pub(in crate::worker) fn host(machine_address: Option<IpAddr>, secret: &Secret) -> Result<Self, Error> {
        let place = link::listening(machine_address);
        let failed = || Error::io(format!("listening on a port of {}", place.ip()));
        let listener = TcpListener::bind(place).map_err(failed())?;
        listener.set_nonblocking(true).map_err(failed())?;
        let address = listener.local_addr().map_err(failed())?.to_string();
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Error::io("starting the runtime of a rendezvous"))?;
        let (running, ended) = oneshot::channel();
        let rooms = Arc::new(Rooms::default());
        let host = Arc::new(Host { address: address.clone(), secret: secret.clone(), rooms: rooms.clone() });
        let listener = {
            let _context = runtime.enter();
            net::TcpListener::from_std(listener).map_err(failed())?
        };
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = host.serve(listener) => {}
                    // Nothing is ever sent.
                    _ = ended => {}
                }
            });
        };
        let thread = thread::Builder::new().name("rendezvous".to_owned()).spawn(run);
        thread.map_err(Error::io("starting the thread of a rendezvous"))?;
        Ok(Self { address, secret: secret.clone(), rooms, _running: running })
    }

    pub(in crate::worker) fn address(&self) -> &str {
        &self.address
    }

    pub(in crate::worker) const fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The room of a group, for this process.
    pub(in crate::worker) fn enter(&self, trial: TrialId, round: Round) -> Arc<dyn GroupStore> {
        Arc::new(Local(self.rooms.enter((trial, round))))
    }
}

struct Host {
    address: String,
    secret: Secret,
    rooms: Arc<Rooms>,
}

impl Host {
    async fn serve(self: Arc<Self>, listener: net::TcpListener) {
        let strangers = Strangers::default();
        loop {
            match listener.accept().await {
                Ok((mut stream, _)) => {
                    let (host, mut stranger) = (self.clone(), strangers.enter());
                    tokio::spawn(async move {
                        let name = tokio::select! {
                            name = handshake::answer(&mut stream, &host.secret, &host.address) => name,
                            () = &mut stranger => return,
                        };
                        if let Ok(name) = name {
                            stranger.visit().admit();
                            // A member that is gone is noticed by its group.
                            let _ = serve_member(stream, &host.rooms.enter(name)).await;
                        }
                    });
                }
                Err(_) => sleep(ACCEPT_AGAIN).await,
            }
        }
    }
}

/// Serves a member until it leaves.
async fn serve_member(mut stream: TcpStream, room: &Room) -> io::Result<()> {
    // Only makes it slower, if it fails.
    let _ = stream.set_nodelay(true);
    link::watch(&stream)?;
    loop {
        // A member may be silent for as long as it trains, but not in the middle of a message.
        let mut header = [0; HEADER];
        stream.read_exact(&mut header).await?;
        let mut body = vec![0; length(header)?];
        timeout(MESSAGE, stream.read_exact(&mut body)).await??;
        let response = answer(room, Request::decode(&body)?).await.encode()?;
        timeout(MESSAGE, stream.write_all(&response)).await??;
    }
}

async fn answer(room: &Room, request: Request) -> Response {
    let limit = |wait_ms: u32| Duration::from_millis(wait_ms.into()).min(WAIT_MAX);
    match request {
        Request::Set { key, value } => match room.set(&key, &value) {
            Ok(()) => Response::Done,
            Err(problem) => Response::Refused(problem),
        },
        Request::Get { key, wait_ms } => {
            // Whether it came is seen below.
            let _ = timeout(limit(wait_ms), room.wait(&[&key])).await;
            room.get(&key).map_or(Response::NotYet, Response::Value)
        }
        Request::Add { key, delta } => room.add(&key, delta).map_or_else(Response::Refused, Response::Sum),
        Request::Wait { keys, wait_ms } => match timeout(limit(wait_ms), room.wait(&keys)).await {
            Ok(()) => Response::Done,
            Err(_) => Response::NotYet,
        },
        Request::Contains { keys } => Response::Flag(room.contains(&keys)),
        Request::Delete { key } => Response::Flag(room.delete(&key)),
    }
}

/// A room in the process that hosts it.
#[derive(Debug)]
struct Local(Arc<Room>);

fn refused(during: &'static str) -> impl FnOnce(String) -> StoreError {
    move |message| StoreError::Refused { during, message }
}

pub(super) fn late(during: &'static str, keys: &[&str]) -> StoreError {
    StoreError::Timeout { during, message: format!("nobody has set {}", keys.join(", ")) }
}

impl GroupStore for Local {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.0.set(key, value).map_err(refused("setting a key"))
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        self.0.wait_blocking(&[key], timeout);
        self.0.get(key).ok_or_else(|| late("getting a key", &[key]))
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.0.add(key, delta).map_err(refused("adding to a key"))
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<(), StoreError> {
        self.0.wait_blocking(keys, timeout).then_some(()).ok_or_else(|| late("waiting for keys", keys))
    }

    fn contains(&self, keys: &[&str]) -> Result<bool, StoreError> {
        Ok(self.0.contains(keys))
    }

    fn delete(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.0.delete(key))
    }
}
