//! Steps of an optimizer on one vector, with state that can be handed over.

use tch::{Kind, Tensor, no_grad};

use super::{
    Error, Optimizer, UpdateRule, Variable,
    flat::{FlatParameters, runs},
    gradient::squared_norm,
};
use crate::goodput;

/// The most vectors of state, each as long as the weights.
const MOST_STATE: usize = 16;

/// An optimizer with its state.
///
/// libtorch's own keep their state to themselves, where it could not be handed to another worker.
#[derive(Debug)]
pub(super) struct OptimizerState {
    rule: Optimizer,
    /// Momentum, the first and the second moments, or what a rule of the user's own remembers: as long as the weights each.
    pub(super) moments: Vec<Tensor>,
    /// Steps taken.
    pub(super) steps: u64,
    /// What gradients are weighted with before their norms are taken; see `precondition`.
    weighting: Option<Tensor>,
}

impl OptimizerState {
    pub(super) fn new(rule: Optimizer, flat: &FlatParameters) -> Result<Self, Error> {
        check(&rule)?;
        let count = match &rule {
            Optimizer::Sgd { momentum, .. } => usize::from(*momentum > 0.0),
            Optimizer::AdamW { .. } => 2,
            Optimizer::Own(rule) => rule.state(),
        };
        let zeros = |_| flat.weights.f_zeros_like().map_err(Error::from);
        let moments = (0..count).map(zeros).collect::<Result<_, _>>()?;
        Ok(Self { rule, moments, steps: 0, weighting: None })
    }

    /// The optimizer as the goodput engine knows it.
    pub(super) const fn kind(&self) -> goodput::Optimizer {
        match self.rule {
            Optimizer::Sgd { momentum: 0.0, .. } | Optimizer::Own(_) => goodput::Optimizer::Sgd,
            Optimizer::Sgd { .. } => goodput::Optimizer::MomentumSgd,
            Optimizer::AdamW { beta2, eps, .. } => goodput::Optimizer::AdamW { beta2, eps },
        }
    }

    /// What the gradients of the next step are to be weighted with for the noise scale; none where all weigh alike.
    pub(super) const fn weighting(&self) -> Option<&Tensor> {
        self.weighting.as_ref()
    }

    /// Takes a step along the gradients, which are scaled down to a norm if they are longer. It goes piece by piece: each is read from
    /// memory once for all operations.
    pub(super) fn step(
        &mut self,
        flat: &mut FlatParameters,
        learning_rate: f64,
        longest: Option<f64>,
    ) -> Result<(), Error> {
        self.steps += 1;
        no_grad(|| {
            let scale = longest.map(|longest| shortening(flat, longest)).transpose()?.flatten();
            if let Optimizer::Own(rule) = &self.rule {
                return self.step_by(rule.as_ref(), flat, learning_rate, scale);
            }
            for mut piece in flat.pieces()? {
                // Not in place: the next step may be compared with it as it was.
                piece.gradient = scaled(piece.gradient, scale)?;
                let weights = piece.of(&flat.weights)?;
                let moments = self.moments.iter().map(|moments| piece.of(moments));
                let mut moments = moments.collect::<Result<Vec<_>, _>>()?;
                self.rule.descend(weights, &piece.gradient, &mut moments, learning_rate, self.steps)?;
            }
            Ok(())
        })
    }

    /// The same by a rule of the user's own, variable by variable.
    fn step_by(
        &self,
        rule: &dyn UpdateRule,
        flat: &FlatParameters,
        learning_rate: f64,
        scale: Option<f64>,
    ) -> Result<(), Error> {
        let state = self.moments.iter().map(|vector| flat.windows(vector)).collect::<Result<Vec<_>, _>>()?;
        for (place, (name, weights, gradient)) in flat.by_name()?.into_iter().enumerate() {
            let state = state.iter().map(|windows| windows[place].shallow_clone()).collect();
            let mut variable = Variable { name, weights, gradient: scaled(gradient, scale)?, state };
            rule.update(&mut variable, learning_rate, self.steps)
                .map_err(|source| Error::User { what: "the optimizer", source })?;
        }
        Ok(())
    }

    /// Brings the weighting up to date, before the gradients of the next step are measured.
    pub(super) fn precondition(&mut self) -> Result<(), Error> {
        let goodput::Preconditioner::InverseRms { bias_correction2, eps } =
            self.kind().preconditioner(self.steps)?
        else {
            return Ok(());
        };
        let Some(second) = self.moments.get(1) else {
            return Err(Error::Protocol("AdamW without its second moments".to_owned()));
        };
        no_grad(|| {
            // In place: the reducer holds on to it.
            let weighting = match self.weighting.take() {
                Some(weighting) => weighting,
                None => second.f_zeros_like()?,
            };
            for (start, length) in runs(second) {
                let mut root =
                    second.f_narrow(0, start, length)?.f_div_scalar(bias_correction2)?.f_sqrt_()?;
                let weights = root.f_add_scalar_(eps)?.f_reciprocal_()?;
                weighting.f_narrow(0, start, length)?.f_copy_(&weights)?;
            }
            self.weighting = Some(weighting);
            Ok(())
        })
    }

