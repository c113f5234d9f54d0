//! The measured noise scale is that of the gradients of single examples.

use pollux_tune::{
    actors::TrainingEvent,
    goodput::GradientStats,
    space::{Params, Value},
    trials::group::Task,
    worker::{Example, Trainable},
};
use serde_json::json;
use tch::{Device, Kind, Tensor, nn};

use crate::{
    common::{Folder, STEPS, state, task, train_in_passes},
    net::{EXAMPLES, Net},
};

/// With a learning rate of nothing the weights stay where they are, so that every step measures the same.
fn params(adam: bool, whole: bool) -> serde_json::Value {
    json!({"lr": 1e-12, "init": 5, "jitter": 0.0, "hidden": 8, "adam": adam, "whole": whole})
}

/// All gradients of single examples, one in a row.
fn gradients() -> Tensor {
    let store = nn::VarStore::new(Device::Cpu);
    let values =
        [("lr", Value::from(1e-12)), ("init", 5.into()), ("jitter", 0.0.into()), ("hidden", 8.into())];
    let model = Net::new(&store.root(), &Params::from_iter(values)).expect("a model");
    let mut data = model.training_data().expect("data");
    // In the order of the names, as checkpoints have them.
    let mut variables: Vec<(String, Tensor)> = store.variables().into_iter().collect();
    variables.sort_by(|a, b| a.0.cmp(&b.0));
    let rows: Vec<Tensor> = (0..EXAMPLES)
        .map(|index| {
            let batch = data.load(&[Example { index, augment: None }]).expect("an example");
            for (_, variable) in &mut variables {
                variable.zero_grad();
            }
            model.loss(&batch).expect("a loss").backward();
            Tensor::cat(
                &variables.iter().map(|(_, variable)| padded(&variable.grad())).collect::<Vec<_>>(),
                0,
            )
        })
        .collect();
    Tensor::stack(&rows, 0).to_kind(Kind::Double)
}

/// As checkpoints have it: variables begin at multiples of 16.
fn padded(gradient: &Tensor) -> Tensor {
    let flat = gradient.flatten(0, -1);
    let length = flat.size()[0];
    flat.constant_pad_nd([0, (16 - length % 16) % 16])
}

/// What estimators should find: epochs are drawn without replacement, so that two batches are a little less alike than
/// independent ones.
fn expected(weighting: Option<&Tensor>) -> GradientStats {
    let rows = gradients();
    let rows = match weighting {
        Some(weighting) => rows * weighting.to_kind(Kind::Double),
        None => rows,
    };
    let mean = rows.mean_dim(Some([0_i64].as_slice()), false, Kind::Double);
    let number = |tensor: Tensor| tensor.sum(Kind::Double).double_value(&[]);
    let var = number((&rows - &mean).square()) / f64::from(EXAMPLES - 1);
    GradientStats { sqr: number(mean.square()) - var / f64::from(EXAMPLES), var }
}

/// What was measured in some trainings with examples in other orders.
fn measured(
    folder: &Folder,
    (adam, whole): (bool, bool),
    slots: &[u32],
    per_worker: u32,
) -> Vec<GradientStats> {
    let tasks = (0..10).map(|seed| {
        let name = format!("noise-{seed}-{}-{per_worker}-{adam}-{whole}", slots.len());
        Task { seed, ..task(folder, &name, params(adam, whole)) }
    });
    let all = train_in_passes(tasks.collect(), slots, per_worker, |_, _| {});
    let last = |events: &Vec<TrainingEvent>| {
        let noise = |event: &TrainingEvent| match event {
            TrainingEvent::Reported(report) => report.noise,
            _ => None,
        };
        events.iter().rev().find_map(noise).expect("the noise was measured")
    };
    all.iter().map(last).collect()
}

/// The mean is within three standard errors, and these are small enough to say something.
fn assert_agrees(values: impl Iterator<Item = f64> + Clone, expected: f64, what: &str) {
    let count = values.clone().count() as f64;
    let mean = values.clone().sum::<f64>() / count;
    let spread = values.map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let error = (spread / count).sqrt();
    assert!((mean - expected).abs() < 3.0 * error, "{what}: {mean} +- {error} instead of {expected}");
    assert!(error < 0.1 * expected, "{what}: {mean} +- {error} is too vague");
}

#[test]
fn all_estimators_agree_with_the_gradients_of_single_examples() {
    let folder = Folder::new();
    let expected = expected(None);
    for (what, slots, per_worker, whole) in [
        ("two workers", &[0, 1][..], 1000, false),
        ("one worker, halves", &[0], 1000, false),
        ("one worker, steps in a row", &[0], 1000, true),
        ("one worker, four passes", &[0], 6, false),
    ] {
        let found = measured(&folder, (false, whole), slots, per_worker);
        assert_agrees(found.iter().map(|noise| noise.var), expected.var, &format!("variance of {what}"));
        assert_agrees(found.iter().map(|noise| noise.sqr), expected.sqr, &format!("signal of {what}"));
    }
}

/// `AdamW` weighs gradients by its second moments, which settle as the training goes on.
#[test]
fn adamw_measures_what_its_steps_see() {
    let folder = Folder::new();
    for (slots, whole) in [(&[0, 1][..], false), (&[0], false), (&[0], true)] {
        let found = measured(&folder, (true, whole), slots, 1000);
        let ratios = found.into_iter().enumerate().map(|(seed, noise)| {
            let state = state(&folder, &format!("noise-{seed}-{}-1000-true-{whole}", slots.len()));
            let (_, second) = state.iter().find(|(name, _)| name == "moments.1").expect("second moments");
            let correction = 1.0 - 0.999_f64.powi(STEPS as i32);
            let weighting = ((second / correction).sqrt() + 1e-8).reciprocal();
            let expected = expected(Some(&weighting));
            (noise.var / noise.sqr) / (expected.var / expected.sqr)
        });
        let mean = ratios.sum::<f64>() / 10.0;
        // Without the weighting it would be 0.45.
        assert!((mean - 1.0).abs() < 0.15, "off by {mean}");
    }
}
