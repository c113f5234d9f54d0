//! The loop of events, and the faults among them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{
    Defects, Fault, Life, Summary,
    head::{Head, Owner},
    journal::FaultyJournal,
    machines::Machines,
    plan::Scenario,
    processes::Processes,
    programs::Programs,
    rules::Rules,
    site::{Shared, Site},
};
use crate::{
    ids::{NodeId, TrialId},
    trials::{
        engine::{AllocatorRequest, GroupCommand, Input, JournalEntry, Launch, SuggestRequest, TrialKind},
        group::{WorkerCommand, WorkerEvent},
        node::ProcessFault,
    },
};

/// Seconds without faults after which a study must have ended.
const CALM_S: f64 = 4.0 * 3600.0;
/// Seconds after the end of a trial in which its workers must be free: longer than it takes to notice one that stands still.
const HELD_S: f64 = 1800.0;
/// Events after which it runs in circles.
const EVENTS_MAX: u64 = 2_000_000;

/// Who receives messages, each in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Address {
    Supervisor,
    Suggester,
    Allocator,
    /// The group of a trial, by its number.
    Group(u64),
    Node(usize),
    /// A connection, seen from the head: commands go down, events come up.
    Down(Life),
    Up(Life),
}

#[derive(Debug, Clone)]
pub(super) enum Message {
    Input(Input),
    Facts(std::sync::Arc<[JournalEntry]>),
    Suggest(SuggestRequest),
    Allocate(AllocatorRequest),
    Launch(TrialId, Launch),
    Group(GroupCommand),
    FromWorker {
        slot: crate::ids::SlotId,
        event: Option<WorkerEvent>,
    },
    ToWorker {
        index: usize,
        from: Owner,
        command: WorkerCommand,
    },
    KillWorker {
        index: usize,
        from: Owner,
        reason: String,
    },
    Ended {
        process: usize,
        how: &'static str,
        fault: ProcessFault,
    },
    Command(WorkerCommand),
    Joined,
    Event(WorkerEvent),
    Lost,
    /// The agent of a machine is gone.
    AgentLost,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    Deliver(Address),
    Poll(Life),
    /// The alarm of the engine, if it is still the last one that was set.
    Alarm(u64),
    StartHead,
    /// A driver wanted to know the time.
    GroupTime {
        head: u32,
        group: u64,
    },
    /// The head tries again to write the journal.
    WriteAgain {
        head: u32,
    },
    /// The time of a process to connect is over.
    CheckStart {
        head: u32,
        node: usize,
        process: usize,
        start: u64,
    },
    /// The head waits for the disk.
    Settle {
        head: u32,
    },
    Start {
        head: u32,
        node: usize,
        process: usize,
    },
    Connect(u64),
    Kill {
        process: u64,
        how: &'static str,
        fault: ProcessFault,
    },
    /// A process that stands still goes on, if it is still there.
    Continue(u64),
    /// Keep-alive messages had no answer.
    Silent(u64),
    Fault,
    /// The pause of the study is over.
    Unpause,
    /// The time of a machine that was announced to leave is over.
    DrainEnds {
        head: u32,
        node: NodeId,
    },
    /// A machine that was away comes again.
    NodeAgain {
        machine: usize,
    },
    Calm,
    SpaceAgain,
    Fast,
    /// A program reports.
    Program {
        trial: TrialId,
        run: u64,
    },
}

/// Where a head is killed when it takes its next input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum CrashPoint {
    BeforeJournal,
    AfterJournal,
    /// After some of what follows from it was done.
    AfterEffects(usize),
}

pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) defects: Defects,
    pub(super) rng: ChaCha8Rng,
    pub(super) site: Shared,
    pub(super) now_s: f64,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    mail: BTreeMap<Address, Mailbox>,
    pub(super) is_slow: bool,
    pub(super) journal: FaultyJournal,
    pub(super) head: Option<Head>,
    pub(super) heads: u32,
    pub(super) alarm: u64,
    /// What the wall clock shows besides the time.
    pub(super) clock_s: f64,
    pub(super) crash: Option<CrashPoint>,
    pub(super) processes: Processes,
    pub(super) machines: Machines,
    pub(super) programs: Programs,
    pub(super) rules: Rules,
    /// No more faults.
    pub(super) is_calm: bool,
    pub(super) is_done: bool,
    /// Faults and the trials that are to train again after them.
    recoveries: Vec<(f64, BTreeSet<TrialId>)>,
    recovery_s: f64,
    count: u64,
}

