//! One life of the actors, from the journal to an exit, and what comes after it.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use actix::{Actor, Addr, Arbiter, Recipient, System};
use tokio::sync::{mpsc, watch};

use super::{
    allocator::{Allocator, AllocatorService},
    clock::Clock,
    control,
    custom::Custom,
    error::Error,
    exit::{ExitSender, SessionExit},
    function::{Function, Functions},
    group::Observer,
    message::{EngineInput, ForTrial},
    pilots::PilotNews,
    programs::ProgramSpec,
    provision::{Provision, Wanted},
    retention::{CheckpointKeeper, CheckpointPlace, Settle},
    runtime::{Around, Runtime},
    scripted::{Script, ScriptedAllocator, Steering},
    suggester::{Suggester, TakeSearch},
    supervisor::{Begin, ServiceAddresses, Supervisor, TrialRunners, Watch},
};
use crate::{
    agent::Machine,
    ids::StudyId,
    space::Study,
    store::{self, Journal, Memory, Reader, Store},
    trials::{
        Search,
        agent::Work,
        engine::{Engine, GroupCommand, Input, JournalEntry, Outcome, Replay, Services, State, TrialKind},
        group::Task,
    },
    wire::{ControlDoor, with_causes},
};

/// After so many deaths of actors it is no accident.
const DEATHS_MAX: u32 = 5;

/// Sees every step of a study, over all lives of its actors.
pub(super) type SharedWatch = Arc<Mutex<dyn FnMut(&Engine, &[JournalEntry]) + Send>>;

/// Tells the user something that no fact says.
pub(super) type Notify = Arc<dyn Fn(&str) + Send + Sync>;

/// What trials are.
pub(super) enum TrialBackend {
    Function { function: Arc<Function>, slots: u32 },
    Programs { spec: ProgramSpec, machine: Machine },
    Workers(Workers),
}

/// Elastic trials on worker processes.
pub(crate) struct Workers {
    pub(crate) tasks: WorkerTasks,
    pub(crate) work: Work,
    pub(crate) machine: Machine,
}

/// What they train.
pub(crate) enum WorkerTasks {
    /// What the suggester chooses, where the allocator wants it.
    OfStudy { trainable: String },
    /// These, one after the other, where a script wants them.
    Given { tasks: Vec<Task>, script: Script },
}

impl TrialBackend {
    /// Who divides the slots, if that is not the policy of the study.
    fn script(&self) -> Option<&Script> {
        match self {
            Self::Workers(Workers { tasks: WorkerTasks::Given { script, .. }, .. }) => Some(script),
            _ => None,
        }
    }

    const fn kind(&self, study: &Study) -> TrialKind {
        match self {
            Self::Programs { .. } => TrialKind::of(study),
            Self::Function { .. } => TrialKind::Rigid,
            Self::Workers(_) => TrialKind::Elastic,
        }
    }

    const fn time_scale(&self) -> f64 {
        match self {
            Self::Function { .. } | Self::Programs { .. } => 1.0,
            Self::Workers(workers) => workers.work.time_scale(),
        }
    }
}

/// A study and all it takes to run it.
pub(super) struct Head {
    pub(super) study: Study,
    /// From where its paths are seen; absolute.
    pub(super) paths_from: PathBuf,
    /// Without one, facts are kept in memory.
    pub(super) folder: Option<PathBuf>,
    pub(super) memory: Arc<Mutex<Memory>>,
    pub(super) watch: Option<SharedWatch>,
    pub(super) custom: Custom,
    pub(super) observer: Option<Observer>,
    pub(super) notify: Option<Notify>,
    /// Where agents of other machines can join.
    pub(super) listen: Option<SocketAddr>,
    pub(super) stop: watch::Receiver<bool>,
    pub(super) steering: mpsc::UnboundedReceiver<Steering>,
    pub(super) work: TrialBackend,
}

impl Head {
    /// Runs the study. When an actor dies, all begin again from the journal.
    pub(super) fn run(mut self) -> Result<(Outcome, Search), Error> {
        let mut deaths = 0;
        loop {
            let actor = match System::new().block_on(self.session())? {
                (SessionExit::Finished(outcome), Some(search)) => return Ok((outcome, search)),
                (SessionExit::Finished(_), None) => "suggester",
                (SessionExit::Failed(error), _) => return Err(error),
                (SessionExit::Died(actor), _) => actor,
            };
            deaths += 1;
            tracing::error!(actor, deaths, "an actor has died; all begin again from the journal");
            if deaths > DEATHS_MAX {
                return Err(Error::Died { actor, times: deaths });
            }
        }
    }

