//! How many pilots a study has in the queue of a batch system, and which of them are given back.
//!
//! A pilot is a job of one node, on which an agent runs. The [`Controller`] is told what the queue says of its pilots, which agents have
//! come, and what one more node would bring ([`Gain`]); it answers with what is to be submitted, drained and cancelled.

mod act;
mod demand;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

pub use self::demand::{Demand, Gain, Offer};
use crate::{
    ids::{GpuType, NodeId},
    space::PilotSpec,
};

/// A further node must make the study faster by this factor.
pub const WORTH_ASKING: f64 = 1.05;
/// A node that is on its way is given up if it would bring less.
pub const WORTH_WAITING: f64 = 1.02;
/// So many may wait in the queue for what they would bring.
pub const PENDING_MAX: usize = 2;
/// Seconds between two submissions.
pub const SUBMIT_EVERY_S: f64 = 10.0;
/// Seconds without work after which a node is given back.
pub const IDLE_S: f64 = 300.0;
/// Seconds in which the agent of a job that runs has to come.
pub const REGISTER_S: f64 = 300.0;
/// So many seconds before its end a pilot is replaced, or in the last quarter of its time if that is shorter.
pub const REPLACE_S: f64 = 600.0;
/// Seconds in which a node that was drained is left by its agent.
pub const DRAIN_S: f64 = 60.0;
/// Pilots that failed one after the other, after which no more are submitted.
pub const FAILURES_MAX: u32 = 3;
/// Seconds of the first pause after a failure; each further one is twice as long.
pub const PAUSE_S: f64 = 30.0;
/// Seconds after which people are told that a pilot waits.
const LONG_WAIT_S: f64 = 60.0;

/// The number of a pilot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PilotId(pub u32);

impl fmt::Display for PilotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a job has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobEnd {
    /// Others needed its node more.
    Preempted,
    /// Its time was up.
    TimeLimit,
    /// Anything else.
    Ended,
}

/// What the queue says of a job.
#[derive(Debug, Clone, PartialEq)]
pub enum JobState {
    /// It waits.
    Pending {
        /// For what, in the words of the queue.
        reason: String,
    },
    /// It has its node.
    Running {
        /// Since when.
        since_s: f64,
        /// Until when; none if there is no limit or it is not known.
        ends_s: Option<f64>,
    },
    /// It is gone.
    Ended {
        /// Why.
        end: JobEnd,
        /// In the words of the queue.
        reason: String,
        /// The last lines that it printed.
        log: String,
    },
}

/// A job and what the queue says of it.
#[derive(Debug, Clone, PartialEq)]
pub struct JobReport {
    /// The job.
    pub job: String,
    /// What is said of it.
    pub state: JobState,
}

/// What has happened.
#[derive(Debug, Clone, PartialEq)]
pub enum PilotEvent {
    /// A pilot is in the queue.
    Submitted {
        /// The pilot.
        pilot: PilotId,
        /// Its job.
        job: String,
    },
    /// The queue did not take a pilot.
    SubmitFailed {
        /// The pilot.
        pilot: PilotId,
        /// What it said.
        reason: String,
    },
    /// The queue was asked.
    Polled(Vec<JobReport>),
    /// The agent of a job has come, or come again.
    AgentJoined {
        /// Its job.
        job: String,
        /// Its nodes.
        nodes: BTreeSet<NodeId>,
        /// What their slots are.
        gpu_type: Option<GpuType>,
    },
    /// The agent of a job will go soon.
    AgentDraining {
        /// Its job.
        job: String,
    },
    /// The agent of a job is gone.
    AgentLost {
        /// Its job.
        job: String,
    },
    /// Nodes that trials run on; all others are idle.
    Busy(BTreeSet<NodeId>),
    /// What more nodes would bring, for each kind of pilot.
    Gains {
        /// How many of each kind were [on their way](Controller::coming).
        coming: Vec<u32>,
        /// In the order of the kinds.
        gains: Vec<Gain>,
    },
    /// The study is over, or stops.
    Over,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum PilotAction {
    /// Submit a pilot of a kind.
    Submit {
        /// Its number.
        pilot: PilotId,
        /// The place of its kind in the study file.
        kind: usize,
    },
    /// Take a job out of the queue, or end it.
    Cancel {
        /// The job.
        job: String,
    },
    /// Let the trials of these nodes go elsewhere; the job is cancelled when none is left.
    Drain {
        /// The job of the agent.
        job: String,
        /// Its nodes.
        nodes: BTreeSet<NodeId>,
        /// Why, for people.
        reason: String,
    },
    /// Tell people.
    Notice(String),
}

/// Where a pilot is.
#[derive(Debug, Clone, PartialEq)]
pub enum PilotPhase {
    /// On its way to the queue.
    Submitting,
    /// In the queue.
    Pending,
    /// It runs, and its agent has not come yet, or is gone.
    Starting {
        /// Since when it has no agent.
        since_s: f64,
    },
    /// Its agent is here.
    Joined {
        /// Its nodes.
        nodes: BTreeSet<NodeId>,
        /// Since when no trial runs there.
        idle_since_s: Option<f64>,
    },
    /// Its agent leaves.
    Draining {
        /// Since when.
        since_s: f64,
        /// Nodes that are given back as soon as no trial runs there; empty if the agent leaves by itself.
        given_back: BTreeSet<NodeId>,
    },
    /// It was told to end.
    Cancelled,
}

/// A pilot.
#[derive(Debug, Clone, PartialEq)]
pub struct Pilot {
    /// The place of its kind in the study file.
    pub kind: usize,
    /// Its job; none before the queue has taken it.
    pub job: Option<String>,
    /// When it was submitted.
    pub submitted_s: f64,
    /// Where it is.
    pub phase: PilotPhase,
    /// Since when and until when it runs, as far as that is known.
    pub runs_s: Option<(f64, Option<f64>)>,
    /// Whether its agent has ever come.
    pub has_joined: bool,
    /// Why it was cancelled, if that is a failure.
    fault: Option<String>,
    /// Whether people were told that it waits.
    told: bool,
}

impl Pilot {
    /// Whether it was not told to end and is not about to.
    fn is_held(&self, now_s: f64) -> bool {
        let leaves = matches!(self.phase, PilotPhase::Draining { .. } | PilotPhase::Cancelled);
        !leaves && !self.ends_soon(now_s)
    }

