use std::collections::BTreeMap;

use super::{
    features::Features,
    joint::JointModel,
    noise::{Axis, NoiseSurface, Track},
};
use crate::{
    goodput::{Error, Observation},
    ids::GpuType,
};

/// Trials that are to be compared with each other: a piece of work that is complete in itself, so that another thread can do it.
///
/// [`StudyKnowledge::comparison`](super::StudyKnowledge::comparison) makes it, and
/// [`StudyKnowledge::learn`](super::StudyKnowledge::learn) takes in what comes out.
#[derive(Debug, Clone, Default)]
pub struct Comparison {
    /// By GPU type on which something has changed, the trials that have steps there.
    pub(super) trials: BTreeMap<GpuType, Vec<(Features, Vec<Observation>)>>,
    pub(super) axis: Axis,
    pub(super) tracks: Vec<Track>,
}

/// What a [`Comparison`] has found.
#[derive(Debug, Clone)]
pub struct Compared {
    /// By GPU type its model, none where no trial has any steps.
    pub(super) models: BTreeMap<GpuType, Result<Option<JointModel>, Error>>,
    pub(super) surface: NoiseSurface,
}

impl Comparison {
    /// Compares them: some 20 ms for 48 trials with 5 features, and the cost grows with the square of the features.
    #[must_use]
    pub fn run(self) -> Compared {
        let model = |trials: Vec<(Features, Vec<Observation>)>| {
            if trials.is_empty() { Ok(None) } else { JointModel::fit(&trials).map(Some) }
        };
        let models = self.trials.into_iter().map(|(gpu, trials)| (gpu, model(trials))).collect();
        Compared { models, surface: NoiseSurface::fit(self.axis, &self.tracks) }
    }
}
