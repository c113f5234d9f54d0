//! What is written down of a program, so that a later head can end it.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process,
};

use serde::{Deserialize, Serialize};

use super::processes::{Identity, boot};

/// The file of a trial's folder that says which process its program is.
const NAME: &str = "process";

/// The process of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    #[serde(flatten)]
    pub(super) identity: Identity,
    /// The agent that has started it. Those of another one that lives are none of ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) owner: Option<Identity>,
    /// The start of the machine that it belongs to.
    pub(super) boot: String,
    /// Its control group, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cgroup: Option<PathBuf>,
}

/// What the file of a trial's folder says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    Process(Record),
    /// Only its number, as earlier versions wrote it.
    Number(i32),
}

impl Record {
    /// Of a process of this start of the machine.
    pub(super) fn new(identity: Identity, cgroup: Option<PathBuf>) -> io::Result<Self> {
        Ok(Self { identity, owner: Identity::of(process::id()), boot: boot()?, cgroup })
    }

    /// Writes it into the folder of a trial. When this returns, it is on disk.
    pub(super) fn write(&self, home: &Path) -> io::Result<()> {
        let new = home.join(format!("{NAME}.new"));
        let mut file = File::create(&new)?;
        file.write_all(serde_json::to_string(self)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, home.join(NAME))?;
        File::open(home)?.sync_all()
    }
}

/// What is recorded in the folder of a trial.
pub(super) fn read(home: &Path) -> Option<Recorded> {
    let text = fs::read_to_string(home.join(NAME)).ok()?;
    let number = || Some(Recorded::Number(text.trim().parse().ok()?));
    number().or_else(|| Some(Recorded::Process(serde_json::from_str(&text).ok()?)))
}

/// The program has ended, with all that it has started.
pub(super) fn remove(home: &Path) {
    // Whoever finds it looks whether the process is still there.
    let _ = fs::remove_file(home.join(NAME));
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    #[test]
    fn records_of_earlier_versions_can_be_read() {
        let home = env::temp_dir().join(format!("pollux-record-{}", process::id()));
        fs::create_dir_all(&home).expect("a folder");
        assert_eq!(read(&home), None);
        fs::write(home.join(NAME), "4711").expect("it can be written");
        assert_eq!(read(&home), Some(Recorded::Number(4711)));
        for cgroup in [None, Some(PathBuf::from("/sys/fs/cgroup/a b"))] {
            let record = Record::new(Identity { pid: 7, start: 9 }, cgroup).expect("a machine has started");
            record.write(&home).expect("it can be written");
            assert_eq!(read(&home), Some(Recorded::Process(record)));
        }
        fs::write(home.join(NAME), "{\"pid\": 7").expect("it can be written");
        assert_eq!(read(&home), None, "half a record is none");
        fs::remove_dir_all(&home).expect("it can be removed");
    }
}
