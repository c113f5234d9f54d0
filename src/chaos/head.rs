//! The head: what its actors do with their messages, around the real engine, services and drivers.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Write,
    rc::Rc,
};

use rand::RngExt;

use super::{
    Fault, Life,
    trace::{shown, shown_command, shown_fact},
    world::{Address, CrashPoint, Event, Message, World},
};
use crate::{
    ids::{Round, TrialId},
    store::Journal,
    trials::{
        engine::{
            Command, Engine, GroupCommand, Input, JournalEntry, Outcome, Replay, Services, Step, TrialKind,
        },
        group::{Driver, FinalState, Task},
        node::{NodeDriver, ProcessFault, SlotOwner},
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
    pub(super) nodes: Vec<NodeActor>,
    pub(super) next_group: u64,
    /// The time of day at its start, and the time of the world.
    pub(super) began: (f64, f64),
    /// What is to be done about facts, in their order.
    held: Vec<Effect>,
    /// A fact that has to survive a loss of power may not be on disk.
    pub(super) is_waiting: bool,
    /// The journal cannot be written for now.
    blocked: Option<Blocked>,
    /// What has happened meanwhile.
    pub(super) waiting: VecDeque<Input>,
}

struct Blocked {
    tries: u32,
    /// What could not be appended; none if it could not be waited for.
    step: Option<Step>,
}

/// What others than the head can notice.
enum Effect {
    Facts(Rc<[JournalEntry]>),
    Group(TrialId, GroupCommand),
    Finish(Outcome),
}

pub(super) struct GroupActor {
    pub(super) driver: Driver,
    pub(super) round: Round,
    pub(super) task: Task,
    /// When the driver is told the time next.
    pub(super) timer_s: Option<f64>,
}

pub(super) struct NodeActor {
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
        for (node, actor) in self.scenario.nodes.iter().zip(&head.nodes) {
            for index in 0..actor.workers.len() {
                let owner = actor.driver.owner(index).map(|owner| owner.trial);
                let _ = write!(text, "; slot {}.{index} is up: {}", node.node, actor.driver.is_up(index));
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
        self.rules.replayed(&engine)?;
        let today_s = (self.now_s + self.clock_s).max(engine.state().at_s);
        let (nodes, began) = (Vec::new(), (today_s, self.now_s));
        let (groups, drivers) = (BTreeMap::new(), BTreeMap::new());
        let (held, is_waiting, next_group) = (Vec::new(), false, 0);
        self.head = Some(Head {
            engine,
            services,
            groups,
            drivers,
            nodes,
            next_group,
            began,
            held,
            is_waiting,
            blocked: None,
            waiting: VecDeque::new(),
        });
        self.note(format_args!("head {} starts with {} facts", self.heads, count));
        self.take(Input::Started)?;
        if self.scenario.kind == TrialKind::Rigid {
            let of = &self.scenario.nodes[0];
            let (node, gpu_type, slots) = (of.node, of.gpu_type.clone(), of.processes.iter().sum());
            let joined = Input::NodeJoined { node, name: String::new(), gpu_type, island: 0, slots };
            self.send(Address::Supervisor, Message::Input(joined));
            return Ok(());
        }
        for number in 0..self.scenario.nodes.len() {
            let of = self.scenario.nodes[number].clone();
            let workers = vec![None; of.processes.iter().sum::<u32>() as usize];
            let processes = vec![None; of.processes.len()];
            let (driver, outputs) = NodeDriver::new(of);
            let Some(head) = &mut self.head else { return Ok(()) };
            head.nodes.push(NodeActor { driver, workers, processes });
            self.carry_out_by_node(number, outputs);
        }
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
        if head.blocked.is_some() {
            if input == Input::StopRequested {
                self.note(format_args!(
                    "the head ends: it is to stop, and there is no space for the journal"
                ));
                self.end_head(0.1);
            } else {
                head.waiting.push_back(input);
            }
            return Ok(());
        }
        let crash = self.crash.take();
        self.site.borrow_mut().trace.note(self.now_s, format_args!("engine: {}", shown(&input)));
        let step = head.engine.handle(input, clock_s);
        if crash == Some(CrashPoint::BeforeJournal) {
            self.kill_head("before the journal has it");
            return Ok(());
        }
        if self.journal.append(&step.facts).is_err() {
            self.block(Blocked { tries: 1, step: Some(step) });
            return Ok(());
        }
        self.written(step, crash)
    }

    /// All that follows from a step that is in the journal.
    fn written(&mut self, Step { facts, commands }: Step, crash: Option<CrashPoint>) -> Result<(), String> {
        let Some(head) = &mut self.head else { return Ok(()) };
        self.rules.appended(&facts, &head.engine)?;
        let is_end = |command: &Command| matches!(command, Command::Finished(_));
        head.is_waiting |= facts.iter().any(|entry| entry.fact.is_milestone()) || commands.iter().any(is_end);
        if crash == Some(CrashPoint::AfterJournal) {
            self.kill_head("after the journal has it");
            return Ok(());
        }
        self.tell_of(facts);
        for command in commands {
            self.ask_or_hold(command);
        }
        if let Some(CrashPoint::AfterEffects(_)) = crash {
            self.crash = crash;
        }
        if self.head.as_ref().is_some_and(|head| head.is_waiting) {
            let after_s = self.seconds(0.0, 0.06);
            self.after(after_s, Event::Settle { head: self.heads });
            return Ok(());
        }
        self.release()
    }

    /// The journal cannot be written: it is tried again.
    fn block(&mut self, blocked: Blocked) {
        self.note(format_args!("the journal cannot be written"));
        let pause_s = (0.5 * f64::from(1 << (blocked.tries - 1).min(8))).min(30.0);
        if let Some(head) = &mut self.head {
            head.blocked = Some(blocked);
            self.after(pause_s, Event::WriteAgain { head: self.heads });
        }
    }

    pub(super) fn write_again(&mut self, of: u32) -> Result<(), String> {
        let Some(head) = self.head.as_mut().filter(|_| of == self.heads) else { return Ok(()) };
        let Some(Blocked { tries, step }) = head.blocked.take() else { return Ok(()) };
        let written = match &step {
            Some(step) => self.journal.append(&step.facts),
            None => self.journal.sync(),
        };
        if written.is_err() {
            self.block(Blocked { tries: tries + 1, step });
            return Ok(());
        }
        if let Some(step) = step {
            self.written(step, None)?;
        } else {
            head.is_waiting = false;
            self.release()?;
        }
        loop {
            let head = self.head.as_mut().filter(|head| of == self.heads && head.blocked.is_none());
            let Some(input) = head.and_then(|head| head.waiting.pop_front()) else { return Ok(()) };
            self.take(input)?;
        }
    }

    /// The services only think, so they need not wait for the disk.
    pub(super) fn tell_of(&mut self, facts: Vec<JournalEntry>) {
        if facts.is_empty() {
            return;
        }
        for entry in &facts {
            self.note(format_args!("fact: {}", shown_fact(entry)));
        }
        let facts: Rc<[JournalEntry]> = facts.into();
        for to in [Address::Suggester, Address::Allocator] {
            self.send(to, Message::Facts(facts.clone()));
        }
        self.hold(Effect::Facts(facts));
    }

    fn hold(&mut self, effect: Effect) {
        if let Some(head) = &mut self.head {
            head.held.push(effect);
        }
    }

    /// Questions are asked at once; what can be noticed outside of the head waits for the disk.
    fn ask_or_hold(&mut self, command: Command) {
        match command {
            Command::Suggest(request) => self.send(Address::Suggester, Message::Suggest(request)),
            Command::Allocate(request) => self.send(Address::Allocator, Message::Allocate(request)),
            Command::WakeAt { at_s } => {
                self.alarm += 1;
                let Some(head) = &self.head else { return };
                let now_s = head.began.0 + self.now_s - head.began.1;
                self.after(at_s - now_s + 1e-6, Event::Alarm(self.alarm));
            }
            Command::Group { trial, command } => self.hold(Effect::Group(trial, command)),
            Command::Finished(outcome) => self.hold(Effect::Finish(outcome)),
        }
    }

    /// Waits for the disk, and does what was held back until then.
    pub(super) fn settle_facts(&mut self, of: u32) -> Result<(), String> {
        let Some(head) = self.head.as_mut().filter(|head| head.is_waiting && of == self.heads) else {
            return Ok(());
        };
        if head.blocked.is_some() {
            // What it waits for comes first.
            return Ok(());
        }
        if self.journal.sync().is_err() {
            self.block(Blocked { tries: 1, step: None });
            return Ok(());
        }
        head.is_waiting = false;
        self.release()
    }

    fn release(&mut self) -> Result<(), String> {
        let crash = self.crash.take();
        let held = self.head.as_mut().map(|head| std::mem::take(&mut head.held)).unwrap_or_default();
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
                Effect::Finish(outcome) => return self.finish(outcome),
            }
        }
        Ok(())
    }

    pub(super) fn command_trial(&mut self, trial: TrialId, command: GroupCommand) -> Result<(), String> {
        match self.scenario.kind {
            TrialKind::Rigid => self.command_program(trial, command),
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
                let answer = head.services.suggest.answer(request);
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
