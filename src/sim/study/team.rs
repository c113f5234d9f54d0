use std::collections::BTreeMap;

use super::super::{Error, Modelled};
use crate::{
    goodput::{BatchPlan, GradientStats, NoiseEstimator, NoiseScale, Observation, Shape},
    ids::{Generation, GpuType, SlotId},
    space::Study,
    trials::group::Batch,
};

/// The group of a trial while it is simulated: where it trains, and how far it is.
pub(super) struct Team {
    pub(super) modelled: Modelled,
    pub(super) generation: Generation,
    /// Grows whenever what was foreseen for it does not hold any more.
    pub(super) version: u32,
    pub(super) batch: BatchPlan,
    pub(super) epochs: f64,
    /// Steps since the last report.
    pub(super) steps: Vec<Observation>,
    /// Reports of this generation.
    pub(super) reports: u32,
    place: Option<Place>,
    /// Until when its progress was counted; none while it does not train.
    since_s: Option<f64>,
    epochs_max: f64,
    initial_batch: f64,
    /// Begins anew after a pause.
    smoothed: NoiseEstimator,
}

struct Place {
    gpu_type: GpuType,
    /// GPUs of each node.
    placement: Vec<u32>,
}

/// How fast a trial goes at the moment.
struct Pace {
    step_s: f64,
    epochs_per_s: f64,
    /// Epochs at which it goes at another pace.
    until: f64,
}

/// Boundaries between measured epochs that are closer than this share of all of them are reached.
const ROUNDING: f64 = 1e-9;

impl Team {
    pub(super) fn new(modelled: Modelled, study: &Study, epochs: f64) -> Result<Self, Error> {
        let initial_batch = f64::from(study.trial.initial_batch);
        Ok(Self {
            modelled,
            generation: Generation::NONE,
            version: 0,
            batch: BatchPlan { per_gpu: 1, accumulation: 0 },
            epochs,
            steps: Vec::new(),
            reports: 0,
            place: None,
            since_s: None,
            epochs_max: study.trial.epochs,
            initial_batch,
            smoothed: NoiseEstimator::new(initial_batch)?,
        })
    }

    /// It stops training where it is, and begins to form elsewhere.
    pub(super) fn form(
        &mut self,
        now_s: f64,
        generation: Generation,
        gpu_type: GpuType,
        slots: &[SlotId],
        batch: Batch,
    ) {
        // What it has not reported of its last generation is lost.
        let _ = self.advance(now_s);
        self.steps.clear();
        let mut nodes = BTreeMap::<_, u32>::new();
        for slot in slots {
            *nodes.entry(slot.node).or_default() += 1;
        }
        let placement = nodes.into_values().collect();
        self.place = Some(Place { gpu_type, placement });
        (self.generation, self.since_s, self.reports) = (generation, None, 0);
        self.retune(batch);
        self.version += 1;
    }

    /// It uses another batch from now on.
    pub(super) fn retune(&mut self, Batch { total, accumulation }: Batch) {
        let passes = self.gpus().saturating_mul(accumulation.saturating_add(1)).max(1);
        self.batch = BatchPlan { per_gpu: total.div_ceil(passes), accumulation };
    }

    /// It trains from now on.
    pub(super) const fn begin(&mut self, now_s: f64) {
        self.since_s = Some(now_s);
    }

    pub(super) fn is_done(&self) -> bool {
        self.epochs >= self.epochs_max * (1.0 - ROUNDING)
    }

    /// The noise that it reports, and the total batch that this belongs to.
    pub(super) fn noise(&self, smooth: bool) -> (Option<NoiseScale>, Option<f64>) {
        if smooth {
            let settled = self.smoothed.settled();
            return (settled.map(GradientStats::noise_scale), settled.and_then(|_| self.smoothed.batch()));
        }
        (Some(self.noise_after(self.epochs)), Some(self.total()))
    }

    fn total(&self) -> f64 {
        self.batch.total(self.gpus()) as f64
    }

    fn noise_after(&self, epochs: f64) -> NoiseScale {
        let total = self.batch.total(self.gpus()).min(u64::from(u32::MAX)) as u32;
        self.modelled.noise_at(epochs + ROUNDING * self.epochs_max, total)
    }

