//! The command line: what the user typed becomes plain settings, and a command gets those.
//!
//! Data go to stdout, everything else to stderr. Exit codes: 0 is fine, 1 a failure, 2 a mistake in the
//! command line or in an input file, 101 a bug.
//!
//! *Architecture invariant:* commands know nothing of clap and write only to the handles they are given.

mod ask_tell;
mod figure;
mod fit;
mod inspect;
mod paper;
mod parallel;
mod plot;
mod profile;
mod results;
mod run;
mod simulate;
mod simulate_study;
mod stop;
mod study;
mod table;
mod table3;
mod timeline;
mod train;

use std::{
    io::{self, BufRead, Write},
    num::NonZero,
    panic,
    path::PathBuf,
    process::{self, ExitCode},
    thread,
};

use crate::sim::Rules;
use clap::{Args, Parser, Subcommand};

/// The exit code of a panic, also where panics abort.
const BUG: i32 = 101;

/// What a program can train; without the feature `torch`, nothing.
#[cfg(feature = "torch")]
type Trainables<'a> = &'a crate::worker::Registry;
#[cfg(not(feature = "torch"))]
type Trainables<'a> = std::marker::PhantomData<&'a ()>;

/// The `pollux-tune` program without any trainables. Started again as an emulated node, it emulates.
#[must_use]
pub fn main() -> ExitCode {
    #[cfg(feature = "torch")]
    let trainables = &crate::worker::Registry::default();
    #[cfg(not(feature = "torch"))]
    let trainables = std::marker::PhantomData;
    run_program(trainables)
}

/// The `pollux-tune` program with trainables of your own: all there is to the `main` of a program that trains.
///
/// Started again as a worker, it works. See the example `cifar10`.
#[cfg(feature = "torch")]
#[must_use]
pub fn main_with(trainables: &crate::worker::Registry) -> ExitCode {
    crate::worker::serve_if_worker(trainables);
    run_program(trainables)
}

fn run_program(trainables: Trainables) -> ExitCode {
    crate::emulate::serve_if_node();
    let default_hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        default_hook(info);
        process::exit(BUG);
    }));
    let arguments = Cli::parse();
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    let outcome = run(arguments, trainables, &mut io::stdin().lock(), &mut stdout, &mut io::stderr())
        .and_then(|code| stdout.flush().map(|()| code).map_err(output_error));
    match outcome {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to hear that stderr is gone.
            let _ = writeln!(io::stderr(), "error: {error:#}");
            exit_code(&error)
        }
    }
}

const ABOUT: &str = "Hyper-parameter optimization that schedules GPUs by goodput";

/// What the user typed.
#[derive(Debug, Parser)]
#[command(name = "pollux-tune", version, about = ABOUT, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::RunArgs>),
    Check(CheckArgs),
    /// Print the JSON Schema of study files, for editors
    Schema,
    AskTell(AskTellArgs),
    Status(StatusArgs),
    Trials(TrialsArgs),
    Show(ShowArgs),
    Timeline(timeline::TimelineArgs),
    Stop(stop::StopArgs),
    Best(BestArgs),
    Importance(ImportanceArgs),
    Fit(FitArgs),
    Train(train::TrainArgs),
    #[command(subcommand)]
    Simulate(SimulateCommand),
}

/// Simulate a cluster
#[derive(Debug, Subcommand)]
enum SimulateCommand {
    Workload(WorkloadArgs),
    Study(SimulateStudyArgs),
    Paper(PaperArgs),
}

/// Simulate a study: how long it would take, and under which policy
#[derive(Debug, Args)]
#[command(long_about = ABOUT_SIMULATE_STUDY, after_long_help = STUDY_POLICIES, arg_required_else_help = true)]
struct SimulateStudyArgs {
    /// The study file, with a trainable that was measured: cifar10, say
    #[arg(value_name = "STUDY.yaml")]
    study: PathBuf,
    /// The machines, such as 2x8xa100,4x4xt4, or a study file that has them [default: those of the study]
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,
    /// Policies to compare, with commas between [default: static,static-best,pollux,goodput]
    #[arg(long, value_name = "POLICY", value_delimiter = ',', hide_possible_values = true,
          value_parser = clap::builder::PossibleValuesParser::new(simulate_study::POLICIES))]
    policy: Vec<String>,
    /// Show too what goodput loses without each of the things that make it fast
    #[arg(long)]
    ablation: bool,
    /// How many seeds to simulate each of them with
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
    /// Seconds that a trial stands still when its GPUs change
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    restart_delay: f64,
    /// How many to simulate at the same time [default: one for each processor]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    /// Print a JSON object for each policy, on a line each, instead of text
    #[arg(long)]
    json: bool,
}

