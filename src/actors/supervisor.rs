use std::{collections::VecDeque, mem, sync::Arc, time::Duration};

use actix::{
    Actor, ActorFutureExt, AsyncContext, Context, Handler, MessageResult, Recipient, SpawnHandle, fut,
};
use tokio::{sync::oneshot, time::Instant};

use super::{
    clock::Clock,
    exit::{ActorGuard, ExitSender, SessionExit},
    message::{EngineInput, FactsAppended, ForAllocator, ForSuggester, ForTrial},
    pilots::TakeDemand,
    session::Notify,
};
use crate::{
    ids::TrialId,
    store::{self, Journal},
    trials::{
        engine::{Command, Engine, Fact, GroupCommand, Input, JournalEntry, Outcome, Step},
        group::FinalState,
    },
    wire::with_causes,
};

/// So long a wait for the disk is put off for a suggestion that is on its way: about as long as the wait itself.
const SHARED_WAIT: Duration = Duration::from_millis(5);

/// The first pause before a journal is written again that could not be; each one is twice as long as the one before.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Those who run trials.
pub(super) trait TrialRunners: Send {
    /// Carries out a command for a trial.
    fn command(&mut self, trial: TrialId, command: GroupCommand, supervisor: &Recipient<EngineInput>);
}

/// Sees every step of a study.
pub(super) type Watch = Box<dyn FnMut(&Engine, &[JournalEntry]) + Send>;

/// Who answers what the engine asks.
pub(super) struct ServiceAddresses {
    pub(super) suggester: Recipient<ForSuggester>,
    pub(super) allocator: Recipient<ForAllocator>,
    /// Who only think about facts, and hear of them at once.
    pub(super) facts: Vec<Recipient<FactsAppended>>,
    /// Who act on facts, and hear of them when those that create or end a trial are on disk.
    pub(super) settled: Vec<Recipient<FactsAppended>>,
}

/// What can be noticed outside of the head.
enum Effect {
    /// These are shown, and trials that have ended are dropped.
    Facts(Arc<[JournalEntry]>),
    Group(TrialId, GroupCommand),
    Finish(Outcome),
    Acknowledge(oneshot::Sender<()>),
}

/// The journal cannot be written for now.
struct Blocked {
    error: store::Error,
    tries: u32,
    /// What it could not take yet; none if it could not be brought to the disk.
    step: Option<(Step, Option<oneshot::Sender<()>>)>,
}

/// Owns the engine and the journal. Everything that happens comes here, and everything that is to be done comes from here.
pub(super) struct Supervisor {
    /// The first to go: the others end when nobody knows them any more, and would be taken for the ones that died.
    _guard: ActorGuard,
    engine: Engine,
    journal: Box<dyn Journal + Send>,
    clock: Clock,
    watch: Option<Watch>,
    exit: ExitSender,
    /// Who carries out what; they know the supervisor, so they come after it.
    staff: Option<(ServiceAddresses, Box<dyn TrialRunners>)>,
    alarm: Option<SpawnHandle>,
    /// The suggester has yet to answer.
    is_asked: bool,
    /// What is to be done about facts, in their order.
    held: Vec<Effect>,
    /// Since when a fact that has to survive a loss of power may not be on disk.
    since: Option<Instant>,
    settling: Option<SpawnHandle>,
    notify: Option<Notify>,
    blocked: Option<Blocked>,
    /// What has happened while the journal could not be written, in its order.
    waiting: VecDeque<EngineInput>,
    /// The journal is lost: whatever happens from now on has not happened.
    is_deaf: bool,
}

impl Supervisor {
    pub(super) fn new(
        engine: Engine,
        journal: Box<dyn Journal + Send>,
        clock: Clock,
        watch: Option<Watch>,
        exit: &ExitSender,
    ) -> Self {
        let guard = exit.guard("supervisor");
        Self {
            _guard: guard,
            engine,
            journal,
            clock,
            watch,
            exit: exit.clone(),
            staff: None,
            alarm: None,
            is_asked: false,
            held: Vec::new(),
            since: None,
            settling: None,
            notify: None,
            blocked: None,
            waiting: VecDeque::new(),
            is_deaf: false,
        }
    }

    /// The same, with somebody who is told what is no fact.
    pub(super) fn notifying(mut self, notify: Option<Notify>) -> Self {
        self.notify = notify;
        self
    }

    fn notify(&self, notice: &str) {
        if let Some(notify) = &self.notify {
            notify(notice);
        }
    }

