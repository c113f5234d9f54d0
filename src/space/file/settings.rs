use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use thiserror::Error;

use crate::{alloc::PolicyKind, goodput::LrRule};

/// Names that users choose from.
macro_rules! named {
    ($(#[$about:meta])* $type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $type { $($(#[$doc])* $variant),+ }

        impl $type {
            /// All names, in order.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// The name in study files.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// The one of this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

named! {
    /// Which way a metric gets better.
    Direction {
        /// Less is better.
        Minimize = "minimize",
        /// More is better.
        Maximize = "maximize",
    }
}

named! {
    /// How the next parameters are chosen.
    Algorithm {
        /// Tree-structured Parzen estimators.
        Tpe = "tpe",
        /// Whatever suits budget and space.
        Auto = "auto",
        /// A Gaussian process.
        Gp = "gp",
        /// At random.
        Random = "random",
        /// The quasi-random sequence of Halton.
        Halton = "halton",
        /// Every combination.
        Grid = "grid",
    }
}

named! {
    /// How sure someone is of a value: how much of the others is still tried.
    Confidence {
        /// It could well be another one.
        Low = "low",
        /// The best is probably near.
        Medium = "medium",
        /// The best is hardly anywhere else.
        High = "high",
    }
}

named! {
    /// When trials are stopped early.
    StoppingRule {
        /// Never.
        Never = "none",
        /// Asynchronous successive halving.
        Asha = "asha",
        /// Several brackets of it.
        Hyperband = "hyperband",
        /// Worse than the median of the others.
        Median = "median",
        /// Without improvement for a while.
        Patience = "patience",
        /// Worse than a bound.
        Threshold = "threshold",
    }
}

named! {
    /// Which value of the objective is the result of a trial.
    ResultValue {
        /// That which was reported last.
        Last = "last",
        /// The best that was reported.
        Best = "best",
    }
}

named! {
    /// How a program changes the number of its GPUs.
    Elasticity {
        /// It is ended and started again, and resumes from its own checkpoint.
        Restart = "restart",
    }
}

/// A metric and which way it gets better.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Objective {
    /// The name under which trials report it.
    pub metric: String,
    /// Which way is better.
    pub direction: Direction,
}

impl Objective {
    /// A value of which less is better.
    #[must_use]
    pub fn loss(&self, value: f64) -> f64 {
        match self.direction {
            Direction::Minimize => value,
            Direction::Maximize => -value,
        }
    }
}

/// What a trial runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Program {
    /// A trainable that is built in, by name.
    Trainable(String),
    /// A program and its arguments.
    Command(Vec<String>),
    /// Python code that trains elastically.
    Python(PythonProgram),
}

/// Python code that trains elastically, with the package `pollux_tune`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonProgram {
    /// What trains.
    pub entry: PythonEntry,
    /// What runs it; none for `python3` in the folder of this program, or else that of the search path.
    pub interpreter: Option<String>,
}

impl PythonProgram {
    /// What runs it, if its path is seen from a folder. A name without `/` is looked for in the search path.
    #[must_use]
    pub fn interpreter_from(&self, folder: &Path) -> Option<String> {
        let seen = |path: &String| {
            if path.contains('/') { folder.join(path).display().to_string() } else { path.clone() }
        };
        self.interpreter.as_ref().map(seen)
    }
}

/// Which function trains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PythonEntry {
    /// That of a script, by its path.
    Script(String),
    /// `package.module:function`.
    Function(String),
}

impl PythonEntry {
    /// As study files have it.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Script(text) | Self::Function(text) => text,
        }
    }
}

/// Whether a text is `package.module:function`.
pub(super) fn is_function(text: &str) -> bool {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    text.split_once(':').is_some_and(|(module, function)| module.split('.').all(is_name) && is_name(function))
}

/// Which trials keep their checkpoints when they have ended with a result. Those that run, wait or have failed always keep theirs.
///
/// ```
/// use pollux_tune::space::KeepCheckpoints;
///
/// assert_eq!("3".parse(), Ok(KeepCheckpoints::Best(3)));
/// assert_eq!("all".parse(), Ok(KeepCheckpoints::All));
/// assert_eq!("none".parse(), Ok(KeepCheckpoints::Best(0)));
/// assert!("some".parse::<KeepCheckpoints>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepCheckpoints {
    /// All of them.
    All,
    /// This number of the best; with several objectives all that no other beats, if that is more.
    Best(u32),
}

