//! `tag` and `note`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::annotate::parse_tag;

/// Tag a study or some of its trials
#[derive(Debug, Args)]
#[command(long_about = ABOUT_TAG, after_long_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct TagArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
    /// The tags to add or remove; without any, the present tags are shown
    #[arg(value_name = "TAG", value_parser = parse_tag)]
    pub(crate) tags: Vec<String>,
    /// Tag these trials instead of the study, such as 3,7
    #[arg(long = "trial", value_name = "TRIAL,...", value_delimiter = ',')]
    pub(crate) trials: Vec<u32>,
    /// Take the tags away
    #[arg(long, requires = "tags")]
    pub(crate) remove: bool,
}

const ABOUT_TAG: &str = "\
Tag a study or some of its trials

Tags are words to find things by: `status`, `show`, `trials` and their --json show them, `trials --tag` selects by them.
They change nothing else, and can be given at any time.";

const EXAMPLES: &str = "\
Examples:
  pollux-tune tag studies/cifar10 baseline
  pollux-tune tag studies/cifar10 --trial 3,7 good
  pollux-tune trials studies/cifar10 --tag good";

/// Write a note about a study or some of its trials
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct NoteArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
    /// The note, in place of the one before; an empty text removes it, and without a text, all notes are shown
    #[arg(value_name = "TEXT")]
    pub(crate) text: Option<String>,
    /// Write it to these trials instead of the study, such as 3,7
    #[arg(long = "trial", value_name = "TRIAL,...", value_delimiter = ',')]
    pub(crate) trials: Vec<u32>,
}
