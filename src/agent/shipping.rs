//! Checkpoints of a machine that shares no files with its head.
//!
//! What workers write is sent to the head before the head hears of it, and what the head has is fetched before a worker prepares its trial.
//! So a disk that is lost costs no more than was trained since the last checkpoint.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs, io,
    path::Path,
};

use tokio::{sync::mpsc::UnboundedSender, task::spawn_local};

use crate::{
    ids::{SlotId, StudyId, TrialId},
    store::Folder,
    trials::{
        agent::HeldCheckpoint,
        engine::FailureCause,
        group::{WorkerCommand, WorkerEvent},
    },
    wire::{CheckpointTransfer, with_causes},
    worker::checkpoint::checkpoint_steps,
};

/// As many checkpoints of a trial are fetched: the second one is for the case that the first cannot be used.
const FETCHED: usize = 2;

/// The end of a transfer.
#[derive(Debug)]
pub(super) struct Shipped {
    slot: SlotId,
    /// That of the worker that it was for.
    life: u64,
    what: Shipment,
}

#[derive(Debug)]
enum Shipment {
    Fetched(TrialId, Result<(), String>),
    Sent(WorkerEvent, Result<(), String>),
}

/// What can go on after a transfer.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Ready {
    pub(super) commands: Vec<WorkerCommand>,
    pub(super) events: Vec<WorkerEvent>,
}

/// The checkpoints of one life of an agent.
pub(super) struct Shipping {
    transfer: CheckpointTransfer,
    study: StudyId,
    folder: Folder,
    shipped: UnboundedSender<Shipped>,
    slots: BTreeMap<SlotId, Hold>,
    lives: u64,
}

/// What waits for transfers of a worker.
#[derive(Debug, Default)]
struct Hold {
    life: u64,
    is_fetching: bool,
    commands: VecDeque<WorkerCommand>,
    sending: u32,
    events: VecDeque<WorkerEvent>,
}

impl Shipping {
    pub(super) fn new(
        transfer: CheckpointTransfer,
        study: StudyId,
        folder: Folder,
        shipped: UnboundedSender<Shipped>,
    ) -> Self {
        Self { transfer, study, folder, shipped, slots: BTreeMap::new(), lives: 0 }
    }

    /// There is a new worker in a slot, or none any more: what was for the last one is of no use.
    pub(super) fn forget(&mut self, slot: SlotId) {
        self.lives += 1;
        self.slots.insert(slot, Hold { life: self.lives, ..Hold::default() });
    }

    /// The command as the worker gets it, if that need not wait.
    pub(super) fn command(&mut self, slot: SlotId, command: WorkerCommand) -> Option<WorkerCommand> {
        let hold = self.slots.entry(slot).or_default();
        match command {
            WorkerCommand::Prepare(mut task) => {
                let (trial, life) = (task.trial, hold.life);
                task.checkpoint = self.folder.checkpoint(trial);
                hold.is_fetching = true;
                hold.commands.push_back(WorkerCommand::Prepare(task));
                let (transfer, study, shipped) = (self.transfer.clone(), self.study, self.shipped.clone());
                let folder = self.folder.checkpoint(trial);
                spawn_local(async move {
                    let fetched = fetch(&transfer, study, trial, &folder).await;
                    // Without an agent nobody is interested.
                    let _ = shipped.send(Shipped { slot, life, what: Shipment::Fetched(trial, fetched) });
                });
                None
            }
            command if hold.is_fetching => {
                hold.commands.push_back(command);
                None
            }
            command => Some(command),
        }
    }

    /// The event, if the head may hear of it now.
    pub(super) fn event(&mut self, slot: SlotId, event: WorkerEvent) -> Option<WorkerEvent> {
        let hold = self.slots.entry(slot).or_default();
        if let WorkerEvent::Checkpointed { trial, steps } = &event {
            let (trial, steps, life) = (*trial, *steps, hold.life);
            hold.sending += 1;
            let (transfer, study, shipped) = (self.transfer.clone(), self.study, self.shipped.clone());
            let folder = self.folder.checkpoint(trial);
            spawn_local(async move {
                let sent = send(&transfer, study, trial, steps, &folder).await;
                let _ = shipped.send(Shipped { slot, life, what: Shipment::Sent(event, sent) });
            });
            return None;
        }
        // These mean that the state is safe, or needed no longer.
        let is_last = matches!(
            event,
            WorkerEvent::Released { .. } | WorkerEvent::Failed { .. } | WorkerEvent::Finished { .. }
        );
        if is_last && hold.sending > 0 {
            hold.events.push_back(event);
            return None;
        }
        Some(event)
    }

