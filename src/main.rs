//! The `pollux-tune` program.

#[cfg(feature = "torch")]
#[path = "../examples/cifar10/trainable.rs"]
mod cifar10;

use std::process::ExitCode;

#[cfg(feature = "torch")]
fn main() -> ExitCode {
    let trainables = pollux_tune::worker::Registry::default().with("cifar10", cifar10::Cifar10::new);
    pollux_tune::cli::main_with(&trainables)
}

#[cfg(not(feature = "torch"))]
fn main() -> ExitCode {
    pollux_tune::cli::main()
}
