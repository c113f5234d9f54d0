//! What the workers of all machines share: time, the disk, and where groups meet.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
};

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{Fault, Life, backend::State, disk::Disk, trace::Trace};
use crate::{
    ids::{Round, SlotId, TrialId},
    trials::group::Batch,
};

pub(super) type Shared = Rc<RefCell<Site>>;

/// The workers' side of the world.
pub(super) struct Site {
    pub(super) now_s: f64,
    pub(super) rng: ChaCha8Rng,
    pub(super) disk: Disk,
    pub(super) meetings: BTreeMap<(TrialId, Round), Meeting>,
    /// When which worker wants to be woken.
    pub(super) alarms: Vec<(f64, Life)>,
    /// Workers for whom something has changed.
    pub(super) ready: VecDeque<Life>,
    /// Which worker has what of a trial, on which slot.
    pub(super) hosts: BTreeMap<SlotId, (Life, TrialId)>,
    /// The last round of each trial that was together.
    pub(super) rounds: BTreeMap<TrialId, Round>,
    /// Faults that hit the next one who can have them.
    pub(super) armed: BTreeSet<Fault>,
    pub(super) counts: BTreeMap<Fault, u64>,
    /// When each trial last took a step.
    pub(super) stepped: BTreeMap<TrialId, f64>,
    pub(super) broken: Option<String>,
    pub(super) trace: Trace,
}

impl Site {
    pub(super) fn new(rng: ChaCha8Rng) -> Self {
        Self {
            now_s: 0.0,
            rng,
            disk: Disk::default(),
            meetings: BTreeMap::new(),
            alarms: Vec::new(),
            ready: VecDeque::new(),
            hosts: BTreeMap::new(),
            rounds: BTreeMap::new(),
            armed: BTreeSet::new(),
            counts: BTreeMap::new(),
            stepped: BTreeMap::new(),
            broken: None,
            trace: Trace::default(),
        }
    }

    pub(super) fn seconds(&mut self, from: f64, to: f64) -> f64 {
        self.rng.random_range(from..to)
    }

    /// Whether a fault that was armed hits here.
    pub(super) fn strikes(&mut self, fault: Fault) -> bool {
        let hits = self.armed.remove(&fault);
        if hits {
            self.count(fault);
        }
        hits
    }

    pub(super) fn count(&mut self, fault: Fault) {
        *self.counts.entry(fault).or_default() += 1;
    }

    /// A rule is broken; the first one counts.
    pub(super) fn breaks(&mut self, rule: String) {
        self.broken.get_or_insert(rule);
    }

    fn wake_all(&mut self, at: (TrialId, Round)) {
        if let Some(meeting) = self.meetings.get(&at) {
            self.ready.extend(meeting.seats.values().map(|seat| seat.life));
        }
    }

    /// Takes a seat in a group. Gives why that is impossible.
    pub(super) fn join(
        &mut self,
        at: (TrialId, Round),
        invitation: Invitation,
        seat: Seat,
    ) -> Option<String> {
        let Invitation { slot, members, everybody } = invitation;
        let meeting = self.meetings.entry(at).or_insert_with(|| Meeting::new(members, everybody));
        if let Some(reason) = &meeting.lost {
            return Some(reason.clone());
        }
        if meeting.seats.contains_key(&slot) {
            return Some(format!("the worker of slot {slot} is there already"));
        }
        meeting.seats.insert(slot, seat);
        if meeting.everybody.iter().all(|slot| meeting.seats.contains_key(slot)) {
            meeting.begin();
            let (trial, round) = at;
            if self.rounds.get(&trial).is_some_and(|last| *last >= round) {
                self.breaks(format!("round {round} of trial {trial} comes after a later one"));
            }
            self.rounds.insert(trial, round);
            self.wake_all(at);
        }
        None
    }

