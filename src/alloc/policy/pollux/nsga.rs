//! NSGA-II (Deb et al., 2002) with two objectives, both maximised.

use std::collections::BTreeSet;

use rand::{RngExt, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use super::{
    PolluxOptions,
    genome::{Mutation, cross},
    repair::{Repair, Score},
    space::Space,
};

/// Attempts to fill a generation, and attempts in a row that may bring nothing new: there are small problems
/// with fewer matrices than a population.
const ROUNDS: u32 = 101;
const FRUITLESS_ROUNDS: u32 = 5;

/// Matrices, one after another, with their scores.
#[derive(Debug)]
pub(super) struct Population {
    stride: usize,
    cells: Vec<u16>,
    scores: Vec<Score>,
}

impl Population {
    fn new(stride: usize) -> Self {
        Self { stride, cells: Vec::new(), scores: Vec::new() }
    }

    fn len(&self) -> usize {
        self.scores.len()
    }

    fn get(&self, index: usize) -> &[u16] {
        &self.cells[index * self.stride..][..self.stride]
    }

    /// The matrix that is best on the first objective, and among those on the second; empty if there is none.
    pub(super) fn best(&self) -> &[u16] {
        let order = |&a: &usize, &b: &usize| {
            let (a, b) = (&self.scores[a], &self.scores[b]);
            a.utility.total_cmp(&b.utility).then(a.efficiency.total_cmp(&b.efficiency))
        };
        // Reversed, because of equals `max_by` takes the last.
        (0..self.len()).rev().max_by(order).map_or(&[], |best| self.get(best))
    }

    pub(super) fn into_cells(self) -> Vec<u16> {
        self.cells
    }

    fn select(&self, chosen: &[usize]) -> Self {
        let mut cells = Vec::with_capacity(2 * chosen.len() * self.stride);
        for &index in chosen {
            cells.extend_from_slice(self.get(index));
        }
        Self { stride: self.stride, cells, scores: chosen.iter().map(|&index| self.scores[index]).collect() }
    }
}

/// One run of the search.
pub(super) struct Search<'a> {
    space: &'a Space,
    options: PolluxOptions,
    rng: &'a mut ChaCha8Rng,
    mutation: Mutation,
    repair: Repair,
    population: Population,
    seen: BTreeSet<u64>,
    /// Two children before it is known whether they are new.
    children: [Vec<u16>; 2],
}

impl<'a> Search<'a> {
    pub(super) fn new(space: &'a Space, options: PolluxOptions, rng: &'a mut ChaCha8Rng) -> Self {
        let population = options.population.max(2);
        Self {
            space,
            options: PolluxOptions { population, ..options },
            rng,
            mutation: Mutation::new(space),
            repair: Repair::new(space),
            population: Population::new(space.cells()),
            seen: BTreeSet::new(),
            children: [vec![0; space.cells()], vec![0; space.cells()]],
        }
    }

    /// Adds a matrix to the initial population, repaired.
    pub(super) fn seed(&mut self, cells: &[u16]) {
        self.children[0].copy_from_slice(cells);
        self.admit(0);
    }

    /// The non-dominated matrices after all generations.
    pub(super) fn run(mut self) -> Population {
        self.survive();
        for _ in 1..self.options.generations {
            if !self.breed() {
                break;
            }
            self.survive();
        }
        let scores = &self.population.scores;
        let front: Vec<usize> = (0..scores.len()).filter(|&index| scores[index].rank == 0).collect();
        self.population.select(&front)
    }

    /// Repairs and rates a child; it joins the population if it is new.
    fn admit(&mut self, child: usize) -> bool {
        let score = self.repair.apply(self.space, &mut self.children[child], self.rng);
        let new = self.seen.insert(score.hash);
        if new {
            self.population.cells.extend_from_slice(&self.children[child]);
            self.population.scores.push(score);
        }
        new
    }

