use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::mpsc::UnboundedSender;

use super::error::Error;
use crate::trials::engine::Outcome;

/// Why a session of actors is over.
#[derive(Debug)]
pub(super) enum SessionExit {
    /// The engine has nothing more to do.
    Finished(Outcome),
    /// Nothing can be done about it.
    Failed(Error),
    /// An actor is gone, though nobody had asked it to.
    Died(&'static str),
}

/// Tells that a session is over, to whoever waits for that.
#[derive(Debug, Clone)]
pub(super) struct ExitSender {
    exits: UnboundedSender<SessionExit>,
    is_over: Arc<AtomicBool>,
}

impl ExitSender {
    pub(super) fn new(exits: UnboundedSender<SessionExit>) -> Self {
        Self { exits, is_over: Arc::default() }
    }

    pub(super) fn send(&self, exit: SessionExit) {
        // Who does not listen any more knows already.
        let _ = self.exits.send(exit);
    }

    /// From now on actors go in peace.
    pub(super) fn close(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// To be held by an actor of this name: its loss is noticed.
    pub(super) fn guard(&self, name: &'static str) -> ActorGuard {
        ActorGuard { exit: self.clone(), name, is_released: false }
    }
}

/// Tells of the death of the actor that holds it. A panic in a handler ends an actor silently.
#[derive(Debug)]
pub(super) struct ActorGuard {
    exit: ExitSender,
    name: &'static str,
    is_released: bool,
}

impl ActorGuard {
    /// The actor has done its work.
    pub(super) fn release(&mut self) {
        self.is_released = true;
    }
}

impl Drop for ActorGuard {
    fn drop(&mut self) {
        if !self.is_released && !self.exit.is_over.load(Ordering::Acquire) {
            self.exit.send(SessionExit::Died(self.name));
        }
    }
}
