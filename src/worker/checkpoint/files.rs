//! Names of checkpoints: what they hold can be seen without opening them, and no two states have the same.

use std::{fs, io, path::Path};

use super::{envelope::Position, identity::Identity};
use crate::ids::Round;

const WHOLE: &str = "checkpoint";
const PART: &str = "part";
/// What could not be used. It is kept, but never looked at again.
const UNUSABLE: &str = "unusable";

/// The name of a checkpoint: steps, round, and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) position: Position,
    tag: u64,
}

impl Name {
    pub(super) fn new(position: Position, identity: &Identity) -> Self {
        Self { position, tag: identity.tag() }
    }

    pub(super) fn is_of(self, identity: &Identity) -> bool {
        self.tag == identity.tag()
    }

    pub(super) fn whole(self) -> String {
        let Self { position: Position { steps, round }, tag } = self;
        format!("{steps:012}-{:016x}-{tag:016x}.{WHOLE}", round.0)
    }

    /// While it is written. No two writers use the same.
    pub(super) fn part(self, random: u64) -> String {
        format!("{}.{random:016x}.{PART}", self.whole())
    }

    pub(super) fn unusable(self) -> String {
        format!("{}.{UNUSABLE}", self.whole())
    }

    /// The name, and what comes after it.
    fn parse(text: &str) -> Option<(Self, &str)> {
        let (stem, rest) = text.split_once('.')?;
        let mut parts = stem.split('-');
        let (steps, round, tag) = (parts.next()?, parts.next()?, parts.next()?);
        let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
        let position = Position { steps: steps.parse().ok()?, round: Round(hexadecimal(round)?) };
        let name = Self { position, tag: hexadecimal(tag)? };
        // Only what this program would write itself is its own.
        let rest_begin = text.len() - rest.len();
        (name.whole() == format!("{}{WHOLE}", &text[..rest_begin])).then_some((name, rest))
    }
}

/// The steps of the state in a file, if that can be a checkpoint that is whole. Names are in the order of steps and rounds.
pub(crate) fn checkpoint_steps(file: &str) -> Option<u64> {
    Name::parse(file).filter(|(_, rest)| *rest == WHOLE).map(|(name, _)| name.position.steps)
}

/// A file in the folder of a trial.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Whole(Name),
    /// One that is being written, or that was when its writer died.
    Part(Name, String),
}

#[cfg(feature = "cli")]
impl Found {
    /// One that is being written is none yet.
    pub(super) const fn whole(&self) -> Option<Name> {
        match self {
            Self::Whole(name) => Some(*name),
            Self::Part(..) => None,
        }
    }
}

/// All checkpoints of a folder, in no order. Other files are none of them.
pub(super) fn list(folder: &Path) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let file = entry?.file_name();
        let Some((name, rest)) = file.to_str().and_then(Name::parse) else { continue };
        let is_part = |rest: &str| {
            let random =
                rest.strip_prefix(WHOLE)?.strip_prefix('.')?.strip_suffix(PART)?.strip_suffix('.')?;
            u64::from_str_radix(random, 16).ok()
        };
        if rest == WHOLE {
            found.push(Found::Whole(name));
        } else if let (Some(random), Some(text)) = (is_part(rest), file.to_str())
            && text == name.part(random)
        {
            found.push(Found::Part(name, text.to_owned()));
        }
    }
    Ok(found)
}
