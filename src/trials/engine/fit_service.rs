//! Answers to [`Fit`](super::AllocatorRequest::Fit).

use std::collections::{BTreeMap, BTreeSet};

use super::{Error, Fact, JournalEntry, Refit, apply::end_of};
use crate::{
    goodput::{Features, NoiseScale, Observations, Sharing, StudyKnowledge, ThroughputParams, TypeCatalog},
    ids::{GpuType, TrialId},
    space::{Dim, Point, Study},
};

/// A choice with more options than this has no features: they would explain anything.
const OPTIONS_MAX: usize = 8;

/// How fast the trials of a study are, kept up to date by its facts.
///
/// It may live on another thread, as long as facts and questions come in their order.
pub struct FitService {
    dims: Vec<Dim>,
    knowledge: StudyKnowledge,
    catalog: TypeCatalog,
    /// The types of GPU that were ever here.
    types: BTreeSet<GpuType>,
    trials: BTreeMap<TrialId, Seen>,
    /// A trial began or ended since all were compared.
    stale: bool,
}

/// What was seen of a trial.
struct Seen {
    features: Features,
    steps: BTreeMap<GpuType, Observations>,
    /// The last fits, to begin the next ones with.
    models: BTreeMap<GpuType, ThroughputParams>,
    epochs: f64,
    noise: Option<NoiseScale>,
}

impl FitService {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(study: &Study) -> Self {
        let dims = study.space.dims();
        let sharing = if study.scheduler.knowledge_sharing { Sharing::On } else { Sharing::Off };
        let knowledge = StudyKnowledge::new(dims.iter().map(|dim| width(*dim)).sum(), sharing);
        let (types, trials) = (BTreeSet::new(), BTreeMap::new());
        Self { dims, knowledge, catalog: TypeCatalog::builtin(), types, trials, stale: false }
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
                let seen = Seen { features, steps, models, epochs: 0.0, noise: None };
                self.trials.insert(*trial, seen);
                self.stale = true;
            }
            Fact::Measured { trial, epochs, gpu_type, steps, noise, .. } => {
                let Some(seen) = self.trials.get_mut(trial) else { return Ok(()) };
                seen.epochs = seen.epochs.max(*epochs);
                if let Some(gpu_type) = gpu_type.as_ref().filter(|_| !steps.is_empty()) {
                    let all = seen.steps.entry(gpu_type.clone()).or_default();
                    for steps in steps {
                        // An error leaves all as it was: a worker with a broken clock is not the end of a study.
                        let _ = all.add(steps);
                    }
                }
                if let Some(noise) = noise {
                    seen.noise = Some(*noise);
                    self.knowledge.record_noise(*trial, *epochs, *noise)?;
                }
            }
            fact => self.stale |= end_of(fact).is_some(),
        }
        Ok(())
    }

    /// What is known of a trial: from its own steps, from those of others, and from what types of GPU have in common. None
    /// if it is unknown, or if the numbers cannot be fitted.
    pub fn fit(&mut self, trial: TrialId) -> Option<Refit> {
        if std::mem::take(&mut self.stale) {
            for (id, seen) in &self.trials {
                self.knowledge.record(*id, seen.features.clone(), seen.steps.clone()).ok()?;
            }
            // A type that cannot be fitted keeps its last model.
            let _ = self.knowledge.refit();
        }
        let seen = self.trials.get_mut(&trial)?;
        self.knowledge.record(trial, seen.features.clone(), seen.steps.clone()).ok()?;
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
        let noise = seen.noise.or_else(|| self.knowledge.noise_prior(seen.epochs, Some(trial)));
        Some(Refit { models, noise, cap: self.knowledge.exploration_cap(trial, None) })
    }
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

    #[test]
    fn points_become_numbers() {
        let dims = [Dim::Continuous, Dim::Discrete { count: 4 }, Dim::Categorical { count: 3 }];
        let big = Dim::Categorical { count: 99 };
        let point = vec![Some(0.25), Some(1.0), Some(2.0), Some(50.0)];
        assert_eq!(features(&[&dims[..], &[big]].concat(), &point), [0.25, 0.375, 0.0, 0.0, 1.0]);
        assert_eq!(features(&dims, &vec![None, None, None]), [0.5, 0.5, 0.0, 0.0, 0.0]);
    }
}