    fn take(&mut self, input: Input, ack: Option<oneshot::Sender<()>>, context: &mut Context<Self>) {
        if self.is_deaf {
            return;
        }
        if let Some(blocked) = self.blocked.take() {
            if input == Input::StopRequested {
                // That cannot be written down either, and whoever asks for it does not want to wait.
                return self.fail(blocked.error);
            }
            self.blocked = Some(blocked);
            self.waiting.push_back(EngineInput { input, ack });
            return;
        }
        tracing::trace!(?input, "input");
        self.is_asked &= !matches!(input, Input::Suggested { .. });
        let step = self.engine.handle(input, self.clock.now_s());
        match self.journal.append(&step.facts) {
            Ok(()) => self.written(step, ack, context),
            Err(error) => self.block(Blocked { error, tries: 1, step: Some((step, ack)) }, context),
        }
    }

    /// All that follows from a step that is in the journal.
    fn written(
        &mut self,
        Step { facts, commands }: Step,
        ack: Option<oneshot::Sender<()>>,
        context: &mut Context<Self>,
    ) {
        let is_milestone = |entry: &JournalEntry| entry.fact.is_milestone();
        let is_end = |command: &Command| matches!(command, Command::Finished(_));
        if facts.iter().any(is_milestone) || commands.iter().any(is_end) {
            self.since.get_or_insert_with(Instant::now);
        }
        self.tell_of(facts);
        for command in commands {
            self.ask_or_hold(command, context);
        }
        self.held.extend(ack.map(Effect::Acknowledge));
        if self.since.is_some() {
            self.settle_later(Duration::ZERO, context);
        } else {
            self.release(context);
        }
    }

    /// The journal could not be written: later, or never.
    fn block(&mut self, blocked: Blocked, context: &mut Context<Self>) {
        if !blocked.error.is_of_the_environment() {
            return self.fail(blocked.error);
        }
        tracing::warn!(error = %blocked.error, tries = blocked.tries, "the journal cannot be written");
        if blocked.tries == 1 {
            self.notify(&waits_for(&blocked.error));
        }
        let pause = PAUSE.saturating_mul(1 << (blocked.tries - 1).min(8)).min(LONGEST_PAUSE);
        self.blocked = Some(blocked);
        context.run_later(pause, Self::write_again);
    }

    fn write_again(&mut self, context: &mut Context<Self>) {
        let Some(Blocked { tries, step, .. }) = self.blocked.take() else { return };
        let written = match &step {
            Some((step, _)) => self.journal.append(&step.facts),
            None => self.journal.sync(),
        };
        if let Err(error) = written {
            return self.block(Blocked { error, tries: tries.saturating_add(1), step }, context);
        }
        tracing::info!(tries, "the journal can be written again");
        self.notify("the study goes on: its journal can be written again");
        if let Some((step, ack)) = step {
            self.written(step, ack, context);
        } else {
            self.since = None;
            self.release(context);
        }
        while self.blocked.is_none()
            && let Some(EngineInput { input, ack }) = self.waiting.pop_front()
        {
            self.take(input, ack, context);
        }
    }

    /// Whatever happens from now on has not happened.
    fn fail(&mut self, error: store::Error) {
        self.is_deaf = true;
        self.held.clear();
        self.waiting.clear();
        self.exit.send(SessionExit::Failed(error.into()));
    }

    /// Tells the services what became true. They only think, so they need not wait for the disk.
    fn tell_of(&mut self, facts: Vec<JournalEntry>) {
        if facts.is_empty() {
            return;
        }
        for JournalEntry { at_s, fact } in &facts {
            match fact {
                Fact::Measured { .. } | Fact::Refitted { .. } | Fact::PlanAdopted { .. } => {
                    tracing::debug!(at_s, ?fact);
                }
                fact => tracing::info!(at_s, ?fact),
            }
        }
        let facts: Arc<[JournalEntry]> = facts.into();
        if let Some((services, _)) = &self.staff {
            for adviser in &services.facts {
                adviser.do_send(FactsAppended(facts.clone()));
            }
        }
        self.held.push(Effect::Facts(facts));
    }

    /// Asks a question at once; whatever can be noticed outside of the head waits for the disk.
    fn ask_or_hold(&mut self, command: Command, context: &mut Context<Self>) {
        match (command, &self.staff) {
            (Command::Suggest(request), Some((services, _))) => {
                self.is_asked = true;
                services.suggester.do_send(ForSuggester(request));
            }
            (Command::Allocate(request), Some((services, _))) => {
                services.allocator.do_send(ForAllocator(request));
            }
            (Command::WakeAt { at_s }, _) => self.wake_at(at_s, context),
            (Command::Group { trial, command }, _) => self.held.push(Effect::Group(trial, command)),
            (Command::Finished(outcome), _) => self.held.push(Effect::Finish(outcome)),
            (Command::Suggest(_) | Command::Allocate(_), None) => {}
        }
    }

