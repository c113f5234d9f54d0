//! A program with a trainable of your own: it knows `cifar10-cnn`, the small network below, and all that `pollux-tune` can do.
//!
//! ```sh
//! make cifar10
//! scripts/with-libtorch.sh cargo run --release --features torch --example cifar10 -- train cifar10-cnn -p lr=0.02
//! ```

use std::process::ExitCode;

use pollux_tune::{
    space::Params,
    worker::{BoxError, Dataset, Optimizer, Registry, Schedule, Trainable, builtin::Cifar10Images},
};
use tch::{Tensor, nn, nn::ModuleT};

const TRAINING_IMAGES: usize = 50_000;
const TEST_IMAGES: usize = 10_000;

/// Two convolutions and a linear layer, with the hyper-parameters of a trial.
struct SmallCnn {
    network: nn::SequentialT,
    lr: f64,
    momentum: f64,
}

impl SmallCnn {
    /// Called on every worker of a trial: the variables are created in the same order everywhere.
    fn new(root: &nn::Path, params: &Params) -> Result<Self, BoxError> {
        let channels = params.get("channels").map_or(Ok(16), |_| params.int("channels"))?;
        if !(1..=256).contains(&channels) {
            return Err(format!("`channels` is {channels}; expected 1 to 256").into());
        }
        let conv = |name: &str, inputs, outputs| {
            let config = nn::ConvConfig { padding: 1, ..Default::default() };
            nn::conv2d(root / name, inputs, outputs, 3, config)
        };
        let network = nn::seq_t()
            .add(conv("first", 3, channels))
            .add_fn(|images| images.relu().max_pool2d_default(2))
            .add(conv("second", channels, 2 * channels))
            .add_fn(|features| features.relu().max_pool2d_default(2).flatten(1, -1))
            .add(nn::linear(root / "classes", 2 * channels * 8 * 8, 10, nn::LinearConfig::default()));
        Ok(Self {
            network,
            lr: params.float("lr")?,
            momentum: params.get("momentum").map_or(Ok(0.9), |_| params.float("momentum"))?,
        })
    }
}

impl Trainable for SmallCnn {
    fn optimizer(&self) -> Optimizer {
        Optimizer::sgd().momentum(self.momentum)
    }

    fn learning_rate(&self, schedule: Schedule) -> f64 {
        self.lr * schedule.cosine()
    }

    fn training_data(&self) -> Result<Box<dyn Dataset>, BoxError> {
        Ok(Box::new(Cifar10Images::training(TRAINING_IMAGES)?))
    }

    fn test_data(&self) -> Result<Option<Box<dyn Dataset>>, BoxError> {
        Ok(Some(Box::new(Cifar10Images::test(TEST_IMAGES)?)))
    }

    fn loss(&self, batch: &[Tensor]) -> Result<Tensor, BoxError> {
        Ok(self.network.forward_t(&batch[0], true).cross_entropy_for_logits(&batch[1]))
    }

    fn evaluate(&self, batch: &[Tensor]) -> Result<Vec<(&'static str, Tensor)>, BoxError> {
        let classes = self.network.forward_t(&batch[0], false).argmax(1, false);
        Ok(vec![("accuracy", classes.eq_tensor(&batch[1]))])
    }
}

fn main() -> ExitCode {
    pollux_tune::cli::main_with(&Registry::builtin().with("cifar10-cnn", SmallCnn::new))
}
