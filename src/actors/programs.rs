//! Trials that are programs: has agents start and end them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use actix::Recipient;
use tokio::{sync::watch, time};

use super::{agents::NodeMap, message::EngineInput, supervisor::TrialRunners};
use crate::{
    ids::{Generation, NodeId, TrialId},
    space::{Params, Study},
    trials::{
        agent::{AgentCommand, ProgramLaunch},
        engine::{FailureCause, GroupCommand, GroupEvent, Input, Launch},
        group::FinalState,
    },
};

/// How long programs may take to end when they are asked to.
pub(super) const GRACE: Duration = Duration::from_secs(10);
/// Programs that end sooner than this need not be spoken of.
const SOON: Duration = Duration::from_millis(500);

/// What the programs of a study are.
#[derive(Debug, Clone)]
pub(super) struct ProgramSpec {
    /// A program with its arguments.
    pub(super) words: Vec<String>,
    /// Where it begins, if that is not the folder of whoever starts it.
    pub(super) folder: Option<PathBuf>,
    /// How long one may take to end when it is asked to.
    pub(super) grace: Duration,
}

/// Starts of programs of which anything is left, and where they are.
type Alive = BTreeMap<(TrialId, Generation), NodeId>;

/// The programs of a study: launched one after the other for each trial, wherever its slot is.
#[derive(Clone)]
pub(super) struct Programs {
    spec: Arc<ProgramSpec>,
    /// What all launches have in common.
    usual: Arc<ProgramLaunch>,
    /// All parameters of the study.
    names: Arc<[String]>,
    nodes: NodeMap,
    alive: watch::Sender<Alive>,
    /// Starts that are to end so that their trials can run with other slots.
    pausing: Arc<Mutex<BTreeSet<(TrialId, Generation)>>>,
    /// What waits for the last start of its trial to be gone; none once all are to end.
    waiting: Arc<Mutex<Option<BTreeMap<TrialId, ProgramLaunch>>>>,
}

impl Programs {
    pub(super) fn new(spec: ProgramSpec, study: &Study, nodes: NodeMap) -> Self {
        let trial = &study.trial;
        let usual = ProgramLaunch {
            trial: TrialId(0),
            generation: Generation::NONE,
            slots: Vec::new(),
            share: trial.share.max(1),
            words: spec.words.clone(),
            params: Params::default(),
            absent: Vec::new(),
            env: trial.env.clone(),
            folder: spec.folder.clone(),
            epochs: trial.epochs,
            objectives: study.objectives.iter().map(|objective| objective.metric.clone()).collect(),
            silence_s: trial.silence.map(|silence| silence.as_secs_f64()),
            grace_s: spec.grace.as_secs_f64(),
        };
        Self {
            spec: Arc::new(spec),
            usual: Arc::new(usual),
            names: study.space.parameters().iter().map(|known| known.name().to_owned()).collect(),
            nodes,
            alive: watch::Sender::default(),
            pausing: Arc::default(),
            waiting: Arc::new(Mutex::new(Some(BTreeMap::new()))),
        }
    }

    /// So many programs share a slot of a machine: each has one of its parts, which the study takes for slots.
    pub(super) fn share(&self) -> u32 {
        self.usual.share
    }

    fn waiting(&self) -> MutexGuard<'_, Option<BTreeMap<TrialId, ProgramLaunch>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has an agent start a program. False if there is no such node.
    fn start(&self, launch: ProgramLaunch) -> bool {
        let ProgramLaunch { trial, generation, .. } = launch;
        let Some(on) = launch.slots.first().map(|slot| slot.node) else { return false };
        let Some(node) = self.nodes.get(on) else { return false };
        self.alive.send_modify(|alive| _ = alive.insert((trial, generation), on));
        // Whoever loses the agent tells `node_lost`.
        let _ = node.agent.send(AgentCommand::Launch(Box::new(launch)));
        true
    }

