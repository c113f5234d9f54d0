//! Whatever happens, a study ends with the trials it was asked for, each told once, and its journal is the study.

use pollux_tune::{
    space::Study,
    trials::engine::{Fact, Outcome, TrialKind},
};

use crate::world::{Faults, NONE, World};

const NODES: [(&str, u32); 3] = [("t4", 3), ("t4", 2), ("a100", 2)];

fn study(policy: &str) -> Study {
    let yaml = format!(
        "
space: {{x: {{float: [0, 1]}}, width: {{int: [1, 8]}}, act: [relu, gelu]}}
objective: {{minimize: loss}}
trial: {{trainable: toy, epochs: 6, initial_batch: 64, max_batch: 512}}
search: {{trials: 12, parallel: 5, early_stopping: {{rule: asha, grace: 1, reduction: 2}}}}
scheduler: {{interval: 5s, policy: {policy}}}
"
    );
    Study::from_yaml("study.yaml", &yaml).expect("it is a study")
}

/// First everything goes wrong, then nothing does any more.
fn play(study: &Study, kind: TrialKind, faults: Faults, seed: u64) -> World {
    let mut world = World::new(study, kind, &NODES, seed);
    for _ in 0..1500 {
        world.step(faults);
    }
    finish(&mut world, seed);
    world
}

fn finish(world: &mut World, seed: u64) {
    let mut steps = 0;
    while world.outcome.is_none() {
        world.step(NONE);
        steps += 1;
        assert!(steps < 200_000, "seed {seed}: it does not end: {:#?}", world.engine.state().active);
    }
    assert_eq!(world.outcome, Some(Outcome::Done), "seed {seed}");
    let ends = world.ends();
    assert_eq!(ends.len(), 12, "seed {seed}: {ends:?}");
    assert!(ends.values().all(|&times| times == 1), "seed {seed}: {ends:?}");
    assert_eq!(world.services.suggest.results(), 12, "seed {seed}");
}

const MILD: Faults =
    Faults { worker: 10, node: 2, drain: 4, group: 10, environment: 10, trial: 0, head: 1, messages: 100 };
const WILD: Faults =
    Faults { worker: 60, node: 20, drain: 20, group: 50, environment: 40, trial: 0, head: 5, messages: 300 };

#[test]
fn elastic_studies_end_well_whatever_happens() {
    let (mut reshapes, mut restarts, mut waits, mut drains, mut moves) = (0, 0, 0, 0, 0);
    for seed in 0..40 {
        let faults = if seed % 2 == 0 { MILD } else { WILD };
        let policy = if seed % 4 < 3 { "goodput" } else { "static" };
        let world = play(&study(policy), TrialKind::Elastic, faults, seed);
        reshapes += world.reshapes;
        restarts += world.restarts;
        waits += world.waits;
        drains += world.drains;
        moves += world.moves;
    }
    let enough = reshapes > 200 && restarts > 100 && waits > 100 && drains > 200 && moves > 50;
    assert!(enough, "too little happened: {reshapes}, {restarts}, {waits}, {drains}, {moves}");
}

#[test]
fn other_policies_do_as_well() {
    for (seed, policy) in (100..).zip(["pollux", "optimus", "tiresias"]) {
        play(&study(policy), TrialKind::Elastic, MILD, seed);
    }
}

#[test]
fn rigid_studies_end_well_whatever_happens() {
    for seed in 0..40 {
        let faults = if seed % 2 == 0 { MILD } else { WILD };
        play(&study("goodput"), TrialKind::Rigid, faults, seed);
    }
}

#[test]
fn programs_on_several_slots_end_well_whatever_happens() {
    let (mut alone, mut changed) = (0, 0);
    for seed in 0..40 {
        let faults = if seed % 2 == 0 { MILD } else { WILD };
        let gpus = if seed % 4 < 2 { "gpus: 2" } else { "gpus: 1..3, elastic: restart" };
        let policy = if seed % 8 < 6 { "goodput" } else { "static" };
        let mut study = study(policy);
        let yaml = study.to_yaml();
        let begin = yaml.find("trial:").expect("it has one");
        let end = yaml.find("search:").expect("it has one");
        let trial = format!("trial: {{command: train, epochs: 6, {gpus}}}\n");
        let yaml = [&yaml[..begin], &trial, &yaml[end..]].concat();
        study = Study::from_yaml("study.yaml", &yaml).expect("it is a study");
        let world = play(&study, TrialKind::of(&study), faults, seed);
        for entry in &world.journal {
            match &entry.fact {
                Fact::TrialStarted { slots, .. } if slots.len() > 1 => alone += 1,
                Fact::TrialPausing { .. } => changed += 1,
                _ => {}
            }
        }
    }
    assert!(alone > 200 && changed > 20, "too little happened: {alone}, {changed}");
}

/// Trials that fail by themselves stay failed until they are retried; then each has its result.
#[test]
fn failed_trials_run_again_when_they_are_retried() {
    let mut retried = 0;
    for seed in 0..30 {
        let kind = if seed % 2 == 0 { TrialKind::Elastic } else { TrialKind::Rigid };
        let mut world = World::new(&study("goodput"), kind, &NODES, seed);
        let faults = Faults { trial: 40, ..MILD };
        let mut steps = 0;
        while world.outcome.is_none() {
            world.step(faults);
            steps += 1;
            assert!(steps < 200_000, "seed {seed}: it does not end");
        }
        let again = world.retry();
        retried += again;
        while world.outcome.is_none() {
            world.step(NONE);
            steps += 1;
            assert!(steps < 400_000, "seed {seed}: it does not end");
        }
        assert_eq!(world.outcome, Some(Outcome::Done), "seed {seed}");
        let state = world.engine.state();
        assert_eq!((state.failed, state.finished), (0, 12), "seed {seed}: {again} were retried");
        assert_eq!(world.services.suggest.results(), 12, "seed {seed}");
    }
    assert!(retried > 20, "too little happened: {retried}");
}

#[test]
fn studies_that_are_stopped_go_on_later() {
    let mut paused = 0;
    for seed in 0..20 {
        let mut world = World::new(&study("goodput"), TrialKind::Elastic, &NODES, seed);
        for _ in 0..20 * seed {
            world.step(MILD);
        }
        if world.outcome.is_some() {
            continue;
        }
        world.stop();
        let mut steps = 0;
        while world.outcome.is_none() {
            world.step(NONE);
            steps += 1;
            assert!(steps < 10_000, "seed {seed}: it does not stop: {:#?}", world.engine.state().active);
        }
        if world.outcome == Some(Outcome::Stopped) {
            assert!(world.engine.state().active.values().all(|active| active.slots().is_empty()));
            let facts = world.journal.iter().rev().map(|entry| entry.fact.kind());
            let since = facts.take_while(|kind| *kind != "stop_requested");
            paused += since.filter(|kind| *kind == "trial_paused").count();
            world.resume();
        }
        finish(&mut world, seed);
    }
    assert!(paused > 10, "only {paused} trials were kept on disk");
}

/// The same seed gives the same journal: nothing depends on anything else.
#[test]
fn one_seed_decides_everything() {
    let [one, other] = [(); 2].map(|()| play(&study("goodput"), TrialKind::Elastic, WILD, 7));
    assert_eq!(one.journal, other.journal);
}
