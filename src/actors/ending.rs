use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::mpsc::UnboundedSender;

use super::error::Error;
use crate::trials::engine::Outcome;

/// Why a session of actors is over.
#[derive(Debug)]
pub(super) enum Ending {
    /// The engine has nothing more to do.
    Finished(Outcome),
    /// Nothing can be done about it.
    Failed(Error),
    /// An actor is gone, though nobody had told it to.
    Died(&'static str),
}

/// Tells that a session is over, to whoever waits for that.
#[derive(Debug, Clone)]
pub(super) struct EndingSender {
    tell: UnboundedSender<Ending>,
    is_over: Arc<AtomicBool>,
}

impl EndingSender {
    pub(super) fn new(tell: UnboundedSender<Ending>) -> Self {
        Self { tell, is_over: Arc::default() }
    }

    pub(super) fn tell(&self, ending: Ending) {
        // Who does not listen any more knows already.
        let _ = self.tell.send(ending);
    }

    /// From now on actors go in peace.
    pub(super) fn close(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// To be held by an actor of this name: its loss is noticed.
    pub(super) fn guard(&self, name: &'static str) -> Guard {
        Guard { ending: self.clone(), name, is_released: false }
    }
}

/// Tells of the death of the actor that holds it. A panic in a handler ends an actor silently.
#[derive(Debug)]
pub(super) struct Guard {
    ending: EndingSender,
    name: &'static str,
    is_released: bool,
}

impl Guard {
    /// The actor has done its work.
    pub(super) fn release(&mut self) {
        self.is_released = true;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_released && !self.ending.is_over.load(Ordering::Acquire) {
            self.ending.tell(Ending::Died(self.name));
        }
    }
}
