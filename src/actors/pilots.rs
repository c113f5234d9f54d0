//! The pilots of a study: asks a queue for nodes, and gives them back.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, Recipient,
    ResponseActFuture, WrapFuture,
};

use super::{
    clock::Clock,
    error::Error,
    exit::{ActorGuard, ExitSender, SessionExit},
    message::EngineInput,
    session::Notify,
};
use crate::{
    ids::{GpuType, NodeId},
    slurm::{self, Provider, QueuedJob},
    space::Study,
    trials::{
        engine::Input,
        pilots::{Controller, DRAIN_S, Demand, JobState, PilotAction, PilotEvent, PilotPhase},
    },
    wire::with_causes,
};

/// From look to look at what is due.
const TICK: Duration = Duration::from_secs(1);
/// From look to look at the queue, while something is awaited of it, and while nothing is.
const POLL: Duration = Duration::from_secs(5);
const LAZY_POLL: Duration = Duration::from_secs(30);
/// From question to question what the study could use.
const ASK: Duration = Duration::from_secs(5);
/// Where time is scaled, not more often than this.
const SHORTEST: Duration = Duration::from_millis(50);
/// At the end, so long for jobs to leave the queue.
const FAREWELL: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(500);

/// What the study has to do.
#[derive(Debug, Message)]
#[rtype(result = "Demand")]
pub(super) struct TakeDemand;

/// What happens to agents that run in jobs.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub(super) enum PilotNews {
    /// One has come.
    Joined { job: String, nodes: BTreeSet<NodeId>, gpu_type: Option<GpuType> },
    /// One will go.
    Draining { job: String },
    /// One is gone.
    Lost { job: String },
}

/// The study is over: nothing is to be left in the queue when this is answered.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct EndPilots;

/// Whom the pilots have to do with.
pub(super) struct PilotContext {
    pub(super) study: Study,
    /// That of the study, for what the engine is told.
    pub(super) clock: Clock,
    /// Real seconds in a second of the study.
    pub(super) time_scale: f64,
    pub(super) demand: Recipient<TakeDemand>,
    pub(super) supervisor: Recipient<EngineInput>,
    pub(super) notify: Option<Notify>,
    pub(super) exit: ExitSender,
}

/// Owns the controller and the queue. It has a thread of its own, because a queue may take its time to answer.
pub(super) struct Pilots {
    around: PilotContext,
    controller: Controller,
    provider: Box<dyn Provider>,
    /// What to take slots for of which nothing is known.
    unknown: GpuType,
    polled: Option<tokio::time::Instant>,
    asked: Option<tokio::time::Instant>,
    /// The queue did not answer the last time, and people were told.
    in_trouble: bool,
    /// The study has something to do: before that is known, nothing is asked for.
    is_needed: bool,
    _guard: ActorGuard,
}

impl Pilots {
    pub(super) fn new(provider: Box<dyn Provider>, around: PilotContext) -> Self {
        let specs = around.study.machines.as_ref().map_or(&[][..], |machines| &machines.slurm);
        Self {
            controller: Controller::new(specs),
            provider,
            unknown: GpuType::cpu(),
            polled: None,
            asked: None,
            in_trouble: false,
            is_needed: false,
            _guard: around.exit.guard("pilots"),
            around,
        }
    }

    fn notify(&self, notice: &str) {
        tracing::info!(notice, "pilots");
        if let Some(notify) = &self.around.notify {
            notify(notice);
        }
    }

    /// Slurm's clock is that of the day; where devices are emulated, so is the queue.
    #[expect(clippy::float_cmp, reason = "it is 1 or it is not")]
    fn now_s(&self) -> f64 {
        if self.around.time_scale == 1.0 {
            return SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        }
        self.around.clock.now_s()
    }

    /// A time of the study, in real time.
    fn real(&self, time: Duration) -> Duration {
        time.mul_f64(self.around.time_scale).max(SHORTEST)
    }

