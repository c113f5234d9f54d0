//! `init`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::init::{Kind, Settings};

const EXAMPLES: &str = "\
Examples:
  A study of any program, as study.yaml:
    pollux-tune init
  A study of an elastic PyTorch script, and the script train.py:
    pollux-tune init --python
  A Rust program with a model of its own, in the new folder mine:
    pollux-tune init --rust mine
What is written runs as it is: change it from there.";

/// Write a commented study file to begin with, and what it trains
///
/// Nothing is ever overwritten.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct InitArgs {
    /// The study file
    #[arg(value_name = "FILE", default_value = "study.yaml")]
    file: PathBuf,
    /// Also write train.py next to it, an elastic PyTorch script, and let the study train it
    #[arg(long, conflicts_with = "rust")]
    python: bool,
    /// Write a Rust project into this folder instead, with a trainable of your own and its study
    #[arg(long, value_name = "FOLDER", conflicts_with = "file")]
    rust: Option<PathBuf>,
    /// The source of pollux-tune for the Rust project [default: where this program was built, if it is there, else the published one]
    #[arg(long, value_name = "FOLDER", requires = "rust")]
    source: Option<PathBuf>,
}

impl From<InitArgs> for Settings {
    fn from(InitArgs { file, python, rust, source }: InitArgs) -> Self {
        let kind = match rust {
            Some(folder) => Kind::Rust { folder, source },
            None if python => Kind::Python { file },
            None => Kind::Program { file },
        };
        Self { kind }
    }
}
