//! How groups form.

use std::{collections::BTreeSet, sync::Arc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{Rendezvous, Secret};
use crate::{
    emulate::{
        rendezvous::{JoinRequest, Membership, Notice, Offer},
        rendezvous_tcp::{join_remote, listen, serve_remote},
        session::State,
    },
    ids::{NodeId, Round, SlotId, TrialId},
};

const fn slot(node: u32) -> SlotId {
    SlotId { node: NodeId(node), index: 10 * node }
}

fn state(steps: u64) -> State {
    State { steps, useful: 128.0 * steps as f64, ..State::default() }
}

fn request(node: u32, steps: Option<u64>) -> JoinRequest {
    let offer = steps.map(|steps| Offer { state: state(steps), idle_s: 0.25 });
    let everybody: BTreeSet<SlotId> = [slot(0), slot(1), slot(2)].into();
    JoinRequest { trial: TrialId(1), round: Round(5), slot: slot(node), everybody, offer }
}

/// The steps of the state that all get.
async fn met(member: &mut Membership) -> Option<u64> {
    match member.next().await {
        Notice::Complete(offer) => offer.map(|offer| offer.state.steps),
        Notice::Lost(reason) => panic!("{reason}"),
    }
}

async fn lost(member: &mut Membership) -> String {
    match member.next().await {
        Notice::Complete(_) => panic!("nobody is lost"),
        Notice::Lost(reason) => reason,
    }
}

#[tokio::test(start_paused = true)]
async fn all_get_the_state_of_the_furthest_once_all_are_there() {
    let rendezvous = Arc::new(Rendezvous::new(0.5));
    let mut members = vec![rendezvous.join(request(0, Some(3)))];
    tokio::time::advance(std::time::Duration::from_secs(1)).await;
    members.push(rendezvous.join(request(1, Some(2))));
    members.push(rendezvous.join(request(2, None)));
    for member in &mut members {
        // A second of real time is two emulated ones.
        let expected = Offer { state: state(3), idle_s: 2.25 };
        assert_eq!(member.next().await, Notice::Complete(Some(expected)));
    }
    // Who leaves is not missed, who goes without leaving is.
    let last = members.pop().unwrap();
    last.leave();
    drop(members.pop());
    assert_eq!(lost(&mut members[0]).await, "the worker of slot 1.10 is gone");
}

#[tokio::test]
async fn nobody_may_have_a_state() {
    let rendezvous = Arc::new(Rendezvous::new(1.0));
    let mut members: Vec<Membership> = (0..3).map(|node| rendezvous.join(request(node, None))).collect();
    for member in &mut members {
        assert_eq!(met(member).await, None);
    }
}

#[tokio::test]
async fn who_joins_a_group_that_is_lost_is_notified() {
    let rendezvous = Arc::new(Rendezvous::new(1.0));
    let mut waiting = rendezvous.join(request(0, None));
    drop(rendezvous.join(request(1, None)));
    assert!(lost(&mut waiting).await.contains("slot 1.10"));
    assert!(lost(&mut rendezvous.join(request(2, None))).await.contains("slot 1.10"));
}

#[tokio::test]
async fn who_was_not_invited_disturbs_nobody() {
    let rendezvous = Arc::new(Rendezvous::new(1.0));
    let mut members: Vec<Membership> = (0..2).map(|node| rendezvous.join(request(node, None))).collect();
    assert!(lost(&mut rendezvous.join(request(1, None))).await.contains("already"));
    assert!(lost(&mut rendezvous.join(request(3, None))).await.contains("another group"));
    let mut fewer = request(2, None);
    fewer.everybody.remove(&slot(0));
    assert!(lost(&mut rendezvous.join(fewer)).await.contains("another group"));
    members.push(rendezvous.join(request(2, None)));
    for member in &mut members {
        assert_eq!(met(member).await, None);
    }
}

#[tokio::test]
async fn workers_of_other_nodes_join_the_same_group() {
    let (rendezvous, secret) = (Arc::new(Rendezvous::new(1.0)), Secret::random().unwrap());
    let (listener, address) = listen(None).await.unwrap();
    tokio::spawn(serve_remote(listener, address.clone(), rendezvous.clone(), secret.clone()));
    let mut here = rendezvous.join(request(0, None));
    let mut there = join_remote(address.clone(), &secret, request(1, Some(9)));
    let mut donor = join_remote(address, &secret, request(2, None));
    for member in [&mut here, &mut there, &mut donor] {
        assert_eq!(met(member).await, Some(9));
    }
    donor.leave();
    drop(there);
    // Not slot 2.20, which has left before.
    assert!(lost(&mut here).await.contains("slot 1.10"));
}

#[tokio::test]
async fn a_remote_member_learns_who_is_lost_and_that_a_node_is_gone() {
    let (rendezvous, secret) = (Arc::new(Rendezvous::new(1.0)), Secret::random().unwrap());
    let (listener, address) = listen(None).await.unwrap();
    let serving = tokio::spawn(serve_remote(listener, address.clone(), rendezvous.clone(), secret.clone()));
    let mut there = join_remote(address.clone(), &secret, request(1, None));
    let mut here = rendezvous.join(request(0, None));
    let mut other = join_remote(address.clone(), &secret, request(2, None));
    for member in [&mut here, &mut there, &mut other] {
        assert_eq!(met(member).await, None);
    }
    drop(here);
    assert!(lost(&mut there).await.contains("slot 0.0"));
    serving.abort();
    assert!(serving.await.is_err());
    let mut late = join_remote(address.clone(), &secret, request(1, None));
    assert!(lost(&mut late).await.contains(&address));
}

#[tokio::test]
async fn without_the_secret_nobody_comes_in() {
    let (rendezvous, secret) = (Arc::new(Rendezvous::new(1.0)), Secret::random().unwrap());
    let (listener, address) = listen(None).await.unwrap();
    tokio::spawn(serve_remote(listener, address.clone(), rendezvous.clone(), secret.clone()));
    let mut stranger = join_remote(address.clone(), &Secret::random().unwrap(), request(1, Some(9)));
    let reason = lost(&mut stranger).await;
    assert!(reason.contains("does not know the secret of the study"), "{reason}");
    let mut members: Vec<Membership> = (0..3).map(|node| rendezvous.join(request(node, None))).collect();
    for member in &mut members {
        assert_eq!(met(member).await, None);
    }
}

/// Somebody has taken the port of a node that is gone: it learns nothing, and is not believed.
#[tokio::test]
async fn a_host_without_the_secret_is_not_told_it() {
    let secret = Secret::random().unwrap();
    let (listener, address) = listen(None).await.unwrap();
    let mut member = join_remote(address, &secret, request(1, Some(9)));
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut heard = [0; 48];
    stream.read_exact(&mut heard).await.unwrap();
    stream.write_all(&[0; 64]).await.unwrap();
    let reason = lost(&mut member).await;
    assert!(reason.contains("does not know the secret of the study"), "{reason}");
    let mut rest = Vec::new();
    // It hangs up: how does not matter.
    let _ = stream.read_to_end(&mut rest).await;
    assert!(rest.is_empty(), "nothing is said after that");
}

/// Strangers who are silent, talk nonsense or send without end: members meet as if nobody was there.
#[tokio::test]
async fn strangers_stall_nobody() {
    let (rendezvous, secret) = (Arc::new(Rendezvous::new(1.0)), Secret::random().unwrap());
    let (listener, address) = listen(None).await.unwrap();
    tokio::spawn(serve_remote(listener, address.clone(), rendezvous.clone(), secret.clone()));
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    let mut talker = TcpStream::connect(&address).await.unwrap();
    let nonsense = vec![b'{'; 1 << 20];
    let refused = async {
        // Far more than what fits into the buffers of a connection: it can only end if it is cut off.
        for _ in 0..1000 {
            if talker.write_all(&nonsense).await.is_err() {
                return true;
            }
        }
        false
    };
    assert!(refused.await, "a gigabyte was taken");
    let mut here = rendezvous.join(request(0, None));
    let mut there = join_remote(address.clone(), &secret, request(1, Some(9)));
    let mut other = join_remote(address, &secret, request(2, None));
    for member in [&mut here, &mut there, &mut other] {
        assert_eq!(met(member).await, Some(9));
    }
    // More than there may be: the first ones were sent away.
    assert_eq!(silent[0].read(&mut [0]).await.unwrap_or(0), 0);
}
