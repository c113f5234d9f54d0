//! Others on this machine, who know nothing of a training but the ports that it listens at.

use std::{
    fs,
    io::Write,
    net::{SocketAddr, TcpStream},
    path::Path,
    thread,
    time::Duration,
};

use pollux_tune::actors::TrainingEvent;
use rustix::process::Pid;

use crate::common::{Folder, Rescales, STEPS, assert_same, sgd, state, steps, task, train};

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
                talkers.push(thread::spawn(move || {
                    (address, c10d::Store::connect(&address.to_string(), SHORT).err())
                }));
            }
        }
        if run.number == 1 {
            rescales.follow(run, event);
        }
    });
    rescales.check();
    assert!(!strangers.is_empty());
    for talker in talkers {
        let (address, error) = talker.join().expect("it ends");
        assert!(error.is_some(), "{address} lets everybody in");
    }
    let broken = all.iter().flatten().find(|event| matches!(event, TrainingEvent::Broken { .. }));
    assert_eq!(broken, None, "no group was disturbed");
    assert_eq!(all[1].iter().rev().find_map(steps), Some(STEPS));
    assert_same(&state(&folder, "disturbed"), &state(&folder, "undisturbed"), "disturbed");
}
