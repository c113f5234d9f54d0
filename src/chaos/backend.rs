//! Modelled training behind the real protocol of workers: steps, evaluations and checkpoints in virtual time.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::poll_fn,
    task::Poll,
};

use super::{
    Defects, Fault, Life,
    disk::{Naming, Written},
    site::{Invitation, Seat, Shared, Turn, Vote},
};
use crate::{
    goodput::{GradientStats, Observation, Shape},
    ids::{Round, SlotId, TrialId},
    trials::group::{Batch, Evaluation, Form, MemoryLimit, Pause, Task, WorkerReport},
    worker::{
        checkpoint::NotSaved,
        protocol::{Backend, Failure, Role, StepProgress, StepRequest},
    },
};

/// Examples of an epoch, in initial batches.
const BATCHES_PER_EPOCH: f64 = 6.0;
/// Seconds of a step on one GPU with the initial batch.
const STEP_S: f64 = 1.5;

/// How far a trial has come.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct State {
    pub(super) steps: u64,
    /// Examples at full statistical efficiency.
    pub(super) useful: f64,
    pub(super) evaluations: u64,
}

/// How well a trial does.
pub(super) fn loss(x: f64, epochs: f64) -> f64 {
    x + 1.0 / (1.0 + epochs)
}

pub(super) struct ModelledBackend {
    pub(super) site: Shared,
    pub(super) slot: SlotId,
    pub(super) life: Life,
    pub(super) defects: Defects,
}

/// A trial that was prepared.
pub(super) struct Session {
    site: Shared,
    slot: SlotId,
    life: Life,
    defects: Defects,
    task: Task,
    state: Option<State>,
    /// A checkpoint that is being written.
    writer: Option<u64>,
    /// Nobody has asked for it yet.
    is_new: bool,
    /// What was learned of the memory of the device, and is to be told.
    memory: Option<MemoryLimit>,
}

impl Session {
    fn current(&self) -> State {
        self.state.unwrap_or_default()
    }

    fn epochs(&self) -> f64 {
        self.current().useful / self.per_epoch()
    }

    fn per_epoch(&self) -> f64 {
        BATCHES_PER_EPOCH * f64::from(self.task.initial_batch)
    }

    fn evaluation(&self) -> Evaluation {
        let x = self.task.params.get("x").and_then(serde_json::Value::as_f64).unwrap_or(0.5);
        let values = BTreeMap::from([("loss".to_owned(), loss(x, self.epochs()))]);
        Evaluation { epochs: self.epochs(), values }
    }

    /// Takes a step. Gives what was evaluated.
    fn step(&mut self, batch: Batch) -> Vec<Evaluation> {
        let mut state = self.current();
        state.steps += 1;
        // The larger the batch, the less is an example worth.
        let (total, initial) = (f64::from(batch.total), f64::from(self.task.initial_batch));
        state.useful += initial * (total / initial).sqrt();
        self.state = Some(state);
        let due = (self.epochs() / self.task.evaluate_every) as u64;
        if due <= state.evaluations || self.is_finished() {
            return Vec::new();
        }
        self.state = Some(State { evaluations: due, ..state });
        vec![self.evaluation()]
    }

    fn is_finished(&self) -> bool {
        self.epochs() >= self.task.epochs - 1e-9
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut site = self.site.borrow_mut();
        // A writer is joined. That of a dead process is gone already.
        if let Some(writer) = self.writer.take()
            && !self.defects.drops_writers
        {
            site.disk.finish(writer, true);
        }
        if site.hosts.get(&self.slot).is_some_and(|(life, _)| *life == self.life) {
            site.hosts.remove(&self.slot);
        }
    }
}

/// A group that was joined. Who drops it without having left it is lost for the others.
pub(super) struct Group {
    site: Shared,
    slot: SlotId,
    at: (TrialId, Round),
    role: Role,
    members: u32,
    nodes: u32,
    batch: Batch,
    refused: Option<String>,
    in_agreement: bool,
    steps: u32,
}

impl Group {
    fn step_s(&self) -> f64 {
        let per_gpu = f64::from(self.batch.total) / f64::from(self.members);
        STEP_S * (0.2 + 0.8 * per_gpu / 64.0) + 0.1 * f64::from(self.nodes - 1)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.site.borrow_mut().leave(self.at, self.slot, self.in_agreement);
    }
}

impl ModelledBackend {
    /// Waits until a moment.
    async fn until(&self, moment_s: f64) {
        let mut is_set = false;
        poll_fn(|_| {
            let mut site = self.site.borrow_mut();
            if site.now_s >= moment_s {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut is_set, true) {
                site.alarms.push((moment_s, self.life));
            }
            Poll::Pending
        })
        .await;
    }

    fn in_seconds(&self, from: f64, to: f64) -> f64 {
        let mut site = self.site.borrow_mut();
        site.now_s + site.seconds(from, to)
    }

