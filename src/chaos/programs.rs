//! Trials that are not elastic: functions and programs, one slot each.

use std::collections::BTreeMap;

use super::{
    Fault, INJECTED,
    backend::loss,
    world::{Address, Event, Message, World},
};
use crate::{
    ids::{Generation, NodeId, SlotId, TrialId},
    trials::engine::{FailureCause, GroupCommand, GroupEvent, Input, Launch, Metrics, Report},
};

#[derive(Debug, Default)]
pub(super) struct Programs {
    running: BTreeMap<TrialId, Program>,
    runs: u64,
}

#[derive(Debug)]
struct Program {
    run: u64,
    generation: Generation,
    slot: SlotId,
    epochs: u32,
    x: f64,
}

impl Programs {
    /// Those of a machine end with it.
    pub(super) fn end_on(&mut self, node: NodeId) -> Vec<(TrialId, Generation)> {
        let is_there = |program: &Program| program.slot.node == node;
        let there = self.running.iter().filter(|(_, program)| is_there(program));
        let gone = there.map(|(trial, program)| (*trial, program.generation)).collect();
        self.running.retain(|_, program| !is_there(program));
        gone
    }

    /// They do not outlive the head.
    pub(super) fn end_all(&mut self) {
        self.running.clear();
    }
}

impl World {
    pub(super) fn command_program(&mut self, trial: TrialId, command: GroupCommand) -> Result<(), String> {
        match command {
            GroupCommand::Launch(Launch { generation, slots, params, .. }) => {
                let slot = slots[0];
                let users = self.programs.running.iter();
                if let Some((other, _)) = users.into_iter().find(|(_, program)| program.slot == slot) {
                    return Err(format!("slot {slot} is used by trial {other} and by trial {trial}"));
                }
                self.programs.runs += 1;
                let (run, x) = (self.programs.runs, params.float("x").unwrap_or(0.5));
                self.programs.running.insert(trial, Program { run, generation, slot, epochs: 0, x });
                let after_s = self.seconds(0.5, 8.0);
                self.after(after_s, Event::Program { trial, run });
            }
            GroupCommand::Stop(_) => {
                self.programs.running.remove(&trial);
            }
            GroupCommand::Reshape { .. } | GroupCommand::Retune { .. } => {
                return Err(format!("trial {trial} is not elastic, and gets {command:?}"));
            }
        }
        Ok(())
    }

    /// A program reports, and ends some time.
    pub(super) fn run_program(&mut self, trial: TrialId, run: u64) {
        let all = self.scenario.study.trial.epochs;
        let Some(program) = self.programs.running.get_mut(&trial).filter(|program| program.run == run) else {
            return;
        };
        let generation = program.generation;
        let causes = [
            (Fault::TrialFails, FailureCause::Trial),
            (Fault::GroupBreaks, FailureCause::Infrastructure),
            (Fault::EnvironmentFails, FailureCause::Environment),
        ];
        for (fault, cause) in causes {
            if self.site.borrow_mut().strikes(fault) {
                self.programs.running.remove(&trial);
                let reason = INJECTED.to_owned();
                self.report(trial, generation, GroupEvent::Failed { reason, cause });
                return;
            }
        }
        if program.epochs == 0 {
            // A program tells when it has begun.
            self.send(
                Address::Supervisor,
                Message::Input(Input::group(trial, generation, GroupEvent::Formed)),
            );
        }
        let Some(program) = self.programs.running.get_mut(&trial) else { return };
        program.epochs += 1;
        let (number, epochs) = (program.epochs, f64::from(program.epochs));
        let metrics = Metrics::from([("loss".to_owned(), loss(program.x, epochs).into())]);
        let report = Report { number, epochs, metrics: metrics.clone(), ..Report::default() };
        self.site.borrow_mut().stepped.insert(trial, self.now_s);
        if epochs >= all {
            self.programs.running.remove(&trial);
        }
        self.report(trial, generation, GroupEvent::Reported(report));
        if epochs >= all {
            self.report(trial, generation, GroupEvent::Finished(metrics));
        } else {
            let after_s = self.seconds(0.5, 8.0);
            self.after(after_s, Event::Program { trial, run });
        }
    }

    fn report(&mut self, trial: TrialId, generation: Generation, event: GroupEvent) {
        self.send(Address::Supervisor, Message::Input(Input::group(trial, generation, event)));
    }
}
