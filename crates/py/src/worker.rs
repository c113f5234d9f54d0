//! Elastic trials: the worker protocol, the books of a trial and the rooms of groups, for `pollux_tune.elastic`.
//!
//! Whatever waits does so without the interpreter's lock.

use std::{
    collections::BTreeMap,
    error::Error as StdError,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pollux_tune::{
    goodput::{ConsecutiveNorms, GradientNorms, Optimizer},
    trials::group::{Batch, Task},
    worker::{
        Error,
        driven::{
            Answer, Comparing, DrivenWorker, Fault, GroupPlace, GroupRequest, GroupStore, Request,
            SavedTensor, StepPlan, StoreError, Trained, Training, is_out_of_memory, load_checkpoint,
        },
    },
};
use pyo3::{
    exceptions::{PyConnectionError, PyRuntimeError, PyTimeoutError, PyValueError},
    prelude::*,
    types::PyBytes,
};

/// An error with its causes.
fn wrong(error: &Error) -> PyErr {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    PyRuntimeError::new_err(text)
}

fn not_stored(error: &StoreError) -> PyErr {
    match error {
        StoreError::Timeout { .. } => PyTimeoutError::new_err(error.to_string()),
        StoreError::PeerLost { .. } => PyConnectionError::new_err(error.to_string()),
        StoreError::Invalid { .. } | StoreError::Refused { .. } => PyValueError::new_err(error.to_string()),
    }
}

/// Name, type, shape and numbers of a tensor.
type TensorParts<'py> = (String, String, Vec<u64>, Bound<'py, PyBytes>);

/// Passes, examples over all workers, what gradients are compared with, whether they are kept, the number of the step, whether there are more
/// passes than were planned.
type Plan = (Vec<Vec<u32>>, u32, Option<&'static str>, bool, u64, bool);

/// The books of one trial: how far it has come, what comes next, and what its gradients tell.
#[pyclass(frozen, name = "Training")]
struct PyTraining {
    task: Task,
    books: Arc<Mutex<Training>>,
}

impl PyTraining {
    fn books(&self) -> MutexGuard<'_, Training> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn optimizer(kind: &str, beta2: f64, eps: f64) -> Optimizer {
    match kind {
        "adam" => Optimizer::Adam { beta2, eps },
        "adamw" => Optimizer::AdamW { beta2, eps },
        "momentum" => Optimizer::MomentumSgd,
        _ => Optimizer::Sgd,
    }
}

#[pymethods]
impl PyTraining {
    /// Of a task without a head, given as JSON.
    #[new]
    fn new(task: &str) -> PyResult<Self> {
        let task: Task =
            serde_json::from_str(task).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let books = Training::new(task.clone()).map_err(|error| wrong(&error))?;
        Ok(Self { task, books: Arc::new(Mutex::new(books)) })
    }

    fn open(&self, examples: u64, may_be_halved: bool) -> PyResult<()> {
        self.books().open(examples, may_be_halved).map_err(|error| wrong(&error))
    }

    fn set_optimizer(&self, kind: &str, beta2: f64, eps: f64) {
        self.books().set_optimizer(optimizer(kind, beta2, eps));
    }

    /// A group of one, without a head.
    fn form_alone(&self, total: u32, accumulation: u32) {
        let batch = Batch { total, accumulation };
        self.books().form(GroupPlace { rank: 0, size: 1, nodes: 1, batch });
    }

    /// Another batch, without a head.
    fn retune(&self, total: u32, accumulation: u32) {
        self.books().retune(Batch { total, accumulation });
    }

    fn plan(&self, py: Python<'_>, ahead: u64) -> PyResult<Plan> {
        let planned = py.detach(|| self.books().plan(ahead)).map_err(|error| wrong(&error))?;
        let StepPlan { step, total, passes, comparing, keep_gradients, more_passes } = planned;
        let comparing = comparing.map(|comparing| match comparing {
            Comparing::Workers => "workers",
            Comparing::Passes => "passes",
            Comparing::Steps => "steps",
        });
        Ok((passes, total, comparing, keep_gradients, step, more_passes))
    }

    /// A pass of so many examples begins.
    fn attempt(&self, examples: u32) {
        self.books().attempt(examples);
    }

    /// The pass under way did not fit into memory. False if it cannot be made any smaller.
    fn exhausted(&self) -> bool {
        self.books().exhausted()
    }

    fn measure(&self, count: u32, examples: f64, mean_sqr: f64, sqr_of_mean: f64) -> PyResult<()> {
        let norms = GradientNorms { count, examples, mean_sqr, sqr_of_mean };
        self.books().measure(norms).map_err(|error| wrong(&error))
    }

    fn measure_consecutive(
        &self,
        batch: f64,
        previous_sqr: f64,
        current_sqr: f64,
        difference_sqr: f64,
    ) -> PyResult<()> {
        let norms = ConsecutiveNorms { batch, previous_sqr, current_sqr, difference_sqr };
        self.books().measure_consecutive(norms).map_err(|error| wrong(&error))
    }

    fn learning_rate_factor(&self) -> PyResult<f64> {
        self.books().learning_rate_factor().map_err(|error| wrong(&error))
    }

    fn bias_correction(&self, kind: &str, beta2: f64, eps: f64) -> PyResult<Option<f64>> {
        self.books().bias_correction(optimizer(kind, beta2, eps)).map_err(|error| wrong(&error))
    }

    #[pyo3(signature = (seconds, learning_rate, loss=None))]
    fn stepped(&self, seconds: Option<f64>, learning_rate: f64, loss: Option<f64>) -> PyResult<()> {
        self.books().stepped(seconds, learning_rate, loss).map_err(|error| wrong(&error))
    }

    fn evaluated(&self) -> PyResult<()> {
        self.books().evaluated().map_err(|error| wrong(&error))
    }

    fn finish(&self) {
        self.books().finish();
    }

    #[getter]
    fn steps(&self) -> u64 {
        self.books().steps()
    }

    #[getter]
    fn state_steps(&self) -> Option<u64> {
        self.books().state_steps()
    }

    #[getter]
    fn epochs(&self) -> PyResult<f64> {
        self.books().epochs().map_err(|error| wrong(&error))
    }

    #[getter]
    fn total_epochs(&self) -> f64 {
        self.books().total_epochs()
    }

    #[getter]
    fn evaluations(&self) -> u64 {
        self.books().evaluations()
    }

    #[getter]
    fn wants_evaluation(&self) -> PyResult<bool> {
        self.books().wants_evaluation().map_err(|error| wrong(&error))
    }

    #[getter]
    fn is_finished(&self) -> PyResult<bool> {
        self.books().is_finished().map_err(|error| wrong(&error))
    }

    /// Rank, workers, machines, examples of a step, passes before the last.
    #[getter]
    fn group(&self) -> (u32, u32, u32, u32, u32) {
        let GroupPlace { rank, size, nodes, batch } = self.books().group();
        (rank, size, nodes, batch.total, batch.accumulation)
    }

    /// The squared norm of the gradient and its variance, if there are any.
    #[getter]
    fn statistics(&self) -> Option<(f64, f64)> {
        self.books().statistics().map(|stats| (stats.sqr, stats.var))
    }

    fn state(&self) -> PyResult<String> {
        self.books().state().map_err(|error| wrong(&error))
    }

    fn restore(&self, state: &str) -> PyResult<()> {
        self.books().restore(state).map_err(|error| wrong(&error))
    }

    /// Counters and tensors of the last checkpoint that is whole; none if there is none.
    fn load<'py>(&self, py: Python<'py>) -> PyResult<Option<(String, Vec<TensorParts<'py>>)>> {
        let (restored, warning) = py.detach(|| load_checkpoint(&self.task)).map_err(|error| wrong(&error))?;
        self.books().warn(warning);
        let tensor = |SavedTensor { name, dtype, shape, data }: SavedTensor| {
            (name, dtype, shape, PyBytes::new(py, &data))
        };
        Ok(restored.map(|restored| (restored.state, restored.tensors.into_iter().map(tensor).collect())))
    }
}

