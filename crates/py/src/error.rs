//! Errors of the library as exceptions of Python, with the same text.

use std::{error::Error, iter};

use pollux_tune::{space::Diagnostics, store, trials};
use pyo3::{
    PyErr,
    exceptions::{PyOSError, PyValueError},
};

/// A message and those of its causes, as the program prints them.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let chain = iter::successors(Some(error), |error| Error::source(*error));
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// What the caller can correct.
pub(crate) fn bad_input(error: &(dyn Error + 'static)) -> PyErr {
    PyValueError::new_err(with_causes(error))
}

pub(crate) fn of_search(error: &trials::Error) -> PyErr {
    if error.is_end() { super::search::StudyFinished::new_err(error.to_string()) } else { bad_input(error) }
}

pub(crate) fn of_store(error: &store::Error) -> PyErr {
    match error {
        store::Error::Search(error) => of_search(error),
        error if error.is_of_input() => bad_input(error),
        error => PyOSError::new_err(with_causes(error)),
    }
}

/// The mistakes of a study: by line where there are lines, by field where it is made of values of Python.
pub(crate) fn of_study(mistakes: &Diagnostics, has_lines: bool) -> PyErr {
    if has_lines {
        return PyValueError::new_err(mistakes.report().trim_end().to_owned());
    }
    let by_field = mistakes.list().iter().map(|mistake| match mistake.path() {
        "" => mistake.mistake().to_string(),
        field => format!("{field}: {}", mistake.mistake()),
    });
    PyValueError::new_err(by_field.collect::<Vec<_>>().join("\n"))
}
