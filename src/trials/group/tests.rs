use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::ids::NodeId;

const fn slot(index: u32) -> SlotId {
    SlotId { node: NodeId(0), index }
}

fn slots(indices: &[u32]) -> Vec<SlotId> {
    indices.iter().copied().map(slot).collect()
}

fn form(round: u64, members: &[u32], donors: &[u32], notify: &[u32], broken: bool) -> GroupAction {
    let (members, donors, notify) = (slots(members), slots(donors), slots(notify));
    GroupAction::Form { round: Round(round), members, donors, notify, broken }
}

fn prepare(index: u32) -> GroupAction {
    GroupAction::Prepare(slot(index))
}

/// A group that trains on these slots.
fn training(slots: &[u32]) -> Group {
    let mut group = Group::default();
    group.reshape(self::slots(slots));
    for slot in slots {
        group.prepared(self::slot(*slot));
    }
    for slot in slots {
        group.formed(self::slot(*slot), Round(1));
    }
    assert!(group.is_settled());
    group
}

#[test]
fn who_leaves_is_told_with_the_others_and_free_when_it_says_so() {
    let mut group = training(&[0, 1]);
    assert_eq!(group.reshape(slots(&[0])), [form(2, &[0], &[], &[0, 1], false)]);
    assert_eq!(group.slots(), slots(&[0, 1]).into_iter().collect());
    assert_eq!(group.released(slot(1)), []);
    assert_eq!(group.slots(), slots(&[0]).into_iter().collect());
    group.formed(slot(0), Round(2));
    assert!(group.is_settled());
}

#[test]
fn with_other_slots_only_an_old_member_hands_over() {
    let mut group = training(&[0, 1]);
    assert_eq!(group.reshape(slots(&[2])), [prepare(2)]);
    assert_eq!(group.prepared(slot(2)), [form(2, &[2], &[0], &[0, 1, 2], false)]);
    group.released(slot(1));
    group.formed(slot(2), Round(2));
    group.released(slot(0));
    assert_eq!((group.slots(), group.is_settled()), (slots(&[2]).into_iter().collect(), true));
}

#[test]
fn survivors_continue_and_whoever_replaces_the_dead_joins_later() {
    let mut group = training(&[0, 1, 2]);
    assert_eq!(group.gone(slot(1)), [form(2, &[0, 2], &[], &[0, 2], true)]);
    // The end of the old group is reported late.
    assert_eq!(group.broken(slot(0), Round(1)), []);
    assert_eq!(group.reshape(slots(&[0, 2, 1])), [prepare(1)]);
    assert_eq!(group.prepared(slot(1)), [], "the survivors are still coming together");
    group.formed(slot(0), Round(2));
    assert_eq!(group.formed(slot(2), Round(2)), [form(3, &[0, 2, 1], &[], &[0, 1, 2], false)]);
    assert_eq!(group.failures(), 1);
}

#[test]
fn a_newcomer_that_dies_while_the_state_is_handed_over_costs_nothing() {
    let mut group = training(&[0]);
    group.reshape(slots(&[1]));
    assert_eq!(group.prepared(slot(1)), [form(2, &[1], &[0], &[0, 1], false)]);
    assert_eq!(group.gone(slot(1)), [], "nobody is left in the target");
    group.broken(slot(0), Round(2));
    assert_eq!(group.reshape(slots(&[0])), [form(3, &[0], &[], &[0], true)]);
}

#[test]
fn a_wish_that_changes_in_the_middle_is_followed_when_the_group_is_together() {
    let mut group = training(&[0]);
    group.reshape(slots(&[0, 1]));
    group.prepared(slot(1));
    assert_eq!(group.reshape(slots(&[0])), []);
    group.formed(slot(0), Round(2));
    assert_eq!(group.formed(slot(1), Round(2)), [form(3, &[0], &[], &[0, 1], false)]);
}

