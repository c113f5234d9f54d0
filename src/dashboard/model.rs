//! A study as the page shows it: follows from the facts of its journal, one by one.

use std::collections::{BTreeMap, VecDeque};

use super::{Commands, thin::Thinned};
use crate::{
    alloc::Reason,
    goodput::{LrContext, LrRule, NoiseScale, Observation, scale_lr},
    ids::{Generation, NodeId, SlotId, TrialId},
    space::{Params, Point, Study},
    store::TrialState,
    trials::{
        End,
        engine::{Error, Fact, JournalEntry, State},
    },
};

/// The first and the last events of a trial are kept: so many of each.
const FIRST_EVENTS: usize = 100;
const LAST_EVENTS: usize = 300;

/// A study, up to a fact. Times are in seconds since it began, without those in which nobody ran it.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// As it was last started; none before it was, or if this version cannot read it.
    pub(super) study: Option<Study>,
    pub(super) state: State,
    pub(super) clock: Clock,
    /// By their numbers, which are consecutive.
    pub(super) trials: Vec<Trial>,
    /// Who had which slot, in the order of time.
    pub(super) spans: Vec<Span>,
    /// All machines that there ever were.
    pub(super) nodes: BTreeMap<NodeId, Node>,
    /// The places of the spans that last.
    open: BTreeMap<TrialId, Vec<usize>>,
}

/// A machine.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) gpu_type: String,
    pub(super) slots: u32,
}

/// What the engine's state does not keep of a trial.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) point: Point,
    pub(super) created_s: f64,
    pub(super) started_s: Option<f64>,
    pub(super) ended_s: Option<f64>,
    /// By metric.
    pub(super) curves: BTreeMap<String, Thinned<Measured>>,
    pub(super) speed: Thinned<Speed>,
    /// The latest decision about its slots.
    decided: Option<(Reason, f64)>,
    pub(super) decisions: Vec<Decision>,
    pub(super) first_events: Vec<(f64, String)>,
    pub(super) last_events: VecDeque<(f64, String)>,
}

/// A value that a trial has reported.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Measured {
    pub(super) at_s: f64,
    pub(super) epochs: f64,
    pub(super) value: f64,
}

/// How fast a trial trains.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Speed {
    pub(super) at_s: f64,
    pub(super) epochs: f64,
    pub(super) slots: u32,
    pub(super) batch: u64,
    /// What the learning rate is multiplied by.
    pub(super) lr_factor: Option<f64>,
    pub(super) efficiency: Option<f64>,
    /// Examples per second.
    pub(super) throughput: Option<f64>,
}

impl Speed {
    /// Examples per second times efficiency.
    pub(super) fn goodput(&self) -> Option<f64> {
        Some(self.throughput? * self.efficiency?)
    }
}

/// A trial has got other slots, and why.
#[derive(Debug, Clone)]
pub(super) struct Decision {
    pub(super) at_s: f64,
    pub(super) generation: Generation,
    pub(super) slots: Vec<SlotId>,
    pub(super) batch: Option<u64>,
    pub(super) reason: Option<(Reason, f64)>,
}

/// A trial had a slot for a while.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Span {
    pub(super) slot: SlotId,
    pub(super) trial: TrialId,
    pub(super) generation: Generation,
    pub(super) from_s: f64,
    /// When its group was together.
    pub(super) formed_s: Option<f64>,
    /// None while it lasts.
    pub(super) to_s: Option<f64>,
    /// The trial had slots before, and got these without a restart.
    pub(super) is_change: bool,
    pub(super) reason: Option<Reason>,
}

/// Time stands still from the last fact of a head to the first one of the next.
#[derive(Debug, Default)]
pub(super) struct Clock {
    begin_s: Option<f64>,
    last_s: f64,
    left_out_s: f64,
    heads: u32,
    /// When the study was run again.
    pub(super) resumed: Vec<f64>,
    /// The time of the last fact.
    pub(super) now_s: f64,
}

impl Clock {
    fn advance(&mut self, JournalEntry { at_s, fact }: &JournalEntry) {
        let begin_s = *self.begin_s.get_or_insert(*at_s);
        let is_head = matches!(fact, Fact::HeadStarted {});
        if self.heads > 0 && (is_head || matches!(fact, Fact::StudyChanged { .. })) {
            self.left_out_s += (at_s - self.last_s).max(0.0);
        }
        self.last_s = *at_s;
        self.now_s = (at_s - begin_s - self.left_out_s).max(0.0);
        if is_head {
            self.heads += 1;
            if self.heads > 1 {
                self.resumed.push(self.now_s);
            }
        }
    }
}

