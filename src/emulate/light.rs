//! The life of a light worker: it hosts a rank of whatever trial it is given, but only keeps the books of its training.

use std::{convert::Infallible, sync::Arc};

use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender},
    time::{Instant, sleep_until},
};

use super::{
    checkpoint,
    course::{earlier, later},
    door,
    error::Error,
    hall::{Chair, Hall, Invitation, Offer, Word},
    inbox::{Gone, Inbox},
    session::Session,
    training::Training,
};
use crate::{
    ids::{GpuType, SlotId, TrialId},
    trials::group::{FinalState, Form, Member, Pause, Task, WorkerCommand, WorkerEvent},
    wire::{Secret, with_causes},
};

/// Making a model and opening its data, in emulated seconds.
const PREPARE_S: f64 = 1.0;
/// The least pause before the first step ever, or after a checkpoint was read.
const FIRST_PAUSE_S: f64 = 0.5;
/// The least pause when a group becomes another one: real groups stand still for 14 to 114 ms (docs/performance.md).
const PAUSE_S: f64 = 0.1;

/// Where a light worker is.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) slot: SlotId,
    pub(super) gpu_type: GpuType,
    /// Real seconds of an emulated one.
    pub(super) time_scale: f64,
    /// Where groups meet whose first member is on this node.
    pub(super) hall: Arc<Hall>,
    /// Where others find that hall.
    pub(super) store: String,
    pub(super) secret: Secret,
}

/// Does what the head says until it is gone.
pub(super) async fn work(
    place: &Place,
    commands: UnboundedReceiver<WorkerCommand>,
    events: UnboundedSender<WorkerEvent>,
) {
    let mut worker = Worker { place, inbox: Inbox::new(commands), events, session: None };
    let Err(Gone) = worker.run().await;
}

pub(super) struct Worker<'a> {
    pub(super) place: &'a Place,
    pub(super) inbox: Inbox,
    events: UnboundedSender<WorkerEvent>,
    session: Option<Session>,
}

/// Why a worker takes part in a group no longer.
#[derive(Debug)]
pub(super) enum Stop {
    /// It was told to, or the trial is complete.
    Left,
    /// It was told that the group is broken, in the middle of a step that so fails for the others, too.
    Aborted,
    /// The group has lost a member.
    Lost(String),
    /// The trial itself is to blame.
    Failed(Error),
    /// There is no head.
    Gone,
}

