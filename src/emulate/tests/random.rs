//! Random sequences: workers come, go, move and die, while the driver of the head keeps them together.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{World, batch, slot};
use crate::{
    ids::{Generation, SlotId},
    space::Params,
    trials::{
        engine::{FailureCause, GroupCommand, GroupEvent, Launch},
        group::{Batch, Driver, FinalState, Form, Limits, Output, WorkerCommand, WorkerEvent},
    },
};

const SLOTS: u32 = 6;

/// What happens to a trial.
#[derive(Debug, Clone)]
enum Turn {
    /// Nothing but training, in seconds.
    Train(f64),
    Reshape(BTreeSet<u32>),
    /// A worker dies, which the head notices this many seconds later.
    Kill(u32, f64),
    /// All die.
    KillAll,
    Retune(u32),
    /// It is put aside, and taken up again.
    Pause,
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        4 => (0.0..8.0_f64).prop_map(Turn::Train),
        4 => prop::collection::btree_set(0..SLOTS, 1..=SLOTS as usize).prop_map(Turn::Reshape),
        3 => (0..SLOTS, prop_oneof![Just(0.0), 0.0..2.0_f64]).prop_map(|(slot, late_s)| Turn::Kill(slot, late_s)),
        1 => Just(Turn::KillAll),
        2 => (1_u32..16).prop_map(|eighths| Turn::Retune(128 * eighths)),
        1 => Just(Turn::Pause),
    ]
}

/// A head of one trial: an engine that follows the turns, and remembers what was reported.
struct Head {
    world: World,
    driver: Driver,
    generation: Generation,
    target: Vec<SlotId>,
    batch: Batch,
    /// The next group is launched as soon as this one has left.
    is_restarting: bool,
    has_left: bool,
    /// Workers that have reported that they train, and so have the state.
    holders: BTreeSet<SlotId>,
    /// Steps that must not be lost.
    kept: u64,
    /// Steps of the last checkpoint.
    saved: u64,
    last_epochs: f64,
    finished: Option<u64>,
    /// The generation under which the engine knows of the end.
    ended: Option<Generation>,
}

impl Head {
    fn new() -> Self {
        let world = World::new(SLOTS, 1.0);
        let (generation, target, batch) = (Generation(1), vec![slot(0)], batch(128));
        let (driver, outputs) = launch(&world, generation, &target, batch);
        let mut head = Self {
            world,
            driver,
            generation,
            target,
            batch,
            is_restarting: false,
            has_left: false,
            holders: BTreeSet::new(),
            kept: 0,
            saved: 0,
            last_epochs: 0.0,
            finished: None,
            ended: None,
        };
        head.carry_out(outputs);
        head
    }

