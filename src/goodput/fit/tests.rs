use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};

use super::{
    kernel::{Costs, Point, VARIABLES},
    *,
};
use crate::goodput::{ComputeCost, Shape, SyncCost};

fn truth() -> ThroughputParams {
    let compute = ComputeCost { alpha_s: 0.05, beta_s: 0.002 };
    let sync = [SyncCost { alpha_s: 0.04, beta_s: 0.006 }, SyncCost { alpha_s: 0.25, beta_s: 0.012 }];
    ThroughputParams::new(compute, sync, 2.2).unwrap()
}

/// Every mix of these shapes, batches and accumulation steps, seen ten times each with this relative noise.
fn observed(truth: &ThroughputParams, shapes: &[(u32, u32)], batches: &[u32], noise: f64) -> Observations {
    let mut seen = Observations::default();
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let normal = Normal::new(0.0, noise).unwrap();
    for &(gpus, nodes) in shapes {
        let shape = Shape::new(gpus, nodes).unwrap();
        for &batch in batches {
            for accumulation in 0..2 {
                for _ in 0..10 {
                    let time = truth.iter_time_s(shape, f64::from(batch), accumulation);
                    seen.record(shape, batch, accumulation, time * normal.sample(&mut rng).exp()).unwrap();
                }
            }
        }
    }
    seen
}

const SHAPES: [(u32, u32); 7] = [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (8, 2), (16, 4)];
const BATCHES: [u32; 5] = [8, 32, 64, 128, 256];

fn relative_errors(found: &ThroughputParams, truth: &ThroughputParams) -> Vec<f64> {
    let numbers = |params: &ThroughputParams| {
        let ComputeCost { alpha_s, beta_s } = params.compute();
        let mut numbers = vec![alpha_s, beta_s];
        numbers
            .extend(Tier::ALL.iter().flat_map(|&tier| [params.sync(tier).alpha_s, params.sync(tier).beta_s]));
        numbers.push(params.gamma());
        numbers
    };
    numbers(found).iter().zip(numbers(truth)).map(|(found, truth)| (found / truth - 1.0).abs()).collect()
}

#[test]
fn recovers_known_parameters_within_one_percent() {
    let found = fit(&observed(&truth(), &SHAPES, &BATCHES, 0.0), None, None).unwrap();
    for (variable, error) in relative_errors(&found.params, &truth()).into_iter().enumerate() {
        assert!(error < 0.01, "variable {variable}: {error}");
    }
    assert!(found.rmsle < 1e-4);
}

#[test]
fn noise_moves_predictions_less_than_itself() {
    let found = fit(&observed(&truth(), &SHAPES, &BATCHES, 0.1), None, None).unwrap();
    for (gpus, nodes) in SHAPES {
        let shape = Shape::new(gpus, nodes).unwrap();
        let ratio = found.params.iter_time_s(shape, 100.0, 0) / truth().iter_time_s(shape, 100.0, 0);
        assert!((ratio - 1.0).abs() < 0.05, "{gpus} GPUs on {nodes} nodes: {ratio}");
    }
}

#[test]
fn what_was_not_explored_scales_perfectly() {
    let alone = fit(&observed(&truth(), &[(1, 1)], &BATCHES, 0.0), None, None).unwrap().params;
    let eight = Shape::new(8, 2).unwrap();
    assert!(alone.sync_time_s(eight) < 1e-12, "{alone:?}");
    assert!((alone.compute().alpha_s / 0.05 - 1.0).abs() < 0.01);

    let pair = fit(&observed(&truth(), &[(1, 1), (2, 1)], &BATCHES, 0.0), None, None).unwrap().params;
    let local = pair.sync(Tier::Local);
    assert!(local.alpha_s > 0.02 && local.beta_s < 1e-12, "{local:?}");
    // Other nodes are believed to be a tenth more expensive than the own one.
    assert!((pair.sync(Tier::Node).alpha_s / local.alpha_s - 1.1).abs() < 1e-9);
}

/// Step times of 4, 8 and 16 GPUs on one node and on several.
fn assert_nodes_are_dearer(params: &ThroughputParams) {
    for gpus in [2, 4, 8, 16] {
        let time = |nodes| params.iter_time_s(Shape::new(gpus, nodes).unwrap(), 64.0, 0);
        assert!(time(2) >= time(1), "{gpus} GPUs: {} on two nodes, {} on one", time(2), time(1));
    }
}

#[test]
fn unknown_nodes_never_look_cheaper_than_one_node() {
    // Two GPUs on two nodes tell nothing of more of them.
    let pairs = observed(&truth(), &[(1, 1), (2, 1), (8, 1), (2, 2)], &BATCHES, 0.0);
    assert_nodes_are_dearer(&fit(&pairs, None, None).unwrap().params);
    // What a prior does not know, a trial without steps of its own must not believe to be free.
    let near = fit(&observed(&truth(), &[(1, 1), (2, 1), (4, 1)], &BATCHES, 0.0), None, None).unwrap().params;
    let nothing = SyncCost { alpha_s: 0.0, beta_s: 0.0 };
    let near =
        ThroughputParams::new(near.compute(), [near.sync(Tier::Local), nothing], near.gamma()).unwrap();
    let prior = ThroughputPrior::new(&near, 0.1).unwrap();
    assert_nodes_are_dearer(&prior.params().unwrap());
    let one = observed(&truth(), &[(1, 1)], &[64], 0.0);
    assert_nodes_are_dearer(&fit(&one, Some(&prior), None).unwrap().params);
}

