//! Tags and notes that people give to studies and trials. They are no facts: nothing is decided by them, and they may change at any time.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
};

use serde::{Deserialize, Serialize};

use super::{Error, Folder, folder::try_lock};
use crate::ids::TrialId;

/// How often to try to lock them: half a minute. Others write a small file, and wait for a disk.
const LOCK_TRIES: u32 = 1500;

/// What people have written about a study or a trial.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Annotation {
    pub(crate) tags: BTreeSet<String>,
    pub(crate) note: Option<String>,
}

impl Annotation {
    fn is_empty(&self) -> bool {
        self.tags.is_empty() && self.note.is_none()
    }
}

/// All annotations of a study.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Annotations {
    pub(crate) study: Annotation,
    pub(crate) trials: BTreeMap<TrialId, Annotation>,
}

impl Annotations {
    /// Those of the study in a folder, none if nobody has written any.
    pub(crate) fn read(folder: &Folder) -> Result<Self, Error> {
        let path = folder.notes();
        match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text)
                .map_err(|error| Error::Damaged { path, problem: error.to_string() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(Error::io("read", &path, error)),
        }
    }

    /// That of a trial.
    pub(crate) fn trial(&self, trial: TrialId) -> Annotation {
        self.trials.get(&trial).cloned().unwrap_or_default()
    }

    /// Changes those of a study. Who else changes them meanwhile waits, so that nothing gets lost.
    pub(crate) fn change(folder: &Folder, change: impl FnOnce(&mut Self)) -> Result<Self, Error> {
        Self::change_in_time(folder, LOCK_TRIES, change)
    }

    fn change_in_time(folder: &Folder, tries: u32, change: impl FnOnce(&mut Self)) -> Result<Self, Error> {
        let path = folder.notes_lock();
        let held = || io::Error::new(io::ErrorKind::TimedOut, "another command holds it for too long");
        let lock = try_lock(&path, tries)?.ok_or_else(|| Error::io("lock", &path, held()))?;
        let mut all = Self::read(folder)?;
        change(&mut all);
        all.trials.retain(|_, annotation| !annotation.is_empty());
        let text = serde_json::to_string_pretty(&all).map_err(|error| {
            let path = folder.notes();
            Error::io("write", &path, error.into())
        })?;
        folder.write_notes(&format!("{text}\n"))?;
        drop(lock);
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use std::{env, process, thread};

    use super::*;

    fn folder(name: &str) -> Folder {
        let path = env::temp_dir().join(format!("pollux-tune-notes-{name}-{}", process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("it can be made");
        Folder::new(&path)
    }

    #[test]
    fn nothing_is_lost_when_several_write_at_once() {
        let folder = folder("several");
        assert_eq!(Annotations::read(&folder).expect("none is fine"), Annotations::default());
        thread::scope(|scope| {
            for number in 0..8_u32 {
                let folder = &folder;
                scope.spawn(move || {
                    Annotations::change(folder, |all| {
                        all.study.tags.insert(number.to_string());
                        all.trials.entry(TrialId(number)).or_default().note = Some("a\nb".to_owned());
                        // Nothing is kept of what says nothing.
                        all.trials.entry(TrialId(100 + number)).or_default();
                    })
                    .expect("it can be written")
                });
            }
        });
        let all = Annotations::read(&folder).expect("it is whole");
        assert_eq!((all.study.tags.len(), all.trials.len()), (8, 8));
        assert_eq!(all.trial(TrialId(3)).note.as_deref(), Some("a\nb"));
        fs::remove_dir_all(folder.root()).expect("it can be removed");
    }

    /// A command that was stopped (Ctrl-Z) in the middle of it, for instance.
    #[test]
    fn who_keeps_the_lock_is_not_waited_for_without_end() {
        let folder = folder("held");
        let held = try_lock(&folder.notes_lock(), 1).expect("it can be made").expect("nobody has it");
        let error = Annotations::change_in_time(&folder, 2, |_| {}).expect_err("somebody has it").to_string();
        assert!(error.contains("notes.lock"), "{error}");
        drop(held);
        Annotations::change_in_time(&folder, 1, |_| {}).expect("it is free");
        fs::remove_dir_all(folder.root()).expect("it can be removed");
    }

    #[test]
    fn what_cannot_be_read_is_not_overwritten() {
        let folder = folder("damaged");
        fs::write(folder.notes(), "{").expect("it can be written");
        let error = Annotations::change(&folder, |_| {}).expect_err("it is not JSON").to_string();
        assert!(error.contains("notes.json is damaged: EOF"), "{error}");
        assert_eq!(fs::read_to_string(folder.notes()).expect("it is there"), "{");
        fs::remove_dir_all(folder.root()).expect("it can be removed");
    }
}
