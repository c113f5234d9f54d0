use std::collections::BTreeMap;

use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};

use super::*;
use crate::{
    goodput::{
        ComputeCost, Error, NoiseScale, Observations, Shape, SyncCost, ThroughputParams, Tier, TypeCatalog,
        fit,
    },
    ids::{GpuType, TrialId},
};

fn t4() -> GpuType {
    GpuType::new("t4").unwrap()
}

/// A network whose layers cost width^2, in compute as in gradients to exchange.
fn truth(width: f64, slowness: f64) -> ThroughputParams {
    let size = slowness * (width / 256.0).powi(2);
    ThroughputParams::new(
        ComputeCost { alpha_s: 0.02 * slowness, beta_s: 0.002 * size },
        [
            SyncCost { alpha_s: 0.03 * size, beta_s: 0.003 * size },
            SyncCost { alpha_s: 0.12 * size, beta_s: 0.006 * size },
        ],
        1.8,
    )
    .unwrap()
}

fn shape(gpus: u32) -> Shape {
    Shape::new(gpus, gpus.div_ceil(4)).unwrap()
}

/// Steps with 3 % noise at some sizes.
fn observe(params: &ThroughputParams, sizes: &[(u32, u32)], seed: u64) -> Observations {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let noise = Normal::new(0.0_f64, 0.03).unwrap();
    let mut seen = Observations::default();
    for &(gpus, batch) in sizes {
        for _ in 0..10 {
            let time = params.iter_time_s(shape(gpus), f64::from(batch), 0) * noise.sample(&mut rng).exp();
            seen.record(shape(gpus), batch, 0, time).unwrap();
        }
    }
    seen
}

fn on_t4(seen: Observations) -> BTreeMap<GpuType, Observations> {
    BTreeMap::from([(t4(), seen)])
}

const WIDTHS: [f64; 8] = [128.0, 192.0, 256.0, 320.0, 384.0, 448.0, 512.0, 160.0];
/// Which sizes each of the eight trials has used: none has seen all.
const SIZES: [&[(u32, u32)]; 8] = [
    &[(1, 32), (2, 32), (4, 64)],
    &[(1, 64), (4, 32), (8, 32)],
    &[(2, 64), (8, 64)],
    &[(1, 128), (2, 32)],
    &[(4, 128), (16, 32)],
    &[(1, 32), (3, 64), (12, 64)],
    &[(1, 64), (2, 128)],
    &[(8, 32), (16, 128), (1, 32)],
];

/// ln(width), and a learning rate that has nothing to do with speed.
fn features(width: f64, trial: u64) -> Features {
    let learning_rate = -3.0 - ((trial * 7) % 5) as f64;
    Features::new(vec![width.ln(), learning_rate]).unwrap()
}

fn study(sharing: Sharing) -> StudyKnowledge {
    let mut knowledge = StudyKnowledge::new(2, sharing);
    for (trial, (width, sizes)) in WIDTHS.iter().zip(SIZES).enumerate() {
        let seen = observe(&truth(*width, 1.0), sizes, trial as u64);
        knowledge.record(TrialId(trial as u32), features(*width, trial as u64), on_t4(seen)).unwrap();
    }
    knowledge.refit().unwrap();
    knowledge
}

fn log_error(params: &ThroughputParams, truth: &ThroughputParams, gpus: u32, batch: f64) -> f64 {
    (params.iter_time_s(shape(gpus), batch, 0) / truth.iter_time_s(shape(gpus), batch, 0)).ln().abs()
}

#[test]
fn the_prior_predicts_an_unseen_width_within_5_percent() {
    let knowledge = study(Sharing::On);
    let mut worst: f64 = 0.0;
    for width in [140.0, 224.0, 350.0, 480.0] {
        for learning_rate in 0..5 {
            let prior = knowledge.prior(&features(width, learning_rate), &t4()).unwrap().unwrap();
            for gpus in [1, 4, 8, 16] {
                for batch in [32.0, 64.0, 128.0] {
                    let error = log_error(&prior.params().unwrap(), &truth(width, 1.0), gpus, batch);
                    worst = worst.max(error);
                }
            }
        }
    }
    assert!(worst < 0.05, "{worst}");
}

