//! From settings to suggesters and stopping rules.

use super::{
    super::stopping::{self, Stopper},
    Error,
};
use crate::{
    space::{Algorithm, Dims, EarlyStopping, SearchSettings, StoppingRule, Study},
    tpe::{Auto, Gp, Grid, Halton, Random, Suggester, Tpe, TpeOptions},
};

/// Of a continuous parameter of a grid.
const LEVELS_MAX: u32 = 64;
/// With fewer random trials there is nothing for `tpe` to learn from.
const STARTUP_MIN: usize = 4;
/// `gp` has up to 20 elsewhere; with less than this it was no better on measured curves.
const STARTUP_GP: usize = 10;

pub(super) fn suggester(study: &Study, dims: &Dims) -> Result<Box<dyn Suggester>, Error> {
    let (search, objectives, dims) = (&study.search, study.objectives.len(), dims.clone());
    Ok(match search.algorithm {
        Algorithm::Auto if objectives == 1 => {
            Box::new(Auto::new(dims, search.parallel.or_default()).with_startup(gp_startup(search)))
        }
        Algorithm::Tpe | Algorithm::Auto => {
            let startup = startup(search);
            Box::new(Tpe::with_options(dims, TpeOptions { startup, objectives, ..TpeOptions::default() })?)
        }
        Algorithm::Gp => Box::new(Gp::new(dims).with_startup(gp_startup(search))),
        Algorithm::Random => Box::new(Random::with_objectives(dims, objectives)?),
        Algorithm::Halton => Box::new(Halton::with_objectives(dims, search.seed, objectives)?),
        Algorithm::Grid => Box::new(grid(&dims, search.trials, objectives)?),
    })
}

/// How many trials are random before `tpe` has learned enough. Studies that stop trials early are short of GPU time: of those with few
/// trials, at most a quarter is random.
fn startup(search: &SearchSettings) -> usize {
    let usual = TpeOptions::default().startup;
    match search.early_stopping.rule {
        StoppingRule::Never => usual,
        _ => (search.trials as usize / 4).clamp(STARTUP_MIN, usual),
    }
}

/// At most so many for `gp`.
const fn gp_startup(search: &SearchSettings) -> usize {
    match search.early_stopping.rule {
        StoppingRule::Never => usize::MAX,
        _ => STARTUP_GP,
    }
}

/// With the study's settings, but for the rule.
pub(super) fn stopper(study: &Study, rule: StoppingRule) -> Result<Box<dyn Stopper>, Error> {
    let direction = study.objectives.first().ok_or(Error::NoObjective)?.direction;
    let settings = EarlyStopping { rule, ..study.search.early_stopping.clone() };
    Ok(stopping::stopper(&settings, study.trial.epochs, direction)?)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_studies_that_stop_trials_have_few_random_ones() {
        let startup_of = |rule: &str, trials: u32| {
            let yaml = format!(
                "{{space: {{x: {{float: [0, 1]}}}}, objective: {{minimize: loss}}, \
                 search: {{trials: {trials}, early_stopping: {{rule: {rule}}}}}}}"
            );
            startup(&Study::from_yaml("study.yaml", &yaml).expect("it is well-formed").search)
        };
        assert_eq!([1, 20, 30, 40, 1000].map(|trials| startup_of("asha", trials)), [4, 5, 7, 10, 10]);
        assert_eq!([1, 20, 40].map(|trials| startup_of("none", trials)), [10, 10, 10]);
    }

    #[test]
    fn with_early_stopping_the_eleventh_trial_is_not_random() {
        use rand::SeedableRng;
        let suggested = |algorithm: &str, rule: &str| {
            let yaml = format!(
                "{{space: {{x: {{float: [0, 1]}}}}, objective: {{minimize: loss}}, \
                 search: {{trials: 40, algorithm: {algorithm}, early_stopping: {{rule: {rule}}}}}}}"
            );
            let study = Study::from_yaml("study.yaml", &yaml).expect("it is well-formed");
            let mut suggester =
                suggester(&study, &study.space.to_dims().expect("it is a space")).expect("it can be made");
            let ask = |suggester: &mut dyn Suggester, id| {
                let rng = &mut rand_chacha::ChaCha8Rng::seed_from_u64(u64::from(id));
                suggester.ask(crate::ids::TrialId(id), rng).expect("there are more points")
            };
            for id in 0..10 {
                let point = ask(&mut *suggester, id);
                let value = point[0].expect("it is active");
                let outcome = crate::tpe::Outcome::Done(vec![(value - 0.3).powi(2)]);
                suggester.tell(crate::ids::TrialId(id), outcome).expect("it is running");
            }
            ask(&mut *suggester, 10)
        };
        for algorithm in ["auto", "gp"] {
            let point = suggested(algorithm, "asha")[0].expect("it is active");
            assert!((point - 0.3).abs() < 0.1, "{algorithm}: {point}");
            assert_ne!(suggested(algorithm, "none")[0], Some(point), "it is random");
        }
    }
}