/// Where the members of a group exchange addresses. Only workers of the study get in.
#[pyclass(frozen, name = "Room")]
struct PyRoom(Arc<dyn GroupStore>);

fn seconds(timeout: f64) -> Duration {
    Duration::try_from_secs_f64(timeout).unwrap_or(Duration::ZERO)
}

fn texts(keys: &[String]) -> Vec<&str> {
    keys.iter().map(String::as_str).collect()
}

#[pymethods]
#[expect(clippy::needless_pass_by_value, reason = "values that Python gives are owned")]
impl PyRoom {
    fn set(&self, py: Python<'_>, key: &str, value: &[u8]) -> PyResult<()> {
        py.detach(|| self.0.set(key, value)).map_err(|error| not_stored(&error))
    }

    fn get<'py>(&self, py: Python<'py>, key: &str, timeout: f64) -> PyResult<Bound<'py, PyBytes>> {
        let value = py.detach(|| self.0.get(key, seconds(timeout))).map_err(|error| not_stored(&error))?;
        Ok(PyBytes::new(py, &value))
    }

    fn add(&self, py: Python<'_>, key: &str, delta: i64) -> PyResult<i64> {
        py.detach(|| self.0.add(key, delta)).map_err(|error| not_stored(&error))
    }

    fn wait(&self, py: Python<'_>, keys: Vec<String>, timeout: f64) -> PyResult<()> {
        py.detach(|| self.0.wait(&texts(&keys), seconds(timeout))).map_err(|error| not_stored(&error))
    }

    fn contains(&self, py: Python<'_>, keys: Vec<String>) -> PyResult<bool> {
        py.detach(|| self.0.contains(&texts(&keys))).map_err(|error| not_stored(&error))
    }

    fn delete(&self, py: Python<'_>, key: &str) -> PyResult<bool> {
        py.detach(|| self.0.delete(key)).map_err(|error| not_stored(&error))
    }
}

/// A group that is to be formed.
#[pyclass(frozen, name = "Group")]
struct PyGroup(GroupRequest);

