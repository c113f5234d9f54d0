use super::{Error, Journal};
use crate::trials::engine::JournalEntry;

/// A journal without a disk, for simulations and tests.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Memory {
    entries: Vec<JournalEntry>,
}

impl Memory {
    /// All facts, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &JournalEntry> {
        self.entries.iter()
    }
}

impl Journal for Memory {
    fn append(&mut self, entries: &[JournalEntry]) -> Result<(), Error> {
        self.entries.extend_from_slice(entries);
        Ok(())
    }

    fn entries(&self, from: u64) -> Result<Vec<JournalEntry>, Error> {
        Ok(self.entries.get(from as usize..).unwrap_or_default().to_vec())
    }
}
