use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{self, Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use tokio::sync::{mpsc, oneshot, watch};

use super::{
    custom::Custom,
    error::Error,
    event::{Event, Events},
    function::{Problem, Trial},
    group::{GroupMessage, Observer},
    programs::{self, ProgramSpec},
    scripted::Steering,
    session::{self, Notify, SharedWatch, TrialBackend, WorkerTasks, Workers},
};
use crate::{
    agent::{self, Machine, SystemSpawner},
    alloc::{ClusterSpec, NodeSet},
    ids::{GpuType, SlotId, TrialId},
    space::{Dims, Program, PythonEntry, PythonProgram, Study, TrialSettings},
    store::Memory,
    tpe::Suggester,
    trials::{
        Search,
        agent::{AgentNode, AgentSlot, PythonWork, Work},
        engine::{Engine, JournalEntry, Metrics, Outcome},
        stopping::Rule,
    },
};

/// Runs a study to its end.
///
/// ```
/// use pollux_tune::{actors::Runner, space::Study};
///
/// let study = Study::from_yaml("study.yaml", "
/// space: {x: {float: [-5, 5]}, y: {float: [-5, 5]}}
/// objective: {minimize: loss}
/// search: {trials: 60, parallel: 2}
/// ")?;
/// let finished = Runner::new(study).run_function(|trial| {
///     let (x, y) = (trial.params().float("x")?, trial.params().float("y")?);
///     Ok([("loss".to_owned(), (x * x + y * y).into())].into())
/// })?;
/// let best = &finished.best(1)[0];
/// assert!(best.values().is_some_and(|values| values[0] < 5.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Runner {
    study: Study,
    paths_from: PathBuf,
    folder: Option<PathBuf>,
    slots: Option<u32>,
    worker_arguments: Vec<String>,
    watch: Option<SharedWatch>,
    observer: Option<Observer>,
    notify: Option<Notify>,
    custom: Custom,
    is_sole: bool,
    listen: Option<SocketAddr>,
    stop: watch::Sender<bool>,
    steering: (mpsc::UnboundedSender<Steering>, mpsc::UnboundedReceiver<Steering>),
}

impl Runner {
    /// A study that is kept in memory only, unless it is given a [folder](Self::folder).
    #[must_use]
    pub fn new(study: Study) -> Self {
        Self {
            study,
            paths_from: PathBuf::new(),
            folder: None,
            slots: None,
            worker_arguments: Vec::new(),
            watch: None,
            observer: None,
            notify: None,
            custom: Custom::default(),
            is_sole: false,
            listen: None,
            stop: watch::Sender::new(false),
            steering: mpsc::unbounded_channel(),
        }
    }

    /// Keeps the study in this folder, and goes on with what is there.
    #[must_use]
    pub fn folder(mut self, folder: impl AsRef<Path>) -> Self {
        self.folder = Some(folder.as_ref().to_owned());
        self
    }

    /// The folder of the study file, from which `trial.python`, `trial.interpreter` and `trial.folder` are seen; the current folder by default.
    #[must_use]
    pub fn paths_from(mut self, folder: impl AsRef<Path>) -> Self {
        folder.as_ref().clone_into(&mut self.paths_from);
        self
    }

    /// How many trials can run at the same time; as many as `search.parallel` by default.
    #[must_use]
    pub const fn slots(mut self, slots: u32) -> Self {
        self.slots = Some(slots);
        self
    }

    /// The arguments with which this program is started again as a worker or an emulated node; none by default. A test passes what
    /// leads to its worker: `["worker", "--exact"]` for a test of the name `worker` that does nothing but serve.
    #[must_use]
    pub fn worker_arguments<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.worker_arguments = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// Shows every step of the study, as soon as its facts are written down. All waits until this returns.
    #[must_use]
    pub fn watch(mut self, mut watch: impl FnMut(&Engine, &[JournalEntry]) + Send + 'static) -> Self {
        self.watch = Some(match self.watch.take() {
            None => Arc::new(Mutex::new(watch)),
            Some(first) => Arc::new(Mutex::new(move |engine: &Engine, entries: &[JournalEntry]| {
                (first.lock().unwrap_or_else(PoisonError::into_inner))(engine, entries);
                watch(engine, entries);
            })),
        });
        self
    }

