use std::sync::Arc;

use actix::{Actor, AsyncContext, Context, Handler, Recipient, SpawnHandle};

use super::{
    clock::Clock,
    exit::{ActorGuard, ExitSender, SessionExit},
    message::{AllocatorRequest, Ask, EngineInput, FactsAppended, GroupCommand, Launch},
};
use crate::{
    ids::TrialId,
    store::Journal,
    trials::engine::{Command, Engine, Fact, Input, JournalEntry, Step},
};

/// Those who run trials.
pub(super) trait TrialRunners: Send {
    /// Carries out an order for a trial.
    fn order(&mut self, trial: TrialId, order: GroupCommand, supervisor: &Recipient<EngineInput>);
}

/// Sees every step of a study.
pub(super) type Watch = Box<dyn FnMut(&Engine, &[JournalEntry]) + Send>;

/// Who answers what the engine asks.
pub(super) struct ServiceAddresses {
    pub(super) ask: Recipient<Ask>,
    pub(super) consider: Recipient<AllocatorRequest>,
    pub(super) learn: Vec<Recipient<FactsAppended>>,
}

/// Owns the engine and the journal. Everything that happens comes here, and everything that is to be done comes from here.
pub(super) struct Supervisor {
    /// The first to go: the others end when nobody knows them any more, and would be taken for the ones that died.
    _guard: ActorGuard,
    engine: Engine,
    journal: Box<dyn Journal + Send>,
    clock: Clock,
    watch: Option<Watch>,
    ending: ExitSender,
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
        ending: &ExitSender,
    ) -> Self {
        let guard = ending.guard("supervisor");
        let (ending, staff, alarm) = (ending.clone(), None, None);
        Self { _guard: guard, engine, journal, clock, watch, ending, staff, alarm, is_deaf: false }
    }

    fn take(&mut self, input: Input, context: &mut Context<Self>) {
        if self.is_deaf {
            return;
        }
        tracing::trace!(?input, "input");
        let Step { facts, commands } = self.engine.handle(input, self.clock.now_s());
        if let Err(error) = self.journal.append(&facts) {
            self.is_deaf = true;
            self.ending.tell(SessionExit::Failed(error.into()));
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
            if let Some(trial) = without_group(fact) {
                groups.order(trial, GroupCommand::Stop { keep: false }, &context.address().recipient());
            }
        }
        let facts: Arc<[JournalEntry]> = facts.into();
        for adviser in &services.learn {
            adviser.do_send(FactsAppended(facts.clone()));
        }
    }

    fn carry_out(&mut self, command: Command, context: &mut Context<Self>) {
        let supervisor = context.address().recipient();
        let Some((services, groups)) = &mut self.staff else { return };
        let mut order = |trial, order| groups.order(trial, order, &supervisor);
        match command {
            Command::Ask { revision, trial } => services.ask.do_send(Ask { revision, trial }),
            Command::Fit { revision, trial } => {
                services.consider.do_send(AllocatorRequest::Fit { revision, trial });
            }
            Command::Solve { revision, question } => {
                services.consider.do_send(AllocatorRequest::Solve { revision, question });
            }
            Command::Launch { trial, generation, slots, params, batch, checkpoint } => {
                let launch = Launch { trial, generation, slots, params, batch, checkpoint };
                order(trial, GroupCommand::Launch(launch));
            }
            Command::Reshape { trial, generation, slots, batch, .. } => {
                order(trial, GroupCommand::Reshape { generation, slots, batch });
            }
            Command::Retune { trial, batch, .. } => order(trial, GroupCommand::Retune { batch }),
            Command::Stop { trial, keep, .. } => order(trial, GroupCommand::Stop { keep }),
            Command::WakeAt { at_s } => self.wake_at(at_s, context),
            Command::Finished(outcome) => self.ending.tell(SessionExit::Finished(outcome)),
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

/// A trial that has no group from this fact on. A group that has told of its own end waits for this.
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
        // A study says little, but all at once when something big happens.
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
