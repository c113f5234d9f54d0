use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};

use super::*;
use crate::goodput::NoiseScale;

const DIM: usize = 40;
const EXAMPLES: f64 = 8.0;

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs().max(1.0)
}

/// A true gradient and the standard deviation of one example, by coordinate.
struct Noisy {
    mean: Vec<f64>,
    sd: Vec<f64>,
    second_moments: Vec<f64>,
    p: Preconditioner,
}

impl Noisy {
    fn new(p: Preconditioner) -> Self {
        let at = |f: fn(f64) -> f64| (0..DIM).map(|i| f(i as f64)).collect::<Vec<_>>();
        Self {
            mean: at(|i| 0.3 * (i * 0.7).sin()),
            sd: at(|i| 0.2 + 0.05 * i),
            second_moments: at(|i| 0.01 + 0.02 * i),
            p,
        }
    }

    fn norm(&self, gradient: &[f64]) -> f64 {
        self.p.squared_norm(gradient, Some(&self.second_moments)).unwrap()
    }

    /// The true `|Pg|^2` and `tr(P Sigma P^T)`.
    fn truth(&self) -> GradientStats {
        GradientStats { sqr: self.norm(&self.mean), var: self.norm(&self.sd) }
    }

    /// The mean gradient of `EXAMPLES` examples.
    fn draw(&self, rng: &mut ChaCha8Rng) -> Vec<f64> {
        let coordinate = |(&mean, &sd)| Normal::new(mean, sd / EXAMPLES.sqrt()).unwrap().sample(rng);
        self.mean.iter().zip(&self.sd).map(coordinate).collect()
    }

    fn independent(&self, count: u32, rng: &mut ChaCha8Rng) -> GradientStats {
        let draws: Vec<_> = (0..count).map(|_| self.draw(rng)).collect();
        let n = f64::from(count);
        let mean: Vec<f64> = (0..DIM).map(|i| draws.iter().map(|g| g[i]).sum::<f64>() / n).collect();
        let mean_sqr = draws.iter().map(|g| self.norm(g)).sum::<f64>() / n;
        GradientNorms { count, examples: EXAMPLES, mean_sqr, sqr_of_mean: self.norm(&mean) }.stats().unwrap()
    }

    fn consecutive(&self, rng: &mut ChaCha8Rng) -> GradientStats {
        let (previous, current) = (self.draw(rng), self.draw(rng));
        let difference: Vec<f64> = current.iter().zip(&previous).map(|(a, b)| a - b).collect();
        let norms = ConsecutiveNorms {
            batch: EXAMPLES,
            previous_sqr: self.norm(&previous),
            current_sqr: self.norm(&current),
            difference_sqr: self.norm(&difference),
        };
        norms.stats().unwrap()
    }
}

/// The mean of the values is `truth` within four standard errors, and these are small.
fn assert_unbiased(values: &[f64], truth: f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let var = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let error = (var / n).sqrt();
    assert!(error < 0.04 * truth, "{error} is too large to tell anything about {truth}");
    assert!((mean - truth).abs() < 4.0 * error, "{mean} is not {truth} +- {error}");
}

#[test]
fn both_estimators_recover_signal_and_noise() {
    let rms = Optimizer::AdamW { beta2: 0.9, eps: 1e-3 }.preconditioner(20).unwrap();
    for (seed, p) in [(1, Preconditioner::Identity), (2, rms)] {
        let noisy = Noisy::new(p);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut check = |mut sample: Box<dyn FnMut(&mut ChaCha8Rng) -> GradientStats>| {
            let stats: Vec<_> = (0..4000).map(|_| sample(&mut rng)).collect();
            let part = |f: fn(&GradientStats) -> f64| stats.iter().map(f).collect::<Vec<_>>();
            assert_unbiased(&part(|s| s.sqr), noisy.truth().sqr);
            assert_unbiased(&part(|s| s.var), noisy.truth().var);
        };
        check(Box::new(|rng| Noisy::new(p).independent(2, rng)));
        check(Box::new(|rng| Noisy::new(p).independent(5, rng)));
        check(Box::new(|rng| Noisy::new(p).consecutive(rng)));
    }
}