#[test]
fn one_batch_size_is_half_fixed_half_proportional_cost() {
    let mut seen = Observations::default();
    seen.record(Shape::single(), 128, 0, 0.4).unwrap();
    let params = fit(&seen, None, None).unwrap().params;
    assert!((params.compute().alpha_s - 0.2).abs() < 1e-3, "{params:?}");
    assert!((params.compute().beta_s * 128.0 - 0.2).abs() < 1e-3, "{params:?}");
}

#[test]
fn a_warm_start_that_lost_a_cost_finds_it_again() {
    let compute = ComputeCost { alpha_s: 0.05, beta_s: 0.002 };
    let nothing = SyncCost { alpha_s: 0.0, beta_s: 0.0 };
    let lost = ThroughputParams::new(compute, [nothing; 2], 1.0).unwrap();
    let found = fit(&observed(&truth(), &SHAPES, &BATCHES, 0.0), None, Some(&lost)).unwrap();
    assert!(found.rmsle < 1e-3, "{found:?}");
}

#[test]
fn a_prior_fills_in_what_was_not_seen_and_gives_way_to_what_was() {
    let prior = ThroughputPrior::new(&truth(), 0.1).unwrap();
    let half = {
        let double = |cost: SyncCost| SyncCost { alpha_s: 2.0 * cost.alpha_s, beta_s: 2.0 * cost.beta_s };
        let sync = Tier::ALL.map(|tier| double(truth().sync(tier)));
        ThroughputParams::new(ComputeCost { alpha_s: 0.1, beta_s: 0.004 }, sync, 2.2).unwrap()
    };
    let shape = Shape::new(8, 2).unwrap();
    let ratio = |found: &Fit| found.params.iter_time_s(shape, 64.0, 0) / half.iter_time_s(shape, 64.0, 0);
    // Only one GPU seen, and it takes twice as long as the prior says: the network is still believed.
    let few = fit(&observed(&half, &[(1, 1)], &[64], 0.0), Some(&prior), None).unwrap();
    assert!(ratio(&few) > 0.4 && ratio(&few) < 0.95, "{}", ratio(&few));
    // Everything seen: the prior hardly counts.
    let all = fit(&observed(&half, &SHAPES, &BATCHES, 0.0), Some(&prior), None).unwrap();
    assert!((ratio(&all) - 1.0).abs() < 0.03, "{}", ratio(&all));
}

#[test]
fn without_observations_there_is_no_fit() {
    assert_eq!(fit(&Observations::default(), None, None), Err(Error::NoObservations));
    assert!(ThroughputPrior::new(&truth(), f64::NAN).is_err());
}

proptest! {
    #[test]
    fn the_gradient_is_that_of_the_logarithm_of_the_time(
        point in prop::array::uniform7(-4.0..1.0f64),
        (gpus, nodes, per_gpu, accumulation) in (1..20u32, 1..3u32, 1..300u32, 0..4u32),
    ) {
        let seen = Observation {
            shape: Shape::new(gpus, nodes.min(gpus)).unwrap(),
            per_gpu: f64::from(per_gpu),
            accumulation,
            iter_time_s: 1.0,
            steps: 1.0,
        };
        let (value, gradient) = Costs::new(&point).log_time(&seen);
        let direct = to_params(&point).unwrap().iter_time_s(seen.shape, seen.per_gpu, accumulation);
        prop_assert!((value - direct.ln()).abs() < 1e-9);
        for variable in 0..VARIABLES {
            let moved = |by: f64| -> f64 {
                let mut other: Point = point;
                other[variable] += by;
                Costs::new(&other).log_time(&seen).0
            };
            let difference = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            prop_assert!((difference - gradient[variable]).abs() < 1e-6, "{variable}: {difference} {}", gradient[variable]);
        }
    }

    #[test]
    fn any_positive_times_give_a_finite_model(
        steps in prop::collection::vec((1..40u32, 1..5u32, 1..5000u32, 0..5u32, 1e-6..1e6f64), 1..30),
    ) {
        let mut seen = Observations::default();
        for (gpus, nodes, per_gpu, accumulation, time) in steps {
            seen.record(Shape::new(gpus, nodes.min(gpus)).unwrap(), per_gpu, accumulation, time).unwrap();
        }
        let found = fit(&seen, None, None).unwrap();
        prop_assert!(found.rmsle.is_finite());
        prop_assert!(found.params.iter_time_s(Shape::new(64, 8).unwrap(), 32.0, 1).is_finite());
    }
}
