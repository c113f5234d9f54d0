//! `_core.Search`: ask and tell, kept in the folder of a study.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard},
};

use pollux_tune::{
    ids::TrialId,
    space::{Parallel, Params, Study, Value},
    store::KeptSearch,
    trials::{self, End, State, Trial, Verdict},
};
use pyo3::{
    create_exception,
    exceptions::{PyException, PyFileNotFoundError, PyOSError, PyTypeError, PyValueError},
    prelude::*,
    types::{PyBool, PyDict, PyFloat, PyInt, PyString},
};

use crate::error::{bad_input, of_search, of_store, of_study};

create_exception!(
    pollux_tune,
    StudyFinished,
    PyException,
    "All trials of the study were asked for, or there is nothing left to try."
);

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("StudyFinished", module.py().get_type::<StudyFinished>())?;
    module.add_class::<Search>()
}

/// A search, and the folder it is kept in.
#[pyclass(frozen, module = "pollux_tune._core")]
struct Search {
    /// None when it was closed.
    kept: Mutex<Option<KeptSearch>>,
    study: Study,
}

#[pymethods]
impl Search {
    /// `source` is the name of a study file, or else `text` the study itself.
    #[new]
    #[pyo3(signature = (*, text = None, source = None, folder = None, trials = None, parallel = None, seed = None))]
    fn new(
        text: Option<&str>,
        source: Option<PathBuf>,
        folder: Option<PathBuf>,
        trials: Option<u32>,
        parallel: Option<u32>,
        seed: Option<u64>,
    ) -> PyResult<Self> {
        let mut study = match (text, source) {
            (Some(text), None) => Study::from_yaml("study", text).map_err(|error| of_study(&error, false))?,
            (None, Some(file)) => read(&file)?,
            _ => return Err(PyTypeError::new_err("either a text or a file")),
        };
        for (value, name) in [(trials, "trials"), (parallel, "parallel")] {
            if value == Some(0) {
                return Err(PyValueError::new_err(format!("{name}: found 0; expected 1 or more")));
            }
        }
        let search = &mut study.search;
        search.trials = trials.unwrap_or(search.trials);
        search.parallel = parallel.map_or(search.parallel, Parallel::Fixed);
        search.seed = seed.unwrap_or(search.seed);
        let kept = match folder {
            Some(folder) => KeptSearch::open(&folder, &study).map_err(|error| of_store(&error))?,
            None => KeptSearch::in_memory(&study).map_err(|error| bad_input(&error))?,
        };
        Ok(Self { study: kept.search().study().clone(), kept: Mutex::new(Some(kept)) })
    }

    /// The objectives: name, and whether less is better.
    fn objectives(&self) -> Vec<(String, bool)> {
        let objectives = self.study.objectives.iter();
        objectives.map(|objective| (objective.metric.clone(), objective.loss(1.0) > 0.0)).collect()
    }

    #[getter]
    fn trials(&self) -> u32 {
        self.study.search.trials
    }

    #[getter]
    fn parallel(&self) -> u32 {
        self.study.search.parallel.or_default()
    }

    #[getter]
    fn max_failures(&self) -> u32 {
        self.study.search.max_failures
    }

    /// The study as a file.
    fn yaml(&self) -> String {
        self.study.to_yaml()
    }

    fn is_finished(&self) -> PyResult<bool> {
        self.with(|kept| Ok(kept.search().is_finished()))
    }

    /// Starts a trial; gives its number and parameters.
    fn ask<'py>(&self, py: Python<'py>) -> PyResult<(u32, Bound<'py, PyDict>)> {
        let asked = py.detach(|| self.change(|kept| kept.ask().map_err(|error| of_search(&error))))?;
        Ok((asked.id.0, params_to_py(py, &asked.params)?))
    }

    /// Why the trial was stopped, if it was.
    fn report(&self, py: Python<'_>, trial: u32, epochs: f64, value: f64) -> PyResult<Option<String>> {
        py.detach(|| {
            self.change(|kept| match kept.search_mut().report(TrialId(trial), epochs, value) {
                Ok(Verdict::Continue) => Ok(None),
                Ok(Verdict::Stop(reason)) => Ok(Some(reason.to_string())),
                // Its function may not know.
                Err(trials::Error::Ended(_, End::Stopped(why))) => Ok(Some(why.to_string())),
                Err(trials::Error::Ended(_, End::Failed(why) | End::Cancelled(why))) => Ok(Some(why)),
                Err(error) => Err(of_search(&error)),
            })
        })
    }

    /// Ends a trial with a value for each objective.
    fn tell(&self, py: Python<'_>, trial: u32, values: Vec<f64>) -> PyResult<()> {
        self.end(py, trial, End::Done(values))
    }

    fn tell_failed(&self, py: Python<'_>, trial: u32, reason: String) -> PyResult<()> {
        self.end(py, trial, End::Failed(reason))
    }

    fn tell_stopped(&self, py: Python<'_>, trial: u32, reason: String) -> PyResult<()> {
        self.end(py, trial, End::Stopped(reason.into()))
    }

    fn tell_cancelled(&self, py: Python<'_>, trial: u32, reason: String) -> PyResult<()> {
        self.end(py, trial, End::Cancelled(reason))
    }

    /// Tries these before anything else; gives how many wait.
    fn enqueue(&self, py: Python<'_>, params: &Bound<'_, PyDict>) -> PyResult<usize> {
        let params = params_from_py(params)?;
        py.detach(|| {
            self.change(|kept| {
                kept.search_mut().enqueue(&params).map_err(|error| of_search(&error))?;
                Ok(kept.search().waiting())
            })
        })
    }

    /// One trial as a dictionary.
    fn trial<'py>(&self, py: Python<'py>, trial: u32) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.with(|kept| kept.search().trial(TrialId(trial)).map(|trial| trial_to_py(py, trial)).transpose())
    }

    /// All trials so far, in the order they were asked for.
    fn all<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.with(|kept| kept.search().trials().map(|trial| trial_to_py(py, trial)).collect())
    }

    /// The best ones, the best first.
    fn best<'py>(&self, py: Python<'py>, count: usize) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.with(|kept| kept.search().best(count).into_iter().map(|trial| trial_to_py(py, trial)).collect())
    }

    /// Those that no other beats in all objectives.
    fn pareto_front<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.with(|kept| {
            kept.search().pareto_front().into_iter().map(|trial| trial_to_py(py, trial)).collect()
        })
    }

    /// The share of the variance that each parameter explains, the most important first.
    fn importance(&self, py: Python<'_>, objective: usize) -> PyResult<Vec<(String, f64)>> {
        py.detach(|| {
            self.with(|kept| {
                let shares = kept.search().importance(objective).map_err(|error| of_search(&error))?;
                Ok(shares.into_iter().map(|(name, share)| (name.to_owned(), share)).collect())
            })
        })
    }

    /// Gives the folder back. Nothing else can be done afterwards.
    fn close(&self) {
        *self.lock() = None;
    }
}