impl Model {
    /// Makes a fact part of it.
    pub(super) fn apply(&mut self, entry: &JournalEntry, commands: &dyn Commands) -> Result<(), Error> {
        self.state.apply(entry)?;
        self.clock.advance(entry);
        let (fact, at_s) = (&entry.fact, self.clock.now_s);
        match fact {
            Fact::StudyCreated { yaml } | Fact::StudyChanged { yaml } => {
                self.study = Study::from_yaml("the study in the journal", yaml).ok();
            }
            Fact::NodeJoined { node, name, gpu_type, slots, .. } => {
                let known = self.nodes.entry(*node).or_default();
                name.clone_into(&mut known.name);
                gpu_type.name().clone_into(&mut known.gpu_type);
                known.slots = known.slots.max(*slots);
            }
            Fact::TrialCreated { point, .. } => self.trials.push(Trial::new(point.clone(), at_s)),
            Fact::PlanAdopted { targets, .. } => {
                for target in targets {
                    if let Some(trial) = self.trials.get_mut(target.trial.0 as usize) {
                        let kept = matches!(target.reason, Reason::Kept | Reason::Pinned);
                        let same = trial.decided.is_some_and(|(reason, _)| reason == target.reason);
                        trial.decided = Some((target.reason, target.speedup));
                        if !(kept || same) {
                            trial.note(at_s, commands.event(entry, target.trial));
                        }
                    }
                }
            }
            Fact::TrialStarted { trial, generation, slots, batch, .. } => {
                let batch = batch.map(|batch| batch.total(slots.len() as u32));
                if let Some(view) = self.trials.get_mut(trial.0 as usize) {
                    view.started_s = view.started_s.or(Some(at_s));
                    let (generation, slots, reason) = (*generation, slots.clone(), view.decided);
                    view.decisions.push(Decision { at_s, generation, slots, batch, reason });
                }
            }
            Fact::Measured { trial, epochs, metrics, steps, noise, .. } => {
                let speed = self.speed(*trial, *epochs, steps, *noise);
                if let Some(view) = self.trials.get_mut(trial.0 as usize) {
                    view.started_s = view.started_s.or(Some(at_s));
                    for (name, value) in metrics.iter().filter(|(_, value)| value.value().is_finite()) {
                        let curve = view.curves.entry(name.clone()).or_insert_with(Thinned::new);
                        curve.push(Measured { at_s, epochs: *epochs, value: value.value() });
                    }
                    if let Some(speed) = speed {
                        view.speed.push(speed);
                    }
                }
            }
            Fact::TrialRetried { trial } => {
                if let Some(view) = self.trials.get_mut(trial.0 as usize) {
                    view.ended_s = None;
                }
            }
            _ => {}
        }
        self.follow(entry, commands);
        Ok(())
    }

    /// What every fact about trials means for their times, events and slots.
    fn follow(&mut self, entry: &JournalEntry, commands: &dyn Commands) {
        let (fact, at_s) = (&entry.fact, self.clock.now_s);
        if let Some((trial, _)) = fact.end()
            && let Some(view) = self.trials.get_mut(trial.0 as usize)
        {
            view.ended_s = Some(at_s);
        }
        if let Some(trial) = fact.trial()
            && let Some(view) = self.trials.get_mut(trial.0 as usize)
        {
            view.note(at_s, commands.event(entry, trial));
        }
        if let Fact::GroupFormed { trial, .. } = fact {
            for place in self.open.get(trial).into_iter().flatten() {
                self.spans[*place].formed_s = Some(at_s);
            }
        }
        let is_of_many = matches!(fact, Fact::HeadStarted {} | Fact::NodeLost { .. } | Fact::SlotLost { .. });
        let affected: Vec<TrialId> = match fact.trial() {
            Some(trial) => vec![trial],
            None if is_of_many => self.open.keys().copied().collect(),
            None => Vec::new(),
        };
        for trial in affected {
            self.follow_slots(trial, at_s);
        }
    }

