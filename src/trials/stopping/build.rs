use super::{
    Error, Stopper,
    hyperband::Hyperband,
    ladder::Ladder,
    median::Median,
    record::{Record, Rule},
    simple::{Never, Patience, Threshold},
};
use crate::space::{Direction, EarlyStopping, StoppingRule};

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
        let allowed = "above 0 and below the epochs of a trial, or nothing would ever be decided";
        return Err(Error::OutOfRange { what: "the grace in epochs", value: grace, allowed });
    }
    let reduction = match rule {
        StoppingRule::Asha | StoppingRule::Hyperband if reduction < 2 => {
            let (what, value) = ("the reduction", f64::from(reduction));
            return Err(Error::OutOfRange { what, value, allowed: "at least 2" });
        }
        _ => reduction as usize,
    };
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

fn boxed<R: Rule + 'static>(rule: R, grace: f64, epochs: f64) -> Box<dyn Stopper> {
    Box::new(Record::new(rule, Some(grace), epochs))
}
