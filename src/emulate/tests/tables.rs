//! Meetings.

use std::{collections::BTreeSet, sync::Arc};

use super::{Hall, Secret};
use crate::{
    emulate::{
        door,
        hall::{Chair, Invitation, Offer, Word},
        session::State,
    },
    ids::{NodeId, Round, SlotId, TrialId},
};

const fn seat(node: u32) -> SlotId {
    SlotId { node: NodeId(node), index: 10 * node }
}

fn state(steps: u64) -> State {
    State { steps, useful: 128.0 * steps as f64, ..State::default() }
}

fn invitation(node: u32, steps: Option<u64>) -> Invitation {
    let offer = steps.map(|steps| Offer { state: state(steps), idle_s: 0.25 });
    let everybody: BTreeSet<SlotId> = [seat(0), seat(1), seat(2)].into();
    Invitation { trial: TrialId(1), round: Round(5), seat: seat(node), everybody, offer }
}

/// The steps of the state that all get.
async fn met(chair: &mut Chair) -> Option<u64> {
    match chair.hear().await {
        Word::Met(offer) => offer.map(|offer| offer.state.steps),
        Word::Lost(reason) => panic!("{reason}"),
    }
}

async fn lost(chair: &mut Chair) -> String {
    match chair.hear().await {
        Word::Met(_) => panic!("nobody is lost"),
        Word::Lost(reason) => reason,
    }
}

#[tokio::test(start_paused = true)]
async fn all_get_the_state_of_the_furthest_once_all_are_there() {
    let hall = Arc::new(Hall::new(0.5));
    let mut chairs = vec![hall.sit(invitation(0, Some(3)))];
    tokio::time::advance(std::time::Duration::from_secs(1)).await;
    chairs.push(hall.sit(invitation(1, Some(2))));
    chairs.push(hall.sit(invitation(2, None)));
    for chair in &mut chairs {
        // A second of real time is two emulated ones.
        let expected = Offer { state: state(3), idle_s: 2.25 };
        assert_eq!(chair.hear().await, Word::Met(Some(expected)));
    }
    // Who says farewell is not missed, who does not is.
    let last = chairs.pop().unwrap();
    last.leave();
    drop(chairs.pop());
    assert_eq!(lost(&mut chairs[0]).await, "the worker of slot 1.10 is gone");
}

#[tokio::test]
async fn nobody_may_have_a_state() {
    let hall = Arc::new(Hall::new(1.0));
    let mut chairs: Vec<Chair> = (0..3).map(|node| hall.sit(invitation(node, None))).collect();
    for chair in &mut chairs {
        assert_eq!(met(chair).await, None);
    }
}

#[tokio::test]
async fn who_comes_to_a_group_that_is_lost_is_told_so() {
    let hall = Arc::new(Hall::new(1.0));
    let mut waiting = hall.sit(invitation(0, None));
    drop(hall.sit(invitation(1, None)));
    assert!(lost(&mut waiting).await.contains("slot 1.10"));
    assert!(lost(&mut hall.sit(invitation(2, None))).await.contains("slot 1.10"));
}

#[tokio::test]
async fn uninvited_guests_disturb_nobody() {
    let hall = Arc::new(Hall::new(1.0));
    let mut chairs: Vec<Chair> = (0..2).map(|node| hall.sit(invitation(node, None))).collect();
    assert!(lost(&mut hall.sit(invitation(1, None))).await.contains("already"));
    assert!(lost(&mut hall.sit(invitation(3, None))).await.contains("another group"));
    let mut fewer = invitation(2, None);
    fewer.everybody.remove(&seat(0));
    assert!(lost(&mut hall.sit(fewer)).await.contains("another group"));
    chairs.push(hall.sit(invitation(2, None)));
    for chair in &mut chairs {
        assert_eq!(met(chair).await, None);
    }
}

#[tokio::test]
async fn guests_from_other_nodes_sit_at_the_same_table() {
    let (hall, secret) = (Arc::new(Hall::new(1.0)), Secret::random().unwrap());
    let (listener, address) = door::open().await.unwrap();
    tokio::spawn(door::serve(listener, hall.clone(), secret.clone()));
    let mut here = hall.sit(invitation(0, None));
    let mut there = door::visit(address.clone(), &secret, invitation(1, Some(9)));
    let mut donor = door::visit(address, &secret, invitation(2, None));
    for chair in [&mut here, &mut there, &mut donor] {
        assert_eq!(met(chair).await, Some(9));
    }
    donor.leave();
    drop(there);
    // Not slot 20, which has said farewell before.
    assert!(lost(&mut here).await.contains("slot 1.10"));
}

#[tokio::test]
async fn a_guest_hears_who_is_lost_and_that_a_node_is_gone() {
    let (hall, secret) = (Arc::new(Hall::new(1.0)), Secret::random().unwrap());
    let (listener, address) = door::open().await.unwrap();
    let serving = tokio::spawn(door::serve(listener, hall.clone(), secret.clone()));
    let mut there = door::visit(address.clone(), &secret, invitation(1, None));
    let mut here = hall.sit(invitation(0, None));
    let mut other = door::visit(address.clone(), &secret, invitation(2, None));
    for chair in [&mut here, &mut there, &mut other] {
        assert_eq!(met(chair).await, None);
    }
    drop(here);
    assert!(lost(&mut there).await.contains("slot 0.0"));
    serving.abort();
    assert!(serving.await.is_err());
    let mut late = door::visit(address.clone(), &secret, invitation(1, None));
    assert!(lost(&mut late).await.contains(&address));
}

#[tokio::test]
async fn without_the_secret_nobody_comes_in() {
    let (hall, secret) = (Arc::new(Hall::new(1.0)), Secret::random().unwrap());
    let (listener, address) = door::open().await.unwrap();
    tokio::spawn(door::serve(listener, hall.clone(), secret.clone()));
    let mut stranger = door::visit(address.clone(), &Secret::random().unwrap(), invitation(1, Some(9)));
    assert!(lost(&mut stranger).await.contains("is gone"));
    let mut chairs: Vec<Chair> = (0..3).map(|node| hall.sit(invitation(node, None))).collect();
    for chair in &mut chairs {
        assert_eq!(met(chair).await, None);
    }
}
