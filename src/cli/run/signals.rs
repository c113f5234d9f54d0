//! Ctrl-C, and what else ends a run: once for an orderly stop, twice for an end at once.

use std::{
    fs,
    path::{Path, PathBuf},
    process, thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::Builder,
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};

use super::display::DisplayHandle;
use crate::{
    actors::StopHandle,
    agent::end_programs,
    cli::{Error, ExitStatus},
    store::Folder,
};

/// Signals so close to each other are one request: `timeout` sends one to a process and one to its group, and who ends a session may
/// send several kinds. A person who presses Ctrl-C twice is slower than a program.
const TOGETHER: Duration = Duration::from_secs(1);
const KEYS_TOGETHER: Duration = Duration::from_millis(50);

/// Listens until it is dropped.
pub(super) struct Signals(
    #[expect(dead_code, reason = "the thread notices when it is dropped")] oneshot::Sender<()>,
);

impl Signals {
    pub(super) fn listen(stop: StopHandle, folder: &Path, display: DisplayHandle) -> Result<Self, Error> {
        let runtime = Builder::new_current_thread().enable_io().build();
        let runtime = runtime.map_err(Error::system("listen to signals"))?;
        let (signals, over) = oneshot::channel();
        let folder = std::path::absolute(folder).map_err(Error::system("find the folder"))?;
        let heard = {
            let _inside = runtime.enter();
            let open = |kind| signal(kind).map_err(Error::system("listen to signals"));
            let hangup =
                if is_ignored(SignalKind::hangup()) { None } else { Some(open(SignalKind::hangup())?) };
            let (interrupt, terminate) = (open(SignalKind::interrupt())?, open(SignalKind::terminate())?);
            Heard { interrupt, terminate, hangup }
        };
        let listen = move || runtime.block_on(watch(heard, over, &stop, folder, &display));
        let thread = thread::Builder::new().name("signals".to_owned()).spawn(listen);
        thread.map_err(Error::system("start a thread"))?;
        Ok(Self(signals))
    }
}

/// What is listened to.
struct Heard {
    interrupt: Signal,
    terminate: Signal,
    /// The terminal is gone; none if that was not to matter (`nohup`).
    hangup: Option<Signal>,
}

impl Heard {
    /// Waits for any of them. Gives for how long others belong to the same request.
    async fn next(&mut self) -> Duration {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => KEYS_TOGETHER,
            _ = self.terminate.recv() => TOGETHER,
            _ = hangup => TOGETHER,
        }
    }
}

/// Whether this process was started with a signal ignored, by `/proc`.
fn is_ignored(kind: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0);
    ignored >> (kind.as_raw_value() - 1) & 1 == 1
}

/// What a signal asks for.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    /// An orderly stop.
    First,
    /// What was just asked for.
    Same,
    /// An end at once.
    Again,
}

/// What was asked for so far.
#[derive(Debug, Default)]
struct Requests {
    first: Option<Instant>,
}

impl Requests {
    /// A signal has come, of a kind of which all in such a time are one request.
    fn hear(&mut self, now: Instant, together: Duration) -> Request {
        match self.first {
            None => {
                self.first = Some(now);
                Request::First
            }
            Some(first) if now.saturating_duration_since(first) < together => Request::Same,
            Some(_) => Request::Again,
        }
    }
}

async fn watch(
    mut heard: Heard,
    mut over: oneshot::Receiver<()>,
    stop: &StopHandle,
    folder: PathBuf,
    display: &DisplayHandle,
) {
    let mut requests = Requests::default();
    loop {
        let together = tokio::select! {
            together = heard.next() => together,
            _ = &mut over => return,
        };
        match requests.hear(Instant::now(), together) {
            Request::First => {}
            Request::Same => continue,
            Request::Again => {
                display.print("stopped at once");
                display.flush();
                end_programs(&Folder::new(&folder));
                process::exit(ExitStatus::Interrupted.code().into());
            }
        }
        display.print("stopping: running trials write their state; press Ctrl-C again to stop at once");
        stop.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_come_together_are_one_request() {
        let (mut requests, now) = (Requests::default(), Instant::now());
        assert_eq!(requests.hear(now, TOGETHER), Request::First);
        assert_eq!(requests.hear(now + TOGETHER / 2, TOGETHER), Request::Same, "to the group of `timeout`");
        assert_eq!(requests.hear(now + TOGETHER / 2, KEYS_TOGETHER), Request::Again, "Ctrl-C, twice");
        assert_eq!(requests.hear(now + TOGETHER, TOGETHER), Request::Again);
    }
}