    /// Opens the journal, and follows what is in it. Nobody keeps the facts.
    fn replay(&mut self) -> Result<Replayed, Error> {
        let kind = self.work.kind(&self.study);
        let Some(folder) = &self.folder else {
            let mut replay = self.custom.replay(&self.study, kind)?;
            let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
            memory.iter().try_for_each(|entry| replay.apply(entry))?;
            let journal = Box::new(Kept(self.memory.clone()));
            // What is not on disk cannot be mistaken for another study later.
            return Ok(Replayed { journal, replay, study_id: StudyId::default() });
        };
        let opening = Store::begin(folder)?;
        if let Some(before) = opening.study()? {
            self.study = continued(&self.study, &before)?;
        }
        let mut replay = self.custom.replay(&self.study, kind)?;
        let store = opening.replay(|entry| replay.apply(entry).map_err(Error::from))?;
        // The copy is in another folder.
        let trial = self.study.trial.seen_from(&self.paths_from);
        store.write_study(&Study { trial, ..self.study.clone() }.to_yaml())?;
        let study_id = store.study_id();
        Ok(Replayed { journal: Box::new(store), replay, study_id })
    }

    /// One life of the actors; with the search and its results, if that is the end of the study.
    async fn session(&mut self) -> Result<(SessionExit, Option<Search>), Error> {
        let Replayed { journal, replay, study_id } = self.replay()?;
        let Replay { engine, services } = replay;
        let (tell, mut exits) = mpsc::unbounded_channel();
        let exit = ExitSender::new(tell);
        let clock = Clock::after(engine.state().at_s, self.work.time_scale());
        let watch = self.watch.clone().map(|watch| -> Watch {
            Box::new(move |engine, entries| {
                (watch.lock().unwrap_or_else(PoisonError::into_inner))(engine, entries);
            })
        });
        let (head, first, second, third) = (Arbiter::new(), Arbiter::new(), Arbiter::new(), Arbiter::new());
        let keeper = self.keeper(study_id, engine.state(), &exit);
        let keeper = keeper.map(|keeper| CheckpointKeeper::start_in_arbiter(&third.handle(), |_| keeper));
        let supervisor = {
            let (exit, notify) = (exit.clone(), self.notify.clone());
            Supervisor::start_in_arbiter(&head.handle(), move |_| {
                Supervisor::new(engine, journal, clock, watch, &exit).notifying(notify)
            })
        };
        let happened = supervisor.clone().recipient();
        let (suggester, allocator) = self.advise(services, (&first, &second), &happened, &exit);
        let facts = vec![suggester.clone().recipient(), allocator.clone().recipient()];
        // A checkpoint is removed when the end of its trial is on disk, not before.
        let settled = keeper.clone().map(Addr::recipient).into_iter().collect();
        let mut provision = self.provision(study_id, clock, &supervisor, &exit)?;
        let (groups, runtime) = self.open(study_id, clock, provision.news(), &happened, &exit)?;
        provision.call_hosts();
        let services = ServiceAddresses {
            suggester: suggester.clone().recipient(),
            allocator: allocator.recipient(),
            facts,
            settled,
            nodes: runtime.nodes(),
        };
        supervisor.do_send(Begin { services, groups });
        if let Some(joined) = runtime.joined() {
            supervisor.do_send(EngineInput::from(joined.clone()));
        }
        let control = self.control(clock, &happened);
        let ended = self.wait(&supervisor, &mut exits).await;
        drop(control);
        let search = match ended {
            // All facts are on their way to the suggester by then.
            SessionExit::Finished(_) => suggester.send(TakeSearch).await.ok().flatten(),
            SessionExit::Failed(_) | SessionExit::Died(_) => None,
        };
        if let Some(keeper) = &keeper {
            // If it is gone, so is the session.
            let _ = keeper.send(Settle).await;
        }
        exit.close();
        // The journal and its lock are given back only when nothing runs any more.
        runtime.end(&ended, |what| self.notify.iter().for_each(|notify| notify(what))).await;
        // After their agents, which have saved what was to be saved.
        provision.end(&ended).await;
        for arbiter in [head, first, second, third] {
            arbiter.stop();
            // The journal is closed only when the thread of its owner is done.
            let _ = arbiter.join();
        }
        Ok((ended, search))
    }

    /// Those who answer what the engine asks, each on its own thread.
    fn advise(
        &self,
        Services { suggest, allocate }: Services,
        (first, second): (&Arbiter, &Arbiter),
        supervisor: &Recipient<EngineInput>,
        exit: &ExitSender,
    ) -> (Addr<Suggester>, Addr<Allocator>) {
        let suggester = {
            let (supervisor, exit) = (supervisor.clone(), exit.clone());
            Suggester::start_in_arbiter(&first.handle(), move |_| Suggester::new(suggest, supervisor, &exit))
        };
        let allocate: Box<dyn AllocatorService> = match self.work.script() {
            Some(script) => Box::new(ScriptedAllocator::new(script.clone(), allocate)),
            None => Box::new(allocate),
        };
        let (supervisor, exit) = (supervisor.clone(), exit.clone());
        let allocator = Allocator::start_in_arbiter(&second.handle(), move |_| {
            Allocator::new(allocate, supervisor, &exit)
        });
        (suggester, allocator)
    }

