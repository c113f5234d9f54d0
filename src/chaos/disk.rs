//! A file system with checkpoints: files have names, data has owners, and both can go wrong in between.

use std::collections::BTreeMap;

use super::{Life, backend::State};
use crate::ids::TrialId;

/// Data on disk, which names point to.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Data {
    /// Somebody has begun to write it, or two have written into it.
    Torn,
    Whole(State),
}

/// A checkpoint that is being written, on a thread of a worker process.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Writer {
    trial: TrialId,
    life: Life,
    file: u64,
    state: State,
    ends_s: f64,
    naming: Naming,
    /// Another writer has opened the same file since.
    is_disturbed: bool,
}

/// How files of checkpoints are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Naming {
    /// Each has a name of its own, and no file is ever replaced.
    Unique,
    /// As it was once: one name for a trial, and a temporary one for a process.
    Shared,
}

/// How many checkpoints of a trial are kept.
const KEPT: usize = 2;

/// What became of a writer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Written {
    Writing,
    /// Steps of the checkpoint.
    Done(u64),
    Failed,
}

/// The disk of the study.
#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) is_full: bool,
    files: BTreeMap<u64, Data>,
    /// Temporary names.
    names: BTreeMap<String, u64>,
    /// The checkpoints of each trial.
    checkpoints: BTreeMap<TrialId, Vec<u64>>,
    writers: BTreeMap<u64, Writer>,
    /// What became of writers, until somebody asks.
    outcomes: BTreeMap<u64, Written>,
    next: u64,
    /// The furthest checkpoint of each trial that a worker has reported: what must not be lost.
    acknowledged: BTreeMap<TrialId, State>,
    /// A rule that was broken.
    pub(super) broken: Option<String>,
}

/// As the workers name it.
fn temporary(trial: TrialId, life: Life, naming: Naming, writer: u64) -> String {
    match naming {
        Naming::Unique => format!("trial-{trial}.{life}.{writer}"),
        Naming::Shared => format!("trial-{trial}.{life}"),
    }
}

impl Disk {
    /// Opens a temporary file and begins to write; none if the disk is full.
    pub(super) fn begin(
        &mut self,
        trial: TrialId,
        life: Life,
        state: State,
        ends_s: f64,
        naming: Naming,
    ) -> Option<u64> {
        if self.is_full {
            return None;
        }
        self.next += 1;
        let name = temporary(trial, life, naming, self.next);
        let file = *self.names.entry(name).or_insert(self.next);
        for writer in self.writers.values_mut().filter(|writer| writer.file == file) {
            writer.is_disturbed = true;
        }
        let is_disturbed = self.writers.values().any(|writer| writer.file == file);
        self.files.insert(file, Data::Torn);
        self.writers.insert(self.next, Writer { trial, life, file, state, ends_s, naming, is_disturbed });
        Some(self.next)
    }

    /// Whether a writer is done; with `wait`, after it is.
    pub(super) fn finish(&mut self, writer: u64, wait: bool) -> Written {
        if wait {
            self.end(writer);
        }
        self.outcomes.remove(&writer).unwrap_or(Written::Writing)
    }

    /// Writers come to their end, whether somebody waits for them or not.
    pub(super) fn pass(&mut self, now_s: f64) {
        let done: Vec<u64> =
            self.writers.iter().filter(|(_, of)| of.ends_s <= now_s).map(|(id, _)| *id).collect();
        for writer in done {
            self.end(writer);
        }
    }

    /// The last bytes are written, and the file gets its name.
    fn end(&mut self, id: u64) {
        let Some(writer) = self.writers.remove(&id) else { return };
        let outcome = self.rename(id, writer);
        self.outcomes.insert(id, outcome);
    }

