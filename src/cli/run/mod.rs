//! `run`: a study from its first trial, or from where it was, to its end.

mod display;
mod effort;
mod events;
mod failures;
mod machine;
mod moving;
mod pace;
mod progress;
mod python;
mod shortage;
mod signals;
mod summary;
mod view;

use std::{
    env,
    fs::OpenOptions,
    io::Write,
    net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs},
    path::{Path, PathBuf},
    sync::Mutex,
};

use thiserror::Error;
use tracing_subscriber::filter::LevelFilter;

use self::{display::Display, effort::Effort, events::EventLines, machine::NoSlots, signals::Signals};
pub(super) use self::{
    display::{Lines, at},
    moving::MovingLines,
    pace::Pace,
    progress::{Best, Progress},
    view::{Look, lines as view_lines},
};
use super::{
    ExitStatus, Trainables, dashboard, export,
    output::{Format, write_atomically},
    results, slurm, study, timeline, warm_start,
};
use crate::{
    actors::{self, Finished, Runner},
    agent::devices::{Request, TooFew},
    alloc::{self, ClusterSpec, PolicyKind},
    cli,
    space::{KeepCheckpoints, Machines, Program, Study, TrialSettings},
    store::{self, Folder, Reader},
    trials::{
        agent::AgentNode,
        engine::{Engine, JournalEntry, Outcome},
    },
    wire::with_causes,
};

/// What to run, and on what.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own on the command line")]
pub(super) struct Settings {
    pub(super) file: PathBuf,
    pub(super) folder: PathBuf,
    /// What of this machine.
    pub(super) devices: Request,
    /// Where agents of other machines can join.
    pub(super) listen: Option<SocketAddr>,
    pub(super) emulate: Option<Emulation>,
    /// Instead of that of the study file.
    pub(super) policy: Option<PolicyKind>,
    /// Instead of that of the study file.
    pub(super) trials: Option<u32>,
    /// Instead of that of the study file.
    pub(super) keep_checkpoints: Option<KeepCheckpoints>,
    /// Earlier studies to learn from.
    pub(super) warm_start: Vec<PathBuf>,
    /// Whether to tell only what would be submitted.
    pub(super) dry_run: bool,
    /// Whether to serve a page of it.
    pub(super) dashboard: bool,
    /// Whether to print events as lines of JSON.
    pub(super) json: bool,
    pub(super) quiet: bool,
}

/// Which machines to emulate.
#[derive(Debug)]
pub(super) struct Emulation {
    /// None for those of the study file.
    pub(super) cluster: Option<String>,
    /// Real seconds that an emulated second takes.
    pub(super) time_scale: f64,
}

/// Nodes that come out of an emulated queue, as the study file says.
pub(super) const EMULATED_QUEUE: &str = "a queue of nodes";

/// What can be wrong with what the user asks for.
#[derive(Debug, Error)]
pub(super) enum Error {
    #[error("{} names no `cluster` to emulate: give one, as in `--emulate 2x8xa100`", .0.display())]
    NothingToEmulate(PathBuf),
    #[error("`--emulate {text}`")]
    Cluster { text: String, source: alloc::Error },
    #[error("only trainables can be emulated, and {} runs {what}", .file.display())]
    NotTrainable { file: PathBuf, what: &'static str },
    #[error("the study in {} {found}, and this run {wanted}: give another folder", .folder.display())]
    Mixed { folder: PathBuf, found: String, wanted: String },
    #[cfg(feature = "torch")]
    #[error("unknown trainable `{name}`; expected one of {known}")]
    UnknownTrainable { name: String, known: String },
    #[cfg(feature = "torch")]
    #[error("`{name}` cannot be trained with what the study file says")]
    NotReady { name: String, source: crate::worker::Error },
    #[cfg(not(feature = "torch"))]
    #[error(
        "this program was built without training: build it with `--features torch` (see docs/training.md), or emulate with `--emulate`"
    )]
    NoTorch,
    #[error(
        "`cluster.listen` is {text}, and cannot be found: {problem}; name this machine or one of its addresses"
    )]
    Listen { text: String, problem: String },
    #[error("`--slots`")]
    Devices(#[source] TooFew),
    #[error(
        "{} wants {wanted}, and this machine has {there}: give `--slots`, or `--emulate` what it has not",
        .file.display()
    )]
    OtherMachine { file: PathBuf, wanted: String, there: String },
    #[error(transparent)]
    Python(#[from] python::Error),
}