    /// What was to go wrong goes wrong here.
    fn fault(&self) -> Result<(), Failure> {
        let mut site = self.site.borrow_mut();
        if site.strikes(Fault::TrialFails) {
            return Err(Failure::Trial(super::INJECTED.to_owned()));
        }
        if site.strikes(Fault::EnvironmentFails) {
            return Err(Failure::Environment(super::INJECTED.to_owned()));
        }
        Ok(())
    }
}

impl ModelledBackend {
    /// A pass may have been too large for the memory. Whether that has broken the group.
    fn exhausts(&self, session: &mut Session, group: &Group) -> bool {
        let mut site = self.site.borrow_mut();
        let failed = group.batch.total.div_ceil(group.members * (group.batch.accumulation + 1));
        if failed < 2 || !site.strikes(Fault::MemoryExhausted) {
            return false;
        }
        session.memory = Some(MemoryLimit { failed, limit: failed / 2 });
        group.members > 1 && site.seconds(0.0, 1.0) < 0.3
    }
}

impl Backend for ModelledBackend {
    type Session = Session;
    type Group = Group;

    fn rendezvous_addr(&self) -> String {
        format!("worker-{}", self.life)
    }

    fn now_s(&self) -> f64 {
        self.site.borrow().now_s
    }

    async fn prepare(&mut self, task: Task) -> Result<Session, Failure> {
        {
            let mut site = self.site.borrow_mut();
            if let Some((life, trial)) = site.hosts.insert(self.slot, (self.life, task.trial)) {
                let slot = self.slot;
                site.breaks(format!(
                    "slot {slot} is used by trial {trial} (worker {life}) and by trial {} (worker {})",
                    task.trial, self.life
                ));
            }
        }
        // It counts as hosted from now on, whatever comes of it.
        let session = Session {
            site: self.site.clone(),
            slot: self.slot,
            life: self.life,
            defects: self.defects,
            task,
            state: None,
            writer: None,
            is_new: false,
            memory: None,
        };
        self.until(self.in_seconds(0.2, 2.0)).await;
        self.fault()?;
        Ok(session)
    }

    fn steps(&self, session: &Session) -> Option<u64> {
        session.state.map(|state| state.steps)
    }

    fn is_finished(&self, session: &Session) -> Result<bool, Failure> {
        Ok(session.is_finished())
    }

    fn join(&mut self, session: &Session, form: &Form, role: Role) -> Result<Group, Failure> {
        let slots = |list: &[crate::trials::group::Member]| -> Vec<SlotId> {
            list.iter().map(|member| member.slot).collect()
        };
        let members = slots(&form.members);
        let everybody = members.iter().copied().chain(slots(&form.donors)).collect();
        let nodes: BTreeSet<_> = members.iter().map(|slot| slot.node).collect();
        let (count, nodes, at) = (members.len() as u32, nodes.len() as u32, (form.trial, form.round));
        let seat = Seat { life: self.life, offer: session.state };
        let invitation = Invitation { slot: self.slot, members, everybody };
        let refused = self.site.borrow_mut().join(at, invitation, seat);
        let (site, batch) = (self.site.clone(), form.batch);
        let (slot, in_agreement, steps) = (self.slot, refused.is_some(), 0);
        Ok(Group { site, slot, at, role, members: count, nodes, batch, refused, in_agreement, steps })
    }

    async fn rendezvous(&mut self, session: &mut Session, group: &mut Group) -> Result<Pause, Failure> {
        let at = group.at;
        if let Some(reason) = group.refused.take() {
            return Err(Failure::Group(reason));
        }
        let offer = poll_fn(|_| {
            let site = self.site.borrow();
            let Some(meeting) = site.meetings.get(&at) else {
                return Poll::Ready(Err("the rendezvous is gone".to_owned()));
            };
            match &meeting.lost {
                Some(reason) => Poll::Ready(Err(reason.clone())),
                None if meeting.is_complete => Poll::Ready(Ok(meeting.furthest)),
                None => Poll::Pending,
            }
        });
        let offer = offer.await.map_err(Failure::Group)?;
        if let Role::Donate(_) = group.role {
            group.in_agreement = true;
            return Ok(Pause::default());
        }
        let state = if let Some(state) = offer {
            state
        } else {
            let loaded = self.site.borrow_mut().disk.load(at.0);
            loaded.map_err(Failure::Trial)?.unwrap_or_default()
        };
        session.state = Some(state);
        self.until(self.in_seconds(0.05, 0.5)).await;
        Ok(Pause::default())
    }

