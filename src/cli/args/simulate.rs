//! `simulate workload`, `simulate study` and `simulate paper`.

use std::{num::NonZero, path::PathBuf, thread};

use clap::{Args, Subcommand};

use super::format;
use crate::{
    cli::{paper, simulate, simulate_study},
    sim::Rules,
    space::Parallel,
};

/// Simulate a cluster
#[derive(Debug, Subcommand)]
pub(crate) enum SimulateCommand {
    Workload(WorkloadArgs),
    Study(SimulateStudyArgs),
    Paper(PaperArgs),
}

/// Simulate a study: how long it would take, and under which policy
#[derive(Debug, Args)]
#[command(long_about = ABOUT_SIMULATE_STUDY, after_long_help = STUDY_POLICIES, arg_required_else_help = true)]
pub(crate) struct SimulateStudyArgs {
    /// The study file, with a trainable that was measured, such as cifar10
    #[arg(value_name = "STUDY.yaml")]
    study: PathBuf,
    /// The machines, such as 2x8xa100,4x4xt4, or a study file that has them [default: those of the study]
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,
    /// Policies to compare, separated by commas [default: static,static-best,pollux,pollux-now,goodput,auto]
    #[arg(long, value_name = "POLICY", value_delimiter = ',', hide_possible_values = true,
          value_parser = clap::builder::PossibleValuesParser::new(simulate_study::POLICIES))]
    policy: Vec<String>,
    /// Also show what goodput loses without each of its parts
    #[arg(long)]
    ablation: bool,
    /// The number of seeds for each of them
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
    /// Seconds that a trial pauses when its GPUs change; 30 in the simulator of the paper
    #[arg(long, value_name = "SECONDS", default_value_t = 0.1)]
    restart_delay: f64,
    /// The number of trials at a time, or auto [default: that of the study]
    #[arg(long, value_name = "NUMBER")]
    parallel: Option<Parallel>,
    /// The number of simulations at the same time [default: one for each processor]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    /// Keep what happened with the first seed, a study for each policy, for `dashboard`, `timeline` and `export`
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Print a JSON object for each policy, on a line each, instead of text
    #[arg(long)]
    json: bool,
}

impl From<SimulateStudyArgs> for simulate_study::Settings {
    fn from(args: SimulateStudyArgs) -> Self {
        Self {
            study: args.study,
            cluster: args.cluster,
            policies: args.policy,
            ablation: args.ablation,
            seeds: args.seeds,
            realloc_s: args.restart_delay,
            parallel: args.parallel,
            threads: threads(args.threads),
            keep: args.keep,
            format: format(args.json),
        }
    }
}

/// Repeat the published experiments, into a folder of tables and drawings (about 40 minutes of CPU time)
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct PaperArgs {
    /// Where to write; files of the same names are replaced
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Which experiments, separated by commas [default: all]; those already in the folder stay
    #[arg(long, value_name = "EXPERIMENT", value_delimiter = ',',
          value_parser = clap::builder::PossibleValuesParser::new(paper::EXPERIMENTS))]
    only: Vec<String>,
    /// The largest number of workloads of each kind, and of seeds of a study
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=8))]
    workloads: u8,
    /// The number of simulations at the same time [default: one for each processor]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
}

impl From<PaperArgs> for paper::Settings {
    fn from(PaperArgs { folder, only, workloads, threads: count }: PaperArgs) -> Self {
        Self { folder, only, workloads: workloads.into(), threads: threads(count) }
    }
}

/// One for each processor by default.
fn threads(count: Option<usize>) -> usize {
    count.unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZero::get))
}

/// Simulate a cluster that trains a list of jobs
#[derive(Debug, Args)]
#[command(long_about = ABOUT_WORKLOAD, after_long_help = WORKLOAD_COLUMNS, arg_required_else_help = true)]
pub(crate) struct WorkloadArgs {
    /// The jobs, a CSV file with a header line
    #[arg(value_name = "FILE.csv")]
    file: PathBuf,
    /// The policy that divides the GPUs: goodput, pollux, optimus, tiresias or static
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
    /// Seconds that a job pauses when its GPUs change
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

impl From<WorkloadArgs> for simulate::Settings {
    fn from(args: WorkloadArgs) -> Self {
        Self {
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
        }
    }
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

const ABOUT_SIMULATE_STUDY: &str = "\
Simulate a study: how long it would take, and under which policy

Runs the engine of live studies in virtual time, with trials that train as fast as was measured. Their results
are from a synthetic surface over lr, momentum, weight_decay, annealing and width.";

const STUDY_POLICIES: &str = "\
Policies:
  static       the same number of GPUs for each trial, with a fixed batch on each GPU: trial.batch_per_gpu, or the
               initial batch
  static-best  the same with the best fixed batch, found by trying all
  pollux       the search of the paper, with its rules: decisions in intervals, and nothing shared among trials
  pollux-now   the same, but it decides as soon as something changes
  goodput      by goodput, with a proven gap
  auto         the same, and it chooses how many trials are active at a time
  optimus      by remaining time, with a fixed batch
  tiresias     by attained service, with a fixed batch

Beside each result is how much of its time a scheduler would need that knows everything and moves GPUs at no cost.

Example:
  pollux-tune simulate study search-spaces/table3.yaml --cluster 2x8xa100 --ablation";

const ABOUT_WORKLOAD: &str = "\
Simulate a cluster that trains a list of jobs

Each job trains one of six measured models. The policy is asked whenever a job is submitted or ends, and at least
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
