use std::{collections::VecDeque, sync::Arc, time::Duration};

use actix::{Actor, AsyncContext, Context, Handler, Recipient, SpawnHandle};
use tokio::sync::oneshot;

use super::{
    clock::Clock,
    exit::{ActorGuard, ExitSender, SessionExit},
    message::{EngineInput, FactsAppended, ForAllocator, ForSuggester, ForTrial},
    session::Notify,
};
use crate::{
    ids::TrialId,
    store::{self, Journal},
    trials::{
        engine::{Command, Engine, Fact, GroupCommand, Input, JournalEntry, Step},
        group::FinalState,
    },
    wire::with_causes,
};

/// Those who run trials.
pub(super) trait TrialRunners: Send {
    /// Carries out a command for a trial.
    fn command(&mut self, trial: TrialId, command: GroupCommand, supervisor: &Recipient<EngineInput>);
}

/// Sees every step of a study.
pub(super) type Watch = Box<dyn FnMut(&Engine, &[JournalEntry]) + Send>;

/// The first pause before the journal is written again; each one is twice as long as the one before.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What the journal could not take yet: nobody has acted on it.
struct Held {
    step: Step,
    ack: Option<oneshot::Sender<()>>,
    error: store::Error,
    tries: u32,
}

/// Who answers what the engine asks.
pub(super) struct ServiceAddresses {
    pub(super) suggester: Recipient<ForSuggester>,
    pub(super) allocator: Recipient<ForAllocator>,
    pub(super) facts: Vec<Recipient<FactsAppended>>,
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
    notify: Option<Notify>,
    /// The journal cannot be written for now.
    held: Option<Held>,
    /// What has happened meanwhile, in its order.
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
            notify: None,
            held: None,
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

    fn take(&mut self, message: EngineInput, context: &mut Context<Self>) {
        if self.is_deaf {
            return;
        }
        if let Some(held) = self.held.take() {
            if message.input == Input::StopRequested {
                // That cannot be written down either, and whoever asks for it does not want to wait.
                return self.fail(held.error);
            }
            self.held = Some(held);
            self.waiting.push_back(message);
            return;
        }
        let EngineInput { input, ack } = message;
        tracing::trace!(?input, "input");
        let step = self.engine.handle(input, self.clock.now_s());
        match self.journal.append(&step.facts) {
            Ok(()) => self.pass_on(step, ack, context),
            Err(error) => self.hold(Held { step, ack, error, tries: 1 }, context),
        }
    }

    /// All that follows from a step that is written down.
    fn pass_on(
        &mut self,
        Step { facts, commands }: Step,
        ack: Option<oneshot::Sender<()>>,
        context: &mut Context<Self>,
    ) {
        if let Some(watch) = &mut self.watch {
            watch(&self.engine, &facts);
        }
        self.tell_of(facts, context);
        for command in commands {
            self.carry_out(command, context);
        }
        if let Some(ack) = ack {
            // Perhaps it has stopped waiting.
            let _ = ack.send(());
        }
    }

    /// A step could not be written down: later, or never.
    fn hold(&mut self, held: Held, context: &mut Context<Self>) {
        if !held.error.is_of_the_environment() {
            return self.fail(held.error);
        }
        tracing::warn!(error = %held.error, tries = held.tries, "the journal cannot be written");
        if held.tries == 1 {
            self.notify(&blocked(&held.error));
        }
        let pause = PAUSE.saturating_mul(1 << (held.tries - 1).min(8)).min(LONGEST_PAUSE);
        self.held = Some(held);
        context.run_later(pause, Self::write_again);
    }

    fn write_again(&mut self, context: &mut Context<Self>) {
        let Some(Held { step, ack, tries, .. }) = self.held.take() else { return };
        if let Err(error) = self.journal.append(&step.facts) {
            return self.hold(Held { step, ack, error, tries: tries.saturating_add(1) }, context);
        }
        tracing::info!(tries, "the journal can be written again");
        self.notify("the study goes on: its journal can be written again");
        self.pass_on(step, ack, context);
        while self.held.is_none()
            && let Some(message) = self.waiting.pop_front()
        {
            self.take(message, context);
        }
    }

    fn fail(&mut self, error: store::Error) {
        self.is_deaf = true;
        self.waiting.clear();
        self.exit.send(SessionExit::Failed(error.into()));
    }

    /// Tells those who are concerned what became true.
    fn tell_of(&mut self, facts: Vec<JournalEntry>, context: &Context<Self>) {
        let Some((services, groups)) = self.staff.as_mut().filter(|_| !facts.is_empty()) else { return };
        for JournalEntry { at_s, fact } in &facts {
            match fact {
                Fact::Measured { .. } | Fact::Refitted { .. } | Fact::PlanAdopted { .. } => {
                    tracing::debug!(at_s, ?fact);
                }
                fact => tracing::info!(at_s, ?fact),
            }
            if let Some(trial) = without_group(fact) {
                groups.command(
                    trial,
                    GroupCommand::Stop(FinalState::Discarded),
                    &context.address().recipient(),
                );
            }
        }
        let facts: Arc<[JournalEntry]> = facts.into();
        for adviser in &services.facts {
            adviser.do_send(FactsAppended(facts.clone()));
        }
    }

    fn carry_out(&mut self, command: Command, context: &mut Context<Self>) {
        let supervisor = context.address().recipient();
        let Some((services, groups)) = &mut self.staff else { return };
        match command {
            Command::Suggest(request) => services.suggester.do_send(ForSuggester(request)),
            Command::Allocate(request) => services.allocator.do_send(ForAllocator(request)),
            Command::Group { trial, command } => groups.command(trial, command, &supervisor),
            Command::WakeAt { at_s } => self.wake_at(at_s, context),
            Command::Finished(outcome) => self.exit.send(SessionExit::Finished(outcome)),
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
                actor.take(Input::Tick.into(), context);
            }
        };
        self.alarm = Some(context.run_later(self.clock.until(at_s), ring));
    }
}

/// What the user is told of a journal that cannot be written for now.
fn blocked(error: &store::Error) -> String {
    let problem = match error {
        store::Error::Full { path, .. } => format!("no space left for {}", path.display()),
        error => with_causes(error),
    };
    let longest_s = LONGEST_PAUSE.as_secs();
    format!("the study waits: {problem}; it tries again at least every {longest_s} s, and goes on by itself")
}

/// A trial that has no group from this fact on. A group that has reported its own end waits for this.
const fn without_group(fact: &Fact) -> Option<TrialId> {
    match fact {
        Fact::TrialDone { trial, .. }
        | Fact::TrialStopped { trial, .. }
        | Fact::TrialFailed { trial, .. }
        | Fact::TrialCancelled { trial, .. }
        | Fact::TrialInterrupted { trial, .. }
        | Fact::TrialPaused { trial, .. } => Some(*trial),
        _ => None,
    }
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
        self.take(Input::Started.into(), context);
    }
}

impl Handler<ForTrial> for Supervisor {
    type Result = ();

    fn handle(&mut self, ForTrial { trial, command }: ForTrial, context: &mut Context<Self>) {
        self.carry_out(Command::Group { trial, command }, context);
    }
}

impl Handler<EngineInput> for Supervisor {
    type Result = ();

    fn handle(&mut self, message: EngineInput, context: &mut Context<Self>) {
        self.take(message, context);
    }
}
