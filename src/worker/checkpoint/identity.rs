use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    ids::{StudyId, TrialId},
    trials::group::Task,
};

/// Whose state a checkpoint holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(super) study: StudyId,
    pub(super) trial: TrialId,
    pub(super) trainable: String,
    pub(super) params: ParamsHash,
}

/// The parameters of a trial, as far as they have to be told from others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct ParamsHash(String);

impl fmt::Display for ParamsHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Identity {
    pub(crate) fn new(study: StudyId, trial: TrialId, trainable: &str, params: &Map<String, Value>) -> Self {
        // In the order of the names, whichever order the map has.
        let sorted: BTreeMap<&String, String> =
            params.iter().map(|(name, value)| (name, value.to_string())).collect();
        let mut hasher = blake3::Hasher::new();
        for (name, value) in sorted {
            for part in [name, &value] {
                hasher.update(&(part.len() as u64).to_le_bytes());
                hasher.update(part.as_bytes());
            }
        }
        let params = ParamsHash(hasher.finalize().to_hex()[..32].to_owned());
        Self { study, trial, trainable: trainable.to_owned(), params }
    }

    /// That of a trial that is trained.
    pub(crate) fn of(task: &Task) -> Self {
        Self::new(task.study, task.trial, &task.trainable, &task.params)
    }

    /// What names of files have of it.
    pub(super) fn tag(&self) -> u64 {
        let Self { study, trial, trainable, params } = self;
        let hash = blake3::hash(format!("{study} {trial} {params} {trainable}").as_bytes());
        let mut tag = [0; 8];
        tag.copy_from_slice(&hash.as_bytes()[..8]);
        u64::from_le_bytes(tag)
    }
}