#[test]
fn features_that_do_not_matter_for_speed_shrink_away() {
    let (mut sum, mut count) = (0.0, 0.0);
    for seed in 0..5 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let noise = Normal::new(0.0_f64, 1.0).unwrap();
        let mut with_noise = |width: f64| {
            let irrelevant = (0..4).map(|_| noise.sample(&mut rng));
            Features::new(std::iter::once(width.ln()).chain(irrelevant).collect()).unwrap()
        };
        let mut knowledge = StudyKnowledge::new(5, Sharing::On);
        for (trial, (width, sizes)) in WIDTHS.iter().zip(SIZES).enumerate() {
            let seen = observe(&truth(*width, 1.0), sizes, 100 * seed + trial as u64);
            knowledge.record(TrialId(trial as u32), with_noise(*width), on_t4(seen)).unwrap();
        }
        knowledge.refit().unwrap();
        for (width, gpus) in [(140.0, 8), (224.0, 4), (350.0, 1), (350.0, 16), (480.0, 4)] {
            let prior = knowledge.prior(&with_noise(width), &t4()).unwrap().unwrap();
            sum += log_error(&prior.params().unwrap(), &truth(width, 1.0), gpus, 64.0);
            count += 1.0;
        }
    }
    let error = sum / count;
    assert!(error < 0.03, "{error}");
}

#[test]
fn one_own_configuration_goes_much_farther_with_the_study() {
    let width = 300.0;
    let seen = observe(&truth(width, 1.0), &[(1, 64)], 99);
    let error_at_8 = |sharing| {
        let mut knowledge = study(sharing);
        knowledge.record(TrialId(8), features(width, 8), on_t4(seen.clone())).unwrap();
        let fitted = knowledge.fit(TrialId(8), &t4(), None).unwrap();
        log_error(&fitted.params, &truth(width, 1.0), 8, 64.0)
    };
    let (with, without) = (error_at_8(Sharing::On), error_at_8(Sharing::Off));
    assert!(with < 0.2 * without, "{with} {without}");
}

#[test]
fn a_deviating_trial_moves_to_its_own_data() {
    let width = 300.0;
    let slow = truth(width, 2.0);
    let all = [(1, 64), (4, 64), (8, 64), (1, 32), (2, 128), (16, 64)];
    let mut errors = Vec::new();
    for count in 0..=all.len() {
        let mut knowledge = study(Sharing::On);
        knowledge.record(TrialId(8), features(width, 8), on_t4(observe(&slow, &all[..count], 5))).unwrap();
        let fitted = knowledge.fit(TrialId(8), &t4(), None).unwrap();
        let at = |gpus| log_error(&fitted.params, &slow, gpus, 64.0);
        errors.push((at(1) + at(4) + at(8) + at(16)) / 4.0);
        // The others still know better: one slow trial must not spoil the prior.
        knowledge.refit().unwrap();
        let prior = knowledge.prior(&features(width, 1), &t4()).unwrap().unwrap();
        let other = log_error(&prior.params().unwrap(), &truth(width, 1.0), 8, 64.0);
        assert!(other < 0.12, "{other}");
    }
    assert!(errors[0] > 0.6, "{errors:?}");
    assert!(errors[3] < 0.1, "{errors:?}");
    assert!(errors[all.len()] < 0.05, "{errors:?}");
}

#[test]
fn without_sharing_it_is_the_plain_fit() {
    let mut knowledge = study(Sharing::Off);
    let seen = observe(&truth(256.0, 1.0), SIZES[0], 3);
    knowledge.record(TrialId(3), features(256.0, 3), on_t4(seen.clone())).unwrap();
    knowledge.refit().unwrap();
    assert_eq!(knowledge.prior(&features(256.0, 3), &t4()).unwrap(), None);
    assert_eq!(knowledge.fit(TrialId(3), &t4(), None).unwrap(), fit(&seen, None, None).unwrap());
    assert_eq!(knowledge.exploration_cap(TrialId(3), Some(&t4())), 8);
    assert_eq!(knowledge.exploration_cap(TrialId(77), None), 1);
    knowledge.record_noise(TrialId(0), 1.0, 64.0, NoiseScale::new(100.0).unwrap()).unwrap();
    assert_eq!(knowledge.noise_prior(1.0, Some(TrialId(3))), None);
    assert_eq!(knowledge.noise_prior(1.0, None), None);
    assert!((knowledge.noise_prior(1.0, Some(TrialId(0))).unwrap().at(64.0).value() - 100.0).abs() < 1e-9);
}

