use actix::{Actor, Context, Handler, Recipient};

use super::{
    exit::{ActorGuard, ExitSender, SessionExit},
    message::{EngineInput, FactsAppended, ForSuggester},
};
use crate::trials::engine::SuggestService;

/// Chooses what trials try. It has a thread of its own.
pub(super) struct Suggester {
    service: SuggestService,
    supervisor: Recipient<EngineInput>,
    exit: ExitSender,
    _guard: ActorGuard,
}

impl Suggester {
    pub(super) fn new(
        service: SuggestService,
        supervisor: Recipient<EngineInput>,
        exit: &ExitSender,
    ) -> Self {
        let guard = exit.guard("suggester");
        Self { service, supervisor, exit: exit.clone(), _guard: guard }
    }
}

impl Actor for Suggester {
    type Context = Context<Self>;
}

impl Handler<FactsAppended> for Suggester {
    type Result = ();

    fn handle(&mut self, FactsAppended(entries): FactsAppended, _: &mut Context<Self>) {
        for entry in &*entries {
            if let Err(error) = self.service.apply(entry) {
                self.exit.tell(SessionExit::Failed(error.into()));
            }
        }
    }
}

impl Handler<ForSuggester> for Suggester {
    type Result = ();

    fn handle(&mut self, ForSuggester(request): ForSuggester, _: &mut Context<Self>) {
        self.supervisor.do_send(self.service.answer(request).into());
    }
}
