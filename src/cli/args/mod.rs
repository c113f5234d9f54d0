//! What the user can type: all clap types and the parsers of their values. Each becomes the plain settings of a command.

mod agent;
mod annotate;
mod chaos;
mod dashboard;
mod doctor;
mod export;
mod init;
mod plot;
mod reference;
mod report;
mod run;
mod simulate;
mod steer;
mod study;
mod train;
mod trials;
mod watch;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub(super) use self::{
    agent::AgentArgs,
    annotate::{NoteArgs, TagArgs},
    chaos::ChaosArgs,
    dashboard::DashboardArgs,
    doctor::DoctorArgs,
    export::ExportArgs,
    init::InitArgs,
    plot::PlotArgs,
    reference::{CompletionsArgs, ManArgs},
    report::ReportArgs,
    run::RunArgs,
    simulate::SimulateCommand,
    steer::{EnqueueArgs, PauseArgs, ResumeArgs},
    study::{
        AskTellArgs, BestArgs, CancelArgs, CheckArgs, DrainArgs, FolderArgs, FsckArgs, ImportanceArgs,
        RemoveArgs, RetryArgs, ShowArgs, SlurmCommand, StopArgs, TimelineArgs,
    },
    train::TrainArgs,
    trials::TrialsArgs,
    watch::{CompareArgs, ExplainArgs, RmArgs, TailArgs, TopArgs},
};
use super::{fit, output::Format};

const ABOUT: &str = "Hyper-parameter optimization that schedules GPUs by goodput";

/// What the user typed.
#[derive(Debug, Parser)]
#[command(name = "pollux-tune", version, about = ABOUT, arg_required_else_help = true)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Init(InitArgs),
    Doctor(DoctorArgs),
    Run(Box<RunArgs>),
    Agent(Box<AgentArgs>),
    Check(CheckArgs),
    /// Print the JSON Schema of study files, for editors
    Schema,
    AskTell(AskTellArgs),
    /// Show the state of a study
    Status(FolderArgs),
    Trials(TrialsArgs),
    Show(ShowArgs),
    Explain(ExplainArgs),
    Compare(CompareArgs),
    Tail(TailArgs),
    Top(TopArgs),
    Timeline(TimelineArgs),
    Dashboard(DashboardArgs),
    /// Show the machines of a study
    Nodes(FolderArgs),
    Drain(DrainArgs),
    Remove(RemoveArgs),
    Pause(PauseArgs),
    Resume(ResumeArgs),
    Enqueue(EnqueueArgs),
    Tag(TagArgs),
    Note(NoteArgs),
    Stop(StopArgs),
    Retry(RetryArgs),
    Fsck(FsckArgs),
    Rm(RmArgs),
    Best(BestArgs),
    Importance(ImportanceArgs),
    Export(ExportArgs),
    Report(ReportArgs),
    Plot(PlotArgs),
    Fit(FitArgs),
    Train(Box<TrainArgs>),
    #[command(subcommand)]
    Simulate(SimulateCommand),
    #[command(subcommand)]
    Slurm(SlurmCommand),
    Chaos(ChaosArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Fit the throughput model to measured step times
#[derive(Debug, Args)]
#[command(long_about = ABOUT_FIT, after_long_help = COLUMNS, arg_required_else_help = true)]
pub(super) struct FitArgs {
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

impl From<FitArgs> for fit::Settings {
    fn from(FitArgs { files, svg, json, title }: FitArgs) -> Self {
        let title = title.unwrap_or_else(|| fit::default_title(&files));
        let drawing = svg.map(|path| fit::Drawing { path, title });
        Self { files, format: format(json), drawing }
    }
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

/// A drawing must not replace a table because of a typo.
fn svg_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        Some(extension) if extension.eq_ignore_ascii_case("svg") => Ok(path),
        _ => Err("the name of a drawing must end in `.svg`".to_owned()),
    }
}

/// What `--json` means.
pub(super) const fn format(json: bool) -> Format {
    if json { Format::Json } else { Format::Text }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
