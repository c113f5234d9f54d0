//! Answers to [`Fit`](super::AllocatorRequest::Fit).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Error, Fact, JournalEntry, Refit, apply::end_of};
use crate::{
    goodput::{
        Compared, Comparison, Features, NoiseCurve, Observation, Observations, Sharing, StudyKnowledge,
        ThroughputParams, TypeCatalog,
    },
    ids::{GpuType, TrialId},
    space::{Dim, PilotSpec, Point, Study},
    trials::End,
};

/// A choice with more options than this has no features: they would explain anything.
const OPTIONS_MAX: usize = 8;

/// So many trials that are over teach the others how fast they may be, the last ones: the time for a fit grows with them.
const ENDED_MAX: usize = 512;

/// Trials are compared again when so many have begun or ended since, per trial that is compared: each time while they are few, and
/// at a bounded cost for each trial when they are many.
const CHANGES_SHARE: f64 = 1.0 / 4.0;

/// How fast the trials of a study are, kept up to date by its facts.
///
/// It may live on another thread, as long as facts and questions come in their order. Questions are answered from the last comparison
/// of the trials; when another one is due, [`comparison`](Self::comparison) has it, and it can be made elsewhere meanwhile.
pub struct FitService {
    dims: Vec<Dim>,
    initial_batch: f64,
    knowledge: StudyKnowledge,
    catalog: TypeCatalog,
    /// The types of GPU that were ever here, or may come.
    types: BTreeSet<GpuType>,
    trials: BTreeMap<TrialId, Seen>,
    /// Those among them that are over for good, in the order of their ends.
    ended: VecDeque<TrialId>,
    /// Those with steps that the knowledge has not seen.
    unseen: BTreeSet<TrialId>,
    /// Trials that began or ended since all were compared.
    changes: usize,
    /// How many GPUs of which type had been used by then.
    compared_caps: BTreeMap<GpuType, u32>,
}

/// What was seen of a trial.
struct Seen {
    features: Features,
    steps: BTreeMap<GpuType, Observations>,
    /// The last fits, to begin the next ones with.
    models: BTreeMap<GpuType, ThroughputParams>,
    epochs: f64,
    /// The total batch of its last steps.
    batch: f64,
}

impl FitService {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(study: &Study) -> Self {
        let dims = study.space.dims();
        let sharing = if study.scheduler.knowledge_sharing { Sharing::On } else { Sharing::Off };
        let knowledge = StudyKnowledge::new(dims.iter().map(|dim| width(*dim)).sum(), sharing)
            .with_epochs(study.trial.epochs);
        // What may come is weighed against what is here.
        let pilots = study.machines.iter().flat_map(|machines| &machines.slurm);
        let types: BTreeSet<GpuType> = pilots.filter_map(PilotSpec::gpu_type).collect();
        Self {
            dims,
            initial_batch: f64::from(study.trial.initial_batch),
            knowledge,
            catalog: TypeCatalog::builtin(),
            types,
            trials: BTreeMap::new(),
            ended: VecDeque::new(),
            unseen: BTreeSet::new(),
            changes: 0,
            compared_caps: BTreeMap::new(),
        }
    }

    /// Takes note of a fact.
    pub fn apply(&mut self, entry: &JournalEntry) -> Result<(), Error> {
        match &entry.fact {
            Fact::NodeJoined { gpu_type, .. } => {
                self.types.insert(gpu_type.clone());
            }
            Fact::TrialCreated { trial, point, .. } => {
                let features = Features::new(features(&self.dims, point))?;
                let (steps, models) = (BTreeMap::new(), BTreeMap::new());
                let seen = Seen { features, steps, models, epochs: 0.0, batch: self.initial_batch };
                self.trials.insert(*trial, seen);
                self.changes += 1;
            }
            Fact::Measured { trial, epochs, gpu_type, steps, noise, noise_batch, .. } => {
                let Some(seen) = self.trials.get_mut(trial) else { return Ok(()) };
                seen.epochs = seen.epochs.max(*epochs);
                seen.batch = total_batch(steps).unwrap_or(seen.batch);
                if let Some(gpu_type) = gpu_type.as_ref().filter(|_| !steps.is_empty()) {
                    let all = seen.steps.entry(gpu_type.clone()).or_default();
                    for steps in steps {
                        // An error leaves all as it was: a worker with a broken clock is not the end of a study.
                        let _ = all.add(steps);
                    }
                    self.unseen.insert(*trial);
                }
                if let Some(noise) = noise {
                    let batch = noise_batch.unwrap_or(seen.batch);
                    self.knowledge.record_noise(*trial, *epochs, batch, *noise)?;
                }
            }
            fact => {
                if let Some((trial, end)) = end_of(fact) {
                    self.changes += 1;
                    self.end(trial, &end);
                }
            }
        }
        Ok(())
    }

