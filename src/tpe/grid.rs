use std::collections::BTreeSet;

use rand_chacha::ChaCha8Rng;

use super::{
    Error, Outcome, Suggester,
    history::{History, key},
};
use crate::{
    ids::TrialId,
    space::{Dim, Dims, Point},
};

/// The largest number of points of a grid.
const LARGEST: u64 = 1_000_000;

/// Every point of a grid once, in a fixed order; the last parameter changes first.
///
/// Continuous parameters take evenly spaced levels, both ends included; others take all their values. Points
/// that were inserted are not suggested again.
///
/// ```
/// use pollux_tune::space::{Dim, Dims};
/// use pollux_tune::{ids::TrialId, tpe::{Error, Grid, Suggester}};
/// use rand::SeedableRng;
/// use rand_chacha::ChaCha8Rng;
///
/// let mut grid = Grid::new(Dims::flat(vec![Dim::Categorical { count: 2 }, Dim::Continuous])?, 3)?;
/// let rng = &mut ChaCha8Rng::seed_from_u64(0);
/// assert_eq!(grid.ask(TrialId(0), rng)?, [Some(0.0), Some(0.0)]);
/// assert_eq!(grid.ask(TrialId(1), rng)?, [Some(0.0), Some(0.5)]);
/// for number in 2..6 {
///     grid.ask(TrialId(number), rng)?;
/// }
/// assert_eq!(grid.ask(TrialId(6), rng), Err(Error::Exhausted(6)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Grid {
    history: History,
    /// Points that remain, the last one first.
    left: Vec<Point>,
    total: u64,
    taken: BTreeSet<Vec<u64>>,
}

impl Grid {
    /// All points of a space, with `levels` levels for each continuous parameter.
    pub fn new(dims: Dims, levels: u32) -> Result<Self, Error> {
        Self::with_objectives(dims, levels, 1)
    }

    /// The same for results with `objectives` values, 1 or more.
    pub fn with_objectives(dims: Dims, levels: u32, objectives: usize) -> Result<Self, Error> {
        if levels == 0 {
            return Err(Error::OutOfRange { what: "the levels of a grid", value: 0.0, allowed: "1 or more" });
        }
        let levels: Vec<u64> =
            dims.iter().map(|dim| dim.cells().unwrap_or_else(|| u64::from(levels))).collect();
        let mut left = vec![Point::new()];
        for (dim, &count) in levels.iter().enumerate() {
            left = extend(&dims, dim, count, &left)?;
        }
        left.retain(|point| dims.is_feasible(point));
        left.reverse();
        let total = left.len() as u64;
        let history = History::with_objectives(dims, objectives)?;
        Ok(Self { history, left, total, taken: BTreeSet::new() })
    }

    /// How many points the grid has in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    fn is_taken(&self, point: &Point) -> bool {
        self.taken.contains(&key(point))
    }
}

/// All points with one more parameter.
fn extend(dims: &Dims, dim: usize, levels: u64, points: &[Point]) -> Result<Vec<Point>, Error> {
    let active = points.iter().filter(|point| dims.is_active(dim, point)).count() as u64;
    if active.saturating_mul(levels).saturating_add(points.len() as u64 - active) > LARGEST {
        return Err(Error::GridTooLarge(LARGEST));
    }
    let value = |level: u64| match dims.dim(dim) {
        Dim::Continuous if levels == 1 => 0.5,
        Dim::Continuous => level as f64 / (levels - 1) as f64,
        _ => level as f64,
    };
    let mut extended = Vec::new();
    for point in points {
        let values: Vec<Option<f64>> = if dims.is_active(dim, point) {
            (0..levels).map(|level| Some(value(level))).collect()
        } else {
            vec![None]
        };
        extended.extend(values.into_iter().map(|value| {
            let mut longer = point.clone();
            longer.push(value);
            longer
        }));
    }
    Ok(extended)
}

impl Suggester for Grid {
    fn name(&self) -> &'static str {
        "grid"
    }

    fn ask(&mut self, id: TrialId, _rng: &mut ChaCha8Rng) -> Result<Point, Error> {
        self.history.check_new(id)?;
        while let Some(point) = self.left.pop() {
            if !self.is_taken(&point) {
                self.insert(id, point.clone())?;
                return Ok(point);
            }
        }
        Err(Error::Exhausted(self.total))
    }

    fn insert(&mut self, id: TrialId, point: Point) -> Result<(), Error> {
        self.history.insert(id, &point)?;
        self.taken.insert(key(&point));
        Ok(())
    }

    fn tell(&mut self, id: TrialId, outcome: Outcome) -> Result<(), Error> {
        self.history.tell(id, &outcome)
    }

    fn retract(&mut self, id: TrialId) -> Result<(), Error> {
        self.history.retract(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_that_cannot_be_listed_is_refused() {
        let dims = Dims::flat(vec![Dim::Discrete { count: 1 << 20 }]).expect("it is a space");
        assert_eq!(Grid::new(dims, 2).err(), Some(Error::GridTooLarge(LARGEST)));
        let dims = Dims::flat(vec![Dim::Continuous; 40]).expect("it is a space");
        assert_eq!(Grid::new(dims.clone(), 2).err(), Some(Error::GridTooLarge(LARGEST)));
        assert_eq!(Grid::new(dims.clone(), 1).map(|grid| grid.total()), Ok(1));
        assert!(matches!(Grid::new(dims, 0), Err(Error::OutOfRange { .. })));
    }

    #[test]
    fn infeasible_points_are_left_out() {
        let dims = Dims::flat(vec![Dim::Discrete { count: 3 }; 2]).expect("it is a space");
        let dims = dims.with_constraint(|point| point[0] <= point[1]);
        assert_eq!(Grid::new(dims, 2).map(|grid| grid.total()), Ok(6));
    }
}
