use std::{sync::Arc, time::Duration};

use actix::{
    Actor, ActorFutureExt, AsyncContext, Context, Handler, MessageResult, Recipient, SpawnHandle, fut,
};
use tokio::{sync::oneshot, time::Instant};

use super::{
    clock::Clock,
    exit::{ActorGuard, ExitSender, SessionExit},
    message::{EngineInput, FactsAppended, ForAllocator, ForSuggester, ForTrial, ReleaseNode},
    pilots::TakeDemand,
    session::Notify,
};
use crate::{
    ids::TrialId,
    store::{self, Journal},
    trials::{
        engine::{Command, Engine, Fact, GroupCommand, Input, JournalEntry, Step},
        group::FinalState,
        outbox::{Admission, Effect, LONGEST_PAUSE_S, Outbox, Told, Unwritten},
    },
    wire::with_causes,
};

/// So long a wait for the disk is put off for a suggestion that is on its way: about as long as the wait itself.
const SHARED_WAIT: Duration = Duration::from_millis(5);

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
    /// Who lets machines go; none where they cannot.
    pub(super) nodes: Option<Recipient<ReleaseNode>>,
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
    /// What waits for the journal.
    outbox: Outbox<oneshot::Sender<()>>,
    /// Since when a fact that has to survive a loss of power may not be on disk.
    since: Option<Instant>,
    settling: Option<SpawnHandle>,
    notify: Option<Notify>,
    /// Why the journal cannot be written for now.
    trouble: Option<store::Error>,
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
            outbox: Outbox::new(),
            since: None,
            settling: None,
            notify: None,
            trouble: None,
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
        let (input, ack) = match self.outbox.admit(input, ack) {
            Admission::Taken(input, ack) => (input, ack),
            Admission::Waits => return,
            Admission::Ends => return self.trouble.take().into_iter().for_each(|error| self.fail(error)),
        };
        tracing::trace!(?input, "input");
        self.is_asked &= !matches!(input, Input::Suggested { .. });
        let step = self.engine.handle(input, self.clock.now_s());
        match self.journal.append(&step.facts) {
            Ok(()) => self.written(step, ack, context),
            Err(error) => self.block(error, Unwritten::Step(step, ack), context),
        }
    }

    /// All that follows from a step that is in the journal.
    fn written(&mut self, step: Step, ack: Option<oneshot::Sender<()>>, context: &mut Context<Self>) {
        let Told { facts, questions } = self.outbox.written(step, ack);
        if let Some(facts) = facts {
            self.tell_of(&facts);
        }
        for command in questions {
            self.ask(command, context);
        }
        if self.outbox.is_unsettled() {
            self.since.get_or_insert_with(Instant::now);
            self.settle_later(Duration::ZERO, context);
        } else {
            self.release(context);
        }
    }

    /// The journal could not be written: later, or never.
    fn block(
        &mut self,
        error: store::Error,
        unwritten: Unwritten<oneshot::Sender<()>>,
        context: &mut Context<Self>,
    ) {
        if !error.is_of_the_environment() {
            return self.fail(error);
        }
        let (tries, pause_s) = self.outbox.block(unwritten);
        tracing::warn!(%error, tries, "the journal cannot be written");
        if tries == 1 {
            self.notify(&waits_for(&error));
        }
        self.trouble = Some(error);
        context.run_later(Duration::from_secs_f64(pause_s), Self::write_again);
    }

    fn write_again(&mut self, context: &mut Context<Self>) {
        let Some(unwritten) = self.outbox.take_unwritten() else { return };
        let written = match &unwritten {
            Unwritten::Step(step, _) => self.journal.append(&step.facts),
            Unwritten::Sync => self.journal.sync(),
        };
        if let Err(error) = written {
            return self.block(error, unwritten, context);
        }
        self.trouble = None;
        let tries = self.outbox.unblock();
        tracing::info!(tries, "the journal can be written again");
        self.notify("the study continues: its journal can be written again");
        match unwritten {
            Unwritten::Step(step, ack) => self.written(step, ack, context),
            Unwritten::Sync => self.settled(context),
        }
        while let Some((input, ack)) = self.outbox.next_waiting() {
            self.take(input, ack, context);
        }
    }

    /// Whatever happens from now on has not happened.
    fn fail(&mut self, error: store::Error) {
        self.is_deaf = true;
        self.outbox.clear();
        self.exit.send(SessionExit::Failed(error.into()));
    }

    /// Tells the services what became true. They only think, so they need not wait for the disk.
    fn tell_of(&self, facts: &Arc<[JournalEntry]>) {
        for JournalEntry { at_s, fact } in &**facts {
            match fact {
                Fact::Measured { .. } | Fact::Refitted { .. } | Fact::PlanAdopted { .. } => {
                    tracing::debug!(at_s, ?fact);
                }
                fact => tracing::info!(at_s, ?fact),
            }
        }
        if let Some((services, _)) = &self.staff {
            for adviser in &services.facts {
                adviser.do_send(FactsAppended(facts.clone()));
            }
        }
    }

    /// Asks a question.
    fn ask(&mut self, command: Command, context: &mut Context<Self>) {
        match (command, &self.staff) {
            (Command::Suggest(request), Some((services, _))) => {
                self.is_asked = true;
                services.suggester.do_send(ForSuggester(request));
            }
            (Command::Allocate(request), Some((services, _))) => {
                services.allocator.do_send(ForAllocator(request));
            }
            (Command::WakeAt { at_s }, _) => self.wake_at(at_s, context),
            // Nobody is there yet, or the outbox holds them.
            (Command::Suggest(_) | Command::Allocate(_), None)
            | (Command::Group { .. } | Command::ReleaseNode { .. } | Command::Finished(_), _) => {}
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
        let Some(since) = self.since.filter(|_| !self.is_deaf && !self.outbox.is_blocked()) else { return };
        // The next trial is about to be created, and can share the wait.
        let patience = SHARED_WAIT.saturating_sub(since.elapsed());
        if self.is_asked && !patience.is_zero() {
            self.settle_later(patience, context);
            return;
        }
        match self.journal.sync() {
            Ok(()) => self.settled(context),
            Err(error) => self.block(error, Unwritten::Sync, context),
        }
    }

    /// All facts so far are on disk.
    fn settled(&mut self, context: &Context<Self>) {
        self.since = None;
        self.outbox.settled();
        self.release(context);
    }

    fn release(&mut self, context: &Context<Self>) {
        let supervisor = context.address().recipient();
        for effect in self.outbox.release() {
            match effect {
                Effect::Facts(facts) => self.show(&facts, &supervisor),
                Effect::Group(trial, command) => {
                    if let Some((_, groups)) = &mut self.staff {
                        groups.command(trial, command, &supervisor);
                    }
                }
                Effect::ReleaseNode(node) => {
                    if let Some(nodes) = self.staff.as_ref().and_then(|(services, _)| services.nodes.as_ref())
                    {
                        nodes.do_send(ReleaseNode(node));
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
    format!(
        "the study waits: {problem}; it tries again at least every {LONGEST_PAUSE_S} s, and continues by itself"
    )
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
        self.outbox.hold(trial, command);
        self.release(context);
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
