use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Application, Error, StepTime, surface::Surface};
use crate::{
    goodput::{BatchLimits, BatchMode, NoiseScale},
    ids::GpuType,
};

/// The training of one trial as predicted from measurements: how long its steps take, how noisy its gradients are, and
/// how well it does.
///
/// Step times and noise were measured ([`Application`]), for a network of one width. Of another width, an example is taken to
/// compute, and its gradients to weigh, by the square of the ratio, and to need memory by the ratio; what a step takes
/// whatever its size stays as it was measured. How well a trial does is **synthetic**: see [`metrics`](Self::metrics).
///
/// ```
/// use pollux_tune::{ids::GpuType, sim::Modelled};
/// let params = serde_json::json!({"lr": 0.05, "width": 64});
/// let trial = Modelled::new("cifar10", params.as_object().unwrap(), 0, 100.0)?;
/// let step_s = trial.step_time_s(&GpuType::new("a100")?, &[4], 512.0, 0).unwrap();
/// assert!((step_s - 0.0697).abs() < 1e-4);
/// assert!(trial.noise(10.0) < trial.noise(90.0));
/// assert!(trial.metrics(10.0)["accuracy"] < trial.metrics(100.0)["accuracy"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Modelled {
    application: &'static Application,
    /// Its width relative to the one that was measured.
    width: f64,
    surface: Surface,
    epochs: f64,
}

impl Modelled {
    /// The names of its [`metrics`](Self::metrics).
    pub const METRICS: [&'static str; 2] = ["accuracy", "loss"];

    /// A trial of an [`Application`], named by `trainable`, with some parameters. Those that the surface does not know do
    /// not matter, and those that are missing have their defaults. `seed` decides on the noise of its results, and `epochs` is
    /// how long it trains in all.
    pub fn new(trainable: &str, params: &Map<String, Value>, seed: u64, epochs: f64) -> Result<Self, Error> {
        let application = Application::get(trainable)
            .ok_or_else(|| Error::UnknownTrainable { name: trainable.to_owned(), allowed: names() })?;
        if !(epochs.is_finite() && epochs > 0.0) {
            let what = "the number of epochs";
            return Err(Error::OutOfRange { what, value: epochs, allowed: "a finite number above 0" });
        }
        let surface = Surface::new(params, seed);
        let width = application.width().map_or(1.0, |measured| surface.width() / measured);
        Ok(Self { application, width, surface, epochs })
    }

    /// Seconds of one optimizer step on a placement, the GPUs of each node in order: `accumulation` passes, and one that
    /// synchronizes, of `per_gpu` examples each on every GPU. Beyond the measured batches times continue as they did at the
    /// last ones, and more nodes or GPUs of a node than were measured count as the largest number that was. None if nothing was
    /// measured on this type of GPU, or if the placement or the batch is empty.
    #[must_use]
    pub fn step_time_s(
        &self,
        gpu_type: &GpuType,
        placement: &[u32],
        per_gpu: f64,
        accumulation: u32,
    ) -> Option<f64> {
        if !(per_gpu.is_finite() && per_gpu > 0.0) {
            return None;
        }
        let times = self.application.step_times(gpu_type)?;
        let area = self.width * self.width;
        let StepTime { step_s, sync_s } = times.anywhere(placement, per_gpu * area)?;
        let time = StepTime { step_s: step_s - sync_s + area * sync_s, sync_s: area * sync_s };
        Some(time.with_accumulation_s(accumulation))
    }

    /// The noise scale of its gradients after some statistical epochs, as it was measured at the initial batch.
    #[must_use]
    pub fn noise(&self, epochs: f64) -> NoiseScale {
        self.noise_at(epochs, self.application.initial_batch())
    }

    /// The noise scale after some statistical epochs as it was measured at about this total batch: trainings at large
    /// batches have come elsewhere by then.
    #[must_use]
    pub fn noise_at(&self, epochs: f64, batch: u32) -> NoiseScale {
        let last = self.application.epochs();
        let epoch = (self.progress(epochs) * last as f64) as usize;
        self.application.noise(epoch.min(last - 1), batch)
    }

    /// `accuracy` and `loss` after some statistical epochs.
    ///
    /// They are **synthetic**: no measurement says how a network does with other parameters. The accuracy at the end is 95.5 %
    /// at most, with a little noise that `seed` decides on. It falls with the square of the distance, in decades, from the best
    /// value of
    ///
    /// | parameter | best | loses in a decade |
    /// |---|---|---|
    /// | `lr` / (1 - `momentum`) | 0.5 | 2 % below, 6 % above |
    /// | `weight_decay` | 5e-4 | 0.5 % below, 2 % above |
    /// | `annealing` | 0.03 | 0.4 % |
    /// | 1 - `momentum` | 0.1 | 0.4 % |
    /// | `width` | 64 | 10 % |
    ///
    /// These are also the defaults. The best width is the one that was measured, so that a search ends up where step times
    /// need not be extrapolated. On its way there the accuracy
    /// falls short by a part that decays with the square root of time, as the measured training of CIFAR-10 does. The loss is
    /// minus the logarithm of the accuracy.
    #[must_use]
    pub fn metrics(&self, epochs: f64) -> BTreeMap<String, f64> {
        let accuracy = self.surface.accuracy(self.progress(epochs), epochs);
        let names = Self::METRICS.map(str::to_owned);
        names.into_iter().zip([accuracy, -libm::log(accuracy)]).collect()
    }

    /// How many examples an epoch has.
    #[must_use]
    pub fn examples_per_epoch(&self) -> u64 {
        let application = self.application;
        let steps = application.progress_after(application.epochs()) / application.epochs() as f64;
        (steps * f64::from(application.initial_batch())).round() as u64
    }

    /// The batches that it may use on a GPU type, as far as its memory allows; none if nothing was measured there.
    #[must_use]
    pub fn batch_limits(&self, gpu_type: &GpuType) -> Option<BatchLimits> {
        let measured = self.application.batch_limits(gpu_type)?;
        let max = (f64::from(measured.per_gpu_max()) / self.width).floor().max(1.0) as u32;
        let mode = BatchMode::Adaptive { max: self.application.max_batch() };
        BatchLimits::new(measured.initial(), mode, measured.per_gpu_min().min(max), max).ok()
    }

    /// The same for trials that train at the same speeds.
    pub(super) const fn kind(&self) -> u64 {
        self.width.to_bits()
    }

    /// What it trains.
    #[must_use]
    pub const fn application(&self) -> &'static Application {
        self.application
    }

