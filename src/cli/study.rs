//! `pollux-tune check` and `pollux-tune schema`: study files and their form.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use crate::{
    alloc::ClusterSpec,
    cli::{self, Trainables, output::pluralize},
    space::{self, Diagnostics, Dim, Objective, Study},
};
#[cfg(not(feature = "torch"))]
use crate::{
    sim::{Application, Modelled},
    space::TrainableSpec,
};
use thiserror::Error;

/// A study file is not valid.
#[derive(Debug, Error)]
#[error("{}", summary(.0))]
pub(crate) struct Error(Vec<Diagnostics>);

fn summary(all: &[Diagnostics]) -> String {
    let mistakes = all.iter().map(|problems| problems.list().len()).sum();
    format!("{} in {}", pluralize(mistakes, "mistake"), pluralize(all.len(), "file"))
}

/// Reads the study file of a command, its text too; what is wrong with it goes to stderr.
pub(crate) fn load(file: &Path, stderr: &mut impl Write) -> Result<(String, Study), cli::Error> {
    let text = read(file)?;
    let study = reported(parse(file, &text), stderr)?;
    Ok((text, study))
}

/// Reads the cluster of a cluster or study file.
pub(crate) fn load_cluster(file: &Path, stderr: &mut impl Write) -> Result<ClusterSpec, cli::Error> {
    let text = read(file)?;
    Ok(reported(ClusterSpec::from_yaml(&file.display().to_string(), &text), stderr)?)
}

fn read(file: &Path) -> Result<String, cli::Error> {
    fs::read_to_string(file).map_err(cli::Error::reading(file))
}

/// Where the paths in a study file begin.
pub(crate) fn folder_of(file: &Path) -> &Path {
    file.parent().unwrap_or_else(|| Path::new(""))
}

/// Other files that a study file names are seen from its folder. All mistakes are found at once.
fn parse(file: &Path, text: &str) -> Result<Study, Diagnostics> {
    let open = |name: &str| {
        let other = folder_of(file).join(name);
        fs::read_to_string(&other).map_err(|error| format!("cannot read {}: {error}", other.display()))
    };
    let name = file.display().to_string();
    let study = Study::from_yaml_with(&name, text, open);
    both(study, Study::check_files(&name, text, |script| folder_of(file).join(script).is_file()))
}

/// What was read, or the mistakes of both.
fn both<T>(read: Result<T, Diagnostics>, checked: Result<(), Diagnostics>) -> Result<T, Diagnostics> {
    match (read, checked) {
        (Ok(read), Ok(())) => Ok(read),
        (Err(wrong), Err(other)) => Err(wrong.and(other)),
        (Err(wrong), Ok(())) | (Ok(_), Err(wrong)) => Err(wrong),
    }
}

/// Whether this program knows the trainable, its parameters and its metrics.
#[cfg(feature = "torch")]
fn check_trainable(file: &str, text: &str, trainables: Trainables) -> Result<(), Diagnostics> {
    Study::check_trainable(file, text, &trainables.specs(), true)
}

/// A program that cannot train can emulate, and the metrics of that are known. Trainables of other programs may have any name.
#[cfg(not(feature = "torch"))]
fn check_trainable(file: &str, text: &str, _: Trainables) -> Result<(), Diagnostics> {
    let emulated =
        |application: &Application| TrainableSpec::new(application.name()).metrics(Modelled::METRICS);
    let known: Vec<TrainableSpec> = Application::all().iter().map(emulated).collect();
    Study::check_trainable(file, text, &known, false)
}

fn reported<T>(read: Result<T, Diagnostics>, stderr: &mut impl Write) -> Result<T, Error> {
    read.map_err(|problems| {
        let _ = write!(stderr, "{}", problems.report());
        Error(vec![problems])
    })
}

/// Reads all files, and prints what they hold or what is wrong with them.
pub(crate) fn check(
    files: &[PathBuf],
    trainables: Trainables,
    out: &mut impl Write,
    stderr: &mut impl Write,
) -> Result<(), cli::Error> {
    let mut wrong = Vec::new();
    for file in files {
        let text = read(file)?;
        let known = check_trainable(&file.display().to_string(), &text, trainables);
        match both(parse(file, &text), known) {
            Ok(study) => {
                writeln!(out, "{}: ok, {}", file.display(), describe(&study)).map_err(cli::Error::Stdout)?;
            }
            Err(problems) => {
                // Without stderr there is still the exit code.
                let _ = write!(stderr, "{}", problems.report());
                wrong.push(problems);
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(Error(wrong).into()) }
}

/// Prints the JSON Schema of study files.
pub(crate) fn schema(out: &mut impl Write) -> Result<(), cli::Error> {
    writeln!(out, "{:#}", space::schema()).map_err(cli::Error::Stdout)
}

/// A summary of the space.
fn describe(study: &Study) -> String {
    let dims = study.space.dims();
    let continuous = dims.iter().filter(|dim| **dim == Dim::Continuous).count();
    let conditional = (0..dims.len()).filter(|dim| study.space.parent(*dim).is_some()).count();
    let mut parts = vec![pluralize(dims.len(), "dimension")];
    if continuous > 0 {
        parts.push(format!("{continuous} continuous"));
    }
    if conditional > 0 {
        parts.push(format!("{conditional} conditional"));
    }
    if let Some(combinations) = study.space.combinations() {
        parts.push(format!("{combinations} combination{}", if combinations == 1 { "" } else { "s" }));
    }
    let constraints = study.space.constraints().len();
    if constraints > 0 {
        parts.push(pluralize(constraints, "constraint"));
    }
    let goal = |Objective { metric, direction }: &Objective| format!("{direction} {metric}");
    parts.push(study.objectives.iter().map(goal).collect::<Vec<_>>().join(" and "));
    parts.push(format!(
        "{} at a time of {}",
        study.search.parallel,
        pluralize(study.search.trials as usize, "trial")
    ));
    parts.extend(study.machines.as_ref().map(|machines| format!("on {machines}")));
    parts.join(", ")
}
