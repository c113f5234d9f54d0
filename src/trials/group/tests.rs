use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn form(round: u64, members: &[u32], donors: &[u32], told: &[u32], broken: bool) -> GroupAction {
    let (members, donors, told) = (members.to_vec(), donors.to_vec(), told.to_vec());
    GroupAction::Form { round, members, donors, told, broken }
}

/// A group that trains on these slots.
fn training(slots: &[u32]) -> Group {
    let mut group = Group::default();
    group.reshape(slots.iter().copied());
    for slot in slots {
        group.prepared(*slot);
    }
    for slot in slots {
        group.formed(*slot, 1);
    }
    assert!(group.is_settled());
    group
}

#[test]
fn who_leaves_is_told_with_the_others_and_free_when_it_says_so() {
    let mut group = training(&[0, 1]);
    assert_eq!(group.reshape([0]), [form(2, &[0], &[], &[0, 1], false)]);
    assert_eq!(group.slots(), [0, 1].into());
    assert_eq!(group.released(1), []);
    assert_eq!(group.slots(), [0].into());
    group.formed(0, 2);
    assert!(group.is_settled());
}

#[test]
fn with_other_slots_only_an_old_member_hands_over() {
    let mut group = training(&[0, 1]);
    assert_eq!(group.reshape([2]), [GroupAction::Prepare(2)]);
    assert_eq!(group.prepared(2), [form(2, &[2], &[0], &[0, 1, 2], false)]);
    group.released(1);
    group.formed(2, 2);
    group.released(0);
    assert_eq!((group.slots(), group.is_settled()), ([2].into(), true));
}

#[test]
fn survivors_go_on_and_whoever_replaces_the_dead_joins_later() {
    let mut group = training(&[0, 1, 2]);
    assert_eq!(group.gone(1), [form(2, &[0, 2], &[], &[0, 2], true)]);
    // The news of the old group's end comes late.
    assert_eq!(group.broken(0, 1), []);
    assert_eq!(group.reshape([0, 2, 1]), [GroupAction::Prepare(1)]);
    assert_eq!(group.prepared(1), [], "the survivors are still coming together");
    group.formed(0, 2);
    assert_eq!(group.formed(2, 2), [form(3, &[0, 2, 1], &[], &[0, 1, 2], false)]);
    assert_eq!(group.failures(), 1);
}

#[test]
fn a_newcomer_that_dies_while_the_state_is_handed_over_costs_nothing() {
    let mut group = training(&[0]);
    group.reshape([1]);
    assert_eq!(group.prepared(1), [form(2, &[1], &[0], &[0, 1], false)]);
    assert_eq!(group.gone(1), [], "nobody is left in the target");
    group.broken(0, 2);
    assert_eq!(group.reshape([0]), [form(3, &[0], &[], &[0], true)]);
}

#[test]
fn a_wish_that_changes_in_the_middle_is_followed_when_the_group_is_together() {
    let mut group = training(&[0]);
    group.reshape([0, 1]);
    group.prepared(1);
    assert_eq!(group.reshape([0]), []);
    group.formed(0, 2);
    assert_eq!(group.formed(1, 2), [form(3, &[0], &[], &[0, 1], false)]);
}

#[test]
fn a_lost_group_starts_again_from_nothing() {
    let mut group = training(&[0]);
    assert_eq!(group.gone(0), []);
    assert!(group.slots().is_empty());
    assert_eq!(group.reshape([0]), [GroupAction::Prepare(0)]);
    assert_eq!(group.prepared(0), [form(2, &[0], &[], &[0], true)]);
}

#[test]
fn only_one_saves_at_the_end() {
    let mut group = training(&[4, 2]);
    let release = |slot, save| GroupAction::Release { slot, save };
    assert_eq!(group.release(true), [release(2, false), release(4, true)]);
    group.released(2);
    group.released(4);
    assert!(group.slots().is_empty());
}

/// Workers as the group may see them.
#[derive(Debug, Clone, PartialEq)]
enum Worker {
    Preparing,
    Prepared,
    Training(u64),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever dies and whatever is wished for, when it stops the group settles on what was wished for last, and nothing is left behind.
    #[test]
    fn every_story_ends_well(story in prop::collection::vec((0_u32..6, 0_u32..4), 1..60)) {
        let mut group = Group::default();
        let mut workers: BTreeMap<u32, Worker> = BTreeMap::new();
        let mut orders: Vec<GroupAction> = Vec::new();
        let mut round = 0;
        let mut wish = vec![0_u32];
        for (kind, slot) in story.into_iter().chain([(9, 0); 200]) {
            match kind {
                0 => { wish = vec![slot]; orders.extend(group.reshape(wish.clone())); }
                1 => { wish = vec![slot, (slot + 1) % 4]; orders.extend(group.reshape(wish.clone())); }
                2 if workers.remove(&slot).is_some() => {
                    // What the dead one was told is lost with it.
                    orders.retain(|order| !matches!(order,
                        GroupAction::Prepare(to) | GroupAction::Release { slot: to, .. } if *to == slot));
                    orders.extend(group.gone(slot));
                }
                _ if !orders.is_empty() => {
                    match orders.remove(0) {
                        GroupAction::Prepare(slot) => { workers.insert(slot, Worker::Preparing); }
                        GroupAction::Form { round: next, members, donors, told, .. } => {
                            prop_assert!(next > round, "generations grow");
                            round = next;
                            for slot in told {
                                if !workers.contains_key(&slot) { continue; }
                                if members.contains(&slot) {
                                    workers.insert(slot, Worker::Training(next));
                                } else {
                                    workers.remove(&slot);
                                    orders.extend(group.released(slot));
                                }
                                prop_assert!(!(members.contains(&slot) && donors.contains(&slot)));
                            }
                            let all = members.iter().all(|slot| workers.get(slot) == Some(&Worker::Training(next)));
                            for slot in members.into_iter().filter(|slot| workers.contains_key(slot)) {
                                orders.extend(if all { group.formed(slot, next) } else { group.broken(slot, next) });
                            }
                        }
                        GroupAction::Release { slot, save } => {
                            prop_assert!(!save && workers.remove(&slot) == Some(Worker::Prepared));
                            orders.extend(group.released(slot));
                        }
                    }
                }
                _ => {
                    let preparing = workers.iter().find(|(_, worker)| **worker == Worker::Preparing);
                    if let Some((slot, _)) = preparing.map(|(slot, worker)| (*slot, worker.clone())) {
                        workers.insert(slot, Worker::Prepared);
                        orders.extend(group.prepared(slot));
                    } else if kind == 9 && !(group.is_settled() && group.members().len() == wish.len()) {
                        orders.extend(group.reshape(wish.clone()));
                    }
                }
            }
        }
        wish.sort_unstable();
        let mut members = group.members().to_vec();
        members.sort_unstable();
        prop_assert!(group.is_settled(), "{group:?}");
        prop_assert_eq!(&members, &wish);
        prop_assert_eq!(group.slots().into_iter().collect::<Vec<_>>(), wish);
        let training: Vec<u32> = workers.keys().copied().collect();
        prop_assert_eq!(training, members);
    }
}
