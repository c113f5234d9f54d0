//! Trials that are trained by elastic groups of workers.

use std::{collections::BTreeMap, path::PathBuf};

use actix::{Actor, Addr, ArbiterHandle, Recipient};

use super::{
    group::{ClusterHandles, TrialGroup},
    message::{EngineInput, GroupCommand, Launch},
    supervisor::TrialRunners,
};
use crate::{
    ids::TrialId,
    space::Study,
    store::Folder,
    trials::{Execution, trial_seed},
    wire::Task,
};

/// Makes groups, and hands orders to them.
pub(super) struct Elastic {
    pub(super) study: Study,
    pub(super) trainable: String,
    pub(super) folder: PathBuf,
    /// Seconds from report to report.
    pub(super) report_every_s: f64,
    pub(super) world: ClusterHandles,
    /// Where groups live.
    pub(super) arbiter: ArbiterHandle,
    pub(super) groups: BTreeMap<TrialId, Addr<TrialGroup>>,
}

impl Elastic {
    fn task(&self, launch: &Launch) -> Task {
        let trial = &self.study.trial;
        let params = match serde_json::to_value(&launch.params) {
            Ok(serde_json::Value::Object(params)) => params,
            // An assignment is a mapping of names to plain values, which JSON has.
            Ok(_) | Err(_) => serde_json::Map::new(),
        };
        Task {
            trial: launch.trial.0,
            trainable: self.trainable.clone(),
            params,
            seed: trial_seed(self.study.search.seed, launch.trial, Execution::Live),
            epochs: trial.epochs,
            initial_batch: trial.initial_batch,
            lr_rule: trial.scaling.name().to_owned(),
            checkpoint: Folder::new(&self.folder).checkpoint(launch.trial),
            checkpoint_every_s: trial.checkpoint_interval.as_secs_f64(),
            report_every_s: self.report_every_s,
            evaluate_every: 1.0,
            measure_noise: true,
            mixed_precision: false,
        }
    }
}

impl TrialRunners for Elastic {
    fn order(&mut self, trial: TrialId, order: GroupCommand, supervisor: &Recipient<EngineInput>) {
        if let GroupCommand::Launch(launch) = order {
            // Whoever was there before has nothing more to say.
            if let Some(before) = self.groups.remove(&trial) {
                before.do_send(GroupCommand::Stop { keep: false });
            }
            let (task, world, supervisor) = (self.task(&launch), self.world.clone(), supervisor.clone());
            let group = TrialGroup::start_in_arbiter(&self.arbiter, move |_| {
                TrialGroup::new(launch, task, world, supervisor)
            });
            self.groups.insert(trial, group);
            return;
        }
        let is_last = matches!(order, GroupCommand::Stop { keep: false });
        if let Some(group) = self.groups.get(&trial) {
            group.do_send(order);
        }
        if is_last {
            self.groups.remove(&trial);
        }
    }
}
