//! What the system gives: disk, temporary folder, network, limits, control groups.

use std::{
    env, fs,
    fs::OpenOptions,
    io::{self, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::net::UnixListener,
    path::Path,
    process,
    time::{Duration, Instant},
};

use rustix::{
    fs::statvfs,
    process::{Resource, getrlimit},
};

use super::Finding;
use crate::agent::can_make_cgroups;

/// Less than a few checkpoints need.
const LITTLE_SPACE: u64 = 2 << 30;
/// Not even a journal has room.
const NO_SPACE: u64 = 64 << 20;
/// Facts that create or end a trial wait for the disk.
const SLOW_SYNC: Duration = Duration::from_millis(100);
const SYNCS: usize = 5;
/// A head has some files for each worker and each trial.
const FEW_FILES: u64 = 1024;
/// What a container gets if nobody asks for more.
const LITTLE_SHARED: u64 = 256 << 20;
const SHARED: &str = "/dev/shm";

pub(super) fn all(folder: &Path) -> Vec<Finding> {
    let mut findings = vec![disk(folder), temporary(&env::temp_dir()), loopback(), files(), cgroups()];
    findings.extend(free(Path::new(SHARED)).ok().map(|(_, all)| shared_memory(all)));
    findings
}

/// Free and all bytes of a disk.
fn free(folder: &Path) -> io::Result<(u64, u64)> {
    let disk = statvfs(folder)?;
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    Ok((bytes(disk.f_bavail), bytes(disk.f_blocks)))
}

/// The folder of studies, or where it would be.
fn disk(folder: &Path) -> Finding {
    let there = folder.ancestors().find(|part| part.is_dir()).unwrap_or_else(|| Path::new("."));
    let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
    let probe = there.join(format!(".pollux-tune-doctor-{}", process::id()));
    let written = sync_times(&probe);
    // It may not be there.
    let _ = fs::remove_file(&probe);
    let place = there.canonicalize().unwrap_or_else(|_| there.to_owned());
    judge_disk(&place, written, free(there).ok().map(|(free, _)| free))
}

/// How long it takes until a little more of a file is on the disk.
fn sync_times(probe: &Path) -> io::Result<Duration> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(probe)?;
    let mut times = Vec::new();
    for _ in 0..SYNCS {
        file.write_all(&[0; 4096])?;
        let begin = Instant::now();
        file.sync_all()?;
        times.push(begin.elapsed());
    }
    times.sort();
    Ok(times[SYNCS / 2])
}

fn judge_disk(place: &Path, sync: io::Result<Duration>, free: Option<u64>) -> Finding {
    const CHECK: &str = "disk";
    let place = place.display();
    let sync = match sync {
        Ok(sync) => sync,
        Err(error) => {
            let remedy = "make it writable for you, or give `run --folder` another one";
            return Finding::problem(CHECK, format!("cannot write to {place}: {error}"), remedy);
        }
    };
    let millis = sync.as_secs_f64() * 1000.0;
    let room = free.map_or_else(|| "an unknown number of bytes".to_owned(), size);
    let found = format!("{place} has {room} free, and a write is on the disk after {millis:.1} ms");
    match free {
        Some(..NO_SPACE) => Finding::problem(CHECK, found, "make room: a study waits where its disk is full"),
        Some(..LITTLE_SPACE) => {
            Finding::note(CHECK, found, "make room: checkpoints of large models need more")
        }
        _ if sync > SLOW_SYNC => Finding::note(
            CHECK,
            found,
            "a local disk is faster: every trial that begins or ends waits for it",
        ),
        _ => Finding::ok(CHECK, found),
    }
}

/// Head and workers meet on a socket in a private folder there.
fn temporary(folder: &Path) -> Finding {
    const CHECK: &str = "temp";
    let private = folder.join(format!("pollux-tune-doctor-{}", process::id()));
    let socket = private.join("workers-of-this-machine.sock");
    let bound = fs::create_dir(&private).and_then(|()| UnixListener::bind(&socket).map(drop));
    // They may not be there.
    let _ = fs::remove_file(&socket);
    let _ = fs::remove_dir(&private);
    match bound {
        Ok(()) => Finding::ok(CHECK, format!("{} takes files and sockets", folder.display())),
        Err(error) => Finding::problem(
            CHECK,
            format!("no socket can be made in {}: {error}", folder.display()),
            "set TMPDIR to a folder with a short path on a local disk that you may write to",
        ),
    }
}

