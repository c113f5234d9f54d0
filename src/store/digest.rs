//! Checksums: of all facts up to one of them, and of the rows of tables.

use std::{fmt, str::FromStr};

use rusqlite::types::{Value, ValueRef};
use sha2::{Digest, Sha256};

use crate::ids::StudyId;

const BYTES: usize = 16;

/// The checksum of the id of a study and of all its facts up to one of them. No fact can be changed, left out or moved without
/// changing it and all that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chain([u8; BYTES]);

/// A fact as it is in the journal.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawFact<'a> {
    pub(super) seq: u64,
    pub(super) v: u32,
    pub(super) at_s: f64,
    pub(super) kind: &'a str,
    pub(super) trial: Option<u32>,
    pub(super) fact: &'a str,
}

impl Chain {
    /// Before the first fact.
    pub(super) fn begin(study: StudyId) -> Self {
        Self::of(Sha256::new_with_prefix(study.0.to_be_bytes()))
    }

    /// After one more fact.
    pub(super) fn next(self, RawFact { seq, v, at_s, kind, trial, fact }: &RawFact<'_>) -> Self {
        let mut digest = Sha256::new_with_prefix(self.0);
        digest.update(seq.to_be_bytes());
        digest.update(v.to_be_bytes());
        digest.update(real(*at_s));
        // No trial has this number: the greatest one is below 2^32.
        digest.update(trial.map_or(u64::MAX, u64::from).to_be_bytes());
        for text in [kind, fact] {
            digest.update((text.len() as u64).to_be_bytes());
            digest.update(text);
        }
        Self::of(digest)
    }

    fn of(digest: Sha256) -> Self {
        let mut bytes = [0; BYTES];
        bytes.copy_from_slice(&digest.finalize()[..BYTES]);
        Self(bytes)
    }

    pub(super) const fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl FromStr for Chain {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let number = u128::from_str_radix(text, 16).map_err(|_| ())?;
        if text.len() == 2 * BYTES { Ok(Self(number.to_be_bytes())) } else { Err(()) }
    }
}

/// `SQLite` does not tell the two zeros apart.
fn real(value: f64) -> [u8; 8] {
    (value + 0.0).to_bits().to_be_bytes()
}

/// The checksum of a row of a table.
pub(super) fn row_sum<'a>(table: &str, values: impl IntoIterator<Item = ValueRef<'a>>) -> i64 {
    let mut digest = Sha256::new_with_prefix(table);
    for value in values {
        match value {
            ValueRef::Null => digest.update([0]),
            ValueRef::Integer(value) => {
                digest.update([1]);
                digest.update(value.to_be_bytes());
            }
            ValueRef::Real(value) => {
                digest.update([2]);
                digest.update(real(value));
            }
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
                digest.update([3]);
                digest.update((bytes.len() as u64).to_be_bytes());
                digest.update(bytes);
            }
        }
    }
    first_bytes(digest)
}

/// The same of values that are to be written.
pub(super) fn sum_of(table: &str, values: &[Value]) -> i64 {
    row_sum(table, values.iter().map(ValueRef::from))
}

/// The checksum of a text.
pub(super) fn text_sum(text: &str) -> i64 {
    first_bytes(Sha256::new_with_prefix(text))
}

fn first_bytes(digest: Sha256) -> i64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest.finalize()[..8]);
    i64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACT: RawFact<'_> =
        RawFact { seq: 1, v: 2, at_s: 3.5, kind: "measured", trial: Some(4), fact: "{}" };

    #[test]
    fn whatever_is_changed_changes_the_chain() {
        let begin = Chain::begin(StudyId(7));
        let next = begin.next(&FACT);
        let others = [
            RawFact { seq: 2, ..FACT },
            RawFact { v: 1, ..FACT },
            RawFact { at_s: 3.6, ..FACT },
            RawFact { kind: "measure", fact: "d{}", ..FACT },
            RawFact { trial: None, ..FACT },
            RawFact { fact: "{ }", ..FACT },
        ];
        assert!(others.iter().all(|other| begin.next(other) != next));
        assert_ne!(Chain::begin(StudyId(8)).next(&FACT), next);
        assert_eq!(begin.next(&RawFact { at_s: 0.0, ..FACT }), begin.next(&RawFact { at_s: -0.0, ..FACT }));
        assert_eq!(next.to_string().parse(), Ok(next));
        assert_eq!(Chain::from_bytes(next.bytes()), Some(next));
        assert_eq!("12".parse::<Chain>(), Err(()));
    }

    #[test]
    fn rows_with_the_same_bytes_in_other_columns_differ() {
        let text = |text: &str| Value::Text(text.to_owned());
        let sums = [
            sum_of("a", &[text("bc"), text("d")]),
            sum_of("a", &[text("b"), text("cd")]),
            sum_of("b", &[text("bc"), text("d")]),
            sum_of("a", &[Value::Integer(1), Value::Null]),
            sum_of("a", &[Value::Real(1.0), Value::Null]),
            sum_of("a", &[Value::Null, Value::Integer(1)]),
        ];
        assert!(sums.iter().enumerate().all(|(place, sum)| !sums[..place].contains(sum)));
    }
}
