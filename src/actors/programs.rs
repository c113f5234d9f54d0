//! Trials that are programs: has agents start and end them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use actix::Recipient;
use tokio::{sync::watch, time};

use super::{agents::NodeMap, message::EngineInput, supervisor::TrialRunners};
use crate::{
    ids::{Generation, NodeId, TrialId},
    space::TrialSettings,
    trials::{
        agent::{AgentCommand, ProgramLaunch},
        engine::{FailureCause, GroupCommand, GroupEvent, Input, Launch},
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
    /// How long one may take to end when it is asked to.
    pub(super) grace: Duration,
}

/// Starts of programs of which anything is left, and where they are.
type Alive = BTreeMap<(TrialId, Generation), NodeId>;

/// The programs of a study: launched one after the other for each trial, wherever its slot is.
#[derive(Clone)]
pub(super) struct Programs {
    spec: Arc<ProgramSpec>,
    epochs: f64,
    silence_s: Option<f64>,
    nodes: NodeMap,
    alive: watch::Sender<Alive>,
    /// What waits for the last start of its trial to be gone; none once all are to end.
    waiting: Arc<Mutex<Option<BTreeMap<TrialId, ProgramLaunch>>>>,
}

impl Programs {
    pub(super) fn new(spec: ProgramSpec, trial: &TrialSettings, nodes: NodeMap) -> Self {
        Self {
            spec: Arc::new(spec),
            epochs: trial.epochs,
            silence_s: trial.silence.map(|silence| silence.as_secs_f64()),
            nodes,
            alive: watch::Sender::default(),
            waiting: Arc::new(Mutex::new(Some(BTreeMap::new()))),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Option<BTreeMap<TrialId, ProgramLaunch>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has an agent start a program. False if there is no such node.
    fn start(&self, launch: ProgramLaunch) -> bool {
        let ProgramLaunch { trial, generation, slot, .. } = launch;
        let Some(node) = self.nodes.get(slot.node) else { return false };
        self.alive.send_modify(|alive| _ = alive.insert((trial, generation), slot.node));
        // Whoever loses the agent tells `node_lost`.
        let _ = node.agent.send(AgentCommand::Launch(Box::new(launch)));
        true
    }

    fn launch(&self, trial: TrialId, launch: Launch, supervisor: &Recipient<EngineInput>) {
        let Launch { generation, slots, params, .. } = launch;
        let Some(&slot) = slots.first() else { return };
        let (epochs, silence_s, grace_s) = (self.epochs, self.silence_s, self.spec.grace.as_secs_f64());
        let words = self.spec.words.clone();
        let launch = ProgramLaunch { trial, generation, slot, words, params, epochs, silence_s, grace_s };
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

    /// Nothing is left of a start.
    pub(super) fn gone(&self, trial: TrialId, generation: Generation) {
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
            GroupCommand::Stop(_) => self.stop(trial),
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
