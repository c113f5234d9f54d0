use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// The clock of a study: Unix time, or faster where devices are emulated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    origin_s: f64,
    began: Instant,
    /// Real seconds in a second of the study.
    scale: f64,
}

impl Clock {
    /// Goes on from the last fact, if that is ahead of the time of day.
    pub(super) fn after(last_s: f64, scale: f64) -> Self {
        let today_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        Self { origin_s: today_s.max(last_s), began: Instant::now(), scale }
    }

    pub(super) fn now_s(&self) -> f64 {
        self.origin_s + self.began.elapsed().as_secs_f64() / self.scale
    }

    /// The moment of the study after so many real seconds.
    pub(super) fn in_s(&self, real_s: f64) -> f64 {
        self.now_s() + real_s / self.scale
    }

    /// How long to wait for a moment of the study.
    pub(super) fn until(&self, at_s: f64) -> Duration {
        // A little later, so that rounding does not make it a little earlier.
        let real_s = (at_s - self.now_s()).max(0.0) * self.scale + 1e-6;
        Duration::try_from_secs_f64(real_s).unwrap_or(Duration::MAX).min(LONGEST)
    }
}

/// Timers do not like centuries.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn emulated_time_runs_faster() {
        let clock = Clock::after(9e9, 0.01);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!((clock.now_s() - 9e9 - 200.0).abs() < 1e-3, "{}", clock.now_s());
        assert!((clock.until(9e9 + 300.0).as_secs_f64() - 1.0).abs() < 1e-3);
        assert!((clock.in_s(3.0) - 9e9 - 500.0).abs() < 1e-3, "{}", clock.in_s(3.0));
        assert!(clock.until(0.0) < Duration::from_millis(1));
    }
}
