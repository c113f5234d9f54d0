//! A program and all that it has started, to the last process.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    process,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitOptions, getpid, set_child_subreaper, waitpid};
use tokio::{
    process::{Child, Command},
    time,
};

use super::{
    cgroup::Cgroup,
    processes::{self, Identity, Process},
    record::{self, Record, Recorded},
};
use crate::{agent::error::Error, ids::TrialId, store::Folder};

/// How long to wait for what was killed. Only the system can hold it up, and it does nothing more in that case.
const KILLED: Duration = Duration::from_secs(10);
/// How often to look what is left; the first looks come sooner.
const LOOK: Duration = Duration::from_millis(100);
const FIRST_LOOK: Duration = Duration::from_millis(5);

/// In the environment of all that a program starts: the folder of its trial. It is not for users, who may set variables of this study in
/// a shell of theirs.
pub(super) const MARK: &str = "POLLUX_TUNE_PROGRAM";
/// In the same environment: the agent that has started it. It is there before anything can be recorded.
const OWNER: &str = "POLLUX_TUNE_PROGRAM_OWNER";

/// Whether all children of this process are programs, or have lost one.
static ADOPTS: AtomicBool = AtomicBool::new(false);

/// The children of this process.
#[derive(Debug, Default)]
pub(super) struct Children {
    /// The programs that have not been waited for, if all children of this process are programs or left behind by them. A program is
    /// itself the parent of what its own processes leave behind, so whatever else becomes a child of this process has lost its program.
    programs: Option<Mutex<BTreeSet<i32>>>,
}

impl Children {
    /// If this process has no other children, it takes in the ones that programs leave behind.
    pub(super) fn new(is_sole: bool) -> Self {
        let adopts = is_sole && set_child_subreaper(Some(getpid())).is_ok();
        ADOPTS.fetch_or(adopts, Ordering::AcqRel);
        Self { programs: adopts.then(Mutex::default) }
    }

    /// Starts a process. Nobody takes it for one that was left behind.
    fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let programs =
            self.programs.as_ref().map(|known| known.lock().unwrap_or_else(PoisonError::into_inner));
        let child = command.spawn()?;
        if let (Some(mut known), Some(pid)) = (programs, child.id()) {
            known.insert(pid.cast_signed());
        }
        Ok(child)
    }

    fn forget(&self, pid: i32) {
        if let Some(known) = &self.programs {
            known.lock().unwrap_or_else(PoisonError::into_inner).remove(&pid);
        }
    }

    /// Those that have lost their program. The ones that have ended are waited for.
    fn left_behind(&self) -> Vec<i32> {
        let Some(known) = &self.programs else { return Vec::new() };
        let known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let (this, table) = (process::id().cast_signed(), processes::table());
        let strays =
            table.iter().filter(|child| child.parent == this && !known.contains(&child.identity.pid));
        let (over, alive): (Vec<&Process>, Vec<&Process>) = strays.partition(|child| child.is_over);
        for child in over {
            if let Some(pid) = Pid::from_raw(child.identity.pid) {
                // It is ours, and has ended.
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
        }
        alive.into_iter().map(|child| child.identity.pid).collect()
    }
}

/// A program and all that it has started.
#[derive(Debug)]
pub(super) struct Custody {
    children: Arc<Children>,
    identity: Identity,
    /// The folder of its trial.
    home: PathBuf,
    cgroup: Option<Cgroup>,
    grace: Duration,
}

impl Custody {
    /// Starts what is to become the program of the trial with this folder. When it is asked to end, it may take so long.
    pub(super) fn spawn(
        children: &Arc<Children>,
        command: &mut Command,
        home: &Path,
        grace: Duration,
    ) -> io::Result<(Self, Child)> {
        command.env(MARK, home);
        if let Some(this) = Identity::of(process::id()) {
            command.env(OWNER, this.to_string());
        }
        let child = children.spawn(command)?;
        let pid = child.id().unwrap_or_default();
        let Some(identity) = Identity::of(pid) else {
            // It is killed when it is dropped.
            children.forget(pid.cast_signed());
            return Err(io::Error::other("its process cannot be seen in /proc"));
        };
        let cgroup = Cgroup::create().filter(|cgroup| {
            let is_in = cgroup.add(pid).is_ok();
            if !is_in {
                cgroup.remove();
            }
            is_in
        });
        Ok((Self { children: children.clone(), identity, home: home.to_owned(), cgroup, grace }, child))
    }