#[test]
fn a_lost_group_starts_again_from_nothing() {
    let mut group = training(&[0]);
    assert_eq!(group.gone(slot(0)), []);
    assert!(group.slots().is_empty());
    assert_eq!(group.reshape(slots(&[0])), [prepare(0)]);
    assert_eq!(group.prepared(slot(0)), [form(2, &[0], &[], &[0], true)]);
}

#[test]
fn only_one_saves_at_the_end() {
    let mut group = training(&[4, 2]);
    let release = |index, state| GroupAction::Release { slot: slot(index), state };
    let expected = [release(2, FinalState::Discarded), release(4, FinalState::Saved)];
    assert_eq!(group.release(FinalState::Saved), expected);
    group.released(slot(2));
    group.released(slot(4));
    assert!(group.slots().is_empty());
}

/// Workers as the group may see them.
#[derive(Debug, Clone, PartialEq)]
enum Worker {
    Preparing,
    Prepared,
    Training(Round),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever dies and whatever is wished for, when it stops the group settles on what was wished for last, and nothing is left behind.
    #[test]
    fn every_history_ends_settled(history in prop::collection::vec((0_u32..6, 0_u32..4), 1..60)) {
        let mut group = Group::default();
        let mut workers: BTreeMap<SlotId, Worker> = BTreeMap::new();
        let mut actions: Vec<GroupAction> = Vec::new();
        let mut round = Round(0);
        let mut target = slots(&[0]);
        for (kind, index) in history.into_iter().chain([(9, 0); 200]) {
            let slot = slot(index);
            match kind {
                0 => { target = vec![slot]; actions.extend(group.reshape(target.clone())); }
                1 => { target = slots(&[index, (index + 1) % 4]); actions.extend(group.reshape(target.clone())); }
                2 if workers.remove(&slot).is_some() => {
                    // Commands to the dead one are lost with it.
                    actions.retain(|order| !matches!(order,
                        GroupAction::Prepare(to) | GroupAction::Release { slot: to, .. } if *to == slot));
                    actions.extend(group.gone(slot));
                }
                _ if !actions.is_empty() => {
                    match actions.remove(0) {
                        GroupAction::Prepare(slot) => { workers.insert(slot, Worker::Preparing); }
                        GroupAction::Form { round: next, members, donors, notify, .. } => {
                            prop_assert!(next > round, "rounds grow");
                            round = next;
                            for slot in notify {
                                if !workers.contains_key(&slot) { continue; }
                                if members.contains(&slot) {
                                    workers.insert(slot, Worker::Training(next));
                                } else {
                                    workers.remove(&slot);
                                    actions.extend(group.released(slot));
                                }
                                prop_assert!(!(members.contains(&slot) && donors.contains(&slot)));
                            }
                            let all = members.iter().all(|slot| workers.get(slot) == Some(&Worker::Training(next)));
                            for slot in members.into_iter().filter(|slot| workers.contains_key(slot)) {
                                actions.extend(if all { group.formed(slot, next) } else { group.broken(slot, next) });
                            }
                        }
                        GroupAction::Release { slot, state } => {
                            prop_assert!(state == FinalState::Discarded);
                            prop_assert!(workers.remove(&slot) == Some(Worker::Prepared));
                            actions.extend(group.released(slot));
                        }
                    }
                }
                _ => {
                    let preparing = workers.iter().find(|(_, worker)| **worker == Worker::Preparing);
                    if let Some((slot, _)) = preparing.map(|(slot, worker)| (*slot, worker.clone())) {
                        workers.insert(slot, Worker::Prepared);
                        actions.extend(group.prepared(slot));
                    } else if kind == 9 && !(group.is_settled() && group.members().len() == target.len()) {
                        actions.extend(group.reshape(target.clone()));
                    }
                }
            }
        }
        target.sort_unstable();
        let mut members = group.members().to_vec();
        members.sort_unstable();
        prop_assert!(group.is_settled(), "{group:?}");
        prop_assert_eq!(&members, &target);
        prop_assert_eq!(group.slots().into_iter().collect::<Vec<_>>(), target);
        let training: Vec<SlotId> = workers.keys().copied().collect();
        prop_assert_eq!(training, members);
    }
}
