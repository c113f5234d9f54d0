//! What the first rank of a group writes down, and when it tells.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::Instant;

use super::{
    course::{Course, later},
    error::Error,
    session::{Session, per_gpu},
};
use crate::{
    goodput::{Observation, Observations, Shape},
    trials::group::{Evaluation, Form, Task, WorkerReport},
};

/// By how much the measured time of steps may differ from the modelled one.
const MEASUREMENT_ERROR: f64 = 0.01;

/// What was seen since the last report, and when that was.
#[derive(Debug)]
pub(super) struct Desk {
    shape: Shape,
    reported: Instant,
    saved: Instant,
    seen: Observations,
    /// The first step with a batch pays for what later ones do not.
    warm: bool,
    pub(super) metrics: Vec<Evaluation>,
    /// Steps in the last report.
    told: Option<u64>,
}

/// The steps of a course after which something is due.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    pub(super) report: u64,
    pub(super) save: u64,
    evaluate: Option<u64>,
}

impl Due {
    pub(super) fn first(&self) -> u64 {
        let first = self.report.min(self.save);
        self.evaluate.map_or(first, |evaluate| evaluate.min(first))
    }
}

impl Desk {
    pub(super) fn new(shape: Shape, now: Instant) -> Self {
        Self {
            shape,
            reported: now,
            saved: now,
            seen: Observations::default(),
            warm: false,
            metrics: Vec::new(),
            told: None,
        }
    }

    pub(super) const fn saved(&mut self, now: Instant) {
        self.saved = now;
    }

    /// Another batch.
    pub(super) const fn retuned(&mut self) {
        self.warm = false;
    }

    /// What comes next, after at least one more step; evaluations only if nothing else comes first.
    pub(super) fn due(&self, session: &Session, course: &Course, time_scale: f64) -> Due {
        let Task { report_every_s, checkpoint_every_s, .. } = session.task;
        let after = |last: Instant, every_s: f64| {
            course.next(later(last, every_s * time_scale)).max(course.taken + 1)
        };
        let (report, save) = (after(self.reported, report_every_s), after(self.saved, checkpoint_every_s));
        let evaluate = session.steps_to_evaluation(course.batch, report.min(save) - course.taken);
        Due { report, save, evaluate: evaluate.map(|steps| course.taken + steps) }
    }

    /// Takes note of steps that were taken.
    pub(super) fn observe(&mut self, session: &Session, course: &Course, steps: u64) {
        let counted = steps - u64::from(!self.warm && steps > 0);
        self.warm |= steps > 0;
        if counted == 0 {
            return;
        }
        let seed = session.task.seed ^ session.current().steps.rotate_left(32);
        let error = ChaCha8Rng::seed_from_u64(seed).random_range(-MEASUREMENT_ERROR..MEASUREMENT_ERROR);
        let observation = Observation {
            shape: self.shape,
            per_gpu: f64::from(per_gpu(course.batch, self.shape.gpus())),
            accumulation: course.batch.accumulation,
            iter_time_s: course.step_s * (1.0 + error),
            steps: counted as f64,
        };
        self.seen.add(&observation).expect("steps of a course take time and have examples");
    }

    /// Whether there is something that was not told.
    pub(super) fn has_news(&self, session: &Session) -> bool {
        !self.metrics.is_empty() || self.told.is_none_or(|told| session.current().steps > told)
    }

    pub(super) fn report(
        &mut self,
        session: &Session,
        course: &Course,
        form: &Form,
        now: Instant,
    ) -> Result<WorkerReport, Error> {
        self.reported = now;
        let state = session.current();
        self.told = Some(state.steps);
        let seen = std::mem::take(&mut self.seen);
        let step_times = seen.iter().map(|times| Observation { shape: self.shape, ..times });
        Ok(WorkerReport {
            trial: form.trial,
            round: form.round,
            steps: state.steps,
            examples: state.examples,
            epochs: session.epochs(),
            loss: session.metrics().get("loss").copied(),
            learning_rate: session.learning_rate(course.batch)?,
            batch: Some(course.batch),
            step_times: step_times.collect(),
            noise: session.noise(course.batch),
            evaluations: std::mem::take(&mut self.metrics),
        })
    }
}