#[test]
fn what_no_trial_has_used_is_still_believed_to_scale() {
    let mut knowledge = StudyKnowledge::new(2, Sharing::On);
    for (trial, width) in WIDTHS.iter().enumerate() {
        let seen = observe(&truth(*width, 1.0), &[(1, 32), (1, 64), (2, 32)], trial as u64);
        knowledge.record(TrialId(trial as u32), features(*width, trial as u64), on_t4(seen)).unwrap();
    }
    knowledge.refit().unwrap();
    let prior = knowledge.prior(&features(300.0, 1), &t4()).unwrap().unwrap();
    let params = prior.params().unwrap();
    let local = params.sync(Tier::Local);
    assert!(local.alpha_s > 0.0);
    assert_eq!(local.beta_s.to_bits(), 0.0_f64.to_bits());
    // Other nodes are only assumed to be a tenth more expensive than the own one.
    assert_eq!(params.sync(Tier::Node), SyncCost { alpha_s: 1.1 * local.alpha_s, beta_s: 0.0 });
    assert_eq!(knowledge.exploration_cap(TrialId(9), Some(&t4())), 4);
    assert_eq!(knowledge.exploration_cap(TrialId(9), None), 4);
    assert_eq!(knowledge.exploration_cap(TrialId(9), Some(&GpuType::new("a100").unwrap())), 1);
    assert_eq!(knowledge.prior(&features(300.0, 1), &GpuType::new("a100").unwrap()).unwrap(), None);
}

#[test]
fn few_or_distant_trials_make_a_weak_prior() {
    let sd = |knowledge: &StudyKnowledge, width: f64| {
        let prior = knowledge.prior(&features(width, 0), &t4()).unwrap().unwrap();
        prior.precision()[1].recip().sqrt()
    };
    let full = study(Sharing::On);
    let mut few = StudyKnowledge::new(2, Sharing::On);
    for trial in 0..2 {
        let seen = observe(&truth(WIDTHS[trial], 1.0), SIZES[trial], trial as u64);
        few.record(TrialId(trial as u32), features(WIDTHS[trial], trial as u64), on_t4(seen)).unwrap();
    }
    few.refit().unwrap();
    let (near, far, weak) = (sd(&full, 256.0), sd(&full, 4096.0), sd(&few, 256.0));
    assert!(near < 0.2 && far > 2.0 * near && weak > 1.5 * near, "{near} {far} {weak}");
}

#[test]
fn records_are_replaced_and_their_order_does_not_matter() {
    let knowledge = study(Sharing::On);
    let mut other = StudyKnowledge::new(2, Sharing::On);
    for trial in (0..8).rev() {
        let spoiled = observe(&truth(900.0, 3.0), SIZES[trial], 1);
        other.record(TrialId(trial as u32), features(100.0, 1), on_t4(spoiled)).unwrap();
        let seen = observe(&truth(WIDTHS[trial], 1.0), SIZES[trial], trial as u64);
        other.record(TrialId(trial as u32), features(WIDTHS[trial], trial as u64), on_t4(seen)).unwrap();
    }
    other.refit().unwrap();
    let prior = |knowledge: &StudyKnowledge| knowledge.prior(&features(222.0, 2), &t4()).unwrap();
    assert_eq!(prior(&knowledge), prior(&other));
    // A type that is gone is forgotten.
    for trial in 0..8 {
        other.record(TrialId(trial), features(128.0, 1), BTreeMap::new()).unwrap();
    }
    other.refit().unwrap();
    assert_eq!(prior(&other), None);
}

