use std::collections::{BTreeMap, BTreeSet};

use super::{
    compare::{Compared, Comparison},
    features::Features,
    joint::JointModel,
    noise::{Axis, NoiseSurface, Track},
};
use crate::{
    goodput::{
        Error, Fit, NoiseCurve, NoiseScale, Observation, Observations, ThroughputParams, ThroughputPrior,
        TypeCatalog, TypeRatio, fit,
    },
    ids::{GpuType, TrialId},
};

/// Whether trials learn from each other; off to measure what that is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// A trial starts from what the others have seen.
    #[default]
    On,
    /// Every trial knows only its own steps, as in Pollux.
    Off,
}

/// What has been seen of the trials of one study, finished and running, and what follows for the next one.
///
/// ```
/// use std::collections::BTreeMap;
/// use pollux_tune::{goodput::{Features, Observations, Shape, Sharing, StudyKnowledge}, ids::{GpuType, TrialId}};
/// let t4 = GpuType::new("t4")?;
/// let mut knowledge = StudyKnowledge::new(1, Sharing::On);
/// for (trial, width) in [(0, 128.0_f64), (1, 256.0), (2, 512.0)] {
///     let mut seen = Observations::default();
///     for (gpus, sync_s) in [(1, 0.0), (2, 0.05)] {
///         for batch in [32, 64] {
///             let pass_s = 1e-8 * width * width * f64::from(batch);
///             seen.record(Shape::new(gpus, 1)?, batch, 0, 0.01 + pass_s + sync_s)?;
///         }
///     }
///     knowledge.record(TrialId(trial), Features::new(vec![width.ln()])?, BTreeMap::from([(t4.clone(), seen)]))?;
/// }
/// knowledge.refit()?;
/// // A trial that has not made a single step.
/// let prior = knowledge.prior(&Features::new(vec![384_f64.ln()])?, &t4)?.expect("three trials ran on a T4");
/// let step_s = prior.params()?.iter_time_s(Shape::new(2, 1)?, 64.0, 0);
/// assert!((step_s / 0.154 - 1.0).abs() < 0.05, "{step_s}");
/// assert_eq!(knowledge.exploration_cap(TrialId(3), Some(&t4)), 4);
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct StudyKnowledge {
    feature_count: usize,
    sharing: Sharing,
    trials: BTreeMap<TrialId, Record>,
    tracks: BTreeMap<TrialId, Track>,
    /// GPU types with steps that the models have not seen.
    stale: BTreeSet<GpuType>,
    models: BTreeMap<GpuType, JointModel>,
    axis: Axis,
    surface: NoiseSurface,
    /// How far trials that were forgotten have scaled out.
    explored: BTreeMap<GpuType, u32>,
}

#[derive(Debug, Clone, PartialEq)]
struct Record {
    features: Features,
    seen: BTreeMap<GpuType, Observations>,
}

impl StudyKnowledge {
    /// So many trials of a GPU type, the last ones, are compared with each other.
    pub const COMPARED_MAX: usize = 48;

    /// Knows nothing yet of a study whose trials have `feature_count` [`Features`].
    #[must_use]
    pub fn new(feature_count: usize, sharing: Sharing) -> Self {
        Self {
            feature_count,
            sharing,
            trials: BTreeMap::new(),
            tracks: BTreeMap::new(),
            stale: BTreeSet::new(),
            models: BTreeMap::new(),
            axis: Axis::default(),
            surface: NoiseSurface::default(),
            explored: BTreeMap::new(),
        }
    }

    /// The same, for trials that train for so many statistical epochs: noise is then told apart by fiftieths of them.
    #[must_use]
    pub fn with_epochs(mut self, epochs: f64) -> Self {
        self.axis.epochs = Some(epochs).filter(|epochs| epochs.is_finite() && *epochs > 0.0);
        self
    }

    /// Leaves out a trial from now on, so that a study of very many trials needs no more memory and time than one of many. How far it has
    /// scaled out stays known.
    pub fn forget(&mut self, trial: TrialId) {
        self.tracks.remove(&trial);
        for (gpu, seen) in self.trials.remove(&trial).into_iter().flat_map(|record| record.seen) {
            let explored = self.explored.entry(gpu.clone()).or_insert(1);
            *explored = (*explored).max(seen.exploration_cap());
            self.stale.insert(gpu);
        }
    }