impl From<Gone> for Stop {
    fn from(Gone: Gone) -> Self {
        Self::Gone
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// What a worker does in a new round.
enum Role {
    Train,
    Donate,
    Leave,
}

/// What ends a wait.
pub(super) enum Woken {
    Time,
    /// A command has come.
    Called,
    /// All others are there.
    Met(Option<Offer>),
}

impl Worker<'_> {
    async fn run(&mut self) -> Result<Infallible, Gone> {
        loop {
            match self.inbox.next().await? {
                WorkerCommand::Prepare(task) => self.prepare(*task).await?,
                WorkerCommand::Form(form) => self.form(&form).await?,
                // Its group is gone.
                WorkerCommand::Retune { .. } => {}
                WorkerCommand::Release { trial, state } => self.release(trial, state)?,
            }
        }
    }

    pub(super) fn say(&self, event: WorkerEvent) -> Result<(), Gone> {
        self.events.send(event).map_err(|_| Gone)
    }

    fn fail(&mut self, trial: TrialId, error: &Error) -> Result<(), Gone> {
        self.session = None;
        self.say(WorkerEvent::Failed { trial, reason: with_causes(error) })
    }

    fn emulated_s(&self, from: Instant, to: Instant) -> f64 {
        to.saturating_duration_since(from).as_secs_f64() / self.place.time_scale
    }

    async fn prepare(&mut self, task: Task) -> Result<(), Gone> {
        let trial = task.trial;
        match Session::new(task) {
            Ok(session) => {
                sleep_until(later(Instant::now(), PREPARE_S * self.place.time_scale)).await;
                self.session = Some(session);
                self.say(WorkerEvent::Prepared { trial, rendezvous_addr: self.place.store.clone() })
            }
            Err(error) => self.fail(trial, &error),
        }
    }

    fn release(&mut self, trial: TrialId, state: FinalState) -> Result<(), Gone> {
        if let Some(session) = self.session.take_if(|session| session.task.trial == trial)
            && state == FinalState::Saved
            && session.state.is_some()
        {
            match checkpoint::save(&session, self.place.slot.index) {
                Ok(steps) => self.say(WorkerEvent::Checkpointed { trial, steps })?,
                Err(error) => return self.fail(trial, &error),
            }
        }
        self.say(WorkerEvent::Released { trial })
    }

    fn role(&self, form: &Form) -> Role {
        let here = |member: &Member| member.slot == self.seat();
        if form.members.iter().any(here) {
            Role::Train
        } else if form.donors.iter().any(here) {
            Role::Donate
        } else {
            Role::Leave
        }
    }

    pub(super) const fn seat(&self) -> SlotId {
        self.place.slot
    }

    /// Takes part in a new round for as long as it lasts.
    async fn form(&mut self, form: &Form) -> Result<(), Gone> {
        let (trial, round) = (form.trial, form.round);
        let Some(mut session) = self.session.take_if(|session| session.task.trial == trial) else {
            let reason = "the worker was told to train before it had prepared".to_owned();
            return self.say(WorkerEvent::Broken { trial, round, steps: None, reason });
        };
        if round <= session.round {
            // Of a group that has been replaced since.
            self.session = Some(session);
            return Ok(());
        }
        session.round = round;
        let ended = match self.role(form) {
            Role::Train => self.train(form, &mut session).await,
            Role::Donate => self.donate(form, &session).await,
            Role::Leave => Ok(()),
        };
        match ended {
            // It is of no more use here.
            Ok(()) => self.say(WorkerEvent::Released { trial }),
            Err(Stop::Left | Stop::Aborted) => {
                self.session = Some(session);
                Ok(())
            }
            Err(Stop::Lost(reason)) => {
                let steps = session.state.map(|state| state.steps);
                self.session = Some(session);
                self.say(WorkerEvent::Broken { trial, round, steps, reason })
            }
            Err(Stop::Failed(error)) => self.fail(trial, &error),
            Err(Stop::Gone) => Err(Gone),
        }
    }

    async fn donate(&mut self, form: &Form, session: &Session) -> Result<(), Stop> {
        let (chair, _) = self.meet(form, session).await?;
        chair.leave();
        Ok(())
    }

    /// Meets the others, catches up, and trains.
    async fn train(&mut self, form: &Form, session: &mut Session) -> Result<(), Stop> {
        let told = Instant::now();
        let (mut chair, offer) = self.meet(form, session).await?;
        let ended = match self.catch_up(form, session, &mut chair, offer, told).await {
            Ok(ready) => Training::run(self, form, session, &mut chair, ready).await,
            Err(stop) => stop,
        };
        if !matches!(ended, Stop::Gone | Stop::Aborted) {
            chair.leave();
        }
        Err(ended)
    }

    /// Sits down with everybody, and waits until all are there.
    async fn meet(&mut self, form: &Form, session: &Session) -> Result<(Chair, Option<Offer>), Stop> {
        let Some(first) = form.members.first() else {
            return Err(Stop::Lost("a group without members".to_owned()));
        };
        let idle_s = session.stepped.map_or(0.0, |stepped| self.emulated_s(stepped, Instant::now()));
        let invitation = Invitation {
            trial: form.trial,
            round: form.round,
            seat: self.seat(),
            everybody: form.members.iter().chain(&form.donors).map(|member| member.slot).collect(),
            offer: session.state.map(|state| Offer { state, idle_s }),
        };
        let mut chair = if first.rendezvous_addr == self.place.store {
            self.place.hall.sit(invitation)
        } else {
            door::visit(first.rendezvous_addr.clone(), &self.place.secret, invitation)
        };
        let stop = loop {
            if self.inbox.leave(form.trial, form.round).is_some() {
                break Stop::Left;
            }
            match self.until(None, &mut chair).await {
                Ok(Woken::Met(offer)) => return Ok((chair, offer)),
                Ok(Woken::Called | Woken::Time) => {}
                Err(Stop::Gone) => return Err(Stop::Gone),
                Err(stop) => break stop,
            }
        };
        chair.leave();
        Err(stop)
    }

    /// Waits for a moment, a command, or a word from the others.
    pub(super) async fn until(&mut self, moment: Option<Instant>, chair: &mut Chair) -> Result<Woken, Stop> {
        let time = async {
            match moment {
                Some(moment) => sleep_until(moment).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            heard = self.inbox.hear() => {
                heard?;
                Ok(Woken::Called)
            }
            word = chair.hear() => match word {
                Word::Met(offer) => Ok(Woken::Met(offer)),
                Word::Lost(reason) => Err(Stop::Lost(reason)),
            },
            () = time => Ok(Woken::Time),
        }
    }

    /// Takes over the state of the furthest, and stands still for a while. Says when the first step begins.
    async fn catch_up(
        &mut self,
        form: &Form,
        session: &mut Session,
        chair: &mut Chair,
        offer: Option<Offer>,
        told: Instant,
    ) -> Result<Instant, Stop> {
        let met = Instant::now();
        let (state, idle_s, least_s) = match offer {
            Some(Offer { state, idle_s }) => (state, idle_s, PAUSE_S),
            None => (checkpoint::load(session)?.unwrap_or_default(), 0.0, FIRST_PAUSE_S),
        };
        session.state = Some(state);
        session.stepped = Some(earlier(met, idle_s * self.place.time_scale));
        // The time that it took to meet is part of the pause.
        let ready = later(met, (least_s - idle_s).max(0.0) * self.place.time_scale);
        let (trial, round) = (form.trial, form.round);
        while Instant::now() < ready {
            if self.inbox.leave(trial, round).is_some() {
                return Err(Stop::Left);
            }
            self.until(Some(ready), chair).await?;
        }
        let hand_over_s = self.emulated_s(met, ready);
        let total_s = if state.steps == 0 { 0.0 } else { idle_s + hand_over_s };
        let pause = Pause { total_s, form_s: self.emulated_s(told, met), hand_over_s };
        self.say(WorkerEvent::Formed { trial, round, steps: state.steps, pause })?;
        Ok(ready)
    }
}
