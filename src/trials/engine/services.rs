use super::{Command, Error, FitService, Input, JournalEntry, SolveService, SuggestService};
use crate::space::Study;

/// Those who answer the questions of an engine, all in one place: for simulations, and wherever one thread is enough.
///
/// ```
/// use pollux_tune::space::Study;
/// use pollux_tune::trials::engine::{Services, Command, Engine, Input, Metrics, Outcome, TrialKind};
///
/// let study = Study::from_yaml("study.yaml", "
/// space: {x: {float: [0, 1]}}
/// objective: {minimize: loss}
/// search: {trials: 30}
/// ")?;
/// let mut engine = Engine::new(&study, TrialKind::Rigid)?;
/// let mut answers = Services::new(&study)?;
/// let gpu_type = "cpu".to_owned().try_into()?;
/// let node = Input::NodeJoined { node: pollux_tune::ids::NodeId(0), gpu_type, island: 0, slots: 2 };
/// let mut inputs = vec![node, Input::Started];
/// while let Some(input) = inputs.pop() {
///     let step = engine.handle(input, 0.0);
///     step.facts.iter().try_for_each(|entry| answers.apply(entry))?; // after they were journaled
///     for command in step.commands {
///         inputs.extend(answers.answer(&command));
///         match command {
///             Command::Launch { trial, generation, params, .. } => {
///                 let metrics = Metrics::from([("loss".to_owned(), params.float("x")?.into())]);
///                 inputs.push(Input::TrialFinished { trial, generation, metrics });
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
    pub suggesting: SuggestService,
    /// Knows how fast trials are.
    pub fitting: FitService,
    /// Knows who should get which GPUs.
    pub solving: SolveService,
}

impl Services {
    /// Those of a study, who know nothing yet.
    pub fn new(study: &Study) -> Result<Self, Error> {
        let (suggesting, fitting) = (SuggestService::new(study)?, FitService::new(study));
        Ok(Self { suggesting, fitting, solving: SolveService::new(study)? })
    }

    /// Takes note of a fact, a new one or one of the journal.
    pub fn apply(&mut self, entry: &JournalEntry) -> Result<(), Error> {
        self.suggesting.apply(entry)?;
        self.fitting.apply(entry)
    }

    /// The answer to a question; none for other commands.
    pub fn answer(&mut self, command: &Command) -> Option<Input> {
        Some(match command {
            Command::Ask { revision, trial } => {
                Input::Suggested { revision: *revision, answer: self.suggesting.ask(*trial) }
            }
            Command::Fit { revision, trial } => {
                let answer = self.fitting.fit(*trial);
                Input::FitDone { revision: *revision, trial: *trial, answer }
            }
            Command::Solve { revision, question } => {
                let answer = self.solving.solve(*revision, question).map_err(|error| error.to_string());
                Input::PlanSolved { revision: *revision, answer }
            }
            _ => return None,
        })
    }
}
