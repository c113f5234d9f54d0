//! CIFAR-10 with a program of your own: it knows `cifar10`, and everything that `pollux-tune` can do.
//!
//! ```sh
//! make cifar10
//! scripts/with-libtorch.sh cargo run --release --features torch --example cifar10 -- train cifar10 -p width=8
//! ```

mod trainable;

use std::process::ExitCode;

use pollux_tune::worker::Registry;

fn main() -> ExitCode {
    pollux_tune::cli::main_with(&Registry::default().with("cifar10", trainable::Cifar10::new))
}
