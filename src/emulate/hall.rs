//! Where the members of a group meet: everybody who was invited sits down at a table of the first member's node, and once all
//! are there, all get the state of the one who has come furthest. Who goes without a farewell is lost, and all others are told.

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
pub(super) struct Invitation {
    pub(super) trial: TrialId,
    pub(super) round: Round,
    /// Who comes.
    pub(super) seat: SlotId,
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

/// What is said at a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Word {
    /// All are there, and this is the state of the furthest; none if nobody has one.
    Met(Option<Offer>),
    /// Somebody is lost, and so is the group.
    Lost(String),
}

type Tables = BTreeMap<(TrialId, Round), Table>;

/// The tables of one node.
#[derive(Debug)]
pub(super) struct Hall {
    tables: Mutex<Tables>,
    time_scale: f64,
}

#[derive(Debug, Default)]
struct Table {
    everybody: BTreeSet<SlotId>,
    seated: BTreeMap<SlotId, Sitting>,
    lost: Option<String>,
}

#[derive(Debug)]
struct Sitting {
    offer: Option<Offer>,
    since: Instant,
    tell: UnboundedSender<Word>,
}

impl Table {
    fn tell(&self, word: &Word) {
        for sitting in self.seated.values() {
            // Who does not listen is about to go.
            let _ = sitting.tell.send(word.clone());
        }
    }

    fn furthest(&self, now: Instant, time_scale: f64) -> Option<Offer> {
        let offers = self.seated.values().filter_map(|Sitting { offer, since, .. }| {
            let Offer { state, idle_s } = (*offer)?;
            Some(Offer { state, idle_s: idle_s + (now - *since).as_secs_f64() / time_scale })
        });
        // Members may have changed their batch a step apart: what counts is progress.
        offers.reduce(|best, other| if other.state.useful > best.state.useful { other } else { best })
    }
}

impl Hall {
    pub(super) const fn new(time_scale: f64) -> Self {
        Self { tables: Mutex::new(BTreeMap::new()), time_scale }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sits down at the table of a group.
    pub(super) fn sit(self: &Arc<Self>, invitation: Invitation) -> Chair {
        let Invitation { trial, round, seat, everybody, offer } = invitation;
        let (tell, words) = mpsc::unbounded_channel();
        let mut tables = self.tables();
        let table = tables
            .entry((trial, round))
            .or_insert_with(|| Table { everybody: everybody.clone(), ..Table::default() });
        let refused = if let Some(reason) = &table.lost {
            Some(reason.clone())
        } else if table.everybody != everybody || !everybody.contains(&seat) {
            Some(format!("the worker of slot {seat} was invited to another group"))
        } else if table.seated.contains_key(&seat) {
            Some(format!("the worker of slot {seat} is there already"))
        } else {
            None
        };
        if let Some(reason) = refused {
            if table.seated.is_empty() {
                tables.remove(&(trial, round));
            }
            drop(tables);
            // The other end is right here.
            let _ = tell.send(Word::Lost(reason));
            return Chair { words, way: Way::Nowhere };
        }
        let now = Instant::now();
        table.seated.insert(seat, Sitting { offer, since: now, tell });
        if table.seated.len() == table.everybody.len() {
            table.tell(&Word::Met(table.furthest(now, self.time_scale)));
        }
        drop(tables);
        let place = Taken { hall: self.clone(), table: (trial, round), seat, farewell: false };
        Chair { words, way: Way::Here(place) }
    }

    fn get_up(&self, at: (TrialId, Round), seat: SlotId, farewell: bool) {
        let mut tables = self.tables();
        let Some(table) = tables.get_mut(&at) else { return };
        table.seated.remove(&seat);
        if !farewell && table.lost.is_none() {
            let reason = format!("the worker of slot {seat} is gone");
            table.lost = Some(reason.clone());
            table.tell(&Word::Lost(reason));
        }
        if table.seated.is_empty() {
            tables.remove(&at);
        }
    }
}

/// A taken seat. Dropping it without a farewell is a loss for the others.
#[derive(Debug)]
struct Taken {
    hall: Arc<Hall>,
    table: (TrialId, Round),
    seat: SlotId,
    farewell: bool,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.hall.get_up(self.table, self.seat, self.farewell);
    }
}

/// Where the table is.
#[derive(Debug)]
enum Way {
    Here(Taken),
    /// On another node, behind a task that says farewell when it is told.
    There(oneshot::Sender<()>),
    Nowhere,
}

/// A worker's place at a table, wherever that is.
#[derive(Debug)]
pub(super) struct Chair {
    words: UnboundedReceiver<Word>,
    way: Way,
}

impl Chair {
    /// A seat at a table of another node: what is said there, and how to say farewell.
    pub(super) const fn there(words: UnboundedReceiver<Word>, farewell: oneshot::Sender<()>) -> Self {
        Self { words, way: Way::There(farewell) }
    }

    /// The next word. May be given up and asked again.
    pub(super) async fn hear(&mut self) -> Word {
        self.words.recv().await.unwrap_or_else(|| Word::Lost("the table is gone".to_owned()))
    }

    /// Goes, and is not missed.
    pub(super) fn leave(self) {
        match self.way {
            Way::Here(mut taken) => taken.farewell = true,
            Way::There(farewell) => {
                // The connection may be gone already.
                let _ = farewell.send(());
            }
            Way::Nowhere => {}
        }
    }
}
