//! Slots and trials in the journal, on a clock that stands still while the study does not run.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    ids::{Generation, NodeId, SlotId, TrialId},
    space::{Direction, Objective, Study, Value},
    store::{self, Reader, TrialRow},
    trials::engine::{Fact, JournalEntry},
};

/// The best trials have their curves drawn.
const CURVES: usize = 6;

/// A machine.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// What people call it; empty if it has no name.
    pub(super) name: String,
    pub(super) gpu_type: String,
    /// The maximum number of slots that it had.
    pub(super) slots: u32,
}

/// A while on a slot, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SlotInterval {
    pub(super) slot: SlotId,
    pub(super) from_s: f64,
    pub(super) to_s: f64,
}

/// A generation of a trial on a slot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Occupancy {
    pub(super) at: SlotInterval,
    pub(super) trial: TrialId,
    /// When its group was together; its end if it never was.
    pub(super) formed_s: f64,
}

/// All that a picture shows. Times are in seconds since the study began, without those in which nobody ran it.
#[derive(Debug)]
pub(super) struct History {
    pub(super) study: Study,
    pub(super) trials: BTreeMap<TrialId, TrialRow>,
    /// The best first; those without a result, by what they measured last, behind those that are done.
    pub(super) best: Vec<TrialId>,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    /// When slots had workers.
    pub(super) up: Vec<SlotInterval>,
    /// Who had which slot, in the order of time.
    pub(super) occupancies: Vec<Occupancy>,
    /// What the best trials measured of the first objective.
    pub(super) curves: BTreeMap<TrialId, Vec<(f64, f64)>>,
    /// When trials were done, with their values of the first objective.
    pub(super) results: Vec<(f64, TrialId, f64)>,
    /// When the study was run again.
    pub(super) resumed: Vec<f64>,
    /// Changes of groups, without those that are first or came after a loss of everything.
    pub(super) reshapes: usize,
    pub(super) length_s: f64,
}

impl History {
    pub(super) fn read(reader: &Reader) -> Result<Self, store::Error> {
        let study = reader.study()?;
        let rows = reader.trials()?;
        let best = best(reader, &study, &rows)?;
        let mut clock = Clock::default();
        let mut slots = Slots::default();
        let mut formed = BTreeMap::new();
        let mut results = Vec::new();
        let mut curves: BTreeMap<_, Vec<_>> = best.iter().map(|trial| (*trial, Vec::new())).collect();
        let (mut reshapes, mut last_s) = (0, 0.0);
        let metric = study.objectives.first().map(|objective| objective.metric.as_str()).unwrap_or_default();
        reader.replay(|entry| -> Result<(), store::Error> {
            let (at_s, fact) = (clock.next_s(&entry), &entry.fact);
            slots.apply(if matches!(fact, Fact::HeadStarted {}) { last_s } else { at_s }, fact);
            last_s = at_s;
            match fact {
                Fact::TrialStarted { holders, .. } => reshapes += usize::from(!holders.is_empty()),
                Fact::GroupFormed { trial, generation } => _ = formed.insert((*trial, *generation), at_s),
                Fact::Measured { trial, metrics, .. } => {
                    let value = metrics.get(metric).map(|value| value.value());
                    let value = value.filter(|value| value.is_finite());
                    let curve = curves.get_mut(trial);
                    curve.zip(value).into_iter().for_each(|(curve, value)| curve.push((at_s, value)));
                }
                Fact::TrialDone { trial, values } => {
                    results.extend(values.first().map(|value| (at_s, *trial, *value)));
                }
                _ => {}
            }
            Ok(())
        })?;
        slots.end(last_s);
        let occupancies = reader.timeline()?.into_iter().map(|span| {
            // The study may have gone on since its facts were read.
            let time_s = |at_s| clock.time_s(at_s).min(last_s);
            let (from_s, to_s) = (time_s(span.from_s), span.to_s.map_or(last_s, time_s));
            let formed_s =
                formed.get(&(span.trial, Generation(span.generation))).map_or(to_s, |at_s| at_s.min(to_s));
            Occupancy { at: SlotInterval { slot: span.slot, from_s, to_s }, trial: span.trial, formed_s }
        });
        Ok(Self {
            occupancies: occupancies.collect(),
            best,
            trials: rows.into_iter().map(|row| (row.trial, row)).collect(),
            nodes: slots.nodes,
            up: slots.intervals,
            curves,
            results,
            resumed: clock.resumed,
            reshapes,
            length_s: last_s,
            study,
        })
    }

    /// The first objective.
    pub(super) fn objective(&self) -> Option<&Objective> {
        self.study.objectives.first()
    }

