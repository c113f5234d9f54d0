//! Machines that drain, are taken away, and come again, under another number.

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
    here: Vec<bool>,
    /// The number of each with the last head that it has joined.
    nodes: Vec<Option<NodeId>>,
}

impl Machines {
    pub(super) fn new(nodes: &[NodeDescription]) -> Self {
        Self { here: vec![true; nodes.len()], nodes: vec![None; nodes.len()] }
    }

    /// The machine that is here as this node.
    fn machine(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|of| *of == Some(node)).filter(|machine| self.here[*machine])
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
        let Some(head) = self.head.as_mut().filter(|_| self.machines.here[machine]) else { return };
        let node = head.numbers.give();
        self.machines.nodes[machine] = Some(node);
        let of = NodeDescription { node, ..self.scenario.nodes[machine].clone() };
        let slots = of.processes.iter().sum::<u32>();
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
        let Some(node) = self.machines.nodes[machine].filter(|_| self.machines.here[machine]) else { return };
        let Some(head) = &self.head else { return };
        let now_s = head.began.0 + self.now_s - head.began.1;
        let within_s = self.seconds(0.5, 60.0);
        let (until_s, reason) = (now_s + within_s, "its time ends".to_owned());
        // Some go when nothing runs there any more, or when they are taken away all the same.
        let until_s = if self.rng.random_bool(0.3) { f64::INFINITY } else { until_s };
        self.send(Address::Supervisor, Message::Input(Input::NodeDraining { node, until_s, reason }));
        self.after(within_s, Event::DrainEnds { head: self.heads, node });
    }

    /// The time of a machine that was announced to leave is over. A new head knows nothing of it.
    pub(super) fn end_drain(&mut self, head: u32, node: NodeId) {
        if let Some(machine) = self.machines.machine(node).filter(|_| head == self.heads) {
            self.end_programs(node);
            self.take_away(machine);
        }
    }

    /// A machine may go: it does, sooner or later.
    pub(super) fn release_node(&mut self, node: NodeId) {
        self.note(format_args!("node {node} is let go"));
        let after_s = self.seconds(0.0, 5.0);
        self.after(after_s, Event::DrainEnds { head: self.heads, node });
    }

    /// Any machine is gone without a word.
    pub(super) fn remove_node(&mut self) {
        let machine = self.rng.random_range(0..self.machines.here.len());
        if self.machines.here[machine] {
            self.take_away(machine);
        }
    }

    /// A machine is gone, with all that ran there, and comes again some time.
    fn take_away(&mut self, machine: usize) {
        self.note(format_args!("machine {machine} is taken away"));
        self.machines.here[machine] = false;
        self.leave_head(machine);
        let for_s = if self.is_calm { self.seconds(0.0, 1.0) } else { self.seconds(0.0, 60.0) };
        self.after(for_s, Event::NodeAgain { machine });
    }

    /// What a head notices of a machine that is gone.
    fn leave_head(&mut self, machine: usize) {
        let Some(node) = self.machines.nodes[machine].take() else { return };
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
        if self.machines.here[machine] {
            return;
        }
        self.machines.here[machine] = true;
        self.note(format_args!("machine {machine} comes again"));
        self.join_node(machine);
    }
}
