//! `pollux-tune init`: files to begin with, which `check` accepts and which run as they are.

mod project;

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::output::quoted;
use crate::cli;

const PROGRAM_STUDY: &str = include_str!("../../../templates/study.yaml");
const PYTHON_STUDY: &str = include_str!("../../../templates/python/study.yaml");
const SCRIPT: &str = include_str!("../../../templates/python/train.py");

/// What is to be written.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) kind: Kind,
}

/// What a study trains.
#[derive(Debug)]
pub(crate) enum Kind {
    Program { file: PathBuf },
    Python { file: PathBuf },
    Rust { folder: PathBuf, source: Option<PathBuf> },
}

/// Why nothing was written.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error("{} exists: `init` overwrites nothing, give another name", .0.display())]
    Exists(PathBuf),
    #[error("{} is not a folder", .0.display())]
    NoFolder(PathBuf),
    #[error("`{}` cannot be the name of a Rust package; expected ASCII letters, digits, `-` and `_`, a letter first, and no keyword of Rust", quoted(.0))]
    PackageName(String),
    #[error("{} has no source of pollux-tune: there is no {}", .folder.display(), .missing)]
    NoSource { folder: PathBuf, missing: &'static str },
    #[error("the path `{}` has characters that are not UTF-8", .0.display())]
    NotText(PathBuf),
}

/// A file that is to be written.
struct NewFile {
    path: PathBuf,
    text: String,
}

impl NewFile {
    fn new(path: PathBuf, text: impl Into<String>) -> Self {
        Self { path, text: text.into() }
    }
}

/// Writes them, and says what to do next.
pub(crate) fn run(Settings { kind }: &Settings, out: &mut impl Write) -> Result<(), cli::Error> {
    let (files, next) = match kind {
        Kind::Program { file } => (vec![NewFile::new(file.clone(), PROGRAM_STUDY)], next_of(file)?),
        Kind::Python { file } => python(file)?,
        Kind::Rust { folder, source } => project::files(folder, source.as_deref())?,
    };
    write_all(&files)?;
    for file in &files {
        writeln!(out, "wrote {}", file.path.display()).map_err(cli::Error::Stdout)?;
    }
    writeln!(out, "next: {next}").map_err(cli::Error::Stdout)
}

fn next_of(file: &Path) -> Result<String, Error> {
    Ok(format!("pollux-tune run {}", for_shell(utf8(file)?)))
}

fn python(file: &Path) -> Result<(Vec<NewFile>, String), Error> {
    let script = file.with_file_name("train.py");
    let by_hand = format!("python3 {} --lr 0.1 --momentum 0.9 --width 32", for_shell(utf8(&script)?));
    let next = format!("{}, or one training by hand: {by_hand}", next_of(file)?);
    Ok((vec![NewFile::new(file.to_owned(), PYTHON_STUDY), NewFile::new(script, SCRIPT)], next))
}

fn utf8(path: &Path) -> Result<&str, Error> {
    path.to_str().ok_or_else(|| Error::NotText(path.to_owned()))
}

fn is_plain(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    text.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '/' | '.')) && text.chars().all(plain)
}

/// Texts of JSON are texts of TOML.
fn in_quotes(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn for_shell(text: &str) -> String {
    if is_plain(text) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// All of them, or none.
fn write_all(files: &[NewFile]) -> Result<(), cli::Error> {
    if let Some(file) = files.iter().find(|file| fs::symlink_metadata(&file.path).is_ok()) {
        return Err(Error::Exists(file.path.clone()).into());
    }
    for (done, file) in files.iter().enumerate() {
        if let Err(error) = write_new(file) {
            for written in &files[..done] {
                // The first failure is the one to report.
                let _ = fs::remove_file(&written.path);
            }
            return Err(cli::Error::writing(&file.path)(error));
        }
    }
    Ok(())
}

fn write_new(NewFile { path, text }: &NewFile) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let written = file.write_all(text.as_bytes());
    if written.is_err() {
        // It is ours: it was not there before.
        let _ = fs::remove_file(path);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_where_they_have_to_be() {
        assert_eq!([for_shell("a/b.yaml"), for_shell("it's.yaml")], ["a/b.yaml", r"'it'\''s.yaml'"]);
    }
}
