//! The engine of a study: takes what happened, gives what became true and what to do.
//!
//! [`Engine::handle`] decides. It changes the state through [`Engine::apply`] alone, so that the facts in their order determine
//! everything, and a journal of them is the study. Whoever runs the engine writes the facts down first, then carries out the
//! commands, and shows the facts to [`SuggestService`] and [`FitService`], which with [`SolveService`] answer the questions among the
//! commands, be it on other threads; [`Services`] has all three in one place.
//!
//! A trial's workers form a group for each generation. The engine decides which slots a generation has and where its state
//! comes from; how the workers form a group is not its business. Slots change owners in an order without deadlocks:
//! see `reconcile`.
//!
//! *Architecture invariant:* after every input, no slot belongs to two trials, every slot in use has a worker, and a trial
//! that has ended stays as it is. `check` looks after each input in debug builds.

mod apply;
mod check;
mod command;
mod error;
mod fact;
mod fit_service;
mod input;
mod inputs;
mod limits;
mod nodes;
mod pace;
#[cfg(feature = "cli")]
mod prospects;
mod reconcile;
mod record;
mod report;
mod request;
mod retry;
mod rifts;
mod services;
mod snapshot;
mod solve_service;
mod state;
mod suggest_service;
#[cfg(test)]
mod tests;
mod user;

use std::collections::{BTreeMap, BTreeSet};

pub(super) use self::apply::end_of;
#[cfg(feature = "cli")]
pub(crate) use self::prospects::{Prospect, Prospects};
use self::record::{Record, Shown};
pub(crate) use self::report::NO_METRIC;
#[cfg(feature = "runtime")]
pub(crate) use self::services::Replay;
pub use self::{
    command::{AllocatorRequest, Command, GroupCommand, Launch, Outcome, SuggestRequest},
    error::Error,
    fact::{Fact, JournalEntry, SearchLimit, Severity, Target},
    fit_service::FitService,
    input::{FailureCause, GroupEvent, Input, NoSuggestion, Refit, Suggestion},
    nodes::{Draining, LostNode, NodeState},
    pace::{Pace, PaceModel},
    report::{Checkpoint, Metrics, Number, Report},
    retry::{Failures, Wait},
    rifts::Rift,
    services::{AllocateService, Services},
    snapshot::{AllocationSnapshot, TrialSnapshot},
    solve_service::SolveService,
    state::{ActiveTrial, EndedTrial, Phase, SearchEnd, State, Unfinished, Usage, WorkerGroup},
    suggest_service::SuggestService,
};
use crate::{
    goodput::{BatchLimits, NoiseScale},
    ids::{Generation, GpuType, NodeId, TrialId},
    space::{Program, Study},
    trials::{
        Verdict,
        stopping::{self, Stopper},
    },
};

/// Whether trials can change their slots while they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrialKind {
    /// They can: trainables.
    Elastic,
    /// They have the same slots from start to end: functions and commands.
    Rigid,
    /// They are started again to change their slots: commands that say so.
    Restarted,
}

impl TrialKind {
    /// What the trials of a study are: trainables are elastic, programs are restarted if they can be, everything else is rigid.
    #[must_use]
    pub const fn of(study: &Study) -> Self {
        match study.trial.program {
            Some(Program::Trainable(_) | Program::Python(_)) => Self::Elastic,
            Some(Program::Command(_)) if study.trial.elastic.is_some() => Self::Restarted,
            Some(Program::Command(_)) | None => Self::Rigid,
        }
    }

    /// Whether the allocator gives them their slots.
    #[must_use]
    pub const fn is_planned(self) -> bool {
        matches!(self, Self::Elastic | Self::Restarted)
    }
}

/// No study is that late. A little later a clock of this many seconds stands still, and what is due would be so for ever.
const LATEST_S: f64 = 1e12;

/// What follows from an input.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Step {
    /// What became true: to be journaled, all or nothing, before any command is carried out.
    pub facts: Vec<JournalEntry>,
    /// What to do, in this order.
    pub commands: Vec<Command>,
}

/// The life of a study.
///
/// ```
/// use pollux_tune::space::Study;
/// use pollux_tune::trials::engine::{Command, Engine, Input, TrialKind};
///
/// let study = Study::from_yaml("study.yaml", "
/// space: {lr: {log: [1e-5, 1]}}
/// objective: {maximize: accuracy}
/// search: {trials: 30}
/// ")?;
/// let mut engine = Engine::new(&study, TrialKind::Rigid)?;
/// engine.handle(Input::Started, 0.0);
/// let gpu_type = "t4".to_owned().try_into()?;
/// let joined = Input::NodeJoined { node: pollux_tune::ids::NodeId(0), name: String::new(), gpu_type, island: 0, slots: 2 };
/// let step = engine.handle(joined, 1.0);
/// assert!(matches!(step.commands[..], [Command::Suggest(_)]));
///
/// let mut twin = Engine::new(&study, TrialKind::Rigid)?;
/// twin.handle(Input::Started, 0.0);
/// step.facts.iter().try_for_each(|entry| twin.apply(entry))?;
/// assert_eq!(twin.state(), engine.state());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine {
    study: Study,
    kind: TrialKind,
    /// None for trials that are not elastic.
    limits: Option<BatchLimits>,
    state: State,
    stopper: Box<dyn Stopper>,
    /// Of active trials.
    records: BTreeMap<TrialId, Record>,
    shown: Shown,
    pending: Pending,
}

