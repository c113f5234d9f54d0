use actix::{Actor, Context, Handler, Message, Recipient};

use super::{
    exit::{ActorGuard, ExitSender, SessionExit},
    message::{EngineInput, FactsAppended, ForSuggester},
};
use crate::trials::{Search, engine::SuggestService};

/// Chooses what trials try. It has a thread of its own.
pub(super) struct Suggester {
    /// None once its results were taken.
    service: Option<SuggestService>,
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
        Self { service: Some(service), supervisor, exit: exit.clone(), _guard: guard }
    }
}

impl Actor for Suggester {
    type Context = Context<Self>;
}

impl Handler<FactsAppended> for Suggester {
    type Result = ();

    fn handle(&mut self, FactsAppended(entries): FactsAppended, _: &mut Context<Self>) {
        let Some(service) = &mut self.service else { return };
        for entry in &*entries {
            if let Err(error) = service.apply(entry) {
                self.exit.send(SessionExit::Failed(error.into()));
            }
        }
    }
}

impl Handler<ForSuggester> for Suggester {
    type Result = ();

    fn handle(&mut self, ForSuggester(request): ForSuggester, _: &mut Context<Self>) {
        let Some(service) = &mut self.service else { return };
        self.supervisor.do_send(service.answer(request).into());
    }
}

/// Hands over the search with all trials, at the end of a study. What was reported before it counts.
#[derive(Message)]
#[rtype(result = "Option<Search>")]
pub(super) struct TakeSearch;

impl Handler<TakeSearch> for Suggester {
    type Result = Option<Search>;

    fn handle(&mut self, _: TakeSearch, _: &mut Context<Self>) -> Option<Search> {
        self.service.take().map(SuggestService::into_search)
    }
}