    /// Whether another one has to take its place.
    fn ends_soon(&self, now_s: f64) -> bool {
        let Some((since_s, Some(ends_s))) = self.runs_s else { return false };
        now_s >= ends_s - REPLACE_S.min(0.25 * (ends_s - since_s))
    }

    fn is_coming(&self) -> bool {
        matches!(self.phase, PilotPhase::Submitting | PilotPhase::Pending | PilotPhase::Starting { .. })
    }

    fn is_queued(&self) -> bool {
        matches!(self.phase, PilotPhase::Submitting | PilotPhase::Pending)
    }
}

/// Pilots of one kind.
#[derive(Debug, Clone)]
struct Kind {
    spec: PilotSpec,
    /// What its slots turned out to be.
    gpu_type: Option<GpuType>,
    /// Failures one after the other.
    failures: u32,
    /// Why the last one failed.
    fault: String,
    /// No submission before.
    retry_s: f64,
    gain: Option<Gain>,
}

impl Kind {
    const fn has_given_up(&self) -> bool {
        self.failures >= FAILURES_MAX
    }
}

/// Decides how many pilots there are.
#[derive(Debug, Clone)]
pub struct Controller {
    kinds: Vec<Kind>,
    pilots: BTreeMap<PilotId, Pilot>,
    next: u32,
    /// No submission before.
    next_submit_s: f64,
    is_over: bool,
}

impl Controller {
    /// That of a study without pilots.
    #[must_use]
    pub fn new(specs: &[PilotSpec]) -> Self {
        let kind = |spec: &PilotSpec| Kind {
            gpu_type: spec.gpu_type(),
            spec: spec.clone(),
            failures: 0,
            fault: String::new(),
            retry_s: f64::NEG_INFINITY,
            gain: None,
        };
        Self {
            kinds: specs.iter().map(kind).collect(),
            pilots: BTreeMap::new(),
            next: 0,
            next_submit_s: f64::NEG_INFINITY,
            is_over: false,
        }
    }

    /// Takes over a pilot of an earlier head.
    pub fn adopt(&mut self, kind: usize, job: &str, now_s: f64) -> PilotId {
        let pilot = self.add(kind, now_s);
        self.enter(pilot, job);
        pilot
    }

    /// All pilots.
    pub fn pilots(&self) -> impl Iterator<Item = (PilotId, &Pilot)> {
        self.pilots.iter().map(|(id, pilot)| (*id, pilot))
    }

    /// How many pilots of each kind are on their way.
    #[must_use]
    pub fn coming(&self) -> Vec<u32> {
        let coming = |kind: usize| {
            self.pilots.values().filter(|pilot| pilot.kind == kind && pilot.is_coming()).count() as u32
        };
        (0..self.kinds.len()).map(coming).collect()
    }

    /// What could be asked for, for [`Demand::gains`], while these nodes are there; a kind whose slots are not known yet is taken for
    /// `unknown`.
    #[must_use]
    pub fn offers(&self, unknown: &GpuType, present: &BTreeSet<NodeId>) -> Vec<Offer> {
        // The agent is there before its workers are.
        let is_late = |pilot: &Pilot| match &pilot.phase {
            PilotPhase::Joined { nodes, .. } => nodes.is_disjoint(present),
            _ => false,
        };
        let offer = |(place, (kind, coming)): (usize, (&Kind, u32))| Offer {
            gpu_type: kind.gpu_type.clone().unwrap_or_else(|| unknown.clone()),
            slots: kind.spec.slots(),
            coming: coming
                + self.pilots.values().filter(|pilot| pilot.kind == place && is_late(pilot)).count() as u32,
        };
        self.kinds.iter().zip(self.coming()).enumerate().map(offer).collect()
    }

