use actix::{Actor, Context, Handler, Recipient};

use super::{
    ending::{Ending, EndingSender, Guard},
    message::{Consider, Happened, Learn},
};
use crate::trials::engine::{Fitting, Input, Solving};

/// Finds out how fast trials are, and divides the slots among them. It has a thread of its own.
pub(super) struct Allocator {
    fitting: Fitting,
    solving: Solving,
    supervisor: Recipient<Happened>,
    ending: EndingSender,
    _guard: Guard,
}

impl Allocator {
    pub(super) fn new(
        fitting: Fitting,
        solving: Solving,
        supervisor: Recipient<Happened>,
        ending: &EndingSender,
    ) -> Self {
        let guard = ending.guard("allocator");
        Self { fitting, solving, supervisor, ending: ending.clone(), _guard: guard }
    }
}

impl Actor for Allocator {
    type Context = Context<Self>;
}

impl Handler<Learn> for Allocator {
    type Result = ();

    fn handle(&mut self, Learn(entries): Learn, _: &mut Context<Self>) {
        for entry in &*entries {
            if let Err(error) = self.fitting.apply(entry) {
                self.ending.tell(Ending::Failed(error.into()));
            }
        }
    }
}

impl Handler<Consider> for Allocator {
    type Result = ();

    fn handle(&mut self, question: Consider, _: &mut Context<Self>) {
        let answer = match question {
            Consider::Fit { revision, trial } => {
                Input::FitDone { revision, trial, answer: self.fitting.fit(trial) }
            }
            Consider::Solve { revision, question } => {
                let answer = self.solving.solve(revision, &question).map_err(|error| error.to_string());
                if let Err(problem) = &answer {
                    tracing::warn!(problem, "no plan was found, the old one stays");
                }
                Input::PlanSolved { revision, answer }
            }
        };
        self.supervisor.do_send(answer.into());
    }
}
