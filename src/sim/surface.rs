//! How well a trial would do: made up. [`Modelled::metrics`](super::Modelled::metrics) describes it.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value};

/// The best accuracy at the end.
const PEAK: f64 = 0.955;
/// Of an answer without training.
const CHANCE: f64 = 0.1;
/// How fast training gets close to its end: on its way it falls short by about exp(-PACE sqrt(t)).
const PACE: f64 = 5.4;
/// Standard deviation of the accuracy at the end, and of each epoch at the beginning.
const NOISE: (f64, f64) = (0.001, 0.01);
/// The best width, which is the one that was measured.
const WIDTH: f64 = 64.0;

/// The accuracy of one trial.
#[derive(Debug, Clone)]
pub(super) struct Surface {
    width: f64,
    last: f64,
    seed: u64,
}

impl Surface {
    pub(super) fn new(params: &Map<String, Value>, seed: u64) -> Self {
        let value = |name: &str, default: f64| {
            let given = params.get(name).and_then(Value::as_f64);
            given.filter(|value| value.is_finite() && *value > 0.0).unwrap_or(default)
        };
        let rest = 1.0 - value("momentum", 0.9).min(0.999);
        let rate = value("lr", 0.05) / rest;
        let width = value("width", WIDTH);
        let lost = bend(rate / 0.5, 0.02, 0.06)
            + bend(value("weight_decay", 5e-4) / 5e-4, 0.005, 0.02)
            + bend(value("annealing", 0.03) / 0.03, 0.004, 0.004)
            + bend(rest / 0.1, 0.004, 0.004)
            + bend(width / WIDTH, 0.1, 0.1);
        let noise = NOISE.0 * normal(seed, 0);
        let last = (PEAK - lost + noise).clamp(CHANCE, 0.999);
        Self { width, last, seed }
    }

    pub(super) const fn width(&self) -> f64 {
        self.width
    }

    /// At some progress from 0 to 1, in an epoch.
    pub(super) fn accuracy(&self, progress: f64, epochs: f64) -> f64 {
        let end = libm::exp(-PACE);
        let short = (libm::exp(-PACE * libm::sqrt(progress)) - end) / (1.0 - end);
        let wobble = NOISE.1 * (1.0 - progress) * normal(self.seed, 1 + epochs.max(0.0) as u64);
        let accuracy = self.last - (self.last - CHANCE) * short + wobble * (1.0 - short);
        accuracy.clamp(0.01, 0.999)
    }
}

/// What is lost at a ratio to the best value: by the square of the decades, with what one costs below and above.
fn bend(ratio: f64, below: f64, above: f64) -> f64 {
    let decades = libm::log10(ratio);
    decades * decades * if decades < 0.0 { below } else { above }
}

/// A draw from the normal distribution (Box and Muller) that depends on nothing else.
fn normal(seed: u64, stream: u64) -> f64 {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(stream);
    let mut uniform = || ((rng.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    let (length, angle) = (libm::sqrt(-2.0 * libm::log(uniform())), std::f64::consts::TAU * uniform());
    length * libm::cos(angle)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the noise of the seed.
    fn last(params: &Value, seed: u64) -> f64 {
        Surface::new(params.as_object().unwrap(), seed).accuracy(1.0, 100.0) - NOISE.0 * normal(seed, 0)
    }

    #[test]
    fn the_accuracy_is_as_documented() {
        let best = serde_json::json!({"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4, "annealing": 0.03});
        let close = |params: &Value, expected: f64| {
            let found = last(params, 3);
            assert!((found - expected).abs() < 1e-12, "{params}: {found}");
        };
        close(&best, 0.955);
        close(&serde_json::json!({"unknown": [1, 2], "lr": "text", "momentum": -1}), 0.955);
        close(&serde_json::json!({"lr": 0.005}), 0.935);
        close(&serde_json::json!({"lr": 0.5}), 0.895);
        close(&serde_json::json!({"weight_decay": 5e-3}), 0.935);
        // As fast in all, with less momentum.
        close(&serde_json::json!({"lr": 0.5, "momentum": 0.0}), 0.895);
        close(&serde_json::json!({"width": 640}), 0.855);
        close(&serde_json::json!({"lr": 1e9, "width": 1e-9}), CHANCE - NOISE.0 * normal(3, 0));
    }

    #[test]
    fn a_seed_decides_on_the_noise() {
        let surface = |seed| Surface::new(&Map::new(), seed);
        let early = |seed| surface(seed).accuracy(0.2, 20.0);
        assert_eq!(early(1).to_bits(), early(1).to_bits());
        assert_ne!(early(1).to_bits(), early(2).to_bits());
        let draws: Vec<f64> = (0..4000).map(|seed| normal(seed, 5)).collect();
        let mean = draws.iter().sum::<f64>() / 4000.0;
        let spread = draws.iter().map(|draw| (draw - mean) * (draw - mean)).sum::<f64>() / 4000.0;
        assert!(mean.abs() < 0.05 && (spread - 1.0).abs() < 0.1, "{mean} {spread}");
    }

    /// ResNet-18 on CIFAR-10 at the initial batch: accuracy in epochs 14, 31, 46, 63 and 78 of 100.
    #[test]
    fn it_grows_as_a_measured_training_did() {
        let surface = Surface::new(&Map::new(), 0);
        let measured = [(0.15, 0.859), (0.32, 0.891), (0.47, 0.9214), (0.64, 0.9308), (0.79, 0.9423)];
        for (progress, accuracy) in measured {
            let expected = accuracy / 0.9451 * surface.last;
            let found = surface.accuracy(progress, 1.0) - NOISE.1 * (1.0 - progress) * normal(0, 2);
            assert!((found - expected).abs() < 0.035, "{progress}: {found} {expected}");
        }
    }
}