    fn rename(&mut self, id: u64, writer: Writer) -> Written {
        let Writer { trial, life, file, state, naming, is_disturbed, .. } = writer;
        self.files.insert(file, if is_disturbed { Data::Torn } else { Data::Whole(state) });
        let name = temporary(trial, life, naming, id);
        if self.names.get(&name) != Some(&file) {
            // Somebody else has renamed it.
            return Written::Failed;
        }
        self.names.remove(&name);
        let checkpoints = self.checkpoints.entry(trial).or_default();
        if naming == Naming::Shared {
            checkpoints.clear();
        }
        checkpoints.push(file);
        let files = &self.files;
        let progress = |file: &u64| match files.get(file) {
            Some(Data::Whole(state)) => state.useful,
            _ => -1.0,
        };
        checkpoints.sort_by(|one, other| progress(other).total_cmp(&progress(one)));
        checkpoints.truncate(KEPT);
        Written::Done(state.steps)
    }

    /// A worker has told the head of a checkpoint.
    pub(super) fn acknowledge(&mut self, trial: TrialId, steps: u64) {
        if let Some(Data::Whole(state)) = self.current(trial)
            && state.steps >= steps
        {
            self.acknowledged.insert(trial, state);
        }
    }

    /// The furthest checkpoint of a trial that is whole, else one that is not.
    fn current(&self, trial: TrialId) -> Option<Data> {
        let all = self.checkpoints.get(&trial)?.iter().filter_map(|file| self.files.get(file)).copied();
        all.reduce(|best, other| match (best, other) {
            (Data::Torn, _) => other,
            (Data::Whole(one), Data::Whole(two)) if two.useful > one.useful => other,
            _ => best,
        })
    }

    /// A process is dead, and with it all its threads.
    pub(super) fn kill(&mut self, life: Life) {
        self.writers.retain(|_, writer| writer.life != life);
        // Its temporary files stay behind.
    }

    /// The checkpoint of a trial, if there is one.
    pub(super) fn load(&mut self, trial: TrialId) -> Result<Option<State>, String> {
        let loaded = match self.current(trial) {
            None => None,
            Some(Data::Whole(state)) => Some(state),
            Some(Data::Torn) => {
                let problem = format!("the checkpoint of trial {trial} is torn");
                self.broken = Some(problem.clone());
                return Err(problem);
            }
        };
        if let Some(told) = self.acknowledged.get(&trial)
            && loaded.is_none_or(|loaded| loaded.useful < told.useful)
        {
            let found = loaded.map_or(0, |state| state.steps);
            self.broken = Some(format!(
                "trial {trial} resumes from step {found}, though a checkpoint of step {} was reported",
                told.steps
            ));
        }
        Ok(loaded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(steps: u64) -> State {
        State { steps, useful: steps as f64, evaluations: 0 }
    }

    #[test]
    fn a_writer_that_is_waited_for_replaces_the_checkpoint_as_a_whole() {
        let (mut disk, trial) = (Disk::default(), TrialId(3));
        let writer = disk.begin(trial, 7, state(10), 5.0, Naming::Unique).unwrap();
        assert_eq!(disk.finish(writer, false), Written::Writing);
        assert_eq!(disk.load(trial), Ok(None));
        assert_eq!(disk.finish(writer, true), Written::Done(10));
        let _killed = disk.begin(trial, 8, state(20), 5.0, Naming::Unique).unwrap();
        disk.kill(8);
        assert_eq!((disk.load(trial), disk.broken), (Ok(Some(state(10))), None));
    }

    #[test]
    fn two_writers_of_a_process_destroy_the_checkpoint() {
        let (mut disk, trial) = (Disk::default(), TrialId(3));
        let _forgotten = disk.begin(trial, 7, state(10), 5.0, Naming::Shared).unwrap();
        let second = disk.begin(trial, 7, state(11), 6.0, Naming::Shared).unwrap();
        assert_eq!(disk.finish(second, true), Written::Done(11));
        assert!(disk.load(trial).is_err(), "the first one still writes into it");
    }
}
