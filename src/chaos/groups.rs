//! The groups and nodes of a simulated head.

use super::{
    Fault, INJECTED, Life,
    head::{GroupActor, Owner},
    processes::Place,
    trace::shown_message,
    world::{Address, Event, Message, World},
};
use crate::{
    ids::{Round, SlotId, StudyId, TrialId},
    trials::{
        Execution,
        engine::{AllocatorRequest, GroupCommand, Input, Launch},
        group::{Driver, FinalState, Limits, Output, Task, WorkerCommand, WorkerEvent},
        node::{NodeOutput, ProcessFault},
        trial_seed,
    },
};

impl World {
    pub(super) fn allocate(&mut self, request: &AllocatorRequest) {
        let mut site = self.site.borrow_mut();
        let answer = match *request {
            AllocatorRequest::Fit { revision, trial } if site.strikes(Fault::FitFails) => {
                Input::FitDone { revision, trial, answer: None }
            }
            AllocatorRequest::Solve { revision, .. } if site.strikes(Fault::SolverFails) => {
                Input::PlanSolved { revision, answer: Err(INJECTED.to_owned()), places: None }
            }
            _ => {
                let Some(head) = &mut self.head else { return };
                head.services.allocate.answer(request)
            }
        };
        drop(site);
        self.send(Address::Supervisor, Message::Input(answer));
    }

    /// As the actor that makes groups and hands commands to them.
    pub(super) fn command_group(&mut self, trial: TrialId, command: GroupCommand) {
        let Some(head) = &mut self.head else { return };
        let last = GroupCommand::Stop(FinalState::Discarded);
        let before = head.groups.get(&trial).copied();
        if let GroupCommand::Launch(launch) = command {
            head.next_group += 1;
            let group = head.next_group;
            head.groups.insert(trial, group);
            if let Some(before) = before {
                self.send(Address::Group(before), Message::Group(last));
            }
            self.send(Address::Group(group), Message::Launch(trial, launch));
            return;
        }
        if command == last {
            head.groups.remove(&trial);
        }
        if let Some(group) = before {
            self.send(Address::Group(group), Message::Group(command));
        }
    }

    pub(super) fn launch_group(&mut self, group: u64, trial: TrialId, launch: Launch) {
        let (task, round) = (self.task(trial, &launch), Round::before(launch.generation));
        let (driver, outputs) = Driver::launch(task.clone(), launch, Limits::default(), self.now_s);
        if let Some(head) = &mut self.head {
            head.drivers.insert(group, GroupActor { driver, round, task, timer_s: None });
        }
        self.carry_out_by_group(group, outputs);
    }

    pub(super) fn on_group_command(&mut self, group: u64, command: GroupCommand) {
        let actor = self.head.as_mut().and_then(|head| head.drivers.get_mut(&group));
        let outputs = actor.map(|actor| actor.driver.on_command(command, self.now_s)).unwrap_or_default();
        self.carry_out_by_group(group, outputs);
    }

    pub(super) fn on_worker(&mut self, group: u64, slot: SlotId, event: Option<WorkerEvent>) {
        let actor = self.head.as_mut().and_then(|head| head.drivers.get_mut(&group));
        let Some(actor) = actor else { return };
        let has_failed = matches!(event, Some(WorkerEvent::Failed { .. }));
        let mut outputs = match event {
            Some(event) => actor.driver.on_worker(slot, event, self.now_s),
            None => actor.driver.on_lost(slot, self.now_s),
        };
        if has_failed && self.defects.prepares_the_dead {
            let command = WorkerCommand::Prepare(Box::new(actor.task.clone()));
            outputs.push(Output::Send { slot, command });
        }
        self.carry_out_by_group(group, outputs);
    }

    pub(super) fn carry_out_by_group(&mut self, group: u64, outputs: Vec<Output>) {
        for output in outputs {
            let Some(head) = &mut self.head else { return };
            let Some(actor) = head.drivers.get(&group) else { return };
            let trial = actor.driver.trial();
            match output {
                Output::Send { slot, command } => {
                    let from = Owner { trial, round: actor.round, group };
                    let index = slot.index as usize;
                    match head.places.get(&slot.node) {
                        Some(key) => {
                            let to = Address::Node(*key);
                            self.send(to, Message::ToWorker { index, from, command });
                        }
                        None => self.send(Address::Group(group), Message::FromWorker { slot, event: None }),
                    }
                }
                Output::Kill { slot, reason } => {
                    let from = Owner { trial, round: actor.round, group };
                    if let Some(key) = head.places.get(&slot.node) {
                        let to = Address::Node(*key);
                        self.send(to, Message::KillWorker { index: slot.index as usize, from, reason });
                    }
                }
                Output::Engine { generation, event } => {
                    let input = Input::group(trial, generation, event);
                    self.send(Address::Supervisor, Message::Input(input));
                }
                Output::Left => {
                    head.drivers.remove(&group);
                }
            }
        }
        self.set_timer(group);
    }

    /// Sees to it that a driver is told the time when it wants to know it.
    pub(super) fn set_timer(&mut self, group: u64) {
        let actor = self.head.as_mut().and_then(|head| head.drivers.get_mut(&group));
        let Some(actor) = actor else { return };
        let Some(at_s) = actor.driver.deadline_s() else { return };
        if actor.timer_s.is_none_or(|set_s| set_s > at_s) {
            actor.timer_s = Some(at_s);
            let head = self.heads;
            self.after(at_s - self.now_s, Event::GroupTime { head, group });
        }
    }

