//! A program that tunes a model of its own: all that `pollux-tune` can do, and the trainable `rings`.

use std::process::ExitCode;

use pollux_tune::{
    space::Params,
    worker::{BoxError, Dataset, Example, Optimizer, Registry, Schedule, Trainable},
};
use tch::{
    Tensor,
    nn::{self, Module},
};

/// A small network, with the hyper-parameters of a trial.
struct Rings {
    network: nn::Sequential,
    lr: f64,
    momentum: f64,
}

impl Rings {
    /// Called on every worker of a trial.
    fn new(root: &nn::Path, params: &Params) -> Result<Self, BoxError> {
        let width = params.int("width")?;
        let linear = |name: &str, inputs, outputs| {
            nn::linear(root / name, inputs, outputs, nn::LinearConfig::default())
        };
        let network = nn::seq()
            .add(linear("first", 2, width))
            .add_fn(Tensor::relu)
            .add(linear("second", width, width))
            .add_fn(Tensor::relu)
            .add(linear("classes", width, 2));
        Ok(Self { network, lr: params.float("lr")?, momentum: params.float("momentum")? })
    }
}

impl Trainable for Rings {
    fn optimizer(&self) -> Optimizer {
        Optimizer::sgd().momentum(self.momentum)
    }

    fn learning_rate(&self, schedule: Schedule) -> f64 {
        self.lr * schedule.cosine()
    }

    fn training_data(&self) -> Result<Box<dyn Dataset>, BoxError> {
        Ok(Box::new(Points { first: 0, count: 4000 }))
    }

    fn test_data(&self) -> Result<Option<Box<dyn Dataset>>, BoxError> {
        Ok(Some(Box::new(Points { first: 4000, count: 1000 })))
    }

    fn loss(&self, batch: &[Tensor]) -> Result<Tensor, BoxError> {
        Ok(self.network.forward(&batch[0]).cross_entropy_for_logits(&batch[1]))
    }

    fn evaluate(&self, batch: &[Tensor]) -> Result<Vec<(&'static str, Tensor)>, BoxError> {
        let classes = self.network.forward(&batch[0]).argmax(1, false);
        Ok(vec![("accuracy", classes.eq_tensor(&batch[1]))])
    }
}

/// Points of a square and the ring that each is in, 0 or 1. Put your own data set here.
struct Points {
    first: u32,
    count: u32,
}

impl Dataset for Points {
    fn len(&self) -> u32 {
        self.count
    }

    fn load(&mut self, examples: &[Example]) -> Result<Vec<Tensor>, BoxError> {
        let (mut points, mut rings) = (Vec::new(), Vec::new());
        for example in examples {
            let number = f64::from(self.first + example.index);
            // Multiples of irrational numbers fill the square evenly.
            let [x, y] = [0.754_877_666, 0.569_840_291].map(|step| (number * step).fract() * 2.0 - 1.0);
            points.extend([x as f32, y as f32]);
            rings.push((x.hypot(y) * 3.0) as i64 % 2);
        }
        Ok(vec![Tensor::from_slice(&points).view((-1, 2)), Tensor::from_slice(&rings)])
    }
}

fn main() -> ExitCode {
    pollux_tune::cli::main_with(&Registry::default().with("rings", Rings::new))
}