#[test]
fn the_average_of_a_run_recovers_the_noise_scale() {
    let noisy = Noisy::new(Preconditioner::Identity);
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut estimator = NoiseEstimator::new(4.0 * EXAMPLES).unwrap();
    for _ in 0..5000 {
        estimator.push_stats(noisy.independent(4, &mut rng), 4.0 * EXAMPLES).unwrap();
    }
    let truth = noisy.truth().var / noisy.truth().sqr;
    let phi = estimator.noise_scale().unwrap().value();
    assert!((phi / truth - 1.0).abs() < 0.05, "{phi} is not {truth}");
}

#[test]
fn independent_gradients_by_hand() {
    // (4, 0), (0, 4) and (2, 2) have the mean (2, 2): 40/3 and 8, three gradients of 6 examples.
    let norms = GradientNorms { count: 3, examples: 6.0, mean_sqr: 40.0 / 3.0, sqr_of_mean: 8.0 };
    let stats = norms.stats().unwrap();
    assert!(near(stats.sqr, (18.0 * 8.0 - 6.0 * 40.0 / 3.0) / 12.0));
    assert!(near(stats.var, (40.0 / 3.0 - 8.0) / (1.0 / 6.0 - 1.0 / 18.0)));
    assert!(near(norms.batch(), 18.0));
}

#[test]
fn consecutive_gradients_are_two_independent_ones_by_polarization() {
    for (previous, current) in
        [([3.0, 1.0], [1.0, 3.0]), ([0.5, -2.0], [1.5, 0.25]), ([1.0, 1.0], [-1.0, 1.0])]
    {
        let norm = |a: [f64; 2]| a[0] * a[0] + a[1] * a[1];
        let combine = |x: f64, y: f64| [x * previous[0] + y * current[0], x * previous[1] + y * current[1]];
        let consecutive = ConsecutiveNorms {
            batch: 10.0,
            previous_sqr: norm(previous),
            current_sqr: norm(current),
            difference_sqr: norm(combine(-1.0, 1.0)),
        };
        let independent = GradientNorms {
            count: 2,
            examples: 10.0,
            mean_sqr: f64::midpoint(norm(previous), norm(current)),
            sqr_of_mean: norm(combine(0.5, 0.5)),
        };
        let (a, b) = (consecutive.stats().unwrap(), independent.stats().unwrap());
        assert!(near(a.sqr, b.sqr) && near(a.var, b.var), "{a:?} {b:?}");
    }
}

#[test]
fn the_noise_scale_copes_with_no_signal_and_no_noise() {
    let phi = |sqr, var| GradientStats { sqr, var }.noise_scale();
    assert!(near(phi(4.0, 100.0).value(), 25.0));
    assert_eq!(phi(0.0, 1.0), NoiseScale::UNRESOLVED);
    assert_eq!(phi(-3.0, 1.0), NoiseScale::UNRESOLVED);
    assert_eq!(phi(1e-300, 1e300), NoiseScale::UNRESOLVED);
    assert_eq!(phi(2.0, -1e-9), NoiseScale::ZERO);
    assert_eq!(phi(0.0, 0.0), NoiseScale::ZERO);
}

#[test]
fn the_first_values_are_not_drawn_towards_zero() {
    let mut estimator = NoiseEstimator::new(10.0).unwrap();
    assert!(estimator.stats().is_none() && estimator.noise_scale().is_none());
    let raw = GradientStats { sqr: 6.0, var: 40.0 };
    estimator.push_stats(raw, 10.0).unwrap();
    assert_eq!(estimator.stats(), Some(raw));
    for _ in 0..50 {
        estimator.push_stats(raw, 70.0).unwrap();
    }
    let stats = estimator.stats().unwrap();
    assert!(near(stats.sqr, 6.0) && near(stats.var, 40.0));
}

#[test]
fn a_weight_too_small_for_a_number_is_still_a_weight() {
    let mut estimator = NoiseEstimator::new(1e300).unwrap();
    let raw = GradientStats { sqr: 6.0, var: 40.0 };
    estimator.push_stats(raw, 1e-30).unwrap();
    assert_eq!(estimator.stats(), Some(raw));
}

