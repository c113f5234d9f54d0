//! `trials`.

use std::path::PathBuf;

use clap::Args;

use crate::{
    cli::{
        annotate::parse_tag,
        trial_table::{Condition, Wanted, state},
    },
    store::TrialState,
};

const EXAMPLES: &str = "\
Examples:
  The best ones first, of those with a small learning rate:
    pollux-tune trials studies/cifar10 --where 'lr<0.01' --sort accuracy -n 10
  Why trials have failed:
    pollux-tune trials studies/cifar10 --state failed --columns trial,duration,reason";

/// Show the trials of a study, with filters and sorting
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct TrialsArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
    /// Only trials in one of these states, such as done,running
    #[arg(long, value_name = "STATE,...", value_delimiter = ',', value_parser = state)]
    state: Vec<TrialState>,
    /// Only trials with this tag; may be given several times
    #[arg(long = "tag", value_name = "TAG", value_parser = parse_tag)]
    tags: Vec<String>,
    /// Only trials for which this holds, such as lr<0.01 or optimizer=sgd; may be given several times
    #[arg(long = "where", value_name = "CONDITION")]
    conditions: Vec<Condition>,
    /// Sort by a column; by an objective, the best come first
    #[arg(long, value_name = "COLUMN")]
    sort: Option<String>,
    /// The other way round
    #[arg(short, long)]
    reverse: bool,
    /// At most this many trials
    #[arg(short = 'n', long, value_name = "COUNT")]
    count: Option<usize>,
    /// The columns to show: trial, state, epochs, slots, batch, start, end, duration, `slot_seconds`, reason, tags, note, parameters, and each metric
    /// and each parameter by its name; times count from the beginning of the study
    #[arg(long, value_name = "COLUMN,...", value_delimiter = ',', conflicts_with = "json")]
    columns: Vec<String>,
    /// Print a JSON object for each trial instead of text (see docs/json.md)
    #[arg(long)]
    pub(crate) json: bool,
}

impl From<TrialsArgs> for Wanted {
    fn from(TrialsArgs { state, tags, conditions, sort, reverse, count, columns, .. }: TrialsArgs) -> Self {
        Self { states: state, tags, conditions, sort, reverse, count, columns }
    }
}
