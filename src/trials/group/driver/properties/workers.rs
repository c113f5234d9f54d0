//! What workers do with their commands, and the events they send.

use super::*;
use crate::trials::group::{Activity, MemoryLimit, Pause};

impl World {
    /// Whether a round can still form, as far as this slot is concerned.
    fn can_form(&self, at: SlotId, round: Round) -> bool {
        let slot = &self.slots[&at];
        let is_coming =
            |command: &WorkerCommand| matches!(command, WorkerCommand::Form(form) if form.round == round);
        slot.is_alive && (self.has_joined(at, round) || slot.commands.iter().any(is_coming))
    }

    fn has_joined(&self, at: SlotId, round: Round) -> bool {
        match &self.slots[&at].state {
            State::Joining(form) | State::Donating(form) | State::Training(form) => form.round == round,
            State::Idle | State::Preparing | State::Ready => false,
        }
    }

    /// A worker does the next thing. What it does besides its duty is up to `chance`; 0 is nothing.
    pub(super) fn work(&mut self, at: SlotId, chance: u32) -> bool {
        let slot = self.slot(at);
        if !slot.is_alive || slot.is_stuck {
            return false;
        }
        let state = slot.state.clone();
        let (next, sent) = match &state {
            State::Idle | State::Ready => return self.take_command(at),
            State::Preparing if chance == 1 => (
                State::Idle,
                vec![WorkerEvent::Failed {
                    trial: TRIAL,
                    reason: "NaN".to_owned(),
                    cause: FailureCause::Trial,
                }],
            ),
            State::Preparing => {
                let rendezvous_addr = format!("host:{}", at.index);
                (State::Ready, vec![WorkerEvent::Prepared { trial: TRIAL, rendezvous_addr }])
            }
            State::Joining(form) | State::Donating(form) => match self.form(at, form, &state) {
                Some(done) => done,
                None => return false,
            },
            State::Training(form) => match self.train(at, form, chance) {
                Some(done) => done,
                None => return false,
            },
        };
        let slot = self.slot(at);
        slot.has_state = slot.has_state && next != State::Idle || matches!(next, State::Training(_));
        slot.state = next;
        slot.events.extend(sent.into_iter().map(Some));
        true
    }

    /// Whether a group takes no steps, because one of its members does not. Who has left it is not waited for.
    fn waits_for_stuck(&self, form: &Form) -> bool {
        let is_stuck = |slot| self.slots[&slot].is_stuck && self.has_joined(slot, form.round);
        form.members.iter().any(|member| is_stuck(member.slot))
    }

    /// A worker that trains takes another step.
    pub(super) fn give_sign(&mut self, at: SlotId) {
        if let State::Training(form) = self.slots[&at].state.clone()
            && !self.waits_for_stuck(&form)
        {
            self.slot(at).events.push_back(Some(progress(form.round, Activity::Training)));
        }
    }

    fn form(&self, at: SlotId, form: &Form, state: &State) -> Option<(State, Vec<WorkerEvent>)> {
        let everybody = || form.members.iter().chain(&form.donors).map(|member| member.slot);
        if !self.slots[&at].commands.is_empty() || !everybody().all(|slot| self.can_form(slot, form.round)) {
            return Some((State::Ready, vec![broken(form.round)]));
        }
        if !everybody().all(|slot| self.has_joined(slot, form.round)) {
            return None;
        }
        let trains = |member: &Member| matches!(self.slots[&member.slot].state, State::Training(_));
        match state {
            State::Donating(_) if form.members.iter().all(trains) => {
                Some((State::Idle, vec![WorkerEvent::Released { trial: TRIAL }]))
            }
            State::Donating(_) => None,
            _ => Some((State::Training(form.clone()), vec![formed(form.round)])),
        }
    }

