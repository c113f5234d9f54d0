//! Actors among fakes, in virtual time.

mod agents;
mod commands;
mod functions;
mod groups;
mod hosts;
mod nodes;
mod pilots;
mod services;
mod supervisor;
mod training;

use std::{future::Future, time::Duration};

use actix::{Actor, Context, Handler, Message, Recipient, System};
use tokio::{
    runtime::Builder,
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    time,
};

use super::exit::{ExitSender, SessionExit};
use crate::{
    ids::{NodeId, SlotId},
    space::Study,
};

/// Runs a test of actors. Time stands still while anything happens, and then jumps to the next timer.
fn in_virtual_time<F: Future>(test: F) -> F::Output {
    let runtime =
        || Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    System::with_tokio_rt(runtime).block_on(test)
}

/// Waits until all that follows from what was sent has happened. Only virtual time passes, since this is the earliest timer.
async fn settle() {
    time::sleep(Duration::from_millis(1)).await;
}

/// An actor that passes on what it is sent.
struct Probe<M>(UnboundedSender<M>);

impl<M: Unpin + 'static> Actor for Probe<M> {
    type Context = Context<Self>;
}

impl<M: Message<Result = ()> + Unpin + 'static> Handler<M> for Probe<M> {
    type Result = ();

    fn handle(&mut self, message: M, _: &mut Context<Self>) {
        // A test that has seen enough listens no more.
        let _ = self.0.send(message);
    }
}

fn probe<M: Message<Result = ()> + Unpin + Send + 'static>() -> (Recipient<M>, UnboundedReceiver<M>) {
    let (send, sent) = mpsc::unbounded_channel();
    (Probe(send).start().recipient(), sent)
}

fn exits() -> (ExitSender, UnboundedReceiver<SessionExit>) {
    let (tell, exits) = mpsc::unbounded_channel();
    (ExitSender::new(tell), exits)
}

/// All that has come so far.
fn drain<M>(receiver: &mut UnboundedReceiver<M>) -> Vec<M> {
    std::iter::from_fn(|| receiver.try_recv().ok()).collect()
}

fn slot(node: u32, index: u32) -> SlotId {
    SlotId { node: NodeId(node), index }
}

fn study(more: &str) -> Study {
    let yaml = format!("space: {{x: {{float: [0, 1]}}}}\nobjective: {{minimize: loss}}\n{more}");
    Study::from_yaml("study.yaml", &yaml).expect("a study")
}
