//! `export`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::export;

/// Write a study for other tools, or the weights of a trial
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct ExportArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// The file or folder to write
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// The format [default: by the ending of OUT: .csv, .parquet, .json, .db for Optuna, .safetensors]
    #[arg(long, value_name = "FORMAT")]
    format: Option<export::Format>,
    /// A row for each report instead of each trial, in CSV and Parquet
    #[arg(long)]
    reports: bool,
    /// The trial whose weights are written: its number, or `best` [default: best]
    #[arg(long, value_name = "N|best", value_parser = chosen)]
    trial: Option<export::Chosen>,
    /// Replace what is there
    #[arg(long)]
    force: bool,
}

impl From<ExportArgs> for export::Settings {
    fn from(ExportArgs { folder, output, format, reports, trial, force }: ExportArgs) -> Self {
        Self { folder, output, format, trial, reports, force }
    }
}

fn chosen(text: &str) -> Result<export::Chosen, String> {
    match (text, text.parse()) {
        ("best", _) => Ok(export::Chosen::Best),
        (_, Ok(number)) => Ok(export::Chosen::Number(number)),
        _ => Err("expected `best` or the number of a trial".to_owned()),
    }
}

const ABOUT: &str = "\
Write a study for other tools, or the weights of a trial

The study may run meanwhile. Tables have columns as Optuna's trials_dataframe: values_accuracy, params_lr.
docs/export.md describes each format.

Weights are the model in the last checkpoint of a trial: its variables and buffers with the names that it has
for them, and nothing of the optimizer. In Python
`model.load_state_dict(safetensors.torch.load_file(\"model.safetensors\"))` reads the file, in Rust
`VarStore::load` of tch. Only trials that workers train have weights, in Rust or in Python. Which checkpoints a
study keeps after the end of a trial is said by trial.keep_checkpoints, or `run --keep-checkpoints`: that of the
best one by default.";

const EXAMPLES: &str = "\
Examples:
  pollux-tune export studies/cifar10 -o trials.csv
  pollux-tune export studies/cifar10 -o reports.parquet --reports
  pollux-tune export studies/cifar10 -o optuna.db      then: optuna-dashboard sqlite:///optuna.db
  pollux-tune export studies/cifar10 -o runs/cifar10 --format tensorboard
  pollux-tune export studies/cifar10 -o mlruns --format mlflow
  pollux-tune export studies/cifar10 -o model.safetensors --trial best";
