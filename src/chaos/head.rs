//! The head: what its actors do with their messages, around the real engine, services and drivers.

use std::{collections::BTreeMap, convert::Infallible, fmt::Write, sync::Arc};

use rand::RngExt;

use super::{
    Fault, INJECTED, Life,
    trace::{shown, shown_command, shown_fact},
    world::{Address, CrashPoint, Event, Message, World},
};
use crate::{
    ids::{NodeId, Round, TrialId},
    store::Journal,
    trials::{
        engine::{
            Command, Engine, GroupCommand, Input, JournalEntry, NoSuggestion, Outcome, Replay, Services,
            Step, TrialKind,
        },
        group::{Driver, FinalState, Task},
        node::{NodeDriver, NodeNumbers, ProcessFault, SlotOwner},
        outbox::{Admission, Effect, Outbox, Told, Unwritten},
    },
};

/// The group that a worker works for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub(super) trial: TrialId,
    /// Where its rounds begin.
    pub(super) round: Round,
    /// Its mailbox.
    pub(super) group: u64,
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        (self.trial, self.round) == (other.trial, other.round)
    }
}

impl SlotOwner for Owner {
    fn trial(&self) -> TrialId {
        self.trial
    }
}

/// One life of the head.
pub(super) struct Head {
    pub(super) engine: Engine,
    pub(super) services: Services,
    /// The groups that get the commands of trials.
    pub(super) groups: BTreeMap<TrialId, u64>,
    pub(super) drivers: BTreeMap<u64, GroupActor>,
    /// The actors of machines: each that joins has a new one.
    pub(super) nodes: BTreeMap<usize, NodeActor>,
    pub(super) next_node: usize,
    pub(super) numbers: NodeNumbers,
    /// Who serves which node now.
    pub(super) places: BTreeMap<NodeId, usize>,
    pub(super) next_group: u64,
    /// The time of day at its start, and the time of the world.
    pub(super) began: (f64, f64),
    /// What waits for the journal. Nobody waits for inputs.
    outbox: Outbox<Infallible>,
}

pub(super) struct GroupActor {
    pub(super) driver: Driver,
    pub(super) round: Round,
    pub(super) task: Task,
    /// When the driver is told the time next.
    pub(super) timer_s: Option<f64>,
}

pub(super) struct NodeActor {
    pub(super) machine: usize,
    pub(super) node: NodeId,
    pub(super) driver: NodeDriver<Owner>,
    /// The connection of each slot.
    pub(super) workers: Vec<Option<Life>>,
    /// The number of each process that runs.
    pub(super) processes: Vec<Option<u64>>,
}

impl World {
    /// Where everything stands, for messages.
    pub(super) fn stand(&self) -> String {
        let Some(head) = &self.head else { return "there is no head".to_owned() };
        let state = head.engine.state();
        // Texts take all that is written to them.
        let mut text = format!("{} of {} trials have ended", state.ended.len(), state.created());
        for (trial, active) in &state.active {
            let (phase, slots) = (active.phase.name(), active.slots());
            let _ = write!(text, "; trial {trial} is {phase} at {:.2} epochs on {slots:?}", active.epochs);
        }
        for actor in head.nodes.values() {
            for index in 0..actor.workers.len() {
                let owner = actor.driver.owner(index).map(|owner| owner.trial);
                let _ = write!(text, "; slot {}.{index} is up: {}", actor.node, actor.driver.is_up(index));
                if let Some(trial) = owner {
                    let _ = write!(text, ", of trial {trial}");
                }
            }
        }
        text
    }

