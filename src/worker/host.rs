//! The life of a worker process: it hosts a rank of whatever trial it is given.

use std::{
    collections::VecDeque,
    panic, process,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, TryRecvError},
    },
    thread,
    time::{Duration, Instant},
};

use c10d::{AbortHandle, ProcessGroup, Store};
use tch::Device;

use super::{
    Registry,
    checkpoint::Writing,
    error::Error,
    launch::Place,
    session::{Seen, Session},
    team::Team,
    transfer::{self, Role, StateTransfer},
};
use crate::{
    goodput::{Observation, Shape},
    ids::{Round, SlotId, TrialId},
    trials::group::{Batch, Evaluation, FinalState, Form, WorkerCommand, WorkerEvent, WorkerReport},
    wire::{self, CommandReceiver, EventSender, Hello, VERSION, with_causes},
};

/// The group that can be aborted from outside: with its round.
type Abortable = Arc<Mutex<Option<(Round, AbortHandle)>>>;

/// If this process was started as a worker, works until the head is gone, and then ends the process.
///
/// Every program with a [`Pool`](super::Pool) calls it first thing in `main`.
pub fn serve_if_worker(registry: &Registry) {
    let served = match Place::of_this_process() {
        Ok(None) => return,
        Ok(Some(place)) => {
            serve(&place, registry).map_err(|error| format!("worker {}: {}", place.slot, with_causes(&error)))
        }
        Err(error) => Err(with_causes(&error)),
    };
    let code = match served {
        Ok(()) => 0,
        Err(message) => {
            tell_the_user(&message);
            1
        }
    };
    process::exit(code);
}

#[expect(clippy::print_stderr, reason = "the head is out of reach, and a silent end helps nobody")]
fn tell_the_user(message: &str) {
    eprintln!("{message}");
}

/// Serves the head until it is gone.
fn serve(place: &Place, registry: &Registry) -> Result<(), Error> {
    tch::set_num_threads(place.threads.cast_signed());
    let store = Store::host("127.0.0.1:0")?;
    let hello = Hello { version: VERSION, slot: place.slot, pid: process::id() };
    let (speaker, listener) = wire::attach_blocking(&place.address, &place.secret, hello)?;
    let abortable = Abortable::default();
    let inbox = Inbox::listen(listener, speaker.clone(), abortable.clone())?;
    let hosted = Arc::new(Mutex::new(None));
    report_panics(speaker.clone(), hosted.clone());
    let device = place.cuda.map_or(Device::Cpu, |device| Device::Cuda(device as usize));
    let slot = place.slot;
    Host { slot, device, registry, store, inbox, speaker, abortable, session: None, hosted }.run();
    Ok(())
}

/// Code of a trainable may panic, and panics may abort: the head is told before that happens.
fn report_panics(speaker: EventSender, hosted: Arc<Mutex<Option<TrialId>>>) {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        usual(info);
        if let Some(trial) = hosted.try_lock().ok().and_then(|trial| *trial) {
            speaker.send(&WorkerEvent::Failed { trial, reason: info.to_string() });
        }
        speaker.close();
        process::exit(101);
    }));
}

/// Commands that have come and are not done yet.
struct Inbox {
    coming: Receiver<WorkerCommand>,
    waiting: VecDeque<WorkerCommand>,
}

impl Inbox {
    fn listen(
        mut listener: CommandReceiver,
        speaker: EventSender,
        abortable: Abortable,
    ) -> Result<Self, Error> {
        let (send, coming) = mpsc::channel();
        let listen = move || {
            while let Ok(Some(command)) = listener.recv() {
                if let WorkerCommand::Form(Form { round, broken: true, .. }) = &command {
                    abort_before(&abortable, *round);
                }
                if send.send(command).is_err() {
                    break;
                }
            }
            // Whoever closes the connection on this side ends the process, too.
            while speaker.is_closed() {
                thread::park();
            }
            // Without a head there is nobody to train for.
            process::exit(0);
        };
        thread::Builder::new()
            .name("listener".to_owned())
            .spawn(listen)
            .map_err(Error::io("starting a thread"))?;
        Ok(Self { coming, waiting: VecDeque::new() })
    }

    /// Takes in what has come.
    fn look(&mut self) {
        loop {
            match self.coming.try_recv() {
                Ok(command) => self.waiting.push_back(command),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return,
            }
        }
    }

    /// Whether the group of a trial is to be left.
    fn wants_to_leave(&self, trial: TrialId, round: Round) -> bool {
        self.waiting.iter().any(|command| match command {
            WorkerCommand::Form(form) => form.trial == trial && form.round > round,
            WorkerCommand::Release { trial: released, .. } => *released == trial,
            WorkerCommand::Prepare(_) | WorkerCommand::Retune { .. } => false,
        })
    }