    /// Calls a function with each [`Event`] of the study, as soon as it is in the journal. All waits until this returns, so what takes long
    /// belongs elsewhere: see [`events`](Self::events).
    ///
    /// ```
    /// use pollux_tune::{actors::{Event, Runner}, space::Study};
    ///
    /// let yaml = "{space: {x: {float: [0, 1]}}, objective: {minimize: loss}, search: {trials: 3}}";
    /// let runner = Runner::new(Study::from_yaml("study.yaml", yaml)?).on_event(|event| {
    ///     if let Event::Ended { trial, end } = event {
    ///         println!("trial {trial} {end}");
    ///     }
    /// });
    /// runner.run_function(|trial| Ok([("loss".to_owned(), trial.params().float("x")?.into())].into()))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn on_event(self, mut call: impl FnMut(Event) + Send + 'static) -> Self {
        self.watch(move |_, entries| entries.iter().filter_map(Event::of).for_each(&mut call))
    }

    /// The [events](Event) of the study as a stream for another thread or task. It ends with the study, or when this is dropped.
    #[must_use]
    pub fn events(self) -> (Self, Events) {
        let (sender, events) = Events::new();
        // Perhaps nobody reads any more.
        let runner = self.on_event(move |event| _ = sender.send(event));
        (runner, events)
    }

    /// Chooses parameters by a suggester of this program, in the place of `search.algorithm`. It is made for the dimensions of the space:
    /// once, and again whenever the study begins again from its journal.
    ///
    /// What was suggested is a fact: a study that is resumed does not ask again, but shows the fresh suggester all trials and results so far
    /// by [`insert`](Suggester::insert) and [`tell`](Suggester::tell), in their order. A suggester that depends on these calls and on the
    /// generator that it is given, and on nothing else, continues as if nothing had happened, and gives the same study again with the same
    /// seed where results come in the same order. A point outside of the space, an error or a panic ends the study as failed.
    #[must_use]
    pub fn suggester<S: Suggester + 'static>(
        mut self,
        make: impl Fn(Dims) -> S + Send + Sync + 'static,
    ) -> Self {
        self.custom.suggester =
            Some(Arc::new(move |dims: Dims| -> Box<dyn Suggester> { Box::new(make(dims)) }));
        self
    }

    /// Stops trials early by a rule of this program, in the place of `search.early_stopping`, none of them before `grace` statistical epochs. The
    /// rule is made once, and again whenever the study begins again from its journal.
    ///
    /// That a trial was stopped is a fact, and stays one. A study that is resumed shows all reports so far to the fresh rule, which
    /// should depend on them and on nothing else. A rule that panics stops no trial from then on; that is in the log.
    #[must_use]
    pub fn stopping_rule<R: Rule + 'static>(
        mut self,
        grace: f64,
        make: impl Fn() -> R + Send + Sync + 'static,
    ) -> Self {
        self.custom.rule = Some((grace, Arc::new(move || -> Box<dyn Rule> { Box::new(make()) })));
        self
    }

    /// Shows all that passes between the groups of trials and their workers. The group waits until this returns.
    #[must_use]
    pub fn observe(
        mut self,
        observe: impl FnMut(TrialId, SlotId, GroupMessage<'_>) + Send + 'static,
    ) -> Self {
        self.observer = Some(Arc::new(Mutex::new(observe)));
        self
    }

    /// Tells what the user may want to know and no fact says, in a line of text each: what the end of the study waits for.
    #[must_use]
    pub fn notify(mut self, notify: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.notify = Some(Arc::new(notify));
        self
    }

    /// All children of this process are the study's, so that it can take in and end whatever programs leave behind.
    #[cfg(feature = "cli")]
    pub(crate) const fn sole(mut self) -> Self {
        self.is_sole = true;
        self
    }

    /// Lets agents of other machines join, at this address. What they need to know is in the file `cluster/join.json` of the study's folder,
    /// which the user alone can read. Port 0 is that of before, if it is free, else any.
    #[must_use]
    pub const fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = Some(address);
        self
    }

    pub(super) fn steering(&self) -> mpsc::UnboundedSender<Steering> {
        self.steering.0.clone()
    }

    /// What stops it from elsewhere.
    #[must_use]
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(self.stop.clone())
    }

    /// Tunes a function of this program. Its metrics must have those of the objectives among them. A function that fails or
    /// panics is a failed trial.
    pub fn run_function<F>(self, function: F) -> Result<Finished, Error>
    where
        F: Fn(&mut Trial) -> Result<Metrics, Problem> + Send + Sync + 'static,
    {
        let slots = self.slots.unwrap_or_else(|| self.study.search.parallel.or_default());
        self.run(TrialBackend::Function { function: Arc::new(function), slots })
    }

    /// The same for asynchronous programs: the study runs on threads of its own, and nothing waits in the caller's. Where the future is
    /// dropped before its end, the study is asked to [stop](StopHandle::stop).
    ///
    /// ```
    /// use pollux_tune::{actors::Runner, space::Study};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let yaml = "{space: {x: {float: [0, 1]}}, objective: {minimize: loss}, search: {trials: 5}}";
    /// let runner = Runner::new(Study::from_yaml("study.yaml", yaml)?);
    /// let study = runner.run_function_async(|trial| {
    ///     Ok([("loss".to_owned(), trial.params().float("x")?.into())].into())
    /// });
    /// assert_eq!(study.await?.search().trials().len(), 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn run_function_async<F>(self, function: F) -> Result<Finished, Error>
    where
        F: Fn(&mut Trial) -> Result<Metrics, Problem> + Send + Sync + 'static,
    {
        let slots = self.slots.unwrap_or_else(|| self.study.search.parallel.or_default());
        let _stop = StopOnDrop(self.stop_handle());
        self.start(TrialBackend::Function { function: Arc::new(function), slots })?.ended().await
    }

    /// Tunes the program that the study file names in `trial.command`. With GPUs, each slot sees the one of its number.
    ///
    /// This program is started again to launch it, if the first thing that it does is
    /// [`launch_if_program`](crate::actors::launch_if_program); otherwise a shell launches it.
    pub fn run_command(self, gpus: u32) -> Result<Finished, Error> {
        let count = self.slots.unwrap_or_else(|| program_slots(&self.study));
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let slot = |index| AgentSlot {
            device: (index < gpus).then(|| crate::worker::gpu_id(index)),
            memory_bytes: None,
            threads: (cores / count.max(1)).max(1),
        };
        let node = AgentNode { gpu_type: GpuType::cpu(), slots: (0..count).map(slot).collect() };
        self.run_programs(vec![node])
    }

    /// The same, on nodes of this machine.
    pub(crate) fn run_programs(self, nodes: Vec<AgentNode>) -> Result<Finished, Error> {
        let Some(Program::Command(words)) = &self.study.trial.program else { return Err(Error::NoProgram) };
        let program = words.first().ok_or(Error::NoProgram)?;
        let folder = self.trial_folder();
        if self.listen.is_none() {
            // These machines are all there will be.
            self.check_folder()?;
            check_program_room(&self.study, &nodes)?;
        }
        if !agent::is_there(program, folder.as_deref().unwrap_or_else(|| Path::new(""))) {
            return Err(Error::NoSuchProgram(program.clone()));
        }
        let (words, machine) = (words.clone(), self.machine(nodes));
        let spec = ProgramSpec { words, folder, grace: programs::GRACE };
        self.run(TrialBackend::Programs { spec, machine })
    }

    /// Trains the trainable that the study file names, on slots of this machine: this program is started again for each of
    /// them, so the first thing that it does must be [`serve_if_worker`](crate::worker::serve_if_worker).
    #[cfg(feature = "torch")]
    pub fn run_trainable(self, gpu_type: &GpuType, slots: &[crate::worker::Slot]) -> Result<Finished, Error> {
        let node = AgentNode { gpu_type: gpu_type.clone(), slots: slots.iter().map(Into::into).collect() };
        self.run_workers(vec![node], Work::Trainable)
    }

    /// Trains the Python code that the study file names, on slots of this machine: an interpreter with the package `pollux_tune` is started
    /// for each of them.
    pub fn run_python(self, gpu_type: &GpuType, slots: &[crate::worker::Slot]) -> Result<Finished, Error> {
        let node = AgentNode { gpu_type: gpu_type.clone(), slots: slots.iter().map(Into::into).collect() };
        self.run_python_on(vec![node])
    }

    /// The same on nodes of this machine.
    pub(crate) fn run_python_on(self, nodes: Vec<AgentNode>) -> Result<Finished, Error> {
        let Some(Program::Python(program)) = &self.study.trial.program else { return Err(Error::NoProgram) };
        if self.listen.is_none() {
            self.check_folder()?;
        }
        let work = Work::Python(Box::new(python_work(program, &self.study.trial, &self.paths_from)));
        self.run_workers(nodes, work)
    }

    /// Where trials begin, if the study file says so.
    fn trial_folder(&self) -> Option<PathBuf> {
        self.study.trial.folder.as_ref().map(|folder| absolute(&self.paths_from.join(folder)))
    }

    fn check_folder(&self) -> Result<(), Error> {
        match self.trial_folder() {
            Some(folder) if !folder.is_dir() => Err(Error::NoSuchFolder(folder)),
            _ => Ok(()),
        }
    }

    /// Runs the study on machines that are not there: the trainable that the study file names is modelled, not trained. A
    /// second of the study takes `time_scale` real ones.
    ///
    /// This program is started again for each machine, so the first thing that it does must be
    /// [`serve_if_node`](crate::actors::serve_if_node).
    pub fn run_emulated(self, cluster: &ClusterSpec, time_scale: f64) -> Result<Finished, Error> {
        let Some(Program::Trainable(trainable)) = &self.study.trial.program else {
            return Err(Error::NoProgram);
        };
        crate::emulate::check(trainable, cluster)?;
        self.run_workers(emulated_nodes(cluster), Work::Emulated { time_scale })
    }

    /// The same on nodes of this machine.
    #[cfg(all(feature = "cli", feature = "torch"))]
    pub(crate) fn run_nodes(self, nodes: Vec<AgentNode>) -> Result<Finished, Error> {
        self.run_workers(nodes, Work::Trainable)
    }

    fn run_workers(self, nodes: Vec<AgentNode>, work: Work) -> Result<Finished, Error> {
        let trainable = match &self.study.trial.program {
            Some(Program::Trainable(name)) => name.clone(),
            Some(Program::Python(program)) => program.entry.text().to_owned(),
            _ => return Err(Error::NoProgram),
        };
        if self.listen.is_none() {
            // These machines are all there will be.
            check_room(&self.study, &nodes)?;
        }
        let (tasks, machine) = (WorkerTasks::OfStudy { trainable }, self.machine(nodes));
        self.run(TrialBackend::Workers(Workers { tasks, work, machine }))
    }

    /// This machine, with these nodes.
    pub(super) fn machine(&self, nodes: Vec<AgentNode>) -> Machine {
        let (arguments, is_sole) = (self.worker_arguments.clone(), self.is_sole);
        let nodes = nodes.into_iter().filter(|node| !node.slots.is_empty()).collect();
        Machine { nodes, address: None, arguments, is_sole, spawner: Arc::new(SystemSpawner) }
    }

    fn run(self, work: TrialBackend) -> Result<Finished, Error> {
        self.start(work)?.join()
    }

    pub(super) fn start(self, work: TrialBackend) -> Result<Running, Error> {
        let Self {
            study,
            paths_from,
            folder,
            watch,
            observer,
            notify,
            custom,
            listen,
            stop,
            steering: (_, steering),
            ..
        } = self;
        let memory = Arc::new(Mutex::new(Memory::default()));
        let stop = stop.subscribe();
        let head = session::Head {
            study,
            paths_from: absolute(&Path::new(".").join(paths_from)),
            folder,
            memory,
            watch,
            custom,
            observer,
            notify,
            listen,
            stop,
            steering,
            work,
        };
        let (done, ended) = oneshot::channel();
        let run = move || {
            let result = head.run();
            // Perhaps nobody waits for it.
            let _ = done.send(());
            result
        };
        // The caller may live in a runtime already, and two in one thread do not get along.
        let thread = thread::Builder::new().name("study".to_owned()).spawn(run);
        Ok(Running { thread: thread.map_err(Error::io("starting a thread"))?, ended })
    }
}