#[derive(Debug, Default)]
struct Mailbox {
    messages: VecDeque<Message>,
    /// No message arrives before the one sent before it.
    last_s: f64,
}

impl World {
    pub(super) fn new(seed: u64, defects: Defects) -> Result<Self, String> {
        let scenario = Scenario::new(seed)?;
        let stream = |number| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(number);
            rng
        };
        let (rng, site) = (stream(1), Site::new(stream(2)));
        let (rules, processes) = (Rules::new(&scenario)?, Processes::new(&scenario.nodes));
        let machines = Machines::new(&scenario.nodes);
        let mut world = Self {
            scenario,
            defects,
            rng,
            site: Shared::new(site.into()),
            now_s: 0.0,
            events: BTreeMap::new(),
            sequence: 0,
            mail: BTreeMap::new(),
            is_slow: false,
            journal: FaultyJournal::default(),
            head: None,
            heads: 0,
            alarm: 0,
            clock_s: 1000.0,
            crash: None,
            processes,
            machines,
            programs: Programs::default(),
            rules,
            is_calm: false,
            is_done: false,
            recoveries: Vec::new(),
            recovery_s: 0.0,
            count: 0,
        };
        world.after(0.0, Event::StartHead);
        let first_s = world.rng.random_range(0.0..2.0) * world.scenario.every_s;
        world.after(first_s, Event::Fault);
        world.after(world.scenario.faults_s, Event::Calm);
        Ok(world)
    }

    pub(super) fn trace(&self) -> Vec<String> {
        self.site.borrow().trace.last().map(str::to_owned).collect()
    }

    pub(super) fn note(&self, what: std::fmt::Arguments<'_>) {
        self.site.borrow_mut().trace.note(self.now_s, what);
    }

    pub(super) fn run(&mut self) -> Result<Summary, String> {
        while !self.is_done {
            let Some(((at, _), event)) = self.events.pop_first() else {
                return Err(format!("nothing will ever happen again: {}", self.stand()));
            };
            self.now_s = f64::from_bits(at);
            if self.now_s > self.scenario.faults_s + CALM_S {
                return Err(format!("the study does not end: {}", self.stand()));
            }
            self.count += 1;
            if self.count > EVENTS_MAX {
                return Err(format!("it runs in circles: {}", self.stand()));
            }
            {
                let mut site = self.site.borrow_mut();
                site.now_s = self.now_s;
                site.disk.pass(self.now_s);
            }
            self.on_event(event)?;
            self.settle()?;
        }
        self.rules.at_the_end(&self.scenario, self.journal.all())?;
        let site = self.site.borrow();
        Ok(Summary {
            faults: site.counts.clone(),
            trials: self.rules.ended() as u64,
            events: self.count,
            seconds: self.now_s,
            recovery_s: self.recovery_s,
            hash: site.trace.hash(),
        })
    }

    /// Workers for whom something has changed go on, and what they saw is checked.
    fn settle(&mut self) -> Result<(), String> {
        loop {
            let next = self.site.borrow_mut().ready.pop_front();
            let Some(life) = next else { break };
            self.poll(life);
        }
        let alarms = std::mem::take(&mut self.site.borrow_mut().alarms);
        for (at_s, life) in alarms {
            self.after((at_s - self.now_s).max(0.0), Event::Poll(life));
        }
        let mut site = self.site.borrow_mut();
        let broken = site.broken.take();
        if let Some(rule) = broken.or_else(|| site.disk.broken.take()) {
            return Err(rule);
        }
        let now_s = self.now_s;
        for (slot, (life, trial)) in &site.hosts {
            if self.rules.ended_s(*trial).is_some_and(|ended_s| now_s > ended_s + HELD_S) {
                return Err(format!("slot {slot} (worker {life}) still has trial {trial}, which has ended"));
            }
        }
        let longest = &mut self.recovery_s;
        self.recoveries.retain_mut(|(since_s, trials)| {
            trials.retain(|trial| {
                let trains = site.stepped.get(trial).is_some_and(|at_s| at_s > since_s);
                !trains && self.rules.ended_s(*trial).is_none()
            });
            if trials.is_empty() {
                *longest = longest.max(now_s - *since_s);
            }
            !trials.is_empty()
        });
        Ok(())
    }

    /// From now on it counts how long these trials take to train again.
    pub(super) fn expect_recovery(&mut self, trials: BTreeSet<TrialId>) {
        if !trials.is_empty() {
            self.recoveries.push((self.now_s, trials));
        }
    }

    pub(super) fn after(&mut self, seconds: f64, event: Event) {
        self.sequence += 1;
        self.events.insert(((self.now_s + seconds.max(0.0)).to_bits(), self.sequence), event);
    }

    pub(super) fn seconds(&mut self, from: f64, to: f64) -> f64 {
        self.rng.random_range(from..to)
    }

    pub(super) fn send(&mut self, to: Address, message: Message) {
        let most_s = match to {
            Address::Up(_) | Address::Down(_) => 0.02,
            Address::Suggester | Address::Allocator => 0.5,
            Address::Supervisor | Address::Group(_) | Address::Node(_) => 0.002,
        };
        let is_slow = self.is_slow && self.rng.random_bool(0.2);
        let delay_s = self.seconds(0.0, if is_slow { 4.0 } else { most_s });
        let mailbox = self.mail.entry(to).or_default();
        mailbox.last_s = mailbox.last_s.max(self.now_s + delay_s);
        mailbox.messages.push_back(message);
        let at_s = mailbox.last_s;
        self.after(at_s - self.now_s, Event::Deliver(to));
    }

    /// Nobody reads what was sent there.
    pub(super) fn close(&mut self, closed: impl Fn(&Address) -> bool) {
        self.mail.retain(|address, _| !closed(address));
    }

    fn on_event(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Deliver(to) => {
                let message = self.mail.get_mut(&to).and_then(|mailbox| mailbox.messages.pop_front());
                if let Some(message) = message {
                    return self.deliver(to, message);
                }
            }
            Event::Poll(life) => self.poll(life),
            Event::Alarm(number) => return self.ring(number),
            Event::StartHead => return self.start_head(),
            Event::GroupTime { head, group } => self.tell_time(head, group),
            Event::WriteAgain { head } => return self.write_again(head),
            Event::CheckStart { head, node, process, start } => self.check_start(head, node, process, start),
            Event::Settle { head } => return self.settle_facts(head),
            Event::Start { head, node, process } => self.start_process(head, node, process),
            Event::Connect(process) => self.connect(process),
            Event::Kill { process, how, fault } => self.kill_process(process, how, fault),
            Event::Continue(process) => self.go_on(process),
            Event::Silent(process) => self.fall_silent(process),
            Event::Fault => self.next_fault()?,
            Event::DrainEnds { head, node } => self.end_drain(head, node),
            Event::NodeAgain { machine } => self.come_again(machine),
            Event::Calm => self.calm(),
            Event::SpaceAgain => self.set_full(false),
            Event::Fast => self.is_slow = false,
            Event::Unpause => self.unpause(),
            Event::Program { trial, run } => self.run_program(trial, run),
        }
        Ok(())
    }

    fn set_full(&mut self, is_full: bool) {
        self.journal.is_full = is_full;
        self.site.borrow_mut().disk.is_full = is_full;
        self.note(format_args!("the disk is {}", if is_full { "full" } else { "no longer full" }));
    }

    /// The user pauses the study.
    fn pause(&mut self) {
        self.send(Address::Supervisor, Message::Input(Input::PauseRequested));
        let for_s = self.seconds(1.0, 60.0);
        self.after(for_s, Event::Unpause);
    }

    /// The user lets the study continue. Without a head that is done when there is one.
    fn unpause(&mut self) {
        if self.head.is_some() {
            self.send(Address::Supervisor, Message::Input(Input::ResumeRequested));
        }
    }

    /// Nothing goes wrong any more.
    fn calm(&mut self) {
        (self.is_calm, self.is_slow, self.crash) = (true, false, None);
        self.set_full(false);
        self.site.borrow_mut().armed.clear();
        self.processes.heal();
        self.note(format_args!("no more faults"));
    }

    fn next_fault(&mut self) -> Result<(), String> {
        if self.is_calm {
            return Ok(());
        }
        let pause_s = self.rng.random_range(0.0..2.0) * self.scenario.every_s;
        self.after(pause_s, Event::Fault);
        let fault = self.scenario.faults[self.rng.random_range(0..self.scenario.faults.len())];
        self.note(format_args!("fault: {fault}"));
        self.strike(fault)
    }

    fn strike(&mut self, fault: Fault) -> Result<(), String> {
        let elastic = self.scenario.kind == TrialKind::Elastic;
        match fault {
            Fault::WorkerKilled
            | Fault::WorkerExits
            | Fault::ConnectionLost
            | Fault::WorkerStopped
            | Fault::WorkerStuck => {
                let Some(process) = self.processes.any_connected(&mut self.rng) else { return Ok(()) };
                self.expect_recovery(self.trials_of(process));
                match fault {
                    Fault::WorkerKilled => self.kill_process(process, "signal: 9", ProcessFault::Killed),
                    Fault::WorkerExits => self.kill_process(process, "exit status: 1", ProcessFault::Own),
                    Fault::ConnectionLost => self.cut(process),
                    Fault::WorkerStuck => self.stick(process),
                    _ => self.stop_process(process),
                }
            }
            Fault::NodeLost => self.lose_node(),
            Fault::NodeDrains => self.drain_node(),
            Fault::NodeRemoved => self.remove_node(),
            Fault::HeadKilled => {
                if self.head.is_none() {
                    return Ok(());
                }
                let effects = self.rng.random_range(0..4);
                let points =
                    [CrashPoint::BeforeJournal, CrashPoint::AfterJournal, CrashPoint::AfterEffects(effects)];
                match points.get(self.rng.random_range(0..4)) {
                    // With the next input.
                    Some(point) => {
                        self.crash = Some(*point);
                        return Ok(());
                    }
                    None => self.kill_head("at any moment"),
                }
            }
            Fault::PowerLost => return self.lose_power(),
            Fault::DiskFull => {
                self.set_full(true);
                let for_s = self.seconds(2.0, 40.0);
                self.after(for_s, Event::SpaceAgain);
            }
            Fault::StudyStopped | Fault::StudyPaused if self.head.is_none() => return Ok(()),
            Fault::StudyStopped => self.send(Address::Supervisor, Message::Input(Input::StopRequested)),
            Fault::StudyPaused => self.pause(),
            Fault::ClockJumped => self.clock_s += self.rng.random_range(-5000.0..5000.0),
            Fault::SlowMessages => {
                self.is_slow = true;
                let for_s = self.seconds(5.0, 30.0);
                self.after(for_s, Event::Fast);
            }
            // It ends a study early, so that it must not come often.
            Fault::SuggesterFails if !self.rng.random_bool(0.1) => return Ok(()),
            // These hit the next one who can have them, and count then.
            Fault::StartFails | Fault::SolverFails | Fault::FitFails | Fault::GroupBreaks if !elastic => {}
            Fault::StartFails
            | Fault::SolverFails
            | Fault::SuggesterFails
            | Fault::FitFails
            | Fault::TrialFails
            | Fault::GroupBreaks
            | Fault::EnvironmentFails
            | Fault::MemoryExhausted => {
                self.site.borrow_mut().armed.insert(fault);
                return Ok(());
            }
        }
        self.site.borrow_mut().count(fault);
        Ok(())
    }
}
