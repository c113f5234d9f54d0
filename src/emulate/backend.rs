//! A training of which only the books are kept: what has happened by now follows from its state and the time.

use std::{collections::BTreeMap, sync::Arc};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender},
    time::{Instant, sleep_until},
};

use super::{
    checkpoint,
    error::Error,
    rendezvous::{JoinRequest, Membership, Notice, Offer, Rendezvous},
    rendezvous_tcp::join_remote,
    schedule::{StepSchedule, earlier, later},
    session::{Session, State, per_gpu},
};
use crate::{
    goodput::{Observation, Observations, Shape},
    ids::{GpuType, NodeId, Round, SlotId},
    trials::group::{Batch, Evaluation, Form, Pause, Task, WorkerCommand, WorkerEvent, WorkerReport},
    wire::{Secret, with_causes},
    worker::{
        checkpoint::{Loaded, NotSaved},
        protocol::{Backend, Failure, Role, StepProgress, StepRequest, Worker},
    },
};

/// Making a model and opening its data, in emulated seconds.
const PREPARE_S: f64 = 1.0;
/// The minimum pause before the first step ever, or after a checkpoint was read.
const FIRST_PAUSE_S: f64 = 0.5;
/// The minimum pause when a group becomes another one: real groups stand still for 14 to 114 ms (docs/performance.md).
const PAUSE_S: f64 = 0.1;
/// By how much the measured time of steps may differ from the modelled one.
const MEASUREMENT_ERROR: f64 = 0.01;

/// Where an emulated worker is.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) slot: SlotId,
    pub(super) gpu_type: GpuType,
    /// Real seconds of an emulated one.
    pub(super) time_scale: f64,
    /// Where groups meet whose first member is on this node.
    pub(super) rendezvous: Arc<Rendezvous>,
    /// Where others find that rendezvous.
    pub(super) rendezvous_addr: String,
    pub(super) secret: Secret,
}

/// Follows the commands of the head until it is gone.
pub(super) async fn work(
    place: Place,
    commands: UnboundedReceiver<WorkerCommand>,
    events: UnboundedSender<WorkerEvent>,
) {
    let slot = place.slot;
    let backend = EmulatedBackend { place, started: Instant::now() };
    let send = move |event| {
        // That the head is gone is noticed by the end of its commands.
        let _ = events.send(event);
    };
    Worker::new(slot, backend, commands, send).run().await;
}

struct EmulatedBackend {
    place: Place,
    started: Instant,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let reason = with_causes(&error);
        if error.is_of_the_environment() { Self::Environment(reason) } else { Self::Trial(reason) }
    }
}

/// A group that was joined.
struct Group {
    membership: Membership,
    joined: Instant,
    role: Role,
    shape: Shape,
    /// How many members each node has.
    placement: Vec<u32>,
    batch: Batch,
    /// Once it trains.
    schedule: Option<StepSchedule>,
    /// The step after which it is to be left.
    last_step: Option<u64>,
    seen: Observations,
    /// The first step with a batch pays for what later ones do not.
    is_warm: bool,
}

impl Group {
    /// Waits for a moment, and fails if the group is lost before.
    async fn wait_until(&mut self, moment: Instant) -> Result<(), Failure> {
        loop {
            tokio::select! {
                biased;
                notice = self.membership.next() => if let Notice::Lost(reason) = notice {
                    return Err(Failure::Group(reason));
                },
                () = sleep_until(moment) => return Ok(()),
            }
        }
    }

    fn is_first(&self) -> bool {
        self.role == Role::Train(0)
    }

    /// Takes all steps that are over, and at least up to a certain one. Gives what was evaluated on the way.
    fn take(&mut self, session: &mut Session, min_steps: u64, now: Instant) -> Vec<Evaluation> {
        let Some(schedule) = &mut self.schedule else { return Vec::new() };
        let last = schedule.whole(now).max(min_steps);
        let steps = last - schedule.taken;
        let evaluated = session.advance(schedule.batch, steps);
        schedule.taken = last;
        if steps > 0 {
            session.stepped = Some(schedule.end_of(last));
            if last >= schedule.finish {
                session.complete();
            }
            self.observe(session, steps);
        }
        evaluated
    }

    /// Takes all steps that are over in a group that has none after the present one.
    fn take_whole(&mut self, session: &mut Session) {
        let end = self.last_step.and_then(|last| Some(self.schedule.as_ref()?.end_of(last)));
        let now = Instant::now();
        self.take(session, 0, end.map_or(now, |end| now.min(end)));
    }