/// What the package `pollux_tune` is told. Without a folder of their own, scripts and modules are beside the study file.
fn python_work(program: &PythonProgram, trial: &TrialSettings, paths_from: &Path) -> PythonWork {
    let seen = |path: &Path| paths_from.join(path).display().to_string();
    let folder = trial.folder.as_ref().map(|folder| absolute(&paths_from.join(folder)));
    let arguments = match &program.entry {
        PythonEntry::Script(path) if folder.is_none() => vec![seen(Path::new(path))],
        PythonEntry::Script(path) => vec![path.clone()],
        PythonEntry::Function(name) if folder.is_none() && !paths_from.as_os_str().is_empty() => {
            vec!["--module".to_owned(), name.clone(), "--from".to_owned(), paths_from.display().to_string()]
        }
        PythonEntry::Function(name) => vec!["--module".to_owned(), name.clone()],
    };
    let mut interpreter = program.interpreter_from(paths_from);
    if let (Some(path), Some(_)) = (interpreter.as_mut().filter(|path| path.contains('/')), &folder) {
        // It is seen from here, and not from there.
        *path = absolute(Path::new(path)).display().to_string();
    }
    PythonWork { interpreter, arguments, env: trial.env.clone(), folder }
}

/// Other machines have other folders to begin in.
fn absolute(folder: &Path) -> PathBuf {
    path::absolute(folder).unwrap_or_else(|_| folder.to_owned())
}

