use std::fmt;

use serde::{Deserialize, Serialize};

use super::Error;
use crate::ids::TrialId;

/// Whether a trial continues.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// It continues.
    Continue,
    /// It is stopped.
    Stop(Reason),
}

/// Why a trial is stopped early. Progress is in statistical epochs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// Its value is not a finite number.
    Diverged {
        /// Where it was reported.
        progress: f64,
    },
    /// Too many others were better at a rung.
    Rung {
        /// Where the rung is.
        rung: f64,
        /// Its rank there, from 1.
        rank: usize,
        /// How many trials have reached the rung, itself included.
        trials: usize,
        /// How many of them continue.
        kept: usize,
    },
    /// Its best value is worse than the median of the others.
    Median {
        /// Where they were compared.
        progress: f64,
        /// How many others there were.
        others: usize,
    },
    /// It has not become better for too long.
    Patience {
        /// Where it was best.
        best_at: f64,
        /// Where it is now.
        progress: f64,
    },
    /// Its value is worse than the bound.
    Threshold {
        /// Where it was reported.
        progress: f64,
    },
    /// A rule that is not one of pollux-tune stopped it.
    Custom {
        /// Where it was reported.
        progress: f64,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Diverged { progress } => write!(f, "no finite value at epoch {progress:.2}"),
            Self::Rung { rung, rank, trials, kept } => {
                write!(f, "place {rank} of {trials} at epoch {rung:.2}, ")?;
                match kept {
                    1 => f.write_str("and only the best one continues"),
                    _ => write!(f, "and only the best {kept} continue"),
                }
            }
            Self::Median { progress, others } => {
                write!(f, "worse than the median of {others} others at epoch {progress:.2}")
            }
            Self::Patience { best_at, progress } => {
                write!(f, "no better at epoch {progress:.2} than at epoch {best_at:.2}")
            }
            Self::Threshold { progress } => write!(f, "worse than the threshold at epoch {progress:.2}"),
            Self::Custom { progress } => {
                write!(f, "by the stopping rule of the program at epoch {progress:.2}")
            }
        }
    }
}

/// Why a trial was stopped before its end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StopReason {
    /// By a stopping rule.
    Rule(Reason),
    /// By its caller, as text; in journals of earlier versions rules are text, too.
    Stated(String),
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(reason) => reason.fmt(f),
            Self::Stated(text) => f.write_str(text),
        }
    }
}

impl From<Reason> for StopReason {
    fn from(reason: Reason) -> Self {
        Self::Rule(reason)
    }
}

impl From<String> for StopReason {
    fn from(text: String) -> Self {
        Self::Stated(text)
    }
}

/// How a trial ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndKind {
    /// It ran to its end.
    Done,
    /// It was stopped early.
    Stopped,
    /// It crashed.
    Failed,
    /// Its user stopped it.
    Cancelled,
}

/// Decides which trials are stopped before their end.
///
/// For every stopper:
/// - Values are such that smaller is better; negate those of a metric that is maximized.
/// - A trial is known from its first report on. Reports come at any progress, not only where a rule decides.
/// - What a trial has reported stands. After a restart from a checkpoint it may come by the same progress again: such
///   reports change nothing, so nothing counts twice.
/// - A value that is not a finite number stops the trial once it has had its grace (not with the rule `none`). Before that it is no
///   value at all: some metrics are undefined at the start, while a trial that has diverged will report it again.
/// - A trial that was stopped stays stopped, whatever it still reports, until it has ended.
/// - A trial that has done all its epochs is never stopped, unless its last value is not a finite number.
/// - What a trial has reported still counts for others after its end. But one that diverged, failed or was cancelled
///   counts no more: no trial has to beat another that will not finish.
///
/// The same reports and ends in the same order give the same verdicts, so a study can be replayed.
///
/// ```
/// use pollux_tune::space::{Direction, EarlyStopping, StoppingRule};
/// use pollux_tune::ids::TrialId;
/// use pollux_tune::trials::stopping::{EndKind, Reason, Verdict, stopper};
///
/// let rule = StoppingRule::Asha;
/// let settings = EarlyStopping { rule, grace: 1.0, reduction: 3.0, patience: 5.0, threshold: None };
/// let mut asha = stopper(&settings, 27.0, Direction::Minimize)?; // rungs at 1, 3 and 9 statistical epochs
/// assert_eq!(asha.report(TrialId(0), 1.2, 0.5)?, Verdict::Continue);
/// assert_eq!(asha.report(TrialId(1), 0.8, 0.9)?, Verdict::Continue); // not at a rung yet
/// let reason = Reason::Rung { rung: 1.0, rank: 2, trials: 2, kept: 1 };
/// assert_eq!(asha.report(TrialId(1), 1.1, 0.7)?, Verdict::Stop(reason));
/// assert_eq!(reason.to_string(), "place 2 of 2 at epoch 1.00, and only the best one continues");
/// asha.end(TrialId(1), EndKind::Stopped)?;
/// # Ok::<(), pollux_tune::trials::stopping::Error>(())
/// ```
pub trait Stopper: Send {
    /// The name users choose it by.
    fn name(&self) -> &'static str;

    /// Records a value at some progress in statistical epochs, and decides whether the trial continues.
    fn report(&mut self, trial: TrialId, progress: f64, value: f64) -> Result<Verdict, Error>;

    /// Takes note that a trial has ended.
    fn end(&mut self, trial: TrialId, how: EndKind) -> Result<(), Error>;

    /// A trial that had failed or was cancelled runs again: nothing is known of it.
    fn reopen(&mut self, trial: TrialId);

    /// How likely a trial is to continue at its next decision, from 0 to 1: 1 where nothing is known against it or nothing remains to
    /// be decided, 0 for trials that are stopped or have ended.
    fn promise(&self, trial: TrialId) -> f64;
}
