//! `parzen` with its fast preset: parameters alone, or all that are always active in groups.

use parzen::{
    CategoricalDistribution, Condition, Direction, Distribution, FloatDistribution, IntDistribution,
    ModelStrategy, ParamValue, SearchSpace, Study, TpeSampler, TpeSamplerConfig, TrialInput,
};
use pollux_tune::space::{Dim, Dims, Point};

use crate::{problems::Problem, study::Optimizer};

/// Its limit.
const LARGEST_GROUP: usize = 8;

pub(crate) struct ParzenCrate {
    dims: Dims,
    study: Study,
    /// The trial that it waits for; it knows of no other running ones.
    pending: Option<u32>,
}

impl ParzenCrate {
    pub(crate) fn new(problem: &Problem, seed: u64, grouped: bool) -> Self {
        let mut space = SearchSpace::new();
        let mut ids = Vec::new();
        for (at, dim) in problem.dims.iter().enumerate() {
            ids.push(space.add(at.to_string(), distribution(dim)).expect("the name is new"));
        }
        for at in 0..ids.len() {
            if let Some(parent) = problem.dims.parent(at) {
                let choices = parent.choices.iter().map(|choice| *choice as u32).collect();
                let condition = Condition::CategoricalIn { parent: ids[parent.dim], choices };
                space.add_condition(ids[at], condition).expect("the parent is a choice");
            }
        }
        let mut config = TpeSamplerConfig::performance(seed);
        if grouped {
            let always: Vec<usize> = (0..ids.len()).filter(|at| problem.dims.parent(*at).is_none()).collect();
            let groups = always.len().div_ceil(LARGEST_GROUP);
            for group in always.chunks(always.len().div_ceil(groups)) {
                space.add_group(group.iter().map(|at| ids[*at])).expect("it is small enough");
            }
            config = config.model(ModelStrategy::Grouped { max_group_size: LARGEST_GROUP });
        }
        let sampler = TpeSampler::new(config).expect("it is a preset");
        let study = Study::new(Direction::Minimize, sampler, space).expect("the space is not empty");
        Self { dims: problem.dims.clone(), study, pending: None }
    }
}

fn distribution(dim: Dim) -> Distribution {
    match dim {
        Dim::Continuous => Distribution::Float(FloatDistribution::linear(0.0, 1.0).expect("it is a range")),
        Dim::Discrete { count } => {
            Distribution::Int(IntDistribution::linear(0, count as i64 - 1).expect("it is a range"))
        }
        Dim::Categorical { count } => {
            Distribution::Categorical(CategoricalDistribution::new(count as u32).expect("there are choices"))
        }
    }
}

impl Optimizer for ParzenCrate {
    fn ask(&mut self, number: u32) -> Point {
        self.study.abort_trial();
        self.pending = Some(number);
        let study = &mut self.study;
        self.dims.build(|at, dim| {
            let name = at.to_string();
            match dim {
                Dim::Continuous => study.suggest_float(&name),
                Dim::Discrete { .. } => study.suggest_int(&name).map(|x| x as f64),
                Dim::Categorical { .. } => study.suggest_categorical(&name).map(f64::from),
            }
            .expect("it is active")
        })
    }

    fn tell(&mut self, number: u32, point: &Point, value: f64) {
        if self.pending.take() == Some(number) {
            self.study.complete_trial(value).expect("it is complete");
        } else {
            self.insert(number, point, value);
        }
    }

    fn insert(&mut self, _: u32, point: &Point, value: f64) {
        self.study.abort_trial();
        let param = |(at, (x, dim)): (usize, (&Option<f64>, Dim))| {
            let value = match dim {
                Dim::Continuous => ParamValue::Float((*x)?),
                Dim::Discrete { .. } => ParamValue::Int((*x)? as i64),
                Dim::Categorical { .. } => ParamValue::Categorical((*x)? as u32),
            };
            Some((at.to_string(), value))
        };
        let params = point.iter().zip(self.dims.iter()).enumerate().filter_map(param).collect();
        self.study.add_trial(TrialInput { params, value }).expect("it is complete");
    }
}
