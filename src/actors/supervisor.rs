use std::sync::Arc;

use actix::{Actor, AsyncContext, Context, Handler, Recipient, SpawnHandle};

use super::{
    clock::Clock,
    ending::{Ending, EndingSender, Guard},
    message::{Ask, Consider, Happened, Launch, Learn, Order},
};
use crate::{
    store::Journal,
    tpe::TrialId,
    trials::engine::{Command, Engine, Entry, Fact, Input, Step},
};

/// Those who run trials.
pub(super) trait Groups: Send {
    /// Carries out an order for a trial.
    fn order(&mut self, trial: TrialId, order: Order, supervisor: &Recipient<Happened>);
}

/// Sees every step of a study.
pub(super) type Watch = Box<dyn FnMut(&Engine, &[Entry]) + Send>;

/// Who answers what the engine asks.
pub(super) struct Advisers {
    pub(super) ask: Recipient<Ask>,
    pub(super) consider: Recipient<Consider>,
    pub(super) learn: Vec<Recipient<Learn>>,
}

/// Owns the engine and the journal. Everything that happens comes here, and everything that is to be done comes from here.
pub(super) struct Supervisor {
    /// The first to go: the others end when nobody knows them any more, and would be taken for the ones that died.
    _guard: Guard,
    engine: Engine,
    journal: Box<dyn Journal + Send>,
    clock: Clock,
    watch: Option<Watch>,
    ending: EndingSender,
    /// Who carries out what; they know the supervisor, so they come after it.
    staff: Option<(Advisers, Box<dyn Groups>)>,
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
        ending: &EndingSender,
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
            self.ending.tell(Ending::Failed(error.into()));
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
    fn tell_of(&mut self, facts: Vec<Entry>, context: &Context<Self>) {
        let Some((advisers, groups)) = self.staff.as_mut().filter(|_| !facts.is_empty()) else { return };
        for Entry { at_s, fact } in &facts {
            match fact {
                Fact::Measured { .. } | Fact::Refitted { .. } | Fact::PlanAdopted { .. } => {
                    tracing::debug!(at_s, ?fact);
                }
                fact => tracing::info!(at_s, ?fact),
            }
            if let Some(trial) = without_group(fact) {
                groups.order(trial, Order::Stop { keep: false }, &context.address().recipient());
            }
        }
        let facts: Arc<[Entry]> = facts.into();
        for adviser in &advisers.learn {
            adviser.do_send(Learn(facts.clone()));
        }
    }

    fn carry_out(&mut self, command: Command, context: &mut Context<Self>) {
        let supervisor = context.address().recipient();
        let Some((advisers, groups)) = &mut self.staff else { return };
        let mut order = |trial, order| groups.order(trial, order, &supervisor);
        match command {
            Command::Ask { revision, trial } => advisers.ask.do_send(Ask { revision, trial }),
            Command::Fit { revision, trial } => advisers.consider.do_send(Consider::Fit { revision, trial }),
            Command::Solve { revision, question } => {
                advisers.consider.do_send(Consider::Solve { revision, question });
            }
            Command::Launch { trial, generation, slots, params, batch, checkpoint } => {
                let launch = Launch { trial, generation, slots, params, batch, checkpoint };
                order(trial, Order::Launch(launch));
            }
            Command::Reshape { trial, generation, slots, batch, .. } => {
                order(trial, Order::Reshape { generation, slots, batch });
            }
            Command::Retune { trial, batch, .. } => order(trial, Order::Retune { batch }),
            Command::Stop { trial, keep, .. } => order(trial, Order::Stop { keep }),
            Command::WakeAt { at_s } => self.wake_at(at_s, context),
            Command::Finished(outcome) => self.ending.tell(Ending::Finished(outcome)),
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
    pub(super) advisers: Advisers,
    pub(super) groups: Box<dyn Groups>,
}

impl Handler<Begin> for Supervisor {
    type Result = ();

    fn handle(&mut self, Begin { advisers, groups }: Begin, context: &mut Context<Self>) {
        self.staff = Some((advisers, groups));
        self.take(Input::Started, context);
    }
}

impl Handler<Happened> for Supervisor {
    type Result = ();

    fn handle(&mut self, Happened { input, heard }: Happened, context: &mut Context<Self>) {
        self.take(input, context);
        if let Some(heard) = heard {
            // Perhaps it has stopped waiting.
            let _ = heard.send(());
        }
    }
}
