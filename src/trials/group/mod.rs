//! Who trains a trial: how its workers come together, part and replace each other.

use std::collections::BTreeSet;

/// What is to be done next about the workers of a trial. Slots stand for the workers on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupAction {
    /// Make the model and open the data on this slot; answered by [`Group::prepared`].
    Prepare(u32),
    /// Form a new generation; answered by [`Group::formed`] or [`Group::broken`] from each member.
    Form {
        /// Higher than all before.
        generation: u64,
        /// Who trains, by rank.
        members: Vec<u32>,
        /// Who only hands over the state.
        donors: Vec<u32>,
        /// Who is to be told: those above, and those who leave.
        told: Vec<u32>,
        /// The generation before is broken: its members must not wait for each other.
        broken: bool,
    },
    /// Forget the trial; answered by [`Group::released`].
    Release {
        /// The slot.
        slot: u32,
        /// Leave a checkpoint to go on from.
        save: bool,
    },
}

/// The workers of one trial.
///
/// A group trains on while newcomers prepare. Then all are told at once to form the next generation, which old members do at a
/// step they agree on among themselves. Who leaves is free as soon as it says so.
///
/// ```
/// use pollux_tune::trials::{Group, GroupAction};
///
/// let mut group = Group::default();
/// assert_eq!(group.reshape([3]), [GroupAction::Prepare(3)]);
/// let form = |generation, members: &[u32]| {
///     let (members, donors, broken) = (members.to_vec(), vec![], false);
///     GroupAction::Form { generation, told: members.clone(), members, donors, broken }
/// };
/// assert_eq!(group.prepared(3), [form(1, &[3])]);
/// assert_eq!(group.formed(3, 1), []);
/// // It trains. Growth first prepares the newcomer.
/// assert_eq!(group.reshape([3, 5]), [GroupAction::Prepare(5)]);
/// assert_eq!(group.prepared(5), [form(2, &[3, 5])]);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    generation: u64,
    /// Who shall train.
    target: Vec<u32>,
    /// Who was told to train, by rank.
    members: Vec<u32>,
    donors: Vec<u32>,
    /// Members that have said that they train.
    formed: BTreeSet<u32>,
    /// Asked to prepare.
    preparing: BTreeSet<u32>,
    /// Ready to be told, or training.
    ready: BTreeSet<u32>,
    /// Who has trained, and so has the state.
    holders: BTreeSet<u32>,
    /// Told to leave.
    leaving: BTreeSet<u32>,
    is_broken: bool,
    is_released: bool,
    failures: u32,
}

impl Group {
    /// A group that goes on counting from an earlier generation.
    #[must_use]
    pub fn after(generation: u64) -> Self {
        Self { generation, ..Self::default() }
    }

    /// The latest generation.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Who was told to train last, by rank.
    #[must_use]
    pub fn members(&self) -> &[u32] {
        &self.members
    }

