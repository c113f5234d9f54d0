//! A training on machines that see no files of the head's, one after the other.

use std::fs;

use pollux_tune::{store::Reader, trials::engine::Fact};

use crate::{
    checkpoint_files::{assert_same, checkpoints_in},
    machines::Machines,
    net::Gate,
    world::{World, end_of, until},
};

/// The first machine is taken away after so many steps, and the second one has not come to its end after so many.
const STEPS: [u64; 2] = [40, 80];

pub(crate) fn a_training_goes_on_where_no_folder_is_shared() {
    let Some(machines) = Machines::new(2) else { return };
    let mut world = World::new(machines, "shipping");
    let undisturbed = world.run("undisturbed", "", 1, &["--slots", "1"]).status().expect("it runs");
    assert!(undisturbed.success());

    let gates: Vec<Gate> = STEPS.iter().map(|steps| Gate::closed(&world.root, &steps.to_string())).collect();
    let text: String = gates.iter().zip(STEPS).map(|(gate, steps)| gate.after(steps, None)).collect();
    let head = world.run("study", &text, 1, &["--listen", "10.77.0.1", "--slots", "0"]).spawn();
    world.head = Some(head.expect("it starts"));
    let folder = world.folder();
    until("the head writes a join file", || folder.join("cluster/join.json").exists());
    let first = world.start_distant_agent(0);
    until("it trains", || gates[0].waiting().len() == 1);

    // There is no other machine: the state goes to the head, and this one is gone with its disk.
    let mut agent = world.agents[0].take().expect("it runs");
    let asked = std::process::Command::new("kill").arg(agent.id().to_string()).status();
    assert!(asked.expect("there is a kill").success());
    until("the trial is to be saved", || {
        let entries = Reader::open(&folder).and_then(|reader| reader.entries(0)).expect("a journal");
        entries.iter().any(|entry| matches!(entry.fact, Fact::TrialPausing { .. }))
    });
    gates[0].open();
    assert!(agent.wait().expect("it is ours").success(), "it has left in an orderly way");
    fs::remove_dir_all(first).expect("it has kept files there");

    let second = world.start_distant_agent(1);
    until("the next machine trains", || gates[1].waiting().len() == 1);
    let own = fs::read_dir(second).expect("its files").next().expect("those of the study").expect("an entry");
    let fetched = checkpoints_in(&own.path().join("checkpoints/trial-0"));
    let steps = |name: &str| name.split('-').next().and_then(|steps| steps.parse::<u64>().ok());
    let steps = steps(&fetched[0].file_name().expect("a name").to_string_lossy()).expect("steps");
    assert!((STEPS[0]..STEPS[1]).contains(&steps), "it goes on after {steps} steps");

    gates[1].open();
    let mut head = world.head.take().expect("it runs");
    assert!(head.wait().expect("it is ours").success());
    assert_same(&end_of(&folder), &end_of(&world.root.join("undisturbed")), "moved");
}
