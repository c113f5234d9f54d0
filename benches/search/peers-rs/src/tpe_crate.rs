//! `tpe`: one optimizer for each parameter, after ten random trials, as its documentation advises.

use pollux_tune::space::{Dim, Dims, Point};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tpe::TpeOptimizer;

use crate::{problems::Problem, study::Optimizer};

const RANDOM_TRIALS: u32 = 10;

pub(crate) struct TpeCrate {
    dims: Dims,
    optimizers: Vec<TpeOptimizer>,
    rng: ChaCha8Rng,
    told: u32,
}

impl TpeCrate {
    pub(crate) fn new(problem: &Problem, seed: u64) -> Self {
        let optimizer = |dim: Dim| {
            let (estimator, end) = match dim {
                Dim::Continuous => (tpe::parzen_estimator(), 1.0),
                Dim::Discrete { count } => (tpe::parzen_estimator(), count as f64),
                Dim::Categorical { count } => (tpe::histogram_estimator(), count as f64),
            };
            TpeOptimizer::new(estimator, tpe::range(0.0, end).expect("it is not empty"))
        };
        let optimizers = problem.dims.iter().map(optimizer).collect();
        Self { dims: problem.dims.clone(), optimizers, rng: ChaCha8Rng::seed_from_u64(seed), told: 0 }
    }
}

impl Optimizer for TpeCrate {
    fn ask(&mut self, _: u32) -> Point {
        let Self { dims, optimizers, rng, told } = self;
        dims.build(|at, dim| {
            if *told < RANDOM_TRIALS {
                return dim.at(rng.random());
            }
            let value = optimizers[at].ask(rng).expect("there are trials");
            if dim == Dim::Continuous { value } else { value.floor() }
        })
    }

    fn tell(&mut self, _: u32, point: &Point, value: f64) {
        self.told += 1;
        for ((optimizer, x), dim) in self.optimizers.iter_mut().zip(point.iter()).zip(self.dims.iter()) {
            // Cells are told at their middle, choices as they are, and 1 is not inside the range.
            let x = match (x, dim) {
                (None, _) => f64::NAN,
                (Some(x), Dim::Discrete { .. }) => x + 0.5,
                (Some(x), Dim::Categorical { .. }) => *x,
                (Some(x), Dim::Continuous) => x.min(1.0_f64.next_down()),
            };
            optimizer.tell(x, value).expect("it is inside the range");
        }
    }

    fn insert(&mut self, number: u32, point: &Point, value: f64) {
        self.tell(number, point, value);
    }
}
