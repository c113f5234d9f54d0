//! Ctrl-C: once for an orderly stop, twice for an end at once.

use std::{
    path::{Path, PathBuf},
    process, thread,
};

use anyhow::Context as _;
use tokio::{
    runtime::Builder,
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};

use super::display::Speaker;
use crate::{
    actors::{StopHandle, end_programs},
    store::Folder,
};

/// As shells have it: 128 and the number of the signal.
const INTERRUPTED: i32 = 130;

/// Listens until it is dropped.
pub(super) struct Signals(#[expect(dead_code, reason = "its end is what is heard")] oneshot::Sender<()>);

impl Signals {
    pub(super) fn listen(stop: StopHandle, folder: &Path, speaker: Speaker) -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().build();
        let runtime = runtime.context("cannot listen to signals")?;
        let (signals, over) = oneshot::channel();
        let folder = std::path::absolute(folder).context("cannot find the folder")?;
        let (interrupt, terminate) = {
            let _inside = runtime.enter();
            let open = |kind| signal(kind).context("cannot listen to signals");
            (open(SignalKind::interrupt())?, open(SignalKind::terminate())?)
        };
        let listen = move || runtime.block_on(heed(interrupt, terminate, over, &stop, folder, &speaker));
        thread::Builder::new().name("signals".to_owned()).spawn(listen).context("cannot start a thread")?;
        Ok(Self(signals))
    }
}

async fn heed(
    mut interrupt: Signal,
    mut terminate: Signal,
    mut over: oneshot::Receiver<()>,
    stop: &StopHandle,
    folder: PathBuf,
    speaker: &Speaker,
) {
    let mut asked = false;
    loop {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = &mut over => return,
        }
        if asked {
            speaker.say("stopped at once");
            speaker.flush();
            end_programs(&Folder::new(&folder));
            process::exit(INTERRUPTED);
        }
        asked = true;
        speaker.say("stopping: running trials write their state; once more to stop at once");
        stop.stop();
    }
}
