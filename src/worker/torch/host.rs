//! A worker process: attached to its head, or to the agent of its machine, until that is gone.

use std::{
    fs::{self, File},
    panic,
    path::Path,
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use tch::Device;
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    sync::mpsc::{self, UnboundedReceiver},
};

use super::{abort::Aborts, backend::TorchBackend, memory, rendezvous::Rendezvous, trainable::Registry};
use crate::{
    ids::TrialId,
    trials::{
        engine::FailureCause,
        group::{Form, WorkerCommand, WorkerEvent},
    },
    wire::{self, CommandReceiver, EventSender, Hello, VERSION, with_causes},
    worker::{Error, launch::Place, protocol::Worker},
};

/// How long a group may take to leave together when the head is gone. Members that are attached to somebody else may not know of it.
const TOGETHER: Duration = Duration::from_secs(10);
/// How much longer it may take to save.
const SAVING: Duration = Duration::from_secs(20);

/// If this process was started as a worker, works until the head is gone, saves what its trial has learned, and ends the process.
///
/// Every program whose trainables are to be trained calls it first thing in `main`.
pub fn serve_if_worker(registry: &Registry) {
    let served = match Place::of_this_process() {
        Ok(None) => return,
        Ok(Some(place)) => {
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

#[expect(clippy::print_stderr, reason = "the head is out of reach, and a silent end helps nobody")]
fn print_error(message: &str) {
    eprintln!("{message}");
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
    let commands = receive(commands, events.clone(), aborts.clone(), hosted.clone())?;
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

/// Waits until the worker before this one on its slot has ended. It may still save what its trial has learned.
fn take_slot(lock: &Path) -> Result<File, Error> {
    let take = || {
        lock.parent().map(fs::create_dir_all).transpose()?;
        let file = File::options().create(true).append(true).open(lock)?;
        file.lock()?;
        Ok(file)
    };
    take().map_err(Error::io(format!("locking {}", lock.display())))
}

/// Whoever ends a machine signals all its processes. What then becomes of a trial is up to the head, or else the end of its connection;
/// only who asks twice wants an end at once.
fn end_by_second_signal() -> Result<(), Error> {
    let failed = || Error::io("awaiting signals");
    let runtime = Builder::new_current_thread().enable_io().build().map_err(failed())?;
    let mut terminations = {
        let _context = runtime.enter();
        signal(SignalKind::terminate()).map_err(failed())?
    };
    let run = move || {
        runtime.block_on(async {
            terminations.recv().await;
            terminations.recv().await;
        });
        process::exit(1);
    };
    thread::Builder::new().name("signals".to_owned()).spawn(run).map_err(failed())?;
    Ok(())
}

/// What the worker hosts, for those who cannot wait for it.
#[derive(Debug, Clone, Default)]
pub(super) struct HostedTrial(Arc<Mutex<Hosted>>);

#[derive(Debug, Default)]
struct Hosted {
    trial: Option<TrialId>,
    /// It has learned something that would be lost.
    has_state: bool,
}

impl HostedTrial {
    fn hosted(&self) -> MutexGuard<'_, Hosted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, trial: Option<TrialId>) {
        *self.hosted() = Hosted { trial, has_state: false };
    }

    /// The trial has a state.
    pub(super) fn set_state(&self) {
        self.hosted().has_state = true;
    }
}

/// Code of a trainable may panic, and panics may abort: it is reported to the head before that happens.
fn report_panics(events: EventSender, hosted: HostedTrial) {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if memory::is_taken_care_of(info.payload()) {
            return;
        }
        usual(info);
        if let Some(trial) = hosted.0.try_lock().ok().and_then(|hosted| hosted.trial) {
            let (reason, cause) = (info.to_string(), FailureCause::Trial);
            events.send(&WorkerEvent::Failed { trial, reason, cause });
        }
        events.close();
        process::exit(101);
    }));
}

/// Takes in commands while the worker trains, and aborts groups that are broken.
fn receive(
    mut commands: CommandReceiver,
    events: EventSender,
    aborts: Aborts,
    hosted: HostedTrial,
) -> Result<UnboundedReceiver<WorkerCommand>, Error> {
    let (send, received) = mpsc::unbounded_channel();
    let run = move || {
        while let Ok(Some(command)) = commands.recv() {
            let broken = match &command {
                WorkerCommand::Form(form) => Some(form).filter(|form: &&Form| form.broken).cloned(),
                _ => None,
            };
            if send.send(command).is_err() {
                break;
            }
            // After the worker can know why.
            if let Some(form) = broken {
                aborts.abort_before(&form);
            }
        }
        // Whoever closes the connection on this side ends the process, too.
        while events.is_closed() {
            thread::park();
        }
        // Without a head there is nobody to train for.
        if hosted.hosted().has_state {
            // The worker saves it, and ends the process.
            drop(send);
            thread::sleep(TOGETHER);
            aborts.abort();
            thread::sleep(SAVING);
            print_error("what the trial has learned since its last checkpoint could not be saved in time");
            process::exit(1);
        }
        process::exit(0);
    };
    thread::Builder::new().name("commands".to_owned()).spawn(run).map_err(Error::io("starting a thread"))?;
    Ok(received)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_slot_is_taken_when_the_worker_before_has_ended() {
        let folder = std::env::temp_dir().join(format!("pollux-slot-{}", process::id()));
        let lock = folder.join("locks").join("0.1.lock");
        let before = take_slot(&lock).expect("nobody has it");
        let (taken, takes) = mpsc::channel();
        let next = lock.clone();
        let waiting = thread::spawn(move || taken.send(take_slot(&next).map(drop)));
        assert!(takes.try_recv().is_err(), "two have the same slot");
        drop(before);
        takes.recv().expect("it goes on").expect("it has the slot");
        waiting.join().expect("no panic").expect("somebody hears it");
        // Other slots are free.
        take_slot(&folder.join("locks").join("0.2.lock")).expect("nobody has it");
        fs::remove_dir_all(&folder).expect("the folder of this test");
    }
}
