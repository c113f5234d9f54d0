//! Ctrl-C: once for an orderly stop, twice for an end at once.

use std::{
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
    actors::{StopHandle, end_programs},
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
        let (interrupt, terminate) = {
            let _inside = runtime.enter();
            let open = |kind| signal(kind).map_err(Error::system("listen to signals"));
            (open(SignalKind::interrupt())?, open(SignalKind::terminate())?)
        };
        let listen = move || runtime.block_on(watch(interrupt, terminate, over, &stop, folder, &display));
        let thread = thread::Builder::new().name("signals".to_owned()).spawn(listen);
        thread.map_err(Error::system("start a thread"))?;
        Ok(Self(signals))
    }
}

async fn watch(
    mut interrupt: Signal,
    mut terminate: Signal,
    mut over: oneshot::Receiver<()>,
    stop: &StopHandle,
    folder: PathBuf,
    display: &DisplayHandle,
) {
    let mut asked = false;
    loop {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
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
