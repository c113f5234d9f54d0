//! The policy against every plan there is, on problems small enough to list them.

use proptest::prelude::*;
use rand::SeedableRng;

use super::*;
use crate::{
    alloc::{Allocation, Cluster, Fairness, Node, TrialRequest, instance::Row},
    goodput::{Curve, GoodputTable},
    ids::{GpuType, NodeId, TrialId},
};

/// The best sum of utilities over all plans, by trying each.
fn brute_force(instance: &Instance) -> f64 {
    let mut rows = vec![Row::new(); instance.trials.len()];
    let free: Vec<u32> = instance.nodes.iter().map(|node| node.gpus).collect();
    best_from(instance, 0, &mut rows, &free)
}

fn best_from(instance: &Instance, trial: usize, rows: &mut Vec<Row>, free: &[u32]) -> f64 {
    if trial == rows.len() {
        let shared = |node: usize| {
            rows.iter().filter(|row| row.len() > 1 && row.iter().any(|&(other, _)| other == node)).count() > 1
        };
        let broken = instance.avoid_interference && (0..free.len()).any(shared);
        return if broken { f64::NEG_INFINITY } else { instance.total_utility(rows) };
    }
    let mut best = f64::NEG_INFINITY;
    let mut counts = vec![0; free.len()];
    loop {
        let row: Row = counts.iter().copied().enumerate().filter(|&(_, gpus)| gpus > 0).collect();
        let pools: std::collections::BTreeSet<usize> =
            row.iter().map(|&(node, _)| instance.nodes[node].pool).collect();
        let data = &instance.trials[trial];
        let usable = row.is_empty() || (pools.len() == 1 && instance.speedup(trial, &row) > 0.0);
        if if data.pinned { row == data.current } else { usable } {
            let left: Vec<u32> = free.iter().zip(&counts).map(|(free, used)| free - used).collect();
            rows[trial] = row;
            best = best.max(best_from(instance, trial + 1, rows, &left));
        }
        let Some(node) = (0..free.len()).find(|&node| counts[node] < free[node]) else { return best };
        counts[node] += 1;
        counts[..node].fill(0);
    }
}

#[derive(Debug, Clone)]
struct Draft {
    speeds: (f64, f64),
    serial: f64,
    network: f64,
    limits: (u32, u32),
    /// GPUs it holds, by node, as far as they are free.
    holds: Vec<u32>,
    pinned: bool,
    age_s: f64,
    delay_s: f64,
    weight: f64,
}

fn drafts() -> impl Strategy<Value = Draft> {
    let holds = prop_oneof![Just(vec![0; 3]), prop::collection::vec(0..3u32, 3)];
    let speed = ((0.5..20.0f64, 0.5..20.0f64), 0.0..0.4f64, 0.0..0.5f64);
    let limits = (prop_oneof![4 => Just(1u32), 1 => 2..4u32], prop_oneof![3 => Just(9u32), 1 => 0..3u32]);
    let rest =
        (prop::bool::weighted(0.1), 10.0..2000.0f64, prop_oneof![Just(0.0), 1.0..100.0f64], 0.2..3.0f64);
    (speed, limits, holds, rest).prop_map(|(speed, (min, more), holds, (pinned, age_s, delay_s, weight))| {
        Draft {
            speeds: speed.0,
            serial: speed.1,
            network: speed.2,
            limits: (min, min + more),
            holds,
            pinned,
            age_s,
            delay_s,
            weight,
        }
    })
}

