//! `optimizer`: its TPE of single parameters and its multivariate one.
//!
//! It tells parameters apart by nothing but their ranges, so that each number gets a range of its own here. Choices
//! of the same number of values stay mixed up.

use std::collections::BTreeMap;

use optimizer::{
    Direction, Study, Trial,
    param::ParamValue,
    parameter::{CategoricalParam, FloatParam, IntParam, Parameter},
    sampler::tpe::{ConstantLiarStrategy, MultivariateTpeSampler, TpeSampler},
};
use pollux_tune::space::{Dim, Dims, Point};

use crate::{problems::Problem, study::Optimizer};

pub(crate) struct OptimizerCrate {
    dims: Dims,
    params: Vec<Param>,
    study: Study<f64>,
    running: BTreeMap<u32, Trial>,
}

enum Param {
    /// Its range ends at a number close to 1.
    Float(FloatParam, f64),
    /// Its range begins at a number of its own.
    Int(IntParam, i64),
    Choice(CategoricalParam<u32>),
}

impl OptimizerCrate {
    pub(crate) fn independent(problem: &Problem, seed: u64) -> Self {
        let sampler = TpeSampler::builder().seed(seed).build().expect("it is the default");
        Self::new(problem, Study::with_sampler(Direction::Minimize, sampler))
    }

    /// With several workers, running trials count as bad ones.
    pub(crate) fn multivariate(problem: &Problem, seed: u64, workers: usize) -> Self {
        let liar = if workers > 1 { ConstantLiarStrategy::Worst } else { ConstantLiarStrategy::None };
        let sampler = MultivariateTpeSampler::builder().seed(seed).constant_liar(liar).build();
        Self::new(problem, Study::with_sampler(Direction::Minimize, sampler.expect("it is the default")))
    }

    fn new(problem: &Problem, study: Study<f64>) -> Self {
        let param = |(at, dim): (usize, Dim)| match dim {
            Dim::Continuous => {
                let end = 1.0 + 1e-9 * at as f64;
                Param::Float(FloatParam::new(0.0, end).name(at.to_string()), end)
            }
            Dim::Discrete { count } => {
                let begin = 10_000 * at as i64;
                Param::Int(IntParam::new(begin, begin + count as i64 - 1).name(at.to_string()), begin)
            }
            Dim::Categorical { count } => {
                Param::Choice(CategoricalParam::new((0..count as u32).collect()).name(at.to_string()))
            }
        };
        let params = problem.dims.iter().enumerate().map(param).collect();
        Self { dims: problem.dims.clone(), params, study, running: BTreeMap::new() }
    }
}

fn suggest(param: &Param, trial: &mut Trial) -> f64 {
    match param {
        Param::Float(param, end) => param.suggest(trial).map(|x| (x / end).min(1.0)),
        Param::Int(param, begin) => param.suggest(trial).map(|x| (x - begin) as f64),
        Param::Choice(param) => param.suggest(trial).map(f64::from),
    }
    .expect("it is a valid range")
}

impl Optimizer for OptimizerCrate {
    fn ask(&mut self, number: u32) -> Point {
        let mut trial = self.study.ask();
        let point = self.dims.build(|at, _| suggest(&self.params[at], &mut trial));
        self.running.insert(number, trial);
        point
    }

    fn tell(&mut self, number: u32, _: &Point, value: f64) {
        let trial = self.running.remove(&number).expect("it was asked for");
        self.study.tell(trial, Ok::<_, &str>(value));
    }

    fn insert(&mut self, number: u32, point: &Point, value: f64) {
        let at = |param: &Param, x: f64| match param {
            Param::Float(param, end) => (param.id(), ParamValue::Float(x * end)),
            Param::Int(param, begin) => (param.id(), ParamValue::Int(begin + x as i64)),
            Param::Choice(param) => (param.id(), ParamValue::Categorical(x as usize)),
        };
        let values = self.params.iter().zip(point.iter()).filter_map(|(param, x)| Some(at(param, (*x)?)));
        self.study.enqueue(values.collect());
        self.ask(number);
        self.tell(number, point, value);
    }
}
