use actix::{Actor, Context, Handler, Recipient};

use super::{
    exit::{ActorGuard, ExitSender, SessionExit},
    message::{Ask, EngineInput, FactsAppended},
};
use crate::trials::engine::{Input, SuggestService};

/// Chooses what trials try. It has a thread of its own.
pub(super) struct Suggester {
    suggesting: SuggestService,
    supervisor: Recipient<EngineInput>,
    ending: ExitSender,
    _guard: ActorGuard,
}

impl Suggester {
    pub(super) fn new(
        suggesting: SuggestService,
        supervisor: Recipient<EngineInput>,
        ending: &ExitSender,
    ) -> Self {
        let guard = ending.guard("suggester");
        Self { suggesting, supervisor, ending: ending.clone(), _guard: guard }
    }
}

impl Actor for Suggester {
    type Context = Context<Self>;
}

impl Handler<FactsAppended> for Suggester {
    type Result = ();

    fn handle(&mut self, FactsAppended(entries): FactsAppended, _: &mut Context<Self>) {
        for entry in &*entries {
            if let Err(error) = self.suggesting.apply(entry) {
                self.ending.tell(SessionExit::Failed(error.into()));
            }
        }
    }
}

impl Handler<Ask> for Suggester {
    type Result = ();

    fn handle(&mut self, Ask { revision, trial }: Ask, _: &mut Context<Self>) {
        let answer = self.suggesting.ask(trial);
        self.supervisor.do_send(Input::Suggested { revision, answer }.into());
    }
}