    /// Whether all members train, and they are those who shall.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.members == self.target && self.members_are_formed()
    }

    /// Whether all members have said that they train.
    #[must_use]
    pub fn members_are_formed(&self) -> bool {
        !self.is_broken && !self.members.is_empty() && self.is_formed()
    }

    /// All slots that this group uses in any way.
    #[must_use]
    pub fn slots(&self) -> BTreeSet<u32> {
        let groups = [&self.preparing, &self.ready, &self.leaving];
        groups.into_iter().flatten().copied().collect()
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

    /// Says who shall train from now on, by rank. Members that stay keep their order.
    pub fn reshape(&mut self, target: impl IntoIterator<Item = u32>) -> Vec<GroupAction> {
        let mut target: Vec<u32> = target.into_iter().collect();
        // The first rank writes checkpoints and reports: it had better not change without need.
        target
            .sort_by_key(|slot| self.members.iter().position(|member| member == slot).unwrap_or(usize::MAX));
        target.dedup();
        self.target = target;
        self.advance()
    }

    /// A worker is ready to train.
    pub fn prepared(&mut self, slot: u32) -> Vec<GroupAction> {
        if !self.preparing.remove(&slot) {
            return Vec::new();
        }
        self.ready.insert(slot);
        self.advance()
    }

    /// A member trains.
    pub fn formed(&mut self, slot: u32, generation: u64) -> Vec<GroupAction> {
        if generation != self.generation || !self.ready.contains(&slot) {
            return Vec::new();
        }
        self.formed.insert(slot);
        self.holders.insert(slot);
        self.advance()
    }

    /// A member has lost the group.
    pub fn broken(&mut self, slot: u32, generation: u64) -> Vec<GroupAction> {
        if generation != self.generation || !self.ready.contains(&slot) {
            return Vec::new();
        }
        self.fail();
        self.advance()
    }

    /// A worker's process is gone. If nobody is left, the group waits for another [`reshape`](Self::reshape).
    pub fn gone(&mut self, slot: u32) -> Vec<GroupAction> {
        let was_inside = self.members.contains(&slot) || self.donors.contains(&slot);
        self.forget(slot);
        self.target.retain(|other| *other != slot);
        self.members.retain(|other| *other != slot);
        if was_inside {
            self.fail();
        }
        self.advance()
    }

    /// A worker has forgotten the trial.
    pub fn released(&mut self, slot: u32) -> Vec<GroupAction> {
        self.forget(slot);
        if self.members.contains(&slot) {
            // It was done with handing over when it was told to come back.
            self.fail();
        }
        self.advance()
    }

    /// Everybody forgets the trial. If it is to go on later, the first one saves it.
    pub fn release(&mut self, save: bool) -> Vec<GroupAction> {
        self.is_released = true;
        self.target.clear();
        let first = self.members.iter().chain(&self.donors).copied().find(|slot| self.holders.contains(slot));
        let slots = self.slots();
        self.leaving.clone_from(&slots);
        slots
            .into_iter()
            .map(|slot| GroupAction::Release { slot, save: save && Some(slot) == first })
            .collect()
    }

    /// The worker on a slot has nothing of the trial any more.
    fn forget(&mut self, slot: u32) {
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
        let mut orders = self.let_go();
        if self.target.is_empty() || self.is_settled() {
            return orders;
        }
        let known = |slot: &&u32| {
            !self.preparing.contains(slot) && !self.ready.contains(slot) && !self.leaving.contains(slot)
        };
        let newcomers: Vec<u32> = self.target.iter().filter(known).copied().collect();
        self.preparing.extend(&newcomers);
        orders.extend(newcomers.into_iter().map(GroupAction::Prepare));
        let ready: Vec<u32> = self.target.iter().filter(|slot| self.ready.contains(slot)).copied().collect();
        // A broken group goes on at once with those that are there; a whole one trains on until all are.
        let survivors_go_on = self.is_broken && ready.iter().any(|slot| self.holders.contains(slot));
        let is_idle = self.is_broken || self.is_formed();
        if is_idle
            && (ready.len() == self.target.len() || survivors_go_on)
            && ready != self.members_if_whole()
        {
            orders.push(self.form(ready));
        }
        orders
    }

    /// Those who have prepared for a wish that was changed since.
    fn let_go(&mut self) -> Vec<GroupAction> {
        let Self { ready, target, members, donors, holders, .. } = &*self;
        let is_needed = |slot: &u32| {
            [target, members, donors].iter().any(|list| list.contains(slot)) || holders.contains(slot)
        };
        let unneeded: Vec<u32> = ready.iter().copied().filter(|slot| !is_needed(slot)).collect();
        for slot in &unneeded {
            self.ready.remove(slot);
            self.leaving.insert(*slot);
        }
        unneeded.into_iter().map(|slot| GroupAction::Release { slot, save: false }).collect()
    }

    /// Who trains now, if nothing is amiss.
    fn members_if_whole(&self) -> Vec<u32> {
        if self.is_broken { Vec::new() } else { self.members.clone() }
    }

    fn form(&mut self, members: Vec<u32>) -> GroupAction {
        self.generation += 1;
        let has_state = members.iter().any(|slot| self.holders.contains(slot));
        let donor = self.holders.iter().find(|slot| !has_state && !self.leaving.contains(slot)).copied();
        let donors: Vec<u32> = donor.into_iter().collect();
        let stays = |slot: &u32| members.contains(slot) || donors.contains(slot);
        // Whoever is ready, but not wanted any more, is let go, too.
        let told: Vec<u32> = self.ready.iter().copied().collect();
        for slot in told.iter().filter(|slot| !stays(slot)) {
            self.ready.remove(slot);
            self.holders.remove(slot);
            self.leaving.insert(*slot);
        }
        let broken = std::mem::take(&mut self.is_broken);
        self.members.clone_from(&members);
        self.donors.clone_from(&donors);
        self.formed.clear();
        GroupAction::Form { generation: self.generation, members, donors, told, broken }
    }
}

#[cfg(test)]
mod tests;
