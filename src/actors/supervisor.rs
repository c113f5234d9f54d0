use std::sync::Arc;

use actix::{Actor, AsyncContext, Context, Handler, Recipient, SpawnHandle};

use super::{
    clock::Clock,
    exit::{ActorGuard, ExitSender, SessionExit},
    message::{EngineInput, FactsAppended, ForAllocator, ForSuggester, ForTrial},
};
use crate::{
    ids::TrialId,
    store::Journal,
    trials::{
        engine::{Command, Engine, Fact, GroupCommand, Input, JournalEntry, Step},
        group::FinalState,
    },
};

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
    /// The journal could not be written: whatever happens from now on has not happened.
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
        let (exit, staff, alarm) = (exit.clone(), None, None);
        Self { _guard: guard, engine, journal, clock, watch, exit, staff, alarm, is_deaf: false }
    }

    fn take(&mut self, input: Input, context: &mut Context<Self>) {
        if self.is_deaf {
            return;
        }
        tracing::trace!(?input, "input");
        let Step { facts, commands } = self.engine.handle(input, self.clock.now_s());
        if let Err(error) = self.journal.append(&facts) {
            self.is_deaf = true;
            self.exit.send(SessionExit::Failed(error.into()));
            return;
        }
        if let Some(watch) = &mut self.watch {
            watch(&self.engine, &facts);
        }
        self.tell_of(facts, context);
        for command in commands {
            self.carry_out(command, context);
        }
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
            if let Some(trial) = fact.ends_group_of() {
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
                actor.take(Input::Tick, context);
            }
        };
        self.alarm = Some(context.run_later(self.clock.until(at_s), ring));
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
        self.take(Input::Started, context);
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

    fn handle(&mut self, EngineInput { input, ack }: EngineInput, context: &mut Context<Self>) {
        self.take(input, context);
        if let Some(ack) = ack {
            // Perhaps it has stopped waiting.
            let _ = ack.send(());
        }
    }
}