    pub(super) fn start_head(&mut self) -> Result<(), String> {
        self.heads += 1;
        let failed = |error: &dyn std::error::Error| format!("the journal cannot be replayed: {error}");
        let replay = Replay::new(&self.scenario.study, self.scenario.kind);
        let mut replay = replay.map_err(|error| failed(&error))?;
        let facts = self.journal.all();
        facts.iter().try_for_each(|entry| replay.apply(entry)).map_err(|error| failed(&error))?;
        let (count, Replay { engine, services }) = (facts.len(), replay);
        let is_paused = engine.state().paused_s.is_some();
        self.rules.replayed(&engine)?;
        let today_s = (self.now_s + self.clock_s).max(engine.state().at_s);
        let (nodes, places, began) = (BTreeMap::new(), BTreeMap::new(), (today_s, self.now_s));
        let (groups, drivers) = (BTreeMap::new(), BTreeMap::new());
        self.head = Some(Head {
            engine,
            services,
            groups,
            drivers,
            nodes,
            next_node: 0,
            numbers: NodeNumbers::default(),
            places,
            next_group: 0,
            began,
            outbox: Outbox::new(),
        });
        self.note(format_args!("head {} starts with {} facts", self.heads, count));
        if is_paused {
            // Whatever was to end the pause may be lost with the head before.
            let for_s = self.seconds(1.0, 60.0);
            self.after(for_s, Event::Unpause);
        }
        self.take(Input::Started)?;
        self.join_all();
        Ok(())
    }

    /// The head is gone without a word, and with it everything in its mailboxes.
    pub(super) fn kill_head(&mut self, when: &str) {
        self.note(format_args!("the head is killed, {when}"));
        self.site.borrow_mut().count(Fault::HeadKilled);
        self.end_head(0.1);
    }

    /// The head ends; its worker processes notice that and end, too.
    pub(super) fn end_head(&mut self, noticed_s: f64) {
        if self.head.take().is_none() {
            return;
        }
        let training = self.site.borrow().hosts.values().map(|(_, trial)| *trial).collect();
        self.expect_recovery(training);
        self.close(|_| true);
        self.programs.end_all();
        for process in self.processes.numbers() {
            let after_s = self.seconds(0.0, noticed_s.max(1e-6));
            self.after(after_s, Event::Kill { process, how: "the head is gone", fault: ProcessFault::Own });
        }
        self.crash = None;
        let pause_s = self.seconds(0.5, 15.0);
        self.after(pause_s, Event::StartHead);
    }

    pub(super) fn lose_power(&mut self) -> Result<(), String> {
        for process in self.processes.numbers() {
            self.kill_process(process, "power", ProcessFault::Killed);
        }
        let cuts = self.journal.cuts();
        let at = cuts[self.rng.random_range(0..cuts.len())];
        self.note(format_args!("power is lost: {at} of {} facts are left", self.journal.all().len()));
        self.site.borrow_mut().count(Fault::PowerLost);
        self.journal.cut(at);
        self.site.borrow_mut().rounds.clear();
        let was_up = self.head.is_some();
        self.end_head(0.0);
        self.rules.cut(&self.scenario, self.journal.all())?;
        if !was_up {
            self.note(format_args!("there was no head"));
        }
        Ok(())
    }

    pub(super) fn clock(&mut self, input: &Input) -> f64 {
        let Some(head) = &self.head else { return 0.0 };
        let (origin_s, began_s) = head.began;
        let now_s = origin_s + self.now_s - began_s;
        // The engine does not rely on a clock that never goes back, but alarms do not ring before their time.
        if *input == Input::Tick {
            return now_s;
        }
        if self.scenario.faults.contains(&Fault::ClockJumped) && !self.is_calm && self.rng.random_bool(0.1) {
            return now_s - self.seconds(0.0, 5.0);
        }
        now_s
    }

    /// The engine takes an input, as the supervisor has it do.
    pub(super) fn take(&mut self, input: Input) -> Result<(), String> {
        let clock_s = self.clock(&input);
        let Some(head) = &mut self.head else { return Ok(()) };
        let input = match head.outbox.admit(input, None) {
            Admission::Taken(input, _) => input,
            Admission::Waits => return Ok(()),
            Admission::Ends => {
                self.note(format_args!("the head ends: it cannot wait for the journal"));
                self.end_head(0.1);
                return Ok(());
            }
        };
        let crash = self.crash.take();
        self.site.borrow_mut().trace.note(self.now_s, format_args!("engine: {}", shown(&input)));
        let step = head.engine.handle(input, clock_s);
        if crash == Some(CrashPoint::BeforeJournal) {
            self.kill_head("before the journal has it");
            return Ok(());
        }
        if self.journal.append(&step.facts).is_err() {
            self.block(Unwritten::Step(step, None));
            return Ok(());
        }
        self.written(step, crash)
    }

