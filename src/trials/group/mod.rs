//! Who trains a trial: how its workers form a group, leave and replace each other.

mod driver;
mod message;
mod watchdog;

use std::collections::BTreeSet;

pub use self::driver::{Driver, Output};
pub use self::message::{
    Activity, Batch, Evaluation, FinalState, Form, Member, MemoryLimit, Pause, Task, WorkerCommand,
    WorkerEvent, WorkerReport,
};
pub use self::watchdog::Limits;
use crate::ids::{Round, SlotId};

/// What is to be done next about the workers of a trial. Slots stand for the workers on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupAction {
    /// Make the model and open the data on this slot; answered by [`Group::prepared`].
    Prepare(SlotId),
    /// Form a new round; answered by [`Group::formed`] or [`Group::broken`] from each member.
    Form {
        /// Higher than all before.
        round: Round,
        /// Who trains, by rank; nobody if all that is left to do is to leave.
        members: Vec<SlotId>,
        /// Who only hands over the state.
        donors: Vec<SlotId>,
        /// Who gets the command: those above, and those who leave.
        notify: Vec<SlotId>,
        /// The round before is broken: its members must not wait for each other.
        broken: bool,
    },
    /// Forget the trial; answered by [`Group::released`].
    Release {
        /// The slot.
        slot: SlotId,
        /// What becomes of the state of the trial.
        state: FinalState,
    },
}

/// The workers of one trial.
///
/// A group trains on while newcomers prepare. Then all form the next round, which old members do at a step they agree on
/// among themselves. Who leaves is free as soon as it reports so.
///
/// ```
/// use pollux_tune::ids::{NodeId, Round, SlotId};
/// use pollux_tune::trials::group::{Group, GroupAction};
///
/// let [three, five] = [3, 5].map(|index| SlotId { node: NodeId(0), index });
/// let mut group = Group::default();
/// assert_eq!(group.reshape([three]), [GroupAction::Prepare(three)]);
/// let form = |round, members: &[SlotId]| {
///     let (round, members, donors, broken) = (Round(round), members.to_vec(), vec![], false);
///     GroupAction::Form { round, notify: members.clone(), members, donors, broken }
/// };
/// assert_eq!(group.prepared(three), [form(1, &[three])]);
/// assert_eq!(group.formed(three, Round(1)), []);
/// // It trains. Growth first prepares the newcomer.
/// assert_eq!(group.reshape([three, five]), [GroupAction::Prepare(five)]);
/// assert_eq!(group.prepared(five), [form(2, &[three, five])]);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    round: Round,
    /// Who shall train.
    target: Vec<SlotId>,
    /// Who was asked to train, by rank.
    members: Vec<SlotId>,
    donors: Vec<SlotId>,
    /// Members that have reported that they train.
    formed: BTreeSet<SlotId>,
    /// Asked to prepare.
    preparing: BTreeSet<SlotId>,
    /// Prepared, or training.
    ready: BTreeSet<SlotId>,
    /// Who has trained, and so has the state.
    holders: BTreeSet<SlotId>,
    /// Asked to leave.
    leaving: BTreeSet<SlotId>,
    is_broken: bool,
    is_released: bool,
    failures: u32,
}

impl Group {
    /// A group whose rounds are numbered from an earlier one on.
    #[must_use]
    pub fn after(round: Round) -> Self {
        Self { round, ..Self::default() }
    }

    /// The latest round.
    #[must_use]
    pub const fn round(&self) -> Round {
        self.round
    }

    /// The members of the latest round, by rank.
    #[must_use]
    pub fn members(&self) -> &[SlotId] {
        &self.members
    }

