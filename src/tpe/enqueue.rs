use std::collections::VecDeque;

use rand_chacha::ChaCha8Rng;

use super::{Error, Outcome, Suggester};
use crate::{
    ids::TrialId,
    space::{Dims, Point},
};

/// Suggests known points first, then leaves the choice to another suggester, which learns from them too.
///
/// ```
/// use pollux_tune::space::{Dim, Dims};
/// use pollux_tune::{ids::TrialId, tpe::{Enqueue, Random, Suggester}};
/// use rand::SeedableRng;
/// use rand_chacha::ChaCha8Rng;
///
/// let dims = Dims::flat(vec![Dim::Continuous])?;
/// let mut suggester = Enqueue::new(&dims, vec![vec![Some(0.25)]], Random::new(dims.clone()))?;
/// let rng = &mut ChaCha8Rng::seed_from_u64(0);
/// assert_eq!(suggester.ask(TrialId(0), rng)?, [Some(0.25)]);
/// assert_ne!(suggester.ask(TrialId(1), rng)?, [Some(0.25)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Enqueue<S> {
    queue: VecDeque<Point>,
    next: S,
}

impl<S: Suggester> Enqueue<S> {
    /// Puts points of a space before another suggester of the same space. They need not be feasible.
    pub fn new(dims: &Dims, points: Vec<Point>, next: S) -> Result<Self, Error> {
        match points.iter().position(|point| !dims.contains(point)) {
            Some(at) => Err(Error::BadQueue(at)),
            None => Ok(Self { queue: points.into(), next }),
        }
    }
}

impl<S: Suggester> Suggester for Enqueue<S> {
    fn name(&self) -> &'static str {
        self.next.name()
    }

    fn ask(&mut self, id: TrialId, rng: &mut ChaCha8Rng) -> Result<Point, Error> {
        let Some(point) = self.queue.front().cloned() else { return self.next.ask(id, rng) };
        self.next.insert(id, point.clone())?;
        self.queue.pop_front();
        Ok(point)
    }

    /// A point that waits in the queue leaves it.
    fn insert(&mut self, id: TrialId, point: Point) -> Result<(), Error> {
        let waiting = self.queue.iter().position(|other| *other == point);
        self.next.insert(id, point)?;
        if let Some(at) = waiting {
            self.queue.remove(at);
        }
        Ok(())
    }

    fn tell(&mut self, id: TrialId, outcome: Outcome) -> Result<(), Error> {
        self.next.tell(id, outcome)
    }

    fn import(&mut self, id: TrialId, point: Point, outcome: Outcome) -> Result<(), Error> {
        self.next.import(id, point, outcome)
    }

    fn retract(&mut self, id: TrialId) -> Result<(), Error> {
        self.next.retract(id)
    }
}
