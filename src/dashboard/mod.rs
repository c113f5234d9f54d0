//! The live web page of studies, served to browsers by actix-web.
//!
//! `studies` finds studies and keeps a `model` of each, which follows its journal fact by fact; `answers` are JSON made from a model, paged
//! and thinned out so that a browser can show them however large the study is; `server` has the routes, `guard` decides who is heard,
//! `live` tells browsers what has changed, `metrics` tells Prometheus; `report` is the page as one file. What a page looks like is in `web`, embedded into the program.
//!
//! *Architecture invariant:* nothing is answered, not even a script, without the token; nothing is asked of any other machine, and the page
//! changes a study only through [`Commands`], that is, as the command line does.

mod answers;
mod assets;
mod guard;
mod live;
mod metrics;
mod model;
mod report;
mod server;
mod studies;
#[cfg(test)]
mod tests;
mod thin;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use thiserror::Error;

pub(crate) use self::{
    report::report,
    server::{Server, Signals},
};
use crate::{
    ids::TrialId,
    store,
    trials::engine::{JournalEntry, State},
    wire,
};

/// The port, if it is free and no other is wanted.
pub(crate) const PORT: u16 = 8787;

/// What is served, and where.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Folders of studies, or folders that have such folders in them.
    pub(crate) folders: Vec<PathBuf>,
    /// The address to listen at.
    pub(crate) host: IpAddr,
    /// The port; without one, [`PORT`] or any that is free.
    pub(crate) port: Option<u16>,
    /// Whether the page may change studies.
    pub(crate) actions: bool,
}

/// What the command line does and says, so that the page does and says the same. A text tells what was done, or what went wrong.
pub(crate) trait Commands: Send + Sync {
    /// Stops a study, to be resumed later.
    fn stop(&self, folder: &Path) -> Result<String, String>;
    /// Ends a trial for good.
    fn stop_trial(&self, folder: &Path, trial: TrialId) -> Result<String, String>;
    /// Lets failed trials run again: these, or all.
    fn retry(&self, folder: &Path, trials: &[TrialId]) -> Result<String, String>;
    /// Launches no trial of a study for now.
    fn pause(&self, folder: &Path) -> Result<String, String>;
    /// Launches trials of a paused study again.
    fn unpause(&self, folder: &Path) -> Result<String, String>;
    /// Tries known parameters before others: names, and values as they are typed.
    fn enqueue(&self, folder: &Path, values: &[(String, String)]) -> Result<String, String>;
    /// The command that runs a study on.
    fn resume(&self, folder: &Path) -> String;
    /// What a fact means for a trial.
    fn event(&self, entry: &JournalEntry, trial: TrialId) -> Option<String>;
    /// The machines of a study.
    fn machines(&self, state: &State) -> Vec<serde_json::Value>;
}

/// Why there is no page.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error("there is no study in {}, nor in a folder in it: give the folder of a study, such as studies/cifar10", .0.display())]
    NoStudy(PathBuf),
    #[error("{} has several studies: give the folder of one of them, such as {}", .folder.display(), .first.display())]
    SeveralStudies { folder: PathBuf, first: PathBuf },
    #[error("cannot listen at {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("the web server has failed")]
    Serve(#[source] io::Error),
    #[error(transparent)]
    Wire(#[from] wire::Error),
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl Error {
    /// Whether the user can correct it by typing something else.
    pub(crate) fn is_of_input(&self) -> bool {
        match self {
            Self::NoStudy(_) | Self::SeveralStudies { .. } | Self::Listen { .. } => true,
            Self::Serve(_) | Self::Wire(_) => false,
            Self::Store(error) => error.is_of_input(),
        }
    }
}

/// A page that is served by a thread of its own, until this is dropped.
#[derive(Debug)]
pub(crate) struct Background {
    address: String,
    stop: Option<server::Stop>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Background {
    /// Serves what `settings` say. A failure later on is only logged: the study is more important than its page.
    pub(crate) fn start(settings: &Settings, commands: Arc<dyn Commands>) -> Result<Self, Error> {
        let server = Server::bind(settings, commands)?;
        let address = server.address();
        let (send, stop) = std::sync::mpsc::channel();
        let serve = move || {
            let served = server.serve(server::Signals::Ignored, |stop| _ = send.send(stop));
            if let Err(error) = served {
                tracing::warn!(%error, "the page is gone");
            }
        };
        let thread =
            thread::Builder::new().name("dashboard".to_owned()).spawn(serve).map_err(Error::Serve)?;
        Ok(Self { address, stop: stop.recv().ok(), thread: Some(thread) })
    }

    /// Where a browser finds it, with the token.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop.now();
        }
        // A page that panicked has said so.
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}
