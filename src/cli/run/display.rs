//! What the user sees while a study runs: moving lines on a terminal, else a line for everything that matters.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal, Write},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::{
    pace::Pace,
    progress::{Best, Progress},
    shortage::Shortage,
    view::{self, Look},
};
use crate::{
    cli::{
        inspect::event,
        terminal::{Paint, has_colours, stderr_width},
    },
    ids::{NodeId, TrialId},
    space::{Objective, Value},
    trials::engine::{Draining, Engine, Fact, JournalEntry, Metrics, TrialKind, Wait},
};

/// How often the moving lines move.
const FRAME: Duration = Duration::from_millis(100);

/// Shows a study on a thread of its own: a terminal that does not take anything must not hold the study up.
pub(super) struct Display {
    handle: DisplayHandle,
    thread: Option<JoinHandle<()>>,
    is_terminal: bool,
    emulated: bool,
}

/// Prints lines for the user, from any thread.
#[derive(Clone)]
pub(super) struct DisplayHandle(Sender<Update>);

enum Update {
    Line(String),
    Progress(Progress),
    /// Why no trial can run, if that is so.
    Shortage(Option<String>),
    Flush(SyncSender<()>),
    End,
}

impl DisplayHandle {
    pub(super) fn print(&self, line: &str) {
        let _ = self.0.send(Update::Line(line.to_owned()));
    }

    /// Waits until all of it is shown.
    pub(super) fn flush(&self) {
        let (done, wait) = mpsc::sync_channel(0);
        let _ = self.0.send(Update::Flush(done));
        let _ = wait.recv();
    }
}

impl Display {
    pub(super) fn start(quiet: bool, emulated: bool) -> Self {
        let is_terminal = io::stderr().is_terminal() && !quiet;
        let (sender, updates) = mpsc::channel();
        let show =
            move || if is_terminal { move_lines(&updates, emulated) } else { print_lines(&updates, quiet) };
        let thread = thread::Builder::new().name("display".to_owned()).spawn(show).ok();
        Self { handle: DisplayHandle(sender), thread, is_terminal, emulated }
    }

    pub(super) fn handle(&self) -> DisplayHandle {
        self.handle.clone()
    }

    pub(super) fn print(&self, line: &str) {
        self.handle.print(line);
    }

    /// A callback for every step of the study.
    pub(super) fn watch(&self) -> impl FnMut(&Engine, &[JournalEntry]) + Send + 'static {
        let DisplayHandle(updates) = self.handle();
        let (is_terminal, emulated) = (self.is_terminal, self.emulated);
        let mut last: Option<Instant> = None;
        let mut best = Best::default();
        let (mut is_warned, mut lines) = (false, Lines::default());
        move |engine, entries| {
            best.update(engine, entries);
            for entry in entries {
                if let Some(line) = missing_metric(entry, engine).filter(|_| !is_warned) {
                    is_warned = true;
                    let _ = updates.send(Update::Line(line));
                }
                if let Some(line) = lines.of(entry, engine, is_terminal) {
                    let _ = updates.send(Update::Line(at(entry, engine, emulated, &line)));
                }
            }
            let _ = updates.send(Update::Shortage(engine.state().shortage(engine.study())));
            if is_terminal && last.is_none_or(|last| last.elapsed() >= FRAME) {
                last = Some(Instant::now());
                let _ = updates.send(Update::Progress(Progress::of(engine, &best)));
            }
        }
    }

    pub(super) fn end(mut self) {
        let _ = self.handle.0.send(Update::End);
        if let Some(thread) = self.thread.take() {
            // If it died, there is nothing left to print.
            let _ = thread.join();
        }
    }
}

/// A line with the time since the head has started. That of emulated devices is no real time.
pub(in crate::cli) fn at(entry: &JournalEntry, engine: &Engine, emulated: bool, line: &str) -> String {
    let at_s = entry.at_s - engine.state().started_s;
    let unit = if emulated { "s emulated" } else { "s" };
    format!("{at_s:7.1} {unit}  {line}")
}

/// How a study that waits continues.
fn continues() -> String {
    format!("it tries again at least every {} s, and continues by itself", Wait::LONGEST_S)
}

