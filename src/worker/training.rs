//! One trial on a pool of workers, from the head's point of view.

use std::{collections::BTreeMap, time::Duration};

use super::{Pool, Told, batching::Batching, error::Error};
use crate::{
    ids::{NodeId, Round, SlotId},
    trials::group::{
        Batch, FinalState, Form, Group, GroupAction, Member, Pause, Task, WorkerCommand, WorkerEvent,
        WorkerReport,
    },
};

/// After so many broken groups without a step in between, something is wrong with the trial itself.
const FAILURES: u32 = 5;
/// How long workers may take for the step and the evaluation they are at.
const PARTING: Duration = Duration::from_secs(600);

/// What happens to a training.
#[derive(Debug, Clone, PartialEq)]
pub enum Happening {
    /// A new group trains.
    Formed {
        /// Its round.
        round: Round,
        /// The slots of its members, by rank.
        slots: Vec<u32>,
        /// Optimizer steps behind it.
        steps: u64,
        /// How long the training stood still, as the first rank sees it.
        pause: Pause,
    },
    /// News from the first rank.
    Reported(Box<WorkerReport>),
    /// The batch will be another one, from the next step on that all can agree on.
    Retuned(Batch),
    /// A checkpoint is on disk.
    Checkpointed {
        /// Optimizer steps behind it.
        steps: u64,
    },
    /// A worker has lost its group.
    Broken {
        /// Its slot.
        slot: u32,
        /// The group.
        round: Round,
        /// Optimizer steps that it has behind it; none if it has no state.
        steps: Option<u64>,
        /// What it has seen.
        reason: String,
    },
    /// A worker's process is gone; another one takes its place.
    Gone {
        /// Its slot.
        slot: u32,
    },
    /// The last epoch is done. All workers are free again.
    Finished {
        /// The last evaluation.
        metrics: BTreeMap<String, f64>,
    },
    /// The trial cannot go on. All workers are free again.
    Failed {
        /// Why.
        reason: String,
    },
}

/// Trains one trial on a pool of workers, elastically.
///
/// It goes on by itself when workers die: survivors continue, and the dead are replaced. [`Training::next`] says what happens.
#[derive(Debug)]
pub struct Training {
    pool: Pool,
    group: Group,
    addresses: BTreeMap<SlotId, String>,
    task: Task,
    batching: Batching,
    slots: Vec<u32>,
    batch: Batch,
    generation_pause: Option<(Round, u64, Pause)>,
    waiting: Vec<Happening>,
    ended: Option<Happening>,
}

impl Training {
    /// Starts a trial on some slots of a pool. With a checkpoint at the task's path it goes on from there. A pool must not
    /// see the same trial number twice.
    pub fn start(pool: Pool, task: Task, batching: Batching, slots: &[u32]) -> Result<Self, Error> {
        let batch = batching.initial();
        let mut training = Self {
            group: Group::after(pool.round()),
            addresses: BTreeMap::new(),
            pool,
            task,
            batching,
            slots: Vec::new(),
            batch,
            generation_pause: None,
            waiting: Vec::new(),
            ended: None,
        };
        training.reshape(slots)?;
        Ok(training)
    }

    /// Moves the trial to these slots, while it trains.
    pub fn reshape(&mut self, slots: &[u32]) -> Result<(), Error> {
        if let Some(unknown) = slots.iter().find(|slot| **slot >= self.pool.len()) {
            let last = self.pool.len().saturating_sub(1);
            return Err(Error::Protocol(format!("there is no slot {unknown}; slots go from 0 to {last}")));
        }
        self.slots = slots.to_vec();
        let orders = self.group.reshape(slots.iter().copied().map(id));
        self.obey(orders);
        Ok(())
    }

    /// The workers.
    #[must_use]
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The slots that train, by rank.
    #[must_use]
    pub fn members(&self) -> Vec<u32> {
        self.group.members().iter().map(|slot| slot.index).collect()
    }