    /// The next batch that the group was given.
    fn retuned(&self, trial: TrialId, round: Round) -> Option<(usize, Batch)> {
        self.waiting.iter().enumerate().find_map(|(at, command)| match command {
            WorkerCommand::Retune { trial: other, round: of, batch } if *other == trial && *of == round => {
                Some((at, *batch))
            }
            _ => None,
        })
    }

    /// Waits for the next command; none if there will be no more.
    fn next(&mut self) -> Option<WorkerCommand> {
        self.waiting.pop_front().or_else(|| self.coming.recv().ok())
    }
}

fn abort_before(abortable: &Abortable, round: Round) {
    let group = abortable.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, handle)) = group.as_ref().filter(|(of, _)| *of < round) {
        handle.abort();
    }
}

struct Host<'a> {
    slot: SlotId,
    device: Device,
    registry: &'a Registry,
    store: Store,
    inbox: Inbox,
    speaker: EventSender,
    abortable: Abortable,
    session: Option<Session>,
    /// The trial of the session, for those who cannot wait for it.
    hosted: Arc<Mutex<Option<TrialId>>>,
}

/// Why a group trains no longer.
enum End {
    /// All members have left together.
    Left,
    /// The trial is complete.
    Finished,
}

impl Host<'_> {
    fn run(mut self) {
        while let Some(command) = self.inbox.next() {
            match command {
                WorkerCommand::Prepare(task) => {
                    let trial = task.trial;
                    *self.hosted.lock().unwrap_or_else(PoisonError::into_inner) = Some(trial);
                    match Session::new(*task, self.registry, self.device) {
                        Ok(session) => {
                            self.session = Some(session);
                            let rendezvous_addr = self.store.address().to_owned();
                            self.say(&WorkerEvent::Prepared { trial, rendezvous_addr });
                        }
                        Err(error) => self.fail(trial, &error),
                    }
                }
                WorkerCommand::Form(form) => self.form(&form),
                // Its group is gone.
                WorkerCommand::Retune { .. } => {}
                WorkerCommand::Release { trial, state } => self.release(trial, state),
            }
        }
    }

    fn say(&self, event: &WorkerEvent) {
        self.speaker.send(event);
    }

    fn fail(&mut self, trial: TrialId, error: &Error) {
        self.forget();
        self.say(&WorkerEvent::Failed { trial, reason: with_causes(error) });
    }

    fn forget(&mut self) {
        self.session = None;
        *self.hosted.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn release(&mut self, trial: TrialId, state: FinalState) {
        if let Some(session) = self.session.as_ref().filter(|session| session.task.trial == trial) {
            if state == FinalState::Saved && session.is_current {
                match Writing::start(session).and_then(Writing::finish) {
                    Ok(steps) => self.say(&WorkerEvent::Checkpointed { trial, steps }),
                    Err(error) => return self.fail(trial, &error),
                }
            }
            self.forget();
        }
        self.say(&WorkerEvent::Released { trial });
    }

    /// Takes part in a new round for as long as it lasts.
    fn form(&mut self, form: &Form) {
        let (trial, round) = (form.trial, form.round);
        let role = transfer::role(form, self.slot);
        let Some(mut session) = self.session.take().filter(|session| session.task.trial == trial) else {
            let reason = "the worker was told to train before it had prepared".to_owned();
            return self.say(&WorkerEvent::Broken { trial, round, steps: None, reason });
        };
        let formed = self.meet(form, role, &mut session);
        let ended = match formed {
            Ok(Some((mut team, pause))) => {
                let steps = session.steps();
                self.say(&WorkerEvent::Formed { trial, round, steps, pause });
                self.train(&mut session, &mut team, form.batch)
            }
            Ok(None) => {
                drop(session);
                self.forget();
                return self.say(&WorkerEvent::Released { trial });
            }
            Err(error) => Err(error),
        };
        *self.abortable.lock().unwrap_or_else(PoisonError::into_inner) = None;
        match ended {
            Ok(End::Left | End::Finished) => self.session = Some(session),
            Err(error) if error.is_of_the_group() => {
                let steps = session.is_current.then(|| session.steps());
                self.session = Some(session);
                self.say(&WorkerEvent::Broken { trial, round, steps, reason: with_causes(&error) });
            }
            Err(error) => {
                drop(session);
                self.fail(trial, &error);
            }
        }
    }

    fn meet(
        &mut self,
        form: &Form,
        role: Role,
        session: &mut Session,
    ) -> Result<Option<(Team, crate::trials::group::Pause)>, Error> {
        let Self { inbox, store, abortable, device, .. } = self;
        let mut is_over = || {
            inbox.look();
            inbox.wants_to_leave(form.trial, form.round)
        };
        let started = |group: &ProcessGroup| {
            let handle = (form.round, group.abort_handle());
            *abortable.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        };
        let options = StateTransfer::options(*device);
        let mut meeting = StateTransfer { own: store, options, is_over: &mut is_over };
        let (team, pause) = meeting.form(form, role, session, &started)?;
        Ok(team.map(|team| (team, pause)))
    }

    /// Trains until the group is left, the trial is complete, or something fails.
    fn train(&mut self, session: &mut Session, team: &mut Team, first: Batch) -> Result<End, Error> {
        let trial = session.task.trial;
        let mut batch = first;
        let mut desk = Desk::new(session);
        loop {
            if session.is_finished()? {
                let values = session.evaluate(team)?;
                if team.rank == 0 {
                    desk.metrics.push(Evaluation { epochs: session.epochs()?, values: values.clone() });
                    self.say(&WorkerEvent::Reported(Box::new(desk.report(session, team, batch)?)));
                    self.save(session, &mut desk, true)?;
                    let round = team.round;
                    self.say(&WorkerEvent::Finished { trial, round, metrics: values });
                }
                return Ok(End::Finished);
            }
            self.inbox.look();
            let leave = self.inbox.wants_to_leave(trial, team.round);
            let retuned = self.inbox.retuned(trial, team.round);
            let agreed = session.step(team, batch, leave, retuned.is_some())?;
            if let (true, Some((at, other))) = (agreed.retune, retuned) {
                self.inbox.waiting.remove(at);
                batch = other;
                session.begin(team)?;
            }
            if session.wants_evaluation()? && !session.is_finished()? {
                let values = session.evaluate(team)?;
                desk.metrics.push(Evaluation { epochs: session.epochs()?, values });
                desk.hurry = true;
            }
            if team.rank == 0 {
                self.save(session, &mut desk, false)?;
                if desk.is_due(session) || agreed.leave {
                    self.say(&WorkerEvent::Reported(Box::new(desk.report(session, team, batch)?)));
                }
            }
            if agreed.leave {
                return Ok(End::Left);
            }
        }
    }

    /// Starts a checkpoint when it is time, and tells of one that is done. `now` waits for the last one.
    fn save(&self, session: &Session, desk: &mut Desk, now: bool) -> Result<(), Error> {
        let trial = session.task.trial;
        if let Some(writing) = desk.writing.take_if(|writing| now || writing.is_done()) {
            self.say(&WorkerEvent::Checkpointed { trial, steps: writing.finish()? });
        }
        let every = Duration::from_secs_f64(session.task.checkpoint_every_s.min(1e9));
        if desk.writing.is_none() && (now || desk.saved.elapsed() >= every) {
            desk.saved = Instant::now();
            let writing = Writing::start(session)?;
            if now {
                self.say(&WorkerEvent::Checkpointed { trial, steps: writing.finish()? });
            } else {
                desk.writing = Some(writing);
            }
        }
        Ok(())
    }
}

