//! `pollux-tune stop`: an orderly end of a run, as by Ctrl-C, from anywhere on the machine.

use std::{io::Write, path::PathBuf};

use anyhow::Context;
use clap::Args;
use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process},
};
use thiserror::Error;

use super::{fit::Format, inspect, output_error};
use crate::store::{self, Reader, Runner};

/// Stop a study that runs, to go on with it later
#[derive(Debug, Args)]
#[command(long_about = ABOUT, arg_required_else_help = true)]
pub(super) struct StopArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Do not wait until it has stopped
    #[arg(long)]
    no_wait: bool,
}

const ABOUT: &str = "\
Stop a study that runs, to go on with it later

The process that runs the study is asked to stop as by Ctrl-C: trials write their state first. Then it is shown
how the study stands.";

/// What can be wrong with a study that is to be stopped.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error("the study in {folder} is run by process {process} on {host}: stop it there")]
    Elsewhere { folder: String, process: u32, host: String },
}

/// Asks the process that runs a study to stop, waits until it has, and says how to go on.
pub(super) fn run(arguments: &StopArgs, out: &mut impl Write, notes: &mut impl Write) -> anyhow::Result<()> {
    let StopArgs { folder, no_wait } = arguments;
    let reader = Reader::open(folder)?;
    match reader.runner()? {
        None => writeln!(out, "nobody runs the study in {}", folder.display()).map_err(output_error)?,
        Some(runner) => {
            if runner.host != Runner::this().host {
                let (folder, Runner { process, host }) = (folder.display().to_string(), runner);
                return Err(Error::Elsewhere { folder, process, host }.into());
            }
            interrupt(&reader, runner.process)?;
            if *no_wait {
                let asked = format!("process {} was asked to stop", runner.process);
                return writeln!(out, "{asked}").map_err(output_error);
            }
            // Waiting goes on, whether or not anybody hears of it.
            let _ = writeln!(notes, "process {} was asked to stop: waiting for its end", runner.process);
            reader.wait()?;
        }
    }
    inspect::status(folder, Format::Text, out)?;
    if !reader.status()?.done {
        let (file, folder) = (reader.folder().study(), folder.display());
        // As `run` has marked it.
        let devices = reader.folder().emulated();
        let emulated = devices.as_deref().and_then(|devices| devices.split_once(", time scale "));
        let emulated = emulated.map_or_else(String::new, |(cluster, time_scale)| {
            format!(" --emulate {cluster} --time-scale {time_scale}")
        });
        let go_on = format!("go on with: pollux-tune run {} --folder {folder}{emulated}", file.display());
        writeln!(out, "{go_on}").map_err(output_error)?;
    }
    Ok(())
}

/// As Ctrl-C does. One that has ended in the meantime needs it no more.
fn interrupt(reader: &Reader, process: u32) -> anyhow::Result<()> {
    // 0 and what is negative would mean groups of processes.
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or_else(|| store::Error::Damaged {
        path: reader.folder().root().to_owned(),
        problem: format!("there can be no process {process}"),
    })?;
    match kill_process(pid, Signal::INT) {
        Err(Errno::SRCH) if !reader.is_run() => Ok(()),
        sent => sent.with_context(|| format!("cannot ask process {process} to stop")),
    }
}