    /// Whether the group is what it shall be.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.group.is_settled()
    }

    /// What a step takes.
    #[must_use]
    pub const fn batch(&self) -> Batch {
        self.batch
    }

    /// Gives back the pool, when all its workers are free. A trial that has not ended is dropped; its checkpoint stays.
    pub fn into_pool(mut self) -> Result<Pool, Error> {
        if self.ended.is_none() {
            self.release();
        }
        while !self.group.slots().is_empty() {
            match self.pool.next(PARTING)? {
                Some(Told::Gone(slot)) => {
                    self.group.gone(id(slot));
                    self.pool.start(slot)?;
                }
                Some(Told::Event(slot, event)) => self.hear(slot, event)?,
                None => {
                    let slots = self.group.slots();
                    return Err(Error::Protocol(format!(
                        "the workers of slots {slots:?} do not let go of the trial"
                    )));
                }
            }
        }
        self.pool.has_seen(self.group.round());
        Ok(self.pool)
    }

    /// The next thing that happens; none if nothing does in time. After the end there is nothing more.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Happening>, Error> {
        loop {
            if !self.waiting.is_empty() {
                return Ok(Some(self.waiting.remove(0)));
            }
            let Some(told) = self.pool.next(timeout)? else { return Ok(None) };
            match told {
                Told::Gone(slot) => self.replace(slot)?,
                Told::Event(slot, event) => self.hear(slot, event)?,
            }
            if self.group.failures() > FAILURES && self.ended.is_none() {
                let reason = format!("{FAILURES} groups in a row have broken without a step in between");
                self.end(Happening::Failed { reason });
            }
        }
    }

    fn replace(&mut self, slot: u32) -> Result<(), Error> {
        self.waiting.push(Happening::Gone { slot });
        let orders = self.group.gone(id(slot));
        self.obey(orders);
        if self.ended.is_none() {
            self.pool.start(slot)?;
            let wanted = self.slots.clone();
            self.reshape(&wanted)?;
        }
        Ok(())
    }

    fn hear(&mut self, slot: u32, event: WorkerEvent) -> Result<(), Error> {
        // The last words of a trial that was here before.
        if event.trial() != self.task.trial {
            return Ok(());
        }
        let orders = match event {
            WorkerEvent::Prepared { rendezvous_addr, .. } => {
                self.addresses.insert(id(slot), rendezvous_addr);
                self.group.prepared(id(slot))
            }
            WorkerEvent::Formed { round, steps, pause, .. } => {
                let orders = self.group.formed(id(slot), round);
                self.formed(slot, round, steps, pause);
                orders
            }
            WorkerEvent::Broken { round, steps, reason, .. } => {
                self.waiting.push(Happening::Broken { slot, round, steps, reason });
                self.group.broken(id(slot), round)
            }
            WorkerEvent::Released { .. } => self.group.released(id(slot)),
            WorkerEvent::Reported(report) => {
                self.group.progressed();
                self.retune(&report)?;
                self.waiting.push(Happening::Reported(report));
                Vec::new()
            }
            WorkerEvent::Checkpointed { steps, .. } => {
                self.waiting.push(Happening::Checkpointed { steps });
                Vec::new()
            }
            WorkerEvent::Finished { metrics, .. } => {
                self.end(Happening::Finished { metrics });
                Vec::new()
            }
            WorkerEvent::Failed { reason, .. } => {
                // Whoever fails has let go already.
                self.end(Happening::Failed { reason });
                self.group.released(id(slot))
            }
        };
        self.obey(orders);
        Ok(())
    }

    /// A group is formed when all its members are; the first rank tells of the pause.
    fn formed(&mut self, slot: u32, round: Round, steps: u64, pause: Pause) {
        if self.group.members().first() == Some(&id(slot)) {
            self.generation_pause = Some((round, steps, pause));
        }
        if let Some((of, steps, pause)) = self.generation_pause
            && of == self.group.round()
            && self.group.members_are_formed()
        {
            let slots = self.members();
            self.waiting.push(Happening::Formed { round: of, slots, steps, pause });
            self.generation_pause = None;
        }
    }

    fn retune(&mut self, report: &WorkerReport) -> Result<(), Error> {
        if report.round != self.group.round() || !self.group.is_settled() {
            return Ok(());
        }
        self.batching.learn(report)?;
        let workers = self.group.members().len() as u32;
        if let Some(batch) = self.batching.better(workers, self.batch) {
            self.use_batch(batch);
        }
        Ok(())
    }

    /// Uses another batch from the next step on that all workers can agree on, until the group changes.
    pub fn use_batch(&mut self, batch: Batch) {
        self.batch = batch;
        self.waiting.push(Happening::Retuned(batch));
        let (trial, round) = (self.task.trial, self.group.round());
        for slot in self.group.members() {
            self.pool.tell(slot.index, WorkerCommand::Retune { trial, round, batch });
        }
    }

    fn end(&mut self, how: Happening) {
        if self.ended.is_none() {
            self.ended = Some(how.clone());
            self.waiting.push(how);
            self.release();
        }
    }

    fn release(&mut self) {
        let orders = self.group.release(FinalState::Discarded);
        self.obey(orders);
    }

    fn obey(&mut self, orders: Vec<GroupAction>) {
        let trial = self.task.trial;
        for order in orders {
            match order {
                GroupAction::Prepare(slot) => {
                    self.pool.tell(slot.index, WorkerCommand::Prepare(Box::new(self.task.clone())));
                }
                GroupAction::Release { slot, state } => {
                    self.pool.tell(slot.index, WorkerCommand::Release { trial, state });
                }
                GroupAction::Form { round, members, donors, told, broken } => {
                    self.batch = self.batching.on(members.len() as u32);
                    let member = |slot: &SlotId| {
                        let rendezvous_addr = self.addresses.get(slot)?.clone();
                        Some(Member { slot: *slot, rendezvous_addr })
                    };
                    let known = |slots: &[SlotId]| slots.iter().filter_map(member).collect();
                    let (members, donors) = (known(&members), known(&donors));
                    let form = Form { trial, round, members, donors, batch: self.batch, broken };
                    for slot in told {
                        self.pool.tell(slot.index, WorkerCommand::Form(form.clone()));
                    }
                }
            }
        }
    }
}

const fn id(slot: u32) -> SlotId {
    SlotId { node: NodeId(0), index: slot }
}
