//! What the thread that trains is asked, behind the worker protocol.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender},
    },
    time::{Duration, Instant},
};

use super::{
    GroupPlace, GroupStore, SavedTensor, Training,
    saved::{self},
};
use crate::{
    ids::Round,
    trials::group::{Batch, Evaluation, Form, MemoryLimit, Pause, Task, WorkerReport},
    wire::with_causes,
    worker::{
        Error,
        abort::Aborts,
        checkpoint::{CheckpointWriter, NotSaved},
        host::HostedTrial,
        protocol::{Backend, Failure, Role, StepProgress, StepRequest},
        rendezvous::{CONNECT_TIMEOUT, Rendezvous, Room, await_all},
    },
};

/// What the thread that trains is to do next. Each request has one [`Answer`].
pub enum Request {
    /// Make the model. The books have to know of the data when a first step is taken, or when the state says so. Answer: [`Answer::Done`].
    Prepare {
        /// What is trained.
        task: Box<Task>,
        /// Its books.
        training: Arc<Mutex<Training>>,
    },
    /// Form a group with members that are all there, and bring all of them up to date. Answer: [`Answer::Formed`].
    Form(Box<GroupRequest>),
    /// Take steps for as long as [`DrivenWorker::may_continue`](super::DrivenWorker::may_continue) says. Answer: [`Answer::Trained`].
    Train {
        /// Vote to leave the group.
        leave: bool,
        /// Vote for another batch.
        retune: bool,
    },
    /// Evaluate, together with all members. Answer: [`Answer::Evaluated`].
    Evaluate,
    /// Copy the state. Answer: [`Answer::Saved`].
    Save,
    /// The group is over. Answer: [`Answer::Done`].
    LeaveGroup,
    /// The trial is over. Answer: [`Answer::Done`].
    Forget,
}

/// A group that is to be formed.
pub struct GroupRequest {
    /// What the group is called: it aborts what has another name.
    pub(super) form: Form,
    /// The worker's place among all, who train first.
    pub place: u32,
    /// Members and donors.
    pub everybody: u32,
    /// Who trains.
    pub members: u32,
    /// Machines of those who train.
    pub nodes: u32,
    /// What a step takes.
    pub batch: Batch,
    /// Where members exchange addresses; none if there is only one.
    pub store: Option<Arc<dyn GroupStore>>,
}

impl GroupRequest {
    /// Whether the worker only hands over its state.
    #[must_use]
    pub const fn is_donor(&self) -> bool {
        self.place >= self.members
    }

    /// The worker's place among those who train.
    #[must_use]
    pub const fn group_place(&self) -> GroupPlace {
        GroupPlace { rank: self.place, size: self.members, nodes: self.nodes, batch: self.batch }
    }
}

/// Whose fault it is that something failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The group has lost a member: the trial can continue in another one.
    Group,
    /// The trial's own.
    Trial,
    /// Something that all trials share, such as a full disk.
    Environment,
}

/// What has become of [`Request::Train`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trained {
    /// All members leave the group.
    pub left: bool,
    /// All members use the other batch.
    pub retuned: bool,
    /// The thread evaluates now.
    pub wants_evaluation: bool,
    /// What was reported since the last answer: statistical epochs and values.
    pub reports: Vec<(f64, BTreeMap<String, f64>)>,
}

/// What the thread that trains says.
#[derive(Debug)]
pub enum Answer {
    /// It is done.
    Done,
    /// The group is together.
    Formed {
        /// Seconds that it took to connect.
        form_s: f64,
        /// Seconds that it took to hand over the state.
        hand_over_s: f64,
    },
    /// Steps were taken.
    Trained(Trained),
    /// The metrics.
    Evaluated(BTreeMap<String, f64>),
    /// A copy of the state.
    Saved(Vec<SavedTensor>),
    /// It has failed.
    Failed {
        /// Whose fault it is.
        fault: Fault,
        /// Why.
        reason: String,
    },
}

/// What the protocol and the thread that trains share besides their channels.
#[derive(Debug)]
pub(super) struct Attention {
    /// A command has come.
    is_wanted: AtomicBool,
    /// When something is due.
    wake: Mutex<Option<Instant>>,
}

impl Attention {
    pub(super) const fn new() -> Self {
        Self { is_wanted: AtomicBool::new(false), wake: Mutex::new(None) }
    }

