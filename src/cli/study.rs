//! `pollux-tune check` and `pollux-tune schema`: study files and their form.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use crate::{
    alloc::ClusterSpec,
    space::{self, Diagnostics, Dim, Objective, Study},
};
use thiserror::Error;

use super::{fit::counted, output_error};

/// What can be wrong with a study file.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// The file is not there, or may not be read.
    #[error("cannot read {}", .file.display())]
    Unreadable { file: PathBuf, source: io::Error },
    /// What it says cannot be understood.
    #[error("{}", summary(.0))]
    Wrong(Vec<Diagnostics>),
}

fn summary(all: &[Diagnostics]) -> String {
    let mistakes = all.iter().map(|problems| problems.list().len()).sum();
    format!("{} in {}", counted(mistakes, "mistake"), counted(all.len(), "file"))
}

/// Reads a study file.
pub(crate) fn read(file: &Path) -> Result<Result<Study, Diagnostics>, Error> {
    Ok(parse(file, &text_of(file)?))
}

/// Reads the study file of a command, its text too; what is wrong with it goes to the notes.
pub(crate) fn load(file: &Path, notes: &mut impl Write) -> Result<(String, Study), Error> {
    let text = text_of(file)?;
    let study = noted(parse(file, &text), notes)?;
    Ok((text, study))
}

/// Reads the cluster of a cluster or study file.
pub(crate) fn load_cluster(file: &Path, notes: &mut impl Write) -> Result<ClusterSpec, Error> {
    noted(ClusterSpec::from_yaml(&file.display().to_string(), &text_of(file)?), notes)
}

fn text_of(file: &Path) -> Result<String, Error> {
    fs::read_to_string(file).map_err(|source| Error::Unreadable { file: file.to_owned(), source })
}

/// Other files that a study file names are beside it.
fn parse(file: &Path, text: &str) -> Result<Study, Diagnostics> {
    let open = |name: &str| {
        let other = file.parent().unwrap_or_else(|| Path::new("")).join(name);
        fs::read_to_string(&other).map_err(|error| format!("cannot read {}: {error}", other.display()))
    };
    Study::from_yaml_with(&file.display().to_string(), text, open)
}

fn noted<T>(read: Result<T, Diagnostics>, notes: &mut impl Write) -> Result<T, Error> {
    read.map_err(|problems| {
        let _ = write!(notes, "{}", problems.report());
        Error::Wrong(vec![problems])
    })
}

/// Reads all files, and says what they hold or what is wrong with them.
pub(crate) fn check(files: &[PathBuf], out: &mut impl Write, notes: &mut impl Write) -> anyhow::Result<()> {
    let mut wrong = Vec::new();
    for file in files {
        match read(file)? {
            Ok(study) => {
                writeln!(out, "{}: ok, {}", file.display(), describe(&study)).map_err(output_error)?;
            }
            Err(problems) => {
                // Whoever does not listen still gets the exit code.
                let _ = write!(notes, "{}", problems.report());
                wrong.push(problems);
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(Error::Wrong(wrong).into()) }
}

/// Prints the JSON Schema of study files.
pub(crate) fn schema(out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "{:#}", space::schema()).map_err(output_error)
}

/// The space in a few words.
fn describe(study: &Study) -> String {
    let dims = study.space.dims();
    let continuous = dims.iter().filter(|dim| **dim == Dim::Continuous).count();
    let conditional = (0..dims.len()).filter(|dim| study.space.parent(*dim).is_some()).count();
    let mut parts = vec![counted(dims.len(), "dimension")];
    if continuous > 0 {
        parts.push(format!("{continuous} continuous"));
    }
    if conditional > 0 {
        parts.push(format!("{conditional} conditional"));
    }
    if let Some(combinations) = study.space.combinations() {
        parts.push(format!("{combinations} combinations"));
    }
    let constraints = study.space.constraints().len();
    if constraints > 0 {
        parts.push(counted(constraints, "constraint"));
    }
    let goal = |Objective { metric, direction }: &Objective| format!("{direction} {metric}");
    parts.push(study.objectives.iter().map(goal).collect::<Vec<_>>().join(" and "));
    parts.push(format!(
        "{} at a time of {}",
        study.search.parallel,
        counted(study.search.trials as usize, "trial")
    ));
    parts.join(", ")
}
