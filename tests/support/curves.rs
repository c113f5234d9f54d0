//! Synthetic learning curves that cross.

use pollux_tune::{
    ids::TrialId,
    space::{Dim, Dims, Point},
    tpe::{Random, Suggester},
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};

/// Statistical epochs of a full trial.
pub(crate) const EPOCHS: f64 = 81.0;

/// A loss over statistical epochs: a floor, and above it a part that goes with a power of the time trained.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LearningCurve {
    floor: f64,
    amplitude: f64,
    rate: f64,
}

impl LearningCurve {
    /// Two parameters shape the model, and are best somewhere in the middle. The learning rate trades speed for the floor, so
    /// curves cross; the last parameter makes the start better or worse without a meaning for the end.
    fn of(point: &Point) -> Self {
        let x: Vec<f64> = point.iter().map(|x| x.expect("all parameters are active")).collect();
        let model = 0.8 * (x[0] - 0.6).powi(2) + 0.6 * (x[1] - 0.3).powi(2);
        Self { floor: 0.3 + model + 0.25 * x[2] * x[2], amplitude: 1.5 + x[3], rate: 0.5 + 0.7 * x[2] }
    }

    pub(crate) fn at(&self, epochs: f64) -> f64 {
        self.floor + self.amplitude * (1.0 + epochs).powf(-self.rate)
    }

    /// With the noise of one evaluation, half a percent.
    pub(crate) fn measured(&self, epochs: f64, rng: &mut ChaCha8Rng) -> f64 {
        let noise = Normal::new(1.0, 0.005).expect("it is a distribution");
        self.at(epochs) * noise.sample(rng)
    }
}

/// Curves of points drawn at random.
pub(crate) fn family(trials: u32, seed: u64) -> Vec<LearningCurve> {
    let mut random = Random::new(Dims::flat(vec![Dim::Continuous; 4]).expect("it is a space"));
    let mut curve = |number: u32| {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed << 32 | u64::from(number));
        LearningCurve::of(&random.ask(TrialId(number), rng).expect("there are more points"))
    };
    (0..trials).map(&mut curve).collect()
}
