//! A head and its agents over real sockets: who is let in, what each side says of the others, and what nobody ever says.

use std::{
    fs,
    io::{self, Write},
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use pollux_tune::{
    ids::{GpuType, NodeId, SlotId, StudyId, TrialId},
    internal::wire::{
        self, Address, AgentGateway, AgentGatewayEvent, AgentId, CheckpointFolders, Error, Gateway,
        HeadIdentity, Hello, HostPort, JoinFile, Secret, VERSION, dial,
    },
    trials::agent::{AgentCommand, AgentEvent, AgentHello, AgentNode, AgentSlot},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc::{Receiver, UnboundedSender},
};

use crate::common::folder;

const STUDY: StudyId = StudyId(0xfeed);

struct NoCheckpoints;

impl CheckpointFolders for NoCheckpoints {
    fn folder(&self, _: StudyId, _: TrialId) -> Result<PathBuf, String> {
        Err("there are none".to_owned())
    }

    fn is_checkpoint(&self, _: &str) -> bool {
        false
    }
}

fn hello(name: &str) -> AgentHello {
    let slot = AgentSlot { device: None, memory_bytes: None, threads: 2 };
    AgentHello {
        build: wire::build().to_owned(),
        incarnation: 1,
        name: name.to_owned(),
        address: None,
        island: String::new(),
        nodes: vec![AgentNode { gpu_type: GpuType::cpu(), slots: vec![slot] }],
        ends_in_s: None,
        job: None,
        held: Vec::new(),
    }
}

/// A head in a folder of its own.
struct Head {
    identity: HeadIdentity,
    gateway: AgentGateway,
    heard: Receiver<AgentGatewayEvent>,
}

impl Head {
    fn open(folder: &Path, listen: SocketAddr) -> Self {
        fs::create_dir_all(folder).unwrap();
        let identity = HeadIdentity::open(&folder.join("cluster")).unwrap();
        let (gateway, heard) = AgentGateway::open(listen, &identity, Arc::new(NoCheckpoints)).unwrap();
        Self { identity, gateway, heard }
    }

    fn new(folder: &Path) -> Self {
        Self::open(folder, "127.0.0.1:0".parse().unwrap())
    }

    fn address(&self) -> HostPort {
        self.gateway.address().to_string().parse().unwrap()
    }

    fn join_file(&self) -> JoinFile {
        self.identity.join_file(STUDY, vec![self.address()])
    }

    async fn joined(&mut self) -> (AgentId, AgentHello, UnboundedSender<AgentCommand>) {
        match self.heard.recv().await {
            Some(AgentGatewayEvent::Joined { agent, hello, commands }) => (agent, hello, commands),
            other => panic!("{other:?}"),
        }
    }

    async fn refused(&mut self) -> (String, String) {
        match self.heard.recv().await {
            Some(AgentGatewayEvent::Refused { name, reason }) => (name, reason),
            other => panic!("{other:?}"),
        }
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn an_agent_joins_by_its_file_and_finds_the_next_head_again() {
    let root = folder("again");
    let mut head = Head::new(&root);
    let port = head.gateway.address().port();
    let path = root.join("join.json");
    // Both names are tried at once: nobody listens at the first one.
    let addresses = vec!["127.0.0.1:1".parse().unwrap(), format!("localhost:{port}").parse().unwrap()];
    head.identity.join_file(STUDY, addresses).write(&path).unwrap();
    assert_eq!(
        (mode(&path), mode(&root.join("cluster")), mode(&root.join("cluster/head.json"))),
        (0o600, 0o700, 0o600)
    );
    for round in 0..2 {
        let join = JoinFile::read(&path).unwrap();
        assert_eq!(join.study, STUDY);
        let mut agent = dial(&join, hello("gpu1")).await.unwrap();
        let (id, said, commands) = head.joined().await;
        assert_eq!(said, hello("gpu1"));
        let (start, slot) = (
            AgentCommand::Start { node: NodeId(round), process: 0 },
            SlotId { node: NodeId(round), index: 0 },
        );
        commands.send(start.clone()).unwrap();
        assert_eq!(agent.commands.recv().await, Some(start));
        agent.events.send(AgentEvent::WorkerJoined { slot }).unwrap();
        let event = head.heard.recv().await;
        assert!(matches!(&event, Some(AgentGatewayEvent::Event { agent, .. }) if *agent == id), "{event:?}");
        assert_eq!(join.worker_secret(5), head.identity.worker_secret(5));
        let listen = head.gateway.address();
        drop(head);
        assert_eq!(agent.commands.recv().await, None);
        head = Head::open(&root, listen);
    }
    fs::remove_dir_all(&root).unwrap();
}

/// What an agent can do about it is part of what it is told.
#[tokio::test]
async fn who_is_refused_is_refused_for_good_and_both_sides_say_why() {
    let root = folder("refused");
    let (mut head, mut other) = (Head::new(&root.join("one")), Head::new(&root.join("other")));
    // The token of another study, but the certificate of this one.
    let (ours, theirs) = (root.join("ours"), root.join("theirs"));
    head.join_file().write(&ours).unwrap();
    other.join_file().write(&theirs).unwrap();
    let field = |path: &Path, name: &str| {
        let file: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        file[name].as_str().unwrap().to_owned()
    };
    let text = fs::read_to_string(&ours).unwrap().replace(&field(&ours, "token"), &field(&theirs, "token"));
    fs::write(&ours, text).unwrap();
    let error = dial(&JoinFile::read(&ours).unwrap(), hello("gpu1")).await.unwrap_err();
    let (_, reason) = head.refused().await;
    assert!(
        matches!(&error, Error::AgentRefused(said) if *said == reason) && !error.is_temporary(),
        "{error}"
    );
    assert!(reason.starts_with("it has another token: "), "{reason}");

    let strange = other.identity.join_file(STUDY, vec![head.address()]);
    let error = dial(&strange, hello("gpu1")).await.unwrap_err();
    assert!(matches!(error, Error::OtherHead { .. }) && !error.is_temporary(), "{error}");
    assert!(
        error.to_string().starts_with(&format!("{} is not the head of the join file", head.address())),
        "{error}"
    );
    let (name, reason) = head.refused().await;
    assert!(
        name.starts_with("127.0.0.1:") && reason.contains("does not trust the certificate"),
        "{name} {reason}"
    );

    let another = AgentHello { build: "pollux-tune 0.0.1".to_owned(), ..hello("gpu1") };
    let error = dial(&head.join_file(), another).await.unwrap_err();
    let (name, reason) = head.refused().await;
    assert!(
        matches!(&error, Error::AgentRefused(said) if *said == reason) && !error.is_temporary(),
        "{error}"
    );
    assert!(name == "gpu1" && reason.contains("another program than its head"), "{reason}");

    let mut plain = TcpStream::connect(head.gateway.address()).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let _ = plain.read_to_end(&mut Vec::new()).await;
    assert!(head.refused().await.1.contains("plain text is not accepted"));
    // A worker speaks plain text, too.
    let worker = Hello { version: VERSION, slot: SlotId { node: NodeId(0), index: 0 }, pid: 1 };
    let secret = Secret::random().unwrap();
    wire::attach(&Address::Tcp(head.gateway.address()), &secret, worker).await.unwrap_err();
    assert!(head.refused().await.1.contains("plain text is not accepted"));

    dial(&head.join_file(), hello("gpu1")).await.unwrap();
    head.joined().await;
    assert!(other.heard.try_recv().is_err(), "it was never called");
    fs::remove_dir_all(&root).unwrap();
}

#[tokio::test]
async fn a_head_that_is_away_may_come_back() {
    let root = folder("away");
    let (head, other) = (Head::new(&root.join("one")), Head::new(&root.join("other")));
    let mut join = head.join_file();
    drop(head);
    let error = dial(&join, hello("gpu1")).await.unwrap_err();
    assert!(matches!(error, Error::HeadAway { .. }) && error.is_temporary(), "{error}");
    assert!(error.to_string().contains(&join.addresses[0].to_string()), "{error}");
    // Somebody else is at one of its addresses, which says nothing of the others.
    join.addresses.push(other.address());
    let error = dial(&join, hello("gpu1")).await.unwrap_err();
    assert!(error.is_temporary(), "{error}");
    // Another program has taken its port.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    join.addresses = vec![listener.local_addr().unwrap().to_string().parse().unwrap()];
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"SSH-2.0-other\r\n").await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    };
    let (dialled, ()) = tokio::join!(dial(&join, hello("gpu1")), serve);
    let error = dialled.unwrap_err();
    assert!(error.is_temporary() && error.to_string().contains("no head"), "{error}");
    join.addresses.clear();
    let error = dial(&join, hello("gpu1")).await.unwrap_err();
    assert!(matches!(error, Error::NoAddress) && !error.is_temporary(), "{error}");
    fs::remove_dir_all(&root).unwrap();
}

/// As many connections as somebody likes, with TLS or without.
#[tokio::test]
async fn a_thousand_idle_connections_keep_no_agent_out() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let root = folder("idle");
    let mut head = Head::new(&root);
    let mut idle = Vec::new();
    for _ in 0..500 {
        idle.push(TcpStream::connect(head.gateway.address()).await.unwrap());
    }
    let mut reached = Vec::new();
    for _ in 0..500 {
        reached.push(wire::reach(&head.join_file()).await.unwrap());
    }
    let (mut agents, mut heads) = (Vec::new(), Vec::new());
    for number in 0..10 {
        let name = format!("gpu{number}");
        agents.push(dial(&head.join_file(), hello(&name)).await.unwrap());
        let (_, said, commands) = head.joined().await;
        assert_eq!(said.name, name);
        heads.push(commands);
        idle.push(TcpStream::connect(head.gateway.address()).await.unwrap());
    }
    assert_eq!(idle.len() + reached.len(), 1010);
    assert!(agents.iter_mut().all(|agent| agent.ended.try_recv().is_err()), "those who are in stay in");
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn files_that_others_can_read_or_that_are_damaged_are_refused() {
    let root = folder("files");
    fs::create_dir_all(&root).unwrap();
    let cluster = root.join("cluster");
    let identity = HeadIdentity::open(&cluster).unwrap();
    let path = root.join("join.json");
    identity.join_file(STUDY, vec!["gpu1:4000".parse().unwrap()]).write(&path).unwrap();
    let good = fs::read_to_string(&path).unwrap();
    let read = |path: &Path| JoinFile::read(path).unwrap_err().to_string();
    for wrong in [0o644, 0o640, 0o604, 0o660] {
        set_mode(&path, wrong);
        let error = read(&path);
        assert!(error.contains("can be read by others") && error.contains("chmod 600"), "{error}");
    }
    set_mode(&path, 0o600);
    for (from, to, expected) in [
        ("\"token\"", "\"tokn\"", "its field `token` is missing"),
        ("\"study\": \"", "\"study\": \"x", "its field `study` is not the id of a study"),
        ("gpu1:4000", "gpu1", "its field `addresses` has an entry that is not HOST:PORT"),
        ("BEGIN CERT", "BEGIN", "its field `certificate` is not a certificate in PEM form"),
        ("\"token\": \"", "\"token\": \"0", "its field `token` is not a token of 32 hexadecimal digits"),
        ("\"token\": \"", "\"port\": 1, \"token\": \"", "its field `port` is not known"),
        ("\"addresses\": [", "\"addresses\": [7, ", "its field `addresses` has an entry that is not a text"),
        ("{", "", "it is not JSON"),
        ("{", "[]{", "it is not JSON"),
    ] {
        assert!(good.contains(from), "{from}");
        fs::write(&path, good.replacen(from, to, 1)).unwrap();
        let error = read(&path);
        assert!(error.starts_with(&format!("{}: {expected}", path.display())), "{error}");
    }
    // The addresses can be given otherwise.
    let without: String = good.lines().filter(|line| !line.contains("gpu1:4000")).collect();
    fs::write(&path, without).unwrap();
    assert!(JoinFile::read(&path).unwrap().addresses.is_empty());
    assert!(read(&root.join("missing")).starts_with("there is no join file "));

    let open = || HeadIdentity::open(&cluster).unwrap_err().to_string();
    let head = cluster.join("head.json");
    set_mode(&head, 0o644);
    assert!(open().contains("head.json can be read by others"), "{}", open());
    set_mode(&head, 0o600);
    set_mode(&cluster, 0o755);
    assert!(open().contains("cluster can be entered by others"), "{}", open());
    set_mode(&cluster, 0o700);
    let text = fs::read_to_string(&head).unwrap();
    fs::write(&head, text.replacen("BEGIN PRIVATE", "BEGIN", 1)).unwrap();
    assert!(open().contains("its field `key` is not what a head has written there"), "{}", open());
    fs::write(&head, &text).unwrap();
    HeadIdentity::open(&cluster).unwrap();
    fs::remove_file(&head).unwrap();
    let new = HeadIdentity::open(&cluster).unwrap();
    assert_ne!(new.worker_secret(1), identity.worker_secret(1), "another one is another one");
    let left: Vec<_> = fs::read_dir(&cluster).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["head.json"], "nothing half-written is left");
    fs::remove_dir_all(&root).unwrap();
}

