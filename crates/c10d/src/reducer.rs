//! DDP's gradient reducer: averages gradients over the ranks while the backward pass still runs.

use std::{fmt, ptr, ptr::NonNull};

use tch::Tensor;

use crate::{
    error::{Error, Result},
    ffi::{self, RawBucket, RawReducer, call, made},
    group::{ProcessGroup, pointers},
};

/// How a reducer packs gradients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReducerOptions {
    /// The size of the first bucket, in bytes. It is small so that the reduction begins early.
    pub first_bucket_bytes: usize,
    /// The size of the others, in bytes.
    pub bucket_bytes: usize,
    /// Whether some parameters may get no gradient in a step. It costs a walk through the graph in each.
    pub find_unused: bool,
    /// Average gradients over the ranks. Without it they are summed, for those who scale their losses themselves: that is one pass
    /// over the gradients less.
    pub average: bool,
    /// Take the norms of gradients. Without them a backward pass yields no [`BucketNorms`] and is a little faster.
    pub norms: bool,
}

impl Default for ReducerOptions {
    /// As PyTorch: 1 MiB, then 25 MiB each.
    fn default() -> ReducerOptions {
        ReducerOptions {
            first_bucket_bytes: 1 << 20,
            bucket_bytes: 25 << 20,
            find_unused: false,
            average: true,
            norms: true,
        }
    }
}

/// Averages the gradients of some parameters over all ranks of a group, bucket by bucket, while the backward pass goes on.
///
/// It is the reducer of PyTorch's `DistributedDataParallel`. Like that, it does not make parameters equal: use
/// [`ProcessGroup::broadcast_all`] first. It sets each parameter's gradient, so those of the last step are to be cleared
/// before the next begins.
///
/// Before a bucket is reduced, the squared norm of what is in it is taken. That is the gradient of this rank alone, whose size
/// next to that of the mean gives the gradient noise scale.
///
/// Like its group, a reducer stays in one thread. Dropping it takes its hooks off the parameters.
///
/// ```
/// use c10d::{GroupOptions, ProcessGroup, Reducer, ReducerOptions, Store};
/// use tch::{Device, Kind, Tensor};
///
/// let store = Store::host("127.0.0.1:0")?;
/// let group = ProcessGroup::form(&store, 0, 1, &GroupOptions::default())?;
/// let weight = Tensor::from_slice(&[1.0, 2.0]).set_requires_grad(true);
/// let mut reducer = Reducer::new(&group, &[weight.shallow_clone()], &ReducerOptions::default())?;
///
/// // One step of two micro-batches: the first stays local.
/// reducer.accumulate(&(&weight * 3.0).sum(Kind::Double))?;
/// let norms = reducer.backward(&weight.sum(Kind::Double))?;
/// assert_eq!(weight.grad(), Tensor::from_slice(&[4.0, 4.0]));
/// assert!((norms.local_sq() - 32.0).abs() < 1e-9);
/// # Ok::<(), c10d::Error>(())
/// ```
pub struct Reducer {
    // Goes before the group, which it uses.
    handle: Handle,
    group: ProcessGroup,
    parameters: Vec<Tensor>,
    takes_norms: bool,
}

/// An owned reducer of the shim.
struct Handle(NonNull<RawReducer>);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle owns the pointer, and this is the end of it.
        unsafe { ffi::c10d_reducer_free(self.0.as_ptr()) }
    }
}

impl Reducer {
    /// A reducer for these parameters, which all ranks give in the same order and shapes.
    pub fn new(group: &ProcessGroup, parameters: &[Tensor], options: &ReducerOptions) -> Result<Reducer> {
        const DURING: &str = "making a reducer";
        if parameters.is_empty() {
            return Err(Error::invalid(DURING, "there are no parameters"));
        }
        if let Some(at) = parameters.iter().position(|parameter| !parameter.requires_grad()) {
            return Err(Error::invalid(DURING, format!("parameter {at} requires no gradient")));
        }
        let bytes = |name: &str, bytes: usize| {
            let wrong = || Error::invalid(DURING, format!("{name} is {bytes}; expected 1 or more"));
            i64::try_from(bytes).ok().filter(|bytes| *bytes > 0).ok_or_else(wrong)
        };
        let first = bytes("first_bucket_bytes", options.first_bucket_bytes)?;
        let others = bytes("bucket_bytes", options.bucket_bytes)?;
        let pointers = pointers(parameters);
        let mut raw = ptr::null_mut();
        // SAFETY: the group and the parameters are alive, and so is the place for the result; the reducer takes references of
        // its own.
        group.run(DURING, |message| unsafe {
            ffi::c10d_reducer_new(
                group.raw(),
                pointers.as_ptr(),
                pointers.len(),
                first,
                others,
                options.find_unused,
                options.average,
                options.norms,
                &raw mut raw,
                message,
            )
        })?;
        let parameters = parameters.iter().map(Tensor::shallow_clone).collect();
        let takes_norms = options.norms;
        Ok(Reducer { handle: Handle(made(raw)), group: group.clone(), parameters, takes_norms })
    }

