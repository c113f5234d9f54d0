//! The worker processes of one machine: whom each worker works for, and when a process is started again.
//!
//! A slot has one owner at a time. Another group that wants it waits until the owner's worker has left, so that a worker never hosts
//! two trials, whatever the engine has decided meanwhile.

use std::{collections::VecDeque, time::Duration};

use super::{
    engine::Input,
    group::{WorkerCommand, WorkerEvent},
};
use crate::ids::{GpuType, NodeId, SlotId, TrialId};

/// A worker process that ends this often before it connects will not do better the next time.
const TRIES: u32 = 3;
/// One that is killed may do so more often: that is somebody else's doing.
const KILLS: u32 = 12;
/// How long to wait with the next try; twice as long each time.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long workers may take to connect; twice as long each time, as libraries may come over a slow network.
const CONNECT: Duration = Duration::from_secs(60);

/// A group that has a worker or waits for one. Two groups of a trial differ.
pub trait SlotOwner: Clone + PartialEq {
    /// Its trial.
    fn trial(&self) -> TrialId;
}

/// Whose fault the end of a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessFault {
    /// Its own: it will do no better the next time.
    Own,
    /// That of whoever sent `SIGKILL`.
    Killed,
    /// That of the machine, which has no more processes, files, memory or room on its disk: it never began.
    Environment,
}

/// What is to be done about a machine, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeOutput<O> {
    /// Send a command to the worker of a slot.
    Send {
        /// The slot.
        slot: SlotId,
        /// The command.
        command: WorkerCommand,
    },
    /// Tell a group what a worker has reported.
    Group {
        /// The group.
        owner: O,
        /// The slot of the worker.
        slot: SlotId,
        /// What it has reported; none if it is gone.
        event: Option<WorkerEvent>,
    },
    /// Tell the engine.
    Engine(Input),
    /// Start a process.
    Start {
        /// Its number on the machine.
        process: usize,
        /// Not before this time has passed.
        after: Duration,
    },
    /// End a process that nobody can talk to, or that stands still.
    Kill {
        /// Its number on the machine.
        process: usize,
    },
    /// The machine is of no use: a process of it ended too often before all workers had joined.
    GiveUp {
        /// The number of the process.
        process: usize,
    },
}

/// Numbers for machines that join a head. None is given twice, so that whatever is still under way about a machine that has left (that it
/// drains, may go, is lost) never meets one that has joined later, be it the same machine again.
#[derive(Debug, Clone, Default)]
pub struct NodeNumbers {
    next: u32,
}

impl NodeNumbers {
    /// The number of a node that joins.
    pub fn give(&mut self) -> NodeId {
        let node = NodeId(self.next);
        self.next = self.next.saturating_add(1);
        node
    }
}

/// What a machine is.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeDescription {
    /// Its number.
    pub node: NodeId,
    /// What people call it; empty if it has no name.
    pub name: String,
    /// The type of its GPUs.
    pub gpu_type: GpuType,
    /// Its network island.
    pub island: u32,
    /// The slots that each of its processes serves.
    pub processes: Vec<u32>,
}

/// The state of one machine: takes what happens to its processes and what groups want of its workers, gives what is to be done.
///
/// ```
/// use pollux_tune::ids::{GpuType, NodeId, TrialId};
/// use pollux_tune::trials::engine::Input;
/// use pollux_tune::trials::group::{Task, WorkerCommand};
/// use pollux_tune::trials::node::{NodeDescription, NodeDriver, NodeOutput, SlotOwner};
///
/// #[derive(Debug, Clone, PartialEq)]
/// struct Owner(TrialId);
/// impl SlotOwner for Owner {
///     fn trial(&self) -> TrialId {
///         self.0
///     }
/// }
///
/// let (name, gpu_type) = ("gpu1".to_owned(), GpuType::new("t4")?);
/// let of = NodeDescription { node: NodeId(0), name, gpu_type, island: 0, processes: vec![1] };
/// let (mut node, outputs) = NodeDriver::<Owner>::new(of);
/// assert!(matches!(outputs[..], [NodeOutput::Start { process: 0, .. }]));
/// assert!(matches!(node.joined(0)[..], [NodeOutput::Engine(Input::NodeJoined { slots: 1, .. })]));
///
/// let prepare = |trial| WorkerCommand::Prepare(Box::new(Task::new(trial, "cifar10")));
/// let first = node.command(0, Owner(TrialId(7)), prepare(TrialId(7)));
/// assert!(matches!(first[..], [NodeOutput::Send { .. }]));
/// assert_eq!(node.command(0, Owner(TrialId(8)), prepare(TrialId(8))), [], "it waits");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct NodeDriver<O> {
    of: NodeDescription,
    slots: Vec<SlotState<O>>,
    processes: Vec<ProcessState>,
    /// Processes that were started so far.
    starts: u64,
    has_joined: bool,
    outputs: Vec<NodeOutput<O>>,
}