    /// The time has come that a driver wanted to know of.
    pub(super) fn tell_time(&mut self, head: u32, group: u64) {
        let actor = self.head.as_mut().and_then(|head| head.drivers.get_mut(&group));
        let Some(actor) = actor.filter(|_| head == self.heads) else { return };
        actor.timer_s = None;
        let outputs = actor.driver.on_time(self.now_s);
        self.carry_out_by_group(group, outputs);
    }

    pub(super) fn task(&self, trial: TrialId, launch: &Launch) -> Task {
        let (study, settings) = (&self.scenario.study, &self.scenario.study.trial);
        let params = match serde_json::to_value(&launch.params) {
            Ok(serde_json::Value::Object(params)) => params,
            _ => serde_json::Map::new(),
        };
        Task {
            study: StudyId::default(),
            params,
            seed: trial_seed(study.search.seed, trial, Execution::Simulated),
            epochs: settings.epochs,
            initial_batch: settings.initial_batch,
            checkpoint_every_s: settings.checkpoint_interval.as_secs_f64(),
            report_every_s: 4.0,
            ..Task::new(trial, "modelled")
        }
    }

    pub(super) fn on_node(&mut self, node: usize, message: Message) {
        let Some(actor) = self.head.as_mut().and_then(|head| head.nodes.get_mut(&node)) else { return };
        let outputs = match message {
            Message::ToWorker { index, from, command } => actor.driver.command(index, from, command),
            Message::KillWorker { index, from, reason } => {
                let outputs = actor.driver.kill(index, &from, &reason);
                for output in &outputs {
                    if let NodeOutput::Kill { process } = output {
                        for index in actor.driver.slots_of(*process) {
                            actor.workers[index] = None;
                        }
                    }
                }
                outputs
            }
            Message::AgentLost => {
                let outputs = actor.driver.lost("no word from it");
                self.carry_out_by_node(node, outputs);
                // From now on nobody reads what is sent there.
                if let Some(head) = &mut self.head {
                    head.nodes.remove(&node);
                }
                return;
            }
            Message::Ended { process, how, fault } => {
                actor.processes[process] = None;
                for index in actor.driver.slots_of(process) {
                    actor.workers[index] = None;
                }
                actor.driver.ended(process, how, fault)
            }
            _ => return,
        };
        self.carry_out_by_node(node, outputs);
    }

    /// Something comes from a worker, over its connection.
    pub(super) fn on_connection(&mut self, life: Life, message: Message) {
        let place = self.processes.place(life).filter(|place| place.head == self.heads);
        let Some(Place { head, node, slot }) = place else { return };
        let index = slot.index as usize;
        self.note(format_args!("head {head} hears of worker {life} on {slot}: {}", shown_message(&message)));
        let Some(actor) = self.head.as_mut().and_then(|head| head.nodes.get_mut(&node)) else { return };
        let is_known = actor.workers[index] == Some(life);
        let outputs = match message {
            Message::Joined => {
                actor.workers[index] = Some(life);
                actor.driver.joined(index)
            }
            Message::Event(event) if is_known => actor.driver.event(index, event),
            Message::Lost if is_known => {
                actor.workers[index] = None;
                actor.driver.disconnected(index)
            }
            _ => return,
        };
        self.carry_out_by_node(node, outputs);
    }

    pub(super) fn carry_out_by_node(&mut self, node: usize, outputs: Vec<NodeOutput<Owner>>) {
        for output in outputs {
            let Some(actor) = self.head.as_ref().and_then(|head| head.nodes.get(&node)) else { return };
            match output {
                NodeOutput::Send { slot, command } => {
                    if let Some(life) = actor.workers[slot.index as usize] {
                        self.send(Address::Down(life), Message::Command(command));
                    }
                }
                NodeOutput::Group { owner, slot, event } => {
                    self.send(Address::Group(owner.group), Message::FromWorker { slot, event });
                }
                NodeOutput::Engine(input) => self.send(Address::Supervisor, Message::Input(input)),
                NodeOutput::Start { process, after } => {
                    let head = self.heads;
                    self.after(after.as_secs_f64(), Event::Start { head, node, process });
                }
                NodeOutput::Kill { process } => {
                    if let Some(process) = actor.processes[process] {
                        let after_s = self.seconds(0.0, 0.02);
                        let how = "signal: 9";
                        self.after(after_s, Event::Kill { process, how, fault: ProcessFault::Killed });
                    }
                }
                NodeOutput::GiveUp { .. } => {
                    self.note(format_args!("the head ends: node {node} has no workers"));
                    self.end_head(0.1);
                }
            }
        }
    }

    /// The time of a process to connect is over.
    pub(super) fn check_start(&mut self, of: u32, node: usize, process: usize, start: u64) {
        let actor =
            self.head.as_mut().filter(|_| of == self.heads).and_then(|head| head.nodes.get_mut(&node));
        let outputs = actor.map(|actor| actor.driver.overdue(process, start)).unwrap_or_default();
        self.carry_out_by_node(node, outputs);
    }
}