    /// Computes gradients, and averages (or sums) them over the ranks: what this pass computes, added to what was
    /// [accumulated](Reducer::accumulate) before it.
    ///
    /// After an error some gradients are averages and some are not: clear them all.
    pub fn backward(&mut self, loss: &Tensor) -> Result<GradNorms> {
        const DURING: &str = "backward pass";
        check_loss(DURING, loss)?;
        let ended = self.group.run(DURING, |message| {
            // SAFETY: the reducer and the loss are alive.
            unsafe { ffi::c10d_reducer_backward(self.handle.0.as_ptr(), loss.as_ptr().cast(), message) }
        });
        ended.map_err(|error| self.broken(error))?;
        self.norms()
    }

    /// Whether the backward passes from now on take norms. Those that do not are a little faster, and yield no [`BucketNorms`].
    pub fn measure(&mut self, norms: bool) -> Result<()> {
        const DURING: &str = "choosing passes to measure";
        if !self.takes_norms {
            let wrong = || Error::invalid(DURING, "the reducer was made without norms");
            return if norms { Err(wrong()) } else { Ok(()) };
        }
        // SAFETY: the reducer is alive, and no backward pass is under way: it would have borrowed it.
        self.group.run(DURING, |message| unsafe {
            ffi::c10d_reducer_measure(self.handle.0.as_ptr(), norms, message)
        })
    }

    /// Weighs gradients before their norms are taken, as Adam's noise scale wants it: element by element, with one tensor for
    /// each of the first parameters. Those without a weight do not count. Tensors are not copied: change them in place and
    /// the next backward pass sees it. The gradients themselves stay as they are. No weights at all is how it begins.
    pub fn weigh(&mut self, weights: &[Tensor]) -> Result<()> {
        const DURING: &str = "weighing gradients";
        let sizes = self.parameters.iter().map(Tensor::size);
        if weights.len() > self.parameters.len()
            || sizes.zip(weights).any(|(size, weight)| size != weight.size())
        {
            return Err(Error::invalid(DURING, "the weights do not have the shapes of the parameters"));
        }
        let pointers = pointers(weights);
        // SAFETY: the reducer and the weights are alive; the reducer takes references of its own.
        self.group.run(DURING, |message| unsafe {
            ffi::c10d_reducer_weigh(self.handle.0.as_ptr(), pointers.as_ptr(), pointers.len(), message)
        })
    }

    /// Computes gradients and adds them to those of this rank, without any communication: for all micro-batches of a step but
    /// the last. Losses are to be scaled so that their sum over the step is meant.
    pub fn accumulate(&mut self, loss: &Tensor) -> Result<()> {
        const DURING: &str = "local backward pass";
        check_loss(DURING, loss)?;
        self.group.check(DURING)?;
        // SAFETY: the loss is alive.
        call(|message| unsafe { ffi::c10d_reducer_accumulate(loss.as_ptr().cast(), message) })
            .map_err(|failure| Error::at_launch(DURING, failure))
    }

    /// A pass that broke off leaves the reducer in its midst, and peers that wait: whatever the reason, the group is over.
    fn broken(&self, error: Error) -> Error {
        let Error::Invalid { during, message } = error else { return error };
        self.group.fail(Error::Other { during, message })
    }

    fn norms(&self) -> Result<GradNorms> {
        const DURING: &str = "reading gradient norms";
        let read = |room: &mut [RawBucket]| {
            let mut count = 0;
            // SAFETY: the reducer is alive, and so are the places for results, as many as said.
            self.group.run(DURING, |message| unsafe {
                let (reducer, first) = (self.handle.0.as_ptr(), room.as_mut_ptr());
                ffi::c10d_reducer_buckets(reducer, first, room.len(), &raw mut count, message)
            })?;
            Ok(count)
        };
        let mut buckets = vec![RawBucket::default(); read(&mut [])?];
        read(&mut buckets)?;
        Ok(GradNorms { buckets: buckets.into_iter().map(BucketNorms::from).collect() })
    }
}

impl fmt::Debug for Reducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reducer").field("group", &self.group).finish_non_exhaustive()
    }
}

fn check_loss(during: &'static str, loss: &Tensor) -> Result<()> {
    if loss.numel() != 1 {
        return Err(Error::invalid(during, format!("the loss has {} elements, not 1", loss.numel())));
    }
    if !loss.requires_grad() {
        return Err(Error::invalid(during, "the loss depends on nothing that requires a gradient"));
    }
    Ok(())
}

/// The sizes of a step's gradients, before and after they were reduced.
#[derive(Debug, Clone, PartialEq)]
pub struct GradNorms {
    /// One entry for each bucket, in the order of their reduction.
    pub buckets: Vec<BucketNorms>,
}

/// The sizes of one bucket of gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BucketNorms {
    /// How many numbers are in it.
    pub elements: usize,
    /// The squared norm of this rank's gradient.
    pub local_sq: f64,
    /// The squared norm of the mean over all ranks, or of the sum.
    pub reduced_sq: f64,
}

impl GradNorms {
    /// The squared norm of this rank's gradient.
    #[must_use]
    pub fn local_sq(&self) -> f64 {
        self.buckets.iter().map(|bucket| bucket.local_sq).sum()
    }

    /// The squared norm of the mean gradient, or of the sum.
    #[must_use]
    pub fn reduced_sq(&self) -> f64 {
        self.buckets.iter().map(|bucket| bucket.reduced_sq).sum()
    }
}

impl From<RawBucket> for BucketNorms {
    fn from(raw: RawBucket) -> BucketNorms {
        let RawBucket { elements, local_sq, reduced_sq } = raw;
        BucketNorms { elements: elements as usize, local_sq, reduced_sq }
    }
}