#[derive(Debug, Clone, PartialEq)]
struct SlotState<O> {
    process: usize,
    /// A worker is connected.
    is_up: bool,
    owner: Option<O>,
    /// Commands of whoever comes next.
    waiting: VecDeque<(O, WorkerCommand)>,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct ProcessState {
    /// The number of its last start.
    start: u64,
    /// Ends since a worker of it last connected.
    failures: u32,
    /// Those of them that were its own fault.
    faults: u32,
    /// Those of them that were the work of `SIGKILL`.
    kills: u32,
}

impl<O: SlotOwner> NodeDriver<O> {
    /// A machine on which nothing runs yet.
    #[must_use]
    pub fn new(of: NodeDescription) -> (Self, Vec<NodeOutput<O>>) {
        let slots = of.processes.iter().enumerate().flat_map(|(process, &slots)| {
            let slot = move |_| SlotState { process, is_up: false, owner: None, waiting: VecDeque::new() };
            (0..slots).map(slot)
        });
        let (slots, processes) =
            (slots.collect(), of.processes.iter().map(|_| ProcessState::default()).collect::<Vec<_>>());
        let start = |process| NodeOutput::Start { process, after: Duration::ZERO };
        let outputs = (0..processes.len()).map(start).collect();
        (Self { of, slots, processes, starts: 0, has_joined: false, outputs: Vec::new() }, outputs)
    }

    /// The group that a worker works for.
    #[must_use]
    pub fn owner(&self, index: usize) -> Option<&O> {
        self.slots.get(index)?.owner.as_ref()
    }

    /// Whether there is a worker in a slot.
    #[must_use]
    pub fn is_up(&self, index: usize) -> bool {
        self.slots.get(index).is_some_and(|slot| slot.is_up)
    }

    /// The slots of a process.
    pub fn slots_of(&self, process: usize) -> impl Iterator<Item = usize> {
        let own = move |(index, slot): (usize, &SlotState<O>)| (slot.process == process).then_some(index);
        self.slots.iter().enumerate().filter_map(own)
    }

    /// A worker has connected.
    #[must_use]
    pub fn joined(&mut self, index: usize) -> Vec<NodeOutput<O>> {
        self.lose(index, "another process has taken its slot");
        let slot = self.slot(index);
        let Some(state) = self.slots.get_mut(index) else { return Vec::new() };
        state.is_up = true;
        let process = &mut self.processes[state.process];
        *process = ProcessState { start: process.start, ..ProcessState::default() };
        if self.has_joined {
            self.outputs.push(NodeOutput::Engine(Input::WorkerJoined { slot }));
        } else if self.slots.iter().all(|state| state.is_up) {
            self.has_joined = true;
            let NodeDescription { node, name, gpu_type, island, .. } = self.of.clone();
            let slots = self.slots.len() as u32;
            self.outputs.push(NodeOutput::Engine(Input::NodeJoined { node, name, gpu_type, island, slots }));
        }
        self.take_outputs()
    }

    /// The connection of a worker has ended.
    #[must_use]
    pub fn disconnected(&mut self, index: usize) -> Vec<NodeOutput<O>> {
        self.lose(index, "its connection ended");
        if let Some(state) = self.slots.get(index) {
            // A process that nobody can talk to is of no use.
            self.outputs.push(NodeOutput::Kill { process: state.process });
        }
        self.take_outputs()
    }

    /// A process was started. [`overdue`](Self::overdue) is to be called with the number after the time: it may have stood still before
    /// anybody could talk to it.
    #[must_use]
    pub fn started(&mut self, process: usize) -> (u64, Duration) {
        self.starts += 1;
        let state = &mut self.processes[process];
        state.start = self.starts;
        (self.starts, CONNECT.saturating_mul(1 << state.failures.min(4)))
    }

    /// The time of a process to connect is over.
    #[must_use]
    pub fn overdue(&self, process: usize, start: u64) -> Vec<NodeOutput<O>> {
        let is_connected = self.slots_of(process).all(|index| self.is_up(index));
        if self.processes[process].start == start && !is_connected {
            vec![NodeOutput::Kill { process }]
        } else {
            Vec::new()
        }
    }