/// A text that is neither `all` nor `none` nor a number.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("expected {}", Self::ALLOWED)]
pub struct InvalidKeepCheckpoints;

impl InvalidKeepCheckpoints {
    pub(super) const ALLOWED: &'static str = "`all`, `none` or the number of the best trials";
}

impl fmt::Display for KeepCheckpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Best(0) => f.write_str("none"),
            Self::Best(count) => count.fmt(f),
        }
    }
}

impl FromStr for KeepCheckpoints {
    type Err = InvalidKeepCheckpoints;

    fn from_str(text: &str) -> Result<Self, InvalidKeepCheckpoints> {
        match text {
            "all" => Ok(Self::All),
            "none" => Ok(Self::Best(0)),
            _ => text.parse().map(Self::Best).map_err(|_| InvalidKeepCheckpoints),
        }
    }
}

/// How a trial is trained.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TrialSettings {
    /// What it runs; none if the file leaves that to the program that reads it.
    pub program: Option<Program>,
    /// Statistical epochs of a full trial: passes over the data at the efficiency of the initial batch.
    pub epochs: f64,
    /// The total batch that learning rates are meant for.
    pub initial_batch: u32,
    /// The largest total batch.
    pub max_batch: u32,
    /// The largest pass on a GPU, in examples. Without it, what does not fit into the memory is learned.
    pub max_batch_per_gpu: Option<u32>,
    /// The batch of each GPU; none if it adapts to the training.
    pub batch_per_gpu: Option<u32>,
    /// How the learning rate follows the batch.
    pub scaling: LrRule,
    /// The time between two checkpoints.
    pub checkpoint_interval: Duration,
    /// Whose checkpoints are kept after the end of the trial.
    pub keep_checkpoints: KeepCheckpoints,
    /// The smallest number of GPUs of a running trial.
    pub min_gpus: u32,
    /// The largest number of GPUs.
    pub max_gpus: Option<u32>,
    /// The longest a trial may take.
    pub timeout: Option<Duration>,
    /// The longest that a program may print nothing; the least limit of a step of a trainable.
    pub silence: Option<Duration>,
    /// Which value of the objective counts.
    pub result: ResultValue,
    /// How many programs share a GPU: more than one only for programs.
    pub share: u32,
    /// How a program changes the number of its GPUs; none if it has [`min_gpus`](Self::min_gpus) from start to end.
    pub elastic: Option<Elasticity>,
    /// Variables in the environment of a program or of Python code, in addition to those that it inherits.
    pub env: BTreeMap<String, String>,
    /// The folder in which a program or Python code begins; none for that of whoever starts it.
    pub folder: Option<PathBuf>,
}

impl TrialSettings {
    /// How many slots a trial needs at least: functions have one.
    #[must_use]
    pub fn slots(&self) -> u32 {
        if self.program.is_some() { self.min_gpus.max(1) } else { 1 }
    }

    /// The same from wherever the file is read: paths that were seen from this folder, which is absolute, are absolute.
    #[cfg(feature = "runtime")]
    #[must_use]
    pub(crate) fn seen_from(&self, folder: &Path) -> Self {
        let seen = |path: &str| folder.join(path).display().to_string();
        let mut trial = self.clone();
        if let Some(Program::Python(program)) = &mut trial.program {
            program.interpreter = program.interpreter_from(folder);
            match &mut program.entry {
                // That of a script is seen from the folder of the trial, if there is one.
                PythonEntry::Script(path) if self.folder.is_none() => *path = seen(path),
                PythonEntry::Function(_) if self.folder.is_none() => trial.folder = Some(folder.to_owned()),
                PythonEntry::Script(_) | PythonEntry::Function(_) => {}
            }
        }
        trial.folder = trial.folder.map(|inner| folder.join(inner));
        trial
    }
}

/// How many trials are active at a time.
///
/// ```
/// use pollux_tune::space::Parallel;
/// assert_eq!("auto".parse(), Ok(Parallel::Auto));
/// assert_eq!("8".parse(), Ok(Parallel::Fixed(8)));
/// assert!("0".parse::<Parallel>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parallel {
    /// As many as pay off, by how well trials use more GPUs, how many are left, and what the search loses: this may change while
    /// the study runs. For elastic trials under the policies `goodput` and `pollux`.
    Auto,
    /// At most this number, at least 1.
    Fixed(u32),
}

impl Parallel {
    /// The number where nobody chooses one.
    pub const DEFAULT: u32 = 4;

