use rand_chacha::ChaCha8Rng;

use super::{
    Error,
    draw::{feasible, uniform},
    expert::Expert,
    history::History,
    suggester::FromHistory,
};
use crate::space::{Dims, Point};

/// Points drawn at random; where the space has priors, the first one has them all, and half of the others are drawn around them.
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
    expert: Option<Expert>,
}

impl Random {
    /// A suggester over a space.
    #[must_use]
    pub fn new(dims: Dims) -> Self {
        let expert = Expert::new(&dims);
        Self { history: History::new(dims), expert }
    }

    /// A suggester for results with `objectives` values, 1 or more.
    pub fn with_objectives(dims: Dims, objectives: usize) -> Result<Self, Error> {
        let expert = Expert::new(&dims);
        Ok(Self { history: History::with_objectives(dims, objectives)?, expert })
    }
}

impl FromHistory for Random {
    const NAME: &'static str = "random";

    fn history(&mut self) -> &mut History {
        &mut self.history
    }

    fn choose(&mut self, rng: &mut ChaCha8Rng) -> Result<Point, Error> {
        let dims = self.history.dims();
        let first = match &self.expert {
            Some(_) if self.history.own() == 0 => Expert::favourite(dims, rng),
            Some(expert) if self.history.own() % 2 == 1 => expert.draw(dims, rng),
            _ => uniform(dims, rng),
        };
        feasible(dims, first, rng)
    }
}
