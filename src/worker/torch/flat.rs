//! All variables of a model, and all their gradients, as one vector each.
//!
//! The optimizer, the gradient statistics, hand-overs and checkpoints then work on a few long vectors instead of hundreds of short
//! ones: fewer kernels, fewer messages, no copies.

use std::{collections::BTreeMap, slice};

use tch::{Device, Kind, Tensor, nn, no_grad};

use super::Error;
use crate::worker::checkpoint;

/// Variables begin at multiples of this many elements.
const ALIGNMENT: i64 = checkpoint::ALIGNMENT.cast_signed();

/// This many elements of a vector are worked on at a time, by each thread: 256 kB. What one operation leaves in the cache of a core, the next
/// one finds there.
const PIECE: i64 = 1 << 16;

/// The variables of a model, which are windows into a few vectors.
#[derive(Debug)]
pub(super) struct FlatParameters {
    /// What is trained, in the order of the names.
    pub(super) weights: Tensor,
    /// The gradients of `weights`; backward passes of a reducer add to it.
    gradients: Tensor,
    /// The gradients of a single pass, each variable's as the pass has made it; none if they are in `gradients`.
    fresh: Option<Vec<Tensor>>,
    /// What is not trained but kept, such as the statistics of batch normalization.
    pub(super) buffers: Tensor,
    /// What is trained, as the model sees it.
    variables: Vec<Tensor>,
    layout: Layout,
}

/// Where each variable is. Two models of the same layout can take over each other's vectors.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Layout {
    /// Name, shape and whether it is trained.
    variables: Vec<(String, Vec<i64>, bool)>,
}

impl FlatParameters {
    /// Moves the variables of a store into vectors. The model that made them keeps working.
    pub(super) fn new(store: &nn::VarStore) -> Result<Self, Error> {
        // The store knows them in no particular order.
        let all: BTreeMap<String, Tensor> = store.variables().into_iter().collect();
        let mut layout = Layout::default();
        let (mut trained, mut kept) = (Vec::new(), Vec::new());
        for (name, tensor) in all {
            if tensor.kind() != Kind::Float {
                let kind = tensor.kind();
                return Err(Error::Unfit(format!(
                    "the variable `{name}` is of {kind:?}; only Float can be trained"
                )));
            }
            let trainable = tensor.requires_grad();
            layout.variables.push((name, tensor.size(), trainable));
            if trainable { &mut trained } else { &mut kept }.push(tensor);
        }
        if trained.is_empty() {
            return Err(Error::Unfit("the model has no variables to be trained".to_owned()));
        }
        let weights = gather(&mut trained, store.device())?;
        let buffers = gather(&mut kept, store.device())?;
        let gradients = weights.f_zeros_like()?;
        let flat = Self { weights, gradients, fresh: None, buffers, variables: trained, layout };
        flat.gather_gradients()?;
        Ok(flat)
    }

    /// Makes each variable's gradient a window, too: libtorch then adds to it in place.
    fn gather_gradients(&self) -> Result<(), Error> {
        // A gradient must exist before it can be given other memory.
        let mut sum = Tensor::f_zeros([], (Kind::Float, self.weights.device()))?;
        for variable in &self.variables {
            sum = sum.f_add(&variable.f_sum(Kind::Float)?.f_mul_scalar(0.0)?)?;
        }
        sum.f_backward()?;
        for (variable, window) in self.variables.iter().zip(windows(&self.gradients, &self.variables)?) {
            no_grad(|| variable.f_grad()?.f_set_data(&window))?;
        }
        Ok(())
    }

    /// What is trained, as the model sees it: for the reducer.
    pub(super) fn variables(&self) -> &[Tensor] {
        &self.variables
    }

    /// The parts of a vector as long as `weights` that belong to each variable.
    pub(super) fn windows(&self, of: &Tensor) -> Result<Vec<Tensor>, Error> {
        windows(of, &self.variables)
    }

    /// Where each variable is.
    pub(super) const fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn clear_gradients(&mut self) -> Result<(), Error> {
        self.fresh = None;
        let _ = self.gradients.f_zero_()?;
        Ok(())
    }

