use rand_chacha::ChaCha8Rng;

use super::{Error, Gp, Outcome, Suggester, Tpe};
use crate::{
    ids::TrialId,
    space::{Dims, Point},
};

/// The number of trials that are chosen by a model of the results.
const MODELLED: usize = 600;
/// With more parameters there is no such model.
const MAX_PARAMETERS: usize = 50;
/// Nor with more trials at a time.
const MAX_PARALLEL: u32 = 64;

/// The suggester that does best in most studies: [`Gp`] for the first 600 trials, [`Tpe`] after them, and [`Tpe`]
/// alone where there are more than 50 parameters or more than 64 trials at a time. `docs/search.md` says why.
///
/// ```
/// use pollux_tune::space::{Dim, Dims};
/// use pollux_tune::{ids::TrialId, tpe::{Auto, Suggester}};
/// use rand::SeedableRng;
/// use rand_chacha::ChaCha8Rng;
///
/// let dims = Dims::flat(vec![Dim::Continuous; 3])?;
/// let mut auto = Auto::new(dims, 4);
/// let point = auto.ask(TrialId(0), &mut ChaCha8Rng::seed_from_u64(0))?;
/// assert_eq!(point.len(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Auto {
    /// Chooses the first trials.
    first: Option<Gp>,
    /// Chooses all others.
    then: Tpe,
    /// How many trials the first one may still choose.
    left: usize,
}

impl Auto {
    /// A search of a space with `parallel` trials at a time.
    #[must_use]
    pub fn new(dims: Dims, parallel: u32) -> Self {
        let modelled = dims.len() <= MAX_PARAMETERS && parallel <= MAX_PARALLEL;
        let first = modelled.then(|| Gp::new(dims.clone()));
        Self { first, then: Tpe::new(dims), left: MODELLED }
    }

    /// With at most so many random trials first: see [`Gp::with_startup`].
    #[must_use]
    pub fn with_startup(mut self, most: usize) -> Self {
        self.first = self.first.map(|first| first.with_startup(most));
        self
    }

    /// Counts one more trial.
    fn count(&mut self) {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.first = None;
        }
    }
}

impl Suggester for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn ask(&mut self, id: TrialId, rng: &mut ChaCha8Rng) -> Result<Point, Error> {
        let point = match &mut self.first {
            Some(first) => {
                let point = first.ask(id, rng)?;
                self.then.insert(id, point.clone())?;
                point
            }
            None => self.then.ask(id, rng)?,
        };
        self.count();
        Ok(point)
    }

    fn insert(&mut self, id: TrialId, point: Point) -> Result<(), Error> {
        if let Some(first) = &mut self.first {
            first.insert(id, point.clone())?;
        }
        self.then.insert(id, point)?;
        self.count();
        Ok(())
    }

    fn tell(&mut self, id: TrialId, outcome: Outcome) -> Result<(), Error> {
        if let Some(first) = &mut self.first {
            first.tell(id, outcome.clone())?;
        }
        self.then.tell(id, outcome)
    }

    fn import(&mut self, id: TrialId, point: Point, outcome: Outcome) -> Result<(), Error> {
        if let Some(first) = &mut self.first {
            first.import(id, point.clone(), outcome.clone())?;
        }
        self.then.import(id, point, outcome)
    }

    fn retract(&mut self, id: TrialId) -> Result<(), Error> {
        if let Some(first) = &mut self.first {
            first.retract(id)?;
        }
        self.then.retract(id)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use crate::space::Dim;

    fn search(parameters: usize, parallel: u32) -> (Auto, Dims) {
        let dims = Dims::flat(vec![Dim::Continuous; parameters]).expect("it is a space");
        (Auto::new(dims.clone(), parallel), dims)
    }

    #[test]
    fn large_spaces_and_many_workers_have_no_model() {
        assert!(search(50, 64).0.first.is_some());
        assert!(search(51, 1).0.first.is_none());
        assert!(search(2, 65).0.first.is_none());
    }

    /// Its points are those of the one suggester, then those of the other.
    #[test]
    fn the_model_gives_way() {
        let (mut auto, dims) = search(1, 1);
        let (mut gp, mut tpe) = (Gp::new(dims.clone()), Tpe::new(dims));
        for id in (0..MODELLED as u32 + 5).map(TrialId) {
            let rng = || ChaCha8Rng::seed_from_u64(id.0.into());
            // Trials that were asked for elsewhere count too.
            if id.0 >= 13 && id.0 < MODELLED as u32 - 2 {
                let point = vec![Some(f64::from(id.0) / 1000.0)];
                auto.insert(id, point.clone()).expect("it is new");
                gp.insert(id, point.clone()).expect("it is new");
                tpe.insert(id, point).expect("it is new");
            } else {
                let point = auto.ask(id, &mut rng()).expect("it has an answer");
                let (by, other): (&mut dyn Suggester, &mut dyn Suggester) =
                    if id.0 < MODELLED as u32 { (&mut gp, &mut tpe) } else { (&mut tpe, &mut gp) };
                assert_eq!(by.ask(id, &mut rng()), Ok(point.clone()), "{id}");
                other.insert(id, point).expect("it is new");
            }
            let outcome = Outcome::Done(vec![f64::from(id.0 * 7 % 31)]);
            for suggester in [&mut auto as &mut dyn Suggester, &mut gp, &mut tpe] {
                suggester.tell(id, outcome.clone()).expect("it is running");
            }
        }
        assert!(auto.first.is_none());
    }
}
