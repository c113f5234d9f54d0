//! Slurm: the queue that pilots are submitted to.
//!
//! Only `sbatch`, `squeue`, `scancel` and `sinfo` are run, each with a limit of time. The queue itself is the record of what was submitted:
//! the name of a job tells its study and its kind, so that a head finds all pilots of the one before, whatever became of that.
//!
//! *Architecture invariant:* when and what to submit is decided in [`trials::pilots`](crate::trials::pilots); here it is done.

mod check;
mod emulated;
mod queue;
mod script;
mod tool;

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder},
    os::unix::fs::DirBuilderExt,
    path::PathBuf,
};

use thiserror::Error;

pub use self::{
    check::{Checked, Partitions, check},
    emulated::{AgentProcess, EmulatedQueue, QueueClock, QueueModel, StartAgent, local_agents},
    script::{AgentPlace, Script},
    tool::Tools,
};
use self::{queue::Row, tool::Tool};
use crate::{
    ids::StudyId,
    space::PilotSpec,
    store::{Folder, tail},
    trials::pilots::{JobEnd, JobReport, JobState},
};

/// What can go wrong with Slurm.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A program of Slurm cannot be run.
    #[error("cannot run `{program}`: {problem}; is this a machine from which jobs are submitted to Slurm?")]
    Start {
        /// Which.
        program: &'static str,
        /// Why not.
        problem: String,
    },
    /// The configuration that was named is not there.
    #[error("SLURM_CONF names {}, which is not there: correct or unset it", .path.display())]
    NoConf {
        /// Its path.
        path: PathBuf,
    },
    /// A program of Slurm reports a failure.
    #[error("`{program}` says: {text}")]
    Refused {
        /// Which.
        program: &'static str,
        /// What it says.
        text: String,
    },
    /// A program of Slurm does not come to an end.
    #[error(
        "`{program}` has not answered for {seconds} s: does the controller of Slurm run (`scontrol ping`)?"
    )]
    Silent {
        /// Which.
        program: &'static str,
        /// For how long it was awaited.
        seconds: u64,
    },
    /// A program of Slurm says something that nobody expects.
    #[error("`{program}` says `{text}`, which is not understood")]
    Strange {
        /// Which.
        program: &'static str,
        /// What it says.
        text: String,
    },
    /// What the study file asks for is not there.
    #[error("{field}: {found}; expected {allowed}")]
    Impossible {
        /// The field.
        field: String,
        /// What is wrong.
        found: String,
        /// What there is.
        allowed: String,
    },
    /// A file of the study.
    #[error("cannot write {}: {problem}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        problem: String,
    },
}

impl Error {
    /// Whether the study file or the settings of the machine are wrong, and the user can correct that.
    #[must_use]
    pub const fn is_of_input(&self) -> bool {
        matches!(self, Self::Impossible { .. } | Self::NoConf { .. })
    }
}

/// A job that the queue knows of.
#[derive(Debug, Clone, PartialEq)]
pub struct QueuedJob {
    /// The job.
    pub job: String,
    /// Of which kind it is; none if the study file no longer has it.
    pub kind: Option<usize>,
    /// Where it runs, if it does.
    pub node: String,
    /// What is said of it.
    pub state: JobState,
}

/// A queue that pilots wait in.
pub trait Provider: Send {
    /// Puts a pilot of a kind into the queue, and returns its job.
    fn submit(&mut self, kind: usize) -> Result<String, Error>;

    /// All jobs of this study. One that is missing is gone.
    fn poll(&mut self) -> Result<Vec<QueuedJob>, Error>;

    /// Takes jobs out of the queue, or ends them. One that is gone already is no error.
    fn cancel(&mut self, jobs: &[String]) -> Result<(), Error>;

    /// The last lines that a job has printed.
    fn log(&mut self, job: &str) -> String;
}

/// What became of jobs that were known: a report for each of them.
pub fn reports(provider: &mut dyn Provider, known: &[String], queued: &[QueuedJob]) -> Vec<JobReport> {
    let by_job: BTreeMap<&str, &QueuedJob> = queued.iter().map(|job| (job.job.as_str(), job)).collect();
    let mut report = |job: &String| {
        let gone =
            || JobState::Ended { end: JobEnd::Ended, reason: "it is gone".to_owned(), log: String::new() };
        let mut state = by_job.get(job.as_str()).map_or_else(gone, |queued| queued.state.clone());
        if let JobState::Ended { log, .. } = &mut state {
            *log = provider.log(job);
        }
        JobReport { job: job.clone(), state }
    };
    known.iter().map(&mut report).collect()
}

