use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::Error;
use crate::space::{Dims, Point};

/// The number of random points that are tried before constraints count as impossible.
const TRIES: usize = 10_000;

/// A point from the uniform distribution over the space, constraints aside.
pub(super) fn uniform(dims: &Dims, rng: &mut ChaCha8Rng) -> Point {
    dims.build(|_, parameter| parameter.at(rng.random()))
}

/// The first choice if it is feasible, otherwise a random feasible point.
pub(super) fn feasible(dims: &Dims, first: Point, rng: &mut ChaCha8Rng) -> Result<Point, Error> {
    let mut point = first;
    for _ in 0..TRIES {
        if dims.is_feasible(&point) {
            return Ok(point);
        }
        point = uniform(dims, rng);
    }
    Err(Error::Infeasible(TRIES))
}
