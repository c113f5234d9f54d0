use crate::{alloc::TrialRequest, ids::TrialId};

/// Trials that are more likely to be stopped than to continue are not scaled out.
const LIKELY: f64 = 0.5;
/// Even a trial that will surely be stopped gets there sooner with GPUs.
const WEIGHT_MIN: f64 = 0.1;

/// How much a trial weighs in the objective of the allocator, by its promise (see
/// [`Stopper::promise`](super::stopping::Stopper::promise)): from 0.1 to 1.
#[must_use]
pub fn promise_weight(promise: f64) -> f64 {
    promise.clamp(WEIGHT_MIN, 1.0)
}

/// Lets the promise of trials weigh in their shares of the GPUs. The lower it is, the less a trial weighs; and one that will
/// probably be stopped gets no more GPUs than it has, or than it needs to run. Only if that goes for all trials is none of them
/// held back: the GPUs would be idle.
///
/// Only for studies with the [setting](crate::space::SchedulerSettings::promise_weighting).
///
/// ```
/// use pollux_tune::{alloc::TrialRequest, ids::TrialId};
/// use pollux_tune::{goodput::{Curve, GoodputTable}, ids::GpuType};
/// use pollux_tune::trials::weigh;
///
/// let table = GoodputTable::from([(GpuType::new("t4")?, Curve::linear(8, 4))]);
/// let mut requests = [0, 1].map(|id| TrialRequest::new(TrialId(id), table.clone()));
/// weigh(&mut requests, |id| if id == TrialId(0) { 0.2 } else { 0.9 });
/// assert_eq!((requests[0].weight, requests[0].max_gpus), (0.2, 1));
/// assert_eq!((requests[1].weight, requests[1].max_gpus), (0.9, u32::MAX));
/// # Ok::<(), pollux_tune::goodput::Error>(())
/// ```
pub fn weigh(requests: &mut [TrialRequest], promise: impl Fn(TrialId) -> f64) {
    let held_back = requests.iter().any(|request| promise(request.id) >= LIKELY);
    for request in requests {
        let promise = promise(request.id);
        request.weight = (request.weight * promise_weight(promise)).max(TrialRequest::WEIGHT_MIN);
        if held_back && promise < LIKELY {
            request.max_gpus = request.max_gpus.min(request.current.gpus().max(request.min_gpus));
        }
    }
}
