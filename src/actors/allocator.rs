use actix::{Actor, Context, Handler, Recipient};

use super::{
    exit::{ActorGuard, ExitSender, SessionExit},
    message::{AllocatorRequest, EngineInput, FactsAppended},
};
use crate::trials::engine::{FitService, Input, SolveService};

/// Finds out how fast trials are, and divides the slots among them. It has a thread of its own.
pub(super) struct Allocator {
    fitting: FitService,
    solving: SolveService,
    supervisor: Recipient<EngineInput>,
    ending: ExitSender,
    _guard: ActorGuard,
}

impl Allocator {
    pub(super) fn new(
        fitting: FitService,
        solving: SolveService,
        supervisor: Recipient<EngineInput>,
        ending: &ExitSender,
    ) -> Self {
        let guard = ending.guard("allocator");
        Self { fitting, solving, supervisor, ending: ending.clone(), _guard: guard }
    }
}

impl Actor for Allocator {
    type Context = Context<Self>;
}

impl Handler<FactsAppended> for Allocator {
    type Result = ();

    fn handle(&mut self, FactsAppended(entries): FactsAppended, _: &mut Context<Self>) {
        for entry in &*entries {
            if let Err(error) = self.fitting.apply(entry) {
                self.ending.tell(SessionExit::Failed(error.into()));
            }
        }
    }
}

impl Handler<AllocatorRequest> for Allocator {
    type Result = ();

    fn handle(&mut self, question: AllocatorRequest, _: &mut Context<Self>) {
        let answer = match question {
            AllocatorRequest::Fit { revision, trial } => {
                Input::FitDone { revision, trial, answer: self.fitting.fit(trial) }
            }
            AllocatorRequest::Solve { revision, question } => {
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