/// Repeat the published experiments, into a folder of tables and drawings (about 40 minutes of CPU time)
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
struct PaperArgs {
    /// Where to write; what is there of the same name is replaced
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Which experiments, with commas between [default: all]; those already in the folder stay
    #[arg(long, value_name = "EXPERIMENT", value_delimiter = ',',
          value_parser = clap::builder::PossibleValuesParser::new(paper::EXPERIMENTS))]
    only: Vec<String>,
    /// How many workloads of each kind to take, and seeds of a study, at most
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=8))]
    workloads: u8,
    /// How many to simulate at the same time [default: one for each processor]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
}

/// Simulate a cluster that trains a list of jobs
#[derive(Debug, Args)]
#[command(long_about = ABOUT_WORKLOAD, after_long_help = WORKLOAD_COLUMNS, arg_required_else_help = true)]
struct WorkloadArgs {
    /// The jobs, a CSV file with a header line
    #[arg(value_name = "FILE.csv")]
    file: PathBuf,
    /// Who shares the GPUs out: goodput, pollux, optimus, tiresias or static
    #[arg(long, default_value = "goodput")]
    policy: String,
    /// The machines, such as 2x8xa100,4x4xt4, or a study file that has them
    #[arg(long, value_name = "CLUSTER", default_value = "16x4xt4")]
    cluster: String,
    /// Seconds between two decisions, at most
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    interval: f64,
    /// The fairness exponent of goodput and pollux [default: -1; without it, goodput aims at a low mean completion time]
    #[arg(long, allow_negative_numbers = true)]
    p: Option<f64>,
    /// The share of its speed that a distributed job loses next to another one on the same node
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    interference: f64,
    /// Let distributed jobs share nodes
    #[arg(long)]
    no_avoidance: bool,
    /// Seconds that a job stands still when its GPUs change
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    restart_delay: f64,
    /// For policies that draw random numbers
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Follow the simulator of a paper to the second, its quirks included
    #[arg(long, value_name = "PAPER", value_enum)]
    compat: Option<Compat>,
    /// Print one JSON object instead of text, all jobs included
    #[arg(long)]
    json: bool,
}

/// Whose simulator to follow.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Compat {
    /// Pollux (OSDI'21)
    Osdi21,
    /// Sia (SOSP'23)
    Sosp23,
}

impl Compat {
    const fn rules(self) -> Rules {
        match self {
            Self::Osdi21 => Rules::Osdi21,
            Self::Sosp23 => Rules::Sosp23,
        }
    }
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

/// Suggest parameters to any program, as lines of JSON
#[derive(Debug, Args)]
#[command(long_about = ABOUT_ASK_TELL, after_long_help = REQUESTS, arg_required_else_help = true)]
struct AskTellArgs {
    /// The study file
    #[arg(value_name = "STUDY.yaml")]
    study: PathBuf,
    /// Keep the study in this folder, and resume it if there is one
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Import this journal of an earlier version when the study begins; its folder is beside it unless --folder is given
    #[arg(long, value_name = "FILE.jsonl")]
    journal: Option<PathBuf>,
    /// Learn from an earlier study before the first trial; may be given several times
    #[arg(long, value_name = "FOLDER|FILE.jsonl")]
    warm_start: Vec<PathBuf>,
}

/// Show how a study stands
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
struct StatusArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Show all trials of a study
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
struct TrialsArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Print one JSON object for each trial instead of text
    #[arg(long)]
    json: bool,
}

/// Show a trial of a study, and what happened to it
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
struct ShowArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// The number of the trial
    #[arg(value_name = "TRIAL")]
    trial: u32,
    /// Print one JSON object instead of text; times are in seconds since the study began
    #[arg(long)]
    json: bool,
}