    fn train(&self, at: SlotId, form: &Form, chance: u32) -> Option<(State, Vec<WorkerEvent>)> {
        let (trial, round) = (TRIAL, form.round);
        let leaves = |command: &WorkerCommand| !matches!(command, WorkerCommand::Retune { .. });
        let stays = State::Training(form.clone());
        let is_urgent = |command: &WorkerCommand| matches!(command, WorkerCommand::Form(form) if form.broken);
        let commands = &self.slots[&at].commands;
        if commands.iter().any(is_urgent) || (commands.iter().any(leaves) && !self.waits_for_stuck(form)) {
            return Some((State::Ready, Vec::new()));
        }
        if form.members.iter().any(|member| !self.slots[&member.slot].is_alive) {
            return Some((State::Ready, vec![broken(round)]));
        }
        if self.waits_for_stuck(form) {
            return None;
        }
        let is_first = form.members[0].slot == at;
        let metrics = BTreeMap::new();
        match chance {
            1 => Some((
                State::Idle,
                vec![WorkerEvent::Failed { trial, reason: "NaN".to_owned(), cause: FailureCause::Trial }],
            )),
            2 => Some((State::Ready, vec![broken(round)])),
            3 if is_first => Some((State::Ready, vec![WorkerEvent::Finished { trial, round, metrics }])),
            4..=7 if is_first => {
                let report = WorkerReport { trial, round, epochs: 0.5, ..WorkerReport::default() };
                Some((stays, vec![WorkerEvent::Reported(Box::new(report))]))
            }
            8 if is_first => {
                let reason = "no space".to_owned();
                Some((stays, vec![WorkerEvent::CheckpointFailed { trial, reason }]))
            }
            9 if is_first => Some((stays, vec![WorkerEvent::Checkpointed { trial, steps: 1 }])),
            11 => {
                let memory = MemoryLimit { failed: 2, limit: 1 };
                Some((stays, vec![WorkerEvent::OutOfMemory { trial, memory }]))
            }
            // A late copy of an old event.
            10 => Some((stays, vec![formed(Round(round.0 - 1)), broken(Round(round.0 - 1))])),
            _ => None,
        }
    }

    /// A worker that does nothing else reads its next command.
    fn take_command(&mut self, at: SlotId) -> bool {
        let slot = self.slot(at);
        let Some(command) = slot.commands.pop_front() else { return false };
        let trial = TRIAL;
        match command {
            WorkerCommand::Prepare(_) => {
                assert_eq!(slot.state, State::Idle, "it has another trial");
                slot.state = State::Preparing;
            }
            // It has left already.
            WorkerCommand::Form(form) if slot.state == State::Idle && form.members.is_empty() => {}
            WorkerCommand::Form(form) if slot.state == State::Idle => {
                slot.events.push_back(Some(broken(form.round)));
            }
            WorkerCommand::Form(form) => {
                let is_in = |list: &[Member]| list.iter().any(|member| member.slot == at);
                let joining = Some(progress(form.round, Activity::Joining));
                slot.state = if is_in(&form.members) {
                    slot.events.push_back(joining);
                    State::Joining(form)
                } else if is_in(&form.donors) {
                    slot.events.push_back(joining);
                    State::Donating(form)
                } else {
                    slot.has_state = false;
                    slot.events.push_back(Some(WorkerEvent::Released { trial }));
                    State::Idle
                };
            }
            WorkerCommand::Retune { .. } => {}
            WorkerCommand::Release { state, .. } => {
                if state == FinalState::Saved && slot.has_state {
                    slot.events.push_back(Some(WorkerEvent::Checkpointed { trial, steps: 1 }));
                }
                slot.events.push_back(Some(WorkerEvent::Released { trial }));
                (slot.state, slot.has_state) = (State::Idle, false);
            }
        }
        true
    }
}

fn formed(round: Round) -> WorkerEvent {
    WorkerEvent::Formed { trial: TRIAL, round, steps: 0, pause: Pause::default() }
}

const fn progress(round: Round, activity: Activity) -> WorkerEvent {
    WorkerEvent::Progress { trial: TRIAL, round, steps: 1, longest_step_s: 0.1, activity }
}

fn broken(round: Round) -> WorkerEvent {
    WorkerEvent::Broken { trial: TRIAL, round, steps: None, reason: "lost".to_owned() }
}
