use rand_chacha::ChaCha8Rng;

use super::{
    Error, Outcome, Suggester,
    draw::{feasible, uniform},
    history::History,
};
use crate::{
    ids::TrialId,
    space::{Dims, Point},
};

/// Points drawn at random.
///
/// ```
/// use pollux_tune::space::{Dim, Dims};
/// use pollux_tune::{ids::TrialId, tpe::{Random, Suggester}};
/// use rand::SeedableRng;
/// use rand_chacha::ChaCha8Rng;
///
/// let mut random = Random::new(Dims::flat(vec![Dim::Continuous])?);
/// let point = random.ask(TrialId(0), &mut ChaCha8Rng::seed_from_u64(0))?;
/// assert!(point[0].is_some_and(|x| (0.0..=1.0).contains(&x)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Random {
    history: History,
}

impl Random {
    /// A suggester over a space.
    #[must_use]
    pub fn new(dims: Dims) -> Self {
        Self { history: History::new(dims) }
    }

    /// A suggester for results with so many values, 1 or more.
    pub fn with_objectives(dims: Dims, objectives: usize) -> Result<Self, Error> {
        Ok(Self { history: History::with_objectives(dims, objectives)? })
    }
}

impl Suggester for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn ask(&mut self, id: TrialId, rng: &mut ChaCha8Rng) -> Result<Point, Error> {
        self.history.check_new(id)?;
        let first = uniform(self.history.dims(), rng);
        let point = feasible(self.history.dims(), first, rng)?;
        self.history.insert(id, &point)?;
        Ok(point)
    }

    fn insert(&mut self, id: TrialId, point: Point) -> Result<(), Error> {
        self.history.insert(id, &point)
    }

    fn tell(&mut self, id: TrialId, outcome: Outcome) -> Result<(), Error> {
        self.history.tell(id, &outcome)
    }
}
