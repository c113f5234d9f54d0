//! When which step of a group ends, as long as neither its members nor its batch change.

use std::time::Duration;

use tokio::time::Instant;

use super::{error::Error, session::Session};
use crate::{ids::GpuType, trials::group::Batch};

/// Later than anything that matters: many years.
const FOREVER_S: f64 = 1e9;
/// A step counts as done when this little of it is left, since moments are rounded.
const ROUNDING: f64 = 1e-3;

/// Steps of the same time, one after the other.
#[derive(Debug, Clone)]
pub(super) struct StepSchedule {
    began: Instant,
    pub(super) batch: Batch,
    /// Emulated seconds of a step.
    pub(super) step_s: f64,
    /// Real seconds of a step.
    real_step_s: f64,
    /// Steps that are part of the session's state.
    pub(super) taken: u64,
    /// Steps after which the trial is complete.
    pub(super) finish: u64,
}

impl StepSchedule {
    pub(super) fn new(
        session: &Session,
        batch: Batch,
        (gpu_type, placement): (&GpuType, &[u32]),
        began: Instant,
        time_scale: f64,
    ) -> Result<Self, Error> {
        let step_s = session.step_s(gpu_type, placement, batch)?;
        let finish = session.steps_to_end(batch);
        Ok(Self { began, batch, step_s, real_step_s: step_s * time_scale, taken: 0, finish })
    }

    /// When a step ends; that with number 0 is the one before the first.
    pub(super) fn end_of(&self, step: u64) -> Instant {
        later(self.began, step as f64 * self.real_step_s)
    }

    /// How many steps are over.
    pub(super) fn whole(&self, now: Instant) -> u64 {
        let steps = now.saturating_duration_since(self.began).as_secs_f64() / self.real_step_s;
        ((steps + ROUNDING) as u64).clamp(self.taken, self.finish.max(self.taken))
    }

    /// The first step that ends at this moment or later.
    pub(super) fn next(&self, moment: Instant) -> u64 {
        let steps = moment.saturating_duration_since(self.began).as_secs_f64() / self.real_step_s;
        ((steps - ROUNDING).ceil() as u64).clamp(self.taken, self.finish.max(self.taken))
    }
}

/// A moment this many real seconds later.
pub(super) fn later(moment: Instant, seconds: f64) -> Instant {
    moment + Duration::from_secs_f64(seconds.clamp(0.0, FOREVER_S))
}

/// A moment this many real seconds earlier, as far as the clock goes back.
pub(super) fn earlier(moment: Instant, seconds: f64) -> Instant {
    moment.checked_sub(Duration::from_secs_f64(seconds.clamp(0.0, FOREVER_S))).unwrap_or(moment)
}
