//! Trainings by hand: studies whose tasks are given, and whose slots follow a script.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    time::Duration,
};

use tokio::sync::mpsc::UnboundedSender;

use super::{
    error::Error,
    runner::{Runner, Running, StopHandle},
    scripted::{Script, Steering},
    session::{TrialBackend, WorkerTasks, Workers},
    training_events::{Seen, Tracker, TrainingEvent},
};
use crate::{
    ids::GpuType,
    space::{Program, Study},
    trials::{
        agent::{AgentNode, PythonWork, Work},
        engine::{Fact, NO_METRIC, Outcome},
        group::{Batch, Task},
    },
    worker::Slot,
};

/// A study that leaves all choices to whoever starts it, without an objective.
const STUDY: &str = "
space: {unused: {float: [0, 1]}}
objective: {minimize: nothing}
search: {algorithm: random, parallel: 1, max_failures: 0}
scheduler: {interval: 4s, immediate: true}
";

/// Where and how to train.
#[derive(Debug, Clone)]
pub struct TrainingSettings {
    /// The slots that there are: this program is started again for each of them, so the first thing that it does must be
    /// [`serve_if_worker`](crate::worker::serve_if_worker), or else Python code.
    pub slots: Vec<Slot>,
    /// Those to begin with, by number.
    pub start: Vec<u32>,
    /// The batch may grow up to this; none if it stays what it is.
    pub max_batch: Option<u32>,
    /// The most examples that a worker takes at once.
    pub max_batch_per_worker: u32,
    /// The arguments with which this program is started again.
    pub worker_arguments: Vec<String>,
    /// Python code that trains, instead of this program.
    pub python: Option<PythonWork>,
    /// The least time that a step may take before its worker counts as hung; a minute by default.
    pub silence: Option<Duration>,
}

/// Trains given tasks, one after the other, on slots that change by command.
///
/// It is a study like others: its engine recovers when workers die. [`next`](Self::next) says what happens. When it is dropped, the
/// task that trains writes a checkpoint.
pub struct Training {
    seen: Receiver<Seen>,
    tracker: Tracker,
    ready: VecDeque<TrainingEvent>,
    slots: u32,
    wanted: Arc<Mutex<Vec<u32>>>,
    steering: UnboundedSender<Steering>,
    stop: StopHandle,
    /// None when it is over.
    study: Option<Running>,
}

impl Training {
    /// Starts workers, and then the first task when all of them are there. All tasks have the same batch; they are numbered in their order.
    pub fn start(mut tasks: Vec<Task>, settings: &TrainingSettings) -> Result<Self, Error> {
        for (number, task) in (0..).zip(&mut tasks) {
            task.trial = crate::ids::TrialId(number);
        }
        let study = study(&tasks, settings);
        let slots = settings.slots.len() as u32;
        let wanted = Arc::new(Mutex::new(settings.start.clone()));
        check(&settings.start, slots)?;
        let script = Script { wanted: wanted.clone(), slots, is_adaptive: settings.max_batch.is_some() };
        let nodes = nodes(settings)?;
        let (tell, seen) = channel();
        let of_facts = tell.clone();
        let runner = Runner::new(study)
            .worker_arguments(settings.worker_arguments.clone())
            .watch(move |_, entries| {
                for entry in entries {
                    // Whoever does not listen any more has dropped the training.
                    let _ = of_facts.send(Seen::Fact(entry.fact.clone()));
                }
            })
            .observe(move |_, slot, message| {
                let _ = tell.send(Seen::message(slot.node.0, message));
            });
        let (stop, steering) = (runner.stop_handle(), runner.steering());
        let (tasks, machine) = (WorkerTasks::Given { tasks, script }, runner.machine(nodes));
        let work = settings.python.clone().map_or(Work::Trainable, |work| Work::Python(Box::new(work)));
        let running = runner.start(TrialBackend::Workers(Workers { tasks, work, machine }))?;
        let (tracker, ready, study) = (Tracker::default(), VecDeque::new(), Some(running));
        let mut training = Self { seen, tracker, ready, slots, wanted, steering, stop, study };
        training.await_workers()?;
        Ok(training)
    }

    fn await_workers(&mut self) -> Result<(), Error> {
        let mut joined = 0;
        while joined < self.slots {
            match self.seen.recv() {
                Ok(Seen::Fact(Fact::NodeJoined { .. })) => joined += 1,
                Ok(seen) => self.ready.extend(self.tracker.take(seen)),
                Err(_) => return self.end(),
            }
        }
        Ok(())
    }

    /// Moves the training to these slots, while it trains.
    pub fn rescale(&self, slots: &[u32]) -> Result<(), Error> {
        check(slots, self.slots)?;
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = slots.to_vec();
        // At its end it follows nobody any more.
        let _ = self.steering.send(Steering::Replan);
        Ok(())
    }

    /// Uses another batch from the next step on that all workers can agree on, until the group changes.
    pub fn use_batch(&self, batch: Batch) {
        let _ = self.steering.send(Steering::Retune { trial: self.tracker.trial(), batch });
    }

    /// Whether the group that trains, as far as [`next`](Self::next) has told, has the slots that it is to have.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        wanted.sort_unstable();
        let mut members = self.tracker.members();
        members.sort_unstable();
        self.tracker.is_formed() && members == wanted
    }

    /// The next thing that happens; none if nothing does in time, and after the end of the last task.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<TrainingEvent>, Error> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            match self.seen.recv_timeout(timeout) {
                Ok(seen) => self.ready.extend(self.tracker.take(seen)),
                Err(RecvTimeoutError::Disconnected) if self.study.is_some() => self.end()?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    }

    /// The study is over.
    fn end(&mut self) -> Result<(), Error> {
        let Some(study) = self.study.take() else { return Ok(()) };
        if let Outcome::Failed(reason) = study.join()?.outcome {
            self.ready.push_back(TrainingEvent::Failed { reason });
        }
        Ok(())
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        self.stop.stop();
        // Nobody is left to tell of a failure.
        let _ = self.end();
    }
}

fn check(slots: &[u32], there: u32) -> Result<(), Error> {
    match slots.iter().find(|slot| **slot >= there) {
        Some(&slot) => Err(Error::NoSuchSlot { slot, slots: there }),
        None => Ok(()),
    }
}

fn study(tasks: &[Task], settings: &TrainingSettings) -> Study {
    let mut study = Study::from_yaml("training", STUDY).expect("the constant is a study");
    study.search.trials = tasks.len() as u32;
    for objective in &mut study.objectives {
        NO_METRIC.clone_into(&mut objective.metric);
    }
    if let Some(task) = tasks.first() {
        let max_batch = settings.max_batch.unwrap_or(task.initial_batch);
        study.trial.silence = settings.silence;
        study.trial.program = Some(Program::Trainable(task.trainable.clone()));
        (study.trial.epochs, study.trial.initial_batch) = (task.epochs, task.initial_batch);
        study.trial.max_batch = max_batch;
        study.trial.max_batch_per_gpu = Some(settings.max_batch_per_worker.min(max_batch));
    }
    study
}

/// Every slot is a node, so that plans can name it.
fn nodes(settings: &TrainingSettings) -> Result<Vec<AgentNode>, Error> {
    let is_gpu = settings.slots.first().is_some_and(|slot| slot.cuda.is_some());
    let gpu_type = GpuType::new(if is_gpu { "gpu" } else { "cpu" })?;
    let node = |slot: &Slot| AgentNode { gpu_type: gpu_type.clone(), slots: vec![slot.into()] };
    Ok(settings.slots.iter().map(node).collect())
}