#[test]
fn what_the_study_knows_of_two_types_replaces_the_catalogue() {
    // A GPU that computes 5 times as fast, on a network that is 3 times as fast.
    let on_a100 = |width: f64, slowness: f64| {
        let slow = truth(width, slowness);
        let compute = ComputeCost { alpha_s: slow.compute().alpha_s, beta_s: slow.compute().beta_s / 5.0 };
        let sync = Tier::ALL.map(|tier| SyncCost {
            alpha_s: slow.sync(tier).alpha_s / 3.0,
            beta_s: slow.sync(tier).beta_s / 3.0,
        });
        ThroughputParams::new(compute, sync, slow.gamma()).unwrap()
    };
    let (a100, catalog, width) = (GpuType::new("a100").unwrap(), TypeCatalog::builtin(), 300.0);
    let mut knowledge = study(Sharing::On);
    for trial in 0..8 {
        let seen = observe(&on_a100(WIDTHS[trial], 1.0), SIZES[(trial + 3) % 8], 50 + trial as u64);
        let seen = BTreeMap::from([(a100.clone(), seen)]);
        knowledge.record(TrialId(20 + trial as u32), features(WIDTHS[trial], trial as u64), seen).unwrap();
    }
    // Slower than its features say, which only its steps on a T4 can tell.
    let own = observe(&truth(width, 1.5), &[(1, 32), (1, 128), (4, 64), (8, 64)], 7);
    knowledge.record(TrialId(30), features(width, 1), on_t4(own)).unwrap();
    let mean_error = |params: ThroughputParams| {
        let at = |gpus| log_error(&params, &on_a100(width, 1.5), gpus, 64.0);
        (at(1) + at(4) + at(8) + at(16)) / 4.0
    };
    let before = knowledge.bootstrap(&catalog, TrialId(30), &t4(), &a100).unwrap();
    knowledge.refit().unwrap();
    let after = knowledge.bootstrap(&catalog, TrialId(30), &t4(), &a100).unwrap();
    let study = knowledge.prior(&features(width, 1), &a100).unwrap().unwrap();
    let (before, after, study) = (
        mean_error(before.params().unwrap()),
        mean_error(after.params().unwrap()),
        mean_error(study.params().unwrap()),
    );
    assert!(after < 0.1 && after < 0.5 * before && after < 0.5 * study, "{before} {after} {study}");
    assert!(knowledge.bootstrap(&catalog, TrialId(99), &t4(), &a100).is_err());
}

#[test]
fn bad_input_is_refused() {
    assert!(matches!(Features::new(vec![1.0, f64::INFINITY]), Err(Error::OutOfRange { .. })));
    let mut knowledge = StudyKnowledge::new(2, Sharing::On);
    let short = Features::new(vec![1.0]).unwrap();
    let mismatch = Error::LengthMismatch { what: "the features of a trial", len: 1, expected: 2 };
    assert_eq!(knowledge.record(TrialId(0), short.clone(), BTreeMap::new()), Err(mismatch.clone()));
    assert_eq!(knowledge.prior(&short, &t4()), Err(mismatch));
    assert_eq!(knowledge.fit(TrialId(0), &t4(), None), Err(Error::NoObservations));
    for bad in [f64::NAN, -1.0, f64::INFINITY] {
        assert!(matches!(
            knowledge.record_noise(TrialId(0), bad, 64.0, NoiseScale::ZERO),
            Err(Error::OutOfRange { .. })
        ));
    }
    knowledge.refit().unwrap();
}

#[test]
fn the_noise_curve_and_a_trials_offset_are_recovered() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let noise = Normal::new(0.0_f64, 0.2).unwrap();
    let phi = |epoch: f64| 200.0 * (1.0 + epoch);
    let mut knowledge = StudyKnowledge::new(0, Sharing::On);
    for trial in 0..10_u32 {
        // Trials with little noise are stopped early: the curve must not jump there.
        let (factor, last) = if trial < 5 { (0.5, 20) } else { (2.0, 80) };
        for step in 0..=last {
            let epoch = f64::from(step) / 2.0;
            let value = factor * phi(epoch) * noise.sample(&mut rng).exp();
            knowledge.record_noise(TrialId(trial), epoch, 64.0, NoiseScale::new(value).unwrap()).unwrap();
            knowledge.record_noise(TrialId(trial), epoch, 64.0, NoiseScale::UNRESOLVED).unwrap();
        }
    }
    knowledge.refit().unwrap();
    for epoch in [0.0, 1.0, 5.0, 9.0, 11.0, 30.0] {
        let at = |trial| knowledge.noise_prior(epoch, trial).unwrap().at(64.0).value() / phi(epoch);
        let (study, low, high) = (at(None), at(Some(TrialId(0))), at(Some(TrialId(9))));
        assert!((0.75..1.33).contains(&study) && (0.4..0.7).contains(&low) && (1.5..2.5).contains(&high));
    }
    // One look at a new trial is believed by a third.
    knowledge.record_noise(TrialId(50), 1.0, 64.0, NoiseScale::new(8.0 * 400.0).unwrap()).unwrap();
    let ratio = knowledge.noise_prior(5.0, Some(TrialId(50))).unwrap().at(64.0).value()
        / knowledge.noise_prior(5.0, None).unwrap().at(64.0).value();
    assert!((1.6..2.5).contains(&ratio), "{ratio}");
    assert_eq!(knowledge.noise_prior(1000.0, None), None);
}

