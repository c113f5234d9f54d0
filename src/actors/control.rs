//! What the user's other commands want of a study that runs.

use std::{path::Path, sync::Arc, time::Duration};

use actix::Recipient;
use tokio::{sync::oneshot, time::timeout};

use super::{clock::Clock, error::Error, message::EngineInput};
use crate::{
    space::Space,
    store::Folder,
    trials::engine::Input,
    wire::{ControlDoor, ControlRequest, Heard},
};

/// Why a machine is to leave.
const BY_HAND: &str = "its user takes it away";
/// After so long somebody is told that the disk is waited for. Both sides would wait longer.
const ANSWER: Duration = Duration::from_secs(20);

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
        async move { decide(&supervisor, inputs(request, &space, clock)?).await }
    };
    Ok(ControlDoor::open(&file, handle)?)
}

/// What a request means to the engine.
fn inputs(request: ControlRequest, space: &Space, clock: Clock) -> Result<Vec<Input>, String> {
    Ok(match request {
        ControlRequest::Drain { nodes, within_s } => {
            let until_s = clock.in_s(within_s.unwrap_or(f64::INFINITY));
            let leaves = |node| Input::NodeDraining { node, until_s, reason: BY_HAND.to_owned() };
            nodes.into_iter().map(leaves).collect()
        }
        ControlRequest::StopTrial { trial } => vec![Input::TrialStopRequested { trial }],
        ControlRequest::Pause => vec![Input::PauseRequested],
        ControlRequest::Resume => vec![Input::ResumeRequested],
        ControlRequest::Enqueue { params } => {
            // The engine leaves out what it cannot try, without a word.
            space.complete(&params).map_err(|error| error.to_string())?;
            vec![Input::EnqueueRequested { params }]
        }
    })
}

/// Waits until the engine has decided what follows, and that is on disk; if the disk takes long, not to the end. An input is not taken
/// back, so whoever has asked must not take the silence for a failure, and ask again.
async fn decide(supervisor: &Recipient<EngineInput>, inputs: Vec<Input>) -> Result<Heard, String> {
    let mut decided = Vec::with_capacity(inputs.len());
    for input in inputs {
        let (ack, done) = oneshot::channel();
        supervisor.do_send(EngineInput { input, ack: Some(ack) });
        decided.push(done);
    }
    let all = async {
        for done in decided {
            done.await.map_err(|_| "the study ends".to_owned())?;
        }
        Ok(Heard::Done)
    };
    timeout(ANSWER, all).await.unwrap_or(Ok(Heard::Noted))
}

#[cfg(test)]
mod tests {
    use actix::{Actor, Context, Handler};

    use super::*;

    /// Its disk is full: it keeps what it hears, and decides nothing.
    #[derive(Default)]
    struct Blocked(Vec<EngineInput>);

    impl Actor for Blocked {
        type Context = Context<Self>;
    }

    impl Handler<EngineInput> for Blocked {
        type Result = ();

        fn handle(&mut self, input: EngineInput, _: &mut Context<Self>) {
            self.0.push(input);
        }
    }

    /// It was told to have failed, and was done later: who asked again had a trial twice.
    #[actix::test]
    async fn a_wish_that_waits_for_the_disk_is_not_told_to_have_failed() {
        tokio::time::pause();
        let supervisor = Blocked::default().start().recipient();
        let wishes = vec![Input::PauseRequested, Input::ResumeRequested];
        assert_eq!(decide(&supervisor, wishes).await, Ok(Heard::Noted));
    }
}
