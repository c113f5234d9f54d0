use super::{
    Error, Reason, Stopper,
    hyperband::Hyperband,
    ladder::Ladder,
    median::Median,
    record::{Record, Rule, Sample, reached},
    simple::{Never, Patience, Threshold},
};
use crate::{
    ids::TrialId,
    space::{Direction, EarlyStopping, StoppingRule},
};

/// With less, rungs would lie closer than reports.
const REDUCTION_MIN: f64 = 1.1;
const REDUCTION_MAX: f64 = 1000.0;

/// Builds the stopper of a study, for trials of `epochs` statistical epochs. The direction decides which side of the
/// threshold is worse; the values that are reported are to be such that smaller is better, in any case.
pub fn stopper(
    settings: &EarlyStopping,
    epochs: f64,
    direction: Direction,
) -> Result<Box<dyn Stopper>, Error> {
    let EarlyStopping { rule, grace, reduction, patience, threshold } = *settings;
    Error::check_positive("the number of epochs of a trial", epochs)?;
    if rule != StoppingRule::Never && !(grace > 0.0 && grace < epochs) {
        let allowed = "a number above 0 and below the epochs of a trial, or nothing would ever be decided";
        return Err(Error::OutOfRange { what: "the grace in epochs", value: grace, allowed });
    }
    let is_halving = matches!(rule, StoppingRule::Asha | StoppingRule::Hyperband);
    if is_halving && !(REDUCTION_MIN..=REDUCTION_MAX).contains(&reduction) {
        let (what, allowed) = ("the reduction", "1.1 to 1000");
        return Err(Error::OutOfRange { what, value: reduction, allowed });
    }
    Ok(match rule {
        StoppingRule::Never => Box::new(Record::new(Never, None, epochs)),
        StoppingRule::Asha => boxed(Ladder::new("asha", grace, reduction, epochs), grace, epochs),
        StoppingRule::Hyperband => boxed(Hyperband::new(grace, reduction, epochs), grace, epochs),
        StoppingRule::Median => boxed(Median::new(grace, epochs), grace, epochs),
        StoppingRule::Patience => {
            Error::check_positive("the patience in epochs", patience)?;
            boxed(Patience::new(grace, patience), grace, epochs)
        }
        StoppingRule::Threshold => {
            let bound = threshold.ok_or(Error::NoThreshold)?;
            if !bound.is_finite() {
                let (what, value) = ("the threshold", bound);
                return Err(Error::OutOfRange { what, value, allowed: "a finite number" });
            }
            let bound = if direction == Direction::Maximize { -bound } else { bound };
            boxed(Threshold { grace, bound }, grace, epochs)
        }
    })
}

/// The stopper of a rule of your own, for trials of `epochs` statistical epochs, none of which is stopped before its `grace`. What holds
/// for all stoppers is taken care of.
///
/// ```
/// use pollux_tune::ids::TrialId;
/// use pollux_tune::trials::stopping::{Reason, Rule, Sample, Verdict, of_rule};
///
/// /// Stops whatever has become worse since its last report.
/// struct Downhill;
///
/// impl Rule for Downhill {
///     fn judge(&mut self, _: TrialId, before: Option<Sample>, now: Sample) -> Option<Reason> {
///         let is_worse = before.is_some_and(|before| now.value > before.value);
///         is_worse.then_some(Reason::Custom { progress: now.progress })
///     }
/// }
///
/// let mut stopper = of_rule(Box::new(Downhill), 2.0, 9.0)?;
/// assert_eq!(stopper.report(TrialId(0), 1.0, 0.5)?, Verdict::Continue);
/// assert_eq!(stopper.report(TrialId(0), 2.0, 0.4)?, Verdict::Continue);
/// assert!(matches!(stopper.report(TrialId(0), 3.0, 0.6)?, Verdict::Stop(_)));
/// # Ok::<(), pollux_tune::trials::stopping::Error>(())
/// ```
pub fn of_rule(rule: Box<dyn Rule>, grace: f64, epochs: f64) -> Result<Box<dyn Stopper>, Error> {
    Error::check_positive("the number of epochs of a trial", epochs)?;
    Error::check_positive("the grace in epochs", grace)?;
    Ok(Box::new(Record::new(Graced { rule, grace }, Some(grace), epochs)))
}

/// A rule that stops nothing before its grace.
struct Graced {
    rule: Box<dyn Rule>,
    grace: f64,
}

impl Rule for Graced {
    fn name(&self) -> &'static str {
        self.rule.name()
    }

    fn judge(&mut self, trial: TrialId, before: Option<Sample>, now: Sample) -> Option<Reason> {
        self.rule.judge(trial, before, now).filter(|_| reached(now.progress, self.grace))
    }

    fn promise(&self, trial: TrialId, now: Sample) -> f64 {
        let promise = self.rule.promise(trial, now);
        if promise.is_nan() { 1.0 } else { promise.clamp(0.0, 1.0) }
    }

    fn end(&mut self, trial: TrialId) {
        self.rule.end(trial);
    }

    fn withdraw(&mut self, trial: TrialId) {
        self.rule.withdraw(trial);
    }
}

fn boxed<R: Rule + 'static>(rule: R, grace: f64, epochs: f64) -> Box<dyn Stopper> {
    Box::new(Record::new(rule, Some(grace), epochs))
}