/// Runs the study, and prints its results.
pub(super) fn run(
    settings: &Settings,
    trainables: Trainables,
    out: &mut impl Write,
    stderr: &mut impl Write,
) -> Result<ExitStatus, cli::Error> {
    let (_, mut study) = study::load(&settings.file, stderr)?;
    study.search.trials = settings.trials.unwrap_or(study.search.trials);
    study.trial.keep_checkpoints = settings.keep_checkpoints.unwrap_or(study.trial.keep_checkpoints);
    study.scheduler.policy = settings.policy.unwrap_or(study.scheduler.policy);
    let folder = settings.folder.as_path();
    let pilots = study.machines.as_ref().map_or(&[][..], |machines| &machines.slurm);
    if settings.dry_run {
        slurm::dry_run(pilots, folder, out)?;
        return Ok(ExitStatus::Success);
    }
    // A study that has all its trials asks for nothing.
    if settings.emulate.is_none() && !has_all_trials(folder, &study) {
        slurm::check(pilots)?;
    }
    let listen = listen(settings, &study)?;
    let backend = backend(settings, &study, trainables, stderr)?;
    let emulated = backend.emulated();
    check_kind(folder, emulated.as_deref())?;
    actors::check(&study, folder)?;
    let earlier = warm_start::read(&settings.warm_start, &study)?;
    if let Some(devices) = emulated.as_ref().filter(|_| !is_done(folder)) {
        Folder::new(folder).mark_emulated(devices)?;
    }
    log_to(folder)?;
    warm_start::begin(earlier, folder, &study, stderr)?;
    let display = Display::start(settings.quiet, emulated.is_some());
    introduce(&display, folder, &study, &backend, listen.is_some());
    let events = settings.json.then(EventLines::start).transpose()?;
    let page = settings.dashboard.then(|| dashboard::start(folder)).transpose()?;
    if let Some(page) = &page {
        // What it was asked for is shown even where nothing else is.
        writeln!(stderr, "dashboard: {}", page.address()).map_err(cli::Error::Stdout)?;
    }
    let notices = display.handle();
    let notify = move |notice: &str| notices.print(notice);
    let (mut shown, mut written) = (display.watch(), events.as_ref().map(EventLines::watch));
    let watch = move |engine: &Engine, entries: &[JournalEntry]| {
        shown(engine, entries);
        if let Some(written) = &mut written {
            written(engine, entries);
        }
    };
    let paths_from = study::folder_of(&settings.file);
    let runner = Runner::new(study).paths_from(paths_from).folder(folder).watch(watch).notify(notify).sole();
    let runner = match listen {
        Some(address) => runner.listen(address),
        None => runner,
    };
    let signals = Signals::listen(runner.stop_handle(), folder, display.handle())?;
    let effort = Effort::begin();
    let finished = backend.start(runner);
    drop(signals);
    drop(page);
    if let Some(note) = emulated.as_ref().and_then(|_| effort.note()) {
        display.print(&note);
    }
    display.end();
    events.into_iter().for_each(EventLines::end);
    let finished = finished.map_err(|source| match source {
        // It names the folder, and did not begin.
        actors::Error::Store(store::Error::InUse(_)) => source.into(),
        source => cli::Error::Unfinished { folder: folder.to_owned(), source: Box::new(source) },
    })?;
    if settings.json {
        return summary::write_json(&finished, folder, out);
    }
    let emulated = Folder::new(folder).emulated();
    conclude(&finished, folder, emulated.as_deref(), out, stderr)
}

/// Says where the study is, what it runs on, and how other machines join.
fn introduce(display: &Display, folder: &Path, study: &Study, backend: &Backend, listens: bool) {
    let machines = study.machines.as_ref().filter(|_| listens).map(ToString::to_string);
    let place = format!("the study is in {}", folder.display());
    let parts = [Some(place), machines, Some(backend.describe())];
    let parts: Vec<String> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
    display.print(&parts.join("; "));
    if listens {
        let join = Folder::new(folder).join_file();
        let command = format!("pollux-tune agent --join-file {}", join.display());
        display.print(&format!("other machines join with `{command}`"));
    }
}

