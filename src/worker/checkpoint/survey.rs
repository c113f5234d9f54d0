//! All checkpoints of a study, whoever wrote them: which are whole, and whose they are.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use super::{
    envelope::{self, Problem},
    files::{self, Found, Name},
};
use crate::ids::{StudyId, TrialId};

/// What was found in the folder for checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// So many are whole, and of the study and the trial in whose folder they are.
    pub(crate) whole: usize,
    /// The others, with what is wrong.
    pub(crate) unusable: Vec<(PathBuf, Problem)>,
}

/// Reads all checkpoints in the folders of trials. A study whose id is not known owns all of them.
pub(crate) fn survey(checkpoints: &Path, study: Option<StudyId>) -> io::Result<Survey> {
    let mut survey = Survey::default();
    let entries = match fs::read_dir(checkpoints) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(survey),
        entries => entries?,
    };
    let mut folders = Vec::new();
    for entry in entries {
        let entry = entry?;
        let number = |name: &str| name.strip_prefix("trial-")?.parse().ok().map(TrialId);
        if let Some(trial) = entry.file_name().to_str().and_then(number)
            && entry.file_type()?.is_dir()
        {
            folders.push((trial, entry.path()));
        }
    }
    folders.sort();
    for (trial, folder) in folders {
        let mut names: Vec<Name> = files::list(&folder)?.iter().filter_map(Found::whole).collect();
        names.sort();
        for name in names {
            let path = folder.join(name.whole());
            match examine(&path, study, trial) {
                Ok(()) => survey.whole += 1,
                // A study that runs removes those that it needs no longer.
                Err(Problem::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
                Err(problem) => survey.unusable.push((path, problem)),
            }
        }
    }
    Ok(survey)
}

fn examine(path: &Path, study: Option<StudyId>, trial: TrialId) -> Result<(), Problem> {
    let (owner, _) = envelope::read(&mut File::open(path)?)?;
    if study.is_some_and(|study| study != owner.study) {
        return Err(Problem::OtherStudy(owner.study));
    }
    if trial != owner.trial {
        return Err(Problem::OtherTrial(owner.trial));
    }
    Ok(())
}
