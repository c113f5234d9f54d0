use crate::alloc::TrialRequest;

/// Trials that are more likely to be stopped than to go on are not scaled out.
const LIKELY: f64 = 0.5;
/// Even a trial that will surely be stopped gets there sooner with GPUs.
const WEIGHT_MIN: f64 = 0.1;

/// How much a trial weighs in the objective of the allocator, by its promise (see
/// [`Stopper::promise`](super::stopping::Stopper::promise)): from 0.1 to 1.
#[must_use]
pub fn promise_weight(promise: f64) -> f64 {
    promise.clamp(WEIGHT_MIN, 1.0)
}

/// Lets the promise of a trial weigh in its share of the GPUs: the lower it is, the less the trial weighs, and one that will
/// probably be stopped gets no more GPUs than it has, or than it needs to run. Without `promise_weighting`, the
/// [setting](crate::space::SchedulerSettings::promise_weighting), nothing changes.
///
/// ```
/// use pollux_tune::alloc::{TrialId, TrialRequest};
/// use pollux_tune::goodput::{Curve, GoodputTable, GpuType};
/// use pollux_tune::trials::weigh;
///
/// let table = GoodputTable::from([(GpuType::new("t4")?, Curve::linear(8, 4))]);
/// let mut request = TrialRequest::new(TrialId(0), table);
/// weigh(&mut request, 0.2, true);
/// assert_eq!((request.weight, request.max_gpus), (0.2, 1));
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
pub fn weigh(request: &mut TrialRequest, promise: f64, promise_weighting: bool) {
    if !promise_weighting {
        return;
    }
    request.weight = (request.weight * promise_weight(promise)).max(TrialRequest::WEIGHT_MIN);
    if promise < LIKELY {
        let most = request.current.gpus().max(request.min_gpus);
        request.max_gpus = request.max_gpus.min(most);
    }
}
