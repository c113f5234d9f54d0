//! Trials that are programs: parameters as JSON in, metrics as lines of JSON out.

use std::{
    collections::BTreeMap,
    env, fs,
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use actix::Recipient;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    sync::{Mutex, oneshot},
    time,
};

use super::{error::Error, message::EngineInput, supervisor::TrialRunners};
use crate::{
    ids::{SlotId, TrialId},
    store::Folder,
    trials::engine::{FailureCause, GroupCommand, GroupEvent, Input, Launch, Metrics, Report},
    worker::environment::is_to_blame,
};

/// How long a program may take to end when it is asked to.
const GRACE: Duration = Duration::from_secs(10);
/// How much of the output of a failed program is reported.
const TAIL: u64 = 600;

/// What a program finds in its environment.
const PARAMS: &str = "POLLUX_TUNE_PARAMS";
const PARAMS_FILE: &str = "POLLUX_TUNE_PARAMS_FILE";
const TRIAL: &str = "POLLUX_TUNE_TRIAL";
const FOLDER: &str = "POLLUX_TUNE_FOLDER";

/// Starts and ends the programs of trials.
pub(super) struct Commands {
    place: Arc<Place>,
    /// The next program of a slot waits for the last one.
    slots: BTreeMap<SlotId, Arc<Mutex<()>>>,
    running: BTreeMap<TrialId, oneshot::Sender<()>>,
}

/// What the programs of a study have in common.
struct Place {
    words: Vec<String>,
    folder: Folder,
    /// GPUs that slots stand for, if they do.
    gpus: u32,
}

impl Commands {
    /// A program with its arguments, for a study in a folder. With GPUs, each slot sees the one of its number.
    pub(super) fn new(words: &[String], folder: &Path, gpus: u32) -> Result<Self, Error> {
        check(words)?;
        let root = std::path::absolute(folder).map_err(Error::io("finding the folder"))?;
        let place = Arc::new(Place { words: words.to_vec(), folder: Folder::new(&root), gpus });
        // Programs of a head that was killed may still run.
        end_programs(&place.folder);
        Ok(Self { place, slots: BTreeMap::new(), running: BTreeMap::new() })
    }
}

/// Whether the program of a study is there at all.
pub(super) fn check(words: &[String]) -> Result<(), Error> {
    let program = words.first().ok_or(Error::NoProgram)?;
    if is_there(program) { Ok(()) } else { Err(Error::NoSuchProgram(program.clone())) }
}

/// Whether a program can be found as the system would.
fn is_there(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).is_file();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

impl TrialRunners for Commands {
    fn command(&mut self, trial: TrialId, command: GroupCommand, supervisor: &Recipient<EngineInput>) {
        match command {
            GroupCommand::Launch(launch) => {
                self.running.retain(|_, stop| !stop.is_closed());
                let (stop, stopped) = oneshot::channel();
                self.running.insert(trial, stop);
                let slot = launch.slots.first().copied();
                let lock = slot.map(|slot| self.slots.entry(slot).or_default().clone()).unwrap_or_default();
                let (place, supervisor) = (self.place.clone(), supervisor.clone());
                actix::spawn(async move {
                    let _slot = lock.lock().await;
                    let mut attempt =
                        Attempt { place, trial, launch, supervisor, reports: 0, last: Metrics::new() };
                    if let Some(input) = attempt.run(stopped).await {
                        attempt.supervisor.do_send(input.into());
                    }
                });
            }
            GroupCommand::Stop(_) => {
                if let Some(stop) = self.running.remove(&trial) {
                    // It may have ended by itself.
                    let _ = stop.send(());
                }
            }
            GroupCommand::Reshape { .. } | GroupCommand::Retune { .. } => {}
        }
    }
}

