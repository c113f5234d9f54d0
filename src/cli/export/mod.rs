//! `pollux-tune export`: a study, or the weights of a trial, in the formats of other tools.
//!
//! `record` is what exports say of a study; the modules of the formats turn it into bytes, and only here are files written.
//!
//! *Architecture invariant:* what is written is whole or not there, and nothing is replaced that `--force` does not name.

mod csv;
mod folder;
mod json;
mod mlflow;
mod optuna;
mod parquet;
mod record;
mod table;
mod tensorboard;
mod time;
mod weights;

use std::{
    fs,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use clap::ValueEnum;
use thiserror::Error;

use self::record::{Record, Recorder};
pub(super) use self::weights::{Chosen, has_best_weights};
use super::output::{pluralize, temporary, write_whole};
use crate::{
    cli,
    store::{self, Reader},
};

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// A table with a row for each trial
    Csv,
    /// The same for pandas, Polars or DuckDB, with types
    Parquet,
    /// All of the study in one object, with the reports of each trial
    Json,
    /// A database for Optuna and optuna-dashboard
    Optuna,
    /// A folder for `tensorboard --logdir`: curves, and the page HPARAMS
    Tensorboard,
    /// A folder as MLflow's `mlruns`, with an experiment for the study
    Mlflow,
    /// The weights of a trial
    Safetensors,
}

impl Format {
    const ENDINGS: [(&str, Self); 8] = [
        ("csv", Self::Csv),
        ("parquet", Self::Parquet),
        ("json", Self::Json),
        ("db", Self::Optuna),
        ("sqlite", Self::Optuna),
        ("sqlite3", Self::Optuna),
        ("optuna", Self::Optuna),
        ("safetensors", Self::Safetensors),
    ];

    fn of_path(path: &Path) -> Option<Self> {
        let ending = path.extension()?.to_str()?.to_ascii_lowercase();
        Self::ENDINGS.into_iter().find(|(known, _)| *known == ending).map(|(_, format)| format)
    }

    /// What the format is by name, or by that of the file.
    fn choose(settings: &Settings) -> Result<Self, Error> {
        let by_path = || Self::of_path(&settings.output);
        // Before there were others, any name was one of weights.
        let of_trial = || settings.trial.is_some().then_some(Self::Safetensors);
        let format = settings.format.or_else(by_path).or_else(of_trial);
        let format = format.ok_or_else(|| Error::NoFormat(settings.output.clone()))?;
        if settings.trial.is_some() && format != Self::Safetensors {
            return Err(Error::OnlyWeights);
        }
        if settings.reports && !matches!(format, Self::Csv | Self::Parquet) {
            return Err(Error::OnlyTables);
        }
        Ok(format)
    }
}

/// What is to be exported.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) folder: PathBuf,
    pub(super) output: PathBuf,
    /// Without one, the name of the output decides.
    pub(super) format: Option<Format>,
    /// Whose weights; the best one's, if it is not said.
    pub(super) trial: Option<Chosen>,
    /// A row for each report instead of each trial.
    pub(super) reports: bool,
    /// Whether it may replace a file.
    pub(super) force: bool,
}

/// Why nothing can be exported.
#[derive(Debug, Error)]
pub(super) enum Error {
    #[error("the name {} does not tell the format: give --format, or a name that ends in .csv, .parquet, .json, .db (for Optuna) or .safetensors", .0.display())]
    NoFormat(PathBuf),
    #[error("--trial is for the weights of a trial; use it with --format safetensors")]
    OnlyWeights,
    #[error("--reports is for tables; use it with --format csv or parquet")]
    OnlyTables,
    #[error("{} is a file of the study itself: give another name", .0.display())]
    OfStudy(PathBuf),
    #[error("no trial of {} has finished yet; --trial N takes the last checkpoint of one that runs", .0.display())]
    NoneFinished(PathBuf),
    #[error("the study in {} has several objectives: choose with --trial one of those that no other beats, {front}", .folder.display())]
    Several { folder: PathBuf, front: String },
    #[error("{} exists; --force replaces it", .0.display())]
    Exists(PathBuf),
    #[error("cannot write {}: there is not a folder {}", .output.display(), .folder.display())]
    NoFolder { output: PathBuf, folder: PathBuf },
    #[error("{} is a folder: give the name of a file", .0.display())]
    IsFolder(PathBuf),
    #[error("{} is a file: give the name of a folder", .0.display())]
    IsFile(PathBuf),
    #[error("{} has other files than those of an export, such as {other}: give another folder", .folder.display())]
    Foreign { folder: PathBuf, other: String },
    #[error("the trials of {} are programs, which keep their own files: look into {}", .folder.display(), .own.display())]
    Programs { folder: PathBuf, own: PathBuf },
    #[error("the trials of {} are asked for and told: only who trains them has their weights", .0.display())]
    Told(PathBuf),
    #[error("the study in {} is emulated: its trials have no weights", .0.display())]
    Emulated(PathBuf),
    #[error("trial {trial} of {} has no checkpoint: {why}", .folder.display())]
    NoCheckpoint { trial: u32, folder: PathBuf, why: String },
    #[error("trial {trial} has no checkpoint that can be used: {} {problem}", .path.display())]
    Unusable { trial: u32, path: PathBuf, problem: String },
}

