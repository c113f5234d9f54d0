//! Online fit of the throughput model to observed step times (Pollux OSDI'21 section 4.1).
//!
//! The paper minimises the RMSLE with L-BFGS-B. argmin, our optimizer, has no bounded gradient solver, so the bounds go
//! into a smooth change of variables (logarithms of the costs, a logit of gamma). What is left is an unconstrained
//! least-squares problem, for which a small Levenberg-Marquardt [`solver`] runs under argmin's executor, with the analytic
//! gradient. Logarithms are also the natural scale for priors: what one trial knows of another is "about 20 % slower",
//! not "0.01 s slower". The mean squared error stands for its root: same minimum, but smooth where the fit is perfect.

mod kernel;
mod objective;
mod solver;
mod start;
#[cfg(test)]
mod tests;

pub(crate) use kernel::{
    ALPHA_GRAD, BETA_GRAD, Costs, GAMMA, Point, VARIABLES, alpha_sync, beta_sync, from_params, to_params,
};
use objective::MODEL_VARIANCE;
pub(crate) use objective::{CoefficientPrior, Group, Layout, Objective, weight};
pub(crate) use solver::{Matrix, damped_step};
pub(crate) use start::{explored, layout, rough};

use super::{Error, Observation, Observations, ThroughputParams, Tier};

/// What is known of a trial's throughput before it has run: a model, and how far off it may be.
#[derive(Debug, Clone, PartialEq)]
pub struct ThroughputPrior {
    mean: Point,
    /// 1 / variance of each variable; 0 where nothing is known.
    precision: Point,
}

impl ThroughputPrior {
    /// Takes every cost of `params` to be right within a factor of about `exp(sd)`. A cost of 0 counts as unknown.
    pub fn new(params: &ThroughputParams, sd: f64) -> Result<Self, Error> {
        // Below that the precision would leave the range of numbers.
        let sd = Error::check_positive("the standard deviation of a prior", sd)?.max(1e-6);
        let mean = from_params(params);
        let precision = mean.map(|value| if value.is_finite() { (sd * sd).recip() } else { 0.0 });
        Ok(Self { mean, precision })
    }

    pub(crate) fn from_parts(mean: Point, precision: Point) -> Self {
        Self { mean, precision }
    }

    /// A fit, as far as its steps or the prior behind it have explored: the rest is a guess that must not
    /// look known.
    pub(crate) fn explored(params: &ThroughputParams, seen: &[Observation], prior: Option<&Self>) -> Self {
        let mean = from_params(params);
        let free = if seen.is_empty() { Vec::new() } else { layout(seen, None).free };
        let mut precision = [0.0; VARIABLES];
        for (variable, precision) in precision.iter_mut().enumerate() {
            // Compute is always explored; half and half of it may be a guess.
            let known = free.contains(&variable) || variable == ALPHA_GRAD && !free.is_empty();
            if mean[variable].is_finite() && (known || prior.is_some_and(|prior| prior.knows(variable))) {
                *precision = MODEL_VARIANCE.recip();
            }
        }
        Self { mean, precision }
    }

    pub(crate) const fn mean(&self) -> &Point {
        &self.mean
    }

    pub(crate) const fn precision(&self) -> &Point {
        &self.precision
    }

    pub(crate) fn knows(&self, variable: usize) -> bool {
        self.precision[variable] > 0.0
    }

    /// The same belief, held with less confidence if steps contradict it: the variance is at least the mean
    /// squared logarithmic error that is seen, with one configuration of doubt in favour of the prior.
    pub(crate) fn loosened(&self, seen: &[Observation]) -> Self {
        let costs = Costs::new(&self.mean);
        let (mut squares, mut total) = (0.0, 1.0);
        for observation in seen.iter().filter(|observation| self.predicts(observation)) {
            let error = costs.log_time(observation).0 - observation.iter_time_s.ln();
            squares += weight(observation.steps) * error * error;
            total += weight(observation.steps);
        }
        let max = (squares / total).recip();
        Self { mean: self.mean, precision: self.precision.map(|precision| precision.min(max)) }
    }

    /// Whether all costs of a configuration are known.
    fn predicts(&self, seen: &Observation) -> bool {
        self.knows(ALPHA_GRAD)
            && self.knows(BETA_GRAD)
            && seen.shape.tier().is_none_or(|tier| {
                self.knows(alpha_sync(tier)) && (seen.shape.gpus() == 2 || self.knows(beta_sync(tier)))
            })
    }

    /// The model that the prior believes in, for a trial without a single step of its own. Costs of which the prior
    /// knows nothing are 0, because unknown resources are believed to scale, but other nodes are a tenth more
    /// expensive than the own one.
    pub fn params(&self) -> Result<ThroughputParams, Error> {
        let mut point = self.mean;
        for (variable, value) in point.iter_mut().enumerate() {
            if !self.knows(variable) {
                *value = if variable == GAMMA { 0.0 } else { f64::NEG_INFINITY };
            }
        }
        distant_at_least_local(&to_params(&point)?, &[], Some(self))
    }
}