    /// What a later head has to know to end it.
    pub(super) fn record(&self) -> io::Result<Record> {
        Record::new(self.identity, self.cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()))
    }

    /// Gives it another time to end.
    pub(super) fn set_grace(&mut self, grace: Duration) {
        self.grace = grace;
    }

    /// Its end has been noticed: its number may be given to others.
    pub(super) fn forget(&self) {
        self.children.forget(self.identity.pid);
    }

    /// Asks all of it to end, and makes it after a while. The program itself has to be waited for at the same time.
    pub(super) async fn end(&self) {
        let (asked, mut requested, mut pause) = (time::Instant::now(), BTreeSet::new(), FIRST_LOOK);
        loop {
            let alive = self.alive();
            let is_late = asked.elapsed() >= self.grace;
            if alive.is_empty() {
                break;
            }
            if asked.elapsed() >= self.grace + KILLED {
                tracing::error!(?alive, home = %self.home.display(), "processes of a program do not end though they were killed");
                break;
            }
            if let Some(cgroup) = self.cgroup.as_ref().filter(|_| is_late) {
                cgroup.kill();
            }
            let was_asked = !requested.is_empty();
            for process in &alive {
                // What one that was asked starts then is how it ends: a copy of its state, for instance.
                let is_of_one = || alive.iter().any(|other| other.identity.pid == process.parent);
                if is_late {
                    process.identity.signal(Signal::KILL);
                } else if !(was_asked && is_of_one()) && requested.insert(process.identity) {
                    process.identity.signal(Signal::TERM);
                    // Whoever stands still would not notice.
                    process.identity.signal(Signal::CONT);
                }
            }
            time::sleep(pause).await;
            pause = (2 * pause).min(LOOK);
        }
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
        record::remove(&self.home);
    }

    /// What is left of it.
    fn alive(&self) -> Vec<Process> {
        let table = processes::table();
        let mark = self.home.as_os_str().as_encoded_bytes();
        let mut members = of_program(self.identity, &table);
        let later = table.iter().filter(|process| process.identity.start >= self.identity.start);
        let marked = later.filter(|process| process.has_variable(MARK, |value| value == mark));
        members.extend(marked.map(|process| process.identity.pid));
        members.extend(self.cgroup.iter().flat_map(Cgroup::members));
        members.extend(self.children.left_behind());
        processes::add_descendants(&mut members, &table);
        alive(&members, &table)
    }
}

/// Those of a table that have not ended, but for this process.
fn alive(members: &BTreeSet<i32>, table: &[Process]) -> Vec<Process> {
    let this = process::id().cast_signed();
    let alive = table.iter().filter(|process| !process.is_over && members.contains(&process.identity.pid));
    alive.filter(|process| process.identity.pid != this).copied().collect()
}

/// A program, its session and its process group.
fn of_program(program: Identity, table: &[Process]) -> BTreeSet<i32> {
    // Numbers of sessions and groups are not given away while anybody is in them, but may be after that.
    let has_changed = |process: &Process| process.identity.pid == program.pid && process.identity != program;
    if table.iter().any(has_changed) {
        return BTreeSet::new();
    }
    let is_member = |process: &&Process| {
        [process.identity.pid, process.group, process.session].contains(&program.pid)
            && process.identity.start >= program.start
    };
    table.iter().filter(is_member).map(|process| process.identity.pid).collect()
}

/// Kills the programs of a study, and all that they have started, at once. Processes of other studies stay.
#[cfg(feature = "cli")]
pub(crate) fn end_programs(folder: &Folder) {
    for (_, process) in left_behind(folder) {
        process.signal(Signal::KILL);
    }
}