/// A warning for programs and functions, which may still print the metric of an objective at their end.
fn missing_metric(entry: &JournalEntry, engine: &Engine) -> Option<String> {
    let Fact::Measured { trial, metrics, .. } = &entry.fact else { return None };
    let known = &engine.state().active.get(trial)?.metrics;
    let is_missing = |objective: &&Objective| !known.contains_key(&objective.metric);
    let objective = engine.study().objectives.iter().find(is_missing)?;
    if metrics.is_empty() || TrialKind::of(engine.study()) == TrialKind::Elastic {
        return None;
    }
    let came: Vec<String> = known.keys().map(|name| format!("`{name}`")).collect();
    let (came, metric) = (came.join(", "), &objective.metric);
    Some(format!(
        "warning: trial {trial} reports {came}, but not `{metric}`, the objective: it fails if that does not come"
    ))
}

/// The next thing to show. That a study waits for machines shows by itself, when it lasts.
fn next(updates: &Receiver<Update>, shortage: &mut Shortage) -> Option<Update> {
    loop {
        let update = match shortage.due() {
            None => updates.recv().ok()?,
            Some(due) => match updates.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(update) => update,
                Err(RecvTimeoutError::Timeout) => return shortage.tell().map(Update::Line),
                Err(RecvTimeoutError::Disconnected) => return None,
            },
        };
        match update {
            Update::Shortage(reason) => {
                if let Some(line) = shortage.set(reason, Instant::now()) {
                    return Some(Update::Line(line));
                }
            }
            update => return Some(update),
        }
    }
}

/// The lines of facts, one after the other.
#[derive(Debug, Default)]
pub(in crate::cli) struct Lines {
    /// What each trial has reported last: at its end it may do so again.
    reported: BTreeMap<TrialId, (f64, Metrics)>,
}

impl Lines {
    /// The line of the next fact, if it is worth one.
    pub(in crate::cli) fn of(
        &mut self,
        entry: &JournalEntry,
        engine: &Engine,
        is_terminal: bool,
    ) -> Option<String> {
        if let Fact::Measured { trial, epochs, metrics, .. } = &entry.fact
            && !metrics.is_empty()
        {
            let report = (*epochs, metrics.clone());
            if self.reported.insert(*trial, report.clone()) == Some(report) {
                return None;
            }
        }
        if let Some((trial, _)) = entry.fact.end() {
            self.reported.remove(&trial);
        }
        line(entry, engine, is_terminal)
    }
}

/// A line for the user, if a fact is worth one. Moving lines show the rest.
fn line(entry: &JournalEntry, engine: &Engine, is_terminal: bool) -> Option<String> {
    let metrics = |metrics: &Metrics| {
        let each =
            metrics.iter().map(|(name, value)| format!("{name} {}", Value::from(value.value()).short()));
        each.collect::<Vec<_>>().join(", ")
    };
    let label = |node: NodeId| engine.state().node_label(node);
    Some(match &entry.fact {
        Fact::SlotLost { slot, reason } => format!("slot {slot} has lost its worker: {reason}"),
        Fact::SlotJoined { slot } => format!("slot {slot} has a worker again"),
        Fact::SuggestionsEnded { reason, .. } => format!("no more trials: {reason}"),
        Fact::TrialDone { trial, values } => {
            let goals = engine.study().objectives.iter().zip(values);
            let values =
                goals.map(|(goal, value)| format!("{} {}", goal.metric, Value::from(*value).short()));
            format!("trial {trial} is done: {}", values.collect::<Vec<_>>().join(", "))
        }
        Fact::StudyWaiting { reason } => {
            // Once, however often it is found broken.
            engine.state().waiting.as_ref().filter(|wait| wait.tries == 1)?;
            format!("the study waits: {reason}; {}", continues())
        }
        Fact::StudyResumed {} => "the study continues: what it has waited for works again".to_owned(),
        Fact::NodeBlocked { node, reason } => {
            format!("{} cannot start workers: {reason}; {}", label(*node), continues())
        }
        Fact::NodeDraining { node, until_s, reason } => {
            let drains = engine.state().nodes.get(node).and_then(|node| node.draining.as_ref());
            let when = match drains.and_then(Draining::deadline_s) {
                Some(_) => format!("in at most {:.0} s", (until_s - entry.at_s).max(0.0)),
                None => "when nothing runs there any more".to_owned(),
            };
            format!("{} will leave {when}: {reason}", label(*node))
        }
        Fact::NodeLost { node, reason } => format!("{} is gone: {reason}", label(*node)),
        Fact::HeadStarted {} if engine.state().paused_s.is_some() => PAUSED.to_owned(),
        Fact::PauseRequested {} => PAUSED.to_owned(),
        Fact::ResumeRequested {} => "the study continues: trials are launched again".to_owned(),
        Fact::TrialEnqueued { params } => format!("to be tried before others: {params}"),
        Fact::SuggestionsReopened {} => "the study continues: there may be more trials".to_owned(),
        Fact::TrialRetried { trial } => format!("trial {trial} will run again"),
        Fact::TrialInterrupted { reason, .. }
            if engine.state().waiting.as_ref().is_some_and(|wait| wait.reason == *reason) =>
        {
            return None;
        }
        Fact::TrialStopped { trial, .. }
        | Fact::TrialFailed { trial, .. }
        | Fact::TrialCancelled { trial, .. }
        | Fact::TrialInterrupted { trial, .. } => format!("trial {trial} {}", event(entry, *trial)?),
        Fact::BatchLimited { gpu_type, limit, failed, .. } => format!(
            "passes of {failed} examples do not fit into the memory of {gpu_type}: at most {limit} from now on, in all trials"
        ),
        Fact::CheckpointFailed { trial, reason } => format!("warning: trial {trial}: {reason}"),
        _ if is_terminal => return None,
        Fact::NodeJoined { node, gpu_type, slots, .. } => {
            format!("{} has joined with {slots} slots ({gpu_type})", label(*node))
        }
        Fact::TrialCreated { trial, params, .. } => format!("trial {trial} created: {params}"),
        Fact::TrialStarted { trial, .. } | Fact::Retuned { trial, .. } | Fact::TrialPaused { trial, .. } => {
            format!("trial {trial} {}", event(entry, *trial)?)
        }
        Fact::Measured { trial, epochs, metrics: measured, .. } if !measured.is_empty() => {
            format!("trial {trial} at epoch {epochs:.2}: {}", metrics(measured))
        }
        _ => return None,
    })
}

