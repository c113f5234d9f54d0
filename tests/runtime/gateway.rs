//! Head and workers over real sockets: who is let in, what arrives, and how each side learns that the other is gone.

use std::{
    env,
    error::Error as _,
    fs::{self, DirBuilder},
    os::unix::{
        fs::{DirBuilderExt, PermissionsExt, chown, symlink},
        net::UnixListener,
    },
    path::PathBuf,
    process::{self, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use pollux_tune::{
    ids::{NodeId, SlotId, TrialId},
    internal::wire::{
        Address, Error, Gateway, GatewayEvent, Hello, Secret, SocketFolder, VERSION, WorkerHandle, WorkerId,
        attach, attach_blocking,
    },
    trials::{
        engine::FailureCause,
        group::{FinalState, WorkerCommand, WorkerEvent},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Builder,
    sync::mpsc::Receiver,
};

const ADDRESS: &str = "POLLUX_TUNE_TEST_ADDRESS";
const SECRET: &str = "POLLUX_TUNE_TEST_SECRET";

/// A folder that is gone at the end, with a path short enough for sockets.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("pollux-gateway-{}-{number}", process::id()));
        DirBuilder::new().mode(0o700).create(&path).expect("a folder");
        Self(path)
    }

    fn socket(&self) -> Address {
        Address::Unix(self.0.join("head socket"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn any_port() -> Address {
    "127.0.0.1:0".parse().expect("an address")
}

const fn slot(index: u32) -> SlotId {
    SlotId { node: NodeId(1), index }
}

fn hello(index: u32) -> Hello {
    Hello { version: VERSION, slot: slot(index), pid: process::id() }
}

fn prepared(trial: u32) -> WorkerEvent {
    WorkerEvent::Prepared { trial: TrialId(trial), rendezvous_addr: "127.0.0.1:9".to_owned() }
}

const fn release(trial: u32, state: FinalState) -> WorkerCommand {
    WorkerCommand::Release { trial: TrialId(trial), state }
}

fn secret() -> Secret {
    Secret::random().expect("random numbers")
}

fn in_runtime(test: impl Future<Output = ()>) {
    Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
}

async fn joined(heard: &mut Receiver<GatewayEvent>) -> (WorkerId, Hello, WorkerHandle) {
    match heard.recv().await {
        Some(GatewayEvent::Joined { worker, hello, handle }) => (worker, hello, handle),
        other => panic!("{other:?}"),
    }
}

#[test]
fn messages_go_both_ways_in_order_over_either_kind_of_socket() {
    let folder = Folder::new();
    in_runtime(async {
        for address in [folder.socket(), any_port()] {
            let secret = secret();
            let (gateway, mut heard) = Gateway::open(&address, &secret).expect("it opens");
            let (say, mut told) = attach(gateway.address(), &secret, hello(5)).await.expect("it is let in");
            let (id, first, handle) = joined(&mut heard).await;
            assert_eq!(first, hello(5));
            for number in 0..3000 {
                say.send(prepared(number)).expect("the head is there");
                handle.clone().send(release(number, FinalState::Discarded));
            }
            for number in 0..3000 {
                let Some(GatewayEvent::Event { worker, event }) = heard.recv().await else {
                    panic!("no event")
                };
                assert_eq!((worker, event), (id, prepared(number)));
                assert_eq!(told.recv().await, Some(release(number, FinalState::Discarded)));
            }
        }
    });
}

#[test]
fn a_worker_without_a_runtime_is_heard_to_its_last_word() {
    in_runtime(async {
        let secret = secret();
        let (gateway, mut heard) = Gateway::open(&any_port(), &secret).expect("it opens");
        let address = gateway.address().clone();
        let worker = thread::spawn(move || {
            let (speaker, mut listener) = attach_blocking(&address, &secret, hello(0)).expect("it is let in");
            let command = listener.recv().expect("it makes sense");
            assert_eq!(command, Some(release(4, FinalState::Saved)));
            (0..500).for_each(|steps| speaker.send(&WorkerEvent::Checkpointed { trial: TrialId(4), steps }));
            speaker.close();
            assert!(speaker.is_closed());
            speaker.send(&WorkerEvent::Released { trial: TrialId(4) });
            assert_eq!(listener.recv().expect("no error"), None, "the head has heard everything");
        });
        let (id, _, handle) = joined(&mut heard).await;
        handle.send(release(4, FinalState::Saved));
        for steps in 0..500 {
            let Some(GatewayEvent::Event { worker, event }) = heard.recv().await else { panic!("no event") };
            assert_eq!((worker, event), (id, WorkerEvent::Checkpointed { trial: TrialId(4), steps }));
        }
        let gone = heard.recv().await;
        assert!(matches!(gone, Some(GatewayEvent::Lost { worker }) if worker == id), "{gone:?}");
        // Nobody is there to hear it, and nobody minds.
        handle.send(release(4, FinalState::Saved));
        worker.join().expect("the worker is content");
        drop(gateway);
        assert!(heard.recv().await.is_none(), "exactly one farewell");
    });
}

#[test]
fn another_version_is_refused_and_both_sides_know_why() {
    in_runtime(async {
        let secret = secret();
        let (gateway, mut heard) = Gateway::open(&any_port(), &secret).expect("it opens");
        let other = Hello { version: VERSION + 1, ..hello(2) };
        let error = attach(gateway.address(), &secret, other).await.expect_err("it is refused");
        let expected = format!(
            "the worker of slot 1.2 uses version {} of the protocol, the head uses {VERSION}: they must be the same program",
            VERSION + 1
        );
        assert!(matches!(&error, Error::Refused(reason) if *reason == expected), "{error}");
        let told = heard.recv().await;
        assert!(
            matches!(&told, Some(GatewayEvent::Refused { slot: Some(refused), reason }) if *refused == slot(2) && *reason == expected),
            "{told:?}"
        );
        // Others still come in.
        let (_say, _told) = attach(gateway.address(), &secret, hello(2)).await.expect("it is let in");
        joined(&mut heard).await;
    });
}

#[test]
fn another_secret_is_refused_and_not_shown() {
    in_runtime(async {
        let (right, wrong) = (secret(), secret());
        let (gateway, mut heard) = Gateway::open(&any_port(), &right).expect("it opens");
        let error = attach(gateway.address(), &wrong, hello(2)).await.expect_err("it is refused");
        assert!(matches!(&error, Error::Refused(reason) if reason.contains("another secret")), "{error}");
        let told = heard.recv().await;
        assert!(
            matches!(&told, Some(GatewayEvent::Refused { slot: None, reason }) if reason.contains("another secret")),
            "{told:?}"
        );
        let shown = format!("{error} {error:?} {told:?} {gateway:?}");
        assert!(!shown.contains(right.reveal()) && !shown.contains(wrong.reveal()), "{shown}");
    });
}

#[test]
fn a_worker_whose_lines_are_dropped_is_sent_home() {
    in_runtime(async {
        let secret = secret();
        let (gateway, mut heard) = Gateway::open(&any_port(), &secret).expect("it opens");
        let (say, mut told) = attach(gateway.address(), &secret, hello(0)).await.expect("it is let in");
        let (id, _, handle) = joined(&mut heard).await;
        let second = handle.clone();
        handle.send(release(1, FinalState::Discarded));
        drop(handle);
        second.send(release(2, FinalState::Discarded));
        drop(second);
        for trial in 1..=2 {
            assert_eq!(told.recv().await, Some(release(trial, FinalState::Discarded)));
        }
        assert_eq!(told.recv().await, None);
        drop((say, told));
        let gone = heard.recv().await;
        assert!(matches!(gone, Some(GatewayEvent::Lost { worker }) if worker == id), "{gone:?}");
    });
}

#[test]
fn closing_the_gateway_ends_everything() {
    let folder = Folder::new();
    in_runtime(async {
        let secret = secret();
        let (gateway, mut heard) = Gateway::open(&folder.socket(), &secret).expect("it opens");
        let address = gateway.address().clone();
        let (say, mut told) = attach(&address, &secret, hello(0)).await.expect("it is let in");
        let (id, _, _line) = joined(&mut heard).await;
        drop(gateway);
        assert_eq!(told.recv().await, None);
        let gone = heard.recv().await;
        assert!(matches!(gone, Some(GatewayEvent::Lost { worker }) if worker == id), "{gone:?}");
        drop((say, told));
        assert!(heard.recv().await.is_none());
        let error = attach(&address, &secret, hello(0)).await.expect_err("nobody is there").to_string();
        assert!(error.starts_with(&format!("cannot reach the head at {address}: ")), "{error}");
        assert!(!folder.0.join("head socket").exists(), "it leaves nothing behind");
    });
}

/// A head that does not listen any more is as good as none.
#[test]
fn workers_end_when_nobody_hears_them() {
    in_runtime(async {
        let secret = secret();
        let (gateway, heard) = Gateway::open(&any_port(), &secret).expect("it opens");
        drop(heard);
        let (_say, mut told) = attach(gateway.address(), &secret, hello(0)).await.expect("it is let in");
        assert_eq!(told.recv().await, None);
    });
}

/// More is said than may wait: it stays with the worker, and nothing is lost.
#[test]
fn a_slow_head_loses_nothing() {
    in_runtime(async {
        let secret = secret();
        let (gateway, mut heard) = Gateway::open(&any_port(), &secret).expect("it opens");
        let (say, _told) = attach(gateway.address(), &secret, hello(0)).await.expect("it is let in");
        let reason = "x".repeat(1000);
        for trial in 0..5000 {
            say.send(WorkerEvent::Failed {
                trial: TrialId(trial),
                reason: reason.clone(),
                cause: FailureCause::Trial,
            })
            .expect("the head is there");
        }
        joined(&mut heard).await;
        while heard.len() < 1024 {
            tokio::task::yield_now().await;
        }
        for expected in 0..5000 {
            let Some(GatewayEvent::Event { event, .. }) = heard.recv().await else { panic!("no event") };
            assert_eq!(event.trial(), TrialId(expected));
        }
    });
}

/// Not a test of its own: the process that others kill.
#[test]
fn worker() {
    let (Ok(address), Ok(secret)) = (env::var(ADDRESS), env::var(SECRET)) else { return };
    let (address, secret) = (address.parse().expect("an address"), secret.parse().expect("a secret"));
    let (speaker, mut listener) = attach_blocking(&address, &secret, hello(7)).expect("it is let in");
    speaker.send(&prepared(1));
    while listener.recv().expect("it makes sense").is_some() {}
}

#[test]
fn a_killed_worker_is_gone() {
    let folder = Folder::new();
    in_runtime(async {
        let secret = secret();
        let (gateway, mut heard) = Gateway::open(&folder.socket(), &secret).expect("it opens");
        let mut process = process::Command::new(env::current_exe().expect("this program"))
            .args(["gateway::worker", "--exact"])
            .env(ADDRESS, gateway.address().to_string())
            .env(SECRET, secret.reveal())
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        let (id, first, _line) = joined(&mut heard).await;
        assert_eq!(first.pid, process.id());
        let said = heard.recv().await;
        assert!(
            matches!(&said, Some(GatewayEvent::Event { event, .. }) if *event == prepared(1)),
            "{said:?}"
        );
        process.kill().expect("it lives");
        let gone = heard.recv().await;
        assert!(matches!(gone, Some(GatewayEvent::Lost { worker }) if worker == id), "{gone:?}");
        process.wait().expect("it has ended");
    });
}

#[test]
fn a_socket_is_for_this_user_only_and_a_stale_one_is_replaced() {
    let folder = Folder::new();
    let path = folder.0.join("head socket");
    drop(UnixListener::bind(&path).expect("it can be listened at"));
    assert!(path.exists(), "the socket of a head that has died");
    in_runtime(async {
        let secret = secret();
        let (gateway, _heard) = Gateway::open(&folder.socket(), &secret).expect("it opens");
        let mode = fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        attach(gateway.address(), &secret, hello(0)).await.expect("it is let in");
    });
}

#[test]
fn an_address_in_use_is_not_taken() {
    let folder = Folder::new();
    in_runtime(async {
        let secret = secret();
        for (address, remedy) in [(folder.socket(), "another path"), (any_port(), "another port")] {
            let (gateway, mut heard) = Gateway::open(&address, &secret).expect("it opens");
            let error = Gateway::open(gateway.address(), &secret).expect_err("it is in use");
            let text = error.to_string();
            assert!(matches!(error, Error::InUse { .. }), "{text}");
            assert!(text.contains(&gateway.address().to_string()) && text.contains(remedy), "{text}");
            // Who was there first is not disturbed.
            let (_say, _told) = attach(gateway.address(), &secret, hello(0)).await.expect("it is let in");
            joined(&mut heard).await;
        }
    });
}

#[test]
fn paths_that_cannot_be_sockets_say_so() {
    let folder = Folder::new();
    let secret = secret();
    let open = |path: PathBuf| {
        let opened = Gateway::open(&Address::Unix(path), &secret);
        let error = opened.expect_err("it cannot be opened");
        let cause = error.source().map_or_else(String::new, |cause| format!(": {cause}"));
        format!("{error}{cause}")
    };
    let outside = open(folder.0.join("a"));
    assert_eq!(outside, "a gateway can only be opened inside a tokio runtime");
    in_runtime(async {
        let file = folder.0.join("notes");
        fs::write(&file, "precious").expect("a file");
        let error = open(file.clone());
        assert!(error.contains("is a file that is not a socket"), "{error}");
        assert_eq!(fs::read_to_string(&file).expect("it is still there"), "precious");
        let error = open(folder.0.join("x".repeat(120)));
        assert!(error.contains("is too long for one") && error.contains("choose a folder"), "{error}");
        let error = open(folder.0.join("missing/head"));
        assert!(error.contains("missing for a socket") && error.contains("No such file"), "{error}");
    });
}

/// The path of the socket of a folder.
fn socket_of(folder: &SocketFolder) -> PathBuf {
    match folder.address() {
        Address::Unix(path) => path,
        Address::Tcp(address) => panic!("{address}"),
    }
}

#[test]
fn the_folder_of_a_socket_is_private_has_a_random_name_and_goes_with_its_head() {
    let base = Folder::new();
    let (one, other) =
        (SocketFolder::inside(&base.0).expect("a folder"), SocketFolder::inside(&base.0).expect("another"));
    let (path, second) = (socket_of(&one), socket_of(&other));
    let (path, second) = (path.parent().expect("a folder"), second.parent().expect("a folder"));
    assert_eq!(fs::metadata(path).expect("it is there").permissions().mode() & 0o777, 0o700);
    assert_ne!(path, second);
    let digits = path.file_name().and_then(|name| name.to_str()).expect("a name");
    assert_eq!(digits.trim_start_matches("pollux-tune-").len(), 16, "64 random bits: {digits}");
    in_runtime(async {
        let secret = secret();
        let (gateway, mut heard) = Gateway::open(&one.address(), &secret).expect("it opens");
        let (_say, _told) = attach(gateway.address(), &secret, hello(0)).await.expect("it is let in");
        joined(&mut heard).await;
        drop(gateway);
    });
    drop((one, other));
    assert_eq!(fs::read_dir(&base.0).expect("it is there").count(), 0, "nothing is left behind");
}

/// What a head that was killed has left is removed by the next one; what belongs to one that lives, or is not a folder of ours, is not.
#[test]
fn leftovers_of_killed_heads_are_removed_and_nothing_else() {
    let base = Folder::new();
    let alive = SocketFolder::inside(&base.0).expect("a folder");
    let _listener = UnixListener::bind(socket_of(&alive)).expect("it can be listened at");
    let make = |name: &str| {
        let path = base.0.join(name);
        DirBuilder::new().mode(0o700).create(&path).expect("a folder");
        path
    };
    let killed = make("pollux-tune-0123456789abcdef");
    drop(UnixListener::bind(killed.join("head.socket")).expect("it can be listened at"));
    let killed_early = make("pollux-tune-0000456789abcdef");
    // Somebody listens, whatever became of the lock.
    let listening = make("pollux-tune-1123456789abcdef");
    let _other = UnixListener::bind(listening.join("head.socket")).expect("it can be listened at");
    let precious = make("pollux-tune-2123456789abcdef");
    fs::write(precious.join("notes"), "precious").expect("a file");
    let unrelated = make("pollux-tune-notes");
    let open = make("pollux-tune-3123456789abcdef");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("it is ours");
    let target = make("target");
    let link = base.0.join("pollux-tune-4123456789abcdef");
    symlink(&target, &link).expect("a link");

    let next = SocketFolder::inside(&base.0).expect("a folder");
    assert!(!killed.exists() && !killed_early.exists());
    let kept = [
        &listening,
        &precious,
        &unrelated,
        &open,
        &link,
        &target,
        &socket_of(&alive),
        &precious.join("notes"),
    ];
    for path in kept {
        assert!(path.exists(), "{}", path.display());
    }
    assert!(socket_of(&next).parent().is_some_and(std::path::Path::exists));
}

/// A user that is not this one.
const NOBODY: u32 = 65534;

/// Somebody else has made the folder, or can replace what is in it.
#[test]
fn a_foreign_folder_is_refused_by_head_and_worker() {
    let folder = Folder::new();
    let refused = |error: Error, expected: &str| {
        assert!(matches!(error, Error::Folder { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    };
    in_runtime(async {
        let secret = secret();
        let real = folder.0.join("real");
        DirBuilder::new().mode(0o700).create(&real).expect("a folder");
        let (link, open) = (folder.0.join("link"), folder.0.join("open"));
        symlink(&real, &link).expect("a link");
        fs::create_dir(&open).expect("a folder");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("it is ours");
        let mut unsafe_places = vec![(link, "is a symbolic link"), (open, "lets other users write to it")];
        // Only root can give a folder away.
        if rustix::process::geteuid().is_root() {
            let (foreign, base) = (folder.0.join("foreign"), folder.0.join("foreign-base"));
            for place in [&foreign, &base] {
                DirBuilder::new().mode(0o700).create(place).expect("a folder");
                chown(place, Some(NOBODY), None).expect("it is ours");
            }
            refused(SocketFolder::inside(&base).expect_err("it is not safe"), "belongs to another user");
            unsafe_places.push((foreign, "belongs to another user"));
        }
        for (place, expected) in unsafe_places {
            let address = Address::Unix(place.join("head.socket"));
            refused(Gateway::open(&address, &secret).expect_err("it is not safe"), expected);
            let socket = std::os::unix::net::UnixListener::bind(place.join("head.socket")).expect("a socket");
            socket.set_nonblocking(true).expect("it is ours");
            refused(attach(&address, &secret, hello(0)).await.expect_err("it is not safe"), expected);
            assert!(socket.accept().is_err(), "nobody has even connected");
        }
        let open = folder.0.join("base");
        fs::create_dir(&open).expect("a folder");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("it is ours");
        refused(SocketFolder::inside(&open).expect_err("it is not safe"), "lets other users replace");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).expect("it is ours");
        SocketFolder::inside(&open).expect("as /tmp is");
    });
}

/// Silence, nonsense, a gigabyte, and more connections than there may be: workers get in as if nobody was there.
#[test]
fn strangers_stall_no_worker() {
    in_runtime(async {
        let (right, wrong) = (secret(), secret());
        let (gateway, mut heard) = Gateway::open(&any_port(), &right).expect("it opens");
        let Address::Tcp(address) = *gateway.address() else { panic!("a port") };
        let mut silent = Vec::new();
        for _ in 0..300 {
            silent.push(TcpStream::connect(address).await.expect("it listens"));
        }
        // The first ones have to go, because others come.
        let mut greeting = Vec::new();
        // How it is sent away does not matter.
        let _ = silent[0].read_to_end(&mut greeting).await;
        let mut talker = TcpStream::connect(address).await.expect("it listens");
        let nonsense = vec![b'x'; 1 << 20];
        let mut taken = 0;
        while taken < 1000 && talker.write_all(&nonsense).await.is_ok() {
            taken += 1;
        }
        assert!(taken < 1000, "a gigabyte was taken");
        for _ in 0..3 {
            attach(gateway.address(), &wrong, hello(1)).await.expect_err("it is refused");
            let told = heard.recv().await;
            assert!(matches!(told, Some(GatewayEvent::Refused { .. })), "{told:?}");
        }
        let (_say, _told) = attach(gateway.address(), &right, hello(1)).await.expect("it is let in");
        joined(&mut heard).await;
    });
}

/// However many strangers are refused, and even if nobody hears of it, the next one gets its answer.
#[test]
fn refusals_fill_nothing() {
    in_runtime(async {
        let (right, wrong) = (secret(), secret());
        let (gateway, heard) = Gateway::open(&any_port(), &right).expect("it opens");
        for _ in 0..1100 {
            let error = attach(gateway.address(), &wrong, hello(1)).await.expect_err("it is refused");
            assert!(matches!(error, Error::Refused(_)), "{error}");
        }
        drop(heard);
    });
}

/// A head that accepts and then says nothing.
#[tokio::test(start_paused = true)]
async fn a_silent_head_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = Address::Tcp(listener.local_addr().expect("an address"));
    let (attached, accepted) = tokio::join!(attach_to(&address), listener.accept());
    let error = attached.expect_err("it is silent");
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    drop(accepted);
}

async fn attach_to(address: &Address) -> Result<(), Error> {
    attach(address, &secret(), hello(0)).await.map(drop)
}
