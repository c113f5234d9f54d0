use actix::{Actor, Context, Handler, Recipient};

use super::{
    exit::{ActorGuard, ExitSender, SessionExit},
    message::{EngineInput, FactsAppended, ForAllocator},
};
use crate::trials::engine::{AllocateService, AllocatorRequest, Error, Input, JournalEntry};

/// Who answers the questions.
pub(super) trait AllocatorService: Send {
    /// Takes note of a fact.
    fn apply(&mut self, entry: &JournalEntry) -> Result<(), Error>;

    /// The answer to a question.
    fn answer(&mut self, request: &AllocatorRequest) -> Input;
}

impl AllocatorService for AllocateService {
    fn apply(&mut self, entry: &JournalEntry) -> Result<(), Error> {
        self.apply(entry)
    }

    fn answer(&mut self, request: &AllocatorRequest) -> Input {
        self.answer(request)
    }
}

/// Finds out how fast trials are, and divides the slots among them. It has a thread of its own.
pub(super) struct Allocator {
    service: Box<dyn AllocatorService>,
    supervisor: Recipient<EngineInput>,
    exit: ExitSender,
    _guard: ActorGuard,
}

impl Allocator {
    pub(super) fn new(
        service: Box<dyn AllocatorService>,
        supervisor: Recipient<EngineInput>,
        exit: &ExitSender,
    ) -> Self {
        let guard = exit.guard("allocator");
        Self { service, supervisor, exit: exit.clone(), _guard: guard }
    }
}

impl Actor for Allocator {
    type Context = Context<Self>;
}

impl Handler<FactsAppended> for Allocator {
    type Result = ();

    fn handle(&mut self, FactsAppended(entries): FactsAppended, _: &mut Context<Self>) {
        for entry in &*entries {
            if let Err(error) = self.service.apply(entry) {
                self.exit.send(SessionExit::Failed(error.into()));
            }
        }
    }
}

impl Handler<ForAllocator> for Allocator {
    type Result = ();

    fn handle(&mut self, ForAllocator(request): ForAllocator, _: &mut Context<Self>) {
        let answer = self.service.answer(&request);
        if let Input::PlanSolved { answer: Err(problem), .. } = &answer {
            tracing::warn!(problem, "no plan was found, the old one stays");
        }
        self.supervisor.do_send(answer.into());
    }
}
