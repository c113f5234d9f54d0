//! From settings to suggesters and stopping rules.

use super::{
    super::stopping::{self, Stopper},
    Error,
};
use crate::{
    space::{Algorithm, Dims, Study},
    tpe::{Auto, Gp, Grid, Halton, Random, Suggester, Tpe},
};

/// Of a continuous parameter of a grid.
const LEVELS_MAX: u32 = 64;

pub(super) fn suggester(study: &Study, dims: &Dims) -> Result<Box<dyn Suggester>, Error> {
    let (search, objectives, dims) = (&study.search, study.objectives.len(), dims.clone());
    Ok(match search.algorithm {
        Algorithm::Auto if objectives == 1 => Box::new(Auto::new(dims, search.parallel.or_default())),
        Algorithm::Tpe | Algorithm::Auto => Box::new(Tpe::with_objectives(dims, objectives)?),
        Algorithm::Gp => Box::new(Gp::new(dims)),
        Algorithm::Random => Box::new(Random::with_objectives(dims, objectives)?),
        Algorithm::Halton => Box::new(Halton::with_objectives(dims, search.seed, objectives)?),
        Algorithm::Grid => Box::new(grid(&dims, search.trials, objectives)?),
    })
}

pub(super) fn stopper(study: &Study) -> Result<Box<dyn Stopper>, Error> {
    let direction = study.objectives[0].direction;
    Ok(stopping::stopper(&study.search.early_stopping, study.trial.epochs, direction)?)
}

/// The finest grid that the study's trials can finish, with at least two levels for each continuous parameter.
fn grid(dims: &Dims, trials: u32, objectives: usize) -> Result<Grid, Error> {
    let with_levels = |levels| Grid::with_objectives(dims.clone(), levels, objectives);
    let mut grid = with_levels(2)?;
    if dims.iter().any(|dim| dim.cells().is_none()) {
        for levels in 3..=LEVELS_MAX {
            match with_levels(levels) {
                Ok(finer) if finer.total() <= u64::from(trials) => grid = finer,
                _ => break,
            }
        }
    }
    Ok(grid)
}
