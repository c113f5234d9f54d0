use super::{
    AllocatorRequest, Command, Error, FitService, Input, JournalEntry, SolveService, SuggestService,
};
#[cfg(feature = "runtime")]
use super::{Engine, TrialKind};
use crate::{
    goodput::{Compared, Comparison},
    space::Study,
};

/// All services that answer the requests of an engine: for simulations, and where one thread is enough.
///
/// ```
/// use pollux_tune::space::Study;
/// use pollux_tune::trials::engine::{Command, Engine, GroupCommand, GroupEvent, Input, Launch, Metrics, Outcome, Services, TrialKind};
///
/// let study = Study::from_yaml("study.yaml", "
/// space: {x: {float: [0, 1]}}
/// objective: {minimize: loss}
/// search: {trials: 30}
/// ")?;
/// let mut engine = Engine::new(&study, TrialKind::Rigid)?;
/// let mut answers = Services::new(&study)?;
/// let gpu_type = "cpu".to_owned().try_into()?;
/// let node = Input::NodeJoined { node: pollux_tune::ids::NodeId(0), name: String::new(), gpu_type, island: 0, slots: 2 };
/// let mut inputs = vec![node, Input::Started];
/// while let Some(input) = inputs.pop() {
///     let step = engine.handle(input, 0.0);
///     step.facts.iter().try_for_each(|entry| answers.apply(entry))?; // after they were journaled
///     for command in step.commands {
///         inputs.extend(answers.answer(&command));
///         match command {
///             Command::Group { trial, command: GroupCommand::Launch(Launch { generation, params, .. }) } => {
///                 let metrics = Metrics::from([("loss".to_owned(), params.float("x")?.into())]);
///                 inputs.push(Input::group(trial, generation, GroupEvent::Finished(metrics)));
///             }
///             Command::Finished(outcome) => assert_eq!(outcome, Outcome::Done),
///             _ => {}
///         }
///     }
/// }
/// assert_eq!(engine.state().ended.len(), 30);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Services {
    /// Knows what to try.
    pub suggest: SuggestService,
    /// Knows how fast trials are and who should get which GPUs.
    pub allocate: AllocateService,
}

impl Services {
    /// Those of a study, who know nothing yet.
    pub fn new(study: &Study) -> Result<Self, Error> {
        Ok(Self { suggest: SuggestService::new(study)?, allocate: AllocateService::new(study)? })
    }

    /// Takes note of a fact, a new one or one of the journal.
    pub fn apply(&mut self, entry: &JournalEntry) -> Result<(), Error> {
        self.suggest.apply(entry)?;
        self.allocate.apply(entry)
    }

    /// The answer to a question; none for other commands.
    pub fn answer(&mut self, command: &Command) -> Option<Input> {
        match command {
            Command::Suggest(request) => Some(self.suggest.answer(*request)),
            Command::Allocate(request) => {
                if let Some(comparison) = self.allocate.comparison() {
                    self.allocate.learn(comparison.run());
                }
                Some(self.allocate.answer(request))
            }
            Command::Group { .. }
            | Command::ReleaseNode { .. }
            | Command::WakeAt { .. }
            | Command::Finished(_) => None,
        }
    }
}

/// An engine and its services, on their way to where a journal ends: one pass over the facts is enough for all of them.
#[cfg(feature = "runtime")]
pub(crate) struct Replay {
    pub(crate) engine: Engine,
    pub(crate) services: Services,
}

#[cfg(feature = "runtime")]
impl Replay {
    /// Those of a study before its first fact.
    pub(crate) fn new(study: &Study, kind: TrialKind) -> Result<Self, Error> {
        Ok(Self { engine: Engine::new(study, kind)?, services: Services::new(study)? })
    }

    /// The next fact of the journal.
    pub(crate) fn apply(&mut self, entry: &JournalEntry) -> Result<(), Error> {
        self.engine.apply(entry)?;
        self.services.apply(entry)
    }
}

/// Answers to an [`AllocatorRequest`]: how fast trials are, and who should get which GPUs.
///
/// It may live on another thread, as long as facts and questions come in their order.
pub struct AllocateService {
    fit: FitService,
    solve: SolveService,
}

impl AllocateService {
    /// That of a study, which knows nothing yet.
    pub fn new(study: &Study) -> Result<Self, Error> {
        Ok(Self { fit: FitService::new(study), solve: SolveService::new(study)? })
    }

    /// Takes note of a fact.
    pub fn apply(&mut self, entry: &JournalEntry) -> Result<(), Error> {
        self.fit.apply(entry)
    }

    /// The comparison of the trials that is due, if one is. It takes a while: questions can be answered meanwhile.
    pub fn comparison(&mut self) -> Option<Comparison> {
        self.fit.comparison()
    }

    /// Takes in what a comparison has found.
    pub fn learn(&mut self, compared: Compared) {
        self.fit.learn(compared);
    }

    /// The answer to a question, from what is known by now.
    pub fn answer(&mut self, request: &AllocatorRequest) -> Input {
        match *request {
            AllocatorRequest::Fit { revision, trial } => {
                Input::FitDone { revision, trial, answer: self.fit.fit(trial) }
            }
            AllocatorRequest::Solve { revision, ref snapshot } => {
                match self.solve.solve_with_places(revision, snapshot) {
                    Ok((plan, places)) => Input::PlanSolved { revision, answer: Ok(plan), places },
                    Err(error) => {
                        Input::PlanSolved { revision, answer: Err(error.to_string()), places: None }
                    }
                }
            }
        }
    }
}