    /// The worker of a slot stands still, as the group says that it works for. Its process is of no use any more: all its workers are
    /// gone from now on. Another group knows nothing of it.
    #[must_use]
    pub fn kill(&mut self, index: usize, from: &O, reason: &str) -> Vec<NodeOutput<O>> {
        let is_its = |state: &&SlotState<O>| state.is_up && state.owner.as_ref() == Some(from);
        let Some(process) = self.slots.get(index).filter(is_its).map(|state| state.process) else {
            return Vec::new();
        };
        self.lose(index, reason);
        let others: Vec<usize> = self.slots_of(process).collect();
        for other in others {
            self.lose(other, &format!("its process was ended, because {reason}"));
        }
        self.outputs.push(NodeOutput::Kill { process });
        self.take_outputs()
    }

    /// A process is gone: another one takes its place.
    #[must_use]
    pub fn ended(&mut self, process: usize, how: &str, fault: ProcessFault) -> Vec<NodeOutput<O>> {
        let own: Vec<usize> = self.slots_of(process).collect();
        for index in own {
            self.lose(index, how);
        }
        let state = &mut self.processes[process];
        state.failures += 1;
        state.faults += u32::from(fault == ProcessFault::Own);
        state.kills += u32::from(fault == ProcessFault::Killed);
        let failures = state.failures;
        let is_hopeless = state.faults >= TRIES || state.faults + state.kills >= KILLS;
        if fault == ProcessFault::Environment {
            // No other process would do better: it is tried until it can be started.
            let (node, reason) = (self.of.node, how.to_owned());
            self.outputs.push(NodeOutput::Engine(Input::NodeBlocked { node, reason }));
        } else if is_hopeless && !self.has_joined {
            self.outputs.push(NodeOutput::GiveUp { process });
        }
        let pause = PAUSE.saturating_mul(1 << failures.saturating_sub(2).min(8)).min(LONGEST_PAUSE);
        // The first end after a good time is an accident.
        let after = if failures == 1 { Duration::ZERO } else { pause };
        self.outputs.push(NodeOutput::Start { process, after });
        self.take_outputs()
    }

    /// The machine is gone, with all its workers. Nothing is to be done about it any more.
    #[must_use]
    pub fn lost(&mut self, reason: &str) -> Vec<NodeOutput<O>> {
        for index in 0..self.slots.len() {
            self.tell_groups(index);
        }
        // One that has not joined may be known as blocked.
        let (node, reason) = (self.of.node, reason.to_owned());
        self.outputs.push(NodeOutput::Engine(Input::NodeLost { node, reason }));
        self.take_outputs()
    }

    /// A worker has reported something. What is not about the trial of its owner is of a group that has left.
    #[must_use]
    pub fn event(&mut self, index: usize, event: WorkerEvent) -> Vec<NodeOutput<O>> {
        let slot = self.slot(index);
        let has_left = matches!(event, WorkerEvent::Released { .. } | WorkerEvent::Failed { .. });
        let Some(state) = self.slots.get_mut(index) else { return Vec::new() };
        let Some(owner) = state.owner.clone().filter(|owner| owner.trial() == event.trial()) else {
            return Vec::new();
        };
        self.outputs.push(NodeOutput::Group { owner, slot, event: Some(event) });
        if has_left {
            state.owner = None;
            self.serve_next(index);
        }
        self.take_outputs()
    }

    /// A group has a command for a worker.
    #[must_use]
    pub fn command(&mut self, index: usize, from: O, command: WorkerCommand) -> Vec<NodeOutput<O>> {
        let slot = self.slot(index);
        let is_start = matches!(command, WorkerCommand::Prepare(_));
        let Some(state) = self.slots.get_mut(index).filter(|state| state.is_up) else {
            // Whoever had the worker knows of its loss already: a second event might come after the next worker has joined.
            return if is_start {
                vec![NodeOutput::Group { owner: from, slot, event: None }]
            } else {
                Vec::new()
            };
        };
        match &state.owner {
            Some(owner) if *owner != from => {
                // Who does not wait for it had it before: the worker has left, and that is on its way to the sender.
                if is_start || state.waiting.iter().any(|(waiting, _)| *waiting == from) {
                    state.waiting.push_back((from, command));
                }
                Vec::new()
            }
            Some(_) => vec![NodeOutput::Send { slot, command }],
            None if is_start => {
                state.owner = Some(from);
                vec![NodeOutput::Send { slot, command }]
            }
            // The worker has left, and its last event is on its way to the sender.
            None => Vec::new(),
        }
    }

