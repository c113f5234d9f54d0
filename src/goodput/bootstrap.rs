//! What a trial can expect of a GPU type that it has not used.
//!
//! Compute terms are scaled by what the types are known to differ in, network terms by the interconnects
//! behind them, each cost on its own: a GPU that computes four times as fast does not synchronize four times
//! as fast, so one ratio of throughputs for all sizes is wrong at most of them. What is known comes from a
//! [`TypeCatalog`], from the trials of the study that ran on both types
//! ([`StudyKnowledge::type_ratio`](super::StudyKnowledge::type_ratio)), and gives way to the trial's own
//! steps as they come.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    ComputeCost, Error, Observations, ThroughputParams, ThroughputPrior, Tier, fit,
    fit::{ALPHA_GRAD, BETA_GRAD, GAMMA, Point, VARIABLES, from_params},
};
use crate::ids::GpuType;

/// Costs of an unknown type are believed to be those of another one, within a factor of about e.
const UNKNOWN_SD: f64 = 1.0;
/// The logit of gamma may differ by 1, which is gamma = 1.5 against 2.2: overlap is a matter of the code.
const GAMMA_SD: f64 = 1.0;
/// How exact the throughput model itself is: 5 %.
const MODEL_SD: f64 = 0.05;
/// Fitted costs that differ by a larger factor (its logarithm) are 0 in one of the fits, which says little.
const FARTHEST: f64 = 3.0;
/// Variables whose ratios scatter alike come in pairs of alpha and beta: compute, then synchronization by
/// tier.
const GROUP: usize = 2;
const GROUPS: usize = GAMMA / GROUP;

/// The costs of one GPU type relative to those of another one, and how sure that is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TypeRatio {
    log_ratio: Point,
    /// 1 / variance; 0 where nothing is known.
    precision: Point,
}

impl TypeRatio {
    /// Two types that are the same as far as is known.
    #[must_use]
    pub fn unknown() -> Self {
        let mut precision = [(UNKNOWN_SD * UNKNOWN_SD).recip(); VARIABLES];
        precision[GAMMA] = (GAMMA_SD * GAMMA_SD).recip();
        Self { log_ratio: [0.0; VARIABLES], precision }
    }

    /// The ratio of compute costs alone, such as from steps of one trial on one GPU of each type. The network
    /// is left open. Costs of 0 tell nothing.
    pub fn compute(from: ComputeCost, to: ComputeCost, sd: f64) -> Result<Self, Error> {
        let sd = Error::check_positive("the standard deviation of a ratio", sd)?;
        let mut ratio = Self { log_ratio: [0.0; VARIABLES], precision: [0.0; VARIABLES] };
        let costs = [(ALPHA_GRAD, from.alpha_s, to.alpha_s), (BETA_GRAD, from.beta_s, to.beta_s)];
        for (variable, from_s, to_s) in costs {
            let log_ratio = (to_s / from_s).ln();
            if log_ratio.is_finite() {
                ratio.log_ratio[variable] = log_ratio;
                ratio.precision[variable] = (sd * sd).recip();
            }
        }
        Ok(ratio)
    }

    /// What the study's models of two types say: `to` over `from`, as sure as both of them.
    pub(super) fn between(from: &ThroughputPrior, to: &ThroughputPrior) -> Self {
        let mut ratio = Self { log_ratio: [0.0; VARIABLES], precision: [0.0; VARIABLES] };
        for variable in 0..VARIABLES {
            if from.knows(variable) && to.knows(variable) {
                let variance = from.precision()[variable].recip() + to.precision()[variable].recip();
                ratio.log_ratio[variable] = to.mean()[variable] - from.mean()[variable];
                ratio.precision[variable] = variance.recip();
            }
        }
        ratio
    }

    /// The factors of alpha and beta of compute, then of synchronization tier by tier; none where nothing is
    /// known.
    #[must_use]
    pub fn costs(&self) -> [Option<CostRatio>; 2 + 2 * Tier::COUNT] {
        std::array::from_fn(|variable| {
            let precision = self.precision[variable];
            let ratio = CostRatio { factor: self.log_ratio[variable].exp(), sd: precision.recip().sqrt() };
            (precision > 0.0).then_some(ratio)
        })
    }

