//! Whether Python code can be run on this machine.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use thiserror::Error;

use crate::{
    space::{PythonProgram, TrialSettings},
    worker,
};

/// What is missing.
#[derive(Debug, Error)]
pub(in crate::cli) enum Error {
    #[error("`{}` cannot be started: install Python, or name another one as `trial.interpreter`", .interpreter.display())]
    NoInterpreter { interpreter: PathBuf, source: std::io::Error },
    #[error(
        "`{}` cannot import the package pollux_tune ({problem}): install the wheel of `make wheel` there (docs/install.md), or name another Python as \
         `trial.interpreter`",
        .interpreter.display()
    )]
    NoPackage { interpreter: PathBuf, problem: String },
}

/// Whether the interpreter is there and has the package: what each worker would meet is better met before there is a study.
pub(super) fn check(program: &PythonProgram, trial: &TrialSettings, paths_from: &Path) -> Result<(), Error> {
    let interpreter = worker::interpreter(program.interpreter_from(paths_from).as_deref());
    let mut python = Command::new(&interpreter);
    python.args(["-c", "import pollux_tune"]).envs(&trial.env).stdin(Stdio::null());
    match python.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let printed = String::from_utf8_lossy(&output.stderr);
            let problem = printed.trim_end().lines().last().unwrap_or("it says nothing").to_owned();
            Err(Error::NoPackage { interpreter, problem })
        }
        Err(source) => Err(Error::NoInterpreter { interpreter, source }),
    }
}