    /// Whether norms have another unit from now on than before the last step.
    pub(super) const fn changes_unit(&self) -> bool {
        self.kind().changes_unit(self.steps)
    }
}

impl Optimizer {
    /// One step of some elements.
    fn descend(
        &self,
        mut weights: Tensor,
        gradients: &Tensor,
        moments: &mut [Tensor],
        learning_rate: f64,
        steps: u64,
    ) -> Result<(), Error> {
        match (self, moments) {
            (&Self::Sgd { weight_decay, .. }, []) => {
                let _ = weights.f_mul_scalar_(1.0 - learning_rate * weight_decay)?;
                let _ = weights.f_addcmul_(gradients, &scalar(&weights, -learning_rate)?)?;
            }
            // The first step has the whole gradient as its momentum, as in PyTorch: zero times the factor is zero.
            (&Self::Sgd { momentum, nesterov, weight_decay }, [velocity]) => {
                // Neither the gradient nor a copy of it is written to.
                let decay = scalar(&weights, weight_decay)?;
                let _ = velocity.f_mul_scalar_(momentum)?.f_add_(gradients)?;
                if weight_decay > 0.0 {
                    let _ = velocity.f_addcmul_(&weights, &decay)?;
                }
                let rate = scalar(&weights, -learning_rate)?;
                if nesterov {
                    let mut ahead = velocity.f_mul_scalar(momentum)?.f_add_(gradients)?;
                    let _ = ahead.f_addcmul_(&weights, &decay)?;
                    let _ = weights.f_addcmul_(&ahead, &rate)?;
                } else {
                    let _ = weights.f_addcmul_(velocity, &rate)?;
                }
            }
            (&Self::AdamW { beta1, beta2, eps, weight_decay }, [first, second]) => {
                let _ = weights.f_mul_scalar_(1.0 - learning_rate * weight_decay)?;
                let _ = first.f_lerp_(gradients, 1.0 - beta1)?;
                let part = gradients.f_mul_scalar(1.0 - beta2)?;
                let _ = second.f_mul_scalar_(beta2)?.f_addcmul_(&part, gradients)?;
                let corrections = [beta1, beta2].map(|beta| 1.0 - libm::pow(beta, steps as f64));
                let spread = second.f_div_scalar(corrections[1])?.f_sqrt_()?.f_add_scalar_(eps)?;
                let step = first.f_mul_scalar(-learning_rate / corrections[0])?;
                let _ = weights.f_addcdiv_(&step, &spread)?;
            }
            (rule, moments) => {
                return Err(Error::Protocol(format!("{rule:?} with {} vectors of state", moments.len())));
            }
        }
        Ok(())
    }
}

/// What gradients are multiplied with so that they are not longer; none if they are not.
fn shortening(flat: &FlatParameters, longest: f64) -> Result<Option<f64>, Error> {
    if !(longest > 0.0 && longest.is_finite()) {
        return Err(Error::Unfit(format!(
            "the longest gradient is {longest}; expected a finite number above 0"
        )));
    }
    let norm = squared_norm(&flat.pieces()?, None)?.sqrt();
    Ok((norm > longest).then(|| longest / norm))
}

fn scaled(gradient: Tensor, scale: Option<f64>) -> Result<Tensor, Error> {
    Ok(match scale {
        Some(scale) => gradient.f_mul_scalar(scale)?,
        None => gradient,
    })
}