    /// Ends the spans of a trial that are over, and begins new ones.
    fn follow_slots(&mut self, trial: TrialId, at_s: f64) {
        let active = self.state.active.get(&trial);
        let slots: Vec<SlotId> = active.map_or_else(Vec::new, |active| active.slots().to_vec());
        let generation = active.map_or(Generation::NONE, |active| active.generation);
        let had = self.open.remove(&trial).unwrap_or_default();
        let is_change = !had.is_empty();
        let (stay, over): (Vec<usize>, Vec<usize>) = had.into_iter().partition(|place| {
            let span = &self.spans[*place];
            span.generation == generation && slots.contains(&span.slot)
        });
        for place in over {
            self.spans[place].to_s = Some(at_s);
        }
        let reason = self.trials.get(trial.0 as usize).and_then(|view| view.decided);
        let mut now = stay;
        for slot in slots {
            if now.iter().all(|place| self.spans[*place].slot != slot) {
                now.push(self.spans.len());
                let reason = reason.map(|(reason, _)| reason);
                self.spans.push(Span {
                    slot,
                    trial,
                    generation,
                    from_s: at_s,
                    formed_s: None,
                    to_s: None,
                    is_change,
                    reason,
                });
            }
        }
        if !now.is_empty() {
            self.open.insert(trial, now);
        }
    }

    /// How fast a trial trains, as far as a report says.
    fn speed(
        &self,
        trial: TrialId,
        epochs: f64,
        steps: &[Observation],
        noise: Option<NoiseScale>,
    ) -> Option<Speed> {
        let settings = &self.study.as_ref()?.trial;
        let active = self.state.active.get(&trial)?;
        let slots = active.slots().len() as u32;
        let batch = active.phase.group()?.batch?.total(slots);
        let initial = f64::from(settings.initial_batch);
        let (mut examples, mut seconds) = (0.0, 0.0);
        for step in steps {
            let total = f64::from(step.shape.gpus()) * step.per_gpu * f64::from(step.accumulation + 1);
            examples += step.steps * total;
            seconds += step.steps * step.iter_time_s;
        }
        let context = LrContext { initial_batch: initial, batch: batch as f64, stats: None, epochs };
        let lr_factor = match (settings.scaling, noise) {
            (LrRule::AdaScale, Some(noise)) => Some(noise.gain(initial, batch as f64)),
            (rule, _) => scale_lr(&rule, &context).ok(),
        };
        let efficiency = noise.map(|noise| noise.efficiency(initial, batch as f64));
        let throughput = (seconds > 0.0).then(|| examples / seconds);
        let at_s = self.clock.now_s;
        Some(Speed { at_s, epochs, slots, batch, lr_factor, efficiency, throughput })
    }

    /// Where a trial stands.
    pub(super) fn state_of(&self, trial: TrialId) -> TrialState {
        if let Some(ended) = self.state.ended.get(&trial) {
            return TrialState::of_end(&ended.end);
        }
        match self.state.active.get(&trial).map_or(TrialState::Waiting, TrialState::of) {
            // Those who ask and tell run trials without slots.
            TrialState::Waiting if self.clock.heads == 0 && self.state.active.contains_key(&trial) => {
                TrialState::Running
            }
            state => state,
        }
    }

    /// What a trial tries.
    pub(super) fn params(&self, trial: TrialId) -> Option<&Params> {
        let active = || self.state.active.get(&trial).map(|active| &active.params);
        self.state.ended.get(&trial).map(|ended| &ended.params).or_else(active)
    }

    /// The result of a trial that ran to its end.
    pub(super) fn values(&self, trial: TrialId) -> Option<&[f64]> {
        match &self.state.ended.get(&trial)?.end {
            End::Done(values) => Some(values),
            _ => None,
        }
    }

    /// All numbers of trials.
    pub(super) fn ids(&self) -> impl Iterator<Item = TrialId> + use<> {
        (0..self.trials.len() as u32).map(TrialId)
    }

    /// Whether a head has ever run it: else others run its trials.
    pub(super) const fn has_head(&self) -> bool {
        self.clock.heads > 0
    }
}

impl Trial {
    fn new(point: Point, created_s: f64) -> Self {
        Self {
            point,
            created_s,
            started_s: None,
            ended_s: None,
            curves: BTreeMap::new(),
            speed: Thinned::new(),
            decided: None,
            decisions: Vec::new(),
            first_events: Vec::new(),
            last_events: VecDeque::new(),
        }
    }

    fn note(&mut self, at_s: f64, event: Option<String>) {
        let Some(event) = event else { return };
        if self.first_events.len() < FIRST_EVENTS {
            self.first_events.push((at_s, event));
            return;
        }
        if self.last_events.len() >= LAST_EVENTS {
            self.last_events.pop_front();
        }
        self.last_events.push_back((at_s, event));
    }
}
