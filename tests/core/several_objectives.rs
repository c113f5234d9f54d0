//! With several objectives, learning pays off.

use pollux_tune::{
    ids::TrialId,
    space::{Dim, Dims},
    tpe::{Outcome, Random, Suggester, Tpe, pareto::pareto_front},
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::several::{Problem, problems};

type Make = fn(Dims, usize) -> Box<dyn Suggester>;

fn results(problem: &Problem, make: Make, seed: u64) -> Vec<Vec<f64>> {
    let mut suggester = make(problem.dims.clone(), problem.reference.len());
    let mut results = Vec::new();
    for number in 0..150 {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed << 32 | u64::from(number));
        let point = suggester.ask(TrialId(number), rng).expect("there is a point");
        results.push((problem.values)(&point));
        let outcome = Outcome::Done(results[number as usize].clone());
        suggester.tell(TrialId(number), outcome).expect("it is running");
    }
    results
}

fn median_missing(problem: &Problem, make: Make) -> f64 {
    let mut missing: Vec<f64> = (0..9).map(|seed| problem.missing(&results(problem, make, seed))).collect();
    missing.sort_by(f64::total_cmp);
    missing[missing.len() / 2]
}

#[test]
fn tpe_leaves_less_than_half_of_what_random_search_leaves() {
    for problem in problems() {
        let tpe = median_missing(&problem, |dims, objectives| {
            Box::new(Tpe::with_objectives(dims, objectives).expect("there are some"))
        });
        let random = median_missing(&problem, |dims, objectives| {
            Box::new(Random::with_objectives(dims, objectives).expect("there are some"))
        });
        assert!(0.0 < tpe && tpe < 0.5 * random, "{}: {tpe} is not well below {random}", problem.name);
    }
}

/// A front is found in its breadth, not only at one place.
#[test]
fn tpe_spreads_over_a_front() {
    for seed in 0..9 {
        let mut tpe = Tpe::with_objectives(cube(3), 2).expect("there are two");
        let mut results = Vec::new();
        for number in 0..100 {
            let rng = &mut ChaCha8Rng::seed_from_u64(seed << 32 | u64::from(number));
            let point = tpe.ask(TrialId(number), rng).expect("there is a point");
            let x: Vec<f64> = point.iter().flatten().copied().collect();
            // Optimal wherever the last two are 0.4.
            let far = (x[1] - 0.4).powi(2) + (x[2] - 0.4).powi(2);
            results.push(vec![x[0] + far, 1.0 - x[0] + far]);
            tpe.tell(TrialId(number), Outcome::Done(results[number as usize].clone()))
                .expect("it is running");
        }
        let mut first: Vec<f64> = pareto_front(&results).iter().map(|&at| results[at][0]).collect();
        first.sort_by(f64::total_cmp);
        assert!(first.len() >= 10 && first[0] < 0.1 && first[first.len() - 1] > 0.9, "{first:?}");
    }
}

fn cube(dims: usize) -> Dims {
    Dims::flat(vec![Dim::Continuous; dims]).expect("it is a space")
}
