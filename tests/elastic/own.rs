//! What a trainable brings of its own: an optimizer, a longest gradient, and hooks with an average of the weights that evaluations use.

use std::cell::Cell;

use pollux_tune::{
    space::Params,
    worker::{BoxError, Dataset, Optimizer, Schedule, StepTaken, Trainable, UpdateRule, Variable},
};
use serde_json::json;
use tch::{Tensor, nn};

use crate::{net::Net, rescale::rescaled};

/// SGD with momentum, and with a factor that it remembers.
#[derive(Debug)]
struct Slowing;

impl UpdateRule for Slowing {
    fn state(&self) -> usize {
        2
    }

    fn update(&self, variable: &mut Variable<'_>, learning_rate: f64, step: u64) -> Result<(), BoxError> {
        let Variable { weights, gradient, state, .. } = variable;
        let _ = state[0].f_mul_scalar_(0.9)?.f_add_(gradient)?;
        let _ = state[1].f_add_scalar_(1.0)?;
        // Who joins late knows the number of the step as well as the state.
        let counted = state[1].max().double_value(&[]);
        if (counted - step as f64).abs() > 0.5 {
            return Err(format!("step {step} came after {counted}").into());
        }
        let _ = weights.f_sub_(&(&state[0] * learning_rate / (1.0 + 0.01 * counted)))?;
        Ok(())
    }
}

pub(crate) struct Own {
    net: Net,
    weights: Tensor,
    average: Tensor,
    /// Whether the average is in the place of the weights.
    is_swapped: Cell<bool>,
}

impl Own {
    pub(crate) fn new(root: &nn::Path, params: &Params) -> Result<Self, BoxError> {
        let net = Net::new(root, params)?;
        let weights = (root / "last").get("weight").ok_or("there is no last layer")?;
        let average = root.zeros_no_train("average", &weights.size());
        Ok(Self { net, weights, average, is_swapped: Cell::new(false) })
    }

    fn swap(&mut self) -> Result<(), BoxError> {
        let before = self.weights.f_detach_copy()?;
        self.weights.f_copy_(&self.average)?;
        self.average.f_copy_(&before)?;
        self.is_swapped.set(!self.is_swapped.get());
        Ok(())
    }
}

impl Trainable for Own {
    fn optimizer(&self) -> Optimizer {
        Optimizer::own(Slowing)
    }

    fn max_gradient_norm(&self) -> Option<f64> {
        Some(0.5)
    }

    fn learning_rate(&self, schedule: Schedule) -> f64 {
        self.net.learning_rate(schedule)
    }

    fn training_data(&self) -> Result<Box<dyn Dataset>, BoxError> {
        self.net.training_data()
    }

    fn test_data(&self) -> Result<Option<Box<dyn Dataset>>, BoxError> {
        self.net.test_data()
    }

    fn loss(&self, batch: &[Tensor]) -> Result<Tensor, BoxError> {
        assert!(!self.is_swapped.get(), "training continues with its own weights");
        self.net.loss(batch)
    }

    fn after_step(&mut self, step: &StepTaken) -> Result<(), BoxError> {
        assert!(step.steps > 0 && step.rank < step.workers && step.schedule.epochs > 0.0, "{step:?}");
        let _ = self.average.f_lerp_(&self.weights, 0.1)?;
        Ok(())
    }

    fn before_evaluation(&mut self) -> Result<(), BoxError> {
        self.swap()
    }

    fn after_evaluation(&mut self) -> Result<(), BoxError> {
        self.swap()
    }

    fn evaluate(&self, batch: &[Tensor]) -> Result<Vec<(&'static str, Tensor)>, BoxError> {
        assert!(self.is_swapped.get(), "the average is evaluated");
        self.net.evaluate(batch)
    }
}

/// Its state is handed over, and each hook is called once for each step.
#[test]
fn what_a_trainable_brings_of_its_own_survives_a_rescale() {
    let plan: [(u64, &[u32]); 3] = [(20, &[0, 1]), (50, &[0]), (80, &[0, 1])];
    let groups = rescaled("own", &json!({"lr": 0.05}), &plan);
    assert_eq!(groups, [vec![0], vec![0, 1], vec![0], vec![0, 1]]);
}