/// Ends what the programs of a head that was killed have left behind, and waits for that: nothing may run twice.
pub(super) fn end_left_behind(folder: &Folder) -> Result<(), Error> {
    let began = Instant::now();
    loop {
        let left = left_behind(folder);
        let Some((trial, process)) = left.first() else { break };
        if began.elapsed() >= KILLED {
            let (trial, process) = (*trial, process.pid);
            return Err(Error::LeftBehind { trial, process });
        }
        for (trial, process) in &left {
            tracing::warn!(pid = process.pid, ?trial, "kill a process that a program has left behind");
            process.signal(Signal::KILL);
        }
        thread::sleep(FIRST_LOOK);
    }
    let (table, boot) = (processes::table(), processes::boot().unwrap_or_default());
    for (_, home) in homes(folder) {
        let Some(recorded) = record::read(&home) else { continue };
        if let Recorded::Process(Record { boot: began, cgroup, .. }) = recorded {
            // Where a folder is shared, records of other machines are theirs.
            if began != boot || is_of_another(&home, &table, &boot) {
                continue;
            }
            if let Some(cgroup) = cgroup {
                Cgroup::at(cgroup).remove();
            }
        }
        record::remove(&home);
    }
    Ok(())
}

/// Whether this is another process, which lives.
fn is_another(owner: Identity, table: &[Process]) -> bool {
    owner.pid != process::id().cast_signed() && table.iter().any(|process| process.identity == owner)
}

/// The agent that has started a process of a program, as its environment says.
fn owner(process: &Process) -> Option<Identity> {
    str::from_utf8(&process.variable(OWNER)?).ok()?.parse().ok()
}

/// Whether the program of a trial is that of another agent, which lives: several may serve a study on one machine.
fn is_of_another(home: &Path, table: &[Process], boot: &str) -> bool {
    let Some(Recorded::Process(Record { owner: Some(owner), boot: began, .. })) = record::read(home) else {
        return false;
    };
    began == boot && is_another(owner, table)
}

/// The folders of trials.
fn homes(folder: &Folder) -> Vec<(Option<TrialId>, PathBuf)> {
    let Ok(entries) = std::fs::read_dir(folder.checkpoints()) else { return Vec::new() };
    let homes = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    homes.map(|entry| (trial(&entry.path()), entry.path())).collect()
}

fn trial(home: &Path) -> Option<TrialId> {
    home.file_name()?.to_str()?.strip_prefix("trial-")?.parse().ok().map(TrialId)
}