#[test]
fn averages_by_hand() {
    let mut estimator = NoiseEstimator::with_smoothing(10.0, 0.5).unwrap();
    estimator.push_stats(GradientStats { sqr: 1.0, var: 10.0 }, 10.0).unwrap();
    estimator.push_stats(GradientStats { sqr: 4.0, var: 40.0 }, 20.0).unwrap();
    // theta is 1/2 and then 1/4: weights 1/2 * 1/4 and 3/4, together 7/8.
    let stats = estimator.stats().unwrap();
    assert!(near(stats.sqr, (0.125 * 1.0 + 0.75 * 4.0) / 0.875));
    assert!(near(stats.var, (0.125 * 10.0 + 0.75 * 40.0) / 0.875));
    assert!(near(estimator.state().weight, 0.875));
    assert!(near(estimator.batch().unwrap(), 10.0 * 2.0_f64.powf(0.75 / 0.875)));
}

#[test]
fn the_window_is_a_number_of_examples() {
    let mut start = NoiseEstimator::new(32.0).unwrap();
    start.push_stats(GradientStats { sqr: 1.0, var: 100.0 }, 32.0).unwrap();
    let (mut once, mut twice) = (start, start);
    let raw = GradientStats { sqr: 5.0, var: 20.0 };
    once.push_stats(raw, 64.0).unwrap();
    twice.push_stats(raw, 32.0).unwrap();
    twice.push_stats(raw, 32.0).unwrap();
    let (a, b) = (once.state(), twice.state());
    assert!(near(a.sqr, b.sqr) && near(a.var, b.var) && near(a.weight, b.weight), "{a:?} {b:?}");
    // The last two thirds of the examples carry about two thirds of the weight.
    assert!((a.sqr - (1.0 + 2.0 * 5.0) / 3.0).abs() < 0.01);
}

#[test]
fn an_estimator_goes_on_from_its_state_exactly() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let noisy = Noisy::new(Preconditioner::Identity);
    let mut original = NoiseEstimator::with_smoothing(16.0, 0.9).unwrap();
    original.push_stats(noisy.consecutive(&mut rng), EXAMPLES).unwrap();
    let mut restored = NoiseEstimator::restore(original.state()).unwrap();
    let next = noisy.independent(3, &mut rng);
    original.push_stats(next, 3.0 * EXAMPLES).unwrap();
    restored.push_stats(next, 3.0 * EXAMPLES).unwrap();
    assert_eq!(original, restored);
    original.reset();
    assert_eq!(original, NoiseEstimator::with_smoothing(16.0, 0.9).unwrap());
}

/// Checkpoints of earlier versions have no batch.
#[test]
fn a_state_without_a_batch_goes_on() {
    let mut estimator = NoiseEstimator::new(16.0).unwrap();
    let raw = GradientStats { sqr: 6.0, var: 40.0 };
    estimator.push_stats(raw, 32.0).unwrap();
    let mut state = serde_json::to_value(estimator.state()).unwrap();
    assert!(state.as_object_mut().unwrap().remove("log_batch").is_some());
    let mut restored = NoiseEstimator::restore(serde_json::from_value(state).unwrap()).unwrap();
    assert_eq!((restored.stats(), restored.batch()), (Some(raw), None));
    restored.push_stats(raw, 64.0).unwrap();
    assert!(near(restored.batch().unwrap(), 64.0));
}

#[test]
fn bad_states_are_refused() {
    let good = NoiseEstimator::new(16.0).unwrap().state();
    let bad = [
        NoiseState { initial_batch: 0.0, ..good },
        NoiseState { smoothing: 1.0, ..good },
        NoiseState { smoothing: f64::NAN, ..good },
        NoiseState { log_batch: Some(f64::INFINITY), ..good },
        NoiseState { weight: 1.5, ..good },
        NoiseState { weight: f64::NAN, ..good },
        NoiseState { sqr: f64::INFINITY, ..good },
        NoiseState { var: f64::NAN, ..good },
    ];
    for state in bad {
        assert!(NoiseEstimator::restore(state).is_err(), "{state:?}");
    }
}