    fn gpus(&self) -> u32 {
        self.place.as_ref().map_or(0, |place| place.placement.iter().sum())
    }

    fn pace(&self, epochs: f64) -> Result<Pace, Error> {
        let unknown = |reason: String| Error::CannotRun { job: "a trial".to_owned(), reason };
        let place = self.place.as_ref().ok_or_else(|| unknown("it has no GPUs".to_owned()))?;
        let BatchPlan { per_gpu, accumulation } = self.batch;
        let step_s = self
            .modelled
            .step_time_s(&place.gpu_type, &place.placement, f64::from(per_gpu), accumulation)
            .ok_or_else(|| {
                let known: Vec<&str> = self.modelled.application().gpu_types().map(GpuType::name).collect();
                let (wanted, known) = (&place.gpu_type, known.join(", "));
                unknown(format!("nothing was measured on GPUs of type {wanted}; expected one of {known}"))
            })?;
        let batch = self.total();
        let examples = batch * self.noise_after(epochs).efficiency(self.initial_batch, batch);
        let epochs_per_s = examples / self.modelled.examples_per_epoch() as f64 / step_s;
        let measured = self.modelled.application().epochs() as f64;
        let piece = (epochs / self.epochs_max).mul_add(measured, ROUNDING).floor() + 1.0;
        let until = (piece / measured * self.epochs_max).min(self.epochs_max);
        Ok(Pace { step_s, epochs_per_s, until })
    }

    /// Seconds until it is done, if nothing changes.
    pub(super) fn until_done_s(&self) -> Result<f64, Error> {
        let (mut epochs, mut seconds) = (self.epochs, 0.0);
        while epochs < self.epochs_max * (1.0 - ROUNDING) {
            let Pace { epochs_per_s, until, .. } = self.pace(epochs)?;
            seconds += (until - epochs) / epochs_per_s;
            epochs = until;
        }
        Ok(seconds)
    }

    /// Trains up to now.
    pub(super) fn advance(&mut self, now_s: f64) -> Result<(), Error> {
        let Some(since_s) = self.since_s else { return Ok(()) };
        self.since_s = Some(now_s);
        let mut left_s = now_s - since_s;
        while left_s > 0.0 && !self.is_done() {
            let Pace { step_s, epochs_per_s, until } = self.pace(self.epochs)?;
            let whole_s = (until - self.epochs) / epochs_per_s;
            // The clock often stops just where a piece ends.
            let (spent_s, epochs) = if whole_s <= left_s + ROUNDING * now_s.max(1.0) {
                (whole_s.min(left_s), until)
            } else {
                (left_s, epochs_per_s.mul_add(left_s, self.epochs))
            };
            self.count(step_s, spent_s / step_s);
            self.smooth(spent_s / step_s)?;
            self.epochs = epochs;
            left_s -= spent_s;
        }
        Ok(())
    }

    /// Takes in what steps measure of the noise.
    fn smooth(&mut self, steps: f64) -> Result<(), Error> {
        let stats = GradientStats { sqr: 1.0, var: self.noise_after(self.epochs).value() };
        if steps > 0.0 {
            self.smoothed.push_weighted(stats, self.total(), steps)?;
        }
        Ok(())
    }

    /// Takes note of steps for the next report.
    fn count(&mut self, iter_time_s: f64, steps: f64) {
        let BatchPlan { per_gpu, accumulation } = self.batch;
        let nodes = self.place.as_ref().map_or(0, |place| place.placement.len() as u32);
        let Ok(shape) = Shape::new(self.gpus(), nodes) else { return };
        // Parts of steps are in progress, not lost.
        let (per_gpu, steps) = (f64::from(per_gpu), steps.round().max(1.0));
        match self.steps.last_mut() {
            Some(last)
                if last.per_gpu.to_bits() == per_gpu.to_bits() && last.accumulation == accumulation =>
            {
                last.steps += steps;
            }
            _ => self.steps.push(Observation { shape, per_gpu, accumulation, iter_time_s, steps }),
        }
    }
}
