use std::{
    collections::BTreeMap,
    fs,
    panic::Location,
    path::{Path, PathBuf},
    process,
};

use pollux_tune::{store::Reader, trials::engine::Fact};

/// A folder that is not there yet.
#[track_caller]
pub(crate) fn folder(name: &str) -> PathBuf {
    // Tests of other files run at the same time, and may have chosen the same name.
    let file = Path::new(Location::caller().file()).file_stem().unwrap().display();
    let path = std::env::temp_dir().join(format!("pollux-tune-study-{file}-{name}-{}", process::id()));
    let _ = fs::remove_dir_all(&path);
    path
}

pub(crate) fn entries(folder: &Path) -> Vec<Fact> {
    Reader::open(folder).unwrap().entries(0).unwrap().into_iter().map(|entry| entry.fact).collect()
}

/// How often each trial came to its end in the journal.
pub(crate) fn ends(folder: &Path) -> BTreeMap<u32, u32> {
    let mut ends = BTreeMap::new();
    for fact in entries(folder) {
        if let Fact::TrialDone { trial, .. }
        | Fact::TrialStopped { trial, .. }
        | Fact::TrialFailed { trial, .. } = fact
        {
            *ends.entry(trial.0).or_default() += 1;
        }
    }
    ends
}