    fn launch(&self, trial: TrialId, launch: Launch, supervisor: &Recipient<EngineInput>) {
        let Launch { generation, slots, params, .. } = launch;
        let absent = self.names.iter().filter(|name| params.get(name).is_none()).cloned().collect();
        let launch =
            ProgramLaunch { trial, generation, slots, params, absent, ..ProgramLaunch::clone(&self.usual) };
        let mut waiting = self.waiting();
        let Some(waiting) = &mut *waiting else { return };
        if self.alive.borrow().keys().any(|(of, _)| *of == trial) {
            waiting.insert(trial, launch);
        } else if !self.start(launch) {
            let (reason, cause) = ("its machine is gone".to_owned(), FailureCause::Infrastructure);
            let event = GroupEvent::Failed { reason, cause };
            supervisor.do_send(Input::group(trial, generation, event).into());
        }
    }

    /// Asks the program of a trial to save its state and to end.
    fn pause(&self, trial: TrialId) {
        let starts: Vec<_> = self.alive.borrow().keys().filter(|(of, _)| *of == trial).copied().collect();
        self.pausing.lock().unwrap_or_else(PoisonError::into_inner).extend(starts);
        self.stop(trial);
    }

    /// Asks all programs of a trial to end.
    fn stop(&self, trial: TrialId) {
        if let Some(waiting) = &mut *self.waiting() {
            waiting.remove(&trial);
        }
        let alive: Vec<_> = self.alive.borrow().iter().map(|(of, node)| (*of, *node)).collect();
        for ((_, generation), node) in alive.into_iter().filter(|((of, _), _)| *of == trial) {
            if let Some(node) = self.nodes.get(node) {
                let _ = node.agent.send(AgentCommand::StopProgram { trial, generation });
            }
        }
    }

    /// Nothing is left of a start. Whether it was to end for a restart.
    pub(super) fn gone(&self, trial: TrialId, generation: Generation) -> bool {
        let is_paused = {
            let mut pausing = self.pausing.lock().unwrap_or_else(PoisonError::into_inner);
            pausing.remove(&(trial, generation))
        };
        self.start_next(trial, generation);
        is_paused
    }

    /// A start is gone: the next one of its trial may begin.
    fn start_next(&self, trial: TrialId, generation: Generation) {
        let mut waiting = self.waiting();
        self.alive.send_modify(|alive| _ = alive.remove(&(trial, generation)));
        if self.alive.borrow().keys().any(|(of, _)| *of == trial) {
            return;
        }
        if let Some(launch) = waiting.as_mut().and_then(|waiting| waiting.remove(&trial)) {
            // If its node is lost, the engine knows that, too.
            self.start(launch);
        }
    }

    /// Nothing is left of what ran on a node.
    pub(super) fn node_lost(&self, node: NodeId) {
        let on_it = |(of, place): (&(TrialId, Generation), &NodeId)| (*place == node).then_some(*of);
        let lost: Vec<_> = self.alive.borrow().iter().filter_map(on_it).collect();
        for (trial, generation) in lost {
            self.gone(trial, generation);
        }
    }

    /// Asks all programs to end, and waits until nothing is left of them. No more are started.
    pub(super) async fn end(&self, notify: impl FnOnce(&str)) {
        drop(self.waiting().take());
        let trials: Vec<TrialId> = self.alive.borrow().keys().map(|(trial, _)| *trial).collect();
        for trial in trials {
            self.stop(trial);
        }
        let mut alive = self.alive.subscribe();
        if time::timeout(SOON, alive.wait_for(BTreeMap::is_empty)).await.is_ok() {
            return;
        }
        notify(&waits_for(alive.borrow().keys().map(|(trial, _)| trial), self.spec.grace));
        // It fails without a sender, and this is one.
        let _ = alive.wait_for(BTreeMap::is_empty).await;
    }
}

impl TrialRunners for Programs {
    fn command(&mut self, trial: TrialId, command: GroupCommand, supervisor: &Recipient<EngineInput>) {
        match command {
            GroupCommand::Launch(launch) => self.launch(trial, launch, supervisor),
            GroupCommand::Stop(FinalState::Saved) => self.pause(trial),
            GroupCommand::Stop(FinalState::Discarded) => self.stop(trial),
            GroupCommand::Reshape { .. } | GroupCommand::Retune { .. } => {}
        }
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