    /// The number, or [`DEFAULT`](Self::DEFAULT) if it is not fixed.
    #[must_use]
    pub const fn or_default(self) -> u32 {
        match self {
            Self::Auto => Self::DEFAULT,
            Self::Fixed(number) => number,
        }
    }
}

impl fmt::Display for Parallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(number) => number.fmt(f),
        }
    }
}

/// Text that is no [`Parallel`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("expected {}", Self::ALLOWED)]
pub struct InvalidParallel;

impl InvalidParallel {
    pub(crate) const ALLOWED: &'static str = "auto, or a whole number from 1 to 4294967295";
}

impl FromStr for Parallel {
    type Err = InvalidParallel;

    fn from_str(text: &str) -> Result<Self, InvalidParallel> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => text.parse().ok().filter(|number| *number > 0).map(Self::Fixed).ok_or(InvalidParallel),
        }
    }
}

/// How parameters are chosen and trials stopped early.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SearchSettings {
    /// How the next parameters are chosen.
    pub algorithm: Algorithm,
    /// How many trials there are.
    pub trials: u32,
    /// How many are active at a time.
    pub parallel: Parallel,
    /// What all random choices follow from.
    pub seed: u64,
    /// The longest the study may take.
    pub timeout: Option<Duration>,
    /// The study ends as failed after this many failures if no trial has finished; never if it is 0.
    pub max_failures: u32,
    /// When trials are stopped early.
    pub early_stopping: EarlyStopping,
}

/// When trials are stopped early.
#[derive(Debug, Clone, PartialEq)]
pub struct EarlyStopping {
    /// By which rule.
    pub rule: StoppingRule,
    /// Statistical epochs before the first decision.
    pub grace: f64,
    /// One in this number of trials continues at each rung, and each rung is this much further than the last one.
    pub reduction: f64,
    /// Statistical epochs without improvement.
    pub patience: f64,
    /// The bound of the rule `threshold`, which always has one.
    pub threshold: Option<f64>,
}

/// How GPUs are divided among trials.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own in study files")]
#[non_exhaustive]
pub struct SchedulerSettings {
    /// By which policy.
    pub policy: PolicyKind,
    /// The time between two decisions where nothing else asks for one.
    pub interval: Duration,
    /// Whether GPUs are divided as soon as something changes, not only at each interval.
    pub immediate: bool,
    /// The fairness exponent; none to let `goodput` aim at the progress of all trials together, and the others at the -1 of the paper.
    pub p: Option<f64>,
    /// Whether two trials on several nodes never share a node.
    pub avoid_interference: bool,
    /// Whether new trials start with what others have learned.
    pub knowledge_sharing: bool,
    /// Whether trials that will probably be stopped are not scaled out.
    pub promise_weighting: bool,
}

#[cfg(all(test, feature = "runtime"))]
mod tests {
    use super::*;
    use crate::space::Study;

    #[test]
    fn a_copy_of_a_study_file_finds_what_the_file_finds() {
        let copied = |trial: &str| {
            let yaml = format!(
                "{{space: {{x: {{float: [0, 1]}}}}, objective: {{minimize: loss}}, trial: {{{trial}}}}}"
            );
            let trial = Study::from_yaml("study.yaml", &yaml).unwrap().trial.seen_from(Path::new("/home"));
            let Some(Program::Python(program)) = &trial.program else {
                return (None, None, trial.folder);
            };
            (Some(program.entry.clone()), program.interpreter.clone(), trial.folder)
        };
        let script = |path: &str| Some(PythonEntry::Script(path.to_owned()));
        let (home, work) = (Some(PathBuf::from("/home")), Some(PathBuf::from("/home/work")));
        let interpreter = Some("/home/.venv/bin/python".to_owned());
        assert_eq!(copied("python: a/train.py"), (script("/home/a/train.py"), None, None));
        assert_eq!(copied("python: /b/train.py"), (script("/b/train.py"), None, None));
        assert_eq!(
            copied("python: train.py, folder: work, interpreter: .venv/bin/python"),
            (script("train.py"), interpreter, work.clone())
        );
        assert_eq!(copied("python: train.py, interpreter: python3.12").1, Some("python3.12".to_owned()));
        let function = Some(PythonEntry::Function("package.train:main".to_owned()));
        assert_eq!(copied("module: 'package.train:main'"), (function, None, home));
        assert_eq!(copied("command: [sh], folder: work").2, work);
    }
}
