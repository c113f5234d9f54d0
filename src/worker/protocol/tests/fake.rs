//! A backend that does what the test wants, call by call.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use tokio::sync::mpsc::UnboundedReceiver;

use crate::{
    ids::Round,
    trials::group::{Evaluation, Form, MemoryLimit, Pause, Task, WorkerReport},
    worker::{
        checkpoint::NotSaved,
        protocol::{Backend, Failure, Role, StepProgress, StepRequest},
    },
};

/// What a backend was asked to do.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Call {
    Join(Role),
    Train(StepRequest),
    Evaluate,
    Save,
    /// A checkpoint was waited for.
    Wait,
    Leave,
    Abort,
    Drop,
}

pub(super) type Steps = Result<StepProgress, Failure>;

/// What a test does with a backend.
#[derive(Debug, Clone, Default)]
pub(super) struct Script {
    pub(super) calls: Arc<Mutex<Vec<Call>>>,
    pub(super) now_s: Arc<AtomicU32>,
    /// Steps until the trial is complete.
    pub(super) finish: Arc<AtomicU32>,
    /// Checkpoints are written as soon as they are begun, and not only when they are waited for.
    pub(super) is_done: Arc<AtomicBool>,
    /// Checkpoints cannot be written.
    pub(super) is_full: Arc<AtomicBool>,
    /// What the next rendezvous finds wrong with the checkpoints.
    pub(super) warning: Arc<Mutex<Option<String>>>,
    /// What the next step learns of the memory.
    pub(super) memory: Arc<Mutex<Option<MemoryLimit>>>,
}

impl Script {
    fn called(&self, call: Call) {
        self.calls.lock().unwrap().push(call);
    }

    /// What was called since the last look.
    pub(super) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

pub(super) struct Fake {
    pub(super) script: Script,
    pub(super) prepares: UnboundedReceiver<Result<(), Failure>>,
    pub(super) meetings: UnboundedReceiver<Result<u64, Failure>>,
    pub(super) steps: UnboundedReceiver<Steps>,
}

pub(super) struct FakeSession {
    pub(super) script: Script,
    steps: Option<u64>,
    saving: Option<u64>,
}

impl Drop for FakeSession {
    fn drop(&mut self) {
        self.script.called(Call::Drop);
    }
}

impl Backend for Fake {
    type Session = FakeSession;
    type Group = ();

    fn rendezvous_addr(&self) -> String {
        "here".to_owned()
    }

    fn now_s(&self) -> f64 {
        f64::from(self.script.now_s.load(Ordering::Relaxed))
    }

    async fn prepare(&mut self, _: Task) -> Result<FakeSession, Failure> {
        self.prepares.recv().await.expect("the test continues")?;
        Ok(FakeSession { script: self.script.clone(), steps: None, saving: None })
    }

    fn steps(&self, session: &FakeSession) -> Option<u64> {
        session.steps
    }

    fn is_finished(&self, session: &FakeSession) -> Result<bool, Failure> {
        Ok(session.steps >= Some(u64::from(self.script.finish.load(Ordering::Relaxed))))
    }

    fn join(&mut self, _: &FakeSession, _: &Form, role: Role) -> Result<(), Failure> {
        self.script.called(Call::Join(role));
        Ok(())
    }

    async fn rendezvous(&mut self, session: &mut FakeSession, (): &mut ()) -> Result<Pause, Failure> {
        session.steps = Some(self.meetings.recv().await.expect("the test continues")?);
        Ok(Pause::default())
    }

    async fn train(
        &mut self,
        session: &mut FakeSession,
        (): &mut (),
        request: StepRequest,
    ) -> Result<StepProgress, Failure> {
        self.script.called(Call::Train(request));
        let progress = self.steps.recv().await.expect("the test continues")?;
        session.steps = session.steps.map(|steps| steps + 1);
        Ok(progress)
    }

    fn evaluate(&mut self, _: &mut FakeSession, (): &mut ()) -> Result<Evaluation, Failure> {
        self.script.called(Call::Evaluate);
        Ok(evaluation(2.0))
    }

    fn measure(&mut self, session: &mut FakeSession, (): &mut ()) -> Result<WorkerReport, Failure> {
        Ok(WorkerReport { steps: session.steps.unwrap_or(0), ..WorkerReport::default() })
    }

    fn memory(&mut self, _: &mut FakeSession) -> Option<MemoryLimit> {
        self.script.memory.lock().unwrap().take()
    }

    fn warning(&mut self, _: &mut FakeSession) -> Option<String> {
        self.script.warning.lock().unwrap().take()
    }

    fn save(&mut self, session: &mut FakeSession, round: Round) -> Result<(), NotSaved> {
        assert_eq!(session.saving, None, "one at a time");
        assert!(round > Round(0), "after a group");
        self.script.called(Call::Save);
        session.saving = session.steps;
        Ok(())
    }

    fn saved(&mut self, session: &mut FakeSession, wait: bool) -> Result<Option<u64>, NotSaved> {
        if wait {
            self.script.called(Call::Wait);
        }
        let is_done = wait || self.script.is_done.load(Ordering::Relaxed);
        match session.saving.take_if(|_| is_done) {
            Some(_) if self.script.is_full.load(Ordering::Relaxed) => Err(NotSaved("no space".to_owned())),
            steps => Ok(steps),
        }
    }

    fn leave(&mut self, (): ()) {
        self.script.called(Call::Leave);
    }

    fn abort(&mut self, _: &mut FakeSession, (): ()) {
        self.script.called(Call::Abort);
    }
}

pub(super) fn evaluation(epochs: f64) -> Evaluation {
    Evaluation { epochs, values: BTreeMap::from([("accuracy".to_owned(), epochs / 4.0)]) }
}
