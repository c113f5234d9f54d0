//! A study on several machines, with real agents and real workers: machines are killed and cut off, and so are the links between them.
//!
//! The machines are network namespaces, so without root it is skipped. This program is also that of the head, the agents and the workers.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it has no harness, and its figures are read")]

#[path = "../support/checkpoint_files.rs"]
mod checkpoint_files;
mod faults;
#[path = "../support/machines.rs"]
mod machines;
#[path = "../elastic/net.rs"]
mod net;

use std::{env, process::ExitCode};

const TEST: &str = "a_training_survives_the_loss_of_machines_and_links";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let is_worker = env::var_os("POLLUX_TUNE_WORKER_ADDRESS").is_some();
    if is_worker || arguments.first().is_some_and(|first| ["run", "agent"].contains(&first.as_str())) {
        return pollux_tune::cli::main_with(&net::registry());
    }
    if arguments.iter().any(|argument| argument == "--list") {
        println!("{TEST}: test");
    } else if arguments.iter().all(|argument| argument.starts_with('-') || TEST.contains(argument.as_str())) {
        println!("test {TEST}");
        faults::a_training_survives_the_loss_of_machines_and_links();
        println!("test {TEST} ... ok");
    }
    ExitCode::SUCCESS
}
