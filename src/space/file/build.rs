//! Studies that a program makes without a file.

use std::{path::PathBuf, time::Duration};

use super::{
    super::Space,
    diagnostic::Diagnostics,
    settings::{Algorithm, Direction, Objective, Parallel, Program, StoppingRule},
    study::{Study, default_grace, default_reduction},
};
use crate::alloc::PolicyKind;

/// What messages call a study that is in no file.
const NAME: &str = "study";
/// All that a study needs. The builder replaces both parts.
const MINIMAL: &str = "{space: {}, objective: {minimize: loss}}";

/// Puts a [`Study`] together in Rust: with the defaults, the rules and the messages of study files.
///
/// ```
/// use pollux_tune::space::{Algorithm, Domain, Space, StoppingRule, Study};
/// let space = Space::builder()
///     .add("lr", Domain::log(1e-5, 1e-1)?)
///     .add("layers", Domain::int(1, 8)?)
///     .build()?;
/// let study = Study::builder(space)
///     .maximize("accuracy")
///     .trials(50)
///     .algorithm(Algorithm::Gp)
///     .epochs(9.0)
///     .early_stopping(StoppingRule::Asha)
///     .build()?;
/// assert_eq!((study.search.trials, study.trial.epochs), (50, 9.0));
///
/// let wrong = Study::builder(study.space).minimize("loss").epochs(-1.0).build().unwrap_err();
/// assert!(wrong.to_string().ends_with("trial.epochs: found `-1.0`; expected a number above 0"), "{wrong}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct StudyBuilder {
    study: Result<Study, Diagnostics>,
    parallel: Option<Parallel>,
}

impl Study {
    /// A study of a space, with the defaults of study files and no objective yet.
    #[must_use]
    pub fn builder(space: Space) -> StudyBuilder {
        let study =
            Self::from_yaml(NAME, MINIMAL).map(|study| Self { space, objectives: Vec::new(), ..study });
        StudyBuilder { study, parallel: None }
    }

    /// Checks a study that a program has made or changed, by the rules of study files: what a file could not say is a mistake, and so are
    /// constraints that leave nothing and settings without effect. Lines in messages are those of [`to_yaml`](Self::to_yaml).
    ///
    /// ```
    /// use pollux_tune::space::Study;
    /// let mut study = Study::from_yaml("study.yaml", "{space: {x: {float: [0, 1]}}, objective: {minimize: loss}}")?;
    /// study.search.trials = 0;
    /// let wrong = study.checked().unwrap_err();
    /// assert_eq!(wrong.list()[0].path(), "search.trials");
    /// # Ok::<(), pollux_tune::space::Diagnostics>(())
    /// ```
    pub fn checked(self) -> Result<Self, Diagnostics> {
        let open = |name: &str| Err(format!("a study that is in no file cannot name {name}"));
        Self::from_yaml_with(NAME, &self.to_yaml(), open)
    }
}

impl StudyBuilder {
    /// Minimizes a metric; several calls give several objectives.
    #[must_use]
    pub fn minimize(self, metric: &str) -> Self {
        self.objective(metric, Direction::Minimize)
    }

    /// Maximizes a metric; several calls give several objectives.
    #[must_use]
    pub fn maximize(self, metric: &str) -> Self {
        self.objective(metric, Direction::Maximize)
    }

    fn objective(self, metric: &str, direction: Direction) -> Self {
        self.adjust(|study| study.objectives.push(Objective { metric: metric.to_owned(), direction }))
    }

    /// The number of trials.
    #[must_use]
    pub fn trials(self, trials: u32) -> Self {
        self.adjust(|study| study.search.trials = trials)
    }

    /// How many trials are active at a time.
    #[must_use]
    pub fn parallel(mut self, trials: u32) -> Self {
        self.parallel = Some(Parallel::Fixed(trials));
        self
    }

    /// How the next parameters are chosen.
    #[must_use]
    pub fn algorithm(self, algorithm: Algorithm) -> Self {
        self.adjust(|study| study.search.algorithm = algorithm)
    }

    /// What all random choices follow from.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        self.adjust(|study| study.search.seed = seed)
    }

    /// The longest the study may take.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.adjust(|study| study.search.timeout = Some(timeout))
    }

    /// Statistical epochs of a full trial: where it is when it has reported its last value.
    #[must_use]
    pub fn epochs(self, epochs: f64) -> Self {
        self.adjust(|study| {
            let grace = &mut study.search.early_stopping.grace;
            if grace.total_cmp(&default_grace(study.trial.epochs)).is_eq() {
                *grace = default_grace(epochs);
            }
            study.trial.epochs = epochs;
        })
    }

    /// When trials are stopped early; [`adjust`](Self::adjust) changes its settings.
    #[must_use]
    pub fn early_stopping(self, rule: StoppingRule) -> Self {
        self.adjust(|study| {
            let stopping = &mut study.search.early_stopping;
            if stopping.reduction.total_cmp(&default_reduction(stopping.rule)).is_eq() {
                stopping.reduction = default_reduction(rule);
            }
            stopping.rule = rule;
        })
    }

    /// Runs a program with these arguments for each trial.
    #[must_use]
    pub fn command<W: Into<String>>(self, words: impl IntoIterator<Item = W>) -> Self {
        let words = words.into_iter().map(Into::into).collect();
        self.adjust(|study| study.trial.program = Some(Program::Command(words)))
    }

    /// Trains a trainable of this program.
    #[must_use]
    pub fn trainable(self, name: &str) -> Self {
        self.adjust(|study| study.trial.program = Some(Program::Trainable(name.to_owned())))
    }

    /// The folder in which a program or Python code begins.
    #[must_use]
    pub fn folder(self, folder: impl Into<PathBuf>) -> Self {
        self.adjust(|study| study.trial.folder = Some(folder.into()))
    }

    /// By which policy GPUs are divided.
    #[must_use]
    pub fn policy(self, policy: PolicyKind) -> Self {
        self.adjust(|study| study.scheduler.policy = policy)
    }

    /// Changes any setting.
    ///
    /// ```
    /// use pollux_tune::space::{Domain, Space, StoppingRule, Study};
    /// let space = Space::builder().add("x", Domain::float(0.0, 1.0)?).build()?;
    /// let study = Study::builder(space).minimize("loss").early_stopping(StoppingRule::Median);
    /// let study = study.adjust(|study| study.search.early_stopping.grace = 3.0).build()?;
    /// assert_eq!(study.search.early_stopping.grace, 3.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn adjust(mut self, change: impl FnOnce(&mut Study)) -> Self {
        if let Ok(study) = &mut self.study {
            change(study);
        }
        self
    }

    /// The study, or all that is wrong with it.
    pub fn build(self) -> Result<Study, Diagnostics> {
        let mut study = self.study?;
        let is_elastic = matches!(study.trial.program, Some(Program::Trainable(_) | Program::Python(_)));
        let adapts = matches!(study.scheduler.policy, PolicyKind::Goodput | PolicyKind::Pollux);
        let usual = if is_elastic && adapts { Parallel::Auto } else { study.search.parallel };
        study.search.parallel = self.parallel.unwrap_or(usual);
        study.checked()
    }
}
