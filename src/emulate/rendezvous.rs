//! Where the members of a group meet: all wait at a barrier on the first member's node, and once everybody is there, all get the
//! state of the one who has come furthest. Who goes without leaving is lost, and all others are notified.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};
use tokio::{
    sync::{
        mpsc::{self, UnboundedReceiver, UnboundedSender},
        oneshot,
    },
    time::Instant,
};

use super::session::State;
use crate::ids::{Round, SlotId, TrialId};

/// Whom to meet, and with what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct JoinRequest {
    pub(super) trial: TrialId,
    pub(super) round: Round,
    /// Who joins.
    pub(super) slot: SlotId,
    /// Who is awaited.
    pub(super) everybody: BTreeSet<SlotId>,
    pub(super) offer: Option<Offer>,
}

/// The state of a trial, with the emulated seconds since its last step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) state: State,
    pub(super) idle_s: f64,
}

/// What members of a group get to know about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Notice {
    /// All are there, and this is the state of the furthest; none if nobody has one.
    Complete(Option<Offer>),
    /// Somebody is lost, and so is the group.
    Lost(String),
}

type Barriers = BTreeMap<(TrialId, Round), Barrier>;

/// The barriers of one node.
#[derive(Debug)]
pub(super) struct Rendezvous {
    barriers: Mutex<Barriers>,
    time_scale: f64,
}

#[derive(Debug, Default)]
struct Barrier {
    everybody: BTreeSet<SlotId>,
    joined: BTreeMap<SlotId, Waiter>,
    lost: Option<String>,
}

#[derive(Debug)]
struct Waiter {
    offer: Option<Offer>,
    since: Instant,
    notices: UnboundedSender<Notice>,
}

impl Barrier {
    fn notify(&self, notice: &Notice) {
        for waiter in self.joined.values() {
            // A member that does not receive is about to leave.
            let _ = waiter.notices.send(notice.clone());
        }
    }

    fn furthest(&self, now: Instant, time_scale: f64) -> Option<Offer> {
        let offers = self.joined.values().filter_map(|Waiter { offer, since, .. }| {
            let Offer { state, idle_s } = (*offer)?;
            Some(Offer { state, idle_s: idle_s + (now - *since).as_secs_f64() / time_scale })
        });
        // Members may have changed their batch a step apart: what counts is progress.
        offers.reduce(|best, other| if other.state.useful > best.state.useful { other } else { best })
    }
}

impl Rendezvous {
    pub(super) const fn new(time_scale: f64) -> Self {
        Self { barriers: Mutex::new(BTreeMap::new()), time_scale }
    }

    fn barriers(&self) -> MutexGuard<'_, Barriers> {
        self.barriers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the others at the barrier of a group.
    pub(super) fn join(self: &Arc<Self>, request: JoinRequest) -> Membership {
        let JoinRequest { trial, round, slot, everybody, offer } = request;
        let (send, notices) = mpsc::unbounded_channel();
        let mut barriers = self.barriers();
        let barrier = barriers
            .entry((trial, round))
            .or_insert_with(|| Barrier { everybody: everybody.clone(), ..Barrier::default() });
        let refused = if let Some(reason) = &barrier.lost {
            Some(reason.clone())
        } else if barrier.everybody != everybody || !everybody.contains(&slot) {
            Some(format!("the worker of slot {slot} was invited to another group"))
        } else if barrier.joined.contains_key(&slot) {
            Some(format!("the worker of slot {slot} is there already"))
        } else {
            None
        };
        if let Some(reason) = refused {
            if barrier.joined.is_empty() {
                barriers.remove(&(trial, round));
            }
            drop(barriers);
            // The other end is right here.
            let _ = send.send(Notice::Lost(reason));
            return Membership { notices, transport: Transport::Refused };
        }
        let now = Instant::now();
        barrier.joined.insert(slot, Waiter { offer, since: now, notices: send });
        if barrier.joined.len() == barrier.everybody.len() {
            barrier.notify(&Notice::Complete(barrier.furthest(now, self.time_scale)));
        }
        drop(barriers);
        let lease = Lease { rendezvous: self.clone(), barrier: (trial, round), slot, has_left: false };
        Membership { notices, transport: Transport::Local(lease) }
    }

    fn remove(&self, at: (TrialId, Round), slot: SlotId, has_left: bool) {
        let mut barriers = self.barriers();
        let Some(barrier) = barriers.get_mut(&at) else { return };
        barrier.joined.remove(&slot);
        if !has_left && barrier.lost.is_none() {
            let reason = format!("the worker of slot {slot} is gone");
            barrier.lost = Some(reason.clone());
            barrier.notify(&Notice::Lost(reason));
        }
        if barrier.joined.is_empty() {
            barriers.remove(&at);
        }
    }
}

/// A place at a barrier. Dropping it without having left is a loss for the others.
#[derive(Debug)]
struct Lease {
    rendezvous: Arc<Rendezvous>,
    barrier: (TrialId, Round),
    slot: SlotId,
    has_left: bool,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.rendezvous.remove(self.barrier, self.slot, self.has_left);
    }
}

/// Where the barrier is.
#[derive(Debug)]
enum Transport {
    Local(Lease),
    /// On another node, behind a task that leaves for the worker.
    Remote(oneshot::Sender<()>),
    Refused,
}

/// A worker's membership in a group, wherever that has met.
#[derive(Debug)]
pub(super) struct Membership {
    notices: UnboundedReceiver<Notice>,
    transport: Transport,
}

impl Membership {
    /// In a group that meets on another node: its notices, and how to leave it.
    pub(super) const fn remote(notices: UnboundedReceiver<Notice>, leave: oneshot::Sender<()>) -> Self {
        Self { notices, transport: Transport::Remote(leave) }
    }

    /// The next notice. The future may be dropped.
    pub(super) async fn next(&mut self) -> Notice {
        self.notices.recv().await.unwrap_or_else(|| Notice::Lost("the rendezvous is gone".to_owned()))
    }

    /// Goes, and does not count as lost.
    pub(super) fn leave(self) {
        match self.transport {
            Transport::Local(mut lease) => lease.has_left = true,
            Transport::Remote(leave) => {
                // The connection may be gone already.
                let _ = leave.send(());
            }
            Transport::Refused => {}
        }
    }
}
