//! The `pollux-tune` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    pollux_tune::cli::main()
}
