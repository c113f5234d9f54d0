//! What all worker processes have in common: they serve one head, and end without it.

use std::{
    fs::{self, File},
    path::Path,
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    sync::mpsc::{self, UnboundedReceiver},
};

use super::{Error, abort::Aborts};
use crate::{
    ids::TrialId,
    trials::group::{Form, WorkerCommand},
    wire::{CommandReceiver, EventSender},
};

/// How long a group may take to leave together when the head is gone. Members that are attached to somebody else may not know of it.
const TOGETHER: Duration = Duration::from_secs(10);
/// How much longer it may take to save.
const SAVING: Duration = Duration::from_secs(20);

#[expect(clippy::print_stderr, reason = "the head is out of reach, and a silent end helps nobody")]
pub(super) fn print_error(message: &str) {
    eprintln!("{message}");
}

/// Waits until the worker before this one on its slot has ended. It may still save what its trial has learned.
pub(super) fn take_slot(lock: &Path) -> Result<File, Error> {
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
pub(super) fn end_by_second_signal() -> Result<(), Error> {
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
    #[cfg_attr(not(feature = "torch"), expect(dead_code, reason = "only panics of Rust trainables need it"))]
    trial: Option<TrialId>,
    /// It has learned something that would be lost.
    has_state: bool,
}

impl HostedTrial {
    fn hosted(&self) -> MutexGuard<'_, Hosted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(feature = "torch")]
    /// The trial, if nobody else looks at the same moment.
    pub(super) fn try_trial(&self) -> Option<TrialId> {
        self.0.try_lock().ok().and_then(|hosted| hosted.trial)
    }

    pub(super) fn set(&self, trial: Option<TrialId>) {
        *self.hosted() = Hosted { trial, has_state: false };
    }

    /// The trial has a state.
    pub(super) fn set_state(&self) {
        self.hosted().has_state = true;
    }
}

/// Takes in commands while the worker trains, and aborts groups that are broken. `notice` is called after each command, `end` ends the
/// process.
pub(super) fn receive(
    mut commands: CommandReceiver,
    events: EventSender,
    aborts: Aborts,
    hosted: HostedTrial,
    notice: impl Fn() + Send + 'static,
    end: impl Fn(i32) + Send + 'static,
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
            notice();
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
            notice();
            thread::sleep(TOGETHER);
            aborts.abort();
            thread::sleep(SAVING);
            print_error("what the trial has learned since its last checkpoint could not be saved in time");
            return end(1);
        }
        end(0);
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