/// Questions without an answer. They die with the head; one [`Input::Tick`] asks them again.
#[derive(Debug, Default)]
struct Pending {
    /// The last one given to a question.
    revision: u64,
    ask: Option<u64>,
    solve: Option<u64>,
    fits: BTreeMap<TrialId, u64>,
    /// When the speed of a trial was last asked for, and in which generation.
    fitted: BTreeMap<TrialId, (f64, Generation)>,
    /// Types of GPU that have come since the speed of trials was looked at.
    new_types: BTreeSet<GpuType>,
    /// Machines that were let go, and are not gone yet.
    released: BTreeSet<NodeId>,
    /// Something has changed since the GPUs were divided.
    dirty: bool,
    /// When they were.
    solved_s: f64,
    /// How many trials should be active, as of the last plan.
    places: Option<u32>,
    /// The noise scales at that time.
    noises: BTreeMap<TrialId, NoiseScale>,
    /// When to wake up.
    wake_s: Option<f64>,
    finished: bool,
}

impl Engine {
    /// The study before its first fact.
    pub fn new(study: &Study, kind: TrialKind) -> Result<Self, Error> {
        let direction = study.objectives.first().ok_or(Error::NoObjective)?.direction;
        let stopper = stopping::stopper(&study.search.early_stopping, study.trial.epochs, direction)?;
        let limits = match kind {
            TrialKind::Elastic => Some(snapshot::batch_limits(&study.trial)?),
            TrialKind::Rigid | TrialKind::Restarted => None,
        };
        let (state, pending) = (State::default(), Pending::default());
        let (records, shown) = (BTreeMap::new(), Shown::default());
        Ok(Self { study: study.clone(), kind, limits, state, stopper, records, shown, pending })
    }

    /// The same with another stopping rule in the place of that of the study: see [`of_rule`](stopping::of_rule). Nothing has happened yet.
    ///
    /// An error of the stopper breaks the engine.
    #[must_use]
    pub fn with_stopper(mut self, stopper: Box<dyn Stopper>) -> Self {
        self.stopper = stopper;
        self
    }

    /// The study.
    #[must_use]
    pub const fn study(&self) -> &Study {
        &self.study
    }

    /// What is true.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// How likely a trial is to continue at its next decision.
    #[must_use]
    pub fn promise(&self, trial: TrialId) -> f64 {
        self.stopper.promise(trial)
    }

    /// Decides what follows from an input at a time in seconds. The clock is the caller's, and continues after a restart: Unix
    /// time will do. It may stand still, and where it goes back it counts as standing still. The first input is
    /// [`Input::Started`], after a replay too.
    ///
    /// # Panics
    ///
    /// In debug builds, if one of the rules of [`check`](Self::check) is broken.
    pub fn handle(&mut self, input: Input, now_s: f64) -> Step {
        let now_s =
            if now_s.is_finite() { now_s.min(LATEST_S).max(self.state.at_s) } else { self.state.at_s };
        let mut step = StepBuilder { now_s, output: Step::default() };
        self.on_input(input, &mut step);
        self.expire(&mut step);
        self.reconcile(&mut step);
        self.fail_fast(&mut step);
        self.release_nodes(&mut step);
        self.request(&mut step);
        if cfg!(debug_assertions)
            && let Err(broken) = self.check()
        {
            panic!("a rule is broken: {broken}");
        }
        step.output
    }

    /// Makes a fact true, and keeps it for the journal.
    fn emit(&mut self, step: &mut StepBuilder, fact: Fact) -> Verdict {
        let entry = JournalEntry { at_s: step.now_s, fact };
        let verdict = self.note(&entry).expect("the engine's own facts follow from each other");
        step.output.facts.push(entry);
        verdict
    }

    /// A new number for a question. Numbers of an earlier head are smaller.
    fn revision(&mut self) -> u64 {
        self.pending.revision = self.pending.revision.max(self.state.facts) + 1;
        self.pending.revision
    }
}

/// What an input has brought so far.
struct StepBuilder {
    now_s: f64,
    output: Step,
}

impl StepBuilder {
    fn command(&mut self, command: Command) {
        self.output.commands.push(command);
    }
}
