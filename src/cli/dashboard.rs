//! `pollux-tune dashboard`, and `run --dashboard`: studies as a live web page.

use std::{
    io::Write,
    net::{IpAddr, Ipv4Addr},
    path::Path,
    sync::Arc,
};

use super::{inspect, nodes, pause, retry, stop};
use crate::{
    cli,
    dashboard::{Background, Commands, Server, Settings, Signals, report},
    ids::TrialId,
    store::Folder,
    trials::engine::{JournalEntry, State},
    wire::with_causes,
};

/// Serves the page until Ctrl-C.
pub(super) fn run(
    settings: &Settings,
    out: &mut impl Write,
    stderr: &mut impl Write,
) -> Result<(), cli::Error> {
    let server = Server::bind(settings, Arc::new(Program))?;
    server.check()?;
    if server.is_public() {
        // Whether or not it is read.
        let _ = writeln!(
            stderr,
            "warning: other machines can reach this page, and what they see is not encrypted; `ssh -L` is safer"
        );
    }
    writeln!(out, "dashboard: {}", server.address()).map_err(cli::Error::Stdout)?;
    out.flush().map_err(cli::Error::Stdout)?;
    let _ = writeln!(stderr, "open this address in a browser; Ctrl-C ends it");
    Ok(server.serve(Signals::Obeyed, drop)?)
}

/// Serves the page of a study while it runs.
pub(super) fn start(folder: &Path) -> Result<Background, cli::Error> {
    let folders = vec![folder.to_owned()];
    let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let settings = Settings { folders, host, port: None, actions: true };
    Ok(Background::start(&settings, Arc::new(Program))?)
}

/// A study as a page in one file.
pub(super) fn page(folder: &Path) -> Result<String, cli::Error> {
    Ok(report(folder, Arc::new(Program))?)
}

/// Does what the commands of the same names do.
struct Program;

/// What a command prints, as one text.
fn said(command: impl FnOnce(&mut Vec<u8>) -> Result<(), cli::Error>) -> Result<String, String> {
    let mut out = Vec::new();
    command(&mut out).map_err(|error| with_causes(&error))?;
    Ok(String::from_utf8_lossy(&out).trim().to_owned())
}

impl Commands for Program {
    fn stop(&self, folder: &Path) -> Result<String, String> {
        said(|out| stop::run(folder, true, out, &mut std::io::sink()))
    }

    fn stop_trial(&self, folder: &Path, trial: TrialId) -> Result<String, String> {
        said(|out| stop::trials(folder, &[trial.0], out))
    }

    fn retry(&self, folder: &Path, trials: &[TrialId]) -> Result<String, String> {
        let trials: Vec<u32> = trials.iter().map(|trial| trial.0).collect();
        said(|out| retry::run(folder, &trials, out))
    }

    fn pause(&self, folder: &Path) -> Result<String, String> {
        said(|out| pause::pause(folder, out))
    }

    fn unpause(&self, folder: &Path) -> Result<String, String> {
        said(|out| pause::resume(folder, out))
    }

    fn enqueue(&self, folder: &Path, values: &[(String, String)]) -> Result<String, String> {
        said(|out| pause::enqueue(folder, values, out))
    }

    fn resume(&self, folder: &Path) -> String {
        stop::resume(&Folder::new(folder))
    }

    fn event(&self, entry: &JournalEntry, trial: TrialId) -> Option<String> {
        inspect::event(entry, trial)
    }

    fn machines(&self, state: &State) -> Vec<serde_json::Value> {
        nodes::machines(state)
    }
}
