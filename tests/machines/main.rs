//! A study on several machines, with real agents and real workers: machines are killed and cut off, and so are the links between them.
//!
//! The machines are network namespaces, so without root it is skipped. This program is also that of the head, the agents and the workers.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it has no harness, and its figures are read")]

#[path = "../support/checkpoint_files.rs"]
mod checkpoint_files;
mod disk;
mod faults;
mod growth;
#[path = "../support/machines.rs"]
mod machines;
#[path = "../elastic/net.rs"]
mod net;
#[path = "../support/packages.rs"]
mod packages;
mod shipping;
#[path = "../support/disk.rs"]
mod small_disk;
mod world;

use std::{env, process::ExitCode};

/// A test and its name.
type Test = (&'static str, fn());

const TESTS: [Test; 4] = [
    (
        "a_training_survives_the_loss_of_machines_and_links",
        faults::a_training_survives_the_loss_of_machines_and_links,
    ),
    ("a_training_grows_over_a_machine_that_joins", growth::a_training_grows_over_a_machine_that_joins),
    ("a_full_disk_of_an_agent_costs_checkpoints_only", disk::a_full_disk_of_an_agent_costs_checkpoints_only),
    ("a_training_goes_on_where_no_folder_is_shared", shipping::a_training_goes_on_where_no_folder_is_shared),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let is_worker = env::var_os("POLLUX_TUNE_WORKER_ADDRESS").is_some();
    if is_worker || arguments.first().is_some_and(|first| ["run", "agent"].contains(&first.as_str())) {
        return pollux_tune::cli::main_with(&net::registry());
    }
    let is_list = arguments.iter().any(|argument| argument == "--list");
    let is_wanted = |name: &str| {
        arguments.iter().all(|argument| argument.starts_with('-') || name.contains(argument.as_str()))
    };
    for (name, test) in TESTS.into_iter().filter(|(name, _)| is_wanted(name)) {
        if is_list {
            println!("{name}: test");
        } else {
            println!("test {name}");
            test();
            println!("test {name} ... ok");
        }
    }
    ExitCode::SUCCESS
}