#[test]
fn bad_norms_are_refused_and_change_nothing() {
    let independent = GradientNorms { count: 2, examples: 10.0, mean_sqr: 10.0, sqr_of_mean: 8.0 };
    let consecutive =
        ConsecutiveNorms { batch: 10.0, previous_sqr: 10.0, current_sqr: 10.0, difference_sqr: 8.0 };
    let mut estimator = NoiseEstimator::new(20.0).unwrap();
    estimator.push(independent).unwrap();
    estimator.push(consecutive).unwrap();
    let before = estimator;
    let mut bad: Vec<GradientSample> =
        (0..2).map(|count| GradientNorms { count, ..independent }.into()).collect();
    for x in [f64::NAN, f64::INFINITY, -1.0] {
        bad.push(GradientNorms { examples: x, ..independent }.into());
        bad.push(GradientNorms { mean_sqr: x, ..independent }.into());
        bad.push(GradientNorms { sqr_of_mean: x, ..independent }.into());
        bad.push(ConsecutiveNorms { batch: x, ..consecutive }.into());
        bad.push(ConsecutiveNorms { previous_sqr: x, ..consecutive }.into());
        bad.push(ConsecutiveNorms { current_sqr: x, ..consecutive }.into());
        bad.push(ConsecutiveNorms { difference_sqr: x, ..consecutive }.into());
    }
    // Finite, but not what comes of it.
    bad.push(GradientNorms { mean_sqr: f64::MAX, ..independent }.into());
    for sample in bad {
        assert!(estimator.push(sample).is_err(), "{sample:?}");
        assert_eq!(estimator, before);
    }
}

fn norm() -> impl Strategy<Value = f64> {
    use proptest::num::f64::{NORMAL, POSITIVE, SUBNORMAL, ZERO};
    prop_oneof![0.0..1e3, POSITIVE | NORMAL | SUBNORMAL | ZERO]
}

fn sample() -> impl Strategy<Value = GradientSample> {
    let batch = || prop_oneof![1.0..1e6, f64::MIN_POSITIVE..f64::MAX];
    prop_oneof![
        (2..=u32::MAX, batch(), norm(), norm()).prop_map(|(count, examples, mean_sqr, sqr_of_mean)| {
            GradientNorms { count, examples, mean_sqr, sqr_of_mean }.into()
        }),
        (batch(), norm(), norm(), norm()).prop_map(|(batch, previous_sqr, current_sqr, difference_sqr)| {
            ConsecutiveNorms { batch, previous_sqr, current_sqr, difference_sqr }.into()
        }),
    ]
}

proptest! {
    #[test]
    fn nothing_but_finite_numbers_comes_out(
        samples in proptest::collection::vec(sample(), 1..20),
        smoothing in 0.0..1.0_f64,
    ) {
        let mut estimator = NoiseEstimator::with_smoothing(64.0, smoothing).unwrap();
        for sample in samples {
            let before = estimator;
            let pushed = estimator.push(sample);
            prop_assert!(pushed.is_ok() || estimator == before);
            // The state would be refused if anything in it were out of range.
            prop_assert_eq!(NoiseEstimator::restore(estimator.state()), Ok(estimator));
            prop_assert!(pushed.is_err() || estimator.stats().is_some());
            if let Some(phi) = estimator.noise_scale() {
                prop_assert!((0.0..=NoiseScale::CAP).contains(&phi.value()));
                prop_assert!(phi.gain(64.0, 4096.0).is_finite());
            }
        }
    }
}

#[test]
fn a_step_can_stand_for_several() {
    let norms = |mean_sqr| GradientNorms { count: 2, examples: 10.0, mean_sqr, sqr_of_mean: 8.0 };
    let mut sparse = NoiseEstimator::new(30.0).unwrap();
    sparse.push(norms(20.0)).unwrap();
    let mut dense = sparse;
    for sample in [norms(10.0), norms(30.0)] {
        sparse.push_for(sample, 4).unwrap();
        (0..4).for_each(|_| dense.push(sample).unwrap());
    }
    let (sparse, dense) = (sparse.state(), dense.state());
    assert!(near(sparse.sqr, dense.sqr) && near(sparse.var, dense.var) && near(sparse.weight, dense.weight));
    assert!(near(sparse.log_batch.unwrap(), 20.0_f64.ln()), "several steps are no larger batch");
    let mut nothing = NoiseEstimator::new(30.0).unwrap();
    assert!(nothing.push_for(norms(10.0), 0).is_err(), "no step at all");
}
