//! Trials that are programs: parameters as JSON in, metrics as lines of JSON out.
//!
//! *Architecture invariant:* a program and all that it starts are known from before its first instruction to the end of the last
//! process. The next program of its slot waits for that end, and the head tells of it, so that the next attempt of its trial can.

mod attempt;
mod cgroup;
mod custody;
mod launch;
mod lines;
mod metrics_file;
mod processes;
mod record;
mod report;
mod surroundings;

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    path::Path,
    sync::Arc,
};

use tokio::{
    sync::{
        Mutex, OwnedMutexGuard,
        mpsc::{self, UnboundedSender},
        oneshot,
    },
    task::JoinSet,
};

pub use self::launch::launch_if_program;
use self::{
    attempt::{Attempt, Grace},
    custody::{Children, end_left_behind},
    surroundings::{FOLDER, Ports},
};
#[cfg(feature = "cli")]
pub(crate) use self::{cgroup::can_make_cgroups, custody::end_programs};
use super::{Error, serve::Machine};
use crate::{
    ids::{Generation, SlotId, TrialId},
    store::Folder,
    trials::agent::{AgentEvent, AgentSlot, ProgramLaunch},
};

/// The programs of a machine.
pub(super) struct Programs {
    place: Arc<Place>,
    events: UnboundedSender<AgentEvent>,
    /// The next program of a slot waits for the last one.
    slots: BTreeMap<SlotId, Arc<Mutex<()>>>,
    running: BTreeMap<(TrialId, Generation), Running>,
    attempts: JoinSet<()>,
}

/// How to talk to an attempt.
struct Running {
    stop: Option<oneshot::Sender<Grace>>,
    taken: UnboundedSender<()>,
}

/// What the programs of a machine have in common.
struct Place {
    folder: Folder,
    arguments: Vec<String>,
    children: Arc<Children>,
    ports: Ports,
}

impl Programs {
    /// Ends what the programs of an agent that was killed have left behind first.
    pub(super) fn new(
        machine: &Machine,
        folder: Folder,
        events: &UnboundedSender<AgentEvent>,
    ) -> Result<Self, Error> {
        end_left_behind(&folder)?;
        let children = Arc::new(Children::new(machine.is_sole));
        let place = Arc::new(Place {
            folder,
            arguments: machine.arguments.clone(),
            children,
            ports: Ports::default(),
        });
        let (slots, running, attempts) = (BTreeMap::new(), BTreeMap::new(), JoinSet::new());
        Ok(Self { place, events: events.clone(), slots, running, attempts })
    }

    /// Starts a program when its slots are free. It ends with the thread that starts it.
    pub(super) fn launch(&mut self, launch: ProgramLaunch, places: Vec<AgentSlot>) {
        while self.attempts.try_join_next().is_some() {}
        self.running.retain(|_, running| !running.taken.is_closed());
        let ProgramLaunch { trial, generation, .. } = launch;
        // All take slots in the same order, so that nobody waits in a circle.
        let wanted: BTreeSet<SlotId> = launch.slots.iter().copied().collect();
        let (stop, mut stopped) = oneshot::channel();
        let (taken, reports_taken) = mpsc::unbounded_channel();
        self.running.insert((trial, generation), Running { stop: Some(stop), taken });
        let slots: Vec<_> =
            wanted.into_iter().map(|slot| self.slots.entry(slot).or_default().clone()).collect();
        let events = self.events.clone();
        let attempt = Attempt::new(self.place.clone(), launch, places, events.clone(), reports_taken);
        self.attempts.spawn_local(async move {
            let free = tokio::select! {
                biased;
                _ = &mut stopped => None,
                free = all(slots) => Some(free),
            };
            if free.is_some() {
                attempt.run(&mut stopped).await;
            }
            drop(free);
            let _ = events.send(AgentEvent::ProgramGone { trial, generation });
        });
    }

    /// Asks a program to end, and sees to it.
    pub(super) fn stop(&mut self, trial: TrialId, generation: Generation) {
        if let Some(stop) = self.running.get_mut(&(trial, generation)).and_then(|of| of.stop.take()) {
            // It may have ended by itself.
            let _ = stop.send(Grace::Full);
        }
    }

    /// The head has dealt with a report.
    pub(super) fn report_taken(&self, trial: TrialId, generation: Generation) {
        if let Some(running) = self.running.get(&(trial, generation)) {
            let _ = running.taken.send(());
        }
    }

    /// Ends all programs, in an orderly way or at once, and waits until nothing is left of them.
    pub(super) async fn end(mut self, is_orderly: bool) {
        let grace = if is_orderly { Grace::Full } else { Grace::None };
        for running in std::mem::take(&mut self.running).into_values() {
            if let Some(stop) = running.stop {
                let _ = stop.send(grace);
            }
        }
        while self.attempts.join_next().await.is_some() {}
    }
}

/// Waits until all slots are free.
async fn all(slots: Vec<Arc<Mutex<()>>>) -> Vec<OwnedMutexGuard<()>> {
    let mut free = Vec::with_capacity(slots.len());
    for slot in slots {
        free.push(slot.lock_owned().await);
    }
    free
}

/// Whether a program can be found as the system would, from a folder.
pub(crate) fn is_there(program: &str, folder: &Path) -> bool {
    if program.contains('/') {
        return folder.join(program).is_file();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
