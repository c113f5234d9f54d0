//! A journal that runs out of space, and of which a loss of power keeps only what was durable.

use crate::{
    store::{Error, Journal},
    trials::engine::{Fact, JournalEntry},
};

#[derive(Debug, Default)]
pub(super) struct FaultyJournal {
    entries: Vec<JournalEntry>,
    /// Entries that a loss of power keeps.
    durable: usize,
    /// Where appends have ended: each is there as a whole, or not at all.
    ends: Vec<usize>,
    pub(super) is_full: bool,
}

/// Whether a fact is on disk before anything is done about it: those that create or end a trial or the study.
const fn is_durable(fact: &Fact) -> bool {
    matches!(
        fact,
        Fact::StudyCreated { .. }
            | Fact::TrialCreated { .. }
            | Fact::TrialDone { .. }
            | Fact::TrialStopped { .. }
            | Fact::TrialFailed { .. }
            | Fact::TrialCancelled { .. }
            | Fact::StudyDone {}
    )
}

impl FaultyJournal {
    /// Where a loss of power may have cut the journal.
    pub(super) fn cuts(&self) -> Vec<usize> {
        let after = self.ends.iter().copied().filter(|end| *end >= self.durable);
        std::iter::once(self.durable).chain(after).collect()
    }

    /// Only the entries before a cut are left.
    pub(super) fn cut(&mut self, at: usize) {
        self.entries.truncate(at);
        self.ends.retain(|end| *end <= at);
        self.durable = self.entries.len();
    }

    pub(super) fn all(&self) -> &[JournalEntry] {
        &self.entries
    }
}

impl Journal for FaultyJournal {
    fn append(&mut self, entries: &[JournalEntry]) -> Result<(), Error> {
        if entries.is_empty() {
            return Ok(());
        }
        if self.is_full {
            let source = std::io::Error::from(std::io::ErrorKind::StorageFull).into();
            return Err(Error::Full { path: "journal.sqlite".into(), source });
        }
        self.entries.extend_from_slice(entries);
        self.ends.push(self.entries.len());
        if entries.iter().any(|entry| is_durable(&entry.fact)) {
            self.durable = self.entries.len();
        }
        Ok(())
    }

    fn entries(&self, from: u64) -> Result<Vec<JournalEntry>, Error> {
        Ok(self.entries.get(from as usize..).unwrap_or_default().to_vec())
    }
}
