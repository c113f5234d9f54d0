//! Steps of SGD and `AdamW` on one vector, with state that can be handed over.

use tch::{Kind, Tensor, no_grad};

use super::{Optimizer, error::Error, flat::Flat};
use crate::goodput;

/// An optimizer with its state.
///
/// libtorch's own keep their state to themselves, where it could not be handed to another worker.
#[derive(Debug)]
pub(super) struct Descent {
    rule: Optimizer,
    /// Momentum, or the first and the second moments: as long as the weights each.
    pub(super) moments: Vec<Tensor>,
    /// Steps taken.
    pub(super) steps: u64,
    /// What gradients are weighted with before their norms are taken; see `precondition`.
    weighting: Option<Tensor>,
}

impl Descent {
    pub(super) fn new(rule: Optimizer, flat: &Flat) -> Result<Self, Error> {
        check(rule)?;
        let count = match rule {
            Optimizer::Sgd { momentum, .. } => usize::from(momentum > 0.0),
            Optimizer::AdamW { .. } => 2,
        };
        let zeros = |_| flat.weights.f_zeros_like().map_err(Error::from);
        let moments = (0..count).map(zeros).collect::<Result<_, _>>()?;
        Ok(Self { rule, moments, steps: 0, weighting: None })
    }

    /// The optimizer as the goodput engine knows it.
    pub(super) const fn kind(&self) -> goodput::Optimizer {
        match self.rule {
            Optimizer::Sgd { momentum: 0.0, .. } => goodput::Optimizer::Sgd,
            Optimizer::Sgd { .. } => goodput::Optimizer::MomentumSgd,
            Optimizer::AdamW { beta2, eps, .. } => goodput::Optimizer::AdamW { beta2, eps },
        }
    }

    /// What the gradients of the next step are to be weighted with for the noise scale; none where all weigh alike.
    pub(super) const fn weighting(&self) -> Option<&Tensor> {
        self.weighting.as_ref()
    }

    /// Takes a step along the gradients, which it may change.
    pub(super) fn step(&mut self, flat: &mut Flat, learning_rate: f64) -> Result<(), Error> {
        self.steps += 1;
        no_grad(|| match self.rule {
            Optimizer::Sgd { momentum, nesterov, weight_decay } => {
                self.sgd(flat, learning_rate, momentum, nesterov, weight_decay)
            }
            Optimizer::AdamW { beta1, beta2, eps, weight_decay } => {
                self.adamw(flat, learning_rate, [beta1, beta2], eps, weight_decay)
            }
        })
    }

    fn sgd(
        &mut self,
        flat: &mut Flat,
        learning_rate: f64,
        momentum: f64,
        nesterov: bool,
        weight_decay: f64,
    ) -> Result<(), Error> {
        if weight_decay > 0.0 {
            let _ = flat.gradients.f_addcmul_(&flat.weights, &scalar(&flat.weights, weight_decay)?)?;
        }
        let rate = scalar(&flat.weights, -learning_rate)?;
        let Some(velocity) = self.moments.first_mut() else {
            let _ = flat.weights.f_addcmul_(&flat.gradients, &rate)?;
            return Ok(());
        };
        // The first step has the whole gradient as its momentum, as in PyTorch: zero times the factor is zero.
        let _ = velocity.f_mul_scalar_(momentum)?.f_add_(&flat.gradients)?;
        if nesterov {
            let _ = flat.gradients.f_addcmul_(velocity, &scalar(&flat.weights, momentum)?)?;
            let _ = flat.weights.f_addcmul_(&flat.gradients, &rate)?;
        } else {
            let _ = flat.weights.f_addcmul_(velocity, &rate)?;
        }
        Ok(())
    }

    fn adamw(
        &mut self,
        flat: &mut Flat,
        learning_rate: f64,
        [beta1, beta2]: [f64; 2],
        eps: f64,
        weight_decay: f64,
    ) -> Result<(), Error> {
        let [first, second] = &mut self.moments[..] else {
            return Err(Error::Protocol("AdamW without its two moments".to_owned()));
        };
        if weight_decay > 0.0 {
            let _ = flat.weights.f_mul_scalar_(1.0 - learning_rate * weight_decay)?;
        }
        let _ = first.f_lerp_(&flat.gradients, 1.0 - beta1)?;
        let part = scalar(&flat.weights, 1.0 - beta2)?;
        let _ = second.f_mul_scalar_(beta2)?.f_addcmul_(&flat.gradients.f_mul(&part)?, &flat.gradients)?;
        let corrections = [beta1, beta2].map(|beta| 1.0 - libm::pow(beta, self.steps as f64));
        let spread = second.f_div_scalar(corrections[1])?.f_sqrt_()?.f_add_scalar_(eps)?;
        let step = first.f_mul_scalar(-learning_rate / corrections[0])?;
        let _ = flat.weights.f_addcdiv_(&step, &spread)?;
        Ok(())
    }