    /// Both pieces of knowledge together, each weighted by how sure it is.
    #[must_use]
    pub fn blend(&self, other: &Self) -> Self {
        let mut both = *self;
        for variable in 0..VARIABLES {
            let (mine, theirs) = (self.precision[variable], other.precision[variable]);
            if theirs > 0.0 {
                let share = theirs / (mine + theirs);
                let step = other.log_ratio[variable] - self.log_ratio[variable];
                both.log_ratio[variable] = share.mul_add(step, self.log_ratio[variable]);
                both.precision[variable] = mine + theirs;
            }
        }
        both
    }

    /// What is known of one type, carried over to the other one. What was unknown stays unknown.
    #[must_use]
    pub fn apply(&self, known: &ThroughputPrior) -> ThroughputPrior {
        let (mut mean, mut precision) = (*known.mean(), [0.0; VARIABLES]);
        for variable in 0..VARIABLES {
            if known.knows(variable) && self.precision[variable] > 0.0 {
                mean[variable] += self.log_ratio[variable];
                let variance = known.precision()[variable].recip() + self.precision[variable].recip();
                precision[variable] = variance.recip();
            }
        }
        ThroughputPrior::from_parts(mean, precision)
    }
}

/// One entry of a [`TypeRatio`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostRatio {
    /// By what a cost is to be multiplied.
    pub factor: f64,
    /// Standard deviation of the logarithm of the factor.
    pub sd: f64,
}

/// Step times of one model on one GPU type, to calibrate a [`TypeCatalog`] with.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// The model that was trained, the same name on every type.
    pub model: String,
    /// Where it was trained.
    pub gpu: GpuType,
    /// How long its steps took.
    pub seen: Observations,
}

/// How the costs of GPU types compare, as a starting point for trials that have used only some of them.
///
/// ```
/// use pollux_tune::{goodput::{ComputeCost, Shape, SyncCost, ThroughputParams, TypeCatalog, bootstrap}, ids::GpuType};
/// let (t4, a100) = (GpuType::new("t4")?, GpuType::new("a100")?);
/// let sync = [SyncCost { alpha_s: 0.05, beta_s: 0.01 }, SyncCost { alpha_s: 0.3, beta_s: 0.01 }];
/// let on_t4 = ThroughputParams::new(ComputeCost { alpha_s: 0.05, beta_s: 0.005 }, sync, 2.0)?;
/// let on_a100 = bootstrap(&TypeCatalog::builtin(), &on_t4, &t4, &a100)?.params()?;
/// // Large batches and many nodes gain, the fixed cost of a pass does not.
/// assert!(on_a100.compute().beta_s < 0.5 * on_t4.compute().beta_s);
/// assert!(on_a100.sync_time_s(Shape::new(8, 2)?) < 0.5 * on_t4.sync_time_s(Shape::new(8, 2)?));
/// assert!(on_a100.compute().alpha_s > on_t4.compute().alpha_s);
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TypeCatalog {
    /// Costs relative to a reference type that all share.
    types: BTreeMap<GpuType, Relative>,
}

/// The costs of a type relative to the reference.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Relative {
    log_ratio: [f64; GAMMA],
    /// How far models scatter around it, by group.
    variance: [f64; GROUPS],
}

/// `(name, costs relative to a T4, standard deviation of their logarithm by group)`, from the measured step
/// times of six models (`data/profiles`); a test computes them again. Costs are alpha and beta of compute,
/// then of each tier.
const BUILTIN: [(&str, [f64; GAMMA], [f64; GROUPS]); 3] = [
    ("t4", [1.0; GAMMA], [0.0; GROUPS]),
    ("a100", [1.295, 0.249, 0.843, 0.193, 0.231, 0.355], [0.948, 0.633, 0.861]),
    ("rtx2080ti", [2.093, 0.387, 1.241, 0.863, 0.539, 0.930], [0.680, 0.514, 0.479]),
];

impl TypeCatalog {
    /// T4, A100 and RTX 2080 Ti, in the nodes and networks of the published measurements.
    #[must_use]
    pub fn builtin() -> Self {
        let entry = |(name, ratios, sds): (&str, [f64; GAMMA], [f64; GROUPS])| {
            let relative = Relative { log_ratio: ratios.map(f64::ln), variance: sds.map(|sd| sd * sd) };
            GpuType::new(name).ok().map(|gpu| (gpu, relative))
        };
        Self { types: BUILTIN.into_iter().filter_map(entry).collect() }
    }