    /// Gives a seat up. Who does so without the agreement of the others is lost, and they notice.
    pub(super) fn leave(&mut self, at: (TrialId, Round), slot: SlotId, in_agreement: bool) {
        let Some(meeting) = self.meetings.get_mut(&at) else { return };
        if meeting.seats.remove(&slot).is_none() {
            return;
        }
        if !in_agreement && meeting.lost.is_none() {
            meeting.lost = Some(format!("the worker of slot {slot} is gone"));
        }
        if meeting.seats.is_empty() {
            self.meetings.remove(&at);
        } else {
            self.wake_all(at);
        }
    }

    /// A member takes part in the next step. What it gets is what all have agreed on, after the step.
    pub(super) fn vote(&mut self, at: (TrialId, Round), slot: SlotId, vote: Vote, step_s: f64) -> Turn {
        let now_s = self.now_s;
        let Some(meeting) = self.meetings.get_mut(&at) else { return Turn::Lost("it is over".to_owned()) };
        if let Some(agreed) = meeting.results.remove(&slot) {
            return Turn::Stepped(agreed);
        }
        if let Some(reason) = &meeting.lost {
            return Turn::Lost(reason.clone());
        }
        meeting.votes.insert(slot, vote);
        let all_here = meeting.members.iter().all(|slot| meeting.votes.contains_key(slot));
        match meeting.step_ends_s {
            None if all_here => {
                let ends_s = now_s + step_s;
                meeting.step_ends_s = Some(ends_s);
                let lives = meeting.seats.values().map(|seat| (ends_s, seat.life));
                self.alarms.extend(lives);
                Turn::Waits
            }
            Some(ends_s) if now_s >= ends_s && all_here => {
                let agreed = meeting.end_step();
                meeting.results.remove(&slot);
                let (trial, round) = at;
                if self.rounds.get(&trial).is_some_and(|last| *last > round) {
                    self.breaks(format!("trial {trial} trains in round {round}, and in a later one"));
                }
                self.stepped.insert(trial, now_s);
                self.wake_all(at);
                Turn::Stepped(agreed)
            }
            _ => Turn::Waits,
        }
    }
}

/// Who is invited to a group.
pub(super) struct Invitation {
    pub(super) slot: SlotId,
    pub(super) members: Vec<SlotId>,
    pub(super) everybody: BTreeSet<SlotId>,
}

/// A member or donor at its group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Seat {
    pub(super) life: Life,
    pub(super) offer: Option<State>,
}

/// What a member wants of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Vote {
    pub(super) leave: bool,
    pub(super) batch: Option<Batch>,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Turn {
    Waits,
    Stepped(Agreed),
    Lost(String),
}

/// What all members agreed on at a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Agreed {
    pub(super) leave: bool,
    pub(super) retune: bool,
}

/// A group of workers, as they see it.
#[derive(Debug)]
pub(super) struct Meeting {
    members: Vec<SlotId>,
    everybody: BTreeSet<SlotId>,
    seats: BTreeMap<SlotId, Seat>,
    /// All are there.
    pub(super) is_complete: bool,
    /// The furthest state of them, if anybody has any.
    pub(super) furthest: Option<State>,
    pub(super) lost: Option<String>,
    votes: BTreeMap<SlotId, Vote>,
    step_ends_s: Option<f64>,
    /// For those who have not seen it yet.
    results: BTreeMap<SlotId, Agreed>,
}

impl Meeting {
    const fn new(members: Vec<SlotId>, everybody: BTreeSet<SlotId>) -> Self {
        Self {
            members,
            everybody,
            seats: BTreeMap::new(),
            is_complete: false,
            furthest: None,
            lost: None,
            votes: BTreeMap::new(),
            step_ends_s: None,
            results: BTreeMap::new(),
        }
    }

    fn begin(&mut self) {
        let offers = self.seats.values().filter_map(|seat| seat.offer);
        self.furthest = offers.reduce(|best, other| if other.useful > best.useful { other } else { best });
        self.is_complete = true;
    }

    fn end_step(&mut self) -> Agreed {
        let leave = self.votes.values().all(|vote| vote.leave);
        let retune = self.votes.values().all(|vote| vote.batch.is_some());
        let agreed = Agreed { leave, retune };
        self.results = self.members.iter().map(|slot| (*slot, agreed)).collect();
        self.votes.clear();
        self.step_ends_s = None;
        agreed
    }
}