    async fn train(
        &mut self,
        session: &mut Session,
        group: &mut Group,
        request: StepRequest,
    ) -> Result<StepProgress, Failure> {
        let vote = Vote { leave: request.leave, batch: request.batch };
        let (at, slot, step_s) = (group.at, group.slot, group.step_s());
        let site = self.site.clone();
        let turn = poll_fn(|_| match site.borrow_mut().vote(at, slot, vote, step_s) {
            Turn::Waits => Poll::Pending,
            turn => Poll::Ready(turn),
        });
        let agreed = match turn.await {
            Turn::Stepped(agreed) => agreed,
            Turn::Lost(reason) => return Err(Failure::Group(reason)),
            Turn::Waits => return Err(Failure::Group("nothing was decided".to_owned())),
        };
        group.steps += 1;
        let evaluations = session.step(group.batch);
        let mut progress = StepProgress { left: agreed.leave, evaluations, ..StepProgress::default() };
        group.in_agreement = agreed.leave;
        if let (true, Some(batch)) = (agreed.retune, request.batch) {
            group.batch = batch;
            progress.retuned = true;
        }
        self.fault()?;
        if self.exhausts(session, group) {
            return Err(Failure::Group(super::INJECTED.to_owned()));
        }
        if self.site.borrow_mut().strikes(Fault::GroupBreaks) {
            return Err(Failure::Group(super::INJECTED.to_owned()));
        }
        Ok(progress)
    }

    fn evaluate(&mut self, session: &mut Session, group: &mut Group) -> Result<Evaluation, Failure> {
        let lost = self.site.borrow().meetings.get(&group.at).and_then(|meeting| meeting.lost.clone());
        if let Some(reason) = lost.filter(|_| group.members > 1) {
            return Err(Failure::Group(reason));
        }
        group.in_agreement = true;
        Ok(session.evaluation())
    }

    fn measure(&mut self, session: &mut Session, group: &mut Group) -> Result<WorkerReport, Failure> {
        let shape =
            Shape::new(group.members, group.nodes).map_err(|error| Failure::Trial(error.to_string()))?;
        let steps = std::mem::take(&mut group.steps);
        let passes = f64::from(group.batch.accumulation) + 1.0;
        let seen = Observation {
            shape,
            per_gpu: (f64::from(group.batch.total) / f64::from(group.members) / passes).max(1.0),
            accumulation: group.batch.accumulation,
            iter_time_s: group.step_s(),
            steps: f64::from(steps),
        };
        let state = session.current();
        Ok(WorkerReport {
            steps: state.steps,
            examples: state.useful as u64,
            epochs: session.epochs(),
            loss: None,
            learning_rate: 0.1,
            batch: Some(group.batch),
            step_times: if steps > 0 { vec![seen] } else { Vec::new() },
            noise: Some(GradientStats { sqr: 1.0, var: 100.0 + 200.0 * session.epochs() }),
            noise_batch: Some(f64::from(group.batch.total)),
            ..WorkerReport::default()
        })
    }

    fn memory(&mut self, session: &mut Session) -> Option<MemoryLimit> {
        session.memory.take()
    }

    fn warning(&mut self, _: &mut Session) -> Option<String> {
        None
    }

    fn save(&mut self, session: &mut Session, _: Round) -> Result<(), NotSaved> {
        let mut site = self.site.borrow_mut();
        let ends_s = site.now_s + site.seconds(0.05, 4.0);
        site.alarms.push((ends_s, self.life));
        let (trial, state) = (session.task.trial, session.current());
        // The defect of old goes with the names of old.
        let is_old = self.defects.drops_writers;
        let naming = if is_old { Naming::Shared } else { Naming::Unique };
        match site.disk.begin(trial, self.life, state, ends_s, naming) {
            Some(writer) => {
                (session.writer, session.is_new) = (Some(writer), true);
                Ok(())
            }
            None => Err(NotSaved("no space left on device".to_owned())),
        }
    }

    fn saved(&mut self, session: &mut Session, wait: bool) -> Result<Option<u64>, NotSaved> {
        let mut site = self.site.borrow_mut();
        let Some(writer) = session.writer else { return Ok(None) };
        // The defect of old: who leaves forgets the writer instead of waiting for it, and begins another one.
        let is_new = std::mem::take(&mut session.is_new);
        let is_forgotten = self.defects.drops_writers && wait && !is_new;
        match site.disk.finish(writer, wait && !is_forgotten) {
            Written::Writing if is_forgotten => {
                session.writer = None;
                Ok(None)
            }
            Written::Writing => Ok(None),
            Written::Done(steps) => {
                session.writer = None;
                site.disk.acknowledge(session.task.trial, steps);
                Ok(Some(steps))
            }
            Written::Failed => {
                session.writer = None;
                Err(NotSaved("the checkpoint could not be renamed".to_owned()))
            }
        }
    }

    fn leave(&mut self, group: Group) {
        drop(group);
    }

    fn abort(&mut self, _: &mut Session, group: Group) {
        drop(group);
    }
}
