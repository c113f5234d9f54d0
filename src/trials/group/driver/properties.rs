//! A driver among random workers: they die, stand still, break, report late and end at any time, and the
//! engine changes its mind at any time.

mod workers;

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::{ids::NodeId, space::Params};

const TRIAL: TrialId = TrialId(7);
const BATCH: Batch = Batch { total: 64, accumulation: 0 };
const SLOTS: u32 = 4;

fn slot(index: u32) -> SlotId {
    SlotId { node: NodeId(0), index: index % SLOTS }
}

/// What a worker does.
#[derive(Debug, Clone, PartialEq, Default)]
enum State {
    #[default]
    Idle,
    Preparing,
    Ready,
    Joining(Form),
    Donating(Form),
    Training(Form),
}

/// A slot: its worker, and what its node knows of it.
#[derive(Debug, Default)]
struct Slot {
    state: State,
    has_state: bool,
    commands: VecDeque<WorkerCommand>,
    /// On their way to the node; none is the end of the process.
    events: VecDeque<Option<WorkerEvent>>,
    is_alive: bool,
    /// It does nothing any more, until it is killed.
    is_stuck: bool,
    known: Known,
}

/// What a node knows of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
enum Known {
    /// Its worker is gone.
    Down,
    #[default]
    Free,
    /// The group has it.
    Owned,
}

impl Slot {
    /// What is sent to a dead process is lost.
    fn take(&mut self, command: WorkerCommand) {
        if self.is_alive {
            self.commands.push_back(command);
        }
    }
}

/// What the engine knows.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Forming,
    Running,
    Pausing,
    Over,
}

/// For the engine.
#[derive(Debug)]
enum EngineEvent {
    Group(Generation, GroupEvent),
    Lost(SlotId),
    Joined(SlotId),
}

/// For the group, in one queue as those of actors are.
#[derive(Debug)]
enum Message {
    Worker(SlotId, Option<WorkerEvent>),
    Command(GroupCommand),
}

#[derive(Debug)]
struct World {
    /// None when it has left.
    driver: Option<Driver>,
    slots: BTreeMap<SlotId, Slot>,
    mailbox: VecDeque<Message>,
    events: VecDeque<EngineEvent>,
    up: BTreeSet<SlotId>,
    phase: Phase,
    generation: Generation,
    wanted: Vec<SlotId>,
    holders: Vec<SlotId>,
    /// What the driver knows: the generation it was given last, its slots, and whether it has ended.
    commanded: (Generation, Vec<SlotId>),
    has_ended: bool,
    announced: BTreeSet<Generation>,
    ended: BTreeSet<Generation>,
    reports: BTreeMap<Generation, u32>,
    now_s: f64,
    /// Nothing goes wrong any more.
    is_calm: bool,
}

impl World {
    fn new() -> Self {
        let (generation, wanted) = (Generation(1), vec![slot(0), slot(1)]);
        let fresh = || Slot { is_alive: true, ..Slot::default() };
        let slots: BTreeMap<SlotId, Slot> = (0..SLOTS).map(|index| (slot(index), fresh())).collect();
        let (params, batch, checkpoint) = (Params::default(), Some(BATCH), None);
        let launch = Launch { generation, slots: wanted.clone(), params, batch, checkpoint };
        let (driver, outputs) = Driver::launch(Task::new(TRIAL, "net"), launch, Limits::default(), 0.0);
        let mut world = Self {
            driver: Some(driver),
            up: slots.keys().copied().collect(),
            slots,
            mailbox: VecDeque::new(),
            events: VecDeque::new(),
            phase: Phase::Forming,
            generation,
            commanded: (generation, wanted.clone()),
            wanted,
            holders: Vec::new(),
            has_ended: false,
            announced: BTreeSet::new(),
            ended: BTreeSet::new(),
            reports: BTreeMap::new(),
            now_s: 0.0,
            is_calm: false,
        };
        world.carry_out(outputs);
        world
    }