    /// One generation of offspring behind the parents. False if nothing new was found.
    fn breed(&mut self) -> bool {
        let parents = self.population.len();
        let full = parents + self.options.population;
        let (mut order, mut fruitless): (Vec<usize>, _) = ((0..parents).collect(), 0);
        for _ in 0..ROUNDS {
            let before = self.population.len();
            let mut missing = full - before;
            if missing == 0 || fruitless == FRUITLESS_ROUNDS {
                break;
            }
            let mut next = parents;
            while missing > 0 {
                let [a, b] = [(); 2].map(|()| self.tournament(&mut order, &mut next));
                self.children[0].copy_from_slice(self.population.get(a));
                self.children[1].copy_from_slice(self.population.get(b));
                let [a, b] = &mut self.children;
                cross(self.space, a, b, self.rng);
                for child in 0..missing.min(2) {
                    self.mutation.apply(self.space, &mut self.children[child], self.rng);
                    self.admit(child);
                }
                missing = missing.saturating_sub(2);
            }
            fruitless = if self.population.len() == before { fruitless + 1 } else { 0 };
        }
        self.population.len() > parents
    }

    /// The better of two parents: the one that dominates, else the one in the less crowded place. Parents
    /// are drawn in random order, each once before any is drawn again.
    fn tournament(&mut self, order: &mut [usize], next: &mut usize) -> usize {
        let [a, b] = [(); 2].map(|()| {
            if *next >= order.len() {
                order.shuffle(self.rng);
                *next = 0;
            }
            *next += 1;
            order[*next - 1]
        });
        let (first, second) = (&self.population.scores[a], &self.population.scores[b]);
        let takes_first = if dominates(first, second) {
            true
        } else if dominates(second, first) {
            false
        } else {
            match first.crowding.total_cmp(&second.crowding) {
                std::cmp::Ordering::Greater => true,
                std::cmp::Ordering::Less => false,
                std::cmp::Ordering::Equal => self.rng.random_bool(0.5),
            }
        };
        if takes_first { a } else { b }
    }

    /// Keeps the best fronts, and of the last one that fits only in part the least crowded.
    fn survive(&mut self) {
        let fronts = sort_fronts(&mut self.population.scores);
        let mut chosen = Vec::with_capacity(self.options.population);
        for mut front in fronts {
            let room = self.options.population - chosen.len();
            if front.len() > room {
                // Shuffled first, so that equals stay or go at random.
                front.shuffle(self.rng);
                let crowding = |index: usize| self.population.scores[index].crowding;
                front.sort_by(|&a, &b| crowding(b).total_cmp(&crowding(a)));
                front.truncate(room);
            }
            chosen.extend(front);
        }
        self.population = self.population.select(&chosen);
        self.seen = self.population.scores.iter().map(|score| score.hash).collect();
    }
}

/// Whether `a` is at least as good as `b` on both objectives and better on one.
fn dominates(a: &Score, b: &Score) -> bool {
    a.utility >= b.utility
        && a.efficiency >= b.efficiency
        && (a.utility > b.utility || a.efficiency > b.efficiency)
}

/// Splits scores into fronts of which none dominates another, best first, and notes rank and crowding.
///
/// With two objectives one sort is enough: behind it, a score is dominated by a front exactly if the last of
/// that front so far dominates it.
fn sort_fronts(scores: &mut [Score]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| {
        let (a, b) = (&scores[a], &scores[b]);
        b.utility.total_cmp(&a.utility).then(b.efficiency.total_cmp(&a.efficiency))
    });
    let mut fronts: Vec<Vec<usize>> = Vec::new();
    for index in order {
        let dominated =
            |front: &Vec<usize>| front.last().is_some_and(|&last| dominates(&scores[last], &scores[index]));
        let rank = fronts.partition_point(dominated);
        scores[index].rank = rank;
        if rank == fronts.len() {
            fronts.push(Vec::new());
        }
        fronts[rank].push(index);
    }
    for front in &fronts {
        crowd(scores, front);
    }
    fronts
}

