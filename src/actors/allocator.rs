use actix::{Actor, ActorFutureExt, AsyncContext, Context, Handler, Recipient, WrapFuture};

use super::{
    exit::{ActorGuard, ExitSender, SessionExit},
    message::{EngineInput, FactsAppended, ForAllocator},
};
use crate::{
    goodput::{Compared, Comparison},
    trials::engine::{AllocateService, AllocatorRequest, Error, Input, JournalEntry},
};

/// Who answers the questions.
pub(super) trait AllocatorService: Send {
    /// Takes note of a fact.
    fn apply(&mut self, entry: &JournalEntry) -> Result<(), Error>;

    /// The answer to a question.
    fn answer(&mut self, request: &AllocatorRequest) -> Input;

    /// The comparison of the trials that is due, if one is.
    fn comparison(&mut self) -> Option<Comparison>;

    /// Takes in what a comparison has found.
    fn learn(&mut self, compared: Compared);
}

impl AllocatorService for AllocateService {
    fn apply(&mut self, entry: &JournalEntry) -> Result<(), Error> {
        self.apply(entry)
    }

    fn answer(&mut self, request: &AllocatorRequest) -> Input {
        self.answer(request)
    }

    fn comparison(&mut self) -> Option<Comparison> {
        self.comparison()
    }

    fn learn(&mut self, compared: Compared) {
        self.learn(compared);
    }
}

/// Finds out how fast trials are, and divides the slots among them. It has a thread of its own, and trials are compared with each other
/// on yet another one: no trial waits for that to begin.
pub(super) struct Allocator {
    service: Box<dyn AllocatorService>,
    /// Whether trials are being compared.
    compares: bool,
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
        Self { service, compares: false, supervisor, exit: exit.clone(), _guard: guard }
    }
}

impl Allocator {
    /// Begins to compare trials with each other, if that is due and not under way.
    fn compare(&mut self, context: &mut Context<Self>) {
        if self.compares {
            return;
        }
        let Some(comparison) = self.service.comparison() else { return };
        self.compares = true;
        let work = tokio::task::spawn_blocking(move || comparison.run());
        context.spawn(work.into_actor(self).map(|compared, actor, context| {
            actor.compares = false;
            match compared {
                Ok(compared) => actor.service.learn(compared),
                // What was known before is still known.
                Err(error) => tracing::warn!(%error, "trials could not be compared"),
            }
            actor.compare(context);
        }));
    }
}

impl Actor for Allocator {
    type Context = Context<Self>;
}

impl Handler<FactsAppended> for Allocator {
    type Result = ();

    fn handle(&mut self, FactsAppended(entries): FactsAppended, context: &mut Context<Self>) {
        for entry in &*entries {
            if let Err(error) = self.service.apply(entry) {
                self.exit.send(SessionExit::Failed(error.into()));
            }
        }
        self.compare(context);
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