/// What the first rank of a group writes down.
struct Desk {
    reported: Instant,
    saved: Instant,
    writing: Option<Writing>,
    metrics: Vec<Evaluation>,
    hurry: bool,
}

impl Desk {
    fn new(session: &mut Session) -> Self {
        // What was seen before in another rank was never reported and is old.
        session.seen = Seen::default();
        let now = Instant::now();
        Self { reported: now, saved: now, writing: None, metrics: Vec::new(), hurry: false }
    }

    fn is_due(&self, session: &Session) -> bool {
        let every = Duration::from_secs_f64(session.task.report_every_s.min(1e9));
        self.hurry || self.reported.elapsed() >= every
    }

    fn report(&mut self, session: &mut Session, team: &Team, batch: Batch) -> Result<WorkerReport, Error> {
        self.reported = Instant::now();
        self.hurry = false;
        let seen = std::mem::take(&mut session.seen);
        let count = seen.losses.len() as f64;
        let shape = Shape::new(team.size, team.nodes)?;
        let step_times = seen.times.iter().map(|times| Observation { shape, ..times });
        let counters = session.counters();
        Ok(WorkerReport {
            trial: session.task.trial,
            round: team.round,
            steps: counters.steps,
            examples: counters.examples,
            epochs: session.epochs()?,
            loss: (count > 0.0).then(|| seen.losses.iter().sum::<f64>() / count),
            learning_rate: seen.learning_rate,
            batch: Some(batch),
            step_times: step_times.collect(),
            noise: session.noise().settled(),
            evaluations: std::mem::take(&mut self.metrics),
        })
    }
}