/// Workers meet by TCP.
fn loopback() -> Finding {
    const CHECK: &str = "network";
    let met = || -> io::Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let _there = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        listener.accept().map(drop)
    };
    match met() {
        Ok(()) => Finding::ok(CHECK, "processes reach each other on 127.0.0.1, and there are free ports"),
        Err(error) => Finding::problem(
            CHECK,
            format!("processes cannot reach each other on 127.0.0.1: {error}"),
            "bring the interface up (`ip link set lo up`), and see net.ipv4.ip_local_port_range",
        ),
    }
}

fn files() -> Finding {
    let limit = getrlimit(Resource::Nofile);
    judge_files(limit.current, limit.maximum)
}

fn judge_files(now: Option<u64>, most: Option<u64>) -> Finding {
    const CHECK: &str = "files";
    let Some(now) = now else { return Finding::ok(CHECK, "no limit of open files") };
    let found = format!("a process may have {now} open files");
    if now >= FEW_FILES {
        return Finding::ok(CHECK, found);
    }
    let enough = 4 * FEW_FILES;
    let remedy = if most.is_none_or(|most| most >= enough) {
        format!("`ulimit -n {enough}` before `pollux-tune run`")
    } else {
        format!("ask for a hard limit of {enough} (limits.conf, or LimitNOFILE of systemd)")
    };
    Finding::note(CHECK, found, remedy)
}

fn cgroups() -> Finding {
    const CHECK: &str = "cgroups";
    if can_make_cgroups() {
        return Finding::ok(CHECK, "each program of a study gets a control group of its own");
    }
    // Where there are none programs are found by their session and environment, which suffices for all but those that hide.
    Finding::ok(
        CHECK,
        "no control groups can be made here: processes of programs are found by session and environment",
    )
}

/// Data loaders with processes pass batches on in it.
fn shared_memory(bytes: u64) -> Finding {
    const CHECK: &str = "memory";
    let found = format!("{SHARED} holds {}", size(bytes));
    if bytes < LITTLE_SHARED {
        let remedy = "data loaders with `num_workers` need more: start the container with `--shm-size=8g` or `--ipc=host`";
        return Finding::note(CHECK, found, remedy);
    }
    Finding::ok(CHECK, found)
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::Level;

    #[test]
    fn a_disk_is_judged_by_whether_it_can_be_written_its_room_and_its_speed() {
        let fast = || Ok(Duration::from_millis(3));
        let judge = |sync, free| judge_disk(Path::new("/data"), sync, free).level;
        assert_eq!(judge(fast(), Some(100 << 30)), Level::Ok);
        assert_eq!(judge(fast(), Some(1 << 30)), Level::Note);
        assert_eq!(judge(fast(), Some(1 << 20)), Level::Problem);
        assert_eq!(judge(Ok(Duration::from_millis(300)), Some(100 << 30)), Level::Note);
        assert_eq!(judge(Err(io::ErrorKind::PermissionDenied.into()), Some(100 << 30)), Level::Problem);
        assert_eq!(judge(fast(), None), Level::Ok);
    }

    #[test]
    fn few_open_files_have_a_remedy_that_the_hard_limit_allows() {
        assert_eq!(judge_files(None, None).level, Level::Ok);
        assert_eq!(judge_files(Some(1024), Some(1024)).level, Level::Ok);
        let remedy = |most| judge_files(Some(256), most).remedy.expect("it is a note");
        assert!(remedy(Some(1 << 20)).contains("ulimit -n 4096"));
        assert!(remedy(Some(512)).contains("hard limit"));
    }

    #[test]
    fn a_folder_in_which_no_socket_can_be_made_is_a_problem() {
        assert_eq!(temporary(Path::new("/nonexistent")).level, Level::Problem);
        let deep = env::temp_dir().join(format!("{}-{}", process::id(), "x".repeat(120)));
        fs::create_dir_all(&deep).expect("a folder");
        // A path of a socket has 107 bytes at most.
        assert_eq!(temporary(&deep).level, Level::Problem);
        fs::remove_dir(&deep).expect("it is empty");
    }

    #[test]
    fn containers_with_little_shared_memory_are_noted() {
        assert_eq!((shared_memory(64 << 20).level, shared_memory(8 << 30).level), (Level::Note, Level::Ok));
        assert_eq!((size(64 << 20), size(8_000_000_000)), ("67 MB".to_owned(), "8.0 GB".to_owned()));
    }

    #[test]
    fn nothing_is_left_of_a_look_at_a_disk() {
        let folder = env::temp_dir().join(format!("pollux-doctor-{}", process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        assert_ne!(disk(&folder.join("studies/mine")).found, "");
        assert_eq!(fs::read_dir(&folder).expect("it is there").count(), 0);
        fs::remove_dir(&folder).expect("it is empty");
    }
}
