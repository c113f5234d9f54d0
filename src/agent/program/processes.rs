//! The processes of this machine, from `/proc`.

use std::{collections::BTreeSet, fmt, fs, io, path::Path, str::FromStr};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal},
};
use serde::{Deserialize, Serialize};

/// A process, told apart from a later one of the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) pid: i32,
    /// When it began, in ticks since the machine did.
    pub(super) start: u64,
}

impl Identity {
    /// The process that has this number now.
    pub(super) fn of(pid: u32) -> Option<Self> {
        Some(Process::of(pid.try_into().ok()?)?.identity)
    }

    /// Sends a signal to this process, and never to another one that has its number. It may be gone.
    pub(super) fn signal(self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else { return };
        // From here on the number stands for one process.
        let handle = pidfd_open(pid, PidfdFlags::empty());
        if Process::of(self.pid).is_none_or(|process| process.identity != self) {
            return;
        }
        let _ = match handle {
            Ok(handle) => pidfd_send_signal(handle, signal),
            Err(Errno::NOSYS) => kill_process(pid, signal),
            Err(errno) => Err(errno),
        };
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.pid, self.start)
    }
}

/// A text that names no process.
#[derive(Debug)]
pub(super) struct NoIdentity;

impl FromStr for Identity {
    type Err = NoIdentity;

    fn from_str(text: &str) -> Result<Self, NoIdentity> {
        let (pid, start) = text.split_once(':').ok_or(NoIdentity)?;
        let (pid, start) = (pid.parse().map_err(|_| NoIdentity)?, start.parse().map_err(|_| NoIdentity)?);
        Ok(Self { pid, start })
    }
}

/// A line of the table of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) identity: Identity,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) session: i32,
    /// It has ended, and its parent has not noticed yet.
    pub(super) is_over: bool,
}

impl Process {
    pub(super) fn of(pid: i32) -> Option<Self> {
        Self::parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(pid: i32, stat: &str) -> Option<Self> {
        // The name may hold anything, but ends with the last bracket.
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |place: usize| fields.get(place)?.parse::<i32>().ok();
        Some(Self {
            identity: Identity { pid, start: fields.get(19)?.parse().ok()? },
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            is_over: matches!(*fields.first()?, "Z" | "X"),
        })
    }

    /// Whether its environment, as it was when it began, has this variable with such a value.
    pub(super) fn has_variable(&self, name: &str, is_value: impl Fn(&[u8]) -> bool) -> bool {
        self.variable(name).is_some_and(|value| is_value(&value))
    }

    /// What its environment, as it was when it began, says of this variable.
    pub(super) fn variable(&self, name: &str) -> Option<Vec<u8>> {
        let environment = fs::read(format!("/proc/{}/environ", self.identity.pid)).ok()?;
        let value = |variable: &[u8]| -> Option<Vec<u8>> {
            Some(variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?.to_vec())
        };
        environment.split(|byte| *byte == 0).find_map(value)
    }
}

/// All processes.
pub(super) fn table() -> Vec<Process> {
    let Ok(folders) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = folders.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(Process::of).collect()
}

/// Adds the children of these processes, and theirs.
pub(super) fn add_descendants(members: &mut BTreeSet<i32>, table: &[Process]) {
    loop {
        let before = members.len();
        let children = table.iter().filter(|process| members.contains(&process.parent));
        let children: Vec<i32> = children.map(|process| process.identity.pid).collect();
        members.extend(children);
        if members.len() == before {
            return;
        }
    }
}

/// What this start of the machine is called: numbers and times of processes mean nothing to another one.
pub(super) fn boot() -> io::Result<String> {
    Ok(fs::read_to_string(Path::new("/proc/sys/kernel/random/boot_id"))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_the_rest_of_the_line() {
        let rest = "S 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 10";
        for name in ["sh", "a b", ") Z 1 (", "a)\nb"] {
            let process = Process::parse(43, &format!("43 ({name}) {rest}")).expect("a process");
            let identity = Identity { pid: 43, start: 98765 };
            assert_eq!(process, Process { identity, parent: 7, group: 42, session: 41, is_over: false });
        }
        assert_eq!(Process::parse(43, "43 (sh) S 7"), None);
    }

    #[test]
    fn this_process_is_there_and_its_number_alone_is_not_enough() {
        let this = Identity::of(std::process::id()).expect("it runs");
        assert!(table().iter().any(|process| process.identity == this));
        // Nothing happens.
        Identity { start: this.start + 1, ..this }.signal(Signal::KILL);
        assert!(!boot().expect("it has one").is_empty());
    }
}