    /// A command has come.
    pub(super) fn want(&self) {
        self.is_wanted.store(true, Ordering::Release);
    }

    fn wake(&self) -> MutexGuard<'_, Option<Instant>> {
        self.wake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing is due.
    pub(super) fn is_free(&self) -> bool {
        !self.is_wanted.load(Ordering::Acquire) && self.wake().is_none_or(|wake| Instant::now() < wake)
    }
}

/// The protocol's end of the channels.
pub(super) struct Channels {
    pub(super) requests: Sender<Request>,
    pub(super) answers: Mutex<Receiver<Answer>>,
}

impl Channels {
    fn ask(&self, request: Request) -> Result<Answer, Failure> {
        let gone = || Failure::Trial("the thread that trains has ended".to_owned());
        self.requests.send(request).map_err(|_| gone())?;
        let answered = self.answers.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match answered.map_err(|_| gone())? {
            Answer::Failed { fault: Fault::Group, reason } => Err(Failure::Group(reason)),
            Answer::Failed { fault: Fault::Trial, reason } => Err(Failure::Trial(reason)),
            Answer::Failed { fault: Fault::Environment, reason } => Err(Failure::Environment(reason)),
            answer => Ok(answer),
        }
    }
}

/// Only a mistake of the thread that trains.
fn unexpected(answer: &Answer) -> Failure {
    Failure::Trial(format!("the thread that trains answers something else: {answer:?}"))
}

fn failed(error: &Error) -> Failure {
    let reason = with_causes(error);
    if error.is_of_the_environment() { Failure::Environment(reason) } else { Failure::Trial(reason) }
}

/// The books of a trial.
fn books(training: &Mutex<Training>) -> MutexGuard<'_, Training> {
    training.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Training by another thread.
pub(super) struct DrivenBackend {
    pub(super) channels: Arc<Channels>,
    pub(super) rendezvous: Rendezvous,
    pub(super) aborts: Aborts,
    pub(super) hosted: HostedTrial,
    pub(super) attention: Arc<Attention>,
    pub(super) started: Instant,
}

/// A trial that was prepared.
pub(super) struct Session {
    task: Task,
    training: Arc<Mutex<Training>>,
    writer: CheckpointWriter,
    channels: Arc<Channels>,
    hosted: HostedTrial,
}

impl Drop for Session {
    fn drop(&mut self) {
        // A thread that is gone has forgotten it.
        let _ = self.channels.ask(Request::Forget);
        self.hosted.set(None);
    }
}

/// A group that was joined.
pub(super) struct Group {
    form: Form,
    role: Role,
    batch: Batch,
    /// The thread that trains knows of it.
    is_known: bool,
    channels: Arc<Channels>,
    aborts: Aborts,
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.is_known {
            // A thread that is gone has no group.
            let _ = self.channels.ask(Request::LeaveGroup);
        }
        self.aborts.clear();
    }
}

impl Backend for DrivenBackend {
    type Session = Session;
    type Group = Group;

    fn rendezvous_addr(&self) -> String {
        self.rendezvous.address().to_owned()
    }

    fn now_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    async fn prepare(&mut self, task: Task) -> Result<Session, Failure> {
        let training = Arc::new(Mutex::new(Training::new(task.clone()).map_err(|error| failed(&error))?));
        self.hosted.set(Some(task.trial));
        let request = Request::Prepare { task: Box::new(task.clone()), training: training.clone() };
        match self.channels.ask(request) {
            Ok(Answer::Done) => {
                let (channels, hosted) = (self.channels.clone(), self.hosted.clone());
                Ok(Session { task, training, writer: CheckpointWriter::default(), channels, hosted })
            }
            Ok(answer) => Err(unexpected(&answer)),
            Err(failure) => {
                self.hosted.set(None);
                Err(failure)
            }
        }
    }

    fn steps(&self, session: &Session) -> Option<u64> {
        books(&session.training).state_steps()
    }

    fn is_finished(&self, session: &Session) -> Result<bool, Failure> {
        books(&session.training).is_finished().map_err(|error| failed(&error))
    }

    fn join(&mut self, _: &Session, form: &Form, role: Role) -> Result<Group, Failure> {
        let (channels, aborts) = (self.channels.clone(), self.aborts.clone());
        Ok(Group { form: form.clone(), role, batch: form.batch, is_known: false, channels, aborts })
    }