    fn handle_event(&mut self, event: PilotEvent) {
        let now_s = self.now_s();
        let actions = self.controller.handle(event, now_s);
        self.carry_out(actions);
    }

    fn carry_out(&mut self, actions: Vec<PilotAction>) {
        let mut more = Vec::new();
        for action in actions {
            match action {
                PilotAction::Submit { pilot, kind } => more.push(match self.provider.submit(kind) {
                    Ok(job) => PilotEvent::Submitted { pilot, job },
                    Err(error) => PilotEvent::SubmitFailed { pilot, reason: with_causes(&error) },
                }),
                PilotAction::Cancel { job } => {
                    if let Err(error) = self.provider.cancel(&[job]) {
                        // It is tried again as long as the queue has it.
                        tracing::warn!(error = %with_causes(&error), "a job could not be cancelled");
                    }
                }
                PilotAction::Drain { nodes, reason, .. } => {
                    let until_s = self.around.clock.now_s() + DRAIN_S;
                    for node in nodes {
                        let drain = Input::NodeDraining { node, until_s, reason: reason.clone() };
                        self.around.supervisor.do_send(drain.into());
                    }
                }
                PilotAction::Notice(notice) => self.notify(&notice),
            }
        }
        if !more.is_empty() {
            // The queue has changed by our own doing.
            self.polled = None;
        }
        for event in more {
            self.handle_event(event);
        }
    }

    /// Looks at the queue, takes over what an earlier head has left there, and cancels again what was to be cancelled.
    fn poll(&mut self) {
        let queued = match self.provider.poll() {
            Ok(queued) => queued,
            Err(error) => {
                if !self.in_trouble {
                    let problem = with_causes(&error);
                    self.notify(&format!(
                        "the queue cannot be asked: {problem}; what runs goes on, and it is asked again"
                    ));
                }
                self.in_trouble = true;
                return;
            }
        };
        if std::mem::take(&mut self.in_trouble) {
            self.notify("the queue answers again");
        }
        let known: Vec<String> =
            self.controller.pilots().filter_map(|(_, pilot)| pilot.job.clone()).collect();
        let alive = |job: &&QueuedJob| !matches!(job.state, JobState::Ended { .. });
        let strangers: Vec<&QueuedJob> =
            queued.iter().filter(alive).filter(|job| !known.contains(&job.job)).collect();
        for QueuedJob { job, kind, .. } in strangers {
            if let Some(kind) = kind {
                tracing::info!(job, "a pilot of an earlier head is taken over");
                let now_s = self.now_s();
                self.controller.adopt(*kind, job, now_s);
            } else {
                self.notify(&format!(
                    "job {job} is cancelled: the study file no longer asks for a node like that"
                ));
                // If it is still there the next time, it is tried again.
                let _ = self.provider.cancel(std::slice::from_ref(job));
            }
        }
        let jobs: Vec<String> = self.controller.pilots().filter_map(|(_, pilot)| pilot.job.clone()).collect();
        let reports = slurm::reports(&mut *self.provider, &jobs, &queued);
        self.handle_event(PilotEvent::Polled(reports));
        let is_left = |(_, pilot): (_, &crate::trials::pilots::Pilot)| {
            (pilot.phase == PilotPhase::Cancelled).then(|| pilot.job.clone()).flatten()
        };
        let left: Vec<String> = self.controller.pilots().filter_map(is_left).collect();
        if let Err(error) = self.provider.cancel(&left) {
            tracing::warn!(error = %with_causes(&error), "jobs could not be cancelled");
        }
    }

    fn tick(&mut self, context: &mut Context<Self>) {
        if self.is_needed {
            self.advance();
        }
        if self.asked.is_none_or(|asked| asked.elapsed() >= self.real(ASK)) {
            self.asked = Some(tokio::time::Instant::now());
            let answer = self.around.demand.send(TakeDemand).into_actor(self);
            context.spawn(answer.map(|demand, actor, _| {
                // Without a supervisor there is no study.
                if let Ok(demand) = demand {
                    actor.consider(demand);
                }
            }));
        }
    }