/// The outcome of a fit.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Fit {
    /// The fitted model.
    pub params: ThroughputParams,
    /// Root mean squared logarithmic error over the observed configurations: 0.1 is about 10 %.
    pub rmsle: f64,
}

/// A weak pull towards the rough first guess, so that what the data leave open stays where it started: a factor
/// of e^10 costs as much as one configuration that is off by 5 %.
pub(crate) const WEAK_PRECISION: f64 = 0.01;

pub(crate) const ITERATIONS: u64 = 100;

/// Fits the throughput model of one trial on one GPU type.
///
/// `prior` brings what other trials know ([`ThroughputPrior`]); without it, resources that were never used are believed
/// to scale perfectly. `warm_start` is the last fit of the same trial.
///
/// ```
/// use pollux_tune::goodput::{Observations, Shape, fit};
/// let mut seen = Observations::default();
/// for (per_gpu, seconds) in [(32, 0.42), (64, 0.74), (128, 1.38)] {
///     seen.record(Shape::single(), per_gpu, 0, seconds)?;
/// }
/// let fitted = fit(&seen, None, None)?;
/// assert!((fitted.params.compute().alpha_s - 0.1).abs() < 1e-3);
/// assert!((fitted.params.compute().beta_s - 0.01).abs() < 1e-5);
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
pub fn fit(
    observations: &Observations,
    prior: Option<&ThroughputPrior>,
    warm_start: Option<&ThroughputParams>,
) -> Result<Fit, Error> {
    let seen: Vec<Observation> = observations.iter().collect();
    if seen.is_empty() {
        return Err(Error::NoObservations);
    }
    let layout = layout(&seen, prior);
    let fresh = rough(&seen, 1.5);
    let coefficient_prior = coefficient_prior(&layout, &fresh, prior);
    let mut starts = [fresh, rough(&seen, 4.0)];
    if let Some(params) = warm_start {
        starts[1] = revived(&from_params(params), &fresh);
    } else if let Some(prior) = prior {
        starts[1] = revived(&prior.mean, &fresh);
    }
    let groups = [Group { design: vec![1.0], between: 0.0, seen }];
    let best = starts
        .iter()
        .filter_map(|start| {
            let start = layout.free.iter().map(|&variable| start[variable]).collect();
            Objective { groups: &groups, layout: &layout, prior: &coefficient_prior }
                .minimise(start, ITERATIONS)
        })
        .min_by(|a, b| a.1.total_cmp(&b.1));
    let (coefficients, _) = best.ok_or(Error::FitFailed)?;
    let params = to_params(&layout.point(&[1.0], &coefficients))?;
    let params = distant_at_least_local(&params, &groups[0].seen, prior)?;
    Ok(Fit { params, rmsle: rmsle(&params, &groups[0].seen) })
}

/// Root mean squared logarithmic error of a model, each configuration counting once.
#[must_use]
pub fn rmsle(params: &ThroughputParams, seen: &[Observation]) -> f64 {
    let error = |observation: &Observation| {
        let time = params.iter_time_s(observation.shape, observation.per_gpu, observation.accumulation);
        (time / observation.iter_time_s).ln().powi(2)
    };
    (seen.iter().map(error).sum::<f64>() / seen.len().max(1) as f64).sqrt()
}

fn coefficient_prior(layout: &Layout, fresh: &Point, prior: Option<&ThroughputPrior>) -> CoefficientPrior {
    let (mut mean, mut precision) = (Vec::new(), Vec::new());
    for &variable in &layout.free {
        let known = prior.filter(|prior| prior.knows(variable));
        mean.push(known.map_or(fresh[variable], |prior| prior.mean[variable]));
        precision.push(known.map_or(WEAK_PRECISION, |prior| prior.precision[variable]));
    }
    CoefficientPrior { mean, precision, alike: Vec::new() }
}

/// A start whose costs have not drifted so far towards 0 that their gradient is gone.
fn revived(start: &Point, fresh: &Point) -> Point {
    let mut point = *start;
    for (value, fresh) in point.iter_mut().zip(fresh) {
        *value = if value.is_finite() { value.clamp(fresh - 5.0, fresh + 5.0) } else { *fresh };
    }
    point
}

/// Without data from a farther tier it costs at least a tenth more than the nearer one (the authors' rule), and so does
/// every further GPU while only two were used: what is unknown must not look cheaper than what is known to be near.
fn distant_at_least_local(
    params: &ThroughputParams,
    seen: &[Observation],
    prior: Option<&ThroughputPrior>,
) -> Result<ThroughputParams, Error> {
    let tiers = explored(seen.iter());
    let known = |variable: usize| prior.is_some_and(|prior| prior.knows(variable));
    let mut sync = Tier::ALL.map(|tier| params.sync(tier));
    for index in 1..Tier::COUNT {
        let (tier, nearer) = (Tier::ALL[index], sync[index - 1]);
        if !tiers[index].used && !known(alpha_sync(tier)) {
            sync[index].alpha_s = 1.1 * nearer.alpha_s;
        }
        if !tiers[index].beyond_pair && !known(beta_sync(tier)) {
            sync[index].beta_s = 1.1 * nearer.beta_s;
        }
    }
    ThroughputParams::new(params.compute(), sync, params.gamma())
}