    /// Nodes that will be gone soon: what they do must be done elsewhere.
    #[must_use]
    pub fn leaving(&self, now_s: f64) -> BTreeSet<NodeId> {
        let nodes = |pilot: &Pilot| match &pilot.phase {
            PilotPhase::Joined { nodes, .. } if pilot.ends_soon(now_s) => nodes.clone(),
            _ => BTreeSet::new(),
        };
        self.pilots.values().flat_map(nodes).collect()
    }

    /// Why no node can be expected any more, if that is so: too many pilots of each kind have failed one after the other.
    #[must_use]
    pub fn hopeless(&self) -> Option<String> {
        let is_hopeless = self.pilots.is_empty() && self.kinds.iter().all(Kind::has_given_up);
        let fault = |kind: &Kind| {
            format!("a node of {} failed {FAILURES_MAX} times in a row: {}", kind.spec, kind.fault)
        };
        is_hopeless.then(|| self.kinds.iter().map(fault).collect::<Vec<_>>().join("; "))
    }

    /// Whether nothing is left to be awaited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pilots.is_empty()
    }

    /// What follows from an event.
    pub fn handle(&mut self, event: PilotEvent, now_s: f64) -> Vec<PilotAction> {
        let mut actions = Vec::new();
        match event {
            PilotEvent::Submitted { pilot, job } => self.enter(pilot, &job),
            PilotEvent::SubmitFailed { pilot, reason } => {
                if let Some(pilot) = self.pilots.remove(&pilot) {
                    self.fail(&pilot, &format!("Slurm refused it: {reason}"), "", now_s, &mut actions);
                }
            }
            PilotEvent::Polled(reports) => {
                for report in reports {
                    self.report(report, now_s, &mut actions);
                }
            }
            PilotEvent::AgentJoined { job, nodes, gpu_type } => self.joined(&job, nodes, gpu_type, now_s),
            PilotEvent::AgentDraining { job } => {
                if let Some(pilot) = self.of_job(&job)
                    && pilot.phase != PilotPhase::Cancelled
                {
                    pilot.phase = PilotPhase::Draining { since_s: now_s, given_back: BTreeSet::new() };
                }
            }
            PilotEvent::AgentLost { job } => {
                if let Some(pilot) = self.of_job(&job)
                    && matches!(pilot.phase, PilotPhase::Joined { .. })
                {
                    pilot.phase = PilotPhase::Starting { since_s: now_s };
                }
            }
            PilotEvent::Busy(busy) => self.mark_idle(&busy, now_s, &mut actions),
            PilotEvent::Gains { coming, gains } => {
                // An answer to another question says nothing about this one.
                let is_answer = coming == self.coming() && gains.len() == self.kinds.len();
                for (kind, gain) in self.kinds.iter_mut().zip(gains).filter(|_| is_answer) {
                    kind.gain = Some(gain);
                }
            }
            PilotEvent::Over => self.is_over = true,
        }
        self.act(now_s, &mut actions);
        actions
    }

    /// What is due at a time.
    pub fn tick(&mut self, now_s: f64) -> Vec<PilotAction> {
        let mut actions = Vec::new();
        self.act(now_s, &mut actions);
        actions
    }

    fn of_job(&mut self, job: &str) -> Option<&mut Pilot> {
        self.pilots.values_mut().find(|pilot| pilot.job.as_deref() == Some(job))
    }

    fn add(&mut self, kind: usize, now_s: f64) -> PilotId {
        let id = PilotId(self.next);
        self.next += 1;
        let pilot = Pilot {
            kind,
            job: None,
            submitted_s: now_s,
            phase: PilotPhase::Submitting,
            runs_s: None,
            has_joined: false,
            fault: None,
            told: false,
        };
        self.pilots.insert(id, pilot);
        id
    }

    fn enter(&mut self, pilot: PilotId, job: &str) {
        if let Some(pilot) = self.pilots.get_mut(&pilot) {
            pilot.job = Some(job.to_owned());
            if pilot.phase == PilotPhase::Submitting {
                pilot.phase = PilotPhase::Pending;
            }
        }
    }

    fn joined(&mut self, job: &str, nodes: BTreeSet<NodeId>, gpu_type: Option<GpuType>, now_s: f64) {
        let Some(pilot) = self.of_job(job) else { return };
        pilot.has_joined = true;
        if !matches!(pilot.phase, PilotPhase::Cancelled | PilotPhase::Draining { .. }) {
            pilot.phase = PilotPhase::Joined { nodes, idle_since_s: Some(now_s) };
        }
        let kind = pilot.kind;
        if let Some(kind) = self.kinds.get_mut(kind) {
            kind.failures = 0;
            kind.gpu_type = gpu_type.or_else(|| kind.gpu_type.take());
        }
    }
}
