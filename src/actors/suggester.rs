use actix::{Actor, Context, Handler, Recipient};

use super::{
    ending::{Ending, EndingSender, Guard},
    message::{Ask, Happened, Learn},
};
use crate::trials::engine::{Input, Suggesting};

/// Chooses what trials try. It has a thread of its own.
pub(super) struct Suggester {
    suggesting: Suggesting,
    supervisor: Recipient<Happened>,
    ending: EndingSender,
    _guard: Guard,
}

impl Suggester {
    pub(super) fn new(
        suggesting: Suggesting,
        supervisor: Recipient<Happened>,
        ending: &EndingSender,
    ) -> Self {
        let guard = ending.guard("suggester");
        Self { suggesting, supervisor, ending: ending.clone(), _guard: guard }
    }
}

impl Actor for Suggester {
    type Context = Context<Self>;
}

impl Handler<Learn> for Suggester {
    type Result = ();

    fn handle(&mut self, Learn(entries): Learn, _: &mut Context<Self>) {
        for entry in &*entries {
            if let Err(error) = self.suggesting.apply(entry) {
                self.ending.tell(Ending::Failed(error.into()));
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
