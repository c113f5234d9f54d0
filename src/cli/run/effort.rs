//! Whether the time of an emulated run is that of the head itself.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// From this share of the time on it is told.
const TOLD: f64 = 0.5;
/// Shorter runs say nothing.
const LEAST: Duration = Duration::from_secs(2);

/// How busy this process is, since it began.
#[derive(Debug)]
pub(super) struct Effort {
    began: Instant,
    computed_s: f64,
}

impl Effort {
    pub(super) fn begin() -> Self {
        Self { began: Instant::now(), computed_s: computed_s() }
    }

    /// What is said if the head has computed for most of the time: emulated time passes meanwhile, which on real devices would be a
    /// small part of it.
    pub(super) fn note(&self) -> Option<String> {
        note(computed_s() - self.computed_s, self.began.elapsed())
    }
}

fn note(computed_s: f64, elapsed: Duration) -> Option<String> {
    let elapsed_s = elapsed.as_secs_f64();
    (elapsed >= LEAST && computed_s >= TOLD * elapsed_s).then(|| {
        format!(
            "note: the head itself computed for {computed_s:.1} s of {elapsed_s:.1} s: emulated times are mostly its own; \
             with a larger --time-scale they are those of the devices"
        )
    })
}

/// Processor time of this process, in seconds.
fn computed_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_that_computes_most_of_the_time_says_so() {
        let seconds = Duration::from_secs_f64;
        assert_eq!(note(1.0, seconds(10.0)), None);
        assert_eq!(note(1.0, seconds(1.5)), None, "too short");
        let note = note(7.0, seconds(10.0)).unwrap();
        assert!(note.starts_with("note: the head itself computed for 7.0 s of 10.0 s: "), "{note}");
    }
}