impl Search {
    fn lock(&self) -> MutexGuard<'_, Option<KeptSearch>> {
        // Whoever panicked has told so.
        self.kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn with<T>(&self, look: impl FnOnce(&mut KeptSearch) -> PyResult<T>) -> PyResult<T> {
        let closed = || PyValueError::new_err("the study is closed: open it again by its folder");
        look(self.lock().as_mut().ok_or_else(closed)?)
    }

    /// Does something, and writes down what became true before anybody hears of it.
    fn change<T>(&self, change: impl FnOnce(&mut KeptSearch) -> PyResult<T>) -> PyResult<T> {
        self.with(|kept| {
            let changed = change(kept);
            kept.keep().map_err(|error| of_store(&error))?;
            changed
        })
    }

    fn end(&self, py: Python<'_>, trial: u32, end: End) -> PyResult<()> {
        let tell = |kept: &mut KeptSearch| kept.search_mut().tell(TrialId(trial), end);
        py.detach(|| self.change(|kept| tell(kept).map_err(|error| of_search(&error))))
    }
}

/// Reads a study file; others that it names are next to it.
fn read(file: &Path) -> PyResult<Study> {
    let text = fs::read_to_string(file).map_err(|error| {
        let message = format!("cannot read {}: {error}", file.display());
        match error.kind() {
            std::io::ErrorKind::NotFound => PyFileNotFoundError::new_err(message),
            _ => PyOSError::new_err(message),
        }
    })?;
    let open = |name: &str| {
        let other = file.parent().unwrap_or_else(|| Path::new("")).join(name);
        fs::read_to_string(&other).map_err(|error| format!("cannot read {}: {error}", other.display()))
    };
    Study::from_yaml_with(&file.display().to_string(), &text, open).map_err(|error| of_study(&error, true))
}

fn params_to_py<'py>(py: Python<'py>, params: &Params) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in params.iter() {
        match value {
            Value::Bool(value) => dict.set_item(name, value)?,
            Value::Int(value) => dict.set_item(name, value)?,
            Value::Float(value) => dict.set_item(name, value)?,
            Value::Text(value) => dict.set_item(name, value)?,
        }
    }
    Ok(dict)
}

fn params_from_py(params: &Bound<'_, PyDict>) -> PyResult<Params> {
    let read = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        let name: String = name.extract()?;
        let value = if value.is_instance_of::<PyBool>() {
            Value::Bool(value.extract()?)
        } else if value.is_instance_of::<PyInt>() {
            Value::Int(value.extract()?)
        } else if value.is_instance_of::<PyFloat>() {
            Value::Float(value.extract()?)
        } else if value.is_instance_of::<PyString>() {
            Value::Text(value.extract()?)
        } else {
            let message = format!("`{name}` is {value:?}; expected a number, a string, True or False");
            return Err(PyValueError::new_err(message));
        };
        Ok((name, value))
    };
    params.iter().map(read).collect::<PyResult<Vec<_>>>().map(Params::from_iter)
}

fn trial_to_py<'py>(py: Python<'py>, trial: &Trial) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("id", trial.id.0)?;
    let (state, reason) = match &trial.state {
        State::Ended(End::Done(_)) => ("done", None),
        State::Ended(End::Stopped(why)) => ("stopped", Some(why.to_string())),
        State::Ended(End::Cancelled(why)) => ("cancelled", Some(why.clone())),
        State::Ended(End::Failed(why)) => ("failed", Some(why.clone())),
        _ => ("running", None),
    };
    dict.set_item("state", state)?;
    dict.set_item("params", params_to_py(py, &trial.params)?)?;
    dict.set_item("values", trial.values().map(<[f64]>::to_vec))?;
    dict.set_item("epochs", trial.last.map(|(epochs, _)| epochs))?;
    dict.set_item("last", trial.last.map(|(_, value)| value))?;
    dict.set_item("reason", reason)?;
    Ok(dict)
}
