//! How a program begins: under its final identity, which is on disk before the program does anything.
//!
//! What is started is not the program, but a launcher that becomes it (`exec`). The launcher is this program started again if it
//! [launches programs](launch_if_program), else a shell that waits for the word. Either way, the launcher and the head are connected by
//! the launcher's standard input, which is closed when the program begins.

use std::{
    env,
    ffi::OsString,
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{self, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use rustix::{
    process::{Signal, getpid, getppid, set_child_subreaper, set_parent_process_death_signal, setsid},
    stdio::dup2_stdin,
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    process::{Child, Command},
    time::timeout,
};

use super::{Place, custody::Custody, record::Record};
use crate::{
    trials::engine::FailureCause,
    wire::{this_program, with_causes},
    worker::environment::is_to_blame,
};

/// In the environment of a launcher.
const LAUNCHER: &str = "POLLUX_TUNE_LAUNCHER";
/// For a program that does not launch programs: waits for the head to have written down who this is.
const SHELL: &str = r#"read -r go || exit 125; exec "$@" </dev/null"#;

/// Whether this program, started again, becomes what it is to launch.
static LAUNCHES: AtomicBool = AtomicBool::new(false);

/// What a launcher has to know.
#[derive(Debug, Serialize, Deserialize)]
struct Orders {
    words: Vec<String>,
    /// The process of the head.
    head: u32,
    /// Of this launcher.
    record: Record,
    /// Where to write it.
    home: PathBuf,
}

/// Why a program could not begin.
#[derive(Debug, Serialize, Deserialize)]
struct Refusal {
    what: String,
    cause: FailureCause,
}

/// If this process was started to launch the program of a trial, becomes that program, and never returns.
///
/// To be called first thing in the `main` of a program that runs studies of programs with
/// [`Runner::run_command`](crate::actors::Runner::run_command). The program is started again for each trial, so that trials end with
/// it, even if it is killed. Without this call programs of trials are started by way of a shell: they end in the same way, but those of
/// a killed head are ended by the next one only.
pub fn launch_if_program() {
    LAUNCHES.store(true, Ordering::Release);
    if env::var_os(LAUNCHER).is_none() {
        return;
    }
    // Its end is all there is to say if nobody listens.
    if let Ok(head) = io::stdin().as_fd().try_clone_to_owned() {
        let mut head = net::UnixStream::from(head);
        let refusal = become_program(&mut head);
        let _ = serde_json::to_writer(&mut head, &refusal);
    }
    process::exit(FAILED);
}

/// How long a program may take to begin. A file system that does not answer takes longer, or a launcher that somebody has stopped.
const BEGINS: Duration = Duration::from_secs(60);

/// The exit code of a launcher that failed.
const FAILED: i32 = 125;

/// Returns only if that is not possible.
fn become_program(head: &mut net::UnixStream) -> Refusal {
    match prepare(head) {
        Err(error) => Refusal::of_system("preparing its process failed", &error),
        Ok(words) => {
            let (program, arguments) = words
                .split_first()
                .map_or((OsString::new(), &[][..]), |(program, rest)| (program.into(), rest));
            let error = process::Command::new(&program).args(arguments).env_remove(LAUNCHER).exec();
            let what = format!("it cannot be started: {}", with_causes(&error));
            let cause = if is_to_blame(&error) { FailureCause::Environment } else { FailureCause::Trial };
            Refusal { what, cause }
        }
    }
}

/// Everything but the program itself.
fn prepare(head: &mut net::UnixStream) -> io::Result<Vec<String>> {
    // Whoever kills the head does not ask its programs.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut orders = String::new();
    head.read_to_string(&mut orders)?;
    let Orders { words, head, record, home } = serde_json::from_str(&orders)?;
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get().cast_unsigned() != head) {
        return Err(io::Error::other("the head is gone"));
    }
    // Neither Ctrl-C nor the end of a terminal concerns it.
    setsid()?;
    // What its processes leave behind stays with it. That is more than it needs: it does not fail for it.
    let _ = set_child_subreaper(Some(getpid()));
    dup2_stdin(File::open("/dev/null")?)?;
    record.write(&home)?;
    Ok(words)
}

impl Refusal {
    /// What all programs share is not as it should be.
    fn of_system(what: &str, error: &io::Error) -> Self {
        Self { what: format!("{what}: {}", with_causes(error)), cause: FailureCause::Environment }
    }
}

/// A program that is about to begin.
pub(super) struct Launch {
    pub(super) custody: Custody,
    pub(super) child: Child,
    head: UnixStream,
    words: Vec<String>,
    home: PathBuf,
    is_shell: bool,
}

impl Launch {
    /// Starts a launcher. What the command has in its environment is the program's.
    pub(super) fn start(
        place: &Place,
        words: Vec<String>,
        home: &Path,
        grace: Duration,
        dress: impl FnOnce(&mut Command),
    ) -> io::Result<Self> {
        let (head, launcher) = net::UnixStream::pair()?;
        head.set_nonblocking(true)?;
        let head = UnixStream::from_std(head)?;
        let is_shell = !LAUNCHES.load(Ordering::Acquire);
        let mut command = if is_shell {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", SHELL, "sh"]).args(&words).process_group(0);
            command
        } else {
            let mut command = Command::from(this_program()?);
            command.args(&place.arguments).env(LAUNCHER, "1");
            command
        };
        dress(&mut command);
        command.stdin(Stdio::from(OwnedFd::from(launcher))).kill_on_drop(true);
        let (custody, child) = Custody::spawn(&place.children, &mut command, home, grace)?;
        Ok(Self { custody, child, head, words, home: home.to_owned(), is_shell })
    }

    /// Waits until the program has begun, or else says why it has not. If the launcher has died, it is for those to notice who wait for
    /// its end.
    pub(super) async fn begin(&mut self) -> Result<(), (String, FailureCause)> {
        let late = || (format!("it has not begun within {BEGINS:?}"), FailureCause::Infrastructure);
        timeout(BEGINS, self.hand_over()).await.map_err(|_| late())?
    }

    async fn hand_over(&mut self) -> Result<(), (String, FailureCause)> {
        let refuse = |error: io::Error| {
            let Refusal { what, cause } = Refusal::of_system("preparing its process failed", &error);
            (what, cause)
        };
        let record = self.custody.record().map_err(refuse)?;
        let orders = if self.is_shell {
            record.write(&self.home).map_err(refuse)?;
            "go\n".to_owned()
        } else {
            let (words, home) = (self.words.clone(), self.home.clone());
            let orders = Orders { words, head: process::id(), record, home };
            serde_json::to_string(&orders).map_err(|error| refuse(error.into()))?
        };
        // A launcher that was killed does not read.
        let _ = self.head.write_all(orders.as_bytes()).await;
        let _ = self.head.shutdown().await;
        let mut answer = String::new();
        let _ = self.head.read_to_string(&mut answer).await;
        match serde_json::from_str(&answer) {
            Ok(Refusal { what, cause }) => Err((what, cause)),
            Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use rustix::process::{Pid, kill_process};

    use super::*;
    use crate::{
        agent::program::{custody::Children, surroundings::Ports},
        store::Folder,
    };

    #[tokio::test(start_paused = true)]
    async fn a_launcher_that_stands_still_is_not_waited_for_without_end() {
        let root = env::temp_dir().join(format!("pollux-launch-{}", process::id()));
        fs::create_dir_all(&root).expect("a folder");
        let place = Place {
            folder: Folder::new(&root),
            arguments: Vec::new(),
            children: Arc::new(Children::new(false)),
            ports: Ports::default(),
        };
        let words = vec!["true".to_owned()];
        let launch = Launch::start(&place, words, &root, Duration::ZERO, |_| {});
        let mut launch = launch.expect("it can be started");
        let pid = launch.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        kill_process(pid.expect("it runs"), Signal::STOP).expect("it runs");
        let (reason, cause) = launch.begin().await.expect_err("it stands still");
        assert_eq!((reason.as_str(), cause), ("it has not begun within 60s", FailureCause::Infrastructure));
        drop(launch);
        fs::remove_dir_all(root).expect("it can be removed");
    }
}