    /// Settles when all inputs that wait are taken: one wait for the disk is enough for all of them.
    fn settle_later(&mut self, after: Duration, context: &mut Context<Self>) {
        if let Some(settling) = self.settling.take() {
            context.cancel_future(settling);
        }
        let settle = |(), actor: &mut Self, context: &mut Context<Self>| actor.settle(context);
        self.settling = Some(if after.is_zero() {
            context.spawn(fut::ready(()).map(settle))
        } else {
            context.run_later(after, move |actor, context| settle((), actor, context))
        });
    }

    /// Waits for the disk, and does what was held back until then.
    fn settle(&mut self, context: &mut Context<Self>) {
        self.settling = None;
        let Some(since) = self.since.filter(|_| !self.is_deaf && self.blocked.is_none()) else { return };
        // The next trial is about to be created, and can share the wait.
        let patience = SHARED_WAIT.saturating_sub(since.elapsed());
        if self.is_asked && !patience.is_zero() {
            self.settle_later(patience, context);
            return;
        }
        match self.journal.sync() {
            Ok(()) => {
                self.since = None;
                self.release(context);
            }
            Err(error) => self.block(Blocked { error, tries: 1, step: None }, context),
        }
    }

    fn release(&mut self, context: &Context<Self>) {
        let supervisor = context.address().recipient();
        for effect in mem::take(&mut self.held) {
            match effect {
                Effect::Facts(facts) => self.show(&facts, &supervisor),
                Effect::Group(trial, command) => {
                    if let Some((_, groups)) = &mut self.staff {
                        groups.command(trial, command, &supervisor);
                    }
                }
                Effect::Finish(outcome) => self.exit.send(SessionExit::Finished(outcome)),
                // Perhaps it has stopped waiting.
                Effect::Acknowledge(ack) => _ = ack.send(()),
            }
        }
    }

    /// Tells those who are concerned what became true.
    fn show(&mut self, facts: &Arc<[JournalEntry]>, supervisor: &Recipient<EngineInput>) {
        if let Some(watch) = &mut self.watch {
            watch(&self.engine, facts);
        }
        let Some((services, groups)) = &mut self.staff else { return };
        for trial in facts.iter().filter_map(|entry| entry.fact.ends_group_of()) {
            groups.command(trial, GroupCommand::Stop(FinalState::Discarded), supervisor);
        }
        for listener in &services.settled {
            listener.do_send(FactsAppended(facts.clone()));
        }
    }

    fn wake_at(&mut self, at_s: f64, context: &mut Context<Self>) {
        if let Some(alarm) = self.alarm.take() {
            context.cancel_future(alarm);
        }
        let ring = move |actor: &mut Self, context: &mut Context<Self>| {
            // Timers round, and know no centuries; the engine waits for no earlier moment.
            if actor.clock.now_s() < at_s {
                actor.wake_at(at_s, context);
            } else {
                actor.take(Input::Tick, None, context);
            }
        };
        self.alarm = Some(context.run_later(self.clock.until(at_s), ring));
    }
}

/// What the user is told of a journal that cannot be written for now.
fn waits_for(error: &store::Error) -> String {
    let problem = match error {
        store::Error::Full { path, .. } => format!("no space left for {}", path.display()),
        error => with_causes(error),
    };
    let longest_s = LONGEST_PAUSE.as_secs();
    format!("the study waits: {problem}; it tries again at least every {longest_s} s, and goes on by itself")
}

impl Actor for Supervisor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Context<Self>) {
        // Events are few, but many come at once when something big happens.
        context.set_mailbox_capacity(1024);
    }
}

/// The study begins.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub(super) struct Begin {
    pub(super) services: ServiceAddresses,
    pub(super) groups: Box<dyn TrialRunners>,
}

impl Handler<Begin> for Supervisor {
    type Result = ();

    fn handle(&mut self, Begin { services, groups }: Begin, context: &mut Context<Self>) {
        self.staff = Some((services, groups));
        self.take(Input::Started, None, context);
    }
}

impl Handler<ForTrial> for Supervisor {
    type Result = ();

    fn handle(&mut self, ForTrial { trial, command }: ForTrial, context: &mut Context<Self>) {
        self.held.push(Effect::Group(trial, command));
        if self.since.is_none() {
            self.release(context);
        }
    }
}

impl Handler<TakeDemand> for Supervisor {
    type Result = MessageResult<TakeDemand>;

    fn handle(&mut self, _: TakeDemand, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.engine.demand(self.clock.now_s()))
    }
}

impl Handler<EngineInput> for Supervisor {
    type Result = ();

    fn handle(&mut self, EngineInput { input, ack }: EngineInput, context: &mut Context<Self>) {
        self.take(input, ack, context);
    }
}
