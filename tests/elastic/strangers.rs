//! Others on this machine, who know nothing of a training but the ports that it listens at.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    thread,
    time::Duration,
};

use pollux_tune::actors::TrainingEvent;
use rustix::process::Pid;

use crate::common::{Folder, Rescales, STEPS, assert_same, sgd, state, steps, task, train};

/// For what ends sooner or later, also on a busy machine.
const SOON: Duration = Duration::from_secs(600);

/// Where a process listens: everybody can read that in `/proc/net/tcp`.
fn ports(pid: Pid) -> Vec<SocketAddr> {
    let process = Path::new("/proc").join(pid.as_raw_nonzero().to_string());
    let files = fs::read_dir(process.join("fd")).expect("it runs").flatten();
    let sockets: Vec<String> = files
        .filter_map(|file| {
            fs::read_link(file.path()).ok()?.to_str()?.strip_prefix("socket:[").map(str::to_owned)
        })
        .collect();
    let table = fs::read_to_string(process.join("net/tcp")).expect("it runs");
    let listening = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_its = sockets.iter().any(|socket| socket.trim_end_matches(']') == fields[9]);
        let (ip, port) = fields[1].split_once(':')?;
        let ip = u32::from_str_radix(ip, 16).ok()?.to_le_bytes();
        (is_its && fields[3] == "0A").then_some(SocketAddr::from((ip, u16::from_str_radix(port, 16).ok()?)))
    });
    listening.collect()
}

/// What libtorch's own store would answer: a greeting, and questions whether it is there, longer than the call of a worker.
fn as_libtorch() -> Vec<u8> {
    const VALIDATE: u8 = 0;
    const PING: u8 = 13;
    let mut words = vec![VALIDATE];
    words.extend(0x3C85_F7CE_u32.to_le_bytes());
    for number in 0..16_u32 {
        words.push(PING);
        words.extend(number.to_le_bytes());
    }
    words
}

/// Says something, and hears the answer until the other side ends it. That is soon, or at the latest with the group.
fn talk(address: SocketAddr, words: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    let Ok(mut stream) = TcpStream::connect(address) else { return answer };
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    // It may be cut off before it has said all.
    let _ = stream.write_all(words);
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_ne!(error.kind(), ErrorKind::WouldBlock, "{address} neither answers nor refuses");
    }
    answer
}

/// Else the strangers below would be harmless whatever a worker did.
#[test]
fn a_store_of_libtorch_lets_everybody_in() {
    let store = c10d::Store::host("127.0.0.1:0").expect("a store");
    let address: SocketAddr = store.address().parse().expect("an address");
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    stream.write_all(&as_libtorch()).expect("it hears");
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).expect("it answers");
    assert_eq!(answer, [0, 0, 0, 0, 1, 0, 0, 0]);
}

/// They connect and are silent, send half of something, send a lot of nothing, and try to talk as libtorch does: nobody lets them in, and
/// groups form as ever.
#[test]
fn strangers_can_neither_join_nor_disturb_a_training() {
    const SHORT: Duration = Duration::from_millis(300);
    let folder = Folder::new();
    let mut rescales = Rescales::new(&folder, &[(20, &[0]), (50, &[0, 1]), (80, &[1]), (110, &[0, 1])]);
    let tasks = [task(&folder, "undisturbed", sgd()), task(&folder, "disturbed", rescales.params(sgd()))];
    let (mut strangers, mut talkers) = (Vec::new(), Vec::new());
    let all = train(tasks.into(), &[0, 1], |run, event| {
        if run.number == 0 && strangers.is_empty() && matches!(event, TrainingEvent::Formed { .. }) {
            let found: Vec<SocketAddr> = (0..2).flat_map(|slot| ports(run.pid(slot))).collect();
            assert!(found.len() >= 2, "each worker hosts a rendezvous: {found:?}");
            for address in found {
                assert!(address.ip().is_loopback(), "{address} can be reached from other machines");
                for words in [&b""[..], b"ptr1", b"half a message", &[0; 1 << 13]] {
                    // Those of a group go with it.
                    let Ok(mut stranger) = TcpStream::connect(address) else { continue };
                    stranger.set_write_timeout(Some(SHORT)).expect("a timeout");
                    // It may be cut off.
                    let _ = stranger.write_all(words);
                    strangers.push(stranger);
                }
                talkers.push(thread::spawn(move || (address, talk(address, &as_libtorch()))));
            }
        }
        if run.number == 1 {
            rescales.follow(run, event);
        }
    });
    rescales.check();
    assert!(!strangers.is_empty());
    for talker in talkers {
        let (address, answer) = talker.join().expect("it ends");
        assert_eq!(answer, b"", "{address} answers strangers");
    }
    let broken = all.iter().flatten().find(|event| matches!(event, TrainingEvent::Broken { .. }));
    assert_eq!(broken, None, "no group was disturbed");
    assert_eq!(all[1].iter().rev().find_map(steps), Some(STEPS));
    assert_same(&state(&folder, "disturbed"), &state(&folder, "undisturbed"), "disturbed");
}