/// Where agents of other machines can join: as the user says, else as the study file does, which may ask for machines without saying
/// where.
fn listen(settings: &Settings, study: &Study) -> Result<Option<SocketAddr>, Error> {
    let Some(machines) = study.machines.as_ref().filter(|_| settings.listen.is_none()) else {
        return Ok(settings.listen);
    };
    if let Some(Emulation { cluster, .. }) = &settings.emulate {
        let is_queue = cluster.is_none() && !machines.slurm.is_empty();
        return Ok(is_queue.then_some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)));
    }
    let Some(text) = &machines.listen else {
        return Ok(Some(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0)));
    };
    let wrong = |problem: String| Error::Listen { text: text.clone(), problem };
    let address = text.parse().or_else(|_| text.parse().map(|ip: IpAddr| SocketAddr::new(ip, 0)));
    if let Ok(address) = address {
        return Ok(Some(address));
    }
    let named = if text.contains(':') { text.clone() } else { format!("{text}:0") };
    let mut found = named.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
    found.next().map(Some).ok_or_else(|| wrong("it has no address".to_owned()))
}

/// Whether nothing is left to do.
fn has_all_trials(folder: &Path, study: &Study) -> bool {
    let status = Reader::open(folder).and_then(|reader| reader.status());
    status.is_ok_and(|status| status.done && study.search.trials <= status.wanted)
}

/// What has come to its end ran on what it ran on.
fn is_done(folder: &Path) -> bool {
    Reader::open(folder).and_then(|reader| reader.status()).is_ok_and(|status| status.done)
}

/// `studies/cifar10` for `search-spaces/cifar10.yaml`.
pub(super) fn default_folder(file: &Path) -> PathBuf {
    Path::new("studies").join(file.file_stem().unwrap_or(file.as_os_str()))
}

/// What the trials of a study run on.
enum Backend {
    Programs {
        nodes: Vec<AgentNode>,
        /// How many slots each program has, for people; none if the user has not said how many there are.
        each: Option<String>,
    },
    Emulated {
        cluster: ClusterSpec,
        time_scale: f64,
    },
    #[cfg(feature = "torch")]
    Trainables(machine::Slots),
    Python(machine::Slots),
}

/// Finds out what the trials run on, and whether they can.
fn backend(
    settings: &Settings,
    study: &Study,
    trainables: Trainables,
    stderr: &mut impl Write,
) -> Result<Backend, cli::Error> {
    let file = || settings.file.clone();
    if let Some(emulation) = &settings.emulate {
        let trainable = match &study.trial.program {
            Some(Program::Trainable(trainable)) => trainable,
            Some(Program::Command(_)) => {
                return Err(Error::NotTrainable { file: file(), what: "a program" }.into());
            }
            Some(Program::Python(_)) => {
                return Err(Error::NotTrainable { file: file(), what: "Python code" }.into());
            }
            None => return Err(Error::NotTrainable { file: file(), what: "neither" }.into()),
        };
        let cluster = match &emulation.cluster {
            Some(text) => emulated_cluster(text, stderr)?,
            None => match (&study.cluster, study.machines.as_ref().and_then(Machines::most)) {
                (Some(cluster), _) => cluster.clone(),
                (None, Some(most)) => {
                    crate::emulate::check(trainable, &most).map_err(actors::Error::from)?;
                    // They come out of a queue that is emulated, too.
                    let cluster = ClusterSpec { node_sets: Vec::new() };
                    return Ok(Backend::Emulated { cluster, time_scale: emulation.time_scale });
                }
                (None, None) => return Err(Error::NothingToEmulate(file()).into()),
            },
        };
        crate::emulate::check(trainable, &cluster).map_err(actors::Error::from)?;
        actors::check_room(study, &actors::emulated_nodes(&cluster))?;
        return Ok(Backend::Emulated { cluster, time_scale: emulation.time_scale });
    }
    match &study.trial.program {
        None => Err(actors::Error::NoProgram.into()),
        Some(Program::Command(_)) => {
            if settings.devices.slots.is_none() && study.machines.is_some() {
                // The machine of the head may be one on which nobody should compute.
                return Ok(Backend::Programs { nodes: Vec::new(), each: None });
            }
            let shares = actors::program_slots(study);
            let nodes = machine::program_nodes(&settings.devices, shares).map_err(Error::Devices)?;
            if settings.listen.is_none() && study.machines.is_none() {
                actors::check_program_room(study, &nodes)?;
            }
            let is_known = settings.devices.slots.is_some() || machine::has_gpus(&nodes);
            Ok(Backend::Programs { nodes, each: is_known.then(|| slots_of_programs(&study.trial)) })
        }
        Some(Program::Trainable(name)) => trainable(settings, study, name, trainables),
        Some(Program::Python(program)) => {
            let paths_from = study::folder_of(&settings.file);
            python::check(program, &study.trial, paths_from).map_err(Error::from)?;
            Ok(Backend::Python(own_slots(settings, study, None)?))
        }
    }
}

