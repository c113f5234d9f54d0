//! Who gets in, what strangers can do, and when waiting ends: with real sockets.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use super::{GroupStore, Remote, Rendezvous, StoreError};
use crate::{
    ids::{Round, TrialId},
    wire::Secret,
};

/// For what comes sooner or later, also on a busy machine.
const SOON: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(20);
const ROOM: (TrialId, Round) = (TrialId(1), Round(4));

fn host() -> (Rendezvous, Secret) {
    let secret = Secret::random().expect("random numbers");
    (Rendezvous::host(None, &secret).expect("a free port"), secret)
}

fn remote(host: &Rendezvous, room: (TrialId, Round)) -> Remote {
    Remote::connect(host.address(), host.secret(), room, SOON).expect("it is let in")
}

#[test]
fn members_share_what_is_in_their_room_and_nothing_else() {
    let (host, _) = host();
    let (here, there) = (host.enter(ROOM.0, ROOM.1), remote(&host, ROOM));
    let next = remote(&host, (TrialId(1), Round(5)));
    there.set("colour", b"blue").expect("it is there");
    assert_eq!(here.get("colour", SOON).expect("it was set"), b"blue");
    assert_eq!(here.add("visits", 2).expect("a counter"), 2);
    assert_eq!(there.add("visits", -3).expect("a counter"), -1);
    assert!(there.contains(&["colour", "visits"]).expect("it is there"));
    assert!(!next.contains(&["colour"]).expect("it is there"), "another round");
    assert!(there.delete("colour").expect("it is there"));
    assert!(!here.delete("colour").expect("it is gone"));
    here.set("word", b"no number").expect("it fits");
    assert!(matches!(there.add("word", 1), Err(StoreError::Refused { .. })));
    assert!(there.contains(&["word"]).expect("it is still there"), "a refusal is no end");
}

#[test]
fn a_wait_ends_when_the_key_comes_or_the_time_is_up() {
    let (host, _) = host();
    let (here, there) = (host.enter(ROOM.0, ROOM.1), remote(&host, ROOM));
    for store in [&here as &dyn EitherStore, &there] {
        assert!(matches!(store.it().wait(&["never"], SHORT), Err(StoreError::Timeout { .. })));
        assert!(matches!(store.it().get("never", SHORT), Err(StoreError::Timeout { .. })));
    }
    let waiter = thread::spawn(move || there.get("late", SOON));
    here.set("late", b"now").expect("it fits");
    assert_eq!(waiter.join().expect("it ends").expect("it came"), b"now");
    let there = remote(&host, ROOM);
    let waiter = thread::spawn(move || here.wait(&["later"], SOON));
    there.set("later", b"").expect("it fits");
    waiter.join().expect("it ends").expect("it came");
}

/// Either kind.
trait EitherStore {
    fn it(&self) -> &dyn GroupStore;
}

impl EitherStore for std::sync::Arc<dyn GroupStore> {
    fn it(&self) -> &dyn GroupStore {
        &**self
    }
}

impl EitherStore for Remote {
    fn it(&self) -> &dyn GroupStore {
        self
    }
}

#[test]
fn nothing_is_left_when_the_last_member_is_gone() {
    let (host, _) = host();
    let here = host.enter(ROOM.0, ROOM.1);
    here.set("key", b"value").expect("it fits");
    drop(here);
    assert!(!host.enter(ROOM.0, ROOM.1).contains(&["key"]).expect("it is there"));
}

#[test]
fn a_stranger_cannot_get_in() {
    let (host, _) = host();
    let here = host.enter(ROOM.0, ROOM.1);
    let other = Secret::random().expect("random numbers");
    let error = Remote::connect(host.address(), &other, ROOM, SOON).expect_err("it is not let in");
    assert!(error.to_string().contains("does not know the secret"), "{error}");
    // With whatever proof, the host hangs up.
    let mut guess = TcpStream::connect(host.address()).expect("it listens");
    guess.write_all(b"ptr1").expect("it listens");
    guess.write_all(&[1; 44]).expect("it listens");
    guess.read_exact(&mut [0; 64]).expect("the host proves itself first");
    guess.write_all(&[2; 32]).expect("it listens");
    let poison = super::frame::Request::Set { key: "everybody".to_owned(), value: Vec::new() };
    // It may be gone already.
    let _ = guess.write_all(&poison.encode().expect("short enough"));
    assert_eq!(guess.read(&mut [0]).unwrap_or(0), 0, "no answer");
    assert!(!here.contains(&["everybody"]).expect("it is there"));
}

/// Silence, half a message, nonsense and a gigabyte: members get on as if nobody was there.
#[test]
fn strangers_stall_nobody() {
    let (host, _) = host();
    let here = host.enter(ROOM.0, ROOM.1);
    let first = TcpStream::connect(host.address()).expect("it listens");
    let mut silent: Vec<TcpStream> =
        (0..300).map(|_| TcpStream::connect(host.address()).expect("it listens")).collect();
    for half in &mut silent {
        // Those who are too many may be gone.
        let _ = half.write_all(b"ptr1 half a message");
    }
    let mut talker = TcpStream::connect(host.address()).expect("it listens");
    let nonsense = vec![7; 1 << 20];
    let taken = (0..1000).take_while(|_| talker.write_all(&nonsense).is_ok()).count();
    assert!(taken < 1000, "a gigabyte was taken");
    let there = remote(&host, ROOM);
    there.set("key", b"value").expect("it fits");
    here.wait(&["key"], SOON).expect("it is there");
    // More than there may be: the first one was sent away.
    first.set_read_timeout(Some(SOON)).expect("a timeout");
    assert_eq!((&first).read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn a_member_cannot_store_without_end() {
    let (host, _) = host();
    let there = remote(&host, ROOM);
    assert!(matches!(there.set("large", &vec![0; 1 << 20]), Err(StoreError::Invalid { .. })), "a message");
    assert!(matches!(there.set(&"k".repeat(2000), b""), Err(StoreError::Refused { .. })), "a key");
    let value = vec![0; 1 << 19];
    let stored = (0..1000).take_while(|number| there.set(&format!("key {number}"), &value).is_ok()).count();
    assert!((60..70).contains(&stored), "{stored}");
    there.set("key 0", b"shorter").expect("there is room again");
}

/// A host that has taken the port of a dead worker, and one that falls silent.
#[test]
fn a_host_that_is_none_is_noticed() {
    let secret = Secret::random().expect("random numbers");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    let (said, heard) = mpsc::channel();
    let impostor = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody comes");
        let mut call = [0; 48];
        stream.read_exact(&mut call).expect("it calls");
        stream.write_all(&[0; 64]).expect("it listens");
        let mut rest = Vec::new();
        // How it hangs up does not matter.
        let _ = stream.read_to_end(&mut rest);
        said.send(rest).expect("the test is there");
        // The second one gets no answer.
        let silent = listener.accept().expect("somebody comes");
        heard_end(silent.0);
    });
    let error = Remote::connect(&address, &secret, ROOM, SOON).expect_err("it is an impostor");
    assert!(error.to_string().contains("does not know the secret"), "{error}");
    assert!(heard.recv_timeout(SOON).expect("it is told").is_empty(), "the proof was sent to an impostor");
    let began = Instant::now();
    let error = Remote::connect(&address, &secret, ROOM, SHORT).expect_err("it is silent");
    assert!(
        matches!(&error, StoreError::PeerLost { message, .. } if message.contains("does not answer")),
        "{error}"
    );
    assert!(began.elapsed() < SOON);
    impostor.join().expect("it ends");
}

/// Until the other side hangs up.
fn heard_end(mut stream: TcpStream) {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
}