    fn slot(&mut self, slot: SlotId) -> &mut Slot {
        self.slots.get_mut(&slot).expect("there are only these")
    }

    /// Delivers outputs of a driver to nodes and the engine.
    fn carry_out(&mut self, outputs: Vec<Output>) {
        let has_stuck = self.has_stuck();
        for output in outputs {
            match output {
                Output::Send { slot, command } => {
                    let is_release = match &command {
                        WorkerCommand::Release { .. } => true,
                        WorkerCommand::Form(form) => form.broken && form.members.is_empty(),
                        _ => false,
                    };
                    assert!(is_release || !self.has_ended, "{command:?} after the end");
                    self.send(slot, command);
                }
                Output::Engine { generation, event } => {
                    self.check_event(generation, &event);
                    self.events.push_back(EngineEvent::Group(generation, event));
                }
                Output::Kill { slot, reason } => {
                    // Before that, workers may be as slow as they like.
                    assert!(!self.is_calm || has_stuck, "{reason}");
                    self.kill(slot);
                }
                Output::Left => {
                    assert!(self.slots.values().all(|slot| slot.known != Known::Owned), "{self:?}");
                    self.driver = None;
                }
            }
        }
    }

    fn send(&mut self, to: SlotId, command: WorkerCommand) {
        let slot = self.slot(to);
        match command {
            WorkerCommand::Prepare(_) if slot.known == Known::Down => {
                self.mailbox.push_back(Message::Worker(to, None));
            }
            WorkerCommand::Prepare(_) => {
                assert_eq!(slot.known, Known::Free, "{to} was prepared twice");
                slot.known = Known::Owned;
                slot.take(command);
            }
            _ if slot.known == Known::Owned => slot.take(command),
            // It has left or is lost, and that is on its way.
            _ => {}
        }
    }

    fn check_event(&mut self, generation: Generation, event: &GroupEvent) {
        match event {
            GroupEvent::Formed => {
                assert!(self.announced.insert(generation), "{generation} was announced twice");
                assert_eq!(generation, self.commanded.0);
                let driver = self.driver.as_ref().expect("it is here");
                let (mut members, mut wanted) = (driver.members().to_vec(), self.commanded.1.clone());
                members.sort_unstable();
                wanted.sort_unstable();
                assert_eq!(members, wanted, "it is not whole");
                for (slot, state) in &self.slots {
                    assert!(
                        state.known != Known::Owned || members.contains(slot),
                        "slot {slot} has not left"
                    );
                }
            }
            GroupEvent::Reported(report) => {
                let last = self.reports.insert(generation, report.number).unwrap_or(0);
                assert!(report.number > last, "report {} after {last}", report.number);
            }
            GroupEvent::CheckpointFailed(_) | GroupEvent::OutOfMemory { .. } => {}
            GroupEvent::Checkpointed(_) => assert!(self.announced.contains(&generation)),
            GroupEvent::Paused(_) | GroupEvent::Finished(_) | GroupEvent::Failed { .. } => {
                assert!(self.ended.insert(generation), "{generation} has ended twice");
                self.has_ended = true;
            }
        }
    }

    /// The group reads its next message.
    fn deliver(&mut self) -> bool {
        let Some(message) = self.mailbox.pop_front() else { return false };
        if let Message::Command(command) = &message {
            match command {
                GroupCommand::Reshape { generation, slots, .. } => {
                    self.commanded = (*generation, slots.clone());
                }
                GroupCommand::Stop(_) => self.has_ended = true,
                GroupCommand::Launch(_) | GroupCommand::Retune { .. } => {}
            }
        }
        if let Some(driver) = &mut self.driver {
            let outputs = match message {
                Message::Worker(slot, Some(event)) => driver.on_worker(slot, event, self.now_s),
                Message::Worker(slot, None) => driver.on_lost(slot, self.now_s),
                Message::Command(command) => driver.on_command(command, self.now_s),
            };
            self.carry_out(outputs);
        }
        true
    }