    /// How far it is, from 0 to 1.
    fn progress(&self, epochs: f64) -> f64 {
        (epochs / self.epochs).clamp(0.0, 1.0)
    }
}

/// What can be modelled.
pub(super) fn names() -> String {
    Application::all().iter().map(Application::name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cifar10(params: &Value) -> Modelled {
        Modelled::new("cifar10", params.as_object().unwrap(), 7, 100.0).unwrap()
    }

    fn a100() -> GpuType {
        GpuType::new("a100").unwrap()
    }

    /// Seconds of the whole training alone, with the best of some batches per GPU in every epoch.
    fn alone_s(trial: &Modelled, gpus: u32, batches: &[u32]) -> f64 {
        let mut seconds = 0.0;
        for epoch in 0..100 {
            let rate = |&per_gpu: &u32| {
                let (batch, initial) = (f64::from(gpus * per_gpu), 128.0);
                let noise = trial.noise_at(f64::from(epoch), gpus * per_gpu);
                batch * noise.efficiency(initial, batch)
                    / trial.step_time_s(&a100(), &[gpus], f64::from(per_gpu), 0).unwrap()
            };
            let best = batches.iter().map(rate).fold(0.0, f64::max);
            seconds += trial.examples_per_epoch() as f64 / best;
        }
        seconds
    }

    /// By hand from the profile: 100 epochs on 4 A100 at 128 per GPU, at the best fixed batch, and at an adaptive one.
    #[test]
    fn a_trial_takes_as_long_as_its_profile_says() {
        let trial = cifar10(&serde_json::json!({}));
        assert_eq!(trial.examples_per_epoch(), 50_001);
        let batches: Vec<u32> = (4..=128).map(|eighths| 8 * eighths).collect();
        let best_fixed = batches.iter().map(|batch| alone_s(&trial, 4, &[*batch])).fold(f64::MAX, f64::min);
        let times = [alone_s(&trial, 4, &[128]), best_fixed, alone_s(&trial, 4, &batches)];
        for (seconds, expected) in times.into_iter().zip([380.0, 233.0, 205.0]) {
            assert!((seconds / expected - 1.0).abs() < 0.01, "{times:?}");
        }
    }

    #[test]
    fn a_wider_network_computes_and_sends_more() {
        let trials = [32, 64, 128].map(|width| cifar10(&serde_json::json!({"width": width})));
        let [narrow, same, wide] = &trials;
        let time = |trial: &Modelled, per_gpu: f64| trial.step_time_s(&a100(), &[4], per_gpu, 0).unwrap();
        // What 256 examples of the wide one compute is as much as 1024 of the other, and its gradients are 4 times as large.
        let measured = same.application.step_time(&a100(), &[4], 1025).unwrap();
        assert!((time(wide, 1025.0 / 4.0) - (measured.pass_s() + 4.0 * measured.sync_s)).abs() < 1e-12);
        // What does not depend on the size of a step is the same for all.
        assert!(
            time(narrow, 8.0) > 0.9 * time(same, 8.0) && time(narrow, 2048.0) < 0.35 * time(same, 2048.0)
        );
        let max = trials.map(|trial| trial.batch_limits(&a100()).unwrap().per_gpu_max());
        assert_eq!(max, [8192, 4096, 2048]);
    }

    #[test]
    fn what_was_not_measured_goes_on() {
        let trial = cifar10(&serde_json::json!({}));
        let time = |placement: &[u32], per_gpu: f64| trial.step_time_s(&a100(), placement, per_gpu, 0);
        let close = |a: Option<f64>, b: f64| (a.unwrap() - b).abs() < 1e-9;
        assert!(close(time(&[1], 1.0), time(&[1], 32.0).unwrap()));
        assert!(close(time(&[8, 8, 8, 8], 64.0), time(&[8, 8], 64.0).unwrap()));
        assert!(close(time(&[16], 64.0), time(&[8], 64.0).unwrap()));
        let (one, two) = (time(&[4], 2051.0).unwrap(), time(&[4], 4102.0).unwrap());
        assert!((1.8..2.0).contains(&(two / one)), "{one} {two}");
        assert!(time(&[], 64.0).is_none() && time(&[1], 0.0).is_none() && time(&[1], f64::NAN).is_none());
        assert!(trial.step_time_s(&GpuType::new("h100").unwrap(), &[1], 64.0, 0).is_none());
        // On this number of nodes only averages were measured.
        let t4 = GpuType::new("t4").unwrap();
        let spread = trial.step_time_s(&t4, &[4; 8], 100.0, 0).unwrap();
        assert!(spread < trial.step_time_s(&t4, &[4; 8], 2000.0, 1).unwrap());
        assert!(trial.step_time_s(&t4, &[4; 20], 16.0, 0).is_some());
    }

    #[test]
    fn every_application_can_be_a_trial() {
        for application in Application::all() {
            let trial = Modelled::new(application.name(), &Map::new(), 0, 3.0).unwrap();
            for gpu_type in application.gpu_types() {
                assert!(trial.step_time_s(gpu_type, &[1], 16.0, 2).is_some_and(|seconds| seconds > 0.0));
                assert!(trial.batch_limits(gpu_type).is_some());
            }
            assert!(trial.noise(0.0) < trial.noise(3.0), "{application:?}");
            assert_eq!(trial.noise(3.0), trial.noise(99.0));
        }
        let error = Modelled::new("mnist", &Map::new(), 0, 3.0).unwrap_err().to_string();
        assert_eq!(
            error,
            "no measurements of `mnist`; expected one of bert, cifar10, deepspeech2, imagenet, ncf, yolov3"
        );
        assert!(Modelled::new("bert", &Map::new(), 0, 0.0).is_err());
    }
}
