//! What the user sees while a study runs: moving lines on a terminal, else a line for everything that matters.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal, Write},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{
    moving::MovingLines,
    pace::Pace,
    progress::{Best, Progress},
    shortage::Shortage,
    view::{self, Look},
};
use crate::{
    cli::{
        inspect::event,
        terminal::{Paint, has_colours},
    },
    ids::{NodeId, TrialId},
    space::{Objective, Value},
    trials::engine::{Draining, Engine, Fact, JournalEntry, Metrics, TrialKind, Wait},
};

/// How often the moving lines move where something happens.
const FRAME: Duration = Duration::from_millis(100);
/// How often they do where nothing happens: the time goes on.
const TICK: Duration = Duration::from_secs(1);
/// What is only a step on the way is looked at no longer than one part in so many of the time.
const SHARE: u32 = 20;

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
        // When it was looked at last, and how long nothing but the big events is a reason to do it again.
        let mut last: Option<(Instant, Duration)> = None;
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
            let is_due = last.is_none_or(|(last, rest)| last.elapsed() >= rest);
            if is_terminal && (is_due || entries.iter().any(|entry| changes_the_picture(&entry.fact))) {
                let began = Instant::now();
                let _ = updates.send(Update::Progress(Progress::of(engine, &best)));
                last = Some((began, (SHARE * began.elapsed()).min(FRAME)));
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

/// Whether a fact is more than a step on the way: nothing may follow it for a long time.
const fn changes_the_picture(fact: &Fact) -> bool {
    !matches!(fact, Fact::Measured { .. } | Fact::Refitted { .. } | Fact::PlanAdopted { .. })
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

/// What comes next.
enum Next {
    Update(Update),
    /// The lines are to be shown again.
    Redraw,
    End,
}

/// The next thing to show. That a study waits for machines shows by itself, when it lasts.
fn next(updates: &Receiver<Update>, shortage: &mut Shortage, redraw: Option<Instant>) -> Next {
    loop {
        let due = shortage.due().into_iter().chain(redraw).min();
        let update = match due {
            None => updates.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => updates.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        match update {
            Ok(Update::Shortage(reason)) => {
                if let Some(line) = shortage.set(reason, Instant::now()) {
                    return Next::Update(Update::Line(line));
                }
            }
            Ok(update) => return Next::Update(update),
            Err(RecvTimeoutError::Disconnected) => return Next::End,
            Err(RecvTimeoutError::Timeout) => {
                let is_told = shortage.due().is_some_and(|due| due <= Instant::now());
                return match is_told.then(|| shortage.tell()).flatten() {
                    Some(line) => Next::Update(Update::Line(line)),
                    None => Next::Redraw,
                };
            }
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
        Fact::TrialEnqueued { params } => format!("enqueued, to be tried next: {params}"),
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
            let plural = if *slots == 1 { "" } else { "s" };
            format!("{} has joined with {slots} slot{plural} ({gpu_type})", label(*node))
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
    while let Next::Update(update) = next(updates, &mut shortage, None) {
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

fn move_lines(updates: &Receiver<Update>, emulated: bool) {
    let (began, mut pace, mut lines) = (Instant::now(), Pace::default(), MovingLines::default());
    let paint = Paint(has_colours());
    let mut shortage = Shortage::default();
    let mut latest: Option<Progress> = None;
    let (mut is_new, mut shown_at): (bool, Option<Instant>) = (false, None);
    loop {
        let redraw = latest.as_ref().map(|_| {
            let pause = if is_new { FRAME } else { TICK };
            shown_at.map_or_else(Instant::now, |shown_at| shown_at + pause)
        });
        match next(updates, &mut shortage, redraw) {
            Next::Update(Update::Line(line)) => lines.print(&line),
            Next::Update(Update::Progress(progress)) => {
                latest = Some(progress);
                is_new = true;
            }
            Next::Update(Update::Flush(done)) => drop(done.send(())),
            Next::Update(Update::End) | Next::End => break,
            Next::Update(Update::Shortage(_)) | Next::Redraw => {}
        }
        // Where updates come all the time, none is waited for.
        let pause = if is_new { FRAME } else { TICK };
        let is_due = shown_at.is_none_or(|shown_at| shown_at.elapsed() >= pause);
        if let Some(progress) = latest.as_ref().filter(|_| is_due) {
            let (width, trials) = MovingLines::room(TRIAL_LINES);
            let look = Look { width, paint, emulated, trials };
            let elapsed_s = began.elapsed().as_secs_f64();
            let left = pace.left(elapsed_s, progress.part).filter(|_| progress.proceeds());
            lines.show(view::lines(progress, Some(elapsed_s), left.as_deref(), &look));
            (is_new, shown_at) = (false, Some(Instant::now()));
        }
    }
    lines.clear();
}