fn check(rule: &Optimizer) -> Result<(), Error> {
    let unit = |name, value: f64| {
        let wrong = || Error::Unfit(format!("{name} is {value}; expected 0 to below 1"));
        (0.0..1.0).contains(&value).then_some(()).ok_or_else(wrong)
    };
    let positive = |name, value: f64| {
        let wrong = || Error::Unfit(format!("{name} is {value}; expected a finite number from 0"));
        (value >= 0.0 && value.is_finite()).then_some(()).ok_or_else(wrong)
    };
    match *rule {
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
        Optimizer::Own(ref rule) => {
            let count = rule.state();
            let wrong = || {
                Error::Unfit(format!(
                    "the optimizer remembers {count} tensors for each variable; expected at most {MOST_STATE}"
                ))
            };
            (count <= MOST_STATE).then_some(()).ok_or_else(wrong)
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
    fn compare(ours: &Optimizer, theirs: impl Fn(&nn::VarStore) -> nn::Optimizer) {
        let slope = |x: &Tensor| (x * x * Tensor::from_slice(&[1.0_f32, 3.0, 0.1])).sum(Kind::Float);
        let start = Tensor::from_slice(&[1.0_f32, -2.0, 3.0]);
        let reference = nn::VarStore::new(Device::Cpu);
        let expected = reference.root().var_copy("x", &start);
        let mut optimizer = theirs(&reference);
        let store = nn::VarStore::new(Device::Cpu);
        let found = store.root().var_copy("x", &start);
        let mut flat = FlatParameters::new(&store).expect("a model");
        let mut descent = OptimizerState::new(ours.clone(), &flat).expect("a rule");
        for _ in 0..10 {
            optimizer.backward_step(&slope(&expected));
            flat.backward(&slope(&found)).expect("a pass");
            descent.step(&mut flat, 0.05, None).expect("a step");
        }
        let difference = (&found - &expected).abs().max().double_value(&[]);
        assert!(difference < 1e-6, "{ours:?} is off by {difference}");
        assert!((&found - &start).abs().max().double_value(&[]) > 0.1, "it has moved");
    }

    #[test]
    fn sgd_is_that_of_libtorch() {
        for (momentum, nesterov, weight_decay) in [(0.0, false, 0.0), (0.9, false, 0.01), (0.8, true, 0.1)] {
            compare(&Optimizer::Sgd { momentum, nesterov, weight_decay }, |store| {
                let config = nn::Sgd { momentum, dampening: 0.0, wd: weight_decay, nesterov };
                config.build(store, 0.05).expect("an optimizer")
            });
        }
    }

    #[test]
    fn adamw_is_that_of_libtorch() {
        let rule = Optimizer::AdamW { beta1: 0.8, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
        compare(&rule, |store| nn::adamw(0.8, 0.95, 0.1).build(store, 0.05).expect("an optimizer"));
    }

    /// SGD with momentum and weight decay, by hand.
    #[derive(Debug)]
    struct Heavy;

    impl UpdateRule for Heavy {
        fn state(&self) -> usize {
            1
        }

        fn update(
            &self,
            variable: &mut Variable<'_>,
            learning_rate: f64,
            step: u64,
        ) -> Result<(), crate::worker::BoxError> {
            let Variable { name, weights, gradient, state } = variable;
            assert_eq!((*name, step > 0, weights.size()), ("x", true, vec![3]));
            let _ = state[0].f_mul_scalar_(0.9)?.f_add_(&(&*gradient + &*weights * 0.01))?;
            let _ = weights.f_sub_(&(&state[0] * learning_rate))?;
            Ok(())
        }
    }

    #[test]
    fn an_own_rule_has_its_variables_and_its_state() {
        compare(&Optimizer::own(Heavy), |store| {
            let config = nn::Sgd { momentum: 0.9, dampening: 0.0, wd: 0.01, nesterov: false };
            config.build(store, 0.05).expect("an optimizer")
        });
    }

    #[test]
    fn long_gradients_are_scaled_down_and_stay_as_they_were_for_others() {
        #[derive(Debug)]
        struct Greedy;
        impl UpdateRule for Greedy {
            fn state(&self) -> usize {
                17
            }
            fn update(&self, _: &mut Variable<'_>, _: f64, _: u64) -> Result<(), crate::worker::BoxError> {
                Ok(())
            }
        }
        let store = nn::VarStore::new(Device::Cpu);
        let a = store.root().var_copy("a", &Tensor::from_slice(&[1.0_f32, 1.0]));
        let b = store.root().var_copy("b", &Tensor::from_slice(&[1.0_f32]));
        let mut flat = FlatParameters::new(&store).expect("a model");
        let numbers = |tensor: &Tensor| Vec::<f32>::try_from(tensor).expect("numbers");
        // The gradient is (3, 0, 4), of length 5.
        let loss = || &a.get(0) * 3.0 + &a.get(1) * 0.0 + &b.get(0) * 4.0;
        for (longest, expected) in [(10.0, ([-2.0, 1.0], [-3.0])), (1.0, ([-2.6, 1.0], [-3.8]))] {
            let mut descent = OptimizerState::new(Optimizer::sgd(), &flat).expect("a rule");
            flat.backward(&loss()).expect("a pass");
            descent.step(&mut flat, 1.0, Some(longest)).expect("a step");
            let near = |found: Vec<f32>, expected: &[f32]| {
                found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5)
            };
            assert!(near(numbers(&a), &expected.0) && near(numbers(&b), &expected.1), "{longest}");
            let kept = flat.fresh().expect("they are kept");
            assert_eq!(numbers(&kept[0]), [3.0, 0.0], "what gradients are compared with");
        }
        let mut descent = OptimizerState::new(Optimizer::sgd(), &flat).expect("a rule");
        let error = descent.step(&mut flat, 1.0, Some(f64::NAN)).expect_err("no length").to_string();
        assert!(error.starts_with("the longest gradient is NaN"), "{error}");
        let error = OptimizerState::new(Optimizer::own(Greedy), &flat).expect_err("too much").to_string();
        assert!(error.contains("remembers 17 tensors"), "{error}");
    }

    #[test]
    fn the_weighting_is_the_preconditioner_of_the_engine() {
        let store = nn::VarStore::new(Device::Cpu);
        let x = store.root().var_copy("x", &Tensor::from_slice(&[1.0_f32, -2.0, 3.0]));
        let mut flat = FlatParameters::new(&store).expect("a model");
        let mut descent = OptimizerState::new(Optimizer::adamw(), &flat).expect("a rule");
        let mut changes = Vec::new();
        for _ in 0..8 {
            flat.backward(&(&x * &x).sum(Kind::Float)).expect("a pass");
            descent.step(&mut flat, 0.01, None).expect("a step");
            descent.precondition().expect("a weighting");
            changes.push(descent.changes_unit());
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
