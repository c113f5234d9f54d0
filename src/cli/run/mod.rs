//! `run`: a study from its first trial, or from where it was, to its end.

mod display;
mod machine;
mod scene;
mod signals;

use std::{
    env,
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Mutex,
};

use anyhow::Context as _;
use clap::Args;
use thiserror::Error;
use tracing_subscriber::filter::LevelFilter;

use self::{display::Display, signals::Signals};
use super::{Trainables, fit::Format, output_error, results, study, timeline};
use crate::{
    actors::{self, Finished, Runner},
    alloc::{self, ClusterSpec, PolicyKind},
    space::{Program, Study},
    store::{Folder, Reader},
    trials::engine::Outcome,
};

const EXAMPLES: &str = "\
Examples:
  Run a study, or go on with it; its folder is studies/cifar10:
    pollux-tune run search-spaces/cifar10.yaml
  On two shares of the processor:
    pollux-tune run search-spaces/cifar10.yaml --slots 2 --cpu
  The same on two machines that are not there, a hundred times as fast:
    pollux-tune run search-spaces/cifar10.yaml --emulate 2x8xa100 --time-scale 0.01 --folder /tmp/emulated
While it runs, and after: pollux-tune status, trials, show, best, timeline and stop, each with the folder.
Ctrl-C lets trials write their state and ends; the same command goes on. Ctrl-C twice ends at once.";

/// Run a study, or go on with it
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, arg_required_else_help = true)]
pub(super) struct RunArgs {
    /// The study file, see docs/search-spaces.md
    #[arg(value_name = "STUDY.yaml")]
    file: PathBuf,
    /// Where the study is kept [default: studies/ and the name of the file]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Slots of this machine [default: those of the study file, else one for each GPU, else 2; `search.parallel` for programs]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Slots")]
    slots: Option<u32>,
    /// Threads of each slot [default: cores divided by slots]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Slots")]
    threads: Option<u32>,
    /// Use CPU cores even if there are GPUs
    #[arg(long, help_heading = "Slots")]
    cpu: bool,
    /// Emulate these machines, such as 2x8xa100,4x4xt4 or a YAML file [without a value: those of the study file]
    #[arg(long, value_name = "CLUSTER", num_args = 0..=1, default_missing_value = "", help_heading = "Emulation")]
    emulate: Option<String>,
    /// Real seconds that an emulated second takes
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = time_scale, requires = "emulate", help_heading = "Emulation")]
    time_scale: f64,
    /// Who shares the slots out, instead of the study file's: goodput, pollux, static, optimus or tiresias
    #[arg(long, value_name = "POLICY", help_heading = "Search")]
    policy: Option<PolicyKind>,
    /// How many trials, instead of the study file's
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Search")]
    trials: Option<u32>,
    /// Say nothing while it runs
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

fn time_scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if (1e-4..=1.0).contains(&scale) => Ok(scale),
        _ => Err("allowed is a number from 0.0001 to 1".to_owned()),
    }
}

/// What can be wrong with what the user asks for.
#[derive(Debug, Error)]
pub(super) enum Error {
    #[error("{} names no `cluster` to emulate: give one, as in `--emulate 2x8xa100`", .0.display())]
    NothingToEmulate(PathBuf),
    #[error("`--emulate {text}`: {problem}")]
    Cluster { text: String, problem: alloc::Error },
    #[error("only trainables can be emulated, and {} runs {what}", .file.display())]
    NotTrainable { file: PathBuf, what: &'static str },
    #[error("the study in {} {found}, and this run {wanted}: give another folder", .folder.display())]
    Mixed { folder: PathBuf, found: String, wanted: String },
    #[cfg(feature = "torch")]
    #[error("there is no trainable `{name}`, allowed is one of: {known}")]
    UnknownTrainable { name: String, known: String },
    #[cfg(feature = "torch")]
    #[error("`{name}` cannot be trained with what the study file says: {problem}")]
    NotReady { name: String, problem: String },
    #[cfg(not(feature = "torch"))]
    #[error(
        "this program was built without training: build it with `--features torch` (see docs/training.md), or emulate with `--emulate`"
    )]
    NoTorch,
    #[cfg(feature = "torch")]
    #[error(
        "{} wants {wanted}, and this machine has {there}: give `--slots`, or `--emulate` what it has not",
        .file.display()
    )]
    OtherMachine { file: PathBuf, wanted: String, there: String },
}

/// How the program is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    Done,
    /// The user has stopped it.
    Stopped,
    Failed,
}