    const fn slot(&self, index: usize) -> SlotId {
        SlotId { node: self.of.node, index: index as u32 }
    }

    /// The worker of a slot is gone.
    fn lose(&mut self, index: usize, reason: &str) {
        let slot = self.slot(index);
        if !self.is_up(index) {
            return;
        }
        // Groups are informed first: what the engine decides must not find them unaware.
        self.tell_groups(index);
        if self.has_joined {
            let reason = reason.to_owned();
            self.outputs.push(NodeOutput::Engine(Input::WorkerLost { slot, reason }));
        }
    }

    /// Tells those who have a worker or wait for it that it is gone.
    fn tell_groups(&mut self, index: usize) {
        let slot = self.slot(index);
        let Some(state) = self.slots.get_mut(index).filter(|state| state.is_up) else { return };
        state.is_up = false;
        let mut owners: Vec<O> = state.owner.take().into_iter().collect();
        for (owner, _) in state.waiting.drain(..) {
            if !owners.contains(&owner) {
                owners.push(owner);
            }
        }
        self.outputs.extend(owners.into_iter().map(|owner| NodeOutput::Group { owner, slot, event: None }));
    }

    /// Whoever has waited takes over, with all its commands.
    fn serve_next(&mut self, index: usize) {
        let slot = self.slot(index);
        let Some(state) = self.slots.get_mut(index) else { return };
        let Some(next) = state.waiting.front().map(|(owner, _)| owner.clone()) else { return };
        // Others may have come in between: what it had to say after them must not wait for them.
        for (owner, command) in std::mem::take(&mut state.waiting) {
            if owner == next {
                self.outputs.push(NodeOutput::Send { slot, command });
            } else {
                state.waiting.push_back((owner, command));
            }
        }
        state.owner = Some(next);
    }

    fn take_outputs(&mut self) -> Vec<NodeOutput<O>> {
        std::mem::take(&mut self.outputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trials::group::{FinalState, Task};

    impl SlotOwner for TrialId {
        fn trial(&self) -> TrialId {
            *self
        }
    }

    /// A node with one worker.
    fn node() -> NodeDriver<TrialId> {
        let gpu_type = GpuType::new("t4").unwrap();
        let of =
            NodeDescription { node: NodeId(0), name: String::new(), gpu_type, island: 0, processes: vec![1] };
        let (mut node, _) = NodeDriver::new(of);
        node.joined(0).clear();
        node
    }

    fn prepare(trial: TrialId) -> WorkerCommand {
        WorkerCommand::Prepare(Box::new(Task::new(trial, "net")))
    }

    const fn release(trial: TrialId) -> WorkerCommand {
        WorkerCommand::Release { trial, state: FinalState::Discarded }
    }

    /// Its worker has left and works for the next one: what it still has to say must not make it the owner again.
    #[test]
    fn a_group_does_not_get_a_worker_back_that_has_left_it() {
        let mut node = node();
        let [first, second] = [0, 1].map(TrialId);
        node.command(0, first, prepare(first)).clear();
        node.command(0, second, prepare(second)).clear();
        node.event(0, WorkerEvent::Released { trial: first }).clear();
        assert_eq!(node.owner(0), Some(&second));
        assert_eq!(node.command(0, first, release(first)), []);
        assert_eq!(
            node.event(0, WorkerEvent::Released { trial: second }).len(),
            1,
            "only who had it is told"
        );
        assert_eq!(node.owner(0), None);
    }

    /// The second group waits, a third comes after it, and the second gives up: its release must not wait for the third.
    #[test]
    fn a_group_that_gave_up_while_it_waited_is_not_held_up_by_the_next_one() {
        let (mut node, slot) = (node(), SlotId { node: NodeId(0), index: 0 });
        let [first, second, third] = [0, 1, 2].map(TrialId);
        assert_eq!(node.command(0, first, prepare(first)).len(), 1);
        for (from, command) in [(second, prepare(second)), (third, prepare(third)), (second, release(second))]
        {
            assert_eq!(node.command(0, from, command), []);
        }
        let told =
            NodeOutput::Group { owner: first, slot, event: Some(WorkerEvent::Released { trial: first }) };
        let send = |command| NodeOutput::Send { slot, command };
        let outputs = node.event(0, WorkerEvent::Released { trial: first });
        assert_eq!(outputs, [told, send(prepare(second)), send(release(second))]);
        let outputs = node.event(0, WorkerEvent::Released { trial: second });
        assert_eq!(outputs.last(), Some(&send(prepare(third))));
    }
}