    /// A backward pass of a worker that is alone. Its gradients stay where the pass has made them: nothing has to be cleared before
    /// it, and nothing added up.
    pub(super) fn backward(&mut self, loss: &Tensor) -> Result<(), Error> {
        let made = Tensor::f_run_backward(&[loss], &self.variables, false, false)?;
        let flattened = |(gradient, variable): (Tensor, &Tensor)| {
            if gradient.defined() {
                gradient.f_reshape([-1])?.f_contiguous()
            } else {
                Tensor::f_zeros([numel(variable)], (Kind::Float, variable.device()))
            }
        };
        let made = made.into_iter().zip(&self.variables).map(flattened);
        self.fresh = Some(made.collect::<Result<_, _>>()?);
        Ok(())
    }

    /// After such a pass, one of several in a step: adds its gradients to those of the others.
    pub(super) fn add_up(&mut self, first: bool) -> Result<(), Error> {
        let Some(fresh) = self.fresh.take() else { return Ok(()) };
        no_grad(|| {
            for piece in cut(&fresh)? {
                let mut sum = piece.of(&self.gradients)?;
                if first {
                    sum.f_copy_(&piece.gradient)?;
                } else {
                    let _ = sum.f_add_(&piece.gradient)?;
                }
            }
            Ok(())
        })
    }

    /// The gradients of the last pass, if they are still on their own: to be compared with others.
    pub(super) fn fresh(&self) -> Option<Vec<Tensor>> {
        Some(self.fresh.as_ref()?.iter().map(Tensor::shallow_clone).collect())
    }

    /// Each variable that is trained, by its name: its weights, and its gradient of a step.
    pub(super) fn by_name(&self) -> Result<Vec<(&str, Tensor, Tensor)>, Error> {
        let names = self.layout.variables.iter().filter(|(.., trained)| *trained).map(|(name, ..)| name);
        let gradients = match &self.fresh {
            Some(fresh) => {
                let shaped = fresh.iter().zip(&self.variables);
                shaped
                    .map(|(gradient, of)| gradient.f_view(of.size().as_slice()))
                    .collect::<Result<_, _>>()?
            }
            None => windows(&self.gradients, &self.variables)?,
        };
        let all = names.zip(self.windows(&self.weights)?).zip(gradients);
        Ok(all.map(|((name, weights), gradient)| (name.as_str(), weights, gradient)).collect())
    }

    /// The gradients of a step, in pieces.
    pub(super) fn pieces(&self) -> Result<Vec<Piece>, Error> {
        match &self.fresh {
            Some(fresh) => cut(fresh),
            None => cut(slice::from_ref(&self.gradients)),
        }
    }
}

/// Cuts one gradient for each variable, or one vector of all of them, into pieces.
pub(super) fn cut(gradients: &[Tensor]) -> Result<Vec<Piece>, Error> {
    let mut pieces = Vec::new();
    let mut begin = 0;
    for gradient in gradients {
        for (start, length) in runs(gradient) {
            let gradient = gradient.f_narrow(0, start, length)?;
            pieces.push(Piece { start: begin + start, gradient });
        }
        begin += aligned(numel(gradient));
    }
    Ok(pieces)
}

/// Some of the elements of all vectors, with their gradients.
#[derive(Debug)]
pub(super) struct Piece {
    start: i64,
    pub(super) gradient: Tensor,
}

impl Piece {
    /// The same elements of another vector.
    pub(super) fn of(&self, vector: &Tensor) -> Result<Tensor, Error> {
        Ok(vector.f_narrow(0, self.start, numel(&self.gradient))?)
    }
}

/// Where pieces of a vector begin, and how long they are. A GPU takes all at once.
pub(super) fn runs(vector: &Tensor) -> impl Iterator<Item = (i64, i64)> + use<> {
    let length = numel(vector);
    let piece = match vector.device() {
        Device::Cpu => PIECE * i64::from(tch::get_num_threads().max(1)),
        _ => length.max(1),
    };
    (0..length).step_by(piece as usize).map(move |start| (start, piece.min(length - start)))
}