    /// Compares the fitted costs of models that were profiled on the reference type and on others. The median
    /// over the models stands for all; their scatter says how far a new model may be off.
    pub fn calibrate(reference: &GpuType, profiles: &[Profile]) -> Result<Self, Error> {
        let mut fitted: BTreeMap<(&GpuType, &str), Point> = BTreeMap::new();
        for profile in profiles {
            let params = fit(&profile.seen, None, None)?.params;
            fitted.insert((&profile.gpu, &profile.model), from_params(&params));
        }
        let mut types = BTreeMap::from([(reference.clone(), Relative::default())]);
        let others: BTreeSet<&GpuType> =
            fitted.keys().map(|(gpu, _)| *gpu).filter(|gpu| *gpu != reference).collect();
        for gpu in others {
            let pairs = fitted
                .range((gpu, "")..)
                .take_while(|((other, _), _)| *other == gpu)
                .filter_map(|((_, model), to)| Some((fitted.get(&(reference, *model))?, to)));
            types.insert(gpu.clone(), compared(&pairs.collect::<Vec<_>>()));
        }
        Ok(Self { types })
    }

    /// The costs of `to` relative to those of `from`; [`TypeRatio::unknown`] if one of them is not listed.
    #[must_use]
    pub fn ratio(&self, from: &GpuType, to: &GpuType) -> TypeRatio {
        let mut ratio = TypeRatio::unknown();
        if from == to {
            ratio.precision[..GAMMA].fill((MODEL_SD * MODEL_SD).recip());
            return ratio;
        }
        if let (Some(source), Some(target)) = (self.types.get(from), self.types.get(to)) {
            for variable in 0..GAMMA {
                let (source_sqr, target_sqr) =
                    (source.variance[variable / GROUP], target.variance[variable / GROUP]);
                let scatter = source_sqr + target_sqr;
                ratio.log_ratio[variable] = target.log_ratio[variable] - source.log_ratio[variable];
                ratio.precision[variable] = MODEL_SD.mul_add(MODEL_SD, scatter).recip();
            }
        }
        ratio
    }
}

/// What to expect of a trial on type `to`, given its model on type `from`: a prior for [`fit`].
///
/// Costs of 0 on `from` stay unknown on `to`. Overlap is taken over, since it is a matter of the code.
pub fn bootstrap(
    catalog: &TypeCatalog,
    known: &ThroughputParams,
    from: &GpuType,
    to: &GpuType,
) -> Result<ThroughputPrior, Error> {
    Ok(catalog.ratio(from, to).apply(&ThroughputPrior::new(known, MODEL_SD)?))
}