    /// A transfer has ended.
    pub(super) fn shipped(&mut self, Shipped { slot, life, what }: Shipped) -> (SlotId, Ready) {
        let mut ready = Ready::default();
        let Some(hold) = self.slots.get_mut(&slot).filter(|hold| hold.life == life) else {
            return (slot, ready);
        };
        match what {
            Shipment::Fetched(_, Ok(())) => {
                hold.is_fetching = false;
                ready.commands.extend(hold.commands.drain(..));
            }
            Shipment::Fetched(trial, Err(reason)) => {
                hold.is_fetching = false;
                hold.commands.clear();
                let reason = format!("its checkpoints cannot be fetched from the head: {reason}");
                ready.events.push(WorkerEvent::Failed { trial, reason, cause: FailureCause::Infrastructure });
            }
            Shipment::Sent(event, sent) => {
                hold.sending -= 1;
                ready.events.push(match (event, sent) {
                    (event, Ok(())) => event,
                    (event, Err(reason)) => {
                        let reason = format!("a checkpoint cannot be sent to the head: {reason}");
                        WorkerEvent::CheckpointFailed { trial: event.trial(), reason }
                    }
                });
                if hold.sending == 0 {
                    ready.events.extend(hold.events.drain(..));
                }
            }
        }
        (slot, ready)
    }
}

/// Fetches the newest checkpoints of a trial.
async fn fetch(
    transfer: &CheckpointTransfer,
    study: StudyId,
    trial: TrialId,
    folder: &Path,
) -> Result<(), String> {
    let mut names = transfer.list(study, trial).await.map_err(|error| with_causes(&error))?;
    names.sort_unstable();
    fs::create_dir_all(folder).map_err(|error| format!("making {}: {error}", folder.display()))?;
    for file in names.into_iter().rev().take(FETCHED) {
        if !folder.join(&file).exists() {
            let checkpoint = HeldCheckpoint { study, trial, file };
            transfer.download(&checkpoint, folder).await.map_err(|error| with_causes(&error))?;
        }
    }
    Ok(())
}

/// Sends the checkpoint of a trial that has come so far.
async fn send(
    transfer: &CheckpointTransfer,
    study: StudyId,
    trial: TrialId,
    steps: u64,
    folder: &Path,
) -> Result<(), String> {
    let names = checkpoints(folder).map_err(|error| format!("reading {}: {error}", folder.display()))?;
    let newest = names.into_iter().filter(|name| checkpoint_steps(name) == Some(steps)).max();
    // A newer one has taken its place already, and is sent for itself.
    let Some(file) = newest else { return Ok(()) };
    let path = folder.join(&file);
    let checkpoint = HeldCheckpoint { study, trial, file };
    match transfer.upload(&checkpoint, &path).await {
        Err(_) if !path.exists() => Ok(()),
        sent => sent.map_err(|error| with_causes(&error)),
    }
}

/// The names of all checkpoints in the folder of a trial.
fn checkpoints(folder: &Path) -> io::Result<BTreeSet<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries?,
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter(|name| checkpoint_steps(name).is_some()).collect())
}

/// All checkpoints that an agent has in a folder of its own.
#[cfg(feature = "cli")]
pub(super) fn held(study: StudyId, folder: &Folder) -> Vec<HeldCheckpoint> {
    let entries = fs::read_dir(folder.checkpoints()).map(|entries| entries.flatten().collect());
    let mut held = Vec::new();
    for entry in entries.unwrap_or_else(|_| Vec::new()) {
        let name = entry.file_name().into_string().unwrap_or_default();
        let number = name.strip_prefix("trial-").and_then(|number| number.parse().ok());
        if let Some(trial) = number.map(TrialId) {
            let files = checkpoints(&entry.path()).unwrap_or_default();
            held.extend(files.into_iter().map(|file| HeldCheckpoint { study, trial, file }));
        }
    }
    held
}

/// Those of them that a head lacks: of each trial the newest, if it is further than what the head has.
pub(crate) fn wanted(study: StudyId, folder: &Folder, held: &[HeldCheckpoint]) -> Vec<HeldCheckpoint> {
    let mut newest: BTreeMap<TrialId, &HeldCheckpoint> = BTreeMap::new();
    for checkpoint in held.iter().filter(|held| held.study == study && checkpoint_steps(&held.file).is_some())
    {
        let best = newest.entry(checkpoint.trial).or_insert(checkpoint);
        if checkpoint.file > best.file {
            *best = checkpoint;
        }
    }
    let is_news = |checkpoint: &&HeldCheckpoint| {
        let own = checkpoints(&folder.checkpoint(checkpoint.trial)).unwrap_or_default();
        own.last().is_none_or(|own| *own < checkpoint.file)
    };
    newest.into_values().filter(is_news).cloned().collect()
}