/// Show the best trials of a study, or its Pareto front
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
struct BestArgs {
    /// The folder of a study, or a journal that an earlier version of `ask-tell` wrote
    #[arg(value_name = "FOLDER|FILE.jsonl")]
    journal: PathBuf,
    /// How many to show; with several objectives, the whole front is shown
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 10)]
    count: usize,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Show how much each parameter matters
#[derive(Debug, Args)]
#[command(long_about = ABOUT_IMPORTANCE, arg_required_else_help = true)]
struct ImportanceArgs {
    /// The folder of a study, or a journal that an earlier version of `ask-tell` wrote
    #[arg(value_name = "FOLDER|FILE.jsonl")]
    journal: PathBuf,
    /// The objective to explain [default: the first one]
    #[arg(long, value_name = "METRIC")]
    objective: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

const ABOUT_ASK_TELL: &str = "\
Suggest parameters to any program, as lines of JSON

Reads one request on each line of the standard input and answers on the standard output. Mistakes are answered
with {\"error\": ..., \"line\": ...} and change nothing. Ends when the input ends.";

const REQUESTS: &str = "\
Requests:
  {\"ask\": 1}                                         -> {\"id\": 0, \"params\": {\"lr\": 0.01}}
  {\"report\": {\"id\": 0, \"epochs\": 1, \"value\": 0.5}}   -> {\"id\": 0, \"stop\": false}
  {\"tell\": {\"id\": 0, \"value\": 0.9}}                  -> {\"id\": 0, \"state\": \"done\"}
  {\"tell\": {\"id\": 0, \"values\": [0.9, 12.5]}}         with several objectives
  {\"tell\": {\"id\": 0, \"state\": \"failed\"}}             or \"stopped\", or \"cancelled\"
  {\"enqueue\": {\"lr\": 0.1}}                           -> {\"enqueued\": 1}
  {\"best\": 5}  {\"front\": {}}  {\"importance\": {}}  {\"status\": {}}
All of it is described in docs/ask-tell.md.";

const ABOUT_IMPORTANCE: &str = "\
Show how much each parameter matters

The share of the objective's variance that each parameter explains by itself, from a random forest over the
finished trials (functional ANOVA, Hutter et al. 2014).";

const ABOUT_SIMULATE_STUDY: &str = "\
Simulate a study: how long it would take, and under which policy

Runs the engine of live studies in virtual time, with trials that train as fast as was measured. How well they
do is from a synthetic surface over lr, momentum, weight_decay, annealing and width.";

const STUDY_POLICIES: &str = "\
Policies:
  static       the same number of GPUs for each trial, with a fixed batch on each GPU: trial.batch_per_gpu, or the
               initial batch
  static-best  the same with the best fixed batch, found by trying all
  pollux       the search of the paper, with its rules: decisions in intervals, and nothing shared among trials
  goodput      by goodput, with a proven gap
  optimus      by remaining time, with a fixed batch
  tiresias     by attained service, with a fixed batch

Example:
  pollux-tune simulate study search-spaces/table3.yaml --cluster 2x8xa100 --ablation";

const ABOUT_WORKLOAD: &str = "\
Simulate a cluster that trains a list of jobs

Each job trains one of six measured models. The policy is asked whenever a job comes or goes, and at least
once in every interval.";

const WORKLOAD_COLUMNS: &str = "\
Columns, in any order:
  name          of the job
  time          of its submission, in seconds
  application   bert, cifar10, deepspeech2, imagenet, ncf or yolov3
  num_replicas  GPUs that its user asks for, for policies that do not adapt
  batch_size    total batch that its user asks for, likewise
Lines that begin with `#` are ignored. Step times were measured on t4 (up to 4 GPUs in a node), a100 and
rtx2080ti (up to 8).

Example:
  pollux-tune simulate workload data/workloads/osdi21/load-1.0/workload-1.csv --policy tiresias --compat osdi21";

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
fn run(
    cli: Cli,
    trainables: Trainables,
    input: &mut impl BufRead,
    out: &mut impl Write,
    notes: &mut (impl Write + Send),
) -> anyhow::Result<ExitCode> {
    if let Command::Run(arguments) = &cli.command {
        return run::run(arguments, trainables, out, notes).map(run::Exit::code);
    }
    let format = |json| if json { fit::Format::Json } else { fit::Format::Text };
    match cli.command {
        // Above: it alone has an exit code of its own.
        Command::Run(_) => Ok(()),
        Command::Fit(FitArgs { files, svg, json, title }) => {
            let format = format(json);
            let title = title.unwrap_or_else(|| fit::default_title(&files));
            let drawing = svg.map(|path| fit::Drawing { path, title });
            fit::run(&fit::Settings { files, format, drawing }, out, notes)
        }
        #[cfg(feature = "torch")]
        Command::Train(arguments) => train::run(&arguments, trainables, out, notes),
        #[cfg(not(feature = "torch"))]
        Command::Train(arguments) => train::run(&arguments),
        Command::Simulate(SimulateCommand::Paper(PaperArgs { folder, only, workloads, threads })) => {
            let threads = threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZero::get));
            paper::run(&paper::Settings { folder, only, workloads: workloads.into(), threads }, notes)
        }
        Command::Simulate(SimulateCommand::Study(args)) => {
            let threads =
                args.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZero::get));
            let settings = simulate_study::Settings {
                study: args.study,
                cluster: args.cluster,
                policies: args.policy,
                ablation: args.ablation,
                seeds: args.seeds,
                realloc_s: args.restart_delay,
                threads,
                format: format(args.json),
            };
            simulate_study::run(&settings, out, notes)
        }
        Command::Simulate(SimulateCommand::Workload(args)) => {
            let settings = simulate::Settings {
                workload: args.file,
                policy: args.policy,
                cluster: args.cluster,
                rules: args.compat.map_or(Rules::Own, Compat::rules),
                interval_s: args.interval,
                p: args.p,
                interference: args.interference,
                avoid_interference: !args.no_avoidance,
                restart_delay_s: args.restart_delay,
                seed: args.seed,
                format: format(args.json),
            };
            simulate::workload(&settings, out, notes)
        }
        Command::Check(CheckArgs { files }) => study::check(&files, out, notes),
        Command::Schema => study::schema(out),
        Command::AskTell(AskTellArgs { study, folder, journal, warm_start }) => {
            ask_tell::run(&ask_tell::Settings { study, folder, journal, warm_start }, input, out, notes)
        }
        Command::Status(StatusArgs { folder, json }) => inspect::status(&folder, format(json), out),
        Command::Trials(TrialsArgs { folder, json }) => inspect::trials(&folder, format(json), out),
        Command::Show(ShowArgs { folder, trial, json }) => inspect::show(&folder, trial, format(json), out),
        Command::Timeline(arguments) => timeline::run(&arguments, out),
        Command::Stop(arguments) => stop::run(&arguments, out, notes),
        Command::Best(BestArgs { journal, count, json }) => results::best(&journal, count, format(json), out),
        Command::Importance(ImportanceArgs { journal, objective, json }) => {
            results::importance(&journal, objective.as_deref(), format(json), out)
        }
    }
    .map(|()| ExitCode::SUCCESS)
}

/// Stdout cannot be written.
fn output_error(error: io::Error) -> anyhow::Error {
    anyhow::Error::new(error).context("cannot write the output")
}

/// Whether the reader of stdout has seen enough, as in `| head`: the end, but not a failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// 2 if an input file is to blame, else 1.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    let of_input = error.is::<profile::Error>()
        || error.is::<study::Error>()
        || error.is::<ask_tell::Error>()
        || error.is::<results::Error>()
        || error.is::<inspect::Error>()
        || error.is::<stop::Error>()
        || error.downcast_ref::<crate::store::Error>().is_some_and(inspect::is_of_input)
        || error.is::<crate::trials::Error>()
        || error.is::<train::Error>()
        || error.is::<run::Error>()
        || error.downcast_ref::<crate::actors::Error>().is_some_and(crate::actors::Error::is_of_input)
        || error.is::<simulate::Error>();
    ExitCode::from(if of_input { 2 } else { 1 })
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