    /// A trial in one line.
    pub(super) fn describe(&self, trial: TrialId) -> String {
        let Some(row) = self.trials.get(&trial) else { return format!("trial {trial}") };
        let value =
            self.objective().and_then(|objective| Some((&objective.metric, value_of(row, objective)?)));
        let value = value
            .map_or_else(String::new, |(metric, value)| format!(", {metric} {}", Value::from(value).short()));
        format!("trial {trial}: {}; {}{value}", row.params, row.state)
    }
}

/// The result of a trial, else what it measured last.
pub(super) fn value_of(row: &TrialRow, objective: &Objective) -> Option<f64> {
    let last = || row.metrics.get(&objective.metric).map(|value| value.value());
    row.values
        .as_ref()
        .and_then(|values| values.first().copied())
        .or_else(last)
        .filter(|value| value.is_finite())
}

/// The lower, the better.
pub(super) fn loss(objective: &Objective, value: f64) -> f64 {
    if objective.direction == Direction::Minimize { value } else { -value }
}

/// The best trials, as far as there are values.
fn best(reader: &Reader, study: &Study, rows: &[TrialRow]) -> Result<Vec<TrialId>, store::Error> {
    let mut best: Vec<TrialId> = reader.best(CURVES)?.iter().map(|row| row.trial).collect();
    let Some(objective) = study.objectives.first() else { return Ok(best) };
    let mut others: Vec<(f64, TrialId)> = rows
        .iter()
        .filter(|row| row.values.is_none())
        .filter_map(|row| Some((loss(objective, value_of(row, objective)?), row.trial)))
        .collect();
    others.sort_by(|a, b| a.0.total_cmp(&b.0));
    let room = CURVES - best.len();
    best.extend(others.into_iter().take(room).map(|(_, trial)| trial));
    Ok(best)
}

/// The time of a study: it stands still from the last fact of a head to the first one of the next.
#[derive(Default)]
struct Clock {
    begin_s: f64,
    /// The last fact.
    last_s: Option<f64>,
    /// A head has begun before.
    is_resumed: bool,
    /// Times of the journal at which a head began, and what was left out until then.
    jumps: Vec<(f64, f64)>,
    resumed: Vec<f64>,
}

impl Clock {
    /// The time of the next fact.
    fn next_s(&mut self, entry: &JournalEntry) -> f64 {
        let is_head = matches!(entry.fact, Fact::HeadStarted {});
        match self.last_s {
            None => self.begin_s = entry.at_s,
            Some(last_s) if is_head || matches!(entry.fact, Fact::StudyChanged { .. }) => {
                let left_out_s = self.jumps.last().map_or(0.0, |(_, left_out_s)| *left_out_s);
                self.jumps.push((entry.at_s, left_out_s + (entry.at_s - last_s).max(0.0)));
            }
            Some(_) => {}
        }
        self.last_s = Some(entry.at_s);
        let at_s = self.time_s(entry.at_s);
        if is_head {
            if self.is_resumed {
                self.resumed.push(at_s);
            }
            self.is_resumed = true;
        }
        at_s
    }

    fn time_s(&self, at_s: f64) -> f64 {
        let past = self.jumps.partition_point(|(jump_s, _)| *jump_s <= at_s);
        let left_out_s = past.checked_sub(1).map_or(0.0, |last| self.jumps[last].1);
        (at_s - self.begin_s - left_out_s).max(0.0)
    }
}

/// Which slots have workers.
#[derive(Default)]
struct Slots {
    nodes: BTreeMap<NodeId, Node>,
    since: BTreeMap<SlotId, f64>,
    intervals: Vec<SlotInterval>,
}

impl Slots {
    fn apply(&mut self, at_s: f64, fact: &Fact) {
        match fact {
            Fact::HeadStarted {} => self.end(at_s),
            Fact::NodeJoined { node, name, gpu_type, slots, .. } => {
                let known = self.nodes.entry(*node).or_default();
                name.clone_into(&mut known.name);
                gpu_type.name().clone_into(&mut known.gpu_type);
                known.slots = known.slots.max(*slots);
                self.since.extend((0..*slots).map(|index| (SlotId { node: *node, index }, at_s)));
            }
            Fact::NodeLost { node, .. } => self.close(at_s, |slot| slot.node == *node),
            Fact::SlotJoined { slot } => _ = self.since.entry(*slot).or_insert(at_s),
            Fact::SlotLost { slot, .. } => self.close(at_s, |other| other == *slot),
            _ => {}
        }
    }

    fn close(&mut self, at_s: f64, which: impl Fn(SlotId) -> bool) {
        let gone: BTreeSet<SlotId> = self.since.keys().copied().filter(|slot| which(*slot)).collect();
        for slot in gone {
            let from_s = self.since.remove(&slot).expect("it is one of the keys");
            self.intervals.push(SlotInterval { slot, from_s, to_s: at_s });
        }
    }

    fn end(&mut self, at_s: f64) {
        self.close(at_s, |_| true);
    }
}
