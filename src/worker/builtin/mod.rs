//! Trainables that `pollux-tune` comes with, and their parts for trainables of your own.

mod cifar10;
mod resnet;

pub use self::{cifar10::Cifar10Images, resnet::resnet18};
use super::Registry;
use crate::space::TrainableSpec;

impl Registry {
    /// The trainables of `pollux-tune` itself: `cifar10`, a `ResNet18` with the hyper-parameters `lr`, `annealing`, `momentum`,
    /// `weight_decay`, `width` and `examples`.
    #[must_use]
    pub fn builtin() -> Self {
        let spec = TrainableSpec::new("cifar10")
            .parameters(["lr", "annealing", "momentum", "weight_decay", "width", "examples"])
            .metrics(["accuracy", "loss"]);
        Self::default().with("cifar10", cifar10::Cifar10::new).describe(spec)
    }
}