/// A cluster as text, or that of a file.
fn emulated_cluster(text: &str, stderr: &mut impl Write) -> Result<ClusterSpec, cli::Error> {
    if ClusterSpec::names_file(text) {
        return study::load_cluster(Path::new(text), stderr);
    }
    let wrong = |source| Error::Cluster { text: text.to_owned(), source };
    Ok(ClusterSpec::parse(text).map_err(wrong)?)
}

#[cfg(not(feature = "torch"))]
fn trainable(_: &Settings, _: &Study, _: &str, _: Trainables) -> Result<Backend, cli::Error> {
    Err(Error::NoTorch.into())
}

#[cfg(feature = "torch")]
fn trainable(
    settings: &Settings,
    study: &Study,
    name: &str,
    trainables: Trainables,
) -> Result<Backend, cli::Error> {
    if !trainables.contains(name) {
        let known: Vec<&str> = trainables.names().collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(Error::UnknownTrainable { name: name.to_owned(), known }.into());
    }
    // What the first trial would meet is better met before there is a study.
    let first = crate::trials::engine::SuggestService::new(study)?.ask(crate::ids::TrialId(0));
    if let Ok(first) = first
        && let Err(source) = trainables.check(name, &first.params)
    {
        return Err(Error::NotReady { name: name.to_owned(), source }.into());
    }
    Ok(Backend::Trainables(own_slots(settings, study, Some(crate::worker::gpus()))?))
}

/// What of this machine elastic trials run on.
fn own_slots(settings: &Settings, study: &Study, usable: Option<u32>) -> Result<machine::Slots, cli::Error> {
    if settings.devices.slots.is_none() && study.machines.is_some() {
        return Ok(machine::Slots::none());
    }
    let slots = machine::slots(&settings.devices, study.cluster.as_ref(), usable);
    let slots = slots.map_err(|wrong| match wrong {
        NoSlots::Asked(source) => Error::Devices(source),
        NoSlots::Described { wanted, there } => {
            Error::OtherMachine { file: settings.file.clone(), wanted, there }
        }
    })?;
    if settings.listen.is_none() && study.machines.is_none() {
        actors::check_room(study, &slots.nodes)?;
    }
    Ok(slots)
}

impl Backend {
    fn emulated(&self) -> Option<String> {
        match self {
            Self::Emulated { cluster, time_scale } => {
                Some(format!("{}, time scale {time_scale}", emulated_devices(cluster)))
            }
            Self::Programs { .. } | Self::Python(_) => None,
            #[cfg(feature = "torch")]
            Self::Trainables(_) => None,
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Programs { each: None, .. } => String::new(),
            Self::Programs { nodes, each: Some(each) } => {
                let count: usize = nodes.iter().map(|node| node.slots.len()).sum();
                let slots = if machine::has_gpus(nodes) { "GPUs" } else { "slots" };
                if count == 0 { String::new() } else { format!("{count} {slots}, {each}") }
            }
            Self::Emulated { cluster, time_scale } => {
                format!("emulated devices: {}, time scale {time_scale}", emulated_devices(cluster))
            }
            #[cfg(feature = "torch")]
            Self::Trainables(slots) => slots.describe(),
            Self::Python(slots) => slots.describe(),
        }
    }

    fn start(self, runner: Runner) -> Result<Finished, actors::Error> {
        match self {
            Self::Programs { nodes, .. } => runner.run_programs(nodes),
            Self::Emulated { cluster, time_scale } => runner.run_emulated(&cluster, time_scale),
            #[cfg(feature = "torch")]
            Self::Trainables(slots) => runner.run_nodes(slots.nodes),
            Self::Python(slots) => runner.run_python_on(slots.nodes),
        }
    }
}

/// How many slots a program has.
fn slots_of_programs(trial: &TrialSettings) -> String {
    match (trial.share, trial.slots(), trial.elastic) {
        (1, 1, None) => "one for each program".to_owned(),
        (1, slots, None) => format!("{slots} for each program"),
        (1, least, Some(_)) => format!("{least} to {} for each program", trial.max_gpus.unwrap_or(least)),
        (share, ..) => format!("each for {share} programs"),
    }
}

/// What is emulated.
fn emulated_devices(cluster: &ClusterSpec) -> String {
    if cluster.node_sets.is_empty() { EMULATED_QUEUE.to_owned() } else { cluster.to_string() }
}

