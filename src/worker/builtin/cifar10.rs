use std::{env, fs, path::PathBuf};

use rand::RngExt;
use tch::{Tensor, nn, nn::ModuleT};

use super::resnet18;
use crate::{
    space::Params,
    worker::{BoxError, Dataset, Example, Optimizer, Schedule, Trainable},
};

const CLASSES: i64 = 10;
const SIDE: usize = 32;
const PIXELS: usize = SIDE * SIDE;
const IMAGE: usize = 3 * PIXELS;
/// Images are moved by at most this number of pixels.
const SHIFT: usize = 4;
/// Mean and spread of the three colours over the training images.
const COLOURS: [(f32, f32); 3] = [(0.4914, 0.2470), (0.4822, 0.2435), (0.4465, 0.2616)];

/// `ResNet18` on CIFAR-10 with the five hyper-parameters of the Pollux paper: learning rate, annealing, momentum, weight decay
/// and width.
pub(super) struct Cifar10 {
    network: nn::SequentialT,
    lr: f64,
    /// The part of the learning rate that is left at the end.
    annealing: f64,
    momentum: f64,
    weight_decay: f64,
    /// The number of training images to use.
    examples: usize,
}

impl Cifar10 {
    /// Makes the model. What is not given has its usual value.
    pub(super) fn new(root: &nn::Path, params: &Params) -> Result<Self, BoxError> {
        let float = |name, usual| params.get(name).map_or(Ok(usual), |_| params.float(name));
        let int = |name, usual| params.get(name).map_or(Ok(usual), |_| params.int(name));
        let width = int("width", 64)?;
        if !(1..=1024).contains(&width) {
            return Err(format!("the width is {width}; expected 1 to 1024").into());
        }
        Ok(Self {
            network: resnet18(root, width, CLASSES),
            lr: float("lr", 0.1)?,
            annealing: float("annealing", 0.0)?,
            momentum: float("momentum", 0.9)?,
            weight_decay: float("weight_decay", 5e-4)?,
            examples: usize::try_from(int("examples", 50_000)?)?,
        })
    }
}

impl Trainable for Cifar10 {
    fn optimizer(&self) -> Optimizer {
        Optimizer::sgd().momentum(self.momentum).weight_decay(self.weight_decay)
    }

    fn learning_rate(&self, schedule: Schedule) -> f64 {
        self.lr * (self.annealing + (1.0 - self.annealing) * schedule.cosine())
    }

    fn training_data(&self) -> Result<Box<dyn Dataset>, BoxError> {
        Ok(Box::new(Cifar10Images::training(self.examples)?))
    }

    fn test_data(&self) -> Result<Option<Box<dyn Dataset>>, BoxError> {
        Ok(Some(Box::new(Cifar10Images::test(self.examples)?)))
    }

    fn loss(&self, batch: &[Tensor]) -> Result<Tensor, BoxError> {
        Ok(self.network.forward_t(&batch[0], true).cross_entropy_for_logits(&batch[1]))
    }

    fn evaluate(&self, batch: &[Tensor]) -> Result<Vec<(&'static str, Tensor)>, BoxError> {
        let logits = self.network.forward_t(&batch[0], false);
        let loss = logits.cross_entropy_for_logits(&batch[1]) * batch[1].size()[0] as f64;
        Ok(vec![("accuracy", logits.argmax(1, false).eq_tensor(&batch[1])), ("loss", loss)])
    }
}

/// The images of CIFAR-10, as `make cifar10` fetches them. Training images are moved a little and mirrored every other time.
#[derive(Debug)]
pub struct Cifar10Images {
    /// The official binary form: a byte for the label, then red, green and blue of each pixel.
    bytes: Vec<u8>,
}

impl Cifar10Images {
    /// The first training images, 50 000 at most.
    pub fn training(max: usize) -> Result<Self, BoxError> {
        Self::read((1..=5).map(|batch| format!("data_batch_{batch}.bin")), max)
    }

    /// The first test images, 10 000 at most.
    pub fn test(max: usize) -> Result<Self, BoxError> {
        Self::read(["test_batch.bin".to_owned()], max)
    }

    fn read(names: impl IntoIterator<Item = String>, max: usize) -> Result<Self, BoxError> {
        let folder = folder();
        let mut bytes = Vec::new();
        for name in names {
            let path = folder.join(name);
            let read = fs::read(&path);
            bytes.extend(read.map_err(|error| {
                format!("cannot read {}: {error}; `make cifar10` gets the images", path.display())
            })?);
        }
        if bytes.is_empty() || bytes.len() % (IMAGE + 1) != 0 {
            return Err(format!("{} does not hold CIFAR-10 in its binary form", folder.display()).into());
        }
        bytes.truncate(max.max(1) * (IMAGE + 1));
        Ok(Self { bytes })
    }
}

/// Where `make cifar10` puts the images.
fn folder() -> PathBuf {
    let set = |name| env::var_os(name).map(PathBuf::from);
    set("CIFAR10").unwrap_or_else(|| {
        let base = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
        let cache = set("POLLUX_TUNE_CACHE").or_else(|| Some(base()?.join("pollux-tune")));
        cache.unwrap_or_default().join("cifar10")
    })
}

impl Dataset for Cifar10Images {
    fn len(&self) -> u32 {
        (self.bytes.len() / (IMAGE + 1)) as u32
    }

    fn load(&mut self, examples: &[Example]) -> Result<Vec<Tensor>, BoxError> {
        let mut labels = Vec::with_capacity(examples.len());
        let mut pixels = vec![0.0_f32; examples.len() * IMAGE];
        for (example, into) in examples.iter().zip(pixels.chunks_exact_mut(IMAGE)) {
            let image = &self.bytes[example.index as usize * (IMAGE + 1)..][..=IMAGE];
            labels.push(i64::from(image[0]));
            // The usual augmentation: moved a little, and mirrored every other time.
            let (down, right, mirror) = example.augment.clone().map_or((SHIFT, SHIFT, false), |mut rng| {
                (rng.random_range(0..=2 * SHIFT), rng.random_range(0..=2 * SHIFT), rng.random())
            });
            for (at, value) in into.iter_mut().enumerate() {
                let (colour, y, x) = (at / PIXELS, at % PIXELS / SIDE, at % SIDE);
                let x = if mirror { SIDE - 1 - x } else { x };
                let (y, x) = ((y + down).wrapping_sub(SHIFT), (x + right).wrapping_sub(SHIFT));
                let (mean, spread) = COLOURS[colour];
                let inside = y < SIDE && x < SIDE;
                // Outside of the image it is black.
                let byte = if inside { image[1 + colour * PIXELS + y * SIDE + x] } else { 0 };
                *value = (f32::from(byte) / 255.0 - mean) / spread;
            }
        }
        let images = Tensor::from_slice(&pixels).view([-1, 3, 32, 32]);
        Ok(vec![images, Tensor::from_slice(&labels)])
    }
}