/// A type compared with the reference, given the fits `(reference, type)` of each model.
fn compared(pairs: &[(&Point, &Point)]) -> Relative {
    let mut relative = Relative::default();
    for group in 0..GROUPS {
        let mut deviations = Vec::new();
        for variable in GROUP * group..GROUP * (group + 1) {
            let logs = pairs.iter().map(|(reference, to)| to[variable] - reference[variable]);
            let logs: Vec<f64> =
                logs.filter(|log| log.is_finite()).map(|log| log.clamp(-FARTHEST, FARTHEST)).collect();
            let middle = median(&logs).unwrap_or(0.0);
            relative.log_ratio[variable] = middle;
            deviations.extend(logs.iter().map(|log| (log - middle).abs()));
        }
        // Half of a normal distribution lies within 0.6745 standard deviations. One more model is taken to be
        // unknown.
        let sd = median(&deviations).unwrap_or(0.0) / 0.6745;
        let models = deviations.len() as f64 / GROUP as f64;
        relative.variance[group] = (models * sd).mul_add(sd, UNKNOWN_SD * UNKNOWN_SD) / (models + 1.0);
    }
    relative
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(0.5 * (sorted[(sorted.len() - 1) / 2] + upper))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goodput::{Shape, SyncCost, fit::alpha_sync};

    fn gpu(name: &str) -> GpuType {
        GpuType::new(name).unwrap()
    }

    fn params() -> ThroughputParams {
        let sync = [SyncCost { alpha_s: 0.05, beta_s: 0.01 }, SyncCost { alpha_s: 0.0, beta_s: 0.0 }];
        ThroughputParams::new(ComputeCost { alpha_s: 0.05, beta_s: 0.005 }, sync, 2.0).unwrap()
    }

    #[test]
    fn an_unknown_type_is_like_the_known_one_but_unsure() {
        let prior = bootstrap(&TypeCatalog::builtin(), &params(), &gpu("t4"), &gpu("h100")).unwrap();
        let shape = Shape::new(4, 1).unwrap();
        let ratio =
            prior.params().unwrap().iter_time_s(shape, 32.0, 0) / params().iter_time_s(shape, 32.0, 0);
        assert!((ratio - 1.0).abs() < 1e-9);
        assert!(prior.precision()[BETA_GRAD] < 1.0);
        // What was never seen on the known type is still to be explored.
        assert!(!prior.knows(alpha_sync(Tier::Node)));
    }

    #[test]
    fn a_measured_ratio_takes_over_from_the_catalogue() {
        let known = ThroughputPrior::new(&params(), 0.05).unwrap();
        let catalogue = TypeCatalog::builtin().ratio(&gpu("t4"), &gpu("a100"));
        let to = ComputeCost { alpha_s: 0.1, beta_s: 0.0005 };
        let measured = TypeRatio::compute(params().compute(), to, 0.05).unwrap();
        let expected = catalogue.blend(&measured).apply(&known).params().unwrap();
        assert!((expected.compute().beta_s / to.beta_s).ln().abs() < 0.05);
        assert!((expected.compute().alpha_s / to.alpha_s).ln().abs() < 0.05);
        let network = catalogue.apply(&known).params().unwrap().sync(Tier::Local);
        assert_eq!(expected.sync(Tier::Local), network);
        // Blending is symmetric, and what neither knows stays unknown.
        let swapped = measured.blend(&catalogue).apply(&known).params().unwrap();
        assert!((swapped.compute().beta_s / expected.compute().beta_s - 1.0).abs() < 1e-12);
        assert!(!measured.blend(&measured).apply(&known).knows(GAMMA));
        assert!(TypeRatio::compute(to, to, 0.0).is_err());
    }

    #[test]
    fn there_and_back_again() {
        let catalog = TypeCatalog::builtin();
        for (from, to) in [("t4", "a100"), ("rtx2080ti", "a100"), ("t4", "t4")] {
            let there = bootstrap(&catalog, &params(), &gpu(from), &gpu(to)).unwrap().params().unwrap();
            let back = bootstrap(&catalog, &there, &gpu(to), &gpu(from)).unwrap().params().unwrap();
            assert!((back.compute().beta_s / params().compute().beta_s - 1.0).abs() < 1e-9);
            assert!((back.gamma() - params().gamma()).abs() < 1e-9);
        }
    }

    #[test]
    fn own_steps_replace_the_expectation() {
        let prior = bootstrap(&TypeCatalog::builtin(), &params(), &gpu("t4"), &gpu("a100")).unwrap();
        let mut seen = Observations::default();
        for batch in [16, 64, 256] {
            for _ in 0..20 {
                seen.record(Shape::single(), batch, 0, 0.2 + 0.001 * f64::from(batch)).unwrap();
            }
        }
        let fitted = fit(&seen, Some(&prior), None).unwrap();
        assert!(fitted.rmsle < 0.02, "{}", fitted.rmsle);
        let sync = prior.params().unwrap().sync(Tier::Local);
        assert!((fitted.params.sync(Tier::Local).alpha_s / sync.alpha_s - 1.0).abs() < 1e-6);
    }

    #[test]
    fn calibration_recovers_exact_ratios() {
        let (slow, fast) = (gpu("slow"), gpu("fast"));
        let mut profiles = Vec::new();
        for (model, size) in [("small", 1.0), ("large", 3.0)] {
            for (gpu, speed) in [(&slow, 1.0), (&fast, 4.0)] {
                let mut seen = Observations::default();
                for batch in [16, 64, 256] {
                    let pass_s = 0.02 + size * 0.01 * f64::from(batch) / speed;
                    seen.record(Shape::single(), batch, 0, pass_s).unwrap();
                }
                profiles.push(Profile { model: model.to_owned(), gpu: gpu.clone(), seen });
            }
        }
        let catalog = TypeCatalog::calibrate(&slow, &profiles).unwrap();
        let ratio = catalog.ratio(&slow, &fast);
        assert!((ratio.log_ratio[BETA_GRAD] + 4.0_f64.ln()).abs() < 0.02, "{ratio:?}");
        assert!(ratio.log_ratio[ALPHA_GRAD].abs() < 0.1, "{ratio:?}");
        assert!(TypeCatalog::calibrate(&slow, &[]).is_ok());
    }
}
