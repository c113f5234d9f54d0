//! A small random world around the engine of a study: nodes, workers that die, groups that train, messages that are late,
//! doubled or out of order, and heads that are killed between journal and command.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pollux_tune::{
    goodput::{NoiseScale, Observation, Shape},
    ids::{Generation, GpuType, NodeId, SlotId, TrialId},
    space::Study,
    trials::{
        engine::{
            Checkpoint, Command, Engine, Fact, FailureCause, GroupCommand, GroupEvent, Input, JournalEntry,
            Launch, Outcome, Report, Services, Severity, TrialKind,
        },
        group::FinalState,
    },
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How bad the world is, in events out of a thousand.
#[derive(Clone, Copy)]
pub(crate) struct Faults {
    pub(crate) worker: u32,
    pub(crate) node: u32,
    /// Nodes that are announced to leave.
    pub(crate) drain: u32,
    pub(crate) group: u32,
    /// Groups that find what they all share broken.
    pub(crate) environment: u32,
    /// Trials that fail by themselves.
    pub(crate) trial: u32,
    pub(crate) head: u32,
    /// Messages that come twice, or overtake others.
    pub(crate) messages: u32,
}

pub(crate) const NONE: Faults =
    Faults { worker: 0, node: 0, drain: 0, group: 0, environment: 0, trial: 0, head: 0, messages: 0 };

/// The workers of a trial as they are in truth.
struct Group {
    generation: Generation,
    slots: Vec<SlotId>,
    /// Workers that were members before, and are released once the new generation is together.
    leaving: Vec<SlotId>,
    epochs: f64,
    reports: u32,
    formed: bool,
    /// It has nothing more to do, and its workers are free.
    finished: bool,
    /// A member is gone: it stands still until it is told what to do.
    broken: bool,
}

pub(crate) struct World {
    pub(crate) engine: Engine,
    /// Shown every fact, after a way through JSON.
    twin: Engine,
    pub(crate) services: Services,
    study: Study,
    kind: TrialKind,
    pub(crate) journal: Vec<JournalEntry>,
    pub(crate) outcome: Option<Outcome>,
    rng: ChaCha8Rng,
    now_s: f64,
    wake_s: Option<f64>,
    /// What comes from nodes, in order.
    nodes: VecDeque<Input>,
    /// What comes from anybody else.
    inbox: Vec<Input>,
    groups: BTreeMap<TrialId, Group>,
    alive: BTreeMap<NodeId, (GpuType, u32, BTreeSet<u32>)>,
    /// Those that are about to leave.
    draining: BTreeSet<NodeId>,
    /// Machines that may come again, under their number or another one.
    gone: Vec<(NodeId, GpuType, u32)>,
    next_node: u32,
    is_waiting: bool,
    pub(crate) inputs: usize,
    pub(crate) reshapes: usize,
    pub(crate) restarts: usize,
    pub(crate) waits: usize,
    pub(crate) drains: usize,
    pub(crate) moves: usize,
    pub(crate) releases: usize,
}

impl World {
    pub(crate) fn new(study: &Study, kind: TrialKind, nodes: &[(&str, u32)], seed: u64) -> Self {
        let engine = || Engine::new(study, kind).expect("it is a good study");
        let node = |(id, (name, slots)): (u32, &(&str, u32))| {
            let gpu_type = GpuType::new(name).expect("it is a name");
            (NodeId(id), (gpu_type, *slots, (0..*slots).collect()))
        };
        let mut world = Self {
            engine: engine(),
            twin: engine(),
            services: Services::new(study).expect("it can be searched"),
            study: study.clone(),
            kind,
            journal: Vec::new(),
            outcome: None,
            rng: ChaCha8Rng::seed_from_u64(seed),
            now_s: 0.0,
            wake_s: None,
            nodes: VecDeque::new(),
            inbox: Vec::new(),
            groups: BTreeMap::new(),
            alive: (0..).zip(nodes).map(node).collect(),
            draining: BTreeSet::new(),
            gone: Vec::new(),
            next_node: nodes.len() as u32,
            is_waiting: false,
            inputs: 0,
            reshapes: 0,
            restarts: 0,
            waits: 0,
            drains: 0,
            moves: 0,
            releases: 0,
        };
        world.begin();
        world
    }

    /// A head starts, and all nodes join.
    fn begin(&mut self) {
        self.outcome = None;
        self.hear(Input::Started, NONE);
        for node in self.alive.keys().copied().collect::<Vec<_>>() {
            self.join(node);
        }
    }