/// Machines that are not there.
pub(crate) fn emulated_nodes(cluster: &ClusterSpec) -> Vec<AgentNode> {
    let slot = AgentSlot { device: None, memory_bytes: None, threads: 1 };
    let node = |NodeSet { nodes, gpus, gpu_type }: &NodeSet| {
        let slots = vec![slot.clone(); *gpus as usize];
        vec![AgentNode { gpu_type: gpu_type.clone(), slots }; *nodes as usize]
    };
    cluster.node_sets.iter().flat_map(node).collect()
}

/// Whether a trial has room on these nodes, if there will be no others.
pub(crate) fn check_room(study: &Study, nodes: &[AgentNode]) -> Result<(), Error> {
    let mut by_type: BTreeMap<&GpuType, u32> = BTreeMap::new();
    for AgentNode { gpu_type, slots } in nodes {
        let all = by_type.entry(gpu_type).or_default();
        *all = all.saturating_add(slots.len() as u32);
    }
    let (wanted, slots) = (study.trial.min_gpus, by_type.into_values().max().unwrap_or(0));
    if slots < wanted { Err(Error::TooFewSlots { wanted, slots }) } else { Ok(()) }
}

/// The slots that programs of a study have where nobody says how many: for as many trials as run at a time.
pub(crate) fn program_slots(study: &Study) -> u32 {
    study.search.parallel.or_default().saturating_mul(study.trial.slots()).div_ceil(study.trial.share.max(1))
}

