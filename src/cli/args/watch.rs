//! Commands that look at studies from another terminal, and `rm`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::tail;

/// Explain why a trial has its GPUs, what it would do with others, and why it was stopped
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct ExplainArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
    /// The number of the trial
    #[arg(value_name = "TRIAL")]
    pub(crate) trial: u32,
    /// Print one JSON object instead of text (see docs/json.md)
    #[arg(long)]
    pub(crate) json: bool,
}

/// Compare two studies, or trials of one
#[derive(Debug, Args)]
#[command(long_about = ABOUT_COMPARE, arg_required_else_help = true)]
pub(crate) struct CompareArgs {
    /// The folders of two studies, or of one with --trials
    #[arg(value_name = "FOLDER", required = true, num_args = 1..=2)]
    pub(crate) folders: Vec<PathBuf>,
    /// The numbers of trials of one study, such as 3,7
    #[arg(long, value_name = "TRIAL,...", value_delimiter = ',')]
    pub(crate) trials: Vec<u32>,
    /// Print one JSON object instead of text (see docs/json.md)
    #[arg(long)]
    pub(crate) json: bool,
}

const ABOUT_COMPARE: &str = "\
Compare two studies, or trials of one

Of two studies: how many trials have ended how, the best results, the time, and all settings that differ. Of trials:
their results, curves, times and parameters.";

/// Follow what happens in a study, from another terminal
#[derive(Debug, Args)]
#[command(long_about = ABOUT_TAIL, arg_required_else_help = true)]
pub(crate) struct TailArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
    /// Only this trial, with the lines of its log
    #[arg(long, value_name = "TRIAL")]
    pub(crate) trial: Option<u32>,
    /// How many lines of what has happened before are shown
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 10)]
    pub(crate) lines: usize,
    /// Print what there is, and do not wait for more
    #[arg(long)]
    pub(crate) no_follow: bool,
}

const ABOUT_TAIL: &str = "\
Follow what happens in a study, from another terminal

Prints the last lines that `run` has or would have printed, and then each new one, until nobody runs the study any more.";

/// Watch a study that runs, from another terminal
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct TopArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
    /// Print it once
    #[arg(long)]
    pub(crate) once: bool,
}

impl From<&TailArgs> for tail::Settings {
    fn from(&TailArgs { trial, lines, no_follow, .. }: &TailArgs) -> Self {
        Self { trial, lines, follow: !no_follow }
    }
}

/// Delete studies with all that belongs to them
#[derive(Debug, Args)]
#[command(long_about = ABOUT_RM, arg_required_else_help = true)]
pub(crate) struct RmArgs {
    /// The folders of the studies
    #[arg(value_name = "FOLDER", required = true)]
    pub(crate) folders: Vec<PathBuf>,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

const ABOUT_RM: &str = "\
Delete studies with all that belongs to them

Deletes journals, checkpoints, logs and pictures, after a question. What is not of the study stays, and so does a study
that runs.";