    /// Brings the weighting up to date, after a step or a hand-over. Says whether norms now have another unit than before.
    pub(super) fn precondition(&mut self) -> Result<bool, Error> {
        let kind = self.kind();
        if let goodput::Preconditioner::InverseRms { bias_correction2, eps } =
            kind.preconditioner(self.steps)?
        {
            let Some(second) = self.moments.get(1) else {
                return Err(Error::Protocol("AdamW without its second moments".to_owned()));
            };
            let fresh = no_grad(|| {
                second.f_div_scalar(bias_correction2)?.f_sqrt_()?.f_add_scalar_(eps)?.f_reciprocal_()
            })?;
            match &mut self.weighting {
                // In place: the reducer holds on to it.
                Some(weighting) => no_grad(|| weighting.f_copy_(&fresh).map(drop))?,
                None => self.weighting = Some(fresh),
            }
        }
        Ok(kind.changes_unit(self.steps))
    }
}

fn check(rule: Optimizer) -> Result<(), Error> {
    let unit = |name, value: f64| {
        let wrong = || Error::Unfit(format!("{name} is {value}; allowed is 0 to below 1"));
        (0.0..1.0).contains(&value).then_some(()).ok_or_else(wrong)
    };
    let positive = |name, value: f64| {
        let wrong = || Error::Unfit(format!("{name} is {value}; allowed is a finite number from 0"));
        (value >= 0.0 && value.is_finite()).then_some(()).ok_or_else(wrong)
    };
    match rule {
        Optimizer::Sgd { momentum, weight_decay, .. } => {
            unit("the momentum", momentum)?;
            positive("the weight decay", weight_decay)
        }
        Optimizer::AdamW { beta1, beta2, eps, weight_decay } => {
            unit("beta1", beta1)?;
            unit("beta2", beta2)?;
            positive("eps", eps)?;
            positive("the weight decay", weight_decay)
        }
    }
}

/// A factor for `addcmul`, which takes no plain number.
fn scalar(like: &Tensor, value: f64) -> Result<Tensor, Error> {
    Ok(Tensor::f_full([], value, (Kind::Float, like.device()))?)
}

#[cfg(test)]
mod tests {
    use tch::{
        Device,
        nn::{self, OptimizerConfig},
    };

    use super::*;

    /// The same ten steps by our optimizer and by libtorch's, on a small bowl.
    fn compare(ours: Optimizer, theirs: impl Fn(&nn::VarStore) -> nn::Optimizer) {
        let slope = |x: &Tensor| (x * x * Tensor::from_slice(&[1.0_f32, 3.0, 0.1])).sum(Kind::Float);
        let start = Tensor::from_slice(&[1.0_f32, -2.0, 3.0]);
        let reference = nn::VarStore::new(Device::Cpu);
        let expected = reference.root().var_copy("x", &start);
        let mut optimizer = theirs(&reference);
        let store = nn::VarStore::new(Device::Cpu);
        let found = store.root().var_copy("x", &start);
        let mut flat = Flat::new(&store).expect("a model");
        let mut descent = Descent::new(ours, &flat).expect("a rule");
        for _ in 0..10 {
            optimizer.backward_step(&slope(&expected));
            flat.clear_gradients().expect("zeros");
            slope(&found).backward();
            descent.step(&mut flat, 0.05).expect("a step");
        }
        let difference = (&found - &expected).abs().max().double_value(&[]);
        assert!(difference < 1e-6, "{ours:?} is off by {difference}");
        assert!((&found - &start).abs().max().double_value(&[]) > 0.1, "it has moved");
    }

    #[test]
    fn sgd_is_that_of_libtorch() {
        for (momentum, nesterov, weight_decay) in [(0.0, false, 0.0), (0.9, false, 0.01), (0.8, true, 0.1)] {
            compare(Optimizer::Sgd { momentum, nesterov, weight_decay }, |store| {
                let config = nn::Sgd { momentum, dampening: 0.0, wd: weight_decay, nesterov };
                config.build(store, 0.05).expect("an optimizer")
            });
        }
    }

    #[test]
    fn adamw_is_that_of_libtorch() {
        let rule = Optimizer::AdamW { beta1: 0.8, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
        compare(rule, |store| nn::adamw(0.8, 0.95, 0.1).build(store, 0.05).expect("an optimizer"));
    }

    #[test]
    fn the_weighting_is_the_preconditioner_of_the_engine() {
        let store = nn::VarStore::new(Device::Cpu);
        let x = store.root().var_copy("x", &Tensor::from_slice(&[1.0_f32, -2.0, 3.0]));
        let mut flat = Flat::new(&store).expect("a model");
        let mut descent = Descent::new(Optimizer::adamw(), &flat).expect("a rule");
        let mut changes = Vec::new();
        for _ in 0..8 {
            flat.clear_gradients().expect("zeros");
            (&x * &x).sum(Kind::Float).backward();
            descent.step(&mut flat, 0.01).expect("a step");
            changes.push(descent.precondition().expect("a weighting"));
        }
        // The unit changes once, when the second moments begin to mean something.
        assert_eq!(changes, [false, false, false, false, true, false, false, false]);
        let second: Vec<f32> = Vec::try_from(descent.moments[1].narrow(0, 0, 3)).expect("numbers");
        let weights: Vec<f32> =
            Vec::try_from(descent.weighting().expect("one").narrow(0, 0, 3)).expect("numbers");
        let engine = descent.kind().preconditioner(8).expect("settings are fine");
        for (weight, moment) in weights.into_iter().zip(second) {
            let expected = engine.factor(f64::from(moment));
            assert!((f64::from(weight) / expected - 1.0).abs() < 1e-5);
        }
    }
}