/// A copy that shares nothing with the original.
pub(super) fn copy(tensor: &Tensor, device: Device) -> Result<Tensor, Error> {
    Ok(no_grad(|| tensor.f_internal_to_copy((tensor.kind(), device), false))?)
}

fn aligned(elements: i64) -> i64 {
    (elements + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT
}

fn numel(tensor: &Tensor) -> i64 {
    tensor.size().iter().product()
}

/// One vector with the content of all tensors, of which they become windows.
fn gather(tensors: &mut [Tensor], device: Device) -> Result<Tensor, Error> {
    let total = tensors.iter().map(|tensor| aligned(numel(tensor))).sum::<i64>();
    let vector = Tensor::f_zeros([total], (Kind::Float, device))?;
    let windows = windows(&vector, tensors)?;
    for (tensor, mut window) in tensors.iter_mut().zip(windows) {
        no_grad(|| window.f_copy_(tensor))?;
        no_grad(|| tensor.f_set_data(&window))?;
    }
    Ok(vector)
}

fn windows(vector: &Tensor, tensors: &[Tensor]) -> Result<Vec<Tensor>, Error> {
    let mut start = 0;
    let cut = |tensor: &Tensor| {
        let length = numel(tensor);
        let window = vector.f_narrow(0, start, length)?.f_view(tensor.size().as_slice())?;
        start += aligned(length);
        Ok(window)
    };
    tensors.iter().map(cut).collect()
}

#[cfg(test)]
mod tests {
    use tch::nn::Module;

    use super::*;

    fn model() -> (nn::VarStore, nn::Linear, nn::BatchNorm) {
        tch::manual_seed(1);
        let store = nn::VarStore::new(Device::Cpu);
        let layer = nn::linear(store.root() / "layer", 3, 2, nn::LinearConfig::default());
        let norm = nn::batch_norm1d(store.root() / "norm", 2, nn::BatchNormConfig::default());
        (store, layer, norm)
    }

    fn numbers(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor.flatten(0, -1)).expect("numbers")
    }

    #[test]
    fn the_model_works_on_the_vectors() {
        let (store, layer, norm) = model();
        let before = numbers(&layer.ws);
        let mut flat = FlatParameters::new(&store).expect("a model");
        // layer.bias (2), layer.weight (6), norm.bias (2), norm.weight (2), each in 16.
        assert_eq!((flat.weights.size(), flat.buffers.size()), (vec![64], vec![32]));
        assert_eq!(numbers(&flat.weights.narrow(0, 16, 6)), before);

        let _ = no_grad(|| flat.weights.fill_(1.0));
        let x = Tensor::ones([4, 3], (Kind::Float, Device::Cpu));
        assert_eq!(numbers(&layer.forward(&x)), [4.0; 8]);

        // The gradient of a sum of outputs is the number of rows, for each weight.
        layer.forward(&x).sum(Kind::Float).backward();
        assert_eq!(numbers(&flat.gradients.narrow(0, 16, 6)), [4.0; 6]);
        layer.forward(&x).sum(Kind::Float).backward();
        assert_eq!(numbers(&flat.gradients.narrow(0, 16, 1)), [8.0]);
        flat.clear_gradients().expect("zeros");
        assert_eq!(numbers(&layer.ws.grad()), [0.0; 6]);

        // The running statistics of batch normalization are windows as well.
        let _ = tch::nn::ModuleT::forward_t(&norm, &(layer.forward(&x) * 1.0), true);
        assert!((flat.buffers.abs().sum(Kind::Float).double_value(&[]) - 2.0).abs() > 0.1);
    }

    #[test]
    fn what_cannot_be_trained_is_refused() {
        let store = nn::VarStore::new(Device::Cpu);
        let error = FlatParameters::new(&store).expect_err("nothing there").to_string();
        assert_eq!(error, "the model has no variables to be trained");
        let mut store = nn::VarStore::new(Device::Cpu);
        let _ = store.root().zeros("x", &[2]);
        store.double();
        let error = FlatParameters::new(&store).expect_err("doubles").to_string();
        assert_eq!(error, "the variable `x` is of Double; only Float can be trained");
    }
}