    /// Takes in all steps of a trial so far, in place of what was recorded of it before.
    pub fn record(
        &mut self,
        trial: TrialId,
        features: Features,
        seen: BTreeMap<GpuType, Observations>,
    ) -> Result<(), Error> {
        self.check(&features)?;
        let record = Record { features, seen };
        let old = self.trials.get(&trial);
        for gpu in record.seen.keys().chain(old.iter().flat_map(|old| old.seen.keys())) {
            let same =
                |old: &Record| old.features == record.features && old.seen.get(gpu) == record.seen.get(gpu);
            if !old.is_some_and(same) {
                self.stale.insert(gpu.clone());
            }
        }
        self.trials.insert(trial, record);
        Ok(())
    }

    /// Adds a noise scale of a trial that was measured at `progress_epochs` statistical epochs and a total batch.
    ///
    /// [`NoiseScale::UNRESOLVED`] is left out: it only says that there was no signal to measure.
    pub fn record_noise(
        &mut self,
        trial: TrialId,
        progress_epochs: f64,
        batch: f64,
        phi: NoiseScale,
    ) -> Result<(), Error> {
        self.tracks.entry(trial).or_default().record(self.axis, progress_epochs, batch, phi)
    }

    /// Compares trials and learns from it at once: [`comparison`](Self::comparison), run here and now. Until then
    /// [`StudyKnowledge::prior`] and [`StudyKnowledge::noise_prior`] answer from what the study knew before.
    pub fn refit(&mut self) -> Result<(), Error> {
        let comparison = self.comparison();
        self.learn(comparison.run())
    }

    /// All that is needed to compare the trials with each other again, where something has changed: to be run elsewhere while this one
    /// goes on answering, and then to be taken in by [`StudyKnowledge::learn`].
    ///
    /// At most the last [`Self::COMPARED_MAX`] trials of each GPU type take part, and older ones that alone have used some number of GPUs:
    /// what a comparison costs does not grow with the study.
    pub fn comparison(&mut self) -> Comparison {
        let mut comparison = Comparison { axis: self.axis, ..Comparison::default() };
        if self.sharing == Sharing::Off {
            return comparison;
        }
        comparison.tracks = self.tracks.values().rev().take(Self::COMPARED_MAX).cloned().collect();
        for gpu in std::mem::take(&mut self.stale) {
            let trials = self.compared_on(&gpu);
            comparison.trials.insert(gpu, trials);
        }
        comparison
    }

    /// The trials that are compared on a GPU type, with their steps.
    fn compared_on(&self, gpu: &GpuType) -> Vec<(Features, Vec<Observation>)> {
        let mut shapes = BTreeSet::new();
        let mut chosen = Vec::new();
        let on_gpu = |record: &&Record| record.seen.get(gpu).is_some_and(|seen| !seen.is_empty());
        for record in self.trials.values().rev().filter(on_gpu) {
            let seen: Vec<Observation> =
                record.seen.get(gpu).into_iter().flat_map(Observations::iter).collect();
            let before = shapes.len();
            shapes.extend(seen.iter().map(|steps| (steps.shape.tier(), steps.shape.gpus())));
            if chosen.len() < Self::COMPARED_MAX || shapes.len() > before {
                chosen.push((record.features.clone(), seen));
            }
        }
        chosen.reverse();
        chosen
    }