    /// A node reads the next event of a worker.
    fn forward(&mut self, from: SlotId) -> bool {
        let slot = self.slot(from);
        let Some(event) = slot.events.pop_front() else { return false };
        let known = slot.known;
        match &event {
            None => {
                slot.known = Known::Down;
                self.events.push_back(EngineEvent::Lost(from));
            }
            Some(WorkerEvent::Released { .. } | WorkerEvent::Failed { .. }) if known == Known::Owned => {
                slot.known = Known::Free;
            }
            Some(_) => {}
        }
        if known == Known::Owned {
            self.mailbox.push_back(Message::Worker(from, event));
        }
        true
    }

    fn kill(&mut self, victim: SlotId) {
        let slot = self.slot(victim);
        if std::mem::take(&mut slot.is_alive) {
            (slot.state, slot.has_state, slot.is_stuck) = (State::Idle, false, false);
            slot.commands.clear();
            slot.events.push_back(None);
        }
    }

    fn get_stuck(&mut self, victim: SlotId) {
        let slot = self.slot(victim);
        slot.is_stuck = slot.is_alive;
    }

    fn restart(&mut self, of: SlotId) -> bool {
        let slot = self.slot(of);
        if slot.known != Known::Down || slot.is_alive {
            return false;
        }
        (slot.known, slot.is_alive) = (Known::Free, true);
        self.events.push_back(EngineEvent::Joined(of));
        true
    }

    /// The engine reads the next event.
    fn note(&mut self) -> bool {
        let Some(events) = self.events.pop_front() else { return false };
        match events {
            EngineEvent::Joined(slot) => {
                self.up.insert(slot);
            }
            EngineEvent::Lost(slot) => self.note_loss(slot),
            EngineEvent::Group(generation, _)
                if generation != self.generation || self.phase == Phase::Over => {}
            EngineEvent::Group(_, GroupEvent::Formed) if self.phase == Phase::Forming => {
                self.phase = Phase::Running;
                self.holders.clone_from(&self.wanted);
            }
            EngineEvent::Group(_, GroupEvent::Paused(_)) if self.phase != Phase::Pausing => {
                panic!("nobody wanted it to pause")
            }
            EngineEvent::Group(
                _,
                GroupEvent::Paused(_) | GroupEvent::Finished(_) | GroupEvent::Failed { .. },
            ) => {
                self.stop();
            }
            EngineEvent::Group(..) => {}
        }
        true
    }

    fn note_loss(&mut self, lost: SlotId) {
        self.up.remove(&lost);
        let mattered = self.wanted.contains(&lost) || self.holders.contains(&lost);
        self.wanted.retain(|slot| *slot != lost);
        self.holders.retain(|slot| *slot != lost);
        match self.phase {
            Phase::Over => {}
            Phase::Pausing if !self.wanted.is_empty() => {}
            _ if !mattered => {}
            Phase::Pausing => self.stop(),
            Phase::Forming | Phase::Running => {
                let survivors = if self.wanted.is_empty() { &self.holders } else { &self.wanted };
                // Without the state a new group is launched.
                if self.holders.is_empty() { self.stop() } else { self.reshape(survivors.clone()) }
            }
        }
    }

    fn reshape(&mut self, slots: Vec<SlotId>) {
        (self.generation, self.phase) = (self.generation.next(), Phase::Forming);
        self.wanted.clone_from(&slots);
        let command = GroupCommand::Reshape { generation: self.generation, slots, batch: BATCH };
        self.mailbox.push_back(Message::Command(command));
    }

    fn stop(&mut self) {
        self.phase = Phase::Over;
        self.mailbox.push_back(Message::Command(GroupCommand::Stop(FinalState::Discarded)));
    }