    fn carry_out(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Send { slot, command } => {
                    self.about_to_send(slot, &command);
                    // The dead do nothing, even if the head does not know yet.
                    if self.world.workers.contains_key(&slot.index) {
                        self.world.send_to(slot.index, command);
                    }
                }
                Output::Engine { generation, event } => self.on_group(generation, event),
                Output::Kill { slot, reason } => panic!("nobody stands still: {slot} {reason}"),
                Output::Left if self.is_restarting => self.restart(),
                Output::Left => self.has_left = true,
            }
        }
    }

    fn about_to_send(&mut self, slot: SlotId, command: &WorkerCommand) {
        match command {
            WorkerCommand::Prepare(_) => {
                self.holders.remove(&slot);
            }
            WorkerCommand::Form(Form { members, donors, .. })
                if !members.iter().chain(donors).any(|member| self.holders.contains(&member.slot)) =>
            {
                // All who had the state are gone.
                self.kept = self.saved;
                self.last_epochs = 0.0;
                self.finished = None;
            }
            _ => {}
        }
    }

    fn on_group(&mut self, generation: Generation, event: GroupEvent) {
        match event {
            GroupEvent::Failed { reason, cause: FailureCause::Trial } => panic!("{reason}"),
            GroupEvent::Failed { cause: FailureCause::Infrastructure, .. } => {
                self.is_restarting = true;
                self.command(GroupCommand::Stop(FinalState::Discarded));
            }
            GroupEvent::Finished(_) => self.ended = Some(generation),
            _ => {}
        }
    }

    fn command(&mut self, command: GroupCommand) {
        let outputs = self.driver.on_command(command, self.world.now_s());
        self.carry_out(outputs);
    }

    fn restart(&mut self) {
        self.generation = self.generation.next();
        let (driver, outputs) = launch(&self.world, self.generation, &self.target, self.batch);
        (self.driver, self.is_restarting) = (driver, false);
        self.carry_out(outputs);
    }

    fn on_worker(&mut self, slot: SlotId, event: WorkerEvent) {
        match &event {
            WorkerEvent::Formed { steps, .. } => {
                assert!(*steps >= self.kept, "from {steps} on, after {}", self.kept);
                self.holders.insert(slot);
            }
            WorkerEvent::Released { .. } => {
                self.holders.remove(&slot);
            }
            WorkerEvent::Reported(report) => {
                assert!(report.steps >= self.kept && report.epochs >= self.last_epochs, "{report:?}");
                self.kept = report.steps;
                self.last_epochs = report.epochs;
            }
            WorkerEvent::Checkpointed { steps, .. } => {
                assert!(*steps >= self.saved.min(self.kept));
                self.saved = *steps;
            }
            WorkerEvent::Finished { .. } => {
                assert!(self.last_epochs >= self.world.task().epochs, "at {} epochs", self.last_epochs);
                // It may be reported again, but at the same step.
                assert!(self.finished.is_none_or(|steps| steps == self.kept));
                self.finished = Some(self.kept);
            }
            WorkerEvent::Failed { reason, .. } | WorkerEvent::CheckpointFailed { reason, .. } => {
                panic!("{reason}")
            }
            WorkerEvent::Prepared { .. }
            | WorkerEvent::Broken { .. }
            | WorkerEvent::Progress { .. }
            | WorkerEvent::OutOfMemory { .. } => {}
        }
        let outputs = self.driver.on_worker(slot, event, self.world.now_s());
        self.carry_out(outputs);
    }

    async fn run(&mut self, seconds: f64) {
        let end_s = self.world.now_s() + seconds;
        loop {
            let look_s = self.driver.deadline_s().unwrap_or(f64::INFINITY).min(end_s);
            match self.world.next_event((look_s - self.world.now_s()).max(0.0)).await {
                Some((index, event)) => self.on_worker(slot(index), event),
                None if look_s >= end_s => return,
                None => {
                    let outputs = self.driver.on_time(self.world.now_s());
                    self.carry_out(outputs);
                }
            }
        }
    }

    async fn kill(&mut self, index: u32, late_s: f64) {
        self.world.kill(index);
        self.holders.remove(&slot(index));
        if late_s > 0.0 {
            self.run(late_s).await;
        }
        self.world.start(index);
        let outputs = self.driver.on_lost(slot(index), self.world.now_s());
        self.carry_out(outputs);
        self.reshape();
    }

    fn reshape(&mut self) {
        self.generation = self.generation.next();
        let (generation, slots, batch) = (self.generation, self.target.clone(), self.batch);
        self.command(GroupCommand::Reshape { generation, slots, batch });
        assert!(self.ended.is_none_or(|ended| ended == generation), "the end is reported again");
    }

    async fn turn(&mut self, turn: &Turn) {
        match turn {
            Turn::Train(seconds) => self.run(*seconds).await,
            Turn::Reshape(target) => {
                self.target = target.iter().copied().map(slot).collect();
                self.reshape();
            }
            Turn::Kill(index, late_s) => self.kill(*index, *late_s).await,
            Turn::KillAll => {
                for index in 0..SLOTS {
                    self.kill(index, 0.0).await;
                }
            }
            Turn::Retune(total) => {
                self.batch = batch(*total);
                self.command(GroupCommand::Retune { batch: self.batch });
            }
            // Who is at the end is not put aside.
            Turn::Pause if self.ended.is_some() => {}
            Turn::Pause => {
                self.is_restarting = true;
                self.command(GroupCommand::Stop(FinalState::Saved));
                self.run(60.0).await;
                assert!(!self.is_restarting, "all are free");
            }
        }
    }
}

fn launch(world: &World, generation: Generation, slots: &[SlotId], batch: Batch) -> (Driver, Vec<Output>) {
    let (slots, params, batch) = (slots.to_vec(), Params::default(), Some(batch));
    let launch = Launch { generation, slots, params, batch, checkpoint: None };
    Driver::launch(world.task(), launch, Limits::default(), world.now_s())
}

async fn run(turns: &[Turn]) {
    let mut head = Head::new();
    for turn in turns {
        head.turn(turn).await;
    }
    // Then nothing happens any more, and it comes to its end.
    head.run(500.0).await;
    assert!(head.ended.is_some(), "at {} epochs", head.last_epochs);
    assert_eq!(head.finished, Some(head.kept), "nothing comes after the end");
    assert_eq!(head.saved, head.kept);
    head.command(GroupCommand::Stop(FinalState::Discarded));
    assert!(head.has_left, "all are free");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn no_progress_is_lost_while_somebody_has_it(turns in prop::collection::vec(turn(), 1..25)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(run(&turns));
    }
}
