//! Removes the checkpoints of trials that need them no longer.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use actix::{Actor, Context, Handler, Message};

use super::{
    elastic::json_params,
    exit::{ActorGuard, ExitSender},
    message::FactsAppended,
};
use crate::{
    ids::{StudyId, TrialId},
    space::{Params, Study},
    store::Folder,
    trials::{
        End, Retention,
        engine::{Fact, State},
    },
    worker::checkpoint::{CheckpointFolder, Identity, Kind},
};

/// The checkpoints of a study whose trials are trained by workers. It has a thread of its own: files may take their time to go.
pub(super) struct CheckpointKeeper {
    place: CheckpointPlace,
    retention: Retention,
    /// Those of trials that have not ended, and of those that have and keep theirs.
    kept: BTreeMap<TrialId, CheckpointFolder>,
    /// What was not removed when the head ended.
    left: Vec<CheckpointFolder>,
    _guard: ActorGuard,
}

/// Where checkpoints are, and what they say of themselves.
pub(super) struct CheckpointPlace {
    pub(super) folder: PathBuf,
    pub(super) study: StudyId,
    pub(super) trainable: String,
}

impl CheckpointPlace {
    fn of(&self, trial: TrialId, params: &Params) -> CheckpointFolder {
        let identity = Identity::new(self.study, trial, &self.trainable, &json_params(params));
        CheckpointFolder::new(&Folder::new(&self.folder).checkpoint(trial), identity, Kind::Trained)
    }

    /// Trials with anything in the folder of checkpoints.
    fn trials(&self) -> Vec<TrialId> {
        let folder = Folder::new(&self.folder);
        let Ok(entries) = fs::read_dir(folder.checkpoints()) else { return Vec::new() };
        let trial = |name: &str| name.strip_prefix("trial-")?.parse().ok().map(TrialId);
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter_map(|name| trial(&name)).collect()
    }
}

impl CheckpointKeeper {
    pub(super) fn new(study: &Study, place: CheckpointPlace, state: &State, exit: &ExitSender) -> Self {
        let (guard, retention) = (exit.guard("checkpoint keeper"), Retention::new(study));
        let active = state.active.iter().map(|(trial, active)| (*trial, place.of(*trial, &active.params)));
        let kept = active.collect();
        let mut keeper = Self { place, retention, kept, left: Vec::new(), _guard: guard };
        let mut dropped = BTreeSet::new();
        for (trial, ended) in &state.ended {
            dropped.extend(keeper.retention.ended(*trial, &ended.end));
        }
        for trial in keeper.place.trials() {
            let Some(ended) = state.ended.get(&trial) else { continue };
            let folder = keeper.place.of(trial, &ended.params);
            if dropped.contains(&trial) {
                keeper.left.push(folder);
            } else {
                keeper.kept.insert(trial, folder);
            }
        }
        keeper
    }

    fn on_end(&mut self, trial: TrialId, end: &End) {
        for trial in self.retention.ended(trial, end) {
            if let Some(folder) = self.kept.remove(&trial) {
                discard(trial, &folder);
            }
        }
    }
}

fn discard(trial: impl std::fmt::Debug, folder: &CheckpointFolder) {
    if let Err(error) = folder.discard() {
        tracing::warn!(?trial, %error, "checkpoints cannot be removed");
    }
}

impl Actor for CheckpointKeeper {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Context<Self>) {
        for folder in std::mem::take(&mut self.left) {
            discard("before", &folder);
        }
    }
}

impl Handler<FactsAppended> for CheckpointKeeper {
    type Result = ();

    fn handle(&mut self, FactsAppended(entries): FactsAppended, _: &mut Context<Self>) {
        for entry in &*entries {
            match &entry.fact {
                Fact::TrialCreated { trial, params, .. } => {
                    self.kept.insert(*trial, self.place.of(*trial, params));
                }
                fact => {
                    if let Some((trial, end)) = fact.end() {
                        self.on_end(trial, &end);
                    }
                }
            }
        }
    }
}

/// Answered when all that was reported before is done.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Settle;

impl Handler<Settle> for CheckpointKeeper {
    type Result = ();

    fn handle(&mut self, _: Settle, _: &mut Context<Self>) {}
}