    /// Looks at the queue if that is due, and does what else is.
    fn advance(&mut self) {
        let is_quiet =
            self.controller.pilots().all(|(_, pilot)| matches!(pilot.phase, PilotPhase::Joined { .. }));
        let every = if is_quiet && self.polled.is_some() { LAZY_POLL } else { POLL };
        if self.polled.is_none_or(|polled| polled.elapsed() >= self.real(every)) {
            self.polled = Some(tokio::time::Instant::now());
            self.poll();
        }
        let now_s = self.now_s();
        let actions = self.controller.tick(now_s);
        self.carry_out(actions);
    }

    /// What the study could use.
    fn consider(&mut self, demand: Demand) {
        if demand.is_over {
            // The session ends, and says so.
            return;
        }
        if !std::mem::replace(&mut self.is_needed, true) {
            // First what an earlier head has left in the queue.
            self.advance();
        }
        let has_hosts =
            self.around.study.machines.as_ref().is_some_and(|machines| !machines.hosts.is_empty());
        let is_alone = !has_hosts && demand.snapshot.cluster.iter().next().is_none();
        if let Some(reason) = self.controller.hopeless().filter(|_| is_alone) {
            self.around.exit.send(SessionExit::Failed(Error::NoNodes(reason)));
            return;
        }
        self.handle_event(PilotEvent::Busy(demand.busy.clone()));
        let coming = self.controller.coming();
        let present = demand.snapshot.cluster.iter().map(|(node, _)| node).collect();
        let offers = self.controller.offers(&self.unknown, &present);
        let demand = demand.without(&self.controller.leaving(self.now_s()));
        let gains = demand.gains(&self.around.study, &offers);
        self.handle_event(PilotEvent::Gains { coming, gains });
    }
}

impl Actor for Pilots {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        self.tick(context);
        context.run_interval(self.real(TICK), Self::tick);
    }
}

impl Handler<PilotNews> for Pilots {
    type Result = ();

    fn handle(&mut self, news: PilotNews, _: &mut Context<Self>) {
        self.handle_event(match news {
            PilotNews::Joined { job, nodes, gpu_type } => PilotEvent::AgentJoined { job, nodes, gpu_type },
            PilotNews::Draining { job } => PilotEvent::AgentDraining { job },
            PilotNews::Lost { job } => PilotEvent::AgentLost { job },
        });
    }
}

impl Handler<EndPilots> for Pilots {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, _: EndPilots, _: &mut Context<Self>) -> Self::Result {
        self.handle_event(PilotEvent::Over);
        Box::pin(async {}.into_actor(self).then(|(), actor, _| actor.farewell(tokio::time::Instant::now())))
    }
}

impl Pilots {
    /// Waits until the queue has nothing of this study any more.
    fn farewell(&mut self, since: tokio::time::Instant) -> ResponseActFuture<Self, ()> {
        self.poll();
        let is_done = self.controller.is_empty();
        if !is_done && since.elapsed() >= FAREWELL {
            let jobs: Vec<String> =
                self.controller.pilots().filter_map(|(_, pilot)| pilot.job.clone()).collect();
            let jobs = jobs.join(", ");
            self.notify(&format!(
                "jobs {jobs} are still in the queue, though they were cancelled: look at `squeue --me`"
            ));
        }
        if is_done || since.elapsed() >= FAREWELL {
            return Box::pin(
                async {}.into_actor(self).map(|(), _, context: &mut Context<Self>| context.stop()),
            );
        }
        let wait = tokio::time::sleep(GLANCE).into_actor(self);
        Box::pin(wait.then(move |(), actor, _| actor.farewell(since)))
    }
}
