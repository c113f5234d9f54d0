//! Worker processes: how they are started, and how they end.

use std::{
    fs::{File, OpenOptions},
    future::Future,
    io,
    os::unix::process::ExitStatusExt,
    path::Path,
    pin::Pin,
    process,
};

use rustix::process::Signal;
use tokio::{
    process::{Child, Command},
    sync::oneshot,
};

use crate::{trials::node::ProcessFault, worker::environment::is_to_blame};

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) how: String,
    pub(crate) fault: ProcessFault,
}

impl From<String> for Gone {
    fn from(how: String) -> Self {
        Self { how, fault: ProcessFault::Own }
    }
}

impl Gone {
    /// A process could not be started.
    fn never_started(what: &str, error: &io::Error) -> Self {
        let fault = if is_to_blame(error) { ProcessFault::Environment } else { ProcessFault::Own };
        Self { how: format!("{what}: {error}"), fault }
    }
}

/// A process that runs until this is ready.
pub(crate) type Running = Pin<Box<dyn Future<Output = Gone>>>;

/// What starts processes: the system, or a test.
pub(crate) trait Spawner: Send + Sync {
    /// Starts a process whose output goes to a log, if there is one; a message through `kill` ends it. An error says why it cannot be
    /// started, and whose fault that is.
    fn spawn(
        &self,
        command: process::Command,
        log: Option<&Path>,
        kill: oneshot::Receiver<()>,
    ) -> Result<Running, Gone>;
}

/// Real processes.
pub(crate) struct SystemSpawner;

impl Spawner for SystemSpawner {
    fn spawn(
        &self,
        command: process::Command,
        log: Option<&Path>,
        kill: oneshot::Receiver<()>,
    ) -> Result<Running, Gone> {
        let open = |path: &Path| -> io::Result<(File, File)> {
            let log = OpenOptions::new().create(true).append(true).open(path)?;
            Ok((log.try_clone()?, log))
        };
        let log = log
            .map(open)
            .transpose()
            .map_err(|error| Gone::never_started("its log cannot be written", &error))?;
        let mut command = Command::from(command);
        command.stdin(process::Stdio::null()).kill_on_drop(true);
        if let Some((out, err)) = log {
            command.stdout(out).stderr(err);
        }
        // Ctrl-C is for the head, which lets trials write their state first.
        command.process_group(0);
        let child =
            command.spawn().map_err(|error| Gone::never_started("its process cannot be started", &error))?;
        Ok(Box::pin(watch(child, kill)))
    }
}

/// Waits for the end of a process, or brings it about.
async fn watch(mut child: Child, kill: oneshot::Receiver<()>) -> Gone {
    let status = tokio::select! {
        status = child.wait() => status,
        Ok(()) = kill => {
            // It may have ended meanwhile.
            let _ = child.start_kill();
            child.wait().await
        }
    };
    match status {
        Ok(status) => Gone {
            how: format!("its process ended ({status})"),
            fault: if status.signal() == Some(Signal::KILL.as_raw()) {
                ProcessFault::Killed
            } else {
                ProcessFault::Own
            },
        },
        Err(error) => format!("its process was lost: {error}").into(),
    }
}
