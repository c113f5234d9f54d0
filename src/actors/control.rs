//! What the user's other commands want of a study that runs.

use std::{path::Path, sync::Arc};

use actix::Recipient;
use tokio::sync::oneshot;

use super::{clock::Clock, error::Error, message::EngineInput};
use crate::{
    space::Space,
    store::Folder,
    trials::engine::Input,
    wire::{ControlDoor, ControlRequest},
};

/// Why a machine is to leave.
const BY_HAND: &str = "its user takes it away";

/// Hears requests about the study in a folder, for as long as the result lives.
pub(super) fn open(
    folder: &Path,
    space: &Space,
    clock: Clock,
    supervisor: Recipient<EngineInput>,
) -> Result<ControlDoor, Error> {
    let file = Folder::new(folder).control();
    let space = Arc::new(space.clone());
    let handle = move |request| {
        let (supervisor, space) = (supervisor.clone(), space.clone());
        async move {
            match request {
                ControlRequest::Drain { nodes, within_s } => {
                    let until_s = clock.in_s(within_s.unwrap_or(f64::INFINITY));
                    for node in nodes {
                        let reason = BY_HAND.to_owned();
                        decide(&supervisor, Input::NodeDraining { node, until_s, reason }).await?;
                    }
                    Ok(())
                }
                ControlRequest::StopTrial { trial } => {
                    decide(&supervisor, Input::TrialStopRequested { trial }).await
                }
                ControlRequest::Pause => decide(&supervisor, Input::PauseRequested).await,
                ControlRequest::Resume => decide(&supervisor, Input::ResumeRequested).await,
                ControlRequest::Enqueue { params } => {
                    // The engine leaves out what it cannot try, without a word.
                    space.complete(&params).map_err(|error| error.to_string())?;
                    decide(&supervisor, Input::EnqueueRequested { params }).await
                }
            }
        }
    };
    Ok(ControlDoor::open(&file, handle)?)
}

/// Waits until the engine has decided what follows, and that is on disk.
async fn decide(supervisor: &Recipient<EngineInput>, input: Input) -> Result<(), String> {
    let (ack, done) = oneshot::channel();
    supervisor.do_send(EngineInput { input, ack: Some(ack) });
    done.await.map_err(|_| "the study ends".to_owned())
}