    /// All that follows from a step that is in the journal.
    fn written(&mut self, step: Step, crash: Option<CrashPoint>) -> Result<(), String> {
        let Some(head) = &mut self.head else { return Ok(()) };
        self.rules.appended(&step.facts, &head.engine)?;
        if crash == Some(CrashPoint::AfterJournal) {
            self.kill_head("after the journal has it");
            return Ok(());
        }
        let Told { facts, questions } = head.outbox.written(step, None);
        let is_unsettled = head.outbox.is_unsettled();
        if let Some(facts) = facts {
            self.tell_of(&facts);
        }
        for command in questions {
            self.ask(command);
        }
        if let Some(CrashPoint::AfterEffects(_)) = crash {
            self.crash = crash;
        }
        if is_unsettled {
            let after_s = self.seconds(0.0, 0.06);
            self.after(after_s, Event::Settle { head: self.heads });
            return Ok(());
        }
        self.release()
    }

    /// The journal cannot be written: it is tried again.
    fn block(&mut self, unwritten: Unwritten<Infallible>) {
        self.note(format_args!("the journal cannot be written"));
        if let Some(head) = &mut self.head {
            let (_, pause_s) = head.outbox.block(unwritten);
            self.after(pause_s, Event::WriteAgain { head: self.heads });
        }
    }

    pub(super) fn write_again(&mut self, of: u32) -> Result<(), String> {
        let Some(head) = self.head.as_mut().filter(|_| of == self.heads) else { return Ok(()) };
        let Some(unwritten) = head.outbox.take_unwritten() else { return Ok(()) };
        let written = match &unwritten {
            Unwritten::Step(step, _) => self.journal.append(&step.facts),
            Unwritten::Sync => self.journal.sync(),
        };
        if written.is_err() {
            self.block(unwritten);
            return Ok(());
        }
        head.outbox.unblock();
        match unwritten {
            Unwritten::Step(step, _) => self.written(step, None)?,
            Unwritten::Sync => {
                head.outbox.settled();
                self.release()?;
            }
        }
        loop {
            let head = self.head.as_mut().filter(|_| of == self.heads);
            let Some((input, _)) = head.and_then(|head| head.outbox.next_waiting()) else { return Ok(()) };
            self.take(input)?;
        }
    }

    /// The services only think, so they need not wait for the disk.
    fn tell_of(&mut self, facts: &Arc<[JournalEntry]>) {
        for entry in &**facts {
            self.note(format_args!("fact: {}", shown_fact(entry)));
        }
        for to in [Address::Suggester, Address::Allocator] {
            self.send(to, Message::Facts(facts.clone()));
        }
    }

    fn ask(&mut self, command: Command) {
        match command {
            Command::Suggest(request) => self.send(Address::Suggester, Message::Suggest(request)),
            Command::Allocate(request) => self.send(Address::Allocator, Message::Allocate(request)),
            Command::WakeAt { at_s } => {
                self.alarm += 1;
                let Some(head) = &self.head else { return };
                let now_s = head.began.0 + self.now_s - head.began.1;
                self.after(at_s - now_s + 1e-6, Event::Alarm(self.alarm));
            }
            // The outbox holds them.
            Command::Group { .. } | Command::ReleaseNode { .. } | Command::Finished(_) => {}
        }
    }

    /// Waits for the disk, and does what was held back until then.
    pub(super) fn settle_facts(&mut self, of: u32) -> Result<(), String> {
        let Some(head) = self.head.as_mut().filter(|head| head.outbox.is_unsettled() && of == self.heads)
        else {
            return Ok(());
        };
        if head.outbox.is_blocked() {
            // What it waits for comes first.
            return Ok(());
        }
        if self.journal.sync().is_err() {
            self.block(Unwritten::Sync);
            return Ok(());
        }
        head.outbox.settled();
        self.release()
    }

