//! A study with simulated workers.

use pollux_tune::{
    space::Dims,
    tpe::{Gp, Halton, Outcome, Random, Suggester, Tpe, TrialId},
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use crate::functions::Function;

pub(crate) type Make = fn(Dims, u64) -> Box<dyn Suggester>;

/// Our suggesters.
pub(crate) const OURS: [(&str, Make); 4] = [
    ("pollux-tune", |dims, _| Box::new(Tpe::new(dims))),
    ("our gp", |dims, _| Box::new(Gp::new(dims))),
    ("our halton", |dims, seed| Box::new(Halton::new(dims, seed))),
    ("our random", |dims, _| Box::new(Random::new(dims))),
];

/// The regret after each number of trials in `marks`, the last of which is the largest.
///
/// As many trials as there are workers are asked for, then a random one of them ends. With noise, it is the regret
/// of the true value at the point with the best observation.
pub(crate) fn regrets(
    function: &Function,
    make: Make,
    seed: u64,
    workers: usize,
    marks: &[usize],
) -> Vec<f64> {
    let seed = 10_000 + seed;
    let mut suggester = make(function.dims.clone(), seed);
    let mut world = ChaCha8Rng::seed_from_u64(seed);
    let (mut running, mut next) = (Vec::new(), 0);
    let (mut best, mut found) = (f64::INFINITY, f64::INFINITY);
    let mut at_marks = Vec::new();
    for ended in 1..=*marks.last().expect("there is a mark") {
        while running.len() < workers {
            let rng = &mut ChaCha8Rng::seed_from_u64(seed << 32 | u64::from(next));
            let point = suggester.ask(TrialId(next), rng).expect("there is a point");
            running.push((TrialId(next), function.regret(&point)));
            next += 1;
        }
        let (id, truth) = running.swap_remove(world.random_range(0..running.len()));
        let noise: f64 = StandardNormal.sample(&mut world);
        let value = truth + function.noise * noise;
        suggester.tell(id, Outcome::Done(vec![value])).expect("it is running");
        if value < best {
            (best, found) = (value, truth);
        }
        if marks.contains(&ended) {
            at_marks.push(found);
        }
    }
    at_marks
}
