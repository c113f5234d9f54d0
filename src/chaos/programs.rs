//! Trials that are not elastic: functions and programs, on slots of one machine each.

use std::collections::BTreeMap;

use super::{
    Fault, INJECTED,
    backend::loss,
    world::{Address, Event, Message, World},
};
use crate::{
    ids::{Generation, NodeId, SlotId, TrialId},
    trials::{
        engine::{Checkpoint, FailureCause, GroupCommand, GroupEvent, Input, Launch, Metrics, Report},
        group::FinalState,
    },
};

#[derive(Debug, Default)]
pub(super) struct Programs {
    running: BTreeMap<TrialId, Program>,
    /// What those have saved that were ended for a restart.
    saved: BTreeMap<TrialId, u32>,
    runs: u64,
}

#[derive(Debug)]
struct Program {
    run: u64,
    generation: Generation,
    slots: Vec<SlotId>,
    epochs: u32,
    /// How far it was when it began.
    first: u32,
    x: f64,
}

impl Programs {
    /// Those of a machine end with it.
    pub(super) fn end_on(&mut self, node: NodeId) -> Vec<(TrialId, Generation)> {
        let is_there = |program: &Program| program.slots.iter().any(|slot| slot.node == node);
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
                let is_shared = |program: &Program| program.slots.iter().any(|slot| slots.contains(slot));
                if let Some((other, _)) = self.programs.running.iter().find(|(_, of)| is_shared(of)) {
                    return Err(format!("slots {slots:?} are used by trial {other} and by trial {trial}"));
                }
                if slots.iter().any(|slot| slot.node != slots[0].node) {
                    return Err(format!("trial {trial} is a program, and gets {slots:?}"));
                }
                self.programs.runs += 1;
                let (run, x) = (self.programs.runs, params.float("x").unwrap_or(0.5));
                let epochs = self.programs.saved.get(&trial).copied().unwrap_or(0);
                self.programs
                    .running
                    .insert(trial, Program { run, generation, slots, epochs, first: epochs, x });
                let after_s = self.seconds(0.5, 8.0);
                self.after(after_s, Event::Program { trial, run });
            }
            GroupCommand::Stop(FinalState::Saved) => {
                // It may have ended meanwhile, and has said so.
                if let Some(program) = self.programs.running.remove(&trial) {
                    self.programs.saved.insert(trial, program.epochs);
                    let paused = GroupEvent::Paused(Checkpoint { name: String::new(), epochs: 0.0 });
                    self.report(trial, program.generation, paused);
                }
            }
            GroupCommand::Stop(FinalState::Discarded) => {
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
        if program.epochs == program.first {
            // A program tells when it has begun.
            self.send(
                Address::Supervisor,
                Message::Input(Input::group(trial, generation, GroupEvent::Formed)),
            );
        }
        let Some(program) = self.programs.running.get_mut(&trial) else { return };
        program.epochs += 1;
        let (number, epochs) = (program.epochs - program.first, f64::from(program.epochs));
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