/// What is said of a paused study.
const PAUSED: &str = "the study is paused: no trial is launched until `pollux-tune resume`";

fn print_lines(updates: &Receiver<Update>, quiet: bool) {
    let mut out = io::stderr();
    let mut shortage = Shortage::default();
    while let Some(update) = next(updates, &mut shortage) {
        match update {
            // Without stderr there is nowhere to report to.
            Update::Line(line) if !quiet => drop(writeln!(out, "{line}")),
            Update::Line(_) | Update::Progress(_) | Update::Shortage(_) => {}
            Update::Flush(done) => drop(done.send(())),
            Update::End => return,
        }
    }
}

/// Trials that get a line of their own.
const TRIAL_LINES: usize = 12;
/// Where a terminal does not say how wide it is.
const USUAL_WIDTH: usize = 80;

/// Lines at the end of a terminal that change in their place.
pub(in crate::cli) struct MovingLines {
    all: MultiProgress,
    style: ProgressStyle,
    lines: Vec<ProgressBar>,
}

impl MovingLines {
    pub(in crate::cli) fn new() -> Self {
        let style = ProgressStyle::with_template("{wide_msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        Self { all: MultiProgress::new(), style, lines: Vec::new() }
    }

    /// Shows these instead of those before.
    pub(in crate::cli) fn show(&mut self, shown: Vec<String>) {
        while self.lines.len() < shown.len() {
            let line = self.all.add(ProgressBar::new_spinner());
            line.set_style(self.style.clone());
            self.lines.push(line);
        }
        for line in self.lines.drain(shown.len()..) {
            line.finish_and_clear();
            self.all.remove(&line);
        }
        for (line, text) in self.lines.iter().zip(shown) {
            line.set_message(text);
        }
    }

    /// A line above them, which stays.
    fn print(&self, line: &str) {
        // Without stderr there is nowhere to report to.
        let _ = self.all.println(line);
    }

    pub(in crate::cli) fn clear(&mut self) {
        for line in self.lines.drain(..) {
            line.finish_and_clear();
        }
    }
}

fn move_lines(updates: &Receiver<Update>, emulated: bool) {
    let (began, mut pace, mut lines) = (Instant::now(), Pace::default(), MovingLines::new());
    let paint = Paint(has_colours());
    let mut shortage = Shortage::default();
    while let Some(update) = next(updates, &mut shortage) {
        match update {
            Update::Line(line) => lines.print(&line),
            Update::Progress(progress) => {
                // It may have become wider or narrower.
                let width = stderr_width().unwrap_or(USUAL_WIDTH);
                let look = Look { width, paint, emulated, trials: TRIAL_LINES };
                let elapsed_s = began.elapsed().as_secs_f64();
                let left = pace.left(elapsed_s, progress.part).filter(|_| progress.proceeds());
                lines.show(view::lines(&progress, Some(elapsed_s), left.as_deref(), &look));
            }
            Update::Shortage(_) => {}
            Update::Flush(done) => drop(done.send(())),
            Update::End => break,
        }
    }
    lines.clear();
}