    /// Trials that are over teach those that run, as long as they are not too many. Nobody learns from one that has not measured how
    /// fast it is, as all that are not elastic; one that may run again is kept.
    fn end(&mut self, trial: TrialId, end: &End) {
        if !matches!(end, End::Done(_) | End::Stopped(_)) {
            return;
        }
        self.ended.push_back(trial);
        let has_steps = self.trials.get(&trial).is_some_and(|seen| !seen.steps.is_empty());
        let left_out = match has_steps {
            false => self.ended.pop_back(),
            true if self.ended.len() > ENDED_MAX => self.ended.pop_front(),
            true => None,
        };
        if let Some((trial, seen)) = left_out.and_then(|trial| self.trials.remove_entry(&trial)) {
            // How far it has scaled out stays known, whether or not anybody has asked yet.
            let _ = self.knowledge.record(trial, seen.features, seen.steps);
            self.knowledge.forget(trial);
            self.unseen.remove(&trial);
        }
    }

    /// The comparison of the trials that is due, if one is.
    pub fn comparison(&mut self) -> Option<Comparison> {
        let compared = self.trials.len().min(StudyKnowledge::COMPARED_MAX) as f64;
        let is_due = self.changes > 0
            && (self.changes as f64 >= CHANGES_SHARE * compared || self.caps() != self.compared_caps);
        if !is_due {
            return None;
        }
        for trial in std::mem::take(&mut self.unseen) {
            self.record(trial);
        }
        (self.changes, self.compared_caps) = (0, self.caps());
        Some(self.knowledge.comparison())
    }

    /// Takes in what a comparison has found.
    pub fn learn(&mut self, compared: Compared) {
        // A type that cannot be fitted keeps its last model.
        let _ = self.knowledge.learn(compared);
    }

    /// Up to how many GPUs of which type trials have explored.
    fn caps(&self) -> BTreeMap<GpuType, u32> {
        let cap = |gpu_type: &GpuType| self.knowledge.exploration_cap(TrialId(u32::MAX), Some(gpu_type));
        self.types.iter().map(|gpu_type| (gpu_type.clone(), cap(gpu_type))).collect()
    }

    /// Shows the steps of a trial to the knowledge of the study; none if that is impossible.
    fn record(&mut self, trial: TrialId) -> Option<()> {
        let seen = self.trials.get(&trial)?;
        self.knowledge.record(trial, seen.features.clone(), seen.steps.clone()).ok()
    }

    /// What is known of a trial: from its own steps, from the last comparison with others, and from what types of GPU have in
    /// common. None if it is unknown, or if the numbers cannot be fitted.
    pub fn fit(&mut self, trial: TrialId) -> Option<Refit> {
        self.record(trial)?;
        self.unseen.remove(&trial);
        let seen = self.trials.get_mut(&trial)?;
        let mut models = BTreeMap::new();
        for gpu_type in &self.types {
            if let Ok(fit) = self.knowledge.fit(trial, gpu_type, seen.models.get(gpu_type)) {
                models.insert(gpu_type.clone(), fit.params);
            }
        }
        // Types that nobody has used follow from one that this trial has.
        let from = models.keys().next().cloned();
        for gpu_type in self.types.iter().filter(|_| from.is_some()) {
            let from = from.as_ref()?;
            if !models.contains_key(gpu_type)
                && let Ok(prior) = self.knowledge.bootstrap(&self.catalog, trial, from, gpu_type)
                && let Ok(params) = prior.params()
            {
                models.insert(gpu_type.clone(), params);
            }
        }
        seen.models.clone_from(&models);
        let noise = self.knowledge.noise_prior(seen.epochs, Some(trial));
        Some(Refit {
            models,
            noise: noise.map(|noise| noise.at(self.initial_batch)),
            noise_slope: noise.map_or(0.0, NoiseCurve::slope),
            noise_scatter: self.knowledge.noise_scatter(),
            cap: self.knowledge.exploration_cap(trial, None),
        })
    }
}

