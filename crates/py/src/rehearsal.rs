//! Trainings whose workers change by command, to see that a script stands it: the tests of the package hold them at events.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pollux_tune::{
    actors::{Training, TrainingEvent, TrainingSettings},
    trials::{
        agent::PythonWork,
        group::{Batch, Task},
    },
    worker::Slot,
};
use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
};
use serde_json::{Value, json};

use crate::error::with_causes;

/// A head of given tasks, which it trains one after the other.
#[pyclass(frozen, name = "Rehearsal")]
struct PyRehearsal(Mutex<Option<Training>>);

impl PyRehearsal {
    fn training(&self) -> MutexGuard<'_, Option<Training>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, look: impl FnOnce(&mut Training) -> PyResult<T>) -> PyResult<T> {
        let over = || PyValueError::new_err("the rehearsal is over");
        look(self.training().as_mut().ok_or_else(over)?)
    }
}

fn failed(error: &pollux_tune::actors::Error) -> PyErr {
    PyRuntimeError::new_err(with_causes(error))
}

#[pymethods]
impl PyRehearsal {
    /// Starts a worker for each slot, and the first task on some of them. Tasks are given as JSON, arguments are those of
    /// `python -m pollux_tune.worker`.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    #[pyo3(signature = (tasks, arguments, *, interpreter, start, slots = 2, max_batch_per_worker = 1000, env = BTreeMap::new()))]
    fn new(
        py: Python<'_>,
        tasks: &str,
        arguments: Vec<String>,
        interpreter: String,
        start: Vec<u32>,
        slots: usize,
        max_batch_per_worker: u32,
        env: BTreeMap<String, String>,
    ) -> PyResult<Self> {
        let tasks: Vec<Task> =
            serde_json::from_str(tasks).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let settings = TrainingSettings {
            slots: vec![Slot { threads: 1, cuda: None }; slots],
            start,
            max_batch: None,
            max_batch_per_worker,
            worker_arguments: Vec::new(),
            python: Some(PythonWork { interpreter: Some(interpreter), arguments, env, folder: None }),
            silence: None,
        };
        let training = py.detach(|| Training::start(tasks, &settings)).map_err(|error| failed(&error))?;
        Ok(Self(Mutex::new(Some(training))))
    }

    /// The next event, as JSON; none if there is none in so many seconds.
    fn next(&self, py: Python<'_>, timeout: f64) -> PyResult<Option<String>> {
        let timeout = Duration::try_from_secs_f64(timeout).unwrap_or(Duration::ZERO);
        let next = || self.with(|training| training.next(timeout).map_err(|error| failed(&error)));
        Ok(py.detach(next)?.map(|event| shown(&event).to_string()))
    }

    /// Moves the training to these slots.
    #[expect(clippy::needless_pass_by_value, reason = "values that Python gives are owned")]
    fn rescale(&self, slots: Vec<u32>) -> PyResult<()> {
        self.with(|training| training.rescale(&slots).map_err(|error| failed(&error)))
    }

    /// Uses another batch from the next step on that all workers agree on.
    fn use_batch(&self, total: u32, accumulation: u32) -> PyResult<()> {
        self.with(|training| {
            training.use_batch(Batch { total, accumulation });
            Ok(())
        })
    }

    /// Ends it, and its workers.
    fn close(&self, py: Python<'_>) {
        let training = self.training().take();
        py.detach(|| drop(training));
    }
}

fn shown(event: &TrainingEvent) -> Value {
    match event {
        TrainingEvent::Forming { group, slots } => {
            json!({"event": "forming", "group": group, "slots": slots})
        }
        TrainingEvent::Formed { group, slots, steps, pause } => {
            json!({"event": "formed", "group": group, "slots": slots, "steps": steps, "pause_s": pause.total_s})
        }
        TrainingEvent::Reported(report) => json!({"event": "reported", "report": report}),
        TrainingEvent::Retuned(batch) => json!({"event": "retuned", "batch": batch}),
        TrainingEvent::Checkpointed { steps } => json!({"event": "checkpointed", "steps": steps}),
        TrainingEvent::CheckpointFailed { reason } => json!({"event": "checkpoint_failed", "reason": reason}),
        TrainingEvent::OutOfMemory { slot, memory } => {
            json!({"event": "out_of_memory", "slot": slot, "failed": memory.failed, "limit": memory.limit})
        }
        TrainingEvent::Broken { slot, group, steps, reason } => {
            json!({"event": "broken", "slot": slot, "group": group, "steps": steps, "reason": reason})
        }
        TrainingEvent::Lost { slot } => json!({"event": "lost", "slot": slot}),
        TrainingEvent::Finished { metrics } => json!({"event": "finished", "metrics": metrics}),
        TrainingEvent::Failed { reason } => json!({"event": "failed", "reason": reason}),
        _ => json!({"event": "other"}),
    }
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyRehearsal>()
}