#[pymethods]
impl PyGroup {
    #[getter]
    fn place(&self) -> u32 {
        self.0.place
    }

    #[getter]
    fn everybody(&self) -> u32 {
        self.0.everybody
    }

    #[getter]
    fn members(&self) -> u32 {
        self.0.members
    }

    #[getter]
    fn is_donor(&self) -> bool {
        self.0.is_donor()
    }

    #[getter]
    fn room(&self) -> Option<PyRoom> {
        self.0.store.clone().map(PyRoom)
    }

    /// It is together, and this worker has its state.
    fn enter(&self, training: &PyTraining) {
        training.books().form(self.0.group_place());
    }
}

/// What the thread that trains is asked next.
#[derive(IntoPyObject)]
enum Asked {
    Prepare(&'static str, String, PyTraining),
    Form(&'static str, PyGroup),
    Train(&'static str, bool, bool),
    #[pyo3(transparent)]
    Plain((&'static str,)),
}

/// A worker process.
#[pyclass(frozen, name = "Worker")]
struct PyWorker(DrivenWorker);

#[pymethods]
impl PyWorker {
    /// Attaches this process to its head; none if it was not started as a worker.
    #[staticmethod]
    fn attach(py: Python<'_>) -> PyResult<Option<Self>> {
        Ok(py.detach(DrivenWorker::attach).map_err(|error| wrong(&error))?.map(Self))
    }

    /// Waits for the next request; none when the head is gone.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Asked>> {
        let plain = |name: &'static str| Asked::Plain((name,));
        Ok(match py.detach(|| self.0.next()) {
            None => None,
            Some(Request::Prepare { task, training }) => {
                let text = serde_json::to_string(&*task)
                    .map_err(|error| PyValueError::new_err(error.to_string()))?;
                Some(Asked::Prepare("prepare", text, PyTraining { task: *task, books: training }))
            }
            Some(Request::Form(group)) => Some(Asked::Form("form", PyGroup(*group))),
            Some(Request::Train { leave, retune }) => Some(Asked::Train("train", leave, retune)),
            Some(Request::Evaluate) => Some(plain("evaluate")),
            Some(Request::Save) => Some(plain("save")),
            Some(Request::LeaveGroup) => Some(plain("leave")),
            Some(Request::Forget) => Some(plain("forget")),
        })
    }

    fn done(&self) {
        self.0.answer(Answer::Done);
    }

    fn formed(&self, form_s: f64, hand_over_s: f64) {
        self.0.answer(Answer::Formed { form_s, hand_over_s });
    }

    fn trained(
        &self,
        left: bool,
        retuned: bool,
        wants_evaluation: bool,
        reports: Vec<(f64, BTreeMap<String, f64>)>,
    ) {
        self.0.answer(Answer::Trained(Trained { left, retuned, wants_evaluation, reports }));
    }

    fn evaluated(&self, values: BTreeMap<String, f64>) {
        self.0.answer(Answer::Evaluated(values));
    }

    fn saved(&self, tensors: Vec<(String, String, Vec<u64>, Vec<u8>)>) {
        let tensor = |(name, dtype, shape, data)| SavedTensor { name, dtype, shape, data };
        self.0.answer(Answer::Saved(tensors.into_iter().map(tensor).collect()));
    }

    /// The request has failed, by the fault of the `group`, the `trial` or the `environment`.
    fn failed(&self, fault: &str, reason: String) {
        let fault = match fault {
            "group" => Fault::Group,
            "environment" => Fault::Environment,
            _ => Fault::Trial,
        };
        self.0.answer(Answer::Failed { fault, reason });
    }

    /// Whether another step may be taken before the request is answered.
    fn may_continue(&self) -> bool {
        self.0.may_continue()
    }

    /// What aborts a group, called on another thread.
    fn on_abort(&self, group: &PyGroup, abort: Py<PyAny>) {
        let abort = move || {
            // The group may be gone already.
            let _ = Python::attach(|py| abort.call0(py).map(drop));
        };
        self.0.on_abort(&group.0, abort);
    }

    #[getter]
    fn host(&self) -> &str {
        self.0.host()
    }

    #[getter]
    fn threads(&self) -> u32 {
        self.0.threads()
    }

    #[getter]
    fn is_gpu(&self) -> bool {
        self.0.is_gpu()
    }

    #[getter]
    fn slot(&self) -> String {
        self.0.slot().to_string()
    }
}

/// Whether the text of an exception says that there was no memory.
#[pyfunction(name = "is_out_of_memory")]
fn says_no_memory(text: &str) -> bool {
    is_out_of_memory(text)
}

/// A random number of 128 bits, as hexadecimal digits.
#[pyfunction]
fn token() -> PyResult<String> {
    DrivenWorker::token().map_err(|error| wrong(&error))
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyTraining>()?;
    module.add_class::<PyRoom>()?;
    module.add_class::<PyGroup>()?;
    module.add_class::<PyWorker>()?;
    module.add_function(wrap_pyfunction!(says_no_memory, module)?)?;
    module.add_function(wrap_pyfunction!(token, module)?)
}
