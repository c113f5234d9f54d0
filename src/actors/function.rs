//! Trials that are functions of this program.

use std::{
    any::Any,
    collections::BTreeMap,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use actix::Recipient;
use thiserror::Error;
use tokio::sync::oneshot;

use super::{error::Error, message::EngineInput, supervisor::TrialRunners};
use crate::{
    ids::{Generation, TrialId},
    space::Params,
    trials::engine::{FailureCause, GroupCommand, GroupEvent, Input, Launch, Metrics, Report},
};

/// Why a function gives up.
pub(super) type Problem = Box<dyn std::error::Error + Send + Sync>;

/// What is tuned: parameters in, metrics out.
pub(super) type Function = dyn Fn(&mut Trial) -> Result<Metrics, Problem> + Send + Sync;

/// The trial is not wanted any more; its function should return, best with this as the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the trial was stopped")]
pub struct Stopped;

/// One trial, for the function that runs it.
#[derive(Debug)]
pub struct Trial {
    id: TrialId,
    params: Params,
    generation: Generation,
    reports: u32,
    is_stopped: Arc<AtomicBool>,
    supervisor: Recipient<EngineInput>,
}

impl Trial {
    /// Its number, from 0.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.id.0
    }

    /// What it tries.
    #[must_use]
    pub const fn params(&self) -> &Params {
        &self.params
    }

    /// Reports how far it is, in epochs, and what it has measured. An error says that the trial was given up.
    pub fn report<'a>(
        &mut self,
        epochs: f64,
        metrics: impl IntoIterator<Item = (&'a str, f64)>,
    ) -> Result<(), Stopped> {
        self.reports += 1;
        let metrics = metrics.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        let report = Report { number: self.reports, epochs, metrics, ..Report::default() };
        let (ack, answer) = oneshot::channel();
        let input = Input::group(self.id, self.generation, GroupEvent::Reported(report));
        self.supervisor.do_send(EngineInput { input, ack: Some(ack) });
        // The decision is made when this returns; without a supervisor there is nothing to run for.
        let is_alone = answer.blocking_recv().is_err();
        if is_alone || self.is_stopped() { Err(Stopped) } else { Ok(()) }
    }

    /// Whether it was given up. Functions that do not report can look here.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }
}

/// Threads that run functions.
pub(super) struct Functions {
    jobs: Sender<Trial>,
    running: BTreeMap<TrialId, Arc<AtomicBool>>,
}

impl Functions {
    /// Starts this many threads. They end when this is dropped and their functions have returned.
    pub(super) fn start(function: &Arc<Function>, threads: u32) -> Result<Self, Error> {
        let (jobs, queue) = mpsc::channel();
        let queue = Arc::new(Mutex::new(queue));
        for number in 0..threads {
            let (function, queue) = (function.clone(), queue.clone());
            thread::Builder::new()
                .name(format!("trial {number}"))
                .spawn(move || work(&*function, &queue))
                .map_err(Error::io("starting a thread"))?;
        }
        Ok(Self { jobs, running: BTreeMap::new() })
    }
}

impl TrialRunners for Functions {
    fn command(&mut self, trial: TrialId, command: GroupCommand, supervisor: &Recipient<EngineInput>) {
        match command {
            GroupCommand::Launch(Launch { generation, params, .. }) => {
                // Those whose function has returned are held by nobody else.
                self.running.retain(|_, flag| Arc::strong_count(flag) > 1);
                let is_stopped = Arc::new(AtomicBool::new(false));
                self.running.insert(trial, is_stopped.clone());
                let supervisor = supervisor.clone();
                let job = Trial { id: trial, params, generation, reports: 0, is_stopped, supervisor };
                // The threads live as long as this does.
                let _ = self.jobs.send(job);
            }
            GroupCommand::Stop(_) => {
                if let Some(flag) = self.running.remove(&trial) {
                    flag.store(true, Ordering::Release);
                }
            }
            GroupCommand::Reshape { .. } | GroupCommand::Retune { .. } => {}
        }
    }
}

impl Drop for Functions {
    fn drop(&mut self) {
        for flag in self.running.values() {
            flag.store(true, Ordering::Release);
        }
    }
}

fn work(function: &Function, queue: &Mutex<Receiver<Trial>>) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(mut trial) = next else { return };
        if trial.is_stopped() {
            continue;
        }
        let result = panic::catch_unwind(AssertUnwindSafe(|| function(&mut trial)));
        let Trial { id, generation, .. } = trial;
        let failed =
            |reason| Input::group(id, generation, GroupEvent::Failed { reason, cause: FailureCause::Trial });
        let input = match result {
            Ok(Ok(metrics)) => Input::group(id, generation, GroupEvent::Finished(metrics)),
            // The engine knows: it has asked for it.
            Ok(Err(problem)) if problem.is::<Stopped>() => continue,
            Ok(Err(problem)) => failed(problem.to_string()),
            Err(panic) => failed(format!("it panicked: {}", panic_text(&*panic))),
        };
        trial.supervisor.do_send(input.into());
    }
}

pub(super) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
