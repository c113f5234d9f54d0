//! Ctrl-C, and what else ends a run: once for an orderly stop, twice for an end at once.

use std::{
    fs,
    path::{Path, PathBuf},
    process, thread,
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
    /// Waits for any of them.
    async fn next(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = hangup => {}
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

async fn watch(
    mut heard: Heard,
    mut over: oneshot::Receiver<()>,
    stop: &StopHandle,
    folder: PathBuf,
    display: &DisplayHandle,
) {
    let mut asked = false;
    loop {
        tokio::select! {
            () = heard.next() => {}
            _ = &mut over => return,
        }
        if asked {
            display.print("stopped at once");
            display.flush();
            end_programs(&Folder::new(&folder));
            process::exit(ExitStatus::Interrupted.code().into());
        }
        asked = true;
        display.print("stopping: running trials write their state; press Ctrl-C again to stop at once");
        stop.stop();
    }
}
