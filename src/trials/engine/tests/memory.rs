//! What fits into the memory of a type of GPU is learned, and kept to.

use super::*;
use crate::{
    goodput::{BatchPlan, ComputeCost, NoiseScale, SyncCost, ThroughputParams},
    trials::group::{Batch, MemoryLimit},
};

const A100: &str = "a100";

fn t4() -> GpuType {
    GpuType::new("t4").expect("it is a name")
}

impl Scene {
    /// A pass did not fit on a slot of a node.
    fn exhausted(&mut self, trial: u32, node: u32, failed: u32, limit: u32) -> (Vec<Fact>, Vec<Command>) {
        let (slot, memory) = (SlotId { node: NodeId(node), index: 0 }, MemoryLimit { failed, limit });
        self.input(Input::group(TrialId(trial), Generation(1), GroupEvent::OutOfMemory { slot, memory }))
    }
}

fn retune(trial: u32, accumulation: u32) -> Command {
    let command = GroupCommand::Retune { batch: Batch { total: 64, accumulation } };
    Command::Group { trial: TrialId(trial), command }
}

#[test]
fn what_does_not_fit_is_a_fact_and_all_trials_keep_to_it_at_once() {
    let mut scene = Scene::two_running(2);
    let (facts, commands) = scene.exhausted(1, 1, 32, 16);
    assert_eq!(kinds(&facts), ["batch_limited", "retuned", "retuned"]);
    assert_eq!(facts[0], Fact::BatchLimited { gpu_type: t4(), limit: 16, failed: 32, trial: TrialId(1) });
    assert_eq!(commands[..2], [retune(0, 1), retune(1, 1)]);
    let Command::Allocate(AllocatorRequest::Solve { snapshot, .. }) = &commands[2] else {
        panic!("{commands:?}")
    };
    assert_eq!(snapshot.batch_limits, BTreeMap::from([(t4(), 16)]));
    // The next head knows it, too, and so does the first group of a trial.
    scene.restart();
    scene.input(node_joined(0, 2));
    assert_eq!(scene.engine.state().batch_limits, BTreeMap::from([(t4(), 16)]));
    scene.fit(0, None);
    scene.fit(1, None);
    scene.plan(&[(0, &[(0, 1)]), (1, &[(0, 1)])]);
    let batch = |trial: u32| scene.trial(trial).phase.group().and_then(|group| group.batch);
    assert_eq!([batch(0), batch(1)], [Some(BatchPlan { per_gpu: 16, accumulation: 3 }); 2]);
}

#[test]
fn what_is_no_news_is_no_fact() {
    let mut scene = Scene::two_running(2);
    scene.exhausted(0, 0, 32, 16);
    let nothing = |(facts, commands): (Vec<Fact>, Vec<Command>)| facts.is_empty() && commands.is_empty();
    assert!(nothing(scene.exhausted(1, 1, 32, 16)));
    assert!(nothing(scene.exhausted(1, 1, 100, 50)));
    // A machine that is not here, a trial that is not.
    assert!(nothing(scene.exhausted(0, 7, 16, 8)));
    assert!(nothing(scene.exhausted(2, 0, 16, 8)));
    // Nothing is less than one example.
    let (facts, _) = scene.exhausted(0, 0, 1, 0);
    assert_eq!(facts[0], Fact::BatchLimited { gpu_type: t4(), limit: 1, failed: 1, trial: TrialId(0) });
    assert_eq!(
        scene.trial(1).phase.group().and_then(|group| group.batch).map(|batch| batch.per_gpu),
        Some(1)
    );
}

#[test]
fn news_of_an_older_generation_counts() {
    let mut scene = Scene::two_running(2);
    scene.lose(0, 1);
    assert_eq!(scene.trial(0).generation, Generation(2));
    assert_eq!(kinds(&scene.exhausted(0, 0, 32, 16).0)[0], "batch_limited");
}

#[test]
fn another_type_has_another_memory() {
    let mut scene = Scene::with_nodes(ELASTIC, &[2]);
    let gpu_type = GpuType::new(A100).expect("it is a name");
    let Input::NodeJoined { node, island, slots, .. } = node_joined(1, 2) else { panic!("it joins") };
    scene.input(Input::NodeJoined { node, name: String::new(), gpu_type, island, slots });
    for trial in 0..2 {
        scene.suggest();
        scene.fit(trial, None);
    }
    scene.plan(&[(0, &[(0, 2)]), (1, &[(1, 2)])]);
    scene.ready(0, 1);
    scene.ready(1, 1);
    let (facts, commands) = scene.exhausted(0, 0, 32, 16);
    assert_eq!(kinds(&facts), ["batch_limited", "retuned"]);
    assert_eq!(commands[0], retune(0, 1));
}

/// It was told its batch before that was known to be too large.
#[test]
fn a_group_that_forms_meanwhile_is_told_when_it_is_formed() {
    let mut scene = Scene::with_nodes(ELASTIC, &[2, 2]);
    for trial in 0..2 {
        scene.suggest();
        scene.fit(trial, None);
    }
    scene.plan(&[(0, &[(0, 2)]), (1, &[(1, 2)])]);
    scene.ready(0, 1);
    let (facts, _) = scene.exhausted(0, 0, 32, 16);
    assert_eq!(kinds(&facts), ["batch_limited", "retuned"]);
    let (facts, commands) = scene.ready(1, 1);
    assert_eq!(kinds(&facts), ["group_formed", "retuned"]);
    assert_eq!(commands[0], retune(1, 1));
}

#[test]
fn the_best_batch_keeps_to_the_limit() {
    let sync = [SyncCost { alpha_s: 0.01, beta_s: 0.0 }; 2];
    let params = ThroughputParams::new(ComputeCost { alpha_s: 0.1, beta_s: 0.001 }, sync, 1.0);
    let models = BTreeMap::from([(t4(), params.expect("they are fine"))]);
    let noise = Some(NoiseScale::new(5000.0).expect("it is finite"));
    let mut scene = Scene::with_nodes(ELASTIC, &[2]);
    scene.suggest();
    scene.suggest();
    scene.fit(1, None);
    scene.fit(0, Some(Refit { models, noise, cap: 4, ..Refit::default() }));
    scene.plan(&[(0, &[(0, 2)])]);
    scene.ready(0, 1);
    let batch = |scene: &Scene| scene.trial(0).phase.group().and_then(|group| group.batch);
    assert_eq!(batch(&scene), Some(BatchPlan { per_gpu: 256, accumulation: 0 }));
    let expected = |commands: &[Command]| {
        let solve = commands.iter().find_map(|command| match command {
            Command::Allocate(AllocatorRequest::Solve { snapshot, .. }) => Some(snapshot.clone()),
            _ => None,
        });
        let problem = solve.expect("a question").problem(&study(ELASTIC)).expect("a problem");
        problem.trials[0].table[&t4()].at(crate::goodput::Tier::Local, 2)
    };
    let (_, commands) = scene.exhausted(0, 0, 256, 128);
    let first = expected(&commands);
    assert_eq!(batch(&scene), Some(BatchPlan { per_gpu: 128, accumulation: 0 }));
    scene.plan(&[(0, &[(0, 2)])]);
    let (_, commands) = scene.exhausted(0, 0, 128, 20);
    let second = expected(&commands);
    let plan = batch(&scene).expect("a batch");
    assert!(plan.per_gpu <= 20 && plan.total(2) >= 64, "{plan:?}");
    assert!(second < first, "{second} after {first}");
}
