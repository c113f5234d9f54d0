use rand_chacha::ChaCha8Rng;

use super::{Error, history::History};
use crate::{ids::TrialId, space::Point};

/// How a trial ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It ran to its end, with one value for each objective; smaller is better. If one is not finite, that
    /// counts as failure.
    Done(Vec<f64>),
    /// It was stopped early.
    Stopped {
        /// The last value it reported, if any; smaller is better. With several objectives, that of the first.
        value: Option<f64>,
        /// How far it came.
        step: u64,
    },
    /// It crashed or diverged.
    Failed,
    /// It ended for a reason that says nothing about its point.
    Cancelled,
}

/// Chooses what to try next.
///
/// Randomness is an argument: give each trial a generator of its own, seeded from the study's seed and the
/// trial's number. Then the same results in the same order give the same suggestions, and so does a fresh
/// suggester that is shown what happened with [`insert`](Self::insert) and [`tell`](Self::tell).
///
/// ```
/// use pollux_tune::space::{Dim, Dims};
/// use pollux_tune::{ids::TrialId, tpe::{Outcome, Suggester, Tpe}};
/// use rand::SeedableRng;
/// use rand_chacha::ChaCha8Rng;
///
/// let mut tpe = Tpe::new(Dims::flat(vec![Dim::Continuous])?);
/// let mut best = f64::INFINITY;
/// for number in 0..60 {
///     let rng = &mut ChaCha8Rng::seed_from_u64(number.into());
///     let point = tpe.ask(TrialId(number), rng)?;
///     let x = point[0].expect("it is always active");
///     let value = (x - 0.7).powi(2);
///     best = best.min(value);
///     tpe.tell(TrialId(number), Outcome::Done(vec![value]))?;
/// }
/// assert!(best < 1e-4, "{best}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Suggester: Send {
    /// The name users choose it by.
    fn name(&self) -> &'static str;

    /// Chooses a point for a new trial. The trial counts as running until [`tell`](Self::tell).
    fn ask(&mut self, id: TrialId, rng: &mut ChaCha8Rng) -> Result<Point, Error>;

    /// Records a trial that was asked for elsewhere: before a restart, by hand, in an earlier study.
    fn insert(&mut self, id: TrialId, point: Point) -> Result<(), Error>;

    /// Records a result.
    fn tell(&mut self, id: TrialId, outcome: Outcome) -> Result<(), Error>;

    /// Takes a trial of an earlier study, which is evidence, but not about this one: what was best there need not be good here.
    fn import(&mut self, id: TrialId, point: Point, outcome: Outcome) -> Result<(), Error> {
        self.insert(id, point)?;
        self.tell(id, outcome)
    }

    /// Takes back that a trial has failed or was cancelled: it runs again.
    fn retract(&mut self, id: TrialId) -> Result<(), Error>;
}

impl Suggester for Box<dyn Suggester> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn ask(&mut self, id: TrialId, rng: &mut ChaCha8Rng) -> Result<Point, Error> {
        (**self).ask(id, rng)
    }

    fn insert(&mut self, id: TrialId, point: Point) -> Result<(), Error> {
        (**self).insert(id, point)
    }

    fn tell(&mut self, id: TrialId, outcome: Outcome) -> Result<(), Error> {
        (**self).tell(id, outcome)
    }

    fn import(&mut self, id: TrialId, point: Point, outcome: Outcome) -> Result<(), Error> {
        (**self).import(id, point, outcome)
    }

    fn retract(&mut self, id: TrialId) -> Result<(), Error> {
        (**self).retract(id)
    }
}

/// A suggester that keeps all trials in a [`History`] and needs nothing but a way to choose.
pub(super) trait FromHistory: Send {
    const NAME: &'static str;

    fn history(&mut self) -> &mut History;

    /// A result was taken back: what was learned from it is no longer true.
    fn unlearn(&mut self) {}

    /// A point for a trial that is not in the history yet.
    fn choose(&mut self, rng: &mut ChaCha8Rng) -> Result<Point, Error>;
}

impl<S: FromHistory> Suggester for S {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn ask(&mut self, id: TrialId, rng: &mut ChaCha8Rng) -> Result<Point, Error> {
        self.history().check_new(id)?;
        let point = self.choose(rng)?;
        self.history().insert(id, &point)?;
        Ok(point)
    }

    fn insert(&mut self, id: TrialId, point: Point) -> Result<(), Error> {
        self.history().insert(id, &point)
    }

    fn tell(&mut self, id: TrialId, outcome: Outcome) -> Result<(), Error> {
        self.history().tell(id, &outcome)
    }

    fn import(&mut self, id: TrialId, point: Point, outcome: Outcome) -> Result<(), Error> {
        self.history().import(id, &point, &outcome)
    }

    fn retract(&mut self, id: TrialId) -> Result<(), Error> {
        self.history().retract(id)?;
        self.unlearn();
        Ok(())
    }
}