    /// The engine decides something else.
    fn decide(&mut self, kind: u32, number: u32) {
        let is_known = !self.holders.is_empty() && self.phase != Phase::Over && self.phase != Phase::Pausing;
        match kind {
            0 => {
                let is_chosen =
                    |slot: &SlotId| slot.index == number % SLOTS || number & (4 << slot.index) != 0;
                let slots: Vec<SlotId> = self.up.iter().copied().filter(is_chosen).collect();
                if is_known && !slots.is_empty() {
                    self.reshape(slots);
                }
            }
            1 if is_known => {
                let batch = Batch { total: 8 + number, accumulation: 0 };
                self.mailbox.push_back(Message::Command(GroupCommand::Retune { batch }));
            }
            2 if self.phase == Phase::Running && number.is_multiple_of(4) => {
                self.phase = Phase::Pausing;
                self.mailbox.push_back(Message::Command(GroupCommand::Stop(FinalState::Saved)));
            }
            3 if self.phase != Phase::Over && number.is_multiple_of(16) => self.stop(),
            _ => {}
        }
    }

    /// Time passes until the driver wants to know it. Whoever trains has given a sign before.
    fn pass_time(&mut self) -> bool {
        let Some(deadline_s) = self.driver.as_ref().and_then(Driver::deadline_s) else { return false };
        self.now_s = self.now_s.max(deadline_s);
        for index in 0..SLOTS {
            self.give_sign(slot(index));
            while self.forward(slot(index)) {}
        }
        while self.deliver() {}
        if let Some(driver) = &mut self.driver {
            let outputs = driver.on_time(self.now_s);
            self.carry_out(outputs);
        }
        true
    }

    /// Whether the group has a worker that stands still.
    fn has_stuck(&self) -> bool {
        self.slots.values().any(|slot| slot.is_stuck && slot.known == Known::Owned)
    }

    /// Nothing goes wrong any more; whether anything has happened.
    fn step_without_faults(&mut self) -> bool {
        let mut has_moved = self.note() | self.deliver();
        for index in 0..SLOTS {
            has_moved |= self.forward(slot(index)) | self.restart(slot(index)) | self.work(slot(index), 0);
        }
        // What is left is up to those who stand still.
        has_moved || (self.has_stuck() && self.pass_time())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever happens, the rules hold at every step; and when it stops, the trial trains on the slots of the engine's plan, or it is
    /// over and all workers are free.
    #[test]
    fn every_run_keeps_the_rules_and_settles(
        run in prop::collection::vec((0_u32..11, 0_u32..64, 0_u32..32), 1..200),
    ) {
        let mut world = World::new();
        for (kind, number, chance) in run {
            match kind {
                0 => world.decide(chance % 4, number),
                1 if chance % 4 == 0 => world.kill(slot(number)),
                1 if chance % 8 == 1 => world.get_stuck(slot(number)),
                10 => { world.pass_time(); }
                2 => { world.restart(slot(number)); }
                3 => { world.note(); }
                4 | 5 => { world.deliver(); }
                6 | 7 => { world.forward(slot(number)); }
                _ => { world.work(slot(number), chance); }
            }
        }
        world.is_calm = true;
        let mut steps = 0;
        while world.step_without_faults() {
            steps += 1;
            prop_assert!(steps < 20_000, "it never settles: {world:?}");
        }
        prop_assert!(!world.has_stuck(), "it waits for one that stands still: {world:?}");
        for (slot, state) in &world.slots {
            let is_used = world.phase != Phase::Over && world.wanted.contains(slot);
            prop_assert_eq!(matches!(state.state, State::Training(_)), is_used, "slot {} of {:?}", slot, &world);
            prop_assert!(is_used || state.state == State::Idle, "slot {} of {:?}", slot, &world);
        }
        match world.phase {
            Phase::Over => prop_assert_eq!(&world.driver, &None),
            Phase::Running => prop_assert!(world.announced.contains(&world.generation)),
            Phase::Forming | Phase::Pausing => prop_assert!(false, "it waits forever: {world:?}"),
        }
    }
}
