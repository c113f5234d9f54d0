//! Machines that drain, are taken away, and come again, under their number or another one.

use rand::RngExt;

use super::{
    head::NodeActor,
    world::{Address, Event, Message, World},
};
use crate::{
    ids::NodeId,
    trials::{
        engine::{FailureCause, GroupEvent, Input, TrialKind},
        node::{NodeDescription, NodeDriver, ProcessFault},
    },
};

/// Which machines are here.
#[derive(Debug)]
pub(super) struct Machines {
    /// The number of each; none while it is away.
    here: Vec<Option<NodeId>>,
    /// The number that each had last.
    last: Vec<NodeId>,
    next: u32,
    /// How often each came again.
    returns: Vec<u64>,
}

impl Machines {
    pub(super) fn new(nodes: &[NodeDescription]) -> Self {
        let last: Vec<NodeId> = nodes.iter().map(|of| of.node).collect();
        Self {
            here: last.iter().copied().map(Some).collect(),
            next: last.len() as u32,
            last,
            returns: vec![0; nodes.len()],
        }
    }

    /// How often the machine that is here as this node came again.
    fn returns_of(&self, node: NodeId) -> Option<u64> {
        let machine = self.here.iter().position(|here| *here == Some(node))?;
        Some(self.returns[machine])
    }
}

impl World {
    /// All machines that are here join a head that has started.
    pub(super) fn join_all(&mut self) {
        for machine in 0..self.machines.here.len() {
            self.join_node(machine);
        }
    }

    fn join_node(&mut self, machine: usize) {
        let Some(node) = self.machines.here[machine] else { return };
        let of = NodeDescription { node, ..self.scenario.nodes[machine].clone() };
        let slots = of.processes.iter().sum::<u32>();
        let Some(head) = &mut self.head else { return };
        if self.scenario.kind != TrialKind::Elastic {
            let NodeDescription { node, name, gpu_type, island, .. } = of;
            let joined = Input::NodeJoined { node, name, gpu_type, island, slots };
            self.send(Address::Supervisor, Message::Input(joined));
            return;
        }
        let (workers, processes) = (vec![None; slots as usize], vec![None; of.processes.len()]);
        let (driver, outputs) = NodeDriver::new(of);
        head.next_node += 1;
        let key = head.next_node;
        head.nodes.insert(key, NodeActor { machine, node, driver, workers, processes });
        head.places.insert(node, key);
        self.carry_out_by_node(key, outputs);
    }

    /// A machine is announced to leave, which it does some time later.
    pub(super) fn drain_node(&mut self) {
        let machine = self.rng.random_range(0..self.machines.here.len());
        let (Some(node), Some(head)) = (self.machines.here[machine], &self.head) else { return };
        let now_s = head.began.0 + self.now_s - head.began.1;
        let within_s = self.seconds(0.5, 60.0);
        let (until_s, reason) = (now_s + within_s, "its time ends".to_owned());
        // Some go when nothing runs there any more, or when they are taken away all the same.
        let until_s = if self.rng.random_bool(0.3) { f64::INFINITY } else { until_s };
        self.send(Address::Supervisor, Message::Input(Input::NodeDraining { node, until_s, reason }));
        self.after(within_s, self.drain_ends(node));
    }

    /// A new head knows nothing of it, and what comes again under the number meanwhile stays.
    fn drain_ends(&self, node: NodeId) -> Event {
        Event::DrainEnds { head: self.heads, returns: self.machines.returns_of(node), node }
    }

    /// The time of a machine that was announced to leave is over.
    pub(super) fn end_drain(&mut self, head: u32, returns: Option<u64>, node: NodeId) {
        if (head, returns) == (self.heads, self.machines.returns_of(node)) {
            self.end_programs(node);
            self.take_away(node);
        }
    }

    /// A machine may go: it does, sooner or later.
    pub(super) fn release_node(&mut self, node: NodeId) {
        self.note(format_args!("node {node} is let go"));
        let after_s = self.seconds(0.0, 5.0);
        self.after(after_s, self.drain_ends(node));
    }

    /// Any machine is gone without a word.
    pub(super) fn remove_node(&mut self) {
        let machine = self.rng.random_range(0..self.machines.here.len());
        if let Some(node) = self.machines.here[machine] {
            self.take_away(node);
        }
    }

    /// A machine is gone, with all that ran there, and comes again some time.
    fn take_away(&mut self, node: NodeId) {
        let Some(machine) = self.machines.here.iter().position(|here| *here == Some(node)) else { return };
        self.note(format_args!("node {node} is taken away"));
        self.machines.here[machine] = None;
        let key = self.head.as_mut().and_then(|head| head.places.remove(&node));
        if let Some(key) = key {
            let lost = self.processes.on(key);
            let trials = lost.iter().flat_map(|process| self.trials_of(*process)).collect();
            self.expect_recovery(trials);
            for process in lost {
                self.kill_process(process, "the machine is gone", ProcessFault::Killed);
            }
            self.send(Address::Node(key), Message::AgentLost);
        } else if self.scenario.kind != TrialKind::Elastic && self.head.is_some() {
            self.programs.end_on(node);
            let lost = Input::NodeLost { node, reason: "no word from it".to_owned() };
            self.send(Address::Supervisor, Message::Input(lost));
        }
        let for_s = if self.is_calm { self.seconds(0.0, 1.0) } else { self.seconds(0.0, 60.0) };
        self.after(for_s, Event::NodeAgain { machine });
    }

    /// Programs that are ended with their machine look as if they had failed by themselves.
    fn end_programs(&mut self, node: NodeId) {
        for (trial, generation) in self.programs.end_on(node) {
            if self.rng.random_bool(0.5) {
                let (reason, cause) = ("signal: 15".to_owned(), FailureCause::Trial);
                let failed = Input::group(trial, generation, GroupEvent::Failed { reason, cause });
                self.send(Address::Supervisor, Message::Input(failed));
            }
        }
    }

    /// A machine that was away is here again.
    pub(super) fn come_again(&mut self, machine: usize) {
        if self.machines.here[machine].is_some() {
            return;
        }
        if self.rng.random_bool(0.5) {
            self.machines.last[machine] = NodeId(self.machines.next);
            self.machines.next += 1;
        }
        let node = self.machines.last[machine];
        self.machines.here[machine] = Some(node);
        self.machines.returns[machine] += 1;
        self.note(format_args!("machine {machine} comes again as node {node}"));
        self.join_node(machine);
    }
}
