//! Trials that are programs: parameters as JSON in, metrics as lines of JSON out.
//!
//! *Architecture invariant:* a program and all that it starts are known from before its first instruction to the end of the last
//! process. The next program of its slot, and the next attempt of its trial, wait for that end.

mod attempt;
mod cgroup;
mod custody;
mod launch;
mod lines;
mod processes;
mod record;
mod report;

use std::{
    collections::BTreeMap,
    env,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use actix::{ArbiterHandle, Recipient, System};
use tokio::{
    sync::{Mutex as AsyncMutex, oneshot, watch},
    time,
};

pub(super) use self::attempt::tail;
#[cfg(feature = "cli")]
pub(crate) use self::custody::end_programs;
pub use self::launch::launch_if_program;
use self::{
    attempt::Attempt,
    custody::{Children, end_left_behind},
};
use super::{error::Error, message::EngineInput, supervisor::TrialRunners};
use crate::{
    ids::{SlotId, TrialId},
    space::TrialSettings,
    store::Folder,
    trials::engine::GroupCommand,
};

/// What a program finds in its environment.
const PARAMS: &str = "POLLUX_TUNE_PARAMS";
const PARAMS_FILE: &str = "POLLUX_TUNE_PARAMS_FILE";
const TRIAL: &str = "POLLUX_TUNE_TRIAL";
const FOLDER: &str = "POLLUX_TUNE_FOLDER";

/// How long programs may take to end when they are asked to.
pub(super) const GRACE: Duration = Duration::from_secs(10);
/// Programs that end sooner than this need not be spoken of.
const SOON: Duration = Duration::from_millis(500);

/// What the programs of a study are.
#[derive(Debug, Clone)]
pub(super) struct ProgramSpec {
    /// A program with its arguments.
    pub(super) words: Vec<String>,
    /// GPUs that slots stand for, if they do: each slot sees the one of its number.
    pub(super) gpus: u32,
    /// Whether all children of this process are the study's.
    pub(super) is_sole: bool,
    /// The arguments with which this program is started again.
    pub(super) arguments: Vec<String>,
    /// How long one may take to end when it is asked to.
    pub(super) grace: Duration,
}

/// Starts and ends the programs of trials.
pub(super) struct Commands {
    programs: Programs,
    /// Where their attempts live.
    arbiter: ArbiterHandle,
    /// The next program of a slot waits for the last one.
    slots: BTreeMap<SlotId, Arc<AsyncMutex<()>>>,
    /// The next attempt of a trial waits for the last one.
    trials: BTreeMap<TrialId, Arc<AsyncMutex<()>>>,
    attempts: u64,
}

/// How to ask the program of each trial to end.
type Stops = BTreeMap<TrialId, oneshot::Sender<()>>;

/// The programs that run.
#[derive(Clone)]
pub(super) struct Programs {
    place: Arc<Place>,
    /// How to ask each of them to end; none once all were asked.
    stops: Arc<Mutex<Option<Stops>>>,
    /// The trial of each attempt of which anything is left.
    alive: watch::Sender<BTreeMap<u64, TrialId>>,
}

/// What the programs of a study have in common.
struct Place {
    words: Vec<String>,
    folder: Folder,
    gpus: u32,
    /// Epochs of a full trial.
    epochs: f64,
    /// The longest that a program may print nothing.
    silence: Option<Duration>,
    arguments: Vec<String>,
    grace: Duration,
    children: Arc<Children>,
}

impl Commands {
    /// Programs for a study in a folder.
    pub(super) fn new(spec: &ProgramSpec, trial: &TrialSettings, folder: &Path) -> Result<Self, Error> {
        check(&spec.words)?;
        let root = std::path::absolute(folder).map_err(Error::io("finding the folder"))?;
        let folder = Folder::new(&root);
        // Programs of a head that was killed may still run.
        end_left_behind(&folder)?;
        let ProgramSpec { words, gpus, is_sole, arguments, grace } = spec.clone();
        let children = Arc::new(Children::new(is_sole));
        let (epochs, silence) = (trial.epochs, trial.silence);
        let place = Arc::new(Place { words, folder, gpus, epochs, silence, arguments, grace, children });
        let stops = Arc::new(Mutex::new(Some(BTreeMap::new())));
        let programs = Programs { place, stops, alive: watch::Sender::default() };
        // A program ends with the thread that has started it, so that must be one that outlasts all of them.
        let arbiter = System::current().arbiter().clone();
        Ok(Self { programs, arbiter, slots: BTreeMap::new(), trials: BTreeMap::new(), attempts: 0 })
    }

    /// Those that run.
    pub(super) fn programs(&self) -> Programs {
        self.programs.clone()
    }
}

/// Whether the program of a study is there at all.
pub(super) fn check(words: &[String]) -> Result<(), Error> {
    let program = words.first().ok_or(Error::NoProgram)?;
    if is_there(program) { Ok(()) } else { Err(Error::NoSuchProgram(program.clone())) }
}

/// Whether a program can be found as the system would.
fn is_there(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).is_file();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

impl TrialRunners for Commands {
    fn command(&mut self, trial: TrialId, command: GroupCommand, supervisor: &Recipient<EngineInput>) {
        let mut stops = self.programs.stops.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(stops) = &mut *stops else { return };
        match command {
            GroupCommand::Launch(launch) => {
                stops.retain(|_, stop| !stop.is_closed());
                self.trials.retain(|_, lock| Arc::strong_count(lock) > 1);
                let (stop, mut stopped) = oneshot::channel();
                stops.insert(trial, stop);
                let slot = launch.slots.first().copied();
                let slot = slot.map(|slot| self.slots.entry(slot).or_default().clone()).unwrap_or_default();
                let last = self.trials.entry(trial).or_default().clone();
                let (alive, number) = (self.programs.alive.clone(), self.attempts);
                self.attempts += 1;
                alive.send_modify(|alive| _ = alive.insert(number, trial));
                let attempt = Attempt::new(self.programs.place.clone(), trial, launch, supervisor.clone());
                self.arbiter.spawn(async move {
                    // A slot comes first: whoever has that of a trial has all that it needs.
                    let free = async { (slot.lock().await, last.lock().await) };
                    let free = tokio::select! {
                        biased;
                        _ = &mut stopped => None,
                        free = free => Some(free),
                    };
                    if free.is_some() {
                        attempt.run(&mut stopped).await;
                    }
                    drop(free);
                    alive.send_modify(|alive| _ = alive.remove(&number));
                });
            }
            GroupCommand::Stop(_) => {
                if let Some(stop) = stops.remove(&trial) {
                    // It may have ended by itself.
                    let _ = stop.send(());
                }
            }
            GroupCommand::Reshape { .. } | GroupCommand::Retune { .. } => {}
        }
    }
}

impl Programs {
    /// Asks all programs to end, and waits until nothing is left of them. No more are started.
    pub(super) async fn end(&self, notify: impl FnOnce(&str)) {
        // An attempt that cannot be asked any more takes that for a request.
        drop(self.stops.lock().unwrap_or_else(PoisonError::into_inner).take());
        let mut alive = self.alive.subscribe();
        if time::timeout(SOON, alive.wait_for(BTreeMap::is_empty)).await.is_ok() {
            return;
        }
        notify(&waits_for(alive.borrow().values(), self.place.grace));
        // It fails without a sender, and this is one.
        let _ = alive.wait_for(BTreeMap::is_empty).await;
    }
}

/// What the head waits for.
fn waits_for<'a>(trials: impl Iterator<Item = &'a TrialId>, grace: Duration) -> String {
    let names: Vec<String> = trials.map(ToString::to_string).collect();
    let trials = if names.len() == 1 { "trial" } else { "trials" };
    let seconds = grace.as_secs();
    format!(
        "waiting for the programs of {trials} {} to end; they are killed after {seconds} s",
        names.join(", ")
    )
}
