//! Predictions for a GPU type that a trial has not used, against measured step times of six models on three
//! types.
//!
//! Each model is predicted with a catalogue that was calibrated on the other five.

#![expect(clippy::unwrap_used, reason = "a failed test may panic")]
#![expect(clippy::print_stderr, reason = "the table is for the reader")]

use std::{collections::BTreeMap, fmt::Write};

use pollux_tune::{
    goodput::{Observation, Observations, Profile, ThroughputParams, Tier, TypeCatalog, bootstrap, fit},
    ids::GpuType,
};

use crate::measured::{MODELS, measured};

const GPUS: [&str; 3] = ["t4", "a100", "rtx2080ti"];

/// All that is known of one model on one GPU type.
struct Truth {
    seen: Observations,
    params: ThroughputParams,
    /// Steps on one GPU.
    single: Observations,
    /// Examples per second of the largest batch on one GPU, as Sia's simulator takes it.
    peak: f64,
}

fn gpu(name: &str) -> GpuType {
    GpuType::new(name).unwrap()
}

fn load(model: &str, gpu: &str) -> Truth {
    let (mut seen, mut single) = (Observations::default(), Observations::default());
    let (mut largest, mut longest_s) = (0, 0.0_f64);
    for row in measured(model, gpu) {
        seen.record(row.shape, row.per_gpu, 0, row.step_s).unwrap();
        if row.shape.gpus() == 1 {
            single.record(row.shape, row.per_gpu, 0, row.step_s).unwrap();
            (largest, longest_s) = (largest.max(row.per_gpu), longest_s.max(row.step_s));
        }
    }
    let params = fit(&seen, None, None).unwrap().params;
    Truth { seen, params, single, peak: f64::from(largest) / longest_s }
}

fn truths() -> BTreeMap<(&'static str, &'static str), Truth> {
    let pairs = MODELS.into_iter().flat_map(|model| GPUS.map(|gpu| (model, gpu)));
    pairs.map(|(model, gpu)| ((model, gpu), load(model, gpu))).collect()
}

fn profiles(truths: &BTreeMap<(&str, &str), Truth>, without: &str) -> Vec<Profile> {
    truths
        .iter()
        .filter(|((model, _), _)| *model != without)
        .map(|((model, name), truth)| Profile {
            model: (*model).to_owned(),
            gpu: gpu(name),
            seen: truth.seen.clone(),
        })
        .collect()
}

/// Mean over 1, 2, 4, 8 and 16 GPUs of the mean |ln(predicted / fitted)| over the batches measured there.
fn error(truth: &Truth, predict: impl Fn(&Observation) -> f64) -> f64 {
    let mut by_gpus = Vec::new();
    for gpus in [1, 2, 4, 8, 16] {
        let errors: Vec<f64> = truth
            .seen
            .iter()
            .filter(|seen| seen.shape.gpus() == gpus)
            .map(|seen| (predict(&seen) / truth.params.iter_time_s(seen.shape, seen.per_gpu, 0)).ln().abs())
            .collect();
        if !errors.is_empty() {
            by_gpus.push(errors.iter().sum::<f64>() / errors.len() as f64);
        }
    }
    by_gpus.iter().sum::<f64>() / by_gpus.len() as f64
}

const WAYS: [&str; 5] = [
    "theta copied unchanged",
    "(a) one throughput ratio",
    "(b) own compute, network copied",
    "(c) catalogue, no run on the target",
    "(d) catalogue and own 1-GPU profile",
];

/// Errors of each of the [`WAYS`] for one model from one type to another.
fn errors(catalog: &TypeCatalog, from: (&str, &Truth), to: (&str, &Truth)) -> [f64; 5] {
    let ((from_name, source), (to_name, target)) = (from, to);
    let of = |params: ThroughputParams| {
        error(target, |seen| params.iter_time_s(seen.shape, seen.per_gpu, seen.accumulation))
    };
    let ratio = source.peak / target.peak;
    let scaled = error(target, |seen| ratio * source.params.iter_time_s(seen.shape, seen.per_gpu, 0));
    let own = fit(&target.single, None, None).unwrap().params;
    let sync = Tier::ALL.map(|tier| source.params.sync(tier));
    let split = ThroughputParams::new(own.compute(), sync, source.params.gamma()).unwrap();
    let prior = bootstrap(catalog, &source.params, &gpu(from_name), &gpu(to_name)).unwrap();
    let fitted = fit(&target.single, Some(&prior), None).unwrap().params;
    [of(source.params), scaled, of(split), of(prior.params().unwrap()), of(fitted)]
}

#[test]
fn bootstrapping_beats_copying_for_models_it_was_not_calibrated_on() {
    let truths = truths();
    let without = |model| TypeCatalog::calibrate(&gpu("t4"), &profiles(&truths, model)).unwrap();
    let catalogs: BTreeMap<&str, TypeCatalog> = MODELS.map(|model| (model, without(model))).into();
    let mut mean = [0.0; WAYS.len()];
    let mut table = vec![String::new(); WAYS.len()];
    let mut head = String::new();
    for from in GPUS {
        for to in GPUS.into_iter().filter(|to| *to != from) {
            let mut pair = [0.0; WAYS.len()];
            for model in MODELS {
                let errors =
                    errors(&catalogs[model], (from, &truths[&(model, from)]), (to, &truths[&(model, to)]));
                for (sum, error) in pair.iter_mut().zip(errors) {
                    *sum += error / MODELS.len() as f64;
                }
            }
            write!(head, " {:>19}", format!("{from}>{to}")).unwrap();
            for way in 0..WAYS.len() {
                write!(table[way], " {:19.3}", pair[way]).unwrap();
                mean[way] += pair[way] / 6.0;
            }
        }
    }
    eprintln!("mean |ln(predicted / fitted)| of step times\n{:36}{head} {:>19}", "", "mean");
    for way in 0..WAYS.len() {
        eprintln!("{:36}{} {:19.3}", WAYS[way], table[way], mean[way]);
    }
    let [copied, _, split, catalogue, profiled] = mean;
    assert!(profiled < 0.8 * split, "{profiled} {split}");
    assert!(catalogue < 0.7 * copied, "{catalogue} {copied}");
}

#[test]
fn the_builtin_catalogue_is_what_the_profiles_say() {
    let measured = TypeCatalog::calibrate(&gpu("t4"), &profiles(&truths(), "")).unwrap();
    let builtin = TypeCatalog::builtin();
    for name in ["t4", "a100", "rtx2080ti"] {
        let costs = |catalog: &TypeCatalog| catalog.ratio(&gpu("t4"), &gpu(name)).costs().map(Option::unwrap);
        let (measured, builtin) = (costs(&measured), costs(&builtin));
        for (measured, builtin) in measured.into_iter().zip(builtin) {
            // Three digits are written down.
            assert!((measured.factor / builtin.factor - 1.0).abs() < 0.01, "{name} {measured:?} {builtin:?}");
            assert!((measured.sd - builtin.sd).abs() < 0.01, "{name} {measured:?} {builtin:?}");
        }
    }
}