/// Crowding distance in a front that is sorted: the sides of the box between a score's neighbours, each as a
/// share of the front's extent. Both ends are infinitely far from others, so they survive.
fn crowd(scores: &mut [Score], front: &[usize]) {
    let (Some(&first), Some(&last)) = (front.first(), front.last()) else { return };
    let side = |scores: &[Score], a: usize, b: usize, of: fn(&Score) -> f64| {
        let extent = (of(&scores[first]) - of(&scores[last])).abs();
        let side = (of(&scores[a]) - of(&scores[b])).abs() / extent;
        if side.is_finite() { side } else { 0.0 }
    };
    for around in front.windows(3) {
        let (before, after) = (around[0], around[2]);
        scores[around[1]].crowding = side(scores, before, after, |score| score.utility)
            + side(scores, before, after, |score| score.efficiency);
    }
    scores[first].crowding = f64::INFINITY;
    scores[last].crowding = f64::INFINITY;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;

    use super::{
        super::super::{
            instance::Instance,
            placement::tests::{problem, trial},
        },
        *,
    };

    fn scores(values: &[(f64, f64)]) -> Vec<Score> {
        values
            .iter()
            .map(|&(utility, efficiency)| Score { utility, efficiency, ..Score::default() })
            .collect()
    }

    #[test]
    fn fronts_of_a_hand_made_set() {
        let mut scores =
            scores(&[(1.0, 5.0), (3.0, 3.0), (5.0, 1.0), (3.0, 2.0), (1.0, 1.0), (3.0, 3.0), (0.0, 5.0)]);
        let mut fronts = sort_fronts(&mut scores);
        for front in &mut fronts {
            front.sort_unstable();
        }
        assert_eq!(fronts, [vec![0, 1, 2, 5], vec![3, 6], vec![4]]);
        let ranks: Vec<_> = scores.iter().map(|score| score.rank).collect();
        assert_eq!(ranks, [0, 0, 0, 1, 2, 0, 1]);
    }

    #[test]
    fn crowding_is_the_box_between_neighbours() {
        let mut scores = scores(&[(4.0, 0.0), (3.0, 1.0), (1.0, 2.0), (0.0, 4.0)]);
        sort_fronts(&mut scores);
        let crowding: Vec<_> = scores.iter().map(|score| score.crowding).collect();
        assert!(crowding[0].is_infinite() && crowding[3].is_infinite());
        assert!((crowding[1] - (0.75 + 0.5)).abs() < 1e-12);
        assert!((crowding[2] - (0.75 + 0.75)).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn fronts_agree_with_the_definition(values in prop::collection::vec((0_u8..6, 0_u8..6), 1..40)) {
            let values: Vec<_> = values.iter().map(|&(a, b)| (f64::from(a), f64::from(b))).collect();
            let mut scores = scores(&values);
            sort_fronts(&mut scores);
            for score in &scores {
                let above: Vec<_> = scores.iter().filter(|other| dominates(other, score)).collect();
                // The rank is one more than the worst rank among those that dominate it.
                let expected = above.iter().map(|other| other.rank + 1).max().unwrap_or(0);
                prop_assert_eq!(score.rank, expected);
            }
        }
    }

    #[test]
    fn the_best_never_dies_and_populations_hold_no_duplicates() {
        let question = problem("3x2xt4", (0..4).map(|id| trial(id, 1)).collect());
        let space = Space::new(&Instance::new(&question).unwrap());
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let options = PolluxOptions { population: 6, generations: 1 };
        let mut search = Search::new(&space, options, &mut rng);
        search.seed(&space.current);
        search.survive();
        let mut best = f64::NEG_INFINITY;
        for _ in 0..30 {
            assert!(search.breed());
            search.survive();
            let scores = &search.population.scores;
            let now = scores.iter().map(|score| score.utility).fold(f64::NEG_INFINITY, f64::max);
            assert!(now >= best && scores.len() <= 6);
            best = now;
            assert_eq!(search.seen.len(), scores.len());
        }
    }

    #[test]
    fn a_search_ends_early_where_everything_was_tried() {
        let question = problem("1x2xt4", vec![trial(0, 1)]);
        let space = Space::new(&Instance::new(&question).unwrap());
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let mut search = Search::new(&space, PolluxOptions::default(), &mut rng);
        search.seed(&space.current);
        assert_eq!(search.run().best(), [2]);
    }
}
