use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Error, draw::feasible, history::History, suggester::FromHistory};
use crate::space::{Dims, Point};

/// Bases are primes below this; dimensions beyond them are random.
const LARGEST_BASE: u32 = 1000;

/// Points that fill the space more evenly than random ones: the Halton sequence, with the digits of each base
/// permuted at random (Owen 2017, "A randomized Halton algorithm in R").
///
/// ```
/// use pollux_tune::space::{Dim, Dims};
/// use pollux_tune::{ids::TrialId, tpe::{Halton, Suggester}};
/// use rand::SeedableRng;
/// use rand_chacha::ChaCha8Rng;
///
/// let mut halton = Halton::new(Dims::flat(vec![Dim::Discrete { count: 8 }])?, 1);
/// let rng = &mut ChaCha8Rng::seed_from_u64(0);
/// let mut cells = Vec::new();
/// for number in 0..8 {
///     cells.extend(halton.ask(TrialId(number), rng)?[0]);
/// }
/// cells.sort_by(f64::total_cmp);
/// assert_eq!(cells, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], "each cell once");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Halton {
    history: History,
    sequence: Sequence,
}

impl Halton {
    /// The sequence over a space, scrambled by a seed.
    #[must_use]
    pub fn new(dims: Dims, seed: u64) -> Self {
        let sequence = Sequence::new(dims.len(), seed);
        Self { history: History::new(dims), sequence }
    }

    /// The sequence for results with `objectives` values, 1 or more.
    pub fn with_objectives(dims: Dims, seed: u64, objectives: usize) -> Result<Self, Error> {
        let sequence = Sequence::new(dims.len(), seed);
        Ok(Self { history: History::with_objectives(dims, objectives)?, sequence })
    }
}

impl FromHistory for Halton {
    const NAME: &'static str = "halton";

    fn history(&mut self) -> &mut History {
        &mut self.history
    }

    fn choose(&mut self, rng: &mut ChaCha8Rng) -> Result<Point, Error> {
        // An infeasible element gives way to a random point, so that the trials before say which one is next.
        let dims = self.history.dims();
        let first = self.sequence.point(dims, self.history.len() as u64, rng);
        feasible(dims, first, rng)
    }
}

/// A scrambled Halton sequence.
#[derive(Debug)]
pub(super) struct Sequence {
    /// For each dimension the permuted digits, position by position.
    digits: Vec<Vec<Vec<u32>>>,
}

impl Sequence {
    pub(super) fn new(dims: usize, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        Self { digits: primes().take(dims).map(|base| scramble(base, &mut rng)).collect() }
    }

    /// An element of the sequence in a space; what has no base is random.
    pub(super) fn point(&self, dims: &Dims, index: u64, rng: &mut ChaCha8Rng) -> Point {
        dims.build(|dim, parameter| {
            parameter.at(self
                .digits
                .get(dim)
                .map_or_else(|| rng.random(), |digits| radical_inverse(digits, index)))
        })
    }
}

fn primes() -> impl Iterator<Item = u32> {
    (2..LARGEST_BASE).filter(|&n| (2..n).take_while(|d| d * d <= n).all(|d| n % d != 0))
}

/// A random permutation of the digits for each position that a number of 53 bits can tell apart.
fn scramble(base: u32, rng: &mut ChaCha8Rng) -> Vec<Vec<u32>> {
    let positions = (1..53).find(|&digits| u64::from(base).pow(digits) >= 1 << 53).unwrap_or(53);
    let mut shuffled = || {
        let mut digits: Vec<u32> = (0..base).collect();
        for last in (1..digits.len()).rev() {
            digits.swap(last, rng.random_range(0..=last));
        }
        digits
    };
    (0..positions).map(|_| shuffled()).collect()
}

/// The digits of the index, permuted, behind the point in reverse order.
fn radical_inverse(digits: &[Vec<u32>], mut index: u64) -> f64 {
    let (mut share, mut place) = (0.0, 1.0);
    for permutation in digits {
        let base = permutation.len() as u64;
        place /= base as f64;
        share += f64::from(permutation[(index % base) as usize]) * place;
        index /= base;
    }
    share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stretch_of_a_base_has_one_point() {
        let sequence = Sequence::new(3, 7);
        for (dim, base) in [(0, 2_u32), (1, 3), (2, 5)] {
            let cells = u64::from(base.pow(3));
            let mut seen = vec![0; cells as usize];
            for index in 0..cells {
                let share = radical_inverse(&sequence.digits[dim], index);
                seen[(share * cells as f64 + 1e-9) as usize] += 1;
            }
            assert!(seen.iter().all(|&count| count == 1), "base {base}: {seen:?}");
        }
    }

    #[test]
    fn there_are_primes() {
        assert_eq!(primes().take(6).collect::<Vec<_>>(), [2, 3, 5, 7, 11, 13]);
    }
}