    /// The first rank measures the time of steps.
    fn observe(&mut self, session: &Session, steps: u64) {
        let counted = steps - u64::from(!self.is_warm);
        self.is_warm = true;
        let Some(schedule) = self.schedule.as_ref().filter(|_| counted > 0 && self.is_first()) else {
            return;
        };
        let seed = session.task.seed ^ session.current().steps.rotate_left(32);
        let error = ChaCha8Rng::seed_from_u64(seed).random_range(-MEASUREMENT_ERROR..MEASUREMENT_ERROR);
        let observation = Observation {
            shape: self.shape,
            per_gpu: f64::from(per_gpu(schedule.batch, self.shape.gpus())),
            accumulation: schedule.batch.accumulation,
            iter_time_s: schedule.step_s * (1.0 + error),
            steps: counted as f64,
        };
        self.seen.add(&observation).expect("steps of a schedule take time and have examples");
    }
}

impl EmulatedBackend {
    fn emulated_s(&self, from: Instant, to: Instant) -> f64 {
        to.saturating_duration_since(from).as_secs_f64() / self.place.time_scale
    }

    /// A moment that many emulated seconds later.
    fn later(&self, moment: Instant, seconds: f64) -> Instant {
        later(moment, seconds * self.place.time_scale)
    }

    fn schedule(
        &self,
        session: &Session,
        placement: &[u32],
        batch: Batch,
        began: Instant,
    ) -> Result<StepSchedule, Error> {
        let Place { gpu_type, time_scale, .. } = &self.place;
        StepSchedule::new(session, batch, (gpu_type, placement), began, *time_scale)
    }

    /// Uses another batch from the next step on.
    fn retune(
        &self,
        session: &mut Session,
        group: &mut Group,
        batch: Batch,
    ) -> Result<Vec<Evaluation>, Failure> {
        let now = Instant::now();
        let Some(schedule) = &group.schedule else { return Ok(Vec::new()) };
        let next = schedule.next(now);
        if next >= schedule.finish || batch == schedule.batch {
            return Ok(Vec::new());
        }
        let began = schedule.end_of(next);
        let evaluated = group.take(session, next, now);
        group.schedule = Some(self.schedule(session, &group.placement, batch, began)?);
        group.is_warm = false;
        Ok(evaluated)
    }

    /// The step after which something is due, with the moment at which it counts as taken.
    fn next_wake(&self, session: &Session, group: &Group, wake_s: f64) -> (u64, Instant) {
        let Some(schedule) = &group.schedule else { return (0, Instant::now()) };
        let moment = self.later(self.started, wake_s);
        let due = schedule.next(moment).max(schedule.taken + 1);
        let evaluation = session.steps_to_evaluation(schedule.batch, due - schedule.taken);
        let first = evaluation.map_or(due, |steps| due.min(schedule.taken + steps)).min(schedule.finish);
        let end = schedule.end_of(first);
        // A step that ends a little too early by rounding counts as one at the moment.
        (first, if first == due && first < schedule.finish { end.max(moment) } else { end })
    }
}

impl Backend for EmulatedBackend {
    type Session = Session;
    type Group = Group;

    fn rendezvous_addr(&self) -> String {
        self.place.rendezvous_addr.clone()
    }

    fn now_s(&self) -> f64 {
        self.emulated_s(self.started, Instant::now())
    }

    async fn prepare(&mut self, task: Task) -> Result<Session, Failure> {
        let session = Session::new(task)?;
        sleep_until(self.later(Instant::now(), PREPARE_S)).await;
        Ok(session)
    }

    fn steps(&self, session: &Session) -> Option<u64> {
        session.state.map(|state| state.steps)
    }

    fn is_finished(&self, session: &Session) -> Result<bool, Failure> {
        Ok(session.is_finished())
    }

    fn join(&mut self, session: &Session, form: &Form, role: Role) -> Result<Group, Failure> {
        let Some(first) = form.members.first() else {
            return Err(Failure::Group("a group without members".to_owned()));
        };
        let mut nodes: BTreeMap<NodeId, u32> = BTreeMap::new();
        for member in &form.members {
            *nodes.entry(member.slot.node).or_default() += 1;
        }
        let shape = Shape::new(form.members.len() as u32, nodes.len() as u32).map_err(Error::from)?;
        let joined = Instant::now();
        let idle_s = session.stepped.map_or(0.0, |stepped| self.emulated_s(stepped, joined));
        let request = JoinRequest {
            trial: form.trial,
            round: form.round,
            slot: self.place.slot,
            everybody: form.members.iter().chain(&form.donors).map(|member| member.slot).collect(),
            offer: session.state.map(|state| Offer { state, idle_s }),
        };
        let membership = if first.rendezvous_addr == self.place.rendezvous_addr {
            self.place.rendezvous.join(request)
        } else {
            join_remote(first.rendezvous_addr.clone(), &self.place.secret, request)
        };
        Ok(Group {
            membership,
            joined,
            role,
            shape,
            placement: nodes.into_values().collect(),
            batch: form.batch,
            schedule: None,
            last_step: None,
            seen: Observations::default(),
            is_warm: false,
        })
    }