/// Up to three nodes of two types, and up to four trials: at most some hundred thousand plans.
fn small_problems() -> impl Strategy<Value = Problem> {
    let nodes = prop_oneof![
        prop::collection::vec((0..2usize, 1..=4u32), 1..=2),
        prop::collection::vec((0..2usize, 1..=2u32), 3),
        Just(vec![(0, 2), (0, 2), (0, 2)]),
        Just(vec![(0, 4), (0, 4)]),
    ];
    let p = prop_oneof![Just(-1.0), Just(1.0), Just(0.0), -4.0..2.0f64];
    (nodes, prop::collection::vec(drafts(), 1..=4), p, any::<bool>()).prop_map(|(nodes, drafts, p, avoid)| {
        let types = ["t4", "a100"].map(|name| GpuType::new(name).unwrap());
        let mut cluster = Cluster::new();
        for (index, &(kind, gpus)) in nodes.iter().enumerate() {
            cluster
                .add(NodeId(index as u32), Node { gpu_type: types[kind].clone(), gpus, island: 0 })
                .unwrap();
        }
        let mut free: Vec<u32> = nodes.iter().map(|node| node.1).collect();
        let trial = |(index, draft): (usize, Draft)| {
            let curve = |speed: f64| {
                Curve::build(12, 4, |shape| {
                    let gpus = f64::from(shape.gpus());
                    let spread = if shape.nodes() > 1 { 1.0 - draft.network } else { 1.0 };
                    speed * spread * gpus / draft.serial.mul_add(gpus - 1.0, 1.0)
                })
                .unwrap()
            };
            let table = GoodputTable::from([
                (types[0].clone(), curve(draft.speeds.0)),
                (types[1].clone(), curve(draft.speeds.1)),
            ]);
            let home = nodes[index % nodes.len()].0;
            let mut current = Vec::new();
            for (node, &held) in draft.holds.iter().enumerate().take(nodes.len()) {
                if nodes[node].0 == home && free[node] >= held {
                    free[node] -= held;
                    current.push((NodeId(node as u32), held));
                }
            }
            TrialRequest {
                min_gpus: draft.limits.0,
                max_gpus: draft.limits.1,
                current: current.into_iter().collect::<Allocation>(),
                pinned: draft.pinned,
                age_s: draft.age_s,
                realloc_delay_s: draft.delay_s,
                weight: draft.weight,
                ..TrialRequest::new(TrialId(index as u32), table)
            }
        };
        let trials = drafts.into_iter().enumerate().map(trial).collect();
        let fairness = Fairness::new(p).unwrap();
        Problem { fairness, avoid_interference: avoid, ..Problem::new(cluster, trials) }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn no_plan_is_better_than_the_answer(problem in small_problems()) {
        let instance = Instance::new(&problem).unwrap();
        let best = instance.fitness(brute_force(&instance));
        let plan = GoodputPolicy::default().allocate(&problem, &mut ChaCha8Rng::seed_from_u64(0)).unwrap();
        prop_assert!(plan.fitness >= best * (1.0 - 1e-9), "{} below {best}", plan.fitness);
        // Pinned trials may break a rule that the listing keeps.
        prop_assume!(best.is_finite() && best > 0.0);
        prop_assert!(plan.fitness <= best * (1.0 + 1e-9), "{} above {best}", plan.fitness);
        prop_assert_eq!(plan.gap(), Some(0.0), "optimal, but not proven");
    }

    #[test]
    fn without_the_proof_the_bound_still_holds(problem in small_problems()) {
        let instance = Instance::new(&problem).unwrap();
        let best = instance.fitness(brute_force(&instance));
        let options = GoodputOptions { exact_rows: 0, ..GoodputOptions::default() };
        let plan = GoodputPolicy::new(options).allocate(&problem, &mut ChaCha8Rng::seed_from_u64(0)).unwrap();
        prop_assert!(plan.fitness_bound.unwrap() >= best * (1.0 - 1e-9));
    }
}

fn ask(problem: &Problem) -> Plan {
    GoodputPolicy::default().allocate(problem, &mut ChaCha8Rng::seed_from_u64(0)).unwrap()
}

fn t4_trial(id: u32, max_gpus: u32, goodput: impl FnMut(crate::goodput::Shape) -> f64) -> TrialRequest {
    let table =
        GoodputTable::from([(GpuType::new("t4").unwrap(), Curve::build(max_gpus, 4, goodput).unwrap())]);
    TrialRequest::new(TrialId(id), table)
}

#[test]
fn a_trial_that_needs_more_than_its_fair_share_still_runs() {
    // Two GPUs at least, by its memory; five trials share four GPUs.
    let large = |shape: crate::goodput::Shape| if shape.gpus() > 1 { f64::from(shape.gpus()) } else { 0.0 };
    let mut trials = vec![TrialRequest {
        current: [(NodeId(0), 2)].into_iter().collect(),
        age_s: 600.0,
        realloc_delay_s: 30.0,
        ..t4_trial(0, 4, large)
    }];
    trials.extend((1..5).map(|id| t4_trial(id, 1, |_| 1.0)));
    let plan = ask(&Problem::new(Cluster::parse("1x4xt4").unwrap(), trials));
    assert!(plan.placements.iter().all(|trial| trial.reason != crate::alloc::Reason::CannotRun), "{plan:?}");
    assert_eq!(plan.gap(), Some(0.0));
}

#[test]
fn islands_that_are_alike_are_filled_alike() {
    let amdahl = |serial: f64| {
        move |shape: crate::goodput::Shape| {
            let gpus = f64::from(shape.gpus());
            gpus / serial.mul_add(gpus - 1.0, 1.0) * if shape.nodes() > 1 { 0.9 } else { 1.0 }
        }
    };
    for islands in [1, 4, 16] {
        let mut cluster = Cluster::new();
        for node in 0..64 {
            let gpu_type = GpuType::new("t4").unwrap();
            cluster.add(NodeId(node), Node { gpu_type, gpus: 4, island: node * islands / 64 }).unwrap();
        }
        let trials = (0..40).map(|id| t4_trial(id, 64, amdahl(0.007 * f64::from(id)))).collect();
        let plan = ask(&Problem::new(cluster, trials));
        assert!(plan.gap().unwrap() < 0.01, "{islands} islands: {:?}", plan.gap());
    }
}

#[test]
fn any_fairness_has_a_bound() {
    for p in [-20.0, -16.0, -5.0, -0.01, 0.0, 0.01, 5.0, 20.0] {
        for (nodes, trials) in [("16x4xt4", 20), ("2x8xt4", 30)] {
            let trials = (0..trials)
                .map(|id| {
                    let weight =
                        if id % 2 == 0 { TrialRequest::WEIGHT_MIN } else { TrialRequest::WEIGHT_MAX };
                    TrialRequest { weight, ..t4_trial(id, 16, |shape| f64::from(shape.gpus()).sqrt()) }
                })
                .collect();
            let problem = Problem::new(Cluster::parse(nodes).unwrap(), trials);
            let plan = ask(&Problem { fairness: Fairness::new(p).unwrap(), ..problem });
            assert!(
                plan.fitness_bound.is_some_and(|bound| bound >= plan.fitness * (1.0 - 1e-9)),
                "{p}: {plan:?}"
            );
        }
    }
}

#[test]
fn a_released_pin_pays_nothing_for_the_move_it_did_not_choose() {
    let pinned = |id| TrialRequest {
        current: [(NodeId(0), 3)].into_iter().collect(),
        pinned: true,
        age_s: 10.0,
        realloc_delay_s: 30.0,
        ..t4_trial(id, 4, |shape| f64::from(shape.gpus()))
    };
    let plan = ask(&Problem::new(Cluster::parse("1x4xt4").unwrap(), vec![pinned(0), pinned(1)]));
    assert_eq!(plan.placements[0].reason, crate::alloc::Reason::Pinned);
    assert_eq!(plan.placements[1].allocation.gpus(), 1);
    assert!((plan.placements[1].speedup - 0.5).abs() < 1e-9, "{plan:?}");
}

#[test]
fn absurd_claims_are_answered() {
    let mut trial = t4_trial(0, 4, |shape| f64::from(shape.gpus()));
    trial.current = [(NodeId(0), u32::MAX), (NodeId(1), 7)].into_iter().collect();
    let problem = Problem::new(Cluster::parse("2x4xt4").unwrap(), vec![trial]);
    let options = GoodputOptions { local_steps: u64::MAX, exact_rows: u64::MAX };
    let plan = GoodputPolicy::new(options).allocate(&problem, &mut ChaCha8Rng::seed_from_u64(0)).unwrap();
    assert_eq!(plan.placements[0].allocation.gpus(), 4);
    for weight in [0.0, f64::NAN, 1e300] {
        let trial = TrialRequest { weight, ..t4_trial(0, 4, |_| 1.0) };
        assert!(Problem::new(Cluster::new(), vec![trial]).check().is_err());
    }
}