/// Ends the programs of a study at once.
pub(crate) fn end_programs(folder: &Folder) {
    let Ok(folders) = fs::read_dir(folder.checkpoints()) else { return };
    for folder in folders.flatten().map(|entry| entry.path()) {
        let Ok(text) = fs::read_to_string(folder.join("process")) else { continue };
        let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) else { continue };
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let ours = format!("{FOLDER}={}", folder.display());
        // Its number may be that of somebody else by now.
        if environment.split(|byte| *byte == 0).any(|variable| variable == ours.as_bytes()) {
            tracing::warn!(pid = text.trim(), "exit a program that was left behind");
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// One start of a program.
struct Attempt {
    place: Arc<Place>,
    trial: TrialId,
    launch: Launch,
    supervisor: Recipient<EngineInput>,
    reports: u32,
    last: Metrics,
}

impl Attempt {
    /// Runs the program, and returns how it ended; nothing if that was asked for.
    async fn run(&mut self, mut stop: oneshot::Receiver<()>) -> Option<Input> {
        if stop.try_recv() != Err(oneshot::error::TryRecvError::Empty) {
            return None;
        }
        let (mut child, mut log) = match self.start() {
            Ok(started) => started,
            Err(error) => {
                let cause = if is_to_blame(&error) { FailureCause::Environment } else { FailureCause::Trial };
                return Some(self.failed(format!("it cannot be started: {error}"), cause));
            }
        };
        let group = ProcessGroup::of(&child);
        let (trial, generation) = (self.trial, self.launch.generation);
        self.supervisor.do_send(Input::group(trial, generation, GroupEvent::Formed).into());
        if let Some(output) = child.stdout.take() {
            let mut lines = BufReader::new(output).split(b'\n');
            loop {
                tokio::select! {
                    line = lines.next_segment() => match line {
                        Ok(Some(line)) => self.on_line(&String::from_utf8_lossy(&line), &mut log),
                        // The end, or as good as that.
                        Ok(None) | Err(_) => break,
                    },
                    _ = &mut stop => {
                        group.end(&mut child).await;
                        return None;
                    }
                }
            }
        }
        let status = tokio::select! {
            status = child.wait() => status,
            _ = &mut stop => {
                group.end(&mut child).await;
                return None;
            }
        };
        group.forget();
        Some(match status {
            Ok(status) => self.ended(status),
            Err(error) => self.failed(format!("its end was missed: {error}"), FailureCause::Infrastructure),
        })
    }

    fn start(&self) -> io::Result<(Child, File)> {
        let Place { words, folder, gpus } = &*self.place;
        let (trial, Launch { params, slots, .. }) = (&self.trial, &self.launch);
        let home = folder.checkpoint(*trial);
        fs::create_dir_all(&home)?;
        let json = serde_json::to_string(params)?;
        let file = home.join("params.json");
        fs::write(&file, &json)?;
        let mut log = OpenOptions::new().create(true).append(true).open(folder.log(*trial))?;
        let words: Vec<String> = words.iter().map(|word| self.fill_in(word)).collect();
        writeln!(log, "# {}", words.join(" "))?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.try_clone()?);
        command.env(PARAMS, &json).env(PARAMS_FILE, &file);
        command.env(TRIAL, trial.to_string()).env(FOLDER, &home);
        // Its metrics are wanted as soon as they are printed.
        command.env("PYTHONUNBUFFERED", "1");
        if let Some(slot) = slots.first().filter(|slot| slot.index < *gpus) {
            command.env("CUDA_VISIBLE_DEVICES", slot.index.to_string());
        }
        let child = command.process_group(0).kill_on_drop(true).spawn()?;
        fs::write(home.join("process"), child.id().unwrap_or_default().to_string())?;
        Ok((child, log))
    }

    /// `{lr}` is the value of that parameter.
    fn fill_in(&self, word: &str) -> String {
        let mut word = word.replace("{trial}", &self.trial.to_string());
        for (name, value) in self.launch.params.iter() {
            word = word.replace(&format!("{{{name}}}"), &value.to_string());
        }
        word
    }

    /// A line of output: metrics, or text for the log.
    fn on_line(&mut self, line: &str, log: &mut File) {
        // A full disk is reported by those who must write.
        let _ = writeln!(log, "{line}");
        let Some((epochs, metrics)) = metrics(line) else { return };
        self.reports += 1;
        self.last.extend(metrics.clone());
        let epochs = epochs.unwrap_or_else(|| f64::from(self.reports));
        let report = Report { number: self.reports, epochs, metrics, ..Report::default() };
        let (trial, generation) = (self.trial, self.launch.generation);
        self.supervisor.do_send(Input::group(trial, generation, GroupEvent::Reported(report)).into());
    }

    fn ended(&mut self, status: ExitStatus) -> Input {
        let (trial, generation) = (self.trial, self.launch.generation);
        if status.success() {
            return Input::group(trial, generation, GroupEvent::Finished(std::mem::take(&mut self.last)));
        }
        let log = self.place.folder.log(trial);
        let output = tail(&log).unwrap_or_default();
        let output = if output.is_empty() { output } else { format!("\n{output}") };
        match status.code() {
            Some(code) => self.failed(
                format!("it ended with exit code {code}, see {}{output}", log.display()),
                FailureCause::Trial,
            ),
            // Whoever killed it had reasons that need not be the trial's fault.
            None => self.failed(
                format!("it was killed ({status}), see {}{output}", log.display()),
                FailureCause::Infrastructure,
            ),
        }
    }

    fn failed(&self, reason: String, cause: FailureCause) -> Input {
        let (trial, generation) = (self.trial, self.launch.generation);
        Input::group(trial, generation, GroupEvent::Failed { reason, cause })
    }
}

/// The metrics of a line, if it is an object with numbers, and how far the trial is.
fn metrics(line: &str) -> Option<(Option<f64>, Metrics)> {
    let line = line.trim();
    if !line.starts_with('{') {
        return None;
    }
    // Python writes numbers that JSON does not know.
    let parse = |text: &str| serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text).ok();
    let object = parse(line).or_else(|| {
        parse(&line.replace("-Infinity", "null").replace("Infinity", "null").replace("NaN", "null"))
    })?;
    let mut epochs = None;
    let mut metrics = Metrics::new();
    for (name, value) in object {
        let Some(number) = value.as_f64().or_else(|| value.is_null().then_some(f64::NAN)) else { continue };
        if matches!(name.as_str(), "epoch" | "epochs") {
            epochs = Some(number);
        } else {
            metrics.insert(name, number.into());
        }
    }
    (!metrics.is_empty()).then_some((epochs, metrics))
}

/// The last lines of a file.
pub(super) fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let whole = if length > TAIL { text.split_once('\n').map_or("", |(_, rest)| rest) } else { &text };
    Ok(whole.trim_end().to_owned())
}

/// A program and all that it has started, which end with it.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| Pid::from_raw(id.cast_signed())))
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.0 {
            // It may be gone already.
            let _ = kill_process_group(pid, signal);
        }
    }

    /// Asks the program to end, and makes it.
    async fn end(self, child: &mut Child) {
        self.signal(Signal::TERM);
        if time::timeout(GRACE, child.wait()).await.is_err() {
            self.signal(Signal::KILL);
            let _ = child.wait().await;
        }
        // What the program itself has left behind.
        self.signal(Signal::KILL);
        self.forget();
    }

    /// It has ended: its number may be given to others.
    fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}