    async fn rendezvous(&mut self, session: &mut Session, group: &mut Group) -> Result<Pause, Failure> {
        let offer = match group.membership.next().await {
            Notice::Complete(offer) => offer,
            Notice::Lost(reason) => return Err(Failure::Group(reason)),
        };
        if let Role::Donate(_) = group.role {
            return Ok(Pause::default());
        }
        let met = Instant::now();
        let (state, idle_s, min_s) = if let Some(Offer { state, idle_s }) = offer {
            (state, idle_s, PAUSE_S)
        } else {
            let Loaded { state, warning } = checkpoint::load(session)?;
            session.warning = warning;
            (state.unwrap_or_default(), 0.0, FIRST_PAUSE_S)
        };
        session.state = Some(state);
        session.stepped = Some(earlier(met, idle_s * self.place.time_scale));
        // The time that it took to meet is part of the pause.
        let ready = self.later(met, (min_s - idle_s).max(0.0));
        group.wait_until(ready).await?;
        group.schedule = Some(self.schedule(session, &group.placement, group.batch, ready)?);
        let hand_over_s = self.emulated_s(met, ready);
        let State { steps, .. } = state;
        let total_s = if steps == 0 { 0.0 } else { idle_s + hand_over_s };
        Ok(Pause { total_s, form_s: self.emulated_s(group.joined, met), hand_over_s })
    }

    /// Nothing happens at a step: it only wakes up for what others want to know.
    async fn train(
        &mut self,
        session: &mut Session,
        group: &mut Group,
        request: StepRequest,
    ) -> Result<StepProgress, Failure> {
        let StepRequest { leave, batch, wake_s } = request;
        if let (Some(batch), false) = (batch, leave) {
            let evaluations = self.retune(session, group, batch)?;
            return Ok(StepProgress { retuned: true, evaluations, ..StepProgress::default() });
        }
        let (step, moment) = match &group.schedule {
            Some(schedule) if leave => {
                let last = group.last_step.unwrap_or_else(|| schedule.next(Instant::now()));
                (last, schedule.end_of(last))
            }
            _ => self.next_wake(session, group, wake_s),
        };
        group.last_step = leave.then_some(step);
        if let Err(failure) = group.wait_until(moment).await {
            // The step under way has failed.
            group.take_whole(session);
            return Err(failure);
        }
        let now = if leave { moment } else { Instant::now() };
        let evaluations = group.take(session, step, now);
        Ok(StepProgress { left: leave, evaluations, ..StepProgress::default() })
    }

    fn evaluate(&mut self, session: &mut Session, _: &mut Group) -> Result<Evaluation, Failure> {
        Ok(session.evaluate())
    }

    fn measure(&mut self, session: &mut Session, group: &mut Group) -> Result<WorkerReport, Failure> {
        let state = session.current();
        let batch = group.schedule.as_ref().map_or(group.batch, |schedule| schedule.batch);
        let seen = std::mem::take(&mut group.seen);
        Ok(WorkerReport {
            steps: state.steps,
            examples: state.examples,
            epochs: session.epochs(),
            loss: session.metrics().get("loss").copied(),
            learning_rate: session.learning_rate(batch)?,
            batch: Some(batch),
            step_times: seen.iter().map(|times| Observation { shape: group.shape, ..times }).collect(),
            noise: session.noise(batch),
            noise_batch: Some(f64::from(batch.total)),
            ..WorkerReport::default()
        })
    }

    fn warning(&mut self, session: &mut Session) -> Option<String> {
        session.warning.take()
    }

    fn save(&mut self, session: &mut Session, round: Round) -> Result<(), NotSaved> {
        session.saved = Some(checkpoint::save(session, round)?);
        Ok(())
    }

    fn saved(&mut self, session: &mut Session, _wait: bool) -> Result<Option<u64>, NotSaved> {
        Ok(session.saved.take())
    }

    fn leave(&mut self, group: Group) {
        group.membership.leave();
    }

    fn abort(&mut self, session: &mut Session, mut group: Group) {
        group.take_whole(session);
    }
}