/// The Slurm of this machine.
pub struct Slurm {
    study: StudyId,
    scripts: Vec<Script>,
    folder: Folder,
    tools: Tools,
}

impl Slurm {
    /// The pilots of a study; their scripts are written into its folder.
    pub fn new(tools: Tools, study: StudyId, specs: &[PilotSpec], place: &AgentPlace) -> Result<Self, Error> {
        let logs = Folder::new(&place.folder).logs();
        let scripts: Vec<Script> = specs.iter().map(|spec| Script::new(study, spec, place)).collect();
        for script in &scripts {
            let write = || {
                // The file that lets agents join is there, too: only its owner may enter.
                let folder = script.path.parent().unwrap_or(&script.path);
                fs::create_dir_all(&logs)?;
                DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
                fs::write(&script.path, &script.text)
            };
            write().map_err(|error| Error::File { path: script.path.clone(), problem: error.to_string() })?;
        }
        Ok(Self { study, scripts, folder: Folder::new(&place.folder), tools })
    }

    /// All jobs of a study, whatever its study file says now.
    pub fn jobs(tools: &Tools, study: StudyId) -> Result<Vec<QueuedJob>, Error> {
        let rows = rows(tools, study)?;
        Ok(rows.into_iter().map(|row| row.into_job(&[])).collect())
    }

    /// Ends all jobs of a study, and returns them.
    pub fn cancel_all(tools: &Tools, study: StudyId) -> Result<Vec<String>, Error> {
        let alive = |job: QueuedJob| (!matches!(job.state, JobState::Ended { .. })).then_some(job.job);
        let jobs: Vec<String> = Self::jobs(tools, study)?.into_iter().filter_map(alive).collect();
        cancel(tools, &jobs)?;
        Ok(jobs)
    }
}

/// Asks Slurm whether it would take a script, without submitting it, and when it would run.
pub fn test(tools: &Tools, script: &Script) -> Result<String, Error> {
    let printed = tools.run_with(Tool::Sbatch, &["--test-only"], &script.text)?;
    let lines = printed.stderr.lines().chain(printed.stdout.lines());
    let lines: Vec<&str> = lines.map(|line| line.trim_start_matches("sbatch: ").trim()).collect();
    Ok(lines.into_iter().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; "))
}

fn rows(tools: &Tools, study: StudyId) -> Result<Vec<Row>, Error> {
    let text = tools.run(Tool::Squeue, &["--noheader", "--me", "--states=all", "--format", queue::FORMAT])?;
    let prefix = script::job_prefix(study);
    Ok(queue::parse(&text)?.into_iter().filter(|row| row.name.starts_with(&prefix)).collect())
}

fn cancel(tools: &Tools, jobs: &[String]) -> Result<(), Error> {
    if jobs.is_empty() {
        return Ok(());
    }
    let jobs: Vec<&str> = jobs.iter().map(String::as_str).collect();
    match tools.run(Tool::Scancel, &jobs) {
        Err(Error::Refused { text, .. }) if queue::is_gone(&text) => Ok(()),
        other => other.map(drop),
    }
}

impl Provider for Slurm {
    fn submit(&mut self, kind: usize) -> Result<String, Error> {
        let script = self.scripts[kind].path.display().to_string();
        let text = self.tools.run(Tool::Sbatch, &["--parsable", &script])?;
        queue::submitted(&text)
    }

    fn poll(&mut self) -> Result<Vec<QueuedJob>, Error> {
        let names: Vec<&str> = self.scripts.iter().map(|script| script.name.as_str()).collect();
        Ok(rows(&self.tools, self.study)?.into_iter().map(|row| row.into_job(&names)).collect())
    }

    fn cancel(&mut self, jobs: &[String]) -> Result<(), Error> {
        cancel(&self.tools, jobs)
    }

    fn log(&mut self, job: &str) -> String {
        tail(&self.folder.logs().join(format!("pilot-{job}.log")))
    }
}
