//! Commands about studies: `check`, `ask-tell`, `status`, `trials`, `show`, `timeline`, `nodes`, `drain`, `remove`, `stop`, `retry`, `fsck`, `best` and
//! `importance`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};

use super::svg_path;
use crate::{cli::ask_tell, space};

/// Check study files, and show all mistakes at once
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct CheckArgs {
    /// Study files, see docs/search-spaces.md
    #[arg(required = true, value_name = "STUDY.yaml")]
    pub(crate) files: Vec<PathBuf>,
}

/// Suggest parameters to any program, as lines of JSON
#[derive(Debug, Args)]
#[command(long_about = ABOUT_ASK_TELL, after_long_help = REQUESTS, arg_required_else_help = true)]
pub(crate) struct AskTellArgs {
    /// The study file
    #[arg(value_name = "STUDY.yaml")]
    study: PathBuf,
    /// Keep the study in this folder, and resume it if there is one
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Import this journal of an earlier version when the study begins; its folder is next to it unless --folder is given
    #[arg(long, value_name = "FILE.jsonl")]
    journal: Option<PathBuf>,
    /// Learn from an earlier study before the first trial, also from a database of Optuna; may be given several times
    #[arg(long, value_name = "FOLDER|FILE[#NAME]")]
    warm_start: Vec<PathBuf>,
}

impl From<AskTellArgs> for ask_tell::Settings {
    fn from(AskTellArgs { study, folder, journal, warm_start }: AskTellArgs) -> Self {
        Self { study, folder, journal, warm_start }
    }
}

const ABOUT_ASK_TELL: &str = "\
Suggest parameters to any program, as lines of JSON

Reads one request on each line of the standard input and answers on the standard output. Invalid requests are
answered with {\"error\": ..., \"line\": ...} and change nothing. Ends when the input ends.";

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

// Without a doc comment: each command that takes it has its own.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct FolderArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
    /// Print JSON instead of text (see docs/json.md)
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show or cancel the jobs that a study has in Slurm
#[derive(Debug, Subcommand)]
pub(crate) enum SlurmCommand {
    /// Show the jobs of a study that Slurm knows of
    Status(FolderArgs),
    Cancel(CancelArgs),
}

/// Cancel all jobs of a study; while it runs, it asks for others
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct CancelArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
}

/// Show a trial of a study, and what happened to it
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct ShowArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
    /// The number of the trial
    #[arg(value_name = "TRIAL")]
    pub(crate) trial: u32,
    /// Print one JSON object instead of text; times are in seconds since the study began
    #[arg(long)]
    pub(crate) json: bool,
}

/// Draw how slots moved among the trials of a study
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct TimelineArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
    /// Where to draw [default: timeline.svg in the folder]
    #[arg(long, value_name = "OUT.svg", value_parser = svg_path)]
    pub(crate) svg: Option<PathBuf>,
}

/// Let machines leave a study when nothing runs there any more
#[derive(Debug, Args)]
#[command(long_about = ABOUT_DRAIN, arg_required_else_help = true)]
pub(crate) struct DrainArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
    /// Numbers or names of machines, as `pollux-tune nodes` shows them
    #[arg(value_name = "NODE", required = true)]
    pub(crate) nodes: Vec<String>,
}

const ABOUT_DRAIN: &str = "\
Let machines leave a study when nothing runs there any more

Nothing new is placed on them. Trials that can move do so, with their state; if there is no room elsewhere, they
are saved and wait. Programs run to their end. The study must be running.";

/// Take machines from a study, whatever runs there
#[derive(Debug, Args)]
#[command(long_about = ABOUT_REMOVE, arg_required_else_help = true)]
pub(crate) struct RemoveArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
    /// Numbers or names of machines, as `pollux-tune nodes` shows them
    #[arg(value_name = "NODE", required = true)]
    pub(crate) nodes: Vec<String>,
    /// How long trials have to leave
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = grace)]
    pub(crate) grace: Duration,
}

const ABOUT_REMOVE: &str = "\
Take machines from a study, whatever runs there

As `drain`, but what has not left after some time is ended: it resumes elsewhere from its last checkpoint, and
programs start again. This does not count as a failure of the trial.";

fn grace(text: &str) -> Result<Duration, String> {
    space::duration(text).ok_or_else(|| "write a time with its unit, such as 0s, 30s or 5m".to_owned())
}

/// Stop a study that runs, to resume it later
#[derive(Debug, Args)]
#[command(long_about = ABOUT_STOP, arg_required_else_help = true)]
pub(crate) struct StopArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
    /// Do not wait until it has stopped
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Stop only this trial, for good, while the study continues; may be given several times
    #[arg(long, value_name = "TRIAL", conflicts_with = "no_wait")]
    pub(crate) trial: Vec<u32>,
}

const ABOUT_STOP: &str = "\
Stop a study that runs, to resume it later

Asks the process that runs the study to stop as by Ctrl-C: trials write their state first. Then shows the
state of the study. With --trial, only these trials end, as cancelled, and others get their slots.";

/// Let failed trials of a study run again
#[derive(Debug, Args)]
#[command(long_about = ABOUT_RETRY, arg_required_else_help = true)]
pub(crate) struct RetryArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
    /// The numbers of failed trials [default: all of them]
    #[arg(value_name = "TRIAL")]
    pub(crate) trials: Vec<u32>,
}

const ABOUT_RETRY: &str = "\
Let failed trials of a study run again

The next `run` runs them with the same parameters, from their last checkpoint if there is one, and the search
forgets that they failed. A study that is done or has failed is open again. It must not be running.";

/// Check whether the journal of a study is complete and undamaged, and repair it
#[derive(Debug, Args)]
#[command(long_about = ABOUT_FSCK, arg_required_else_help = true)]
pub(crate) struct FsckArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
    /// Keep the facts up to the first that is not whole, and move the damaged files aside
    #[arg(long)]
    pub(crate) repair: bool,
}

const ABOUT_FSCK: &str = "\
Check whether the journal of a study is complete and undamaged, and repair it

Checks every fact against the checksums that were written with it, their number against journal.seal, and
the tables that other commands read; and every checkpoint: which are whole, damaged, or of another study.
The exit code is 0 if all is whole, and 1 if not. --repair is for the journal: a checkpoint that cannot be
used is put aside by the trial that meets it.";

/// Show the best trials of a study, or its Pareto front
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct BestArgs {
    /// The folder of a study, or a journal that an earlier version of `ask-tell` wrote
    #[arg(value_name = "FOLDER|FILE.jsonl")]
    pub(crate) journal: PathBuf,
    /// The number of trials to show; with several objectives, the whole front is shown
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 10)]
    pub(crate) count: usize,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show how much each parameter matters
#[derive(Debug, Args)]
#[command(long_about = ABOUT_IMPORTANCE, arg_required_else_help = true)]
pub(crate) struct ImportanceArgs {
    /// The folder of a study, or a journal that an earlier version of `ask-tell` wrote
    #[arg(value_name = "FOLDER|FILE.jsonl")]
    pub(crate) journal: PathBuf,
    /// The objective to explain [default: the first one]
    #[arg(long, value_name = "METRIC")]
    pub(crate) objective: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

const ABOUT_IMPORTANCE: &str = "\
Show how much each parameter matters

The share of the objective's variance that each parameter explains by itself, from a random forest over the
finished trials (functional ANOVA, Hutter et al. 2014).";