/// The total batch of the last of some steps.
pub(super) fn total_batch(steps: &[Observation]) -> Option<f64> {
    let last = steps.last()?;
    Some(f64::from(last.shape.gpus()) * last.per_gpu * (f64::from(last.accumulation) + 1.0))
}

/// How many features a dimension has.
fn width(dim: Dim) -> usize {
    match dim {
        Dim::Categorical { count } if count > OPTIONS_MAX => 0,
        Dim::Categorical { count } => count,
        Dim::Continuous | Dim::Discrete { .. } => 1,
    }
}

/// A point as numbers: places on the axes of the space, which are logarithmic where that suits; 0 or 1 for each choice.
fn features(dims: &[Dim], point: &Point) -> Vec<f64> {
    let mut all = Vec::new();
    for (dim, value) in dims.iter().zip(point) {
        match *dim {
            Dim::Continuous => all.push(value.unwrap_or(0.5)),
            Dim::Discrete { count } => {
                all.push(value.map_or(0.5, |cell| (cell + 0.5) / count as f64));
            }
            Dim::Categorical { .. } => {
                let chosen = |option: usize| value.is_some_and(|value| value as usize == option);
                all.extend((0..width(*dim)).map(|option| f64::from(u8::from(chosen(option)))));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        goodput::{GradientStats, NoiseEstimator, NoiseScale, Shape},
        ids::{Generation, NodeId},
        trials::engine::State,
    };

    /// Runs a trial to its end, with a step on so many GPUs if it is elastic.
    fn run(service: &mut FitService, trial: u32, gpus: Option<u32>) {
        let (trial, gpu_type) = (TrialId(trial), GpuType::new("t4").unwrap());
        let params = [("x", 0.5.into())].into_iter().collect();
        let steps = gpus.map(|gpus| {
            let shape = Shape::new(gpus, 1).unwrap();
            Observation { shape, per_gpu: 64.0, accumulation: 0, iter_time_s: 0.1, steps: 10.0 }
        });
        let measured = Fact::Measured {
            trial,
            generation: Generation(1),
            number: 1,
            epochs: 1.0,
            metrics: [].into(),
            gpu_type: Some(gpu_type.clone()),
            steps: steps.into_iter().collect(),
            noise: NoiseScale::new(100.0).ok(),
            noise_batch: None,
        };
        let facts = [
            Fact::NodeJoined { node: NodeId(0), name: String::new(), gpu_type, island: 0, slots: 8 },
            Fact::TrialCreated { trial, params, point: vec![Some(0.5)] },
            measured,
            Fact::TrialDone { trial, values: vec![1.0] },
        ];
        for fact in facts {
            service.apply(&JournalEntry { at_s: 0.0, fact }).unwrap();
        }
    }

    #[test]
    fn what_is_kept_of_trials_that_are_over_does_not_grow_without_end() {
        let mut service = service();
        for trial in 0..1000 {
            run(&mut service, trial, None);
        }
        assert_eq!((service.trials.len(), service.ended.len()), (0, 0), "they teach nothing");
        run(&mut service, 1000, Some(4));
        for trial in 1001..3000 {
            run(&mut service, trial, Some(1));
        }
        assert_eq!((service.trials.len(), service.ended.len()), (ENDED_MAX, ENDED_MAX));
        assert!(!service.trials.contains_key(&TrialId(1000)) && service.trials.contains_key(&TrialId(2999)));
        assert_eq!(service.knowledge.exploration_cap(TrialId(3000), None), 8, "once is enough for a study");
    }

    /// A trial whose batch changes between 64 and 256, six reports each, a quarter of the window of its smoothing apart. Its noise
    /// scale is 100 sqrt(M).
    fn trial_with_batch_changes(trial: TrialId) -> Vec<Fact> {
        let gpu_type = GpuType::new("t4").unwrap();
        let params = [("x", 0.5.into())].into_iter().collect();
        let mut estimator = NoiseEstimator::new(64.0).unwrap();
        let mut facts = vec![Fact::TrialCreated { trial, params, point: vec![Some(0.5)] }];
        for number in 1..=96 {
            let batch = if (number + 6 * trial.0) % 12 < 6 { 64.0 } else { 256.0_f64 };
            let steps = 250.0 * 64.0 / batch;
            let raw = GradientStats { sqr: 1.0, var: 100.0 * batch.sqrt() };
            (0..steps as u32).for_each(|_| estimator.push_stats(raw, batch).unwrap());
            let shape = Shape::single();
            let seen = Observation { shape, per_gpu: batch, accumulation: 0, iter_time_s: 0.1, steps };
            facts.push(Fact::Measured {
                trial,
                generation: Generation(1),
                number,
                epochs: f64::from(number),
                metrics: [].into(),
                gpu_type: Some(gpu_type.clone()),
                steps: vec![seen],
                noise: estimator.settled().map(GradientStats::noise_scale),
                noise_batch: estimator.batch(),
            });
        }
        facts
    }

    /// Most of a smoothed noise scale is of before a change of the batch. It once counted as measured at the batch of the last steps.
    #[test]
    fn smoothed_noise_belongs_to_the_batches_it_was_measured_at() {
        let (mut service, mut state) = (service(), State::default());
        service.types.insert(GpuType::new("t4").unwrap());
        for trial in (0..4).map(TrialId) {
            for fact in trial_with_batch_changes(trial) {
                let entry = JournalEntry { at_s: 0.0, fact };
                service.apply(&entry).unwrap();
                state.apply(&entry).unwrap();
                let active = state.active.get_mut(&trial).unwrap();
                active.fit = Some(Refit { noise_slope: 0.5, ..Refit::default() });
                if active.noise.is_some() {
                    let off = active.noise_curve(64).at(128.0).value() / (100.0 * 128.0_f64.sqrt());
                    assert!((0.9..1.1).contains(&off), "{off}");
                }
            }
            service.fit(trial).unwrap();
        }
        service.comparison().map(|comparison| service.learn(comparison.run())).expect("one is due");
        let slope = service.fit(TrialId(0)).unwrap().noise_slope;
        assert!((slope - 0.5).abs() < 0.1, "{slope}");
    }

    fn service() -> FitService {
        let yaml = "{space: {x: {float: [0, 1]}}, objective: {maximize: accuracy}, search: {trials: 20000}}";
        FitService::new(&Study::from_yaml("study.yaml", yaml).unwrap())
    }

    /// Each trial begins and ends: two changes, of which 48 / 4 make a comparison due.
    #[test]
    fn what_is_learned_costs_each_trial_the_same_however_many_there_are() {
        let mut service = service();
        let mut compared = 0;
        for trial in 0..300 {
            run(&mut service, trial, Some(1));
            if let Some(comparison) = service.comparison() {
                compared += u32::from(trial >= 102);
                service.learn(comparison.run());
            }
            assert!(service.comparison().is_none(), "nothing has changed");
        }
        assert_eq!(compared, 198 / 6);
        let wider = Some(2);
        run(&mut service, 300, wider);
        service.fit(TrialId(300));
        assert!(service.comparison().is_some(), "more GPUs than ever were used");
    }

    #[test]
    fn questions_are_answered_while_trials_are_compared() {
        let mut service = service();
        for trial in 0..3 {
            run(&mut service, trial, Some(1));
        }
        let comparison = service.comparison().expect("they are few");
        let new = Fact::TrialCreated {
            trial: TrialId(3),
            params: [("x", 0.1.into())].into_iter().collect(),
            point: vec![Some(0.1)],
        };
        service.apply(&JournalEntry { at_s: 0.0, fact: new }).unwrap();
        assert_eq!(service.fit(TrialId(3)).unwrap().models, [].into(), "nothing was learned yet");
        service.learn(comparison.run());
        assert_eq!(service.fit(TrialId(3)).unwrap().models.len(), 1);
    }

    #[test]
    fn points_become_numbers() {
        let dims = [Dim::Continuous, Dim::Discrete { count: 4 }, Dim::Categorical { count: 3 }];
        let big = Dim::Categorical { count: 99 };
        let point = vec![Some(0.25), Some(1.0), Some(2.0), Some(50.0)];
        assert_eq!(features(&[&dims[..], &[big]].concat(), &point), [0.25, 0.375, 0.0, 0.0, 1.0]);
        assert_eq!(features(&dims, &vec![None, None, None]), [0.5, 0.5, 0.0, 0.0, 0.0]);
    }
}