    fn release(&mut self) -> Result<(), String> {
        let crash = self.crash.take();
        let held = self.head.as_mut().map(|head| head.outbox.release()).unwrap_or_default();
        for (at, effect) in held.into_iter().enumerate() {
            if crash == Some(CrashPoint::AfterEffects(at)) {
                self.kill_head("between two commands");
                return Ok(());
            }
            match effect {
                Effect::Facts(facts) => {
                    self.rules.promised(&facts, self.now_s)?;
                    for trial in facts.iter().filter_map(|entry| entry.fact.ends_group_of()) {
                        self.command_trial(trial, GroupCommand::Stop(FinalState::Discarded))?;
                    }
                }
                Effect::Group(trial, command) => self.command_trial(trial, command)?,
                Effect::ReleaseNode(node) => self.release_node(node),
                Effect::Finish(outcome) => return self.finish(outcome),
                Effect::Acknowledge(never) => match never {},
            }
        }
        Ok(())
    }

    pub(super) fn command_trial(&mut self, trial: TrialId, command: GroupCommand) -> Result<(), String> {
        match self.scenario.kind {
            TrialKind::Rigid | TrialKind::Restarted => self.command_program(trial, command),
            TrialKind::Elastic => {
                self.command_group(trial, command);
                Ok(())
            }
        }
    }

    fn finish(&mut self, outcome: Outcome) -> Result<(), String> {
        match outcome {
            Outcome::Done => self.is_done = true,
            Outcome::Stopped => {
                self.note(format_args!("the study is stopped"));
                self.end_head(0.1);
            }
            // Each of its trials has failed by a fault, or it would have been noticed.
            Outcome::Failed(_) if self.rules.all_have_failed() => self.is_done = true,
            Outcome::Failed(reason) if reason.contains(INJECTED) => self.is_done = true,
            Outcome::Failed(reason) => return Err(format!("the study has failed: {reason}")),
        }
        Ok(())
    }

    pub(super) fn ring(&mut self, number: u64) -> Result<(), String> {
        if self.head.is_some() && number == self.alarm {
            return self.take(Input::Tick);
        }
        Ok(())
    }

    pub(super) fn deliver(&mut self, to: Address, message: Message) -> Result<(), String> {
        let Some(head) = &mut self.head else { return Ok(()) };
        let wrong = |error: crate::trials::engine::Error| format!("a service does not follow: {error}");
        match (to, message) {
            (Address::Supervisor, Message::Input(input)) => return self.take(input),
            (Address::Suggester, Message::Facts(facts)) => {
                for entry in &*facts {
                    head.services.suggest.apply(entry).map_err(wrong)?;
                }
            }
            (Address::Allocator, Message::Facts(facts)) => {
                for entry in &*facts {
                    head.services.allocate.apply(entry).map_err(wrong)?;
                }
            }
            (Address::Suggester, Message::Suggest(request)) => {
                let answer = if self.site.borrow_mut().strikes(Fault::SuggesterFails) {
                    let answer = Err(NoSuggestion::Failed(INJECTED.to_owned()));
                    Input::Suggested { revision: request.revision, answer }
                } else {
                    head.services.suggest.answer(request)
                };
                self.send(Address::Supervisor, Message::Input(answer));
            }
            (Address::Allocator, Message::Allocate(request)) => self.allocate(&request),
            (Address::Group(group), Message::Launch(trial, launch)) => {
                self.launch_group(group, trial, launch);
            }
            (Address::Group(group), Message::Group(command)) => self.on_group_command(group, command),
            (Address::Group(group), Message::FromWorker { slot, event }) => {
                self.on_worker(group, slot, event);
            }
            (Address::Node(node), message) => self.on_node(node, message),
            (Address::Down(life), Message::Command(command)) => {
                self.note(format_args!("worker {life} gets {}", shown_command(&command)));
                self.processes.command(life, command);
                self.poll(life);
            }
            (Address::Up(life), message) => self.on_connection(life, message),
            _ => {}
        }
        Ok(())
    }
}
