//! Trials that are trained by elastic groups of workers.

use std::{collections::BTreeMap, path::PathBuf};

use actix::{Actor, Addr, ArbiterHandle, Recipient};

use super::{
    group::{ClusterHandles, TrialGroup},
    message::{EngineInput, ForGroup},
    supervisor::TrialRunners,
};
use crate::{
    ids::TrialId,
    space::Study,
    store::Folder,
    trials::{
        Execution,
        engine::{GroupCommand, Launch},
        group::{FinalState, Task},
        trial_seed,
    },
};

/// Makes groups, and hands orders to them.
pub(super) struct Elastic {
    pub(super) study: Study,
    pub(super) trainable: String,
    pub(super) folder: PathBuf,
    /// Seconds from report to report.
    pub(super) report_every_s: f64,
    pub(super) cluster: ClusterHandles,
    /// Where groups live.
    pub(super) arbiter: ArbiterHandle,
    pub(super) groups: BTreeMap<TrialId, Addr<TrialGroup>>,
}

impl Elastic {
    fn task(&self, trial: TrialId, launch: &Launch) -> Task {
        let settings = &self.study.trial;
        let params = match serde_json::to_value(&launch.params) {
            Ok(serde_json::Value::Object(params)) => params,
            // An assignment is a mapping of names to plain values, which JSON has.
            Ok(_) | Err(_) => serde_json::Map::new(),
        };
        Task {
            trial,
            trainable: self.trainable.clone(),
            params,
            seed: trial_seed(self.study.search.seed, trial, Execution::Live),
            epochs: settings.epochs,
            initial_batch: settings.initial_batch,
            lr_rule: settings.scaling.name().to_owned(),
            checkpoint: Folder::new(&self.folder).checkpoint(trial),
            checkpoint_every_s: settings.checkpoint_interval.as_secs_f64(),
            report_every_s: self.report_every_s,
            evaluate_every: 1.0,
            measure_noise: true,
            mixed_precision: false,
        }
    }
}

impl TrialRunners for Elastic {
    fn command(&mut self, trial: TrialId, command: GroupCommand, supervisor: &Recipient<EngineInput>) {
        if let GroupCommand::Launch(launch) = command {
            // Whoever was there before has nothing more to report.
            if let Some(before) = self.groups.remove(&trial) {
                before.do_send(ForGroup(GroupCommand::Stop(FinalState::Discarded)));
            }
            let task = self.task(trial, &launch);
            let (cluster, supervisor) = (self.cluster.clone(), supervisor.clone());
            let group = TrialGroup::start_in_arbiter(&self.arbiter, move |_| {
                TrialGroup::new(task, launch, cluster, supervisor)
            });
            self.groups.insert(trial, group);
            return;
        }
        let is_last = command == GroupCommand::Stop(FinalState::Discarded);
        if let Some(group) = self.groups.get(&trial) {
            group.do_send(ForGroup(command));
        }
        if is_last {
            self.groups.remove(&trial);
        }
    }
}
