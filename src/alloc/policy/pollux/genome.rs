//! Crossover and mutation of matrices; what they leave may be invalid, and is repaired afterwards.

use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;

use super::space::Space;

/// Chance that a row is reset, that a row is thinned, and that a cell of a thinned row is zeroed.
const TENTH: f64 = 0.1;
const CROSSOVER: f64 = 0.9;

/// One-point crossover over the trials: with probability 0.9 both matrices swap the rows before a random one.
pub(super) fn cross(space: &Space, a: &mut [u16], b: &mut [u16], rng: &mut ChaCha8Rng) {
    if rng.random_bool(CROSSOVER) {
        let point = rng.random_range(0..space.trials.len()) * space.width;
        a[..point].swap_with_slice(&mut b[..point]);
    }
}

/// A probability as a threshold for 32 random bits, cheaper to compare with than a float.
fn threshold(probability: f64) -> u64 {
    (probability * 2f64.powi(32)) as u64
}

fn hit(rng: &mut ChaCha8Rng, threshold: u64) -> bool {
    u64::from(rng.next_u32()) < threshold
}

/// Mutation, with the memory it needs.
pub(super) struct Mutation {
    used: Vec<u32>,
    tenants: Vec<u32>,
    /// Nodes with a free GPU, and the chance that the cell of a trial which is there is redrawn.
    open: Vec<(usize, u64)>,
}

impl Mutation {
    pub(super) fn new(space: &Space) -> Self {
        Self { used: vec![0; space.width], tenants: vec![0; space.width], open: Vec::new() }
    }

    /// The authors' three steps: rows are reset to what the trial has, rows are thinned, and on nodes with a
    /// free GPU cells are redrawn upwards.
    pub(super) fn apply(&mut self, space: &Space, cells: &mut [u16], rng: &mut ChaCha8Rng) {
        self.reset_and_thin(space, cells, rng);
        self.find_open(space);
        let idle = threshold(1.0 / space.trials.len() as f64);
        for row in cells.chunks_exact_mut(space.width) {
            for &(node, present) in &self.open {
                let cell = &mut row[node];
                if hit(rng, if *cell > 0 { present } else { idle }) {
                    *cell = rng.random_range(*cell..=space.capacity[node]);
                }
            }
        }
    }

    fn reset_and_thin(&mut self, space: &Space, cells: &mut [u16], rng: &mut ChaCha8Rng) {
        let tenth = threshold(TENTH);
        self.used.fill(0);
        self.tenants.fill(0);
        for (row, current) in cells.chunks_exact_mut(space.width).zip(space.current.chunks_exact(space.width))
        {
            if hit(rng, tenth) {
                row.copy_from_slice(current);
            }
            if hit(rng, tenth) {
                row.iter_mut().filter(|cell| **cell > 0 && hit(rng, tenth)).for_each(|cell| *cell = 0);
            }
            for ((cell, used), tenants) in row.iter().zip(&mut self.used).zip(&mut self.tenants) {
                *used += u32::from(*cell);
                *tenants += u32::from(*cell > 0);
            }
        }
    }

    /// On a node with k trials their cells are redrawn with probability 1 - (1 - 1/J)(1 - 1/k), others with
    /// 1/J.
    fn find_open(&mut self, space: &Space) {
        let others = 1.0 - 1.0 / space.trials.len() as f64;
        self.open.clear();
        for (node, (&used, &tenants)) in self.used.iter().zip(&self.tenants).enumerate() {
            if used < u32::from(space.capacity[node]) {
                let stays = 1.0 - 1.0 / f64::from(tenants.max(1));
                self.open.push((node, threshold(others.mul_add(-stays, 1.0))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::{
        super::super::{
            instance::Instance,
            placement::tests::{problem, running, trial},
        },
        *,
    };

    fn space() -> Space {
        let trials = vec![running(0, 1, &[(0, 2)]), running(1, 1, &[(1, 3)]), trial(2, 1)];
        Space::new(&Instance::new(&problem("2x4xt4,1x1xt4", trials)).unwrap())
    }

    #[test]
    fn crossover_swaps_leading_rows_and_loses_nothing() {
        let (space, mut rng) = (space(), ChaCha8Rng::seed_from_u64(3));
        let mut swapped = [0; 4];
        for _ in 0..400 {
            let (mut a, mut b) = (vec![1; 9], vec![2; 9]);
            cross(&space, &mut a, &mut b, &mut rng);
            assert!(a.iter().zip(&b).all(|(a, b)| a + b == 3));
            let point = a.iter().filter(|&&cell| cell == 2).count();
            assert!(point % 3 == 0 && a[..point].iter().all(|&cell| cell == 2));
            swapped[point / 3] += 1;
        }
        // Never all rows; about 0.1 + 0.9 / 3 of the time none.
        assert!(swapped[3] == 0 && swapped[1] > 80 && swapped[2] > 80 && swapped[0] > 120, "{swapped:?}");
    }

    #[test]
    fn mutation_stays_between_zero_and_the_node() {
        let (space, mut rng) = (space(), ChaCha8Rng::seed_from_u64(4));
        let mut mutation = Mutation::new(&space);
        let mut seen = [[false; 5]; 9];
        for _ in 0..50_000 {
            let mut cells = space.current.clone();
            mutation.apply(&space, &mut cells, &mut rng);
            for (index, &cell) in cells.iter().enumerate() {
                assert!(cell <= space.capacity[index % 3], "cell {index}: {cell}");
                seen[index][usize::from(cell)] = true;
            }
        }
        let reached = |index: usize| seen[index].iter().filter(|&&seen| seen).count();
        assert_eq!((0..9).map(reached).collect::<Vec<_>>(), [5, 5, 2, 5, 5, 2, 5, 5, 2]);
    }

    #[test]
    fn cells_of_full_nodes_never_grow() {
        let (space, mut rng) = (space(), ChaCha8Rng::seed_from_u64(5));
        let mut mutation = Mutation::new(&space);
        for _ in 0..200 {
            let mut cells = vec![4, 4, 1, 4, 4, 1, 4, 4, 1];
            mutation.apply(&space, &mut cells, &mut rng);
            assert!(cells.iter().enumerate().all(|(index, &cell)| cell <= space.capacity[index % 3]));
        }
    }
}
