//! Agents on other machines, started by the user's own ssh.

use std::{
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
    sync::watch,
    task::JoinHandle,
    time::{self, Instant},
};

use super::session::Notify;
use crate::{
    slurm::AgentPlace,
    space::SshHost,
    store::{Folder, tail},
};

/// The first pause before an agent is started again; each one is twice as long as the one before.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// An agent that has lived for so long has not failed to start.
const STEADY: Duration = Duration::from_secs(60);
/// So long for agents to leave at the end.
const FAREWELL: Duration = Duration::from_secs(45);
/// `BatchMode`: nobody is there to type a password. A connection that is dead is noticed within a minute.
const OPTIONS: [&str; 7] =
    ["-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"];

/// Keeps an agent running on each host.
pub(super) struct Hosts {
    is_over: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

/// One host, and what it takes to have an agent there.
struct Post {
    ssh: PathBuf,
    host: SshHost,
    program: PathBuf,
    join_file: PathBuf,
    log: PathBuf,
    notify: Option<Notify>,
}

impl Hosts {
    /// Starts agents, and starts those again that end though nobody told them to.
    pub(super) fn start(ssh: &Path, hosts: &[SshHost], place: &AgentPlace, notify: Option<&Notify>) -> Self {
        let (is_over, over) = watch::channel(false);
        let logs = Folder::new(&place.folder).logs();
        let task = |host: &SshHost| {
            let name: String =
                host.host.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
            let post = Post {
                ssh: ssh.to_owned(),
                host: host.clone(),
                program: host.program.as_ref().map_or_else(|| place.program.clone(), PathBuf::from),
                join_file: place.join_file.clone(),
                log: logs.join(format!("host-{name}.log")),
                notify: notify.cloned(),
            };
            actix::spawn(post.keep(over.clone()))
        };
        let tasks = hosts.iter().map(task).collect();
        Self { is_over, tasks }
    }

    /// Lets agents leave, and ends those that do not.
    pub(super) async fn end(self) {
        self.is_over.send_replace(true);
        for task in self.tasks {
            // It ends in any case.
            let _ = task.await;
        }
    }
}

impl Post {
    async fn keep(self, mut over: watch::Receiver<bool>) {
        let mut failures = 0;
        while !*over.borrow() {
            let since = Instant::now();
            let how = match self.connect().await {
                Ok(mut child) => {
                    // The agent lives as long as this end of its input.
                    let lifeline = child.stdin.take();
                    let status = tokio::select! {
                        status = child.wait() => status,
                        _ = over.changed() => {
                            drop(lifeline);
                            return farewell(child).await;
                        }
                    };
                    match status {
                        Ok(status) if status.success() => {
                            tracing::info!(host = self.host.host, "an agent has left, as it was told to");
                            return;
                        }
                        status => ended(status),
                    }
                }
                Err(error) => format!("cannot be started: {error}"),
            };
            failures = if since.elapsed() >= STEADY { 1 } else { failures + 1 };
            let pause = PAUSE.saturating_mul(1 << (failures - 1).min(8)).min(LONGEST_PAUSE);
            self.tell(&how, failures, pause);
            tokio::select! {
                () = time::sleep(pause) => {}
                _ = over.changed() => return,
            }
        }
    }

    /// Starts the agent. What lets it join goes through its input: arguments can be read by others.
    async fn connect(&self) -> io::Result<Child> {
        let join = fs::read(&self.join_file)?;
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let SshHost { host, slots, .. } = &self.host;
        let slots = slots.as_ref().map_or_else(String::new, |slots| format!(" --slots {slots}"));
        let program = quoted(&self.program.display().to_string());
        let agent = format!("exec {program} agent --join-file - --tethered --name {}{slots}", quoted(host));
        let mut command = Command::new(&self.ssh);
        command.args(OPTIONS).arg(host).arg(agent).stdin(Stdio::piped()).kill_on_drop(true);
        command.stdout(log.try_clone()?).stderr(log);
        let mut child = command.spawn()?;
        if let Some(input) = &mut child.stdin {
            // One that is gone already is noticed by its end.
            let _ = input.write_all(&join).await;
            let _ = input.flush().await;
        }
        Ok(child)
    }

    fn tell(&self, how: &str, failures: u32, pause: Duration) {
        let (host, pause) = (&self.host.host, pause.as_secs());
        tracing::warn!(host, how, failures, "an agent is gone");
        if let Some(notify) = self.notify.as_ref().filter(|_| failures == 1) {
            let printed = tail(&self.log);
            let said = printed.lines().fold(String::new(), |text, line| text + "\n    " + line);
            let said = if said.is_empty() { said } else { format!("; it printed{said}") };
            notify(&format!(
                "the agent on {host} {how}; it is started again after {pause} s, and later if that fails{said}"
            ));
        }
    }
}

fn ended(status: io::Result<ExitStatus>) -> String {
    match status {
        // As ssh has it.
        Ok(status) if status.code() == Some(255) => "cannot be reached by ssh".to_owned(),
        Ok(status) => format!("has ended ({status})"),
        Err(error) => format!("is lost: {error}"),
    }
}

async fn farewell(mut child: Child) {
    if time::timeout(FAREWELL, child.wait()).await.is_err() {
        // Gone already, if this fails.
        let _ = child.kill().await;
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
