//! What the user's other commands want of a study that runs.

use std::path::Path;

use actix::Recipient;
use tokio::sync::oneshot;

use super::{clock::Clock, error::Error, message::EngineInput};
use crate::{
    ids::NodeId,
    store::Folder,
    trials::engine::Input,
    wire::{ControlDoor, ControlRequest},
};

/// Why a machine is to leave.
const BY_HAND: &str = "its user takes it away";

/// Hears requests about the study in a folder, for as long as the result lives.
pub(super) fn open(
    folder: &Path,
    clock: Clock,
    supervisor: Recipient<EngineInput>,
) -> Result<ControlDoor, Error> {
    let file = Folder::new(folder).control();
    let handle = move |request| {
        let supervisor = supervisor.clone();
        async move {
            let ControlRequest::Drain { nodes, within_s } = request;
            for node in nodes {
                drain(&supervisor, node, clock.in_s(within_s.unwrap_or(f64::INFINITY))).await?;
            }
            Ok(())
        }
    };
    Ok(ControlDoor::open(&file, handle)?)
}

/// Waits until the engine has decided what follows, and that is on disk.
async fn drain(supervisor: &Recipient<EngineInput>, node: NodeId, until_s: f64) -> Result<(), String> {
    let (ack, done) = oneshot::channel();
    let input = Input::NodeDraining { node, until_s, reason: BY_HAND.to_owned() };
    supervisor.do_send(EngineInput { input, ack: Some(ack) });
    done.await.map_err(|_| "the study ends".to_owned())
}
