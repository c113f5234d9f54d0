//! Trials that are trained by elastic groups of workers.

use std::{collections::BTreeMap, path::PathBuf};

use actix::{Actor, Addr, ArbiterHandle, Recipient};

use super::{
    group::{ClusterHandles, TrialGroup},
    message::{EngineInput, ForGroup},
    supervisor::TrialRunners,
};
use crate::{
    ids::{StudyId, TrialId},
    space::{Params, Study},
    store::Folder,
    trials::{
        Execution,
        engine::{GroupCommand, Launch},
        group::{FinalState, Task},
        trial_seed,
    },
};

/// What trials train.
pub(super) enum Tasks {
    /// From the study and its suggester.
    OfStudy(Box<StudyTasks>),
    /// These, by the number of the trial.
    Given(Vec<Task>),
}

/// The tasks of a study.
pub(super) struct StudyTasks {
    pub(super) study: Study,
    pub(super) study_id: StudyId,
    pub(super) trainable: String,
    pub(super) folder: PathBuf,
    /// Seconds from report to report.
    pub(super) report_every_s: f64,
}

/// Makes groups, and hands commands to them.
pub(super) struct Elastic {
    pub(super) tasks: Tasks,
    pub(super) cluster: ClusterHandles,
    /// Where groups live.
    pub(super) arbiter: ArbiterHandle,
    pub(super) groups: BTreeMap<TrialId, Addr<TrialGroup>>,
}

impl Tasks {
    /// None if there is no such trial.
    fn task(&self, trial: TrialId, launch: &Launch) -> Option<Task> {
        match self {
            Self::OfStudy(tasks) => Some(tasks.task(trial, launch)),
            Self::Given(tasks) => tasks.get(trial.0 as usize).cloned(),
        }
    }
}

impl StudyTasks {
    fn task(&self, trial: TrialId, launch: &Launch) -> Task {
        let settings = &self.study.trial;
        let params = json_params(&launch.params);
        Task {
            study: self.study_id,
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

/// Parameters as tasks have them.
pub(super) fn json_params(params: &Params) -> serde_json::Map<String, serde_json::Value> {
    match serde_json::to_value(params) {
        Ok(serde_json::Value::Object(params)) => params,
        // An assignment is a mapping of names to plain values, which JSON has.
        Ok(_) | Err(_) => serde_json::Map::new(),
    }
}

impl TrialRunners for Elastic {
    fn command(&mut self, trial: TrialId, command: GroupCommand, supervisor: &Recipient<EngineInput>) {
        if let GroupCommand::Launch(launch) = command {
            // Whoever was there before has nothing more to report.
            if let Some(before) = self.groups.remove(&trial) {
                before.do_send(ForGroup(GroupCommand::Stop(FinalState::Discarded)));
            }
            let Some(task) = self.tasks.task(trial, &launch) else { return };
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
