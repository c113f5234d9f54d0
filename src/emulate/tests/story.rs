//! Random stories: workers are told to come, go and move, and die, while the group of the head keeps them together.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::World;
use crate::trials::{
    Group, GroupAction,
    group::{Batch, Form, WorkerCommand, WorkerEvent},
};

const SLOTS: u32 = 6;

/// What happens to a trial.
#[derive(Debug, Clone)]
enum Turn {
    /// Nothing but training, in seconds.
    Train(f64),
    Reshape(BTreeSet<u32>),
    /// A worker dies, which the head notices so many seconds later.
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

/// A head of one trial that remembers what it was told.
struct Head {
    world: World,
    group: Group,
    target: Vec<u32>,
    total: u32,
    /// Workers that have said that they train, and so have the state.
    holders: BTreeSet<u32>,
    /// Steps that must not be lost.
    kept: u64,
    /// Steps of the last checkpoint.
    saved: u64,
    last_epochs: f64,
    finished: Option<u64>,
}

impl Head {
    fn new() -> Self {
        Self {
            world: World::new(SLOTS, 1.0),
            group: Group::default(),
            target: Vec::new(),
            total: 128,
            holders: BTreeSet::new(),
            kept: 0,
            saved: 0,
            last_epochs: 0.0,
            finished: None,
        }
    }

    /// The dead hear nothing, even if the head does not know yet.
    fn tell(&self, slot: u32, command: WorkerCommand) {
        if self.world.workers.contains_key(&slot) {
            self.world.tell(slot, command);
        }
    }

    fn obey(&mut self, orders: Vec<GroupAction>) {
        for order in orders {
            match order {
                GroupAction::Prepare(slot) => {
                    self.holders.remove(&slot);
                    self.tell(slot, WorkerCommand::Prepare(Box::new(self.world.task())));
                }
                GroupAction::Release { slot, save } => {
                    self.tell(slot, WorkerCommand::Release { trial: 7, save });
                }
                GroupAction::Form { round, members, donors, told, broken } => {
                    if !members.iter().chain(&donors).any(|slot| self.holders.contains(slot)) {
                        // All who had the state are gone.
                        self.kept = self.saved;
                        self.last_epochs = 0.0;
                        self.finished = None;
                    }
                    let batch = Batch { total: self.total, accumulation: 0 };
                    let form = Form { batch, broken, ..super::form(round, &members, &donors, self.total) };
                    for slot in told {
                        self.tell(slot, WorkerCommand::Form(form.clone()));
                    }
                }
            }
        }
    }

    fn hear(&mut self, slot: u32, event: &WorkerEvent) {
        let orders = match event {
            WorkerEvent::Prepared { .. } => self.group.prepared(slot),
            WorkerEvent::Formed { round, steps, .. } => {
                assert!(*steps >= self.kept, "from {steps} on, after {}", self.kept);
                self.holders.insert(slot);
                self.group.formed(slot, *round)
            }
            WorkerEvent::Broken { round, .. } => self.group.broken(slot, *round),
            WorkerEvent::Released { .. } => {
                self.holders.remove(&slot);
                self.group.released(slot)
            }
            WorkerEvent::Reported(report) => {
                assert!(report.steps >= self.kept && report.epochs >= self.last_epochs, "{report:?}");
                self.kept = report.steps;
                self.last_epochs = report.epochs;
                self.group.progressed();
                Vec::new()
            }
            WorkerEvent::Checkpointed { steps, .. } => {
                assert!(*steps >= self.saved.min(self.kept));
                self.saved = *steps;
                Vec::new()
            }
            WorkerEvent::Finished { round, .. } => {
                assert!(self.last_epochs >= self.world.task().epochs, "at {} epochs", self.last_epochs);
                assert!(*round <= self.group.round());
                // It may be said again, but at the same step.
                assert!(self.finished.is_none_or(|steps| steps == self.kept));
                self.finished = Some(self.kept);
                Vec::new()
            }
            WorkerEvent::Failed { reason, .. } => panic!("{reason}"),
        };
        self.obey(orders);
    }

    async fn run(&mut self, seconds: f64) {
        let end = tokio::time::Instant::now() + std::time::Duration::from_secs_f64(seconds);
        while let Some((slot, event)) =
            self.world.next(end.saturating_duration_since(tokio::time::Instant::now()).as_secs_f64()).await
        {
            self.hear(slot, &event);
        }
    }

    async fn kill(&mut self, slot: u32, late_s: f64) {
        self.world.kill(slot);
        self.holders.remove(&slot);
        if late_s > 0.0 {
            self.run(late_s).await;
        }
        let orders = self.group.gone(slot);
        self.obey(orders);
        self.world.start(slot);
        self.reshape();
    }

    fn reshape(&mut self) {
        let orders = self.group.reshape(self.target.clone());
        self.obey(orders);
    }

    async fn turn(&mut self, turn: &Turn) {
        match turn {
            Turn::Train(seconds) => self.run(*seconds).await,
            Turn::Reshape(target) => {
                self.target = target.iter().copied().collect();
                self.reshape();
            }
            Turn::Kill(slot, late_s) => self.kill(*slot, *late_s).await,
            Turn::KillAll => {
                for slot in 0..SLOTS {
                    self.kill(slot, 0.0).await;
                }
            }
            Turn::Retune(total) => {
                self.total = *total;
                let (round, batch) = (self.group.round(), Batch { total: *total, accumulation: 0 });
                for slot in self.group.members().to_vec() {
                    self.tell(slot, WorkerCommand::Retune { trial: 7, round, batch });
                }
            }
            Turn::Pause => {
                let orders = self.group.release(true);
                self.obey(orders);
                self.run(60.0).await;
                assert!(self.group.slots().is_empty(), "all are free");
                self.group = Group::after(self.group.round());
                self.reshape();
            }
        }
    }
}

async fn tell(story: &[Turn]) {
    let mut head = Head::new();
    head.target = vec![0];
    head.reshape();
    for turn in story {
        head.turn(turn).await;
    }
    // Then nothing happens any more, and it comes to its end.
    head.run(500.0).await;
    assert!(head.finished.is_some(), "at {} epochs", head.last_epochs);
    assert!(head.group.is_settled());
    assert_eq!(head.finished, Some(head.kept), "nothing comes after the end");
    assert_eq!(head.saved, head.kept);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn no_progress_is_lost_while_somebody_has_it(story in prop::collection::vec(turn(), 1..25)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(tell(&story));
    }
}
