//! The life of a worker process: it hosts a rank of whatever trial it is given.

use std::{
    collections::VecDeque,
    panic,
    path::Path,
    process,
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
    hand_over::{self, Meeting, Role},
    link::{self, Listener, Speaker},
    session::{Seen, Session},
    team::Team,
};
use crate::wire::{Batch, Command, Event, Form, Metric, Noise, Report, StepTime, VERSION};

/// What a worker process is told when it is started.
#[derive(Debug, Clone)]
pub(super) struct Place<'a> {
    pub(super) socket: &'a Path,
    pub(super) slot: u32,
    pub(super) threads: i32,
    pub(super) device: Device,
}

/// The group that can be aborted from outside: with its generation.
type Abortable = Arc<Mutex<Option<(u64, AbortHandle)>>>;

/// Serves the head at the other end of the socket until it is gone.
pub(super) fn serve(place: &Place, registry: &Registry) -> Result<(), Error> {
    tch::set_num_threads(place.threads);
    let (mut speaker, listener) = link::connect(place.socket)?;
    let store = Store::host("127.0.0.1:0")?;
    let address = store.address().to_owned();
    speaker.say(&Event::Hello { version: VERSION, slot: place.slot, pid: process::id(), store: address })?;
    let abortable = Abortable::default();
    let inbox = Inbox::listen(listener, abortable.clone())?;
    let speaker = Arc::new(Mutex::new(speaker));
    let hosted = Arc::new(Mutex::new(None));
    report_panics(speaker.clone(), hosted.clone());
    Host { place, registry, store, inbox, speaker, abortable, session: None, hosted }.run()
}

/// Code of a trainable may panic, and panics may abort: the head is told before that happens.
fn report_panics(speaker: Arc<Mutex<Speaker>>, hosted: Arc<Mutex<Option<u32>>>) {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        usual(info);
        let trial = hosted.try_lock().ok().and_then(|trial| *trial);
        if let (Some(trial), Ok(mut speaker)) = (trial, speaker.try_lock()) {
            // There is nothing else to be done about it.
            let _ = speaker.say(&Event::Failed { trial, reason: info.to_string() });
        }
        process::exit(101);
    }));
}

/// Commands that have come and are not done yet.
struct Inbox {
    coming: Receiver<Command>,
    waiting: VecDeque<Command>,
}

impl Inbox {
    fn listen(mut listener: Listener, abortable: Abortable) -> Result<Self, Error> {
        let (send, coming) = mpsc::channel();
        let listen = move || {
            while let Ok(Some(command)) = listener.hear::<Command>() {
                if let Command::Form(Form { generation, broken: true, .. }) = &command {
                    abort_before(&abortable, *generation);
                }
                if send.send(command).is_err() {
                    break;
                }
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
    fn wants_to_leave(&self, trial: u32, generation: u64) -> bool {
        self.waiting.iter().any(|command| match command {
            Command::Form(form) => form.trial == trial && form.generation > generation,
            Command::Release { trial: released, .. } => *released == trial,
            Command::Prepare(_) | Command::Retune { .. } => false,
        })
    }

    /// The next batch that the group was given.
    fn retuned(&self, trial: u32, generation: u64) -> Option<(usize, Batch)> {
        self.waiting.iter().enumerate().find_map(|(at, command)| match command {
            Command::Retune { trial: other, generation: of, batch }
                if *other == trial && *of == generation =>
            {
                Some((at, *batch))
            }
            _ => None,
        })
    }

    /// Waits for the next command; none if there will be no more.
    fn next(&mut self) -> Option<Command> {
        self.waiting.pop_front().or_else(|| self.coming.recv().ok())
    }
}

fn abort_before(abortable: &Abortable, generation: u64) {
    let group = abortable.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, handle)) = group.as_ref().filter(|(of, _)| *of < generation) {
        handle.abort();
    }
}

struct Host<'a> {
    place: &'a Place<'a>,
    registry: &'a Registry,
    store: Store,
    inbox: Inbox,
    speaker: Arc<Mutex<Speaker>>,
    abortable: Abortable,
    session: Option<Session>,
    /// The trial of the session, for those who cannot wait for it.
    hosted: Arc<Mutex<Option<u32>>>,
}

/// Why a group trains no longer.
enum End {
    /// All members have left together.
    Left,
    /// The trial is complete.
    Finished,
}

