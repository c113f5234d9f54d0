//! A training that grows over a machine that joins while it trains.

use std::{collections::BTreeSet, fs, time::Instant};

use pollux_tune::{
    ids::{Generation, NodeId, SlotId},
    trials::engine::{Fact, JournalEntry},
};

use crate::{
    machines::Machines,
    world::{Training, World, until},
};

/// Enough that it does not end while it is slow.
const EPOCHS: u32 = 120;
/// After so many reports of one worker the second machine joins.
const REPORTS: usize = 3;

/// The decision to train on several machines: its place among the facts, and the generation of the group.
fn decision(facts: &[JournalEntry]) -> Option<(usize, Generation)> {
    let over_machines = |slots: &[SlotId]| {
        let nodes: BTreeSet<NodeId> = slots.iter().map(|slot| slot.node).collect();
        nodes.len() == 2
    };
    facts.iter().enumerate().find_map(|(place, entry)| match &entry.fact {
        Fact::TrialStarted { generation, slots, holders, .. } if over_machines(slots) => {
            assert!(!holders.is_empty(), "it grows out of what trains");
            Some((place, *generation))
        }
        _ => None,
    })
}

/// When that group began to train.
fn formed_s(facts: &[JournalEntry], wanted: Generation) -> Option<f64> {
    facts.iter().find_map(|entry| match entry.fact {
        Fact::GroupFormed { generation, .. } if generation >= wanted => Some(entry.at_s),
        _ => None,
    })
}

pub(crate) fn a_training_grows_over_a_machine_that_joins() {
    let Some(machines) = Machines::new(2) else { return };
    let mut world = World::new(machines, "growth");
    world.run_undisturbed(EPOCHS);

    let slow = world.root.join("slow");
    fs::write(&slow, "4").expect("a file");
    world.start_head(&Training {
        slow: slow.clone(),
        gpus: (1, 2),
        epochs: EPOCHS,
        // What a change costs is not known before the first one: it has to pay off in a part of this time.
        interval: "2m",
        ..Training::default()
    });
    world.start_agent(0);
    let reports =
        |facts: &[JournalEntry]| facts.iter().filter(|it| matches!(it.fact, Fact::Measured { .. })).count();
    until("it trains on one machine", || reports(&world.facts()) >= REPORTS);
    assert_eq!(decision(&world.facts()), None);

    world.start_agent(1);
    let started = Instant::now();
    until("the second machine joins", || world.joined(1) == 1);
    println!("a machine is added: it has joined after {:.1} s", started.elapsed().as_secs_f64());
    until("the allocator decides to grow", || decision(&world.facts()).is_some());
    println!(
        "a machine is added: the decision to use it comes after {:.1} s",
        started.elapsed().as_secs_f64()
    );
    let (place, generation) = decision(&world.facts()).expect("it was there");
    until("both machines train", || formed_s(&world.facts(), generation).is_some());
    let facts = world.facts();
    let took_s = formed_s(&facts, generation).expect("it was there") - facts[place].at_s;
    println!("a machine is added: the training goes on over both {took_s:.1} s after the decision");
    assert!(took_s < 60.0, "it took {took_s} s");

    fs::remove_file(slow).expect("it is there");
    world.ends_as_undisturbed("grown");
}