    fn join(&mut self, node: NodeId) {
        let (gpu_type, slots, up) = &self.alive[&node];
        self.nodes.push_back(Input::NodeJoined {
            node,
            name: if node.0.is_multiple_of(2) { format!("gpu{node}") } else { String::new() },
            gpu_type: gpu_type.clone(),
            island: 0,
            slots: *slots,
        });
        for index in (0..*slots).filter(|index| !up.contains(index)) {
            let slot = SlotId { node, index };
            self.nodes.push_back(Input::WorkerLost { slot, reason: "was not there".to_owned() });
        }
        if self.draining.contains(&node) {
            self.announce(node);
        }
    }

    fn announce(&mut self, node: NodeId) {
        let (until_s, reason) = (self.now_s + 30.0, "its time ends".to_owned());
        self.nodes.push_back(Input::NodeDraining { node, until_s, reason });
    }

    /// The head is killed. Nothing of it is left but the journal.
    fn restart(&mut self) {
        self.restarts += 1;
        self.engine = Engine::new(&self.study, self.kind).expect("as before");
        self.services = Services::new(&self.study).expect("as before");
        for entry in &self.journal {
            self.engine.apply(entry).expect("the journal can be replayed");
            self.services.apply(entry).expect("the journal can be replayed");
        }
        assert_eq!(self.engine.state(), self.twin.state(), "the journal is the study");
        (self.groups, self.inbox, self.nodes, self.wake_s) = Default::default();
        self.begin();
    }

    fn chance(&mut self, of_thousand: u32) -> bool {
        self.rng.random_range(0..1000) < of_thousand
    }

    /// One event: a fault, a message, a little training, or time that passes.
    pub(crate) fn step(&mut self, faults: Faults) {
        self.now_s += self.rng.random_range(0.0..0.5);
        if self.chance(faults.head) {
            return self.restart();
        }
        if self.chance(faults.worker) {
            self.kill_worker();
        }
        if self.chance(faults.node) {
            self.kill_node();
        }
        if self.chance(faults.drain) {
            self.drain();
        }
        if !self.draining.is_empty() && self.chance(20) {
            self.end_drain();
        }
        if faults.worker == 0 || self.chance(100) {
            self.revive();
        }
        if !self.gone.is_empty() && (faults.node == 0 || self.chance(50)) {
            self.come_again();
        }
        match self.rng.random_range(0..4) {
            0 => self.train(faults),
            1 if self.wake_s.is_some_and(|wake_s| wake_s <= self.now_s) => {
                self.wake_s = None;
                self.hear(Input::Tick, faults);
            }
            // Nothing is under way: time passes until something is due.
            1 if self.inbox.is_empty() && self.nodes.is_empty() && self.groups.is_empty() => {
                self.now_s = self.wake_s.unwrap_or(self.now_s).max(self.now_s);
            }
            2 => {
                if let Some(input) = self.nodes.pop_front() {
                    self.hear(input, faults);
                }
            }
            _ => self.deliver(faults),
        }
    }

    fn deliver(&mut self, faults: Faults) {
        if self.inbox.is_empty() {
            return;
        }
        let place = if faults.messages > 0 { self.rng.random_range(0..self.inbox.len()) } else { 0 };
        let input =
            if self.chance(faults.messages) { self.inbox[place].clone() } else { self.inbox.remove(place) };
        self.hear(input, faults);
    }

    fn hear(&mut self, input: Input, faults: Faults) {
        self.inputs += 1;
        let step = self.engine.handle(input, self.now_s);
        for entry in &step.facts {
            let text = serde_json::to_string(entry).expect("facts are JSON");
            let again: JournalEntry =
                serde_json::from_str(&text).expect("they are read as they were written");
            self.check_places(&again.fact);
            self.twin.apply(&again).expect("facts can be replayed");
            self.services.apply(entry).expect("everybody understands");
        }
        assert_eq!(self.twin.state(), self.engine.state(), "only facts change the state");
        for trial in self.engine.state().active.keys() {
            let promises = [&self.twin, &self.engine].map(|engine| engine.promise(*trial).to_bits());
            assert_eq!(promises[0], promises[1], "the stopping rule follows from the facts, too");
        }
        self.check_wait(&step.facts);
        self.journal.extend(step.facts);
        if faults.head > 0 && self.chance(faults.head) {
            // Killed between journal and command.
            return self.restart();
        }
        for command in step.commands {
            self.carry_out(command);
        }
    }