/// Writes what the user wants, and says what it is.
pub(super) fn run(settings: &Settings, out: &mut impl Write) -> Result<(), cli::Error> {
    let format = Format::choose(settings)?;
    let (folder, output) = (&settings.folder, &settings.output);
    let reader = Reader::open(folder)?;
    if is_of_study(folder, output) {
        return Err(Error::OfStudy(output.clone()).into());
    }
    let is_folder = matches!(format, Format::Tensorboard | Format::Mlflow);
    if !is_folder {
        check_file(output, settings.force)?;
    }
    if format == Format::Safetensors {
        return weights::write(&reader, folder, settings.trial.unwrap_or(Chosen::Best), output, out);
    }
    let record = record(&reader, folder)?;
    let file = |write: &dyn Fn(&mut BufWriter<&mut fs::File>) -> io::Result<()>| {
        write_whole(output, |file| {
            let mut file = BufWriter::new(file);
            write(&mut file)?;
            file.flush()
        })
    };
    let table = || if settings.reports { table::of_reports(&record) } else { table::of_trials(&record) };
    match format {
        Format::Csv => file(&|to| csv::write(&table(), to))?,
        Format::Parquet => file(&|to| parquet::write(&table(), to))?,
        Format::Json => file(&|to| json::write(&record, to))?,
        Format::Optuna => write_optuna(output, &record)?,
        Format::Tensorboard => {
            folder::write_tensorboard(output, &tensorboard::files(&record), settings.force)?;
        }
        Format::Mlflow => folder::write_mlflow(output, &record, settings.force)?,
        Format::Safetensors => {}
    }
    let what = if settings.reports {
        pluralize(record.trials.iter().map(|trial| trial.reports.len()).sum(), "report")
    } else {
        pluralize(record.trials.len(), "trial")
    };
    writeln!(out, "{}: {what}", output.display()).map_err(cli::Error::Stdout)
}

/// Whether a file belongs to the study: it must survive `--force`.
fn is_of_study(folder: &Path, output: &Path) -> bool {
    let own = store::Folder::new(folder);
    let files =
        [own.journal(), own.seal(), own.study(), own.root().to_owned(), own.checkpoints(), own.logs()];
    let Ok(output) = output.canonicalize() else { return false };
    files.iter().any(|file| file.canonicalize().is_ok_and(|file| file == output))
}

fn check_file(output: &Path, force: bool) -> Result<(), Error> {
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return Err(Error::NoFolder { output: output.to_owned(), folder: folder.to_owned() });
    }
    match fs::symlink_metadata(output) {
        Ok(there) if there.is_dir() => Err(Error::IsFolder(output.to_owned())),
        Ok(_) if !force => Err(Error::Exists(output.to_owned())),
        _ => Ok(()),
    }
}

/// The study as it stands now.
fn record(reader: &Reader, folder: &Path) -> Result<Record, cli::Error> {
    let (study, id) = (reader.study()?, reader.study_id()?);
    let created_s = reader.status()?.created_s;
    let mut recorder = Recorder::new(reader.trials()?);
    reader.replay(|entry| -> Result<(), cli::Error> {
        recorder.take(entry);
        Ok(())
    })?;
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let name = whole.file_name().map_or_else(|| id.to_string(), |name| name.to_string_lossy().into_owned());
    Ok(recorder.end(name, id, created_s, study))
}

fn write_optuna(output: &Path, record: &Record) -> Result<(), cli::Error> {
    let temporary = temporary(output)?;
    let written = store::write_optuna(&temporary, &optuna::study(record)).map_err(cli::Error::from);
    let written = written.and_then(|()| fs::rename(&temporary, output).map_err(cli::Error::writing(output)));
    if written.is_err() {
        // The first failure is the one to report, not that there is nothing to remove.
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(output: &str) -> Settings {
        let (folder, output) = (PathBuf::from("study"), PathBuf::from(output));
        Settings { folder, output, format: None, trial: None, reports: false, force: false }
    }

    #[test]
    fn the_name_of_the_output_tells_the_format() {
        let chosen = ["a.csv", "A.CSV", "b.parquet", "c.db", "d.safetensors"]
            .map(|name| Format::choose(&settings(name)).ok());
        let wanted = [Format::Csv, Format::Csv, Format::Parquet, Format::Optuna, Format::Safetensors];
        assert_eq!(chosen, wanted.map(Some));
        let problem =
            Format::choose(&settings("runs")).expect_err("a folder may be of two formats").to_string();
        assert!(problem.contains("--format"), "{problem}");
        let told = Settings { format: Some(Format::Mlflow), ..settings("trials.csv") };
        assert_eq!(Format::choose(&told).ok(), Some(Format::Mlflow));
    }

    /// Weights could be written under any name.
    #[test]
    fn with_a_trial_any_name_is_one_of_weights() {
        let weights = Settings { trial: Some(Chosen::Number(3)), ..settings("model.bin") };
        assert_eq!(Format::choose(&weights).ok(), Some(Format::Safetensors));
        let table = Settings { trial: Some(Chosen::Best), ..settings("model.csv") };
        assert!(matches!(Format::choose(&table), Err(Error::OnlyWeights)));
        let reports = Settings { reports: true, ..settings("model.json") };
        assert!(matches!(Format::choose(&reports), Err(Error::OnlyTables)));
    }
}
