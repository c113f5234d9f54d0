//! What the user's other commands want of a head that runs, over a Unix socket: one line of JSON each way.
//!
//! Where the socket is and what one has to know to be heard is in a file that only the user can read, for as long as the head lives. Besides
//! that, both ends belong to the same user.

use std::{
    fs::{self, OpenOptions},
    io::{self, BufRead, BufReader as BlockingReader, Write},
    os::unix::{fs::OpenOptionsExt, net::UnixStream as BlockingStream},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    runtime::Handle,
    sync::Semaphore,
    task::AbortHandle,
    time::{sleep, timeout},
};

use super::{Address, Error, Secret, SocketFolder, socket};
use crate::{
    ids::{NodeId, TrialId},
    space::Params,
};

/// The longest request, in bytes.
const LONGEST: u64 = 1 << 20;
/// How many requests are heard at a time.
const AT_A_TIME: usize = 16;
/// How long either side waits for the other. A head whose disk is full takes its time, but answers before.
const PATIENCE: Duration = Duration::from_secs(60);
/// When to try again to accept a connection if that fails.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// What a head is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlRequest {
    /// Let machines go.
    Drain {
        /// Their numbers.
        nodes: Vec<NodeId>,
        /// After so many seconds they go, whatever runs there; none if they go when nothing does.
        within_s: Option<f64>,
    },
    /// End a trial, and go on without it.
    StopTrial {
        /// Its number.
        trial: TrialId,
    },
    /// Launch no trial for now.
    Pause,
    /// Launch trials again.
    Resume,
    /// Try known parameters before others.
    Enqueue {
        /// What to try; fixed ones may be left out.
        params: Params,
    },
}

/// What has become of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// The head has done it.
    Done,
    /// The head will do it as soon as its journal can be written. To ask again would be another request.
    Noted,
}

/// The answer to a request: whether it is only noted, else what went wrong. Nothing is as good as "no".
type Reply = Result<Option<bool>, String>;

/// What is in the file.
#[derive(Serialize, Deserialize)]
struct Key {
    socket: PathBuf,
    secret: String,
}

/// What is sent.
#[derive(Serialize, Deserialize)]
struct Call {
    secret: String,
    request: ControlRequest,
}

/// Hears requests, for as long as it lives.
#[derive(Debug)]
pub struct ControlDoor {
    file: PathBuf,
    accepts: AbortHandle,
    _folder: SocketFolder,
}

impl ControlDoor {
    /// Opens a socket inside a tokio runtime, and writes into this file where it is. An answer to a request is what went wrong, if
    /// anything did.
    pub fn open<F, A>(file: &Path, handle: F) -> Result<Self, Error>
    where
        F: Fn(ControlRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Heard, String>> + Send + 'static,
    {
        let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let folder = SocketFolder::new()?;
        let address = folder.address();
        let Address::Unix(path) = &address else { return Err(Error::Address(address.to_string())) };
        let (listener, path) = socket::unix(path)?;
        let listener =
            UnixListener::from_std(listener).map_err(|source| Error::Listen { address, source })?;
        let secret = Secret::random()?;
        let key = Key { socket: path, secret: secret.reveal().to_owned() };
        write_key(file, &key).map_err(|source| Error::Control { file: file.to_owned(), source })?;
        let accepts = runtime.spawn(accept(listener, secret, Arc::new(handle))).abort_handle();
        Ok(Self { file: file.to_owned(), accepts, _folder: folder })
    }
}

impl Drop for ControlDoor {
    fn drop(&mut self) {
        self.accepts.abort();
        // Somebody may have tidied up already.
        let _ = fs::remove_file(&self.file);
    }
}

/// Writes the file as a whole, for nobody but this user.
fn write_key(file: &Path, key: &Key) -> io::Result<()> {
    let new = file.with_extension("new");
    // What a head that was killed has left would keep its permissions.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    out.write_all(serde_json::to_string(key)?.as_bytes())?;
    fs::rename(&new, file)
}

async fn accept<F, A>(listener: UnixListener, secret: Secret, handle: Arc<F>)
where
    F: Fn(ControlRequest) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Heard, String>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(AT_A_TIME));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_AGAIN).await;
            continue;
        };
        if let Err(error) = socket::same_user(&stream) {
            tracing::warn!(%error, "a request was refused");
            continue;
        }
        let (secret, handle) = (secret.clone(), handle.clone());
        tokio::spawn(async move {
            let _place = place;
            // Who has gone needs no answer.
            let _ = timeout(PATIENCE, serve(stream, &secret, &*handle)).await;
        });
    }
}

