//! `pollux-tune tag` and `note`: what people want to remember about studies and trials.

use std::{io::Write, path::Path};

use thiserror::Error;

use super::inspect;
use crate::{
    cli,
    ids::TrialId,
    store::{Annotation, Annotations, Folder, Reader},
};

/// The longest tag.
const LONGEST_TAG: usize = 64;
/// The longest note, in bytes.
const LONGEST_NOTE: usize = 64 * 1024;

/// What is wrong with an annotation.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error("a note has {bytes} bytes; expected at most {LONGEST_NOTE}")]
    LongNote { bytes: usize },
}

/// A tag, as the user types it.
pub(super) fn parse_tag(text: &str) -> Result<String, String> {
    let text = text.trim();
    let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && c != ',';
    if text.is_empty() || text.chars().count() > LONGEST_TAG || !text.chars().all(is_plain) {
        return Err(format!(
            "a tag is a word of at most {LONGEST_TAG} characters, without blanks and commas"
        ));
    }
    Ok(text.to_owned())
}

/// Adds tags to trials, or to the study if none is named, or takes them away; shows all if there are none.
pub(super) fn tag(
    folder: &Path,
    tags: &[String],
    trials: &[u32],
    remove: bool,
    out: &mut impl Write,
) -> Result<(), cli::Error> {
    let trials = known(folder, trials)?;
    let place = Folder::new(folder);
    let all = if tags.is_empty() {
        Annotations::read(&place)?
    } else {
        Annotations::change(&place, |all| {
            each(all, &trials, |one| {
                for tag in tags {
                    if remove { _ = one.tags.remove(tag) } else { _ = one.tags.insert(tag.clone()) }
                }
            });
        })?
    };
    let shown = |one: &Annotation| tags_text(one).unwrap_or_else(|| "no tags".to_owned());
    show(folder, &all, &trials, |one| one.tags.is_empty(), shown, out)
}

/// Writes a note to trials, or to the study if none is named; an empty one goes. Shows them if there is no text.
pub(super) fn note(
    folder: &Path,
    text: Option<&str>,
    trials: &[u32],
    out: &mut impl Write,
) -> Result<(), cli::Error> {
    let trials = known(folder, trials)?;
    let place = Folder::new(folder);
    let all = match text.map(str::trim_end) {
        None => Annotations::read(&place)?,
        Some(text) if text.len() > LONGEST_NOTE => return Err(Error::LongNote { bytes: text.len() }.into()),
        Some(text) => Annotations::change(&place, |all| {
            let text = (!text.is_empty()).then(|| text.to_owned());
            each(all, &trials, |one| one.note.clone_from(&text));
        })?,
    };
    let shown = |one: &Annotation| one.note.as_deref().map_or_else(|| "no note".to_owned(), indented);
    show(folder, &all, &trials, |one| one.note.is_none(), shown, out)
}

/// Trials that are there.
fn known(folder: &Path, trials: &[u32]) -> Result<Vec<TrialId>, cli::Error> {
    let reader = Reader::open(folder)?;
    for &trial in trials {
        if reader.trial(TrialId(trial))?.is_none() {
            let (folder, count) = (folder.display().to_string(), reader.trials()?.len());
            return Err(inspect::Error::NoTrial { trial, folder, count }.into());
        }
    }
    Ok(trials.iter().copied().map(TrialId).collect())
}

fn each(all: &mut Annotations, trials: &[TrialId], change: impl Fn(&mut Annotation)) {
    if trials.is_empty() {
        change(&mut all.study);
    }
    for &trial in trials {
        change(all.trials.entry(trial).or_default());
    }
}

/// A line for each trial that is named, else for the study and for each trial that has something.
fn show(
    folder: &Path,
    all: &Annotations,
    trials: &[TrialId],
    is_empty: impl Fn(&Annotation) -> bool,
    text: impl Fn(&Annotation) -> String,
    out: &mut impl Write,
) -> Result<(), cli::Error> {
    let mut lines = Vec::new();
    if trials.is_empty() {
        lines.push(format!("{}: {}", folder.display(), text(&all.study)));
        let others = all.trials.iter().filter(|(_, one)| !is_empty(one));
        lines.extend(others.map(|(trial, one)| format!("trial {trial}: {}", text(one))));
    }
    lines.extend(trials.iter().map(|trial| format!("trial {trial}: {}", text(&all.trial(*trial)))));
    writeln!(out, "{}", lines.join("\n")).map_err(cli::Error::Stdout)
}

/// The tags in a line, if there are any.
pub(super) fn tags_text(annotation: &Annotation) -> Option<String> {
    let tags: Vec<&str> = annotation.tags.iter().map(String::as_str).collect();
    (!tags.is_empty()).then(|| tags.join(", "))
}

/// A text of several lines, below a name.
fn indented(text: &str) -> String {
    text.replace('\n', "\n  ")
}

/// Lines of `status` and `show`.
pub(super) fn lines(annotation: &Annotation) -> Vec<String> {
    let tags = tags_text(annotation).map(|tags| format!("  tags    {tags}"));
    let note =
        annotation.note.as_ref().map(|note| format!("  note    {}", note.replace('\n', "\n          ")));
    tags.into_iter().chain(note).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_words() {
        assert_eq!(parse_tag(" paper-v2 ").as_deref(), Ok("paper-v2"));
        assert_eq!(parse_tag("größe:7").as_deref(), Ok("größe:7"));
        for wrong in ["", " ", "two words", "a,b", "a\tb", &"x".repeat(65)] {
            assert!(parse_tag(wrong).is_err(), "{wrong:?}");
        }
    }
}
