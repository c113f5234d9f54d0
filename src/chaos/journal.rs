//! A journal that runs out of space, and of which a loss of power keeps only what was durable.

use crate::{
    store::{Error, Journal},
    trials::engine::JournalEntry,
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

fn full() -> Error {
    let source = std::io::Error::from(std::io::ErrorKind::StorageFull).into();
    Error::Full { path: "journal.sqlite".into(), source }
}

impl Journal for FaultyJournal {
    fn append(&mut self, entries: &[JournalEntry]) -> Result<(), Error> {
        if entries.is_empty() {
            return Ok(());
        }
        if self.is_full {
            return Err(full());
        }
        self.entries.extend_from_slice(entries);
        self.ends.push(self.entries.len());
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Error> {
        if self.is_full {
            return Err(full());
        }
        self.durable = self.entries.len();
        Ok(())
    }

    fn entries(&self, from: u64) -> Result<Vec<JournalEntry>, Error> {
        Ok(self.entries.get(from as usize..).unwrap_or_default().to_vec())
    }
}
