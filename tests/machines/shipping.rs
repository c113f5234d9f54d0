//! A training on machines that see no files of the head's, one after the other.

use std::fs;

use pollux_tune::trials::engine::Fact;

use crate::{
    checkpoint_files::checkpoints_in,
    machines::Machines,
    net::Gate,
    world::{Training, World, until},
};

/// The first machine is taken away after so many steps, and the second one has not come to its end after so many.
const STEPS: [u64; 2] = [40, 80];

pub(crate) fn a_training_goes_on_where_no_folder_is_shared() {
    let Some(machines) = Machines::new(2) else { return };
    let mut world = World::new(machines, "shipping");
    world.run_undisturbed(6);

    let gates: Vec<Gate> = STEPS.iter().map(|steps| Gate::closed(&world.root, &steps.to_string())).collect();
    let text: String = gates.iter().zip(STEPS).map(|(gate, steps)| gate.after(steps, None)).collect();
    world.start_head(&Training { gates: text, ..Training::default() });
    let first = world.start_distant_agent(0);
    until("it trains", || gates[0].waiting().len() == 1);

    // There is no other machine: the state goes to the head, and this one is gone with its disk.
    let mut agent = world.agents[0].take().expect("it runs");
    let asked = std::process::Command::new("kill").arg(agent.id().to_string()).status();
    assert!(asked.expect("there is a kill").success());
    until("the trial is to be saved", || {
        world.facts().iter().any(|entry| matches!(entry.fact, Fact::TrialPausing { .. }))
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
    world.ends_as_undisturbed("moved");
}