    /// Takes in what a comparison has found. A type that could not be fitted keeps its last model, and is tried again next
    /// time; other types do not wait for it.
    pub fn learn(&mut self, compared: Compared) -> Result<(), Error> {
        if self.sharing == Sharing::Off {
            return Ok(());
        }
        self.surface = compared.surface;
        let mut first_error = None;
        for (gpu, model) in compared.models {
            match model {
                Ok(Some(model)) => {
                    self.models.insert(gpu, model);
                }
                Ok(None) => {
                    self.models.remove(&gpu);
                }
                Err(error) => {
                    self.stale.insert(gpu);
                    first_error.get_or_insert(error);
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// What the study believes of the throughput of a trial on a GPU type. None if no trial has run there, or
    /// without sharing. Resources that no trial has used stay unknown, so that they are still explored.
    pub fn prior(&self, features: &Features, gpu: &GpuType) -> Result<Option<ThroughputPrior>, Error> {
        self.check(features)?;
        Ok(self.models.get(gpu).map(|model| model.prior(features)))
    }

    /// How the costs of type `to` compare with those of `from` for a trial with these features, if trials
    /// have run on both: not necessarily the same trials, since the regression tells apart what is due to
    /// features.
    pub fn type_ratio(
        &self,
        features: &Features,
        from: &GpuType,
        to: &GpuType,
    ) -> Result<Option<TypeRatio>, Error> {
        let (from, to) = (self.prior(features, from)?, self.prior(features, to)?);
        Ok(from.zip(to).map(|(from, to)| TypeRatio::between(&from, &to)))
    }

    /// What to expect of a recorded trial on a GPU type that it has not used: its model on type `from`,
    /// carried over by what the catalogue and the study know of the two types. Only what was explored on
    /// `from` is carried over.
    pub fn bootstrap(
        &self,
        catalog: &TypeCatalog,
        trial: TrialId,
        from: &GpuType,
        to: &GpuType,
    ) -> Result<ThroughputPrior, Error> {
        let record = self.trials.get(&trial).ok_or(Error::NoObservations)?;
        let own: Vec<Observation> = record.seen.get(from).into_iter().flat_map(Observations::iter).collect();
        let study = self.prior(&record.features, from)?;
        let known = ThroughputPrior::explored(&self.fit(trial, from, None)?.params, &own, study.as_ref());
        let ratio = catalog.ratio(from, to);
        Ok(match self.type_ratio(&record.features, from, to)? {
            Some(measured) => ratio.blend(&measured).apply(&known),
            None => ratio.apply(&known),
        })
    }

    /// Fits the throughput of a recorded trial, weighing its own steps against what the study believes of it.
    /// A trial that is seen to be off trusts the study accordingly less; one without steps gets the belief as
    /// it is.
    ///
    /// Once refitted, the study's belief holds the trial's own steps too, as one trial among others: they then
    /// count a little more than once.
    pub fn fit(
        &self,
        trial: TrialId,
        gpu: &GpuType,
        warm_start: Option<&ThroughputParams>,
    ) -> Result<Fit, Error> {
        let record = self.trials.get(&trial).ok_or(Error::NoObservations)?;
        let seen = record.seen.get(gpu).filter(|seen| !seen.is_empty());
        match (self.prior(&record.features, gpu)?, seen) {
            (None, None) => Err(Error::NoObservations),
            (None, Some(seen)) => fit(seen, None, warm_start),
            (Some(prior), None) => Ok(Fit { params: prior.params()?, rmsle: 0.0 }),
            (Some(prior), Some(seen)) => {
                let own: Vec<Observation> = seen.iter().collect();
                fit(seen, Some(&prior.loosened(&own)), warm_start)
            }
        }
    }

    /// The noise scale to expect at `progress_epochs`, over the total batch: that of the study, shifted by the offset of the
    /// trial as far as it is known. None if no trial has been near. Without sharing, what the trial has seen itself.
    #[must_use]
    pub fn noise_prior(&self, progress_epochs: f64, trial: Option<TrialId>) -> Option<NoiseCurve> {
        let track = trial.and_then(|trial| self.tracks.get(&trial));
        match self.sharing {
            Sharing::On => {
                let offset = track.map_or(0.0, |track| track.offset(&self.surface));
                self.surface.curve(progress_epochs, offset)
            }
            Sharing::Off => track?.surface(self.axis).curve(progress_epochs, 0.0),
        }
    }

    /// By how much single measurements of the noise scale are off from what the study expects, as a standard deviation of the logarithm;
    /// none before enough were compared.
    #[must_use]
    pub const fn noise_scatter(&self) -> Option<f64> {
        self.surface.scatter()
    }

    /// The largest number of GPUs to give to a trial: twice what any trial of the study has used of this type (of any
    /// type, if none is given), so that each size is explored once per study, not once per trial (Pollux
    /// OSDI'21 section 4.1).
    #[must_use]
    pub fn exploration_cap(&self, trial: TrialId, gpu: Option<&GpuType>) -> u32 {
        let is_shared = self.sharing == Sharing::On;
        let counts = |(id, _): &(&TrialId, &Record)| is_shared || **id == trial;
        let seen = self.trials.iter().filter(counts).flat_map(|(_, record)| &record.seen);
        let seen = seen.map(|(gpu, seen)| (gpu, seen.exploration_cap()));
        let forgotten = self.explored.iter().filter(|_| is_shared).map(|(gpu, explored)| (gpu, *explored));
        let all = seen.chain(forgotten).filter(|(of, _)| gpu.is_none_or(|gpu| gpu == *of));
        all.map(|(_, explored)| explored).max().unwrap_or(1)
    }

    fn check(&self, features: &Features) -> Result<(), Error> {
        let len = features.values().len();
        if len == self.feature_count {
            Ok(())
        } else {
            let what = "the features of a trial";
            Err(Error::LengthMismatch { what, len, expected: self.feature_count })
        }
    }
}
