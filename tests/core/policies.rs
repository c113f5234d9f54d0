//! What every policy promises, on random problems.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};

use pollux_tune::{
    alloc::{
        Cluster, GoodputOptions, GoodputPolicy, OptimusPolicy, Plan, Policy, PolluxOptions, PolluxPolicy,
        Problem, Reason, StaticPolicy, TiresiasPolicy, TrialPlacement, TrialRequest,
    },
    ids::{GpuType, NodeId, TrialId},
};
use proptest::{
    prelude::*,
    test_runner::{Config, FileFailurePersistence, TestCaseError, TestRunner},
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

type Verdict = Result<(), TestCaseError>;

fn runner() -> TestRunner {
    let seeds = FileFailurePersistence::WithSource("regressions");
    let failure_persistence = Some(Box::new(seeds) as Box<_>);
    TestRunner::new(Config { source_file: Some(file!()), failure_persistence, ..Config::default() })
}

fn ask(policy: &mut dyn Policy, problem: &Problem, seed: u64) -> Result<Plan, TestCaseError> {
    let plan = policy.allocate(problem, &mut ChaCha8Rng::seed_from_u64(seed));
    plan.map_err(|error| TestCaseError::fail(error.to_string()))
}

/// Runs a policy over random problems, and over what may follow each.
fn conformance(make: impl Fn() -> Box<dyn Policy>) {
    let run = |problem: Problem| {
        let (mut policy, mut twin) = (make(), make());
        let plan = ask(&mut *policy, &problem, 1)?;
        keeps_rules(&problem, &plan)?;
        prop_assert_eq!(&ask(&mut *twin, &problem, 1)?, &plan, "the same question, another answer");
        let next = what_follows(&problem, &plan);
        let plan = ask(&mut *policy, &next, 2)?;
        keeps_rules(&next, &plan)?;
        prop_assert_eq!(&ask(&mut *twin, &next, 2)?, &plan, "the same questions, another answer");
        Ok(())
    };
    if let Err(error) = runner().run(&crate::problems::problems(), run) {
        panic!("{}: {error}", make().name());
    }
    if let Err(error) = answers_without_a_choice(&make) {
        panic!("{}: {error}", make().name());
    }
}

/// A later question: the plan was applied, the first trial ended, a node went and another came.
fn what_follows(problem: &Problem, plan: &Plan) -> Problem {
    let mut next = problem.clone();
    for (trial, decision) in next.trials.iter_mut().zip(&plan.placements) {
        trial.current = decision.allocation.clone();
        trial.age_s += 60.0;
        trial.pinned = false;
    }
    next.trials.drain(..next.trials.len().min(1));
    let last = next.cluster.iter().last().map(|(id, node)| (id, node.clone()));
    if let Some((id, node)) = last {
        next.cluster.remove(id).expect("the node is there");
        next.cluster.add(NodeId(1000), node).expect("the number is free");
    }
    next
}

/// All rules of a plan, written down a second time.
fn keeps_rules(problem: &Problem, plan: &Plan) -> Verdict {
    prop_assert!(plan.check(problem).is_ok(), "{:?}", plan.check(problem));
    prop_assert!(plan.fitness.is_finite() && plan.gap().is_none_or(|gap| (0.0..=1.0).contains(&gap)));
    prop_assert_eq!(plan.placements.len(), problem.trials.len());
    let mut used: BTreeMap<NodeId, u32> = BTreeMap::new();
    let mut spanning: BTreeMap<NodeId, Vec<TrialId>> = BTreeMap::new();
    for (trial, decision) in problem.trials.iter().zip(&plan.placements) {
        let (gpus, pinned) = (decision.allocation.gpus(), decision.reason == Reason::Pinned);
        prop_assert_eq!(trial.id, decision.trial);
        prop_assert!(decision.speedup.is_finite() && decision.speedup >= 0.0);
        prop_assert!(!pinned || decision.allocation == trial.current, "{} is pinned", trial.id);
        if !pinned && gpus > 0 {
            prop_assert!(gpus >= trial.min_gpus && gpus <= trial.max_gpus, "{}: limits", trial.id);
        }
        let mut homes = BTreeSet::new();
        for (id, count) in decision.allocation.iter() {
            let node = problem.cluster.get(id);
            prop_assert!(node.is_some(), "{} on a node that is not there", trial.id);
            homes.extend(node.map(|node| (node.gpu_type.clone(), node.island)));
            *used.entry(id).or_default() += count;
            if decision.allocation.is_distributed() && !pinned {
                spanning.entry(id).or_default().push(trial.id);
            }
        }
        prop_assert!(homes.len() == usize::from(gpus > 0), "{} in {homes:?}", trial.id);
        prop_assert!(reason_fits(trial, decision), "{}: {}", trial.id, decision.reason);
    }
    for (id, count) in used {
        prop_assert!(problem.cluster.get(id).is_some_and(|node| count <= node.gpus), "node {id} is too full");
    }
    if problem.avoid_interference {
        prop_assert!(spanning.values().all(|trials| trials.len() == 1), "interference: {spanning:?}");
    }
    pinned_stay(problem, plan)
}

fn reason_fits(trial: &TrialRequest, decision: &TrialPlacement) -> bool {
    let (before, gpus) = (trial.current.gpus(), decision.allocation.gpus());
    let same = decision.allocation == trial.current;
    match decision.reason {
        Reason::Pinned => trial.pinned,
        Reason::Kept => same && gpus > 0,
        Reason::Moved => !same && before > 0 && gpus > 0,
        Reason::Started => before == 0 && gpus > 0,
        Reason::Grown => gpus > before,
        Reason::Shrunk => gpus < before && gpus > 0,
        Reason::Preempted => before > 0 && gpus == 0,
        Reason::Waiting => before == 0 && gpus == 0,
        Reason::TooLarge | Reason::CannotRun => gpus == 0,
        // Each needs a rule here.
        _ => false,
    }
}

/// Where all pinned trials still find all their GPUs, all of them stay.
fn pinned_stay(problem: &Problem, plan: &Plan) -> Verdict {
    let pinned = || problem.trials.iter().filter(|trial| trial.pinned && !trial.current.is_empty());
    let mut held: BTreeMap<NodeId, u32> = BTreeMap::new();
    for (id, count) in pinned().flat_map(|trial| trial.current.iter()) {
        *held.entry(id).or_default() += count;
    }
    if held.iter().all(|(&id, &count)| problem.cluster.get(id).is_some_and(|node| node.gpus >= count)) {
        for trial in pinned() {
            prop_assert_eq!(plan.get(trial.id).map(|decision| decision.reason), Some(Reason::Pinned));
        }
    }
    Ok(())
}

/// Questions with only one answer.
fn answers_without_a_choice(make: &impl Fn() -> Box<dyn Policy>) -> Verdict {
    let t4 = GpuType::new("t4")?;
    let trial = |id| TrialRequest::unprofiled(TrialId(id), [t4.clone()]);
    let reason = |cluster: &str, trial: TrialRequest| {
        let problem = Problem::new(Cluster::parse(cluster)?, vec![trial]);
        ask(&mut *make(), &problem, 0).map(|plan| plan.placements[0].reason)
    };
    let no_nodes = Problem::new(Cluster::new(), vec![trial(0)]);
    let plan = ask(&mut *make(), &no_nodes, 0)?;
    prop_assert_eq!(plan.placements[0].reason, Reason::TooLarge, "an empty cluster");
    let large = TrialRequest { min_gpus: 5, max_gpus: 8, ..trial(0) };
    prop_assert_eq!(reason("1x4xt4,1x4xa100", large)?, Reason::TooLarge, "no type has 5 GPUs");
    prop_assert_eq!(reason("1x4xa100", trial(0))?, Reason::CannotRun, "not a type it runs on");
    prop_assert_eq!(reason("1x4xt4", trial(0))?, Reason::Started);

    let no_trials = Problem::new(Cluster::parse("1x4xt4")?, Vec::new());
    prop_assert!(ask(&mut *make(), &no_trials, 0)?.placements.is_empty());
    let two = Problem::new(Cluster::parse("1x1xt4")?, vec![trial(0), trial(1)]);
    let plan = ask(&mut *make(), &two, 0)?;
    let mut reasons: Vec<_> = plan.placements.iter().map(|decision| decision.reason).collect();
    reasons.sort_by_key(|&reason| reason == Reason::Waiting);
    prop_assert_eq!(reasons, [Reason::Started, Reason::Waiting]);

    let bad = TrialRequest { weight: f64::NAN, ..trial(0) };
    let bad = Problem::new(Cluster::parse("1x1xt4")?, vec![bad]);
    prop_assert!(make().allocate(&bad, &mut ChaCha8Rng::seed_from_u64(0)).is_err());
    Ok(())
}

fn small_pollux() -> PolluxPolicy {
    PolluxPolicy::new(PolluxOptions { population: 12, generations: 8 })
}

#[test]
fn goodput_conforms() {
    conformance(|| Box::new(GoodputPolicy::default()));
}

#[test]
fn pollux_conforms() {
    conformance(|| Box::new(small_pollux()));
}

#[test]
fn static_conforms() {
    conformance(|| Box::new(StaticPolicy));
}

#[test]
fn optimus_conforms() {
    conformance(|| Box::new(OptimusPolicy));
}

#[test]
fn tiresias_conforms() {
    conformance(|| Box::new(TiresiasPolicy::default()));
}

/// The problem with nothing to decide: what runs is pinned, what waits asks for more GPUs than there are. Its
/// FITNESS is that of keeping everything, because a trial without GPUs counts the same whatever it asks for.
fn frozen(problem: &Problem) -> Problem {
    let mut frozen = problem.clone();
    for trial in &mut frozen.trials {
        trial.pinned = !trial.current.is_empty();
        if !trial.pinned {
            (trial.min_gpus, trial.max_gpus) = (u32::MAX, u32::MAX);
        }
    }
    frozen
}

/// FITNESS of keeping everything, if that is a valid plan.
fn fitness_of_keeping(problem: &Problem) -> Option<f64> {
    let mut plan = StaticPolicy.allocate(&frozen(problem), &mut ChaCha8Rng::seed_from_u64(0)).ok()?;
    for (trial, decision) in problem.trials.iter().zip(&mut plan.placements) {
        if decision.allocation != trial.current {
            return None;
        }
        decision.reason = if trial.pinned { Reason::Pinned } else { Reason::Kept };
    }
    plan.check(problem).ok().map(|()| plan.fitness)
}

/// `plans` are the answers of a policy that may be asked in several ways.
fn never_worse_than_keeping(plans: impl Fn(&Problem) -> Result<Vec<Plan>, TestCaseError>) {
    let (asked, kept) = (Cell::new(0), Cell::new(0));
    let run = |problem: Problem| {
        asked.set(asked.get() + 1);
        if let Some(keeping) = fitness_of_keeping(&problem) {
            kept.set(kept.get() + 1);
            for plan in plans(&problem)? {
                prop_assert!(plan.fitness >= keeping * (1.0 - 1e-9), "{} < {keeping}", plan.fitness);
            }
        }
        Ok(())
    };
    if let Err(error) = runner().run(&crate::problems::problems(), run) {
        panic!("{error}");
    }
    assert!(4 * kept.get() > asked.get(), "only {kept:?} of {asked:?} problems could be kept");
}

#[test]
fn goodput_is_never_worse_than_keeping_everything() {
    // However short the search is.
    let budgets = [GoodputOptions::default(), GoodputOptions { local_steps: 0, exact_rows: 0 }];
    never_worse_than_keeping(|problem| {
        budgets.iter().map(|&budget| ask(&mut GoodputPolicy::new(budget), problem, 3)).collect()
    });
}

#[test]
fn pollux_is_never_worse_than_keeping_everything() {
    never_worse_than_keeping(|problem| {
        let short = [1, 2, 8].map(|generations| PolluxOptions { population: 12, generations });
        short.iter().map(|&options| ask(&mut PolluxPolicy::new(options), problem, 3)).collect()
    });
}

/// Even if moving is free, nobody is moved for nothing: asked again after its plan was applied, the policy may only
/// go on with its search.
#[test]
fn goodput_moves_nobody_without_a_gain() {
    let run = |mut problem: Problem| {
        for trial in &mut problem.trials {
            trial.realloc_delay_s = 0.0;
        }
        let plan = ask(&mut GoodputPolicy::default(), &problem, 1)?;
        for (trial, decision) in problem.trials.iter_mut().zip(&plan.placements) {
            trial.current = decision.allocation.clone();
        }
        let again = ask(&mut GoodputPolicy::default(), &problem, 1)?;
        let mut decisions = plan.placements.iter().zip(&again.placements);
        let moved = decisions.any(|(before, after)| before.allocation != after.allocation);
        prop_assert!(!moved || again.fitness > plan.fitness, "{} {}", again.fitness, plan.fitness);
        Ok(())
    };
    if let Err(error) = runner().run(&crate::problems::problems(), run) {
        panic!("{error}");
    }
}
