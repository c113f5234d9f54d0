//! One training over two of three machines, through everything that can happen to them.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    machines::Machines,
    net::Gate,
    world::{MACHINES, Training, World, until},
};

/// After so many steps the training waits for the next misfortune.
const STEPS: [u64; 4] = [20, 40, 60, 80];
/// The longest that a recovery may take.
const RECOVERY: Duration = Duration::from_secs(60);

/// Waits until the training is at a gate, with two workers. Gives their machines and processes.
fn members(gate: &Gate) -> [(usize, u32); 2] {
    until("two workers come to their gate", || gate.waiting().len() == 2);
    let at = |pid: &u32| (machine_of(*pid).expect("a worker of an agent"), *pid);
    let mut members: Vec<(usize, u32)> = gate.waiting().iter().map(at).collect();
    members.sort_unstable();
    members.try_into().expect("two of them")
}

/// Something has just happened to the training: how long it takes until that goes on.
fn recovers(what: &str, from: &Gate, to: &Gate) -> [(usize, u32); 2] {
    let began = Instant::now();
    from.open();
    let members = members(to);
    let took = began.elapsed();
    let on = members.map(|(machine, _)| machine);
    println!("{what}: the training goes on after {:.1} s, on machines {on:?}", took.as_secs_f64());
    assert!(took < RECOVERY, "{what}: it took {took:?}");
    members
}

/// The machine of a worker.
fn machine_of(pid: u32) -> Option<usize> {
    let environment = fs::read(Path::new("/proc").join(pid.to_string()).join("environ")).ok()?;
    let mut variables =
        environment.split(|byte| *byte == 0).filter_map(|variable| str::from_utf8(variable).ok());
    let address = variables.find_map(|it| it.strip_prefix("POLLUX_TUNE_WORKER_MACHINE_ADDRESS="))?;
    (0..MACHINES).find(|machine| Machines::address(*machine).to_string() == address)
}

pub(crate) fn a_training_survives_the_loss_of_machines_and_links() {
    let Some(machines) = Machines::new(MACHINES as u8) else { return };
    let mut world = World::new(machines, "faults");
    world.run_undisturbed(6);

    let gates: Vec<Gate> = STEPS.iter().map(|steps| Gate::closed(&world.root, &steps.to_string())).collect();
    let text: String = gates.iter().zip(STEPS).map(|(gate, steps)| gate.after(steps, None)).collect();
    world.start_head(&Training { gates: text, gpus: (2, 2), ..Training::default() });
    for machine in 0..MACHINES {
        world.start_agent(machine);
    }
    until("all agents join", || (0..MACHINES).all(|machine| world.joined(machine) == 1));
    let members = members(&gates[0]);

    let victim = members[1].0;
    world.kill_all(victim, &members);
    let members = recovers("a machine is killed", &gates[0], &gates[1]);
    world.start_agent(victim);
    until("it joins again", || world.joined(victim) == 2);

    let silent = members[1].0;
    let before = world.joined(silent);
    world.machines.set_cut_off(silent, true);
    let members = recovers("a machine is cut off", &gates[1], &gates[2]);
    let healed = Instant::now();
    world.machines.set_cut_off(silent, false);
    until("it joins again", || world.joined(silent) == before + 1);
    println!(
        "a machine is cut off: it has joined again {:.1} s after it is back",
        healed.elapsed().as_secs_f64()
    );

    let parted = [members[0].0, members[1].0];
    world.machines.set_parted(&parted, true);
    recovers("the link between two workers is cut", &gates[2], &gates[3]);
    world.machines.set_parted(&parted, false);

    gates[3].open();
    world.ends_as_undisturbed("disturbed");
}
