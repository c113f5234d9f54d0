use actix::{Actor, Context, Handler, Message, Recipient};

use super::{
    exit::{ActorGuard, ExitSender, SessionExit},
    message::{Ask, EngineInput, FactsAppended},
};
use crate::trials::{
    Search,
    engine::{Input, SuggestService},
};

/// Chooses what trials try. It has a thread of its own.
pub(super) struct Suggester {
    /// None once its results were taken.
    suggesting: Option<SuggestService>,
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
        Self { suggesting: Some(suggesting), supervisor, ending: ending.clone(), _guard: guard }
    }
}

impl Actor for Suggester {
    type Context = Context<Self>;
}

impl Handler<FactsAppended> for Suggester {
    type Result = ();

    fn handle(&mut self, FactsAppended(entries): FactsAppended, _: &mut Context<Self>) {
        let Some(suggesting) = &mut self.suggesting else { return };
        for entry in &*entries {
            if let Err(error) = suggesting.apply(entry) {
                self.ending.tell(SessionExit::Failed(error.into()));
            }
        }
    }
}

impl Handler<Ask> for Suggester {
    type Result = ();

    fn handle(&mut self, Ask { revision, trial }: Ask, _: &mut Context<Self>) {
        let Some(suggesting) = &mut self.suggesting else { return };
        let answer = suggesting.ask(trial);
        self.supervisor.do_send(Input::Suggested { revision, answer }.into());
    }
}

/// Hands over the search with all trials, at the end of a study. What was said before it counts.
#[derive(Message)]
#[rtype(result = "Option<Search>")]
pub(super) struct TakeSearch;

impl Handler<TakeSearch> for Suggester {
    type Result = Option<Search>;

    fn handle(&mut self, _: TakeSearch, _: &mut Context<Self>) -> Option<Search> {
        self.suggesting.take().map(SuggestService::into_search)
    }
}