    /// Where the user's other commands are heard, if the study has a folder.
    fn control(&self, clock: Clock, supervisor: &Recipient<EngineInput>) -> Option<ControlDoor> {
        let opened = control::open(self.folder.as_ref()?, &self.study.space, clock, supervisor.clone());
        // The study does without.
        let failed = |error: &Error| {
            tracing::warn!(
                error = with_causes(error),
                "other commands cannot reach the study: stop --trial, pause, enqueue, drain"
            );
        };
        opened.inspect_err(failed).ok()
    }

    /// Who removes checkpoints, if there are any that workers write.
    fn keeper(&self, study: StudyId, state: &State, exit: &ExitSender) -> Option<CheckpointKeeper> {
        let TrialBackend::Workers(Workers { tasks: WorkerTasks::OfStudy { trainable }, .. }) = &self.work
        else {
            return None;
        };
        let place = CheckpointPlace { folder: self.folder.clone()?, study, trainable: trainable.clone() };
        Some(CheckpointKeeper::new(&self.study, place, state, exit))
    }

    /// Who asks for further machines.
    fn provision(
        &self,
        study_id: StudyId,
        clock: Clock,
        supervisor: &Addr<Supervisor>,
        exit: &ExitSender,
    ) -> Result<Provision, Error> {
        let emulated =
            matches!(self.work, TrialBackend::Workers(Workers { work: Work::Emulated { .. }, .. }));
        Provision::new(
            &Wanted {
                study: &self.study,
                study_id,
                // Where nobody listens, nobody can come.
                folder: self.folder.as_deref().filter(|_| self.listen.is_some()),
                time_scale: emulated.then(|| self.work.time_scale()),
                clock,
                notify: self.notify.as_ref(),
            },
            supervisor,
            exit,
        )
    }

    /// Where trials are run, and by whom.
    fn open(
        &self,
        study_id: StudyId,
        clock: Clock,
        pilots: Option<Recipient<PilotNews>>,
        supervisor: &Recipient<EngineInput>,
        exit: &ExitSender,
    ) -> Result<(Box<dyn TrialRunners>, Runtime), Error> {
        let (study, folder) = (&self.study, self.folder.as_deref());
        let (listen, notify) = (self.listen, self.notify.as_ref());
        let around = |machine| Around {
            study,
            study_id,
            folder,
            machine,
            listen,
            notify,
            clock,
            pilots,
            supervisor,
            exit,
        };
        Ok(match &self.work {
            TrialBackend::Function { function, slots } => {
                (Box::new(Functions::start(function, *slots)?), Runtime::local(*slots)?)
            }
            TrialBackend::Programs { spec, machine } => {
                folder.ok_or(Error::NoFolder)?;
                let (programs, runtime) = Runtime::programs(&around(machine), spec.clone())?;
                (Box::new(programs), runtime)
            }
            TrialBackend::Workers(workers) => {
                let around = around(&workers.machine);
                let (elastic, runtime) = Runtime::workers(&around, workers, self.observer.clone())?;
                (Box::new(elastic), runtime)
            }
        })
    }

    async fn wait(
        &mut self,
        supervisor: &Addr<Supervisor>,
        exits: &mut mpsc::UnboundedReceiver<SessionExit>,
    ) -> SessionExit {
        let mut asked = false;
        loop {
            if *self.stop.borrow_and_update() && !asked {
                asked = true;
                supervisor.do_send(EngineInput::from(Input::StopRequested));
            }
            tokio::select! {
                exit = exits.recv() => {
                    // Senders live as long as this does.
                    if let Some(exit) = exit { return exit }
                }
                Ok(()) = self.stop.changed(), if !asked => {}
                Some(steering) = self.steering.recv() => match steering {
                    Steering::Replan => supervisor.do_send(EngineInput::from(Input::ReplanRequested)),
                    Steering::Retune { trial, batch } => {
                        supervisor.do_send(ForTrial { trial, command: GroupCommand::Retune { batch } });
                    }
                },
            }
        }
    }
}

/// Whether a study can go on in a folder, as far as can be seen without changing anything. An empty or missing folder will do.
pub fn check(study: &Study, folder: &Path) -> Result<(), Error> {
    match Reader::open(folder) {
        Ok(reader) => continued(study, &reader.study()?).map(drop),
        Err(store::Error::NoStudy(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The study as it goes on in its folder: trials of one study make no sense in another one.
fn continued(study: &Study, before: &Study) -> Result<Study, Error> {
    study.continuing(before).map_err(|differences| Error::Differs { differences })
}

/// A journal, what follows from it, and which study that is.
struct Replayed {
    journal: Box<dyn Journal + Send>,
    replay: Replay,
    study_id: StudyId,
}

/// Facts that outlive the actors, but not the program.
struct Kept(Arc<Mutex<Memory>>);

impl Journal for Kept {
    fn append(&mut self, entries: &[JournalEntry]) -> Result<(), store::Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).append(entries)
    }

    fn entries(&self, from: u64) -> Result<Vec<JournalEntry>, store::Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entries(from)
    }
}