/// Emulated and real trials do not mix.
fn check_kind(folder: &Path, emulated: Option<&str>) -> Result<(), Error> {
    let place = Folder::new(folder);
    if !place.journal().exists() {
        return Ok(());
    }
    let name = |devices: Option<&str>| match devices {
        Some(devices) => format!("is emulated ({devices})"),
        None => "is not emulated".to_owned(),
    };
    let before = place.emulated();
    if before.is_some() == emulated.is_some() {
        return Ok(());
    }
    let (found, wanted) = (name(before.as_deref()), name(emulated));
    Err(Error::Mixed { folder: folder.to_owned(), found, wanted })
}

/// Keeps a log of what happens in the folder of the study. `POLLUX_TUNE_LOG` sets how much: `info`, or `debug`, or less.
fn log_to(folder: &Path) -> Result<(), cli::Error> {
    let place = Folder::new(folder);
    place.create()?;
    let path = place.logs().join("head.log");
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let file = file.map_err(cli::Error::writing(&path))?;
    let level = env::var("POLLUX_TUNE_LOG").ok().and_then(|text| text.parse().ok());
    let level = level.unwrap_or(LevelFilter::INFO);
    let subscriber =
        tracing_subscriber::fmt().with_writer(Mutex::new(file)).with_ansi(false).with_max_level(level);
    // The user is told of a full disk once, and not with every line that does not fit.
    let subscriber = subscriber.log_internal_errors(false);
    // A program that embeds this may have one of its own.
    let _ = subscriber.try_init();
    Ok(())
}

/// Says how it went, and where everything is.
fn conclude(
    finished: &Finished,
    folder: &Path,
    emulated: Option<&str>,
    out: &mut impl Write,
    stderr: &mut impl Write,
) -> Result<ExitStatus, cli::Error> {
    let place = Folder::new(folder);
    if finished.search().trials().len() > 0 {
        match show_results(folder, emulated, out) {
            // What keeps a study waiting may keep it from drawing, too; whoever stopped it has it all in the journal.
            Err(error) if finished.outcome == Outcome::Stopped && !error.is_broken_pipe() => {
                let _ = writeln!(stderr, "warning: {}", with_causes(&error));
            }
            shown => shown?,
        }
    }
    for line in failures::summary(folder, finished.search().trials()) {
        writeln!(out, "{line}").map_err(cli::Error::Stdout)?;
    }
    writeln!(out, "journal   {}", place.journal().display()).map_err(cli::Error::Stdout)?;
    writeln!(out, "logs      {}", place.logs().display()).map_err(cli::Error::Stdout)?;
    writeln!(out, "page      pollux-tune dashboard {}", folder.display()).map_err(cli::Error::Stdout)?;
    let search = finished.search();
    if export::has_best_weights(search.study(), emulated.is_some())
        && search.best(1).iter().any(|best| place.checkpoint(best.id).is_dir())
    {
        let folder = folder.display();
        writeln!(out, "weights   pollux-tune export {folder} -o model.safetensors")
            .map_err(cli::Error::Stdout)?;
    }
    let (line, status) = match &finished.outcome {
        Outcome::Done => (format!("the study in {} is done", folder.display()), ExitStatus::Success),
        Outcome::Stopped => {
            (format!("stopped; to resume: {}", command_line(std::env::args())), ExitStatus::Interrupted)
        }
        Outcome::Failed(reason) => (format!("the study has failed: {reason}"), ExitStatus::Failure),
    };
    writeln!(out, "{line}").map_err(cli::Error::Stdout)?;
    Ok(status)
}

/// The best trials, and a picture of all.
fn show_results(folder: &Path, emulated: Option<&str>, out: &mut impl Write) -> Result<(), cli::Error> {
    results::best(folder, BEST, Format::Text, out)?;
    let drawing = folder.join("timeline.svg");
    write_atomically(&drawing, &timeline::draw(&Reader::open(folder)?, emulated)?)?;
    writeln!(out, "timeline  {}", drawing.display()).map_err(cli::Error::Stdout)
}

/// A command as a shell takes it.
fn command_line(arguments: impl Iterator<Item = String>) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-./=,:+@%".contains(c);
    let quoted = arguments.map(|argument| {
        if !argument.is_empty() && argument.chars().all(plain) {
            argument
        } else {
            format!("'{}'", argument.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// How many trials are shown at the end.
const BEST: usize = 10;

#[cfg(test)]
mod tests {
    use super::command_line;

    #[test]
    fn commands_can_be_typed_again() {
        let arguments = ["pollux-tune", "run", "my study.yaml", "--emulate", "", "it's"].map(str::to_owned);
        assert_eq!(
            command_line(arguments.into_iter()),
            r"pollux-tune run 'my study.yaml' --emulate '' 'it'\''s'"
        );
    }
}