impl Exit {
    pub(super) fn code(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Done => 0,
            Self::Failed => 1,
            // As shells have it for a program that was interrupted.
            Self::Stopped => 130,
        })
    }
}

/// Runs the study, and says how it went.
pub(super) fn run(
    arguments: &RunArgs,
    trainables: Trainables,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> anyhow::Result<Exit> {
    let (_, mut study) = study::load(&arguments.file, notes)?;
    study.search.trials = arguments.trials.unwrap_or(study.search.trials);
    study.scheduler.policy = arguments.policy.unwrap_or(study.scheduler.policy);
    let folder = arguments.folder.clone().unwrap_or_else(|| default_folder(&arguments.file));
    let work = work(arguments, &study, trainables, notes)?;
    let emulated = work.emulated();
    check_kind(&folder, emulated.as_deref())?;
    actors::check(&study, &folder)?;
    if let Some(devices) = emulated.as_ref().filter(|_| !is_done(&folder)) {
        Folder::new(&folder).mark_emulated(devices)?;
    }
    log_to(&folder)?;
    let display = Display::start(arguments.quiet, emulated.is_some());
    display.say(&format!("the study is in {}; {}", folder.display(), work.describe()));
    let runner = Runner::new(study).folder(&folder).watch(display.watch());
    let signals = Signals::listen(runner.stop_handle(), &folder, display.speaker())?;
    let finished = work.start(runner);
    drop(signals);
    display.end();
    let finished =
        finished.with_context(|| format!("the study in {} has not come to its end", folder.display()))?;
    let emulated = Folder::new(&folder).emulated();
    conclude(&finished, &folder, emulated.as_deref(), out)
}

/// What has come to its end ran on what it ran on.
fn is_done(folder: &Path) -> bool {
    Reader::open(folder).and_then(|reader| reader.status()).is_ok_and(|status| status.done)
}

/// `studies/cifar10` for `search-spaces/cifar10.yaml`.
fn default_folder(file: &Path) -> PathBuf {
    Path::new("studies").join(file.file_stem().unwrap_or(file.as_os_str()))
}

/// What the trials of a study run on.
enum Work {
    Programs {
        slots: Option<u32>,
        gpus: u32,
    },
    Emulated {
        cluster: ClusterSpec,
        time_scale: f64,
    },
    #[cfg(feature = "torch")]
    Trainables(machine::Slots),
}

/// Finds out what is to be done, and whether it can be.
fn work(
    arguments: &RunArgs,
    study: &Study,
    trainables: Trainables,
    notes: &mut impl Write,
) -> anyhow::Result<Work> {
    let file = || arguments.file.clone();
    if let Some(text) = &arguments.emulate {
        let trainable = match &study.trial.program {
            Some(Program::Trainable(trainable)) => trainable,
            Some(Program::Command(_)) => {
                return Err(Error::NotTrainable { file: file(), what: "a program" }.into());
            }
            None => return Err(Error::NotTrainable { file: file(), what: "neither" }.into()),
        };
        let cluster = if text.is_empty() {
            study.cluster.clone().ok_or_else(|| Error::NothingToEmulate(file()))?
        } else {
            emulated_cluster(text, notes)?
        };
        crate::emulate::check(trainable, &cluster).map_err(actors::Error::from)?;
        return Ok(Work::Emulated { cluster, time_scale: arguments.time_scale });
    }
    match &study.trial.program {
        None => Err(actors::Error::NoProgram.into()),
        Some(Program::Command(_)) => {
            let gpus = if arguments.cpu { 0 } else { machine::gpu_count() };
            let slots = arguments.slots.or_else(|| (gpus > 0).then_some(gpus));
            Ok(Work::Programs { slots, gpus })
        }
        Some(Program::Trainable(name)) => trainable(arguments, study, name, trainables),
    }
}

/// A cluster in words, or that of a file.
fn emulated_cluster(text: &str, notes: &mut impl Write) -> anyhow::Result<ClusterSpec> {
    if ClusterSpec::names_file(text) {
        return Ok(study::load_cluster(Path::new(text), notes)?);
    }
    let wrong = |problem| Error::Cluster { text: text.to_owned(), problem };
    Ok(ClusterSpec::parse(text).map_err(wrong)?)
}

#[cfg(not(feature = "torch"))]
fn trainable(_: &RunArgs, _: &Study, _: &str, _: Trainables) -> anyhow::Result<Work> {
    Err(Error::NoTorch.into())
}

#[cfg(feature = "torch")]
fn trainable(arguments: &RunArgs, study: &Study, name: &str, trainables: Trainables) -> anyhow::Result<Work> {
    if !trainables.contains(name) {
        let known: Vec<&str> = trainables.names().collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(Error::UnknownTrainable { name: name.to_owned(), known }.into());
    }
    // What the first trial would meet is better met before there is a study.
    let first = crate::trials::engine::SuggestService::new(study)?.ask(crate::ids::TrialId(0));
    if let Ok(first) = first
        && let Err(error) = trainables.check(name, &first.params)
    {
        return Err(Error::NotReady { name: name.to_owned(), problem: error.to_string() }.into());
    }
    let slots = machine::slots(arguments.slots, arguments.threads, arguments.cpu, study.cluster.as_ref());
    let slots = slots.map_err(|(wanted, there)| {
        let file = arguments.file.clone();
        Error::OtherMachine { file, wanted, there }
    })?;
    Ok(Work::Trainables(slots))
}

impl Work {
    fn emulated(&self) -> Option<String> {
        match self {
            Self::Emulated { cluster, time_scale } => Some(format!("{cluster}, time scale {time_scale}")),
            Self::Programs { .. } => None,
            #[cfg(feature = "torch")]
            Self::Trainables(_) => None,
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Programs { slots, gpus: 0 } => {
                slots.map_or_else(String::new, |slots| format!("{slots} programs at a time"))
            }
            Self::Programs { gpus, .. } => format!("{gpus} GPUs, one for each program"),
            Self::Emulated { cluster, time_scale } => {
                format!("emulated devices: {cluster}, time scale {time_scale}")
            }
            #[cfg(feature = "torch")]
            Self::Trainables(slots) => slots.describe(),
        }
    }

    fn start(self, runner: Runner) -> Result<Finished, actors::Error> {
        match self {
            Self::Programs { slots, gpus } => match slots {
                Some(slots) => runner.slots(slots).run_command(gpus),
                None => runner.run_command(gpus),
            },
            Self::Emulated { cluster, time_scale } => runner.run_emulated(&cluster, time_scale),
            #[cfg(feature = "torch")]
            Self::Trainables(slots) => runner.run_trainable(&slots.gpu_type, &slots.slots),
        }
    }
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

/// Keeps a log of what happens in the folder of the study. `POLLUX_TUNE_LOG` says how much: `info`, or `debug`, or less.
fn log_to(folder: &Path) -> anyhow::Result<()> {
    let place = Folder::new(folder);
    place.create()?;
    let path = place.logs().join("head.log");
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let file = file.with_context(|| format!("cannot write {}", path.display()))?;
    let level = env::var("POLLUX_TUNE_LOG").ok().and_then(|text| text.parse().ok());
    let level = level.unwrap_or(LevelFilter::INFO);
    let subscriber =
        tracing_subscriber::fmt().with_writer(Mutex::new(file)).with_ansi(false).with_max_level(level);
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
) -> anyhow::Result<Exit> {
    let place = Folder::new(folder);
    if finished.search().trials().len() > 0 {
        results::best(folder, BEST, Format::Text, out)?;
        let drawing = folder.join("timeline.svg");
        fs::write(&drawing, timeline::draw(&Reader::open(folder)?, emulated)?)
            .with_context(|| format!("cannot write {}", drawing.display()))?;
        writeln!(out, "timeline  {}", drawing.display()).map_err(output_error)?;
    }
    writeln!(out, "journal   {}", place.journal().display()).map_err(output_error)?;
    writeln!(out, "logs      {}", place.logs().display()).map_err(output_error)?;
    let (line, exit) = match &finished.outcome {
        Outcome::Done => (format!("the study in {} is done", folder.display()), Exit::Done),
        Outcome::Stopped => (format!("stopped; to go on: {}", command_line(std::env::args())), Exit::Stopped),
        Outcome::Failed(reason) => (format!("the study has failed: {reason}"), Exit::Failed),
    };
    writeln!(out, "{line}").map_err(output_error)?;
    Ok(exit)
}

/// A command as a shell takes it.
fn command_line(words: impl Iterator<Item = String>) -> String {
    let plain = |letter: char| letter.is_alphanumeric() || "_-./=,:+@%".contains(letter);
    let quoted = words.map(|word| {
        if !word.is_empty() && word.chars().all(plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
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
        let words = ["pollux-tune", "run", "my study.yaml", "--emulate", "", "it's"].map(str::to_owned);
        assert_eq!(
            command_line(words.into_iter()),
            r"pollux-tune run 'my study.yaml' --emulate '' 'it'\''s'"
        );
    }
}