/// Whether a program has room on one of these nodes, if there will be no others.
pub(crate) fn check_program_room(study: &Study, nodes: &[AgentNode]) -> Result<(), Error> {
    let slots = nodes.iter().map(|node| node.slots.len() as u32).max().unwrap_or(0);
    let wanted = study.trial.slots();
    if slots < wanted { Err(Error::TooFewGpus { wanted, slots }) } else { Ok(()) }
}

/// A study that runs on a thread of its own.
pub(super) struct Running {
    thread: thread::JoinHandle<Result<(Outcome, Search), Error>>,
    /// Something comes, or the other end is gone, when the thread is about to end.
    ended: oneshot::Receiver<()>,
}

impl Running {
    /// Waits for its end.
    pub(super) fn join(self) -> Result<Finished, Error> {
        let died = |_| Err(Error::Died { actor: "head", times: 1 });
        let (outcome, search) = self.thread.join().unwrap_or_else(died)?;
        Ok(Finished { outcome, search })
    }

    /// The same without blocking the thread of the caller.
    async fn ended(mut self) -> Result<Finished, Error> {
        let _ = (&mut self.ended).await;
        self.join()
    }
}

/// A study that nobody waits for is stopped.
struct StopOnDrop(StopHandle);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Asks a running study to stop, from any thread.
#[derive(Debug, Clone)]
pub struct StopHandle(watch::Sender<bool>);

impl StopHandle {
    /// Lets trials that can go on later write their state, and then ends. What was asked for before it began counts, too.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// A study that has come to an end.
pub struct Finished {
    /// How.
    pub outcome: Outcome,
    search: Search,
}

impl Finished {
    /// All its trials, to ask for more.
    #[must_use]
    pub const fn search(&self) -> &Search {
        &self.search
    }

    /// The best trials, at most so many, the best first.
    #[must_use]
    pub fn best(&self, count: usize) -> Vec<&crate::trials::Trial> {
        self.search.best(count)
    }
}
