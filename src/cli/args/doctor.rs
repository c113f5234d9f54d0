//! `doctor`.

use std::path::PathBuf;

use clap::Args;

use super::format;
use crate::cli::doctor::Settings;

const EXAMPLES: &str = "\
Examples:
  Is this machine ready?
    pollux-tune doctor
  Is it ready for this study: its Python, its Slurm, its folder?
    pollux-tune doctor study.yaml
The exit code is 1 if there is a problem, and 0 if there are only notes.";

/// Check what studies need of this machine, and say how to repair it
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// Look for what this study needs, too
    #[arg(value_name = "STUDY.yaml")]
    study: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl From<DoctorArgs> for Settings {
    fn from(DoctorArgs { study, json }: DoctorArgs) -> Self {
        Self { study, format: format(json) }
    }
}