    /// Nothing new is placed on a node that is about to leave, and what it does to trials is not held against them.
    fn check_places(&mut self, fact: &Fact) {
        let state = self.twin.state();
        let leaves = |slot: &SlotId| state.nodes.get(&slot.node).is_some_and(|node| !node.is_open());
        match fact {
            Fact::TrialStarted { trial, slots, holders, .. } => {
                let had: BTreeSet<SlotId> = state.active[trial].reserved().collect();
                for slot in slots.iter().filter(|slot| leaves(slot)) {
                    assert!(had.contains(slot), "trial {trial} is placed on {slot}, which is about to leave");
                }
                self.moves += usize::from(holders.iter().any(leaves) && !slots.iter().any(leaves));
            }
            Fact::TrialInterrupted { trial, severity: Severity::Failure, .. } => {
                let had = state.active[trial].reserved().any(|slot| leaves(&slot));
                assert!(!had, "trial {trial} is blamed for a node that is about to leave");
            }
            _ => {}
        }
    }

    /// While the study waits, one trial at a time is launched to find out.
    fn check_wait(&mut self, facts: &[JournalEntry]) {
        for JournalEntry { fact, .. } in facts {
            match fact {
                Fact::StudyWaiting { .. } => (self.waits, self.is_waiting) = (self.waits + 1, true),
                Fact::StudyResumed {} | Fact::HeadStarted {} => self.is_waiting = false,
                _ => {}
            }
        }
        let state = self.engine.state();
        assert_eq!(self.is_waiting, state.waiting.is_some());
        let probe = state.waiting.as_ref().and_then(|wait| wait.probe);
        for JournalEntry { fact, .. } in facts {
            if let (Fact::TrialStarted { trial, holders, .. }, true) = (fact, self.is_waiting)
                && holders.is_empty()
            {
                assert_eq!(probe, Some(*trial), "only to find out");
            }
        }
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Suggest(_) | Command::Allocate(_) => self.inbox.extend(self.services.answer(&command)),
            Command::Group { trial, command } => self.carry_out_by_group(trial, command),
            Command::ReleaseNode { node } => {
                let state = self.engine.state();
                let draining = state.nodes.get(&node).and_then(|state| state.draining.as_ref());
                let is_used = state.reserved().keys().any(|slot| slot.node == node);
                let is_late = draining.is_some_and(|draining| self.now_s >= draining.until_s);
                assert!(draining.is_some() && (is_late || !is_used), "node {node} is let go too early");
                self.releases += 1;
                if self.draining.contains(&node) && self.alive.contains_key(&node) && self.chance(500) {
                    self.lose_node(node);
                }
            }
            Command::WakeAt { at_s } => self.wake_s = Some(at_s),
            Command::Finished(outcome) => self.outcome = Some(outcome),
        }
    }

    fn carry_out_by_group(&mut self, trial: TrialId, command: GroupCommand) {
        match command {
            GroupCommand::Launch(Launch { generation, slots, checkpoint, .. }) => {
                let epochs = checkpoint.map_or(0.0, |checkpoint| checkpoint.epochs);
                self.form(trial, generation, slots, Vec::new(), epochs);
            }
            GroupCommand::Reshape { generation, slots, .. } => {
                self.reshapes += 1;
                let active = self.engine.state().active.get(&trial);
                let saved = active.and_then(|active| active.checkpoint.as_ref());
                let saved = saved.map_or(0.0, |checkpoint| checkpoint.epochs);
                let holders = active.map_or_else(Vec::new, |active| active.phase.holders().to_vec());
                let kept = holders.iter().any(|slot| self.is_alive(*slot));
                let epochs = self.groups.get(&trial).filter(|_| kept).map_or(saved, |group| group.epochs);
                let leaving = holders.into_iter().filter(|slot| !slots.contains(slot)).collect();
                self.form(trial, generation, slots, leaving, epochs);
            }
            GroupCommand::Retune { .. } => {
                let generation = self.journal.iter().rev().find_map(|entry| match entry.fact {
                    Fact::Retuned { trial: of, generation, .. } if of == trial => Some(generation),
                    _ => None,
                });
                let of_group = |group: &Group| Some(group.generation) >= generation;
                assert!(self.groups.get(&trial).is_none_or(of_group), "for a group that is not there yet");
            }
            GroupCommand::Stop(state) => {
                let Some(group) = self.groups.remove(&trial) else { return };
                let generation = group.generation;
                if group.finished {
                    // It has said so, and that is on its way.
                    self.groups.insert(trial, group);
                } else if state == FinalState::Saved && group.broken {
                    let reason = "it was broken before it could write its state".to_owned();
                    let failed = GroupEvent::Failed { reason, cause: FailureCause::Infrastructure };
                    self.inbox.push(Input::group(trial, generation, failed));
                } else if state == FinalState::Saved {
                    let checkpoint = Checkpoint { name: format!("{trial}"), epochs: group.epochs };
                    self.inbox.push(Input::group(trial, generation, GroupEvent::Paused(checkpoint)));
                }
            }
        }
    }

    fn form(
        &mut self,
        trial: TrialId,
        generation: Generation,
        slots: Vec<SlotId>,
        leaving: Vec<SlotId>,
        epochs: f64,
    ) {
        self.groups.remove(&trial);
        let wanted: BTreeSet<SlotId> = slots.iter().chain(&leaving).copied().collect();
        for (other, group) in self.groups.iter().filter(|(_, group)| !group.finished) {
            for slot in group.slots.iter().chain(&group.leaving) {
                assert!(!wanted.contains(slot), "trials {trial} and {other} meet in slot {slot}");
            }
        }
        let broken = !slots.iter().all(|slot| self.is_alive(*slot));
        let (formed, finished) = (false, false);
        let group = Group { generation, slots, leaving, epochs, reports: 0, formed, finished, broken };
        self.groups.insert(trial, group);
    }

    fn is_alive(&self, slot: SlotId) -> bool {
        self.alive.get(&slot.node).is_some_and(|(_, _, up)| up.contains(&slot.index))
    }

    /// Some group makes progress, and says so.
    fn train(&mut self, faults: Faults) {
        let whole = self.groups.iter().filter(|(_, group)| !group.broken && !group.finished);
        let whole: Vec<TrialId> = whole.map(|(trial, _)| *trial).collect();
        if whole.is_empty() {
            return;
        }
        let trial = whole[self.rng.random_range(0..whole.len())];
        let causes = [
            (faults.group, FailureCause::Infrastructure),
            (faults.environment, FailureCause::Environment),
            (faults.trial, FailureCause::Trial),
        ];
        for (of_thousand, cause) in causes {
            if self.chance(of_thousand) {
                let generation = self.groups[&trial].generation;
                self.groups.remove(&trial);
                let reason = "bad luck".to_owned();
                self.inbox.push(Input::group(trial, generation, GroupEvent::Failed { reason, cause }));
                return;
            }
        }
        let advance = self.rng.random_range(0.2..1.0);
        let noise = NoiseScale::new(self.rng.random_range(10.0..1000.0)).ok();
        let checkpoint = self.chance(200);
        let Some(group) = self.groups.get_mut(&trial) else { return };
        if !group.formed {
            group.formed = true;
            group.leaving.clear();
            self.inbox.push(Input::group(trial, group.generation, GroupEvent::Formed));
            return;
        }
        group.finished = group.epochs + advance >= self.study.trial.epochs;
        group.epochs += advance;
        group.reports += 1;
        let (generation, epochs) = (group.generation, group.epochs);
        let gpus = group.slots.len() as u32;
        let nodes = group.slots.iter().map(|slot| slot.node).collect::<BTreeSet<_>>().len() as u32;
        let seconds = 0.1 + 0.05 * f64::from(nodes - 1) + 0.02 * f64::from(gpus - 1);
        let steps = match self.kind {
            TrialKind::Elastic => {
                let shape = Shape::new(gpus, nodes).expect("nodes have GPUs");
                let per_gpu = f64::from(64 / gpus);
                vec![Observation { shape, per_gpu, accumulation: 0, iter_time_s: seconds, steps: 20.0 }]
            }
            TrialKind::Rigid | TrialKind::Restarted => Vec::new(),
        };
        let metrics = BTreeMap::from([("loss".to_owned(), self.loss(trial, epochs).into())]);
        let number = self.groups[&trial].reports;
        let report = Report { number, epochs, metrics: metrics.clone(), steps, noise, noise_batch: None };
        self.inbox.push(Input::group(trial, generation, GroupEvent::Reported(report)));
        if checkpoint {
            let checkpoint = Checkpoint { name: format!("{trial}"), epochs };
            self.inbox.push(Input::group(trial, generation, GroupEvent::Checkpointed(checkpoint)));
        }
        if epochs >= self.study.trial.epochs {
            self.inbox.push(Input::group(trial, generation, GroupEvent::Finished(metrics)));
        }
    }

    /// Trials differ, and get better.
    fn loss(&self, trial: TrialId, epochs: f64) -> f64 {
        let active = self.engine.state().active.get(&trial);
        let x = active.and_then(|active| active.params.float("x").ok()).unwrap_or(0.5);
        x + 1.0 / (1.0 + epochs)
    }

    fn kill_worker(&mut self) {
        let up: Vec<SlotId> = self
            .alive
            .iter()
            .flat_map(|(&node, (_, _, up))| up.iter().map(move |&index| SlotId { node, index }))
            .collect();
        if up.is_empty() {
            return;
        }
        let slot = up[self.rng.random_range(0..up.len())];
        if let Some((_, _, up)) = self.alive.get_mut(&slot.node) {
            up.remove(&slot.index);
        }
        self.nodes.push_back(Input::WorkerLost { slot, reason: "killed".to_owned() });
        self.break_groups(|other| *other == slot);
    }

    fn kill_node(&mut self) {
        let Some(node) = self.any_node() else { return };
        self.draining.remove(&node);
        self.break_groups(|slot| slot.node == node);
        match self.rng.random_range(0..3) {
            // It is back before its loss was noticed.
            0 => {}
            1 => self.nodes.push_back(Input::NodeLost { node, reason: "no word from it".to_owned() }),
            _ => return self.lose_node(node),
        }
        if let Some((_, slots, up)) = self.alive.get_mut(&node) {
            *up = (0..*slots).collect();
        }
        self.join(node);
    }

    fn any_node(&mut self) -> Option<NodeId> {
        let nodes: Vec<NodeId> = self.alive.keys().copied().collect();
        (!nodes.is_empty()).then(|| nodes[self.rng.random_range(0..nodes.len())])
    }

    /// A node is gone for a while.
    fn lose_node(&mut self, node: NodeId) {
        self.draining.remove(&node);
        self.nodes.push_back(Input::NodeLost { node, reason: "it was taken away".to_owned() });
        self.break_groups(|slot| slot.node == node);
        if let Some((gpu_type, slots, _)) = self.alive.remove(&node) {
            self.gone.push((node, gpu_type, slots));
        }
    }

    fn drain(&mut self) {
        let Some(node) = self.any_node() else { return };
        self.drains += 1;
        self.draining.insert(node);
        self.announce(node);
    }

    /// A node that was announced to leave does so.
    fn end_drain(&mut self) {
        if let Some(node) = self.draining.first().copied() {
            self.lose_node(node);
        }
    }

    /// A machine that was taken away is back, under its number or another one.
    fn come_again(&mut self) {
        let (before, gpu_type, slots) = self.gone.remove(self.rng.random_range(0..self.gone.len()));
        let node = if self.rng.random_bool(0.5) { before } else { NodeId(self.next_node) };
        self.next_node += u32::from(node != before);
        self.alive.insert(node, (gpu_type, slots, (0..slots).collect()));
        self.join(node);
    }

    fn break_groups(&mut self, lost: impl Fn(&SlotId) -> bool) {
        for group in self.groups.values_mut() {
            group.broken |= group.slots.iter().any(&lost);
        }
    }

    /// Dead workers come back.
    fn revive(&mut self) {
        for (&node, (_, slots, up)) in &mut self.alive {
            for index in 0..*slots {
                if up.insert(index) {
                    self.nodes.push_back(Input::WorkerJoined { slot: SlotId { node, index } });
                }
            }
        }
    }

    /// How often each trial was ended, by the journal.
    pub(crate) fn ends(&self) -> BTreeMap<TrialId, usize> {
        let mut ends = BTreeMap::new();
        for entry in &self.journal {
            let (Fact::TrialDone { trial, .. }
            | Fact::TrialStopped { trial, .. }
            | Fact::TrialFailed { trial, .. }
            | Fact::TrialCancelled { trial, .. }) = &entry.fact
            else {
                continue;
            };
            *ends.entry(*trial).or_default() += 1;
        }
        ends
    }

    /// Asks for an orderly stop.
    pub(crate) fn stop(&mut self) {
        self.inbox.push(Input::StopRequested);
    }

    /// Puts failed trials back while no head runs, and starts again; how many they are.
    pub(crate) fn retry(&mut self) -> usize {
        let state = self.engine.state();
        let at_s = state.at_s;
        let facts = state.retry(&[]).expect("all that have failed can be retried");
        for fact in &facts {
            let entry = JournalEntry { at_s, fact: fact.clone() };
            self.twin.apply(&entry).expect("it follows");
            self.journal.push(entry);
        }
        self.restart();
        facts.iter().filter(|fact| matches!(fact, Fact::TrialRetried { .. })).count()
    }

    /// Starts again after an orderly stop.
    pub(crate) fn resume(&mut self) {
        self.restart();
    }
}