/// What workers say is not encrypted.
#[tokio::test]
async fn plain_text_does_not_leave_the_machine() {
    let secret = Secret::random().unwrap();
    let hello = Hello { version: VERSION, slot: SlotId { node: NodeId(0), index: 0 }, pid: 1 };
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:4000", "[2001:db8::1]:4000", "[::ffff:192.0.2.1]:4000"]
    {
        let address: Address = address.parse().unwrap();
        let error = Gateway::open(&address, &secret).unwrap_err();
        assert!(matches!(error, Error::PlainText { .. }), "{error}");
        let error = wire::attach(&address, &secret, hello.clone()).await.unwrap_err();
        assert!(matches!(error, Error::PlainText { .. }), "{error}");
        assert!(error.to_string().starts_with(&format!("{address} is not on this machine")), "{error}");
    }
    for address in ["127.0.0.1:0", "127.1.2.3:0"] {
        Gateway::open(&address.parse().unwrap(), &secret).unwrap();
    }
}

/// All that is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Not even in the most talkative log, where the libraries below tell of every frame.
#[tokio::test]
async fn tokens_and_keys_are_shown_nowhere() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let root = folder("shown");
    let mut head = Head::new(&root.join("one"));
    let join = head.join_file();
    let mut shown = Vec::new();
    let mut agent = dial(&join, hello("gpu1")).await.unwrap();
    let joined = head.heard.recv().await;
    shown.push(format!("{agent:?} {joined:?} {:?} {:?} {join:?}", head.identity, head.gateway));
    shown.push(format!("{:?}", wire::reach(&join).await.unwrap()));
    let other = Head::new(&root.join("other"));
    let wrong = other.identity.join_file(STUDY, vec![head.address()]);
    let build = AgentHello { build: "another".to_owned(), ..hello("gpu1") };
    for error in [dial(&wrong, hello("gpu1")).await.unwrap_err(), dial(&join, build).await.unwrap_err()] {
        shown.push(format!("{error} {error:?} {:?}", head.heard.recv().await));
    }
    drop((joined, head));
    assert_eq!(agent.commands.recv().await, None);
    shown.push(format!("{:?}", agent.ended.await));
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("HEADERS") || log.contains("Headers"), "the log is talkative enough: {log}");
    shown.push(log);
    let shown = shown.concat();
    for study in ["one", "other"] {
        let text = fs::read_to_string(root.join(study).join("cluster/head.json")).unwrap();
        let file: serde_json::Value = serde_json::from_str(&text).unwrap();
        let token = file["token"].as_str().unwrap();
        let key = file["key"].as_str().unwrap();
        assert!(key.starts_with("-----BEGIN PRIVATE KEY-----\n"));
        assert!(!shown.contains(token), "{shown}");
        for line in key.lines().filter(|line| !line.starts_with('-')) {
            assert!(!shown.contains(line), "{shown}");
        }
    }
    fs::remove_dir_all(&root).unwrap();
}
