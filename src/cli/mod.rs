//! The command line: what the user typed becomes plain settings, and a command gets those.
//!
//! Data go to stdout, everything else to stderr. Exit codes: 0 is fine, 1 a failure, 2 a mistake in the
//! command line or in an input file, 101 a bug.
//!
//! *Architecture invariant:* commands know nothing of clap and write only to the handles they are given.

mod figure;
mod fit;
mod plot;
mod profile;
mod study;

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, Parser, Subcommand};

const ABOUT: &str = "Hyper-parameter optimization that schedules GPUs by goodput";

/// What the user typed.
#[derive(Debug, Parser)]
#[command(name = "pollux-tune", version, about = ABOUT, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Fit(FitArgs),
    Check(CheckArgs),
    /// Print the JSON Schema of study files, for editors
    Schema,
}

/// Fit the throughput model to measured step times
#[derive(Debug, Args)]
#[command(long_about = ABOUT_FIT, after_long_help = COLUMNS, arg_required_else_help = true)]
struct FitArgs {
    /// CSV files with a header line; all of them are fitted together
    #[arg(required = true, value_name = "FILE.csv")]
    files: Vec<PathBuf>,
    /// Draw measured and fitted step times and throughputs
    #[arg(long, value_name = "OUT.svg", value_parser = svg_path)]
    svg: Option<PathBuf>,
    /// Print one JSON object instead of text; times are in seconds
    #[arg(long)]
    json: bool,
    /// The title of the drawing [default: the names of the files]
    #[arg(long, value_name = "TEXT", requires = "svg")]
    title: Option<String>,
}

/// Check study files, and show all mistakes at once
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
struct CheckArgs {
    /// Study files, see docs/search-spaces.md
    #[arg(required = true, value_name = "STUDY.yaml")]
    files: Vec<PathBuf>,
}

const ABOUT_FIT: &str = "\
Fit the throughput model to measured step times

Reads step times of one model on one type of GPU, fits the seven parameters of the throughput model of
Pollux (OSDI'21, section 4.1) to all files together, and prints the parameters, the errors, and the rows
that fit worst.";

const COLUMNS: &str = "\
Columns, in any order:
  step_time     seconds of one optimizer step
  local_bsz     examples on each GPU in one pass
  placement     GPUs on each node, one digit for each: `44` is two nodes of four
  num_nodes     together with num_replicas instead of placement: nodes,
  num_replicas  and GPUs in all
  accumulation  passes before the one that synchronizes (optional, 0 by default)
Other columns are ignored, and so are lines that begin with `#`.

Example:
  pollux-tune fit data/profiles/cifar10/{placements,scalability}-t4.csv --svg fit.svg";

/// A drawing must not replace a table by a slip of the fingers.
fn svg_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        Some(extension) if extension.eq_ignore_ascii_case("svg") => Ok(path),
        _ => Err("the name of a drawing must end in `.svg`".to_owned()),
    }
}

/// Runs the command that the user asked for.
pub(crate) fn run(cli: Cli, out: &mut impl Write, notes: &mut impl Write) -> anyhow::Result<()> {
    match cli.command {
        Command::Fit(FitArgs { files, svg, json, title }) => {
            let format = if json { fit::Format::Json } else { fit::Format::Text };
            let title = title.unwrap_or_else(|| fit::default_title(&files));
            let drawing = svg.map(|path| fit::Drawing { path, title });
            fit::run(&fit::Settings { files, format, drawing }, out, notes)
        }
        Command::Check(CheckArgs { files }) => study::check(&files, out, notes),
        Command::Schema => study::schema(out),
    }
}

/// Stdout cannot be written.
pub(crate) fn output_error(error: io::Error) -> anyhow::Error {
    anyhow::Error::new(error).context("cannot write the output")
}

/// Whether the reader of stdout has seen enough, as in `| head`: the end, but not a failure.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// 2 if an input file is to blame, else 1.
pub(crate) fn exit_code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(if error.is::<profile::Error>() || error.is::<study::Error>() { 2 } else { 1 })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn only_a_closed_pipe_is_a_silent_end() {
        assert!(is_broken_pipe(&output_error(io::ErrorKind::BrokenPipe.into())));
        assert!(!is_broken_pipe(&output_error(io::ErrorKind::StorageFull.into())));
    }
}