    async fn rendezvous(&mut self, session: &mut Session, group: &mut Group) -> Result<Pause, Failure> {
        let form = &group.form;
        let place = match group.role {
            Role::Train(place) | Role::Donate(place) => place,
            Role::Leave => return Ok(Pause::default()),
        };
        let began = Instant::now();
        let everybody = form.members.len() + form.donors.len();
        let store = if everybody > 1 {
            let lost = |error: super::StoreError| Failure::Group(error.to_string());
            let Room { store, .. } = self.rendezvous.room(form, place, CONNECT_TIMEOUT).map_err(lost)?;
            await_all(&*store, everybody).await.map_err(lost)?;
            Some(store)
        } else {
            None
        };
        let waited_s = began.elapsed().as_secs_f64();
        let (members, nodes, batch) = (form.members.len() as u32, form.machines(), form.batch);
        let everybody = everybody as u32;
        let request = GroupRequest { form: form.clone(), place, everybody, members, nodes, batch, store };
        group.is_known = true;
        match self.channels.ask(Request::Form(Box::new(request)))? {
            Answer::Formed { form_s, hand_over_s } => {
                self.hosted.set_state();
                let total_s = books(&session.training).idle_s();
                Ok(Pause { total_s, form_s: waited_s + form_s, hand_over_s })
            }
            answer => Err(unexpected(&answer)),
        }
    }

    /// Steps until something is due or a command has come.
    async fn train(
        &mut self,
        session: &mut Session,
        group: &mut Group,
        request: StepRequest,
    ) -> Result<StepProgress, Failure> {
        self.attention.is_wanted.store(false, Ordering::Release);
        // Here the worker looks at its commands: what has come before that need not be told, what comes after it is.
        tokio::task::yield_now().await;
        let wake =
            Duration::try_from_secs_f64(request.wake_s).ok().and_then(|wake| self.started.checked_add(wake));
        *self.attention.wake() = wake;
        let asked = Request::Train { leave: request.leave, retune: request.batch.is_some() };
        let Trained { left, retuned, wants_evaluation, reports } = match self.channels.ask(asked)? {
            Answer::Trained(trained) => trained,
            answer => return Err(unexpected(&answer)),
        };
        if let (true, Some(batch)) = (retuned, request.batch) {
            books(&session.training).retune(batch);
            group.batch = batch;
        }
        let evaluation = |(epochs, values)| Evaluation { epochs, values };
        let evaluations = reports.into_iter().map(evaluation).collect();
        Ok(StepProgress { left, retuned, evaluations, wants_evaluation })
    }

    fn evaluate(&mut self, session: &mut Session, _: &mut Group) -> Result<Evaluation, Failure> {
        let values = match self.channels.ask(Request::Evaluate)? {
            Answer::Evaluated(values) => values,
            answer => return Err(unexpected(&answer)),
        };
        Ok(Evaluation { epochs: books(&session.training).epochs().map_err(|error| failed(&error))?, values })
    }

    fn measure(&mut self, session: &mut Session, _: &mut Group) -> Result<WorkerReport, Failure> {
        books(&session.training).report().map_err(|error| failed(&error))
    }

    fn memory(&mut self, session: &mut Session) -> Option<MemoryLimit> {
        books(&session.training).memory.news()
    }

    fn warning(&mut self, session: &mut Session) -> Option<String> {
        books(&session.training).warning.take()
    }

    fn save(&mut self, session: &mut Session, round: Round) -> Result<(), NotSaved> {
        let not_saved = |failure| match failure {
            Failure::Group(reason) | Failure::Trial(reason) | Failure::Environment(reason) => {
                NotSaved(reason)
            }
        };
        let tensors = match self.channels.ask(Request::Save).map_err(not_saved)? {
            Answer::Saved(tensors) => tensors,
            answer => return Err(not_saved(unexpected(&answer))),
        };
        let (steps, state) = {
            let books = books(&session.training);
            (books.steps(), books.state().map_err(|error| NotSaved(with_causes(&error)))?)
        };
        let task = session.task.clone();
        session.writer.start(steps, move || saved::write(&task, (steps, round), state, &tensors))
    }

    fn saved(&mut self, session: &mut Session, wait: bool) -> Result<Option<u64>, NotSaved> {
        session.writer.finish(wait)
    }

    fn leave(&mut self, group: Group) {
        drop(group);
    }

    fn abort(&mut self, _: &mut Session, group: Group) {
        drop(group);
    }
}
