//! `pollux-tune stop`: an orderly end of a run, as by Ctrl-C, from anywhere on the machine.

use std::{io::Write, path::Path};

use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process},
};
use thiserror::Error;

use super::{inspect, output::Format, run::EMULATED_QUEUE};
use crate::{
    cli,
    ids::TrialId,
    store::{self, Folder, Reader, Runner, TrialState},
    wire::{self, ControlRequest, Heard},
};

/// What can be wrong with a study that is to be stopped.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error("the study in {folder} is run by process {process} on {host}: stop it there")]
    Elsewhere { folder: String, process: u32, host: String },
    #[error("nobody runs the study in {folder}: a trial can be stopped only while it runs")]
    NotRun { folder: String },
    #[error("there is no trial {trial} in {folder}, {count} so far")]
    NoTrial { trial: u32, folder: String, count: usize },
    #[error("trial {trial} has ended already: it is {state}")]
    Ended { trial: u32, state: TrialState },
}

/// The process of this machine that runs a study, if one does.
pub(super) fn runner_here(reader: &Reader) -> Result<Option<Runner>, cli::Error> {
    let runner = reader.runner()?;
    if let Some(Runner { process, host, .. }) = runner.as_ref().filter(|it| it.host != Runner::this().host) {
        let folder = reader.folder().root().display().to_string();
        return Err(Error::Elsewhere { folder, process: *process, host: host.clone() }.into());
    }
    Ok(runner)
}

/// What becomes of a wish whose head cannot write for now.
pub(super) const LATER: &str = "the study waits for its disk; this is noted, and done as soon as the disk can be written, unless the study \
                                ends before: do not ask again";

/// Ends trials of a study that runs, for good. All must be there and not have ended, else none is touched.
pub(super) fn trials(folder: &Path, trials: &[u32], out: &mut impl Write) -> Result<(), cli::Error> {
    let reader = Reader::open(folder)?;
    let shown = || folder.display().to_string();
    if runner_here(&reader)?.is_none() {
        return Err(Error::NotRun { folder: shown() }.into());
    }
    for &trial in trials {
        match reader.trial(TrialId(trial))? {
            None => {
                let count = reader.trials()?.len();
                return Err(Error::NoTrial { trial, folder: shown(), count }.into());
            }
            Some(row) if row.state.is_end() => {
                return Err(Error::Ended { trial, state: row.state }.into());
            }
            Some(_) => {}
        }
    }
    for &trial in trials {
        let request = ControlRequest::StopTrial { trial: TrialId(trial) };
        let line = match wire::ask_head(&reader.folder().control(), request)? {
            Heard::Done => format!("trial {trial} is stopped"),
            Heard::Noted => format!("trial {trial} is not stopped yet: {LATER}"),
        };
        writeln!(out, "{line}").map_err(cli::Error::Stdout)?;
    }
    Ok(())
}

/// Asks the process that runs a study to stop, waits until it has, and prints how to resume it.
pub(super) fn run(
    folder: &Path,
    no_wait: bool,
    out: &mut impl Write,
    stderr: &mut impl Write,
) -> Result<(), cli::Error> {
    let reader = Reader::open(folder)?;
    match runner_here(&reader)? {
        None => writeln!(out, "nobody runs the study in {}", folder.display()).map_err(cli::Error::Stdout)?,
        Some(runner) => {
            interrupt(&reader, runner.process)?;
            if no_wait {
                let asked = format!("process {} was asked to stop", runner.process);
                return writeln!(out, "{asked}").map_err(cli::Error::Stdout);
            }
            // It waits, whether or not this is read.
            let _ = writeln!(stderr, "process {} was asked to stop; waiting until it has", runner.process);
            reader.wait()?;
        }
    }
    inspect::status(folder, Format::Text, out)?;
    if !reader.status()?.done {
        writeln!(out, "resume with: {}", resume(reader.folder())).map_err(cli::Error::Stdout)?;
    }
    Ok(())
}

/// The command that resumes a study.
pub(super) fn resume(folder: &Folder) -> String {
    // As `run` has marked it.
    let devices = folder.emulated();
    let emulated = devices.as_deref().and_then(|devices| devices.split_once(", time scale "));
    let emulated = emulated.map_or_else(String::new, |(cluster, time_scale)| {
        let cluster = if cluster == EMULATED_QUEUE { String::new() } else { format!(" {cluster}") };
        format!(" --emulate{cluster} --time-scale {time_scale}")
    });
    format!("pollux-tune run {} --folder {}{emulated}", folder.study().display(), folder.root().display())
}

/// As Ctrl-C does. One that has ended in the meantime needs it no more.
pub(super) fn interrupt(reader: &Reader, process: u32) -> Result<(), cli::Error> {
    // 0 and what is negative would mean groups of processes.
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or_else(|| store::Error::Damaged {
        path: reader.folder().root().to_owned(),
        problem: format!("there can be no process {process}"),
    })?;
    match kill_process(pid, Signal::INT) {
        Err(Errno::SRCH) if !reader.is_run() => Ok(()),
        sent => {
            Ok(sent.map_err(|errno| {
                cli::Error::system(format!("ask process {process} to stop"))(errno.into())
            })?)
        }
    }
}