impl Host<'_> {
    fn run(mut self) -> Result<(), Error> {
        while let Some(command) = self.inbox.next() {
            match command {
                Command::Prepare(task) => {
                    let trial = task.trial;
                    *self.hosted.lock().unwrap_or_else(PoisonError::into_inner) = Some(trial);
                    match Session::new(*task, self.registry, self.place.device) {
                        Ok(session) => {
                            self.session = Some(session);
                            self.say(&Event::Prepared { trial })?;
                        }
                        Err(error) => self.fail(trial, &error)?,
                    }
                }
                Command::Form(form) => self.form(&form)?,
                // Its group is gone.
                Command::Retune { .. } => {}
                Command::Release { trial, save } => self.release(trial, save)?,
            }
        }
        Ok(())
    }

    fn say(&self, event: &Event) -> Result<(), Error> {
        self.speaker.lock().unwrap_or_else(PoisonError::into_inner).say(event)
    }

    fn fail(&mut self, trial: u32, error: &Error) -> Result<(), Error> {
        self.forget();
        self.say(&Event::Failed { trial, reason: error.to_string() })
    }

    fn forget(&mut self) {
        self.session = None;
        *self.hosted.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn release(&mut self, trial: u32, save: bool) -> Result<(), Error> {
        if let Some(session) = self.session.as_ref().filter(|session| session.task.trial == trial) {
            if save && session.is_current {
                match Writing::start(session).and_then(Writing::finish) {
                    Ok(steps) => self.say(&Event::Checkpointed { trial, steps })?,
                    Err(error) => return self.fail(trial, &error),
                }
            }
            self.forget();
        }
        self.say(&Event::Released { trial })
    }

    /// Takes part in a new generation for as long as it lasts.
    fn form(&mut self, form: &Form) -> Result<(), Error> {
        let (trial, generation) = (form.trial, form.generation);
        let role = hand_over::role(form, self.place.slot);
        let Some(mut session) = self.session.take().filter(|session| session.task.trial == trial) else {
            let reason = "the worker was told to train before it had prepared".to_owned();
            return self.say(&Event::Broken { trial, generation, steps: None, reason });
        };
        let formed = self.meet(form, role, &mut session);
        let ended = match formed {
            Ok(Some((mut team, pause))) => {
                let steps = session.steps();
                self.say(&Event::Formed { trial, generation, steps, pause })?;
                self.train(&mut session, &mut team, form.batch)
            }
            Ok(None) => {
                drop(session);
                self.forget();
                return self.say(&Event::Released { trial });
            }
            Err(error) => Err(error),
        };
        *self.abortable.lock().unwrap_or_else(PoisonError::into_inner) = None;
        match ended {
            Ok(End::Left | End::Finished) => self.session = Some(session),
            Err(error) if error.is_of_the_group() => {
                let steps = session.is_current.then(|| session.steps());
                self.session = Some(session);
                self.say(&Event::Broken { trial, generation, steps, reason: error.to_string() })?;
            }
            Err(error) => {
                drop(session);
                self.fail(trial, &error)?;
            }
        }
        Ok(())
    }

    fn meet(
        &mut self,
        form: &Form,
        role: Role,
        session: &mut Session,
    ) -> Result<Option<(Team, crate::wire::Pause)>, Error> {
        let Self { inbox, store, abortable, place, .. } = self;
        let mut is_over = || {
            inbox.look();
            inbox.wants_to_leave(form.trial, form.generation)
        };
        let started = |group: &ProcessGroup| {
            let handle = (form.generation, group.abort_handle());
            *abortable.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        };
        let options = Meeting::options(place.device);
        let mut meeting = Meeting { own: store, options, is_over: &mut is_over };
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
                    desk.metrics.push(Metric { epochs: session.epochs()?, values: values.clone() });
                    self.say(&Event::Reported(Box::new(desk.report(session, team, batch)?)))?;
                    self.save(session, &mut desk, true)?;
                    let generation = team.generation;
                    self.say(&Event::Finished { trial, generation, metrics: values })?;
                }
                return Ok(End::Finished);
            }
            self.inbox.look();
            let leave = self.inbox.wants_to_leave(trial, team.generation);
            let retuned = self.inbox.retuned(trial, team.generation);
            let agreed = session.step(team, batch, leave, retuned.is_some())?;
            if let (true, Some((at, other))) = (agreed.retune, retuned) {
                self.inbox.waiting.remove(at);
                batch = other;
                session.begin(team)?;
            }
            if session.wants_evaluation()? && !session.is_finished()? {
                let values = session.evaluate(team)?;
                desk.metrics.push(Metric { epochs: session.epochs()?, values });
                desk.hurry = true;
            }
            if team.rank == 0 {
                self.save(session, &mut desk, false)?;
                if desk.is_due(session) || agreed.leave {
                    self.say(&Event::Reported(Box::new(desk.report(session, team, batch)?)))?;
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
            self.say(&Event::Checkpointed { trial, steps: writing.finish()? })?;
        }
        let every = Duration::from_secs_f64(session.task.checkpoint_every_s.min(1e9));
        if desk.writing.is_none() && (now || desk.saved.elapsed() >= every) {
            desk.saved = Instant::now();
            let writing = Writing::start(session)?;
            if now {
                self.say(&Event::Checkpointed { trial, steps: writing.finish()? })?;
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
    metrics: Vec<Metric>,
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

    fn report(&mut self, session: &mut Session, team: &Team, batch: Batch) -> Result<Report, Error> {
        self.reported = Instant::now();
        self.hurry = false;
        let seen = std::mem::take(&mut session.seen);
        let count = seen.losses.len() as f64;
        let step_times = seen.times.iter().map(|times| StepTime {
            replicas: team.size,
            nodes: team.nodes,
            per_gpu: times.per_gpu,
            accumulation: times.accumulation,
            seconds: times.iter_time_s,
            steps: times.steps,
        });
        let counters = session.counters();
        Ok(Report {
            trial: session.task.trial,
            generation: team.generation,
            steps: counters.steps,
            examples: counters.examples,
            epochs: session.epochs()?,
            loss: (count > 0.0).then(|| seen.losses.iter().sum::<f64>() / count),
            learning_rate: seen.learning_rate,
            batch: Some(batch),
            step_times: step_times.collect(),
            noise: session.noise().stats().map(|stats| Noise { sqr: stats.sqr, var: stats.var }),
            metrics: std::mem::take(&mut self.metrics),
        })
    }
}