async fn serve<F, A>(stream: UnixStream, secret: &Secret, handle: &F) -> io::Result<()>
where
    F: Fn(ControlRequest) -> A,
    A: Future<Output = Result<Heard, String>>,
{
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    BufReader::new(read.take(LONGEST)).read_line(&mut line).await?;
    let answer = match serde_json::from_str::<Call>(&line) {
        Ok(call) if secret.is(call.secret.as_bytes()) => handle(call.request).await,
        Ok(_) => Err("the secret is that of another run of the study".to_owned()),
        Err(error) => Err(format!("this is not a request: {error}")),
    };
    let reply: Reply = answer.map(|heard| (heard == Heard::Noted).then_some(true));
    let answer = serde_json::to_string(&reply)?;
    write.write_all(format!("{answer}\n").as_bytes()).await
}

/// Asks the head that has written this file, and waits for its answer.
pub fn ask_head(file: &Path, request: ControlRequest) -> Result<Heard, Error> {
    let failed = |source: io::Error| Error::Control { file: file.to_owned(), source };
    let key: Key = serde_json::from_slice(&fs::read(file).map_err(failed)?).map_err(|e| failed(e.into()))?;
    // Only in a folder of one's own it is sure who listens.
    socket::check_folder(&key.socket)?;
    let talk = || -> io::Result<Reply> {
        let mut stream = BlockingStream::connect(&key.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let call = serde_json::to_string(&Call { secret: key.secret.clone(), request })?;
        stream.write_all(format!("{call}\n").as_bytes())?;
        let mut line = String::new();
        BlockingReader::new(stream).read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    };
    let is_noted = talk().map_err(failed)?.map_err(Error::NotDone)?;
    Ok(if is_noted == Some(true) { Heard::Noted } else { Heard::Done })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn request() -> ControlRequest {
        ControlRequest::Drain { nodes: vec![NodeId(3), NodeId(4)], within_s: Some(1.5) }
    }

    /// Where a door of this test writes its file.
    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("pollux-tune-control-{name}-{}.json", std::process::id()))
    }

    async fn ask(file: &Path) -> Result<Heard, Error> {
        let file = file.to_owned();
        tokio::task::spawn_blocking(move || ask_head(&file, request())).await.expect("it does not panic")
    }

    #[tokio::test]
    async fn a_head_hears_who_can_read_its_file() {
        let file = place("heard");
        let (send, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let door = ControlDoor::open(&file, move |request| {
            let sent = send.send(request);
            async move { sent.map(|()| Heard::Done).map_err(|error| error.to_string()) }
        });
        let door = door.expect("it can be opened");
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o600,
            "nobody else may read it"
        );
        assert_eq!(ask(&file).await.expect("it is heard"), Heard::Done);
        assert_eq!(heard.recv().await, Some(request()));
        drop(door);
        assert!(!file.exists(), "it goes with its head");
        let error = ask(&file).await.expect_err("nobody is there");
        assert!(matches!(error, Error::Control { .. }), "{error}");
    }

    #[tokio::test]
    async fn who_asks_hears_that_it_is_only_noted() {
        let file = place("noted");
        let _door = ControlDoor::open(&file, |_| async { Ok(Heard::Noted) }).expect("it can be opened");
        assert_eq!(ask(&file).await.expect("it is heard"), Heard::Noted);
        let earlier: Reply =
            serde_json::from_str(r#"{"Ok":null}"#).expect("as heads of earlier versions say it");
        assert_eq!(earlier, Ok(None));
    }

    #[tokio::test]
    async fn what_goes_wrong_is_told_and_strangers_are_not_heard() {
        let file = place("refused");
        let door = ControlDoor::open(&file, |_| async { Err("there is no such node".to_owned()) });
        let _door = door.expect("it can be opened");
        let error = ask(&file).await.expect_err("it does not work").to_string();
        assert!(error.ends_with("there is no such node"), "{error}");
        let mut key: Key = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        key.secret = Secret::random().unwrap().reveal().to_owned();
        let other = place("guessed");
        write_key(&other, &key).unwrap();
        let error = ask(&other).await.expect_err("the secret is wrong").to_string();
        assert!(error.ends_with("the secret is that of another run of the study"), "{error}");
        fs::remove_file(other).unwrap();
        let mut stream = UnixStream::connect(&key.socket).await.unwrap();
        stream.write_all(b"hello\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("this is not a request"), "{answer}");
    }
}