    /// Whether all members train, and they are those who shall.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.members == self.target && self.members_are_formed()
    }

    /// Whether all members have reported that they train.
    #[must_use]
    pub fn members_are_formed(&self) -> bool {
        !self.is_broken && !self.members.is_empty() && self.is_formed()
    }

    /// All slots that this group uses in any way.
    #[must_use]
    pub fn slots(&self) -> BTreeSet<SlotId> {
        let groups = [&self.preparing, &self.ready, &self.leaving];
        groups.into_iter().flatten().copied().collect()
    }

    /// Who takes part in the latest round: its members, and those who hand over the state.
    pub fn participants(&self) -> impl Iterator<Item = &SlotId> {
        self.members.iter().chain(&self.donors)
    }

    /// How many generations have broken since the last [progress](Self::progressed).
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// The trial has trained on: whatever went wrong before is over.
    pub const fn progressed(&mut self) {
        self.failures = 0;
    }

    /// Sets who shall train from now on, by rank. Members that stay keep their order.
    pub fn reshape(&mut self, target: impl IntoIterator<Item = SlotId>) -> Vec<GroupAction> {
        let mut target: Vec<SlotId> = target.into_iter().collect();
        // The first rank writes checkpoints and reports: it had better not change without need.
        target
            .sort_by_key(|slot| self.members.iter().position(|member| member == slot).unwrap_or(usize::MAX));
        target.dedup();
        self.target = target;
        self.advance()
    }

    /// A worker is ready to train.
    pub fn prepared(&mut self, slot: SlotId) -> Vec<GroupAction> {
        if !self.preparing.remove(&slot) {
            return Vec::new();
        }
        self.ready.insert(slot);
        self.advance()
    }

    /// A member trains.
    pub fn formed(&mut self, slot: SlotId, round: Round) -> Vec<GroupAction> {
        if round != self.round || !self.ready.contains(&slot) {
            return Vec::new();
        }
        self.formed.insert(slot);
        self.holders.insert(slot);
        self.advance()
    }

    /// A member has lost the group.
    pub fn broken(&mut self, slot: SlotId, round: Round) -> Vec<GroupAction> {
        if round != self.round || !self.ready.contains(&slot) {
            return Vec::new();
        }
        self.fail();
        self.advance()
    }

    /// The members stand still: all are to leave the round at once and to form the next one.
    pub fn interrupt(&mut self) -> Vec<GroupAction> {
        self.fail();
        self.advance()
    }

    /// A worker's process is gone. If nobody is left, the group waits for another [`reshape`](Self::reshape).
    pub fn gone(&mut self, slot: SlotId) -> Vec<GroupAction> {
        let was_inside = self.members.contains(&slot) || self.donors.contains(&slot);
        self.forget(slot);
        self.target.retain(|other| *other != slot);
        self.members.retain(|other| *other != slot);
        if was_inside {
            self.fail();
        }
        if was_inside && self.is_released {
            return self.hurry().into_iter().collect();
        }
        self.advance()
    }

    /// Members that are to leave would wait for one that is gone until they notice: they are told to leave at once.
    fn hurry(&mut self) -> Option<GroupAction> {
        let notify: Vec<SlotId> =
            self.participants().copied().filter(|slot| self.leaving.contains(slot)).collect();
        if notify.is_empty() {
            return None;
        }
        self.round = self.round.next();
        let (round, members, donors) = (self.round, Vec::new(), Vec::new());
        Some(GroupAction::Form { round, members, donors, notify, broken: true })
    }

    /// A worker has forgotten the trial.
    pub fn released(&mut self, slot: SlotId) -> Vec<GroupAction> {
        self.forget(slot);
        if self.members.contains(&slot) {
            // It had handed over and left when it was asked to come back.
            self.fail();
        }
        self.advance()
    }

    /// Everybody forgets the trial. If it is to resume later, the first one saves it.
    pub fn release(&mut self, state: FinalState) -> Vec<GroupAction> {
        self.is_released = true;
        self.target.clear();
        let first = self.members.iter().chain(&self.donors).copied().find(|slot| self.holders.contains(slot));
        let slots = self.slots();
        self.leaving.clone_from(&slots);
        slots
            .into_iter()
            .map(|slot| GroupAction::Release {
                slot,
                state: if Some(slot) == first { state } else { FinalState::Discarded },
            })
            .collect()
    }

    /// The worker on a slot has nothing of the trial any more.
    fn forget(&mut self, slot: SlotId) {
        let Self { preparing, ready, holders, leaving, formed, .. } = self;
        for slots in [preparing, ready, holders, leaving, formed] {
            slots.remove(&slot);
        }
        self.donors.retain(|other| *other != slot);
    }

    fn fail(&mut self) {
        if !self.is_broken {
            self.failures += 1;
        }
        self.is_broken = true;
    }

    fn is_formed(&self) -> bool {
        self.members.iter().all(|member| self.formed.contains(member))
    }

    /// What can be done now towards the target.
    fn advance(&mut self) -> Vec<GroupAction> {
        if self.is_released {
            return Vec::new();
        }
        let mut actions = self.let_go();
        if self.target.is_empty() || self.is_settled() {
            return actions;
        }
        let known = |slot: &&SlotId| {
            !self.preparing.contains(slot) && !self.ready.contains(slot) && !self.leaving.contains(slot)
        };
        let newcomers: Vec<SlotId> = self.target.iter().filter(known).copied().collect();
        self.preparing.extend(&newcomers);
        actions.extend(newcomers.into_iter().map(GroupAction::Prepare));
        let ready: Vec<SlotId> =
            self.target.iter().filter(|slot| self.ready.contains(slot)).copied().collect();
        // A broken group continues at once with those that are ready; a whole one trains on until all are.
        let survivors_continue = self.is_broken && ready.iter().any(|slot| self.holders.contains(slot));
        let is_idle = self.is_broken || self.is_formed();
        if is_idle
            && (ready.len() == self.target.len() || survivors_continue)
            && ready != self.members_if_whole()
        {
            actions.push(self.form(ready));
        }
        actions
    }

    /// Releases those who have prepared for a target that was changed since.
    fn let_go(&mut self) -> Vec<GroupAction> {
        let Self { ready, target, members, donors, holders, .. } = &*self;
        let is_needed = |slot: &SlotId| {
            [target, members, donors].iter().any(|list| list.contains(slot)) || holders.contains(slot)
        };
        let unneeded: Vec<SlotId> = ready.iter().copied().filter(|slot| !is_needed(slot)).collect();
        for slot in &unneeded {
            self.ready.remove(slot);
            self.leaving.insert(*slot);
        }
        unneeded.into_iter().map(|slot| GroupAction::Release { slot, state: FinalState::Discarded }).collect()
    }

    /// Who trains now, if nothing is amiss.
    fn members_if_whole(&self) -> Vec<SlotId> {
        if self.is_broken { Vec::new() } else { self.members.clone() }
    }

    fn form(&mut self, members: Vec<SlotId>) -> GroupAction {
        self.round = self.round.next();
        let has_state = members.iter().any(|slot| self.holders.contains(slot));
        let donor = self.holders.iter().find(|slot| !has_state && !self.leaving.contains(slot)).copied();
        let donors: Vec<SlotId> = donor.into_iter().collect();
        let stays = |slot: &SlotId| members.contains(slot) || donors.contains(slot);
        // Those who are ready but not needed any more leave, too.
        let notify: Vec<SlotId> = self.ready.iter().copied().collect();
        for slot in notify.iter().filter(|slot| !stays(slot)) {
            self.ready.remove(slot);
            self.holders.remove(slot);
            self.leaving.insert(*slot);
        }
        let broken = std::mem::take(&mut self.is_broken);
        self.members.clone_from(&members);
        self.donors.clone_from(&donors);
        self.formed.clear();
        GroupAction::Form { round: self.round, members, donors, notify, broken }
    }
}

#[cfg(test)]
mod tests;