/// All that is left of the programs of a study, by the trial if that can be told.
fn left_behind(folder: &Folder) -> Vec<(Option<TrialId>, Identity)> {
    let (table, boot) = (processes::table(), processes::boot().unwrap_or_default());
    let root = folder.checkpoints();
    let mut found = Vec::new();
    let mut add = |trial: Option<TrialId>, mut members: BTreeSet<i32>| {
        processes::add_descendants(&mut members, &table);
        found.extend(alive(&members, &table).into_iter().map(|process| (trial, process.identity)));
    };
    for (trial, home) in homes(folder) {
        if is_of_another(&home, &table, &boot) {
            continue;
        }
        match record::read(&home) {
            Some(Recorded::Process(record)) if record.boot == boot => {
                let has_begun = table.iter().any(|process| process.identity == record.identity);
                let mut members =
                    if has_begun { of_program(record.identity, &table) } else { BTreeSet::new() };
                members.extend(record.cgroup.into_iter().flat_map(|path| Cgroup::at(path).members()));
                add(trial, members);
            }
            // Its number may be that of somebody else by now.
            Some(Recorded::Number(pid)) => {
                let is_ours = |process: &&Process| {
                    process.identity.pid == pid
                        && process
                            .has_variable(super::FOLDER, |value| value == home.as_os_str().as_encoded_bytes())
                };
                let members = table.iter().find(is_ours);
                add(trial, members.map(|of| of_program(of.identity, &table)).unwrap_or_default());
            }
            _ => {}
        }
    }
    let is_left = |process: &&Process| {
        let Some(home) = process.variable(MARK).and_then(|value| String::from_utf8(value).ok()) else {
            return false;
        };
        let home = Path::new(&home);
        // Only earlier versions do not say whose it is.
        let is_of_another = || match owner(process) {
            Some(owner) => is_another(owner, &table),
            None => is_of_another(home, &table, &boot),
        };
        home.parent() == Some(&root) && !is_of_another()
    };
    let marked = table.iter().filter(is_left);
    add(None, marked.map(|process| process.identity.pid).collect());
    if ADOPTS.load(Ordering::Acquire) {
        let this = process::id().cast_signed();
        add(
            None,
            table.iter().filter(|child| child.parent == this).map(|child| child.identity.pid).collect(),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use std::{env, process::Command};

    use super::*;
    use crate::agent::program::processes::Identity;

    /// A program is known by its environment before anything of it can be recorded.
    #[test]
    fn a_program_that_another_agent_has_just_started_is_left_alone() {
        let root = env::temp_dir().join(format!("pollux-custody-new-{}", process::id()));
        let folder = Folder::new(&root);
        let home = folder.checkpoint(TrialId(3));
        std::fs::create_dir_all(&home).unwrap();
        let mut agent = Command::new("sleep").arg("1000").spawn().unwrap();
        let owner = Identity::of(agent.id()).unwrap();
        let mut program = Command::new("sleep");
        let mut program = program.arg("1000").env(MARK, &home).env(OWNER, owner.to_string()).spawn().unwrap();
        // Its environment is there when it has begun.
        while !Process::of(program.id().cast_signed()).unwrap().has_variable(MARK, |_| true) {
            thread::yield_now();
        }
        end_left_behind(&folder).unwrap();
        assert!(program.try_wait().unwrap().is_none(), "its agent lives");
        agent.kill().unwrap();
        agent.wait().unwrap();
        let ended = thread::spawn(move || program.wait().unwrap());
        end_left_behind(&folder).unwrap();
        assert!(!ended.join().unwrap().success());
        std::fs::remove_dir_all(root).unwrap();
    }

    /// Its number means nothing here.
    #[test]
    fn records_of_other_machines_stay_where_a_folder_is_shared() {
        let root = env::temp_dir().join(format!("pollux-custody-shared-{}", process::id()));
        let folder = Folder::new(&root);
        let home = folder.checkpoint(TrialId(3));
        std::fs::create_dir_all(&home).unwrap();
        let record = Record::new(Identity { pid: i32::MAX, start: 1 }, None).unwrap();
        Record { boot: "another".to_owned(), ..record.clone() }.write(&home).unwrap();
        end_left_behind(&folder).unwrap();
        assert!(record::read(&home).is_some());
        Record { owner: None, ..record }.write(&home).unwrap();
        end_left_behind(&folder).unwrap();
        assert_eq!(record::read(&home), None, "that of this machine is over");
        std::fs::remove_dir_all(root).unwrap();
    }

    /// Several agents may serve a study on one machine: two jobs of Slurm on one node, for instance.
    #[test]
    fn programs_of_another_agent_are_left_alone_as_long_as_it_lives() {
        let root = env::temp_dir().join(format!("pollux-custody-{}", process::id()));
        let folder = Folder::new(&root);
        let home = folder.checkpoint(TrialId(3));
        std::fs::create_dir_all(&home).unwrap();
        let mut agent = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut program = Command::new("sleep").arg("1000").env(MARK, &home).spawn().unwrap();
        let identity = |child: &process::Child| Identity::of(child.id()).unwrap();
        let record =
            Record { owner: Some(identity(&agent)), ..Record::new(identity(&program), None).unwrap() };
        record.write(&home).unwrap();
        end_left_behind(&folder).unwrap();
        assert!(program.try_wait().unwrap().is_none(), "its agent lives");
        assert!(record::read(&home).is_some());
        agent.kill().unwrap();
        agent.wait().unwrap();
        // Nobody else waits for it, so that it stays in the table until then.
        let ended = thread::spawn(move || program.wait().unwrap());
        end_left_behind(&folder).unwrap();
        assert!(!ended.join().unwrap().success());
        assert_eq!(record::read(&home), None);
        std::fs::remove_dir_all(root).unwrap();
    }
}
