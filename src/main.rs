//! The `pollux-tune` program.

#![expect(
    clippy::disallowed_methods,
    reason = "the list in clippy.toml is for the pure modules of the library, this is a shell"
)]

mod cli;

use std::{
    io::{self, Write},
    panic,
    process::{self, ExitCode},
};

use clap::Parser;

/// The exit code of a panic, also where panics abort.
const BUG: i32 = 101;

fn main() -> ExitCode {
    let default_hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        default_hook(info);
        process::exit(BUG);
    }));
    let arguments = cli::Cli::parse();
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    let outcome = cli::run(arguments, &mut io::stdin().lock(), &mut stdout, &mut io::stderr())
        .and_then(|()| stdout.flush().map_err(cli::output_error));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if cli::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to hear that stderr is gone.
            let _ = writeln!(io::stderr(), "error: {error:#}");
            cli::exit_code(&error)
        }
    }
}
