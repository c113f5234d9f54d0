//! A worker process: attached to its head, or to the agent of its machine, until that is gone.

use std::{panic, process};

use tch::Device;
use tokio::runtime::Builder;

use super::{backend::TorchBackend, memory, trainable::Registry};
use crate::{
    trials::{engine::FailureCause, group::WorkerEvent},
    wire::{self, EventSender, Hello, VERSION, take_name, with_causes},
    worker::{
        Error,
        abort::Aborts,
        host::{HostedTrial, end_by_second_signal, print_error, receive, take_slot},
        launch::Place,
        protocol::Worker,
        rendezvous::Rendezvous,
    },
};

/// If this process was started as a worker, works until the head is gone, saves what its trial has learned, and ends the process.
///
/// Every program whose trainables are to be trained calls it first thing in `main`.
pub fn serve_if_worker(registry: &Registry) {
    let served = match Place::of_this_process() {
        Ok(None) => return,
        Ok(Some(place)) => {
            take_name();
            serve(&place, registry).map_err(|error| format!("worker {}: {}", place.slot, with_causes(&error)))
        }
        Err(error) => Err(with_causes(&error)),
    };
    let code = match served {
        Ok(()) => 0,
        Err(message) => {
            print_error(&message);
            1
        }
    };
    process::exit(code);
}

/// Serves the head until it is gone.
fn serve(place: &Place, registry: &Registry) -> Result<(), Error> {
    tch::set_num_threads(place.threads.cast_signed());
    end_by_second_signal()?;
    // Until this process has ended.
    let _slot = place.lock.as_deref().map(take_slot).transpose()?;
    let rendezvous = Rendezvous::host(place.machine_address, &place.secret)?;
    let hello = Hello { version: VERSION, slot: place.slot, pid: process::id() };
    let (events, commands) = wire::attach_blocking(&place.address, &place.secret, hello)?;
    let (aborts, hosted) = (Aborts::default(), HostedTrial::default());
    let commands =
        receive(commands, events.clone(), aborts.clone(), hosted.clone(), || {}, |code| process::exit(code))?;
    report_panics(events.clone(), hosted.clone());
    // A worker sees the GPU of its slot only.
    let device = if place.is_gpu { Device::Cuda(0) } else { Device::Cpu };
    let backend = TorchBackend::new(registry, device, rendezvous, aborts, hosted);
    // That the head is gone is noticed by those who receive its commands.
    let send = move |event: WorkerEvent| events.send(&event);
    // Nothing but the next command is ever awaited: training blocks.
    let runtime = Builder::new_current_thread().build().map_err(Error::io("starting a runtime"))?;
    runtime.block_on(Worker::new(place.slot, backend, commands, send).run());
    Ok(())
}

/// Code of a trainable may panic, and panics may abort: it is reported to the head before that happens.
fn report_panics(events: EventSender, hosted: HostedTrial) {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if memory::is_taken_care_of(info.payload()) {
            return;
        }
        usual(info);
        if let Some(trial) = hosted.try_trial() {
            let (reason, cause) = (info.to_string(), FailureCause::Trial);
            events.send(&WorkerEvent::Failed { trial, reason, cause });
        }
        events.close();
        process::exit(101);
    }));
}