/// Trials at different batches: phi grows with progress, and with the batch the more the later.
#[test]
fn the_slope_over_the_batch_is_recovered_and_shared() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let noise = Normal::new(0.0_f64, 0.05).unwrap();
    let slope = |epoch: f64| 0.2 + 0.5 * epoch / 40.0;
    let phi = |epoch: f64, batch: f64| 100.0 * (1.0 + epoch) * (batch / 256.0).powf(slope(epoch));
    let mut knowledge = StudyKnowledge::new(0, Sharing::On).with_epochs(40.0);
    let record = |knowledge: &mut StudyKnowledge, trial, batch: f64, factor: f64, last: u32| {
        for step in 0..=last {
            let epoch = f64::from(step) / 2.0;
            let value = factor * phi(epoch, batch);
            knowledge.record_noise(TrialId(trial), epoch, batch, NoiseScale::new(value).unwrap()).unwrap();
        }
    };
    assert_eq!(knowledge.noise_scatter(), None);
    for trial in 0..24 {
        let batch = 128.0 * f64::from(1 << (trial % 4));
        record(&mut knowledge, trial, batch, noise.sample(&mut rng).exp(), 80);
    }
    // A trial with twice the noise that was only at the smallest batch knows what to expect at the largest.
    record(&mut knowledge, 50, 128.0, 2.0, 20);
    knowledge.refit().unwrap();
    for epoch in [2.0, 10.0, 20.0, 35.0] {
        let study = knowledge.noise_prior(epoch, None).unwrap();
        let own = knowledge.noise_prior(epoch, Some(TrialId(50))).unwrap();
        assert!((study.slope() - slope(epoch)).abs() < 0.08, "{epoch}: {} {}", study.slope(), slope(epoch));
        let ratio = own.at(1024.0).value() / phi(epoch, 1024.0);
        assert!((1.7..2.2).contains(&ratio), "{epoch}: {ratio}");
    }
    assert!(knowledge.noise_scatter().unwrap() < 0.1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_was_seen_the_answers_are_numbers(
        trials in prop::collection::vec(
            (
                prop::collection::vec(prop_oneof![-10.0..10.0, Just(0.0), -1e300..1e300], 2),
                prop::collection::vec((0..5_u32, 1..4096_u32, 0..3_u32, -9.0..6.0_f64), 0..6),
            ),
            1..6,
        ),
        at in prop::collection::vec(prop_oneof![-20.0..20.0, -1e308..1e308], 2),
        progress in prop_oneof![0.0..100.0, 0.0..1e300],
        phi in prop_oneof![0.0..1e5, 0.0..f64::MAX],
    ) {
        let mut knowledge = StudyKnowledge::new(2, Sharing::On);
        for (trial, (values, steps)) in trials.iter().enumerate() {
            let mut seen = Observations::default();
            for (log_gpus, batch, accumulation, log_time) in steps {
                seen.record(shape(1 << log_gpus), *batch, *accumulation, log_time.exp()).unwrap();
            }
            knowledge.record(TrialId(trial as u32), Features::new(values.clone()).unwrap(), on_t4(seen)).unwrap();
        }
        knowledge.record_noise(TrialId(0), progress, 64.0, NoiseScale::new(phi).unwrap()).unwrap();
        knowledge.refit().unwrap();
        if let Some(prior) = knowledge.prior(&Features::new(at).unwrap(), &t4()).unwrap() {
            prop_assert!(prior.precision().iter().all(|value| value.is_finite() && *value >= 0.0));
            let time = prior.params().unwrap().iter_time_s(shape(8), 64.0, 1);
            prop_assert!(time.is_finite() && time > 0.0, "{time}");
        }
        if !trials[0].1.is_empty() {
            let time = knowledge.fit(TrialId(0), &t4(), None).unwrap().params.iter_time_s(shape(8), 64.0, 1);
            prop_assert!(time.is_finite() && time > 0.0, "{time}");
        }
        if let Some(phi) = knowledge.noise_prior(progress, Some(TrialId(0))) {
            prop_assert!(phi.at(1.0).value().is_finite() && phi.at(1e9).value().is_finite());
        }
    }
}
