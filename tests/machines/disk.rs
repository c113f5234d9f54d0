//! The disk of an agent is full: that costs checkpoints, and nothing else.

use std::{
    fs::{self, File},
    io::Write,
    time::Instant,
};

use pollux_tune::trials::engine::{Fact, JournalEntry};

use crate::{
    machines::Machines,
    small_disk::SmallDisk,
    world::{Training, World, until},
};

const EPOCHS: u32 = 120;
/// More than the files of a study without checkpoints take.
const BYTES: usize = 4 << 20;

fn count(facts: &[JournalEntry], is_one: impl Fn(&Fact) -> bool) -> usize {
    facts.iter().filter(|entry| is_one(&entry.fact)).count()
}

fn saved(world: &World) -> usize {
    count(&world.facts(), |fact| matches!(fact, Fact::Checkpointed { .. }))
}

pub(crate) fn a_full_disk_of_an_agent_costs_checkpoints_only() {
    let Some(machines) = Machines::new(1) else { return };
    let mut world = World::new(machines, "disk");
    let Some(disk) = SmallDisk::mount(&world.scratch(0), BYTES) else { return };
    world.run_undisturbed(EPOCHS);

    let slow = world.root.join("slow");
    fs::write(&slow, "").expect("a file");
    world.start_head(&Training {
        slow: slow.clone(),
        epochs: EPOCHS,
        checkpoint_interval: "1s",
        ..Training::default()
    });
    world.start_distant_agent(0);
    until("it saves its state", || saved(&world) > 0);

    let filler = disk.fill();
    let full = Instant::now();
    // Checkpoints that are removed make room, which must not last.
    let fill_again = || {
        let mut file = File::options().append(true).open(&filler).expect("it is there");
        while file.write_all(&[1; 512]).is_ok() {}
    };
    let failed = |world: &World| {
        world.facts().into_iter().find_map(|entry| match entry.fact {
            Fact::CheckpointFailed { reason, .. } => Some(reason),
            _ => None,
        })
    };
    until("the head hears of it", || {
        fill_again();
        failed(&world).is_some()
    });
    println!("the disk of an agent is full: told after {:.1} s", full.elapsed().as_secs_f64());
    let reason = failed(&world).expect("it was there");
    assert!(reason.contains("No space left"), "{reason}");
    let before = saved(&world);

    fs::remove_file(filler).expect("it is there");
    until("states are saved again", || saved(&world) > before);
    fs::remove_file(slow).expect("it is there");
    world.ends_as_undisturbed("with a disk that was full");
    let lost = |fact: &Fact| {
        matches!(fact, Fact::TrialInterrupted { .. } | Fact::TrialFailed { .. } | Fact::SlotLost { .. })
    };
    assert_eq!(count(&world.facts(), lost), 0, "nothing else has happened");
}
