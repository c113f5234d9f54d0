//! What the user sees while a study runs: moving lines on a terminal, else a line for everything that matters.

use std::{
    io::{self, IsTerminal, Write},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use indicatif::{HumanDuration, MultiProgress, ProgressBar, ProgressStyle};

use super::{
    progress::{Best, Progress},
    shortage::Shortage,
};
use crate::{
    cli::inspect::event,
    ids::NodeId,
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
        let title = if emulated { "emulated " } else { "" };
        let show =
            move || if is_terminal { move_lines(&updates, title) } else { print_lines(&updates, quiet) };
        let thread = thread::Builder::new().name("display".to_owned()).spawn(show).ok();
        Self { handle: DisplayHandle(sender), thread, is_terminal }
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
        let is_terminal = self.is_terminal;
        let mut last: Option<Instant> = None;
        let mut best = Best::default();
        let mut is_warned = false;
        move |engine, entries| {
            best.update(engine, entries);
            for entry in entries {
                if let Some(line) = missing_metric(entry, engine).filter(|_| !is_warned) {
                    is_warned = true;
                    let _ = updates.send(Update::Line(line));
                }
                if let Some(line) = line(entry, engine, is_terminal) {
                    let at_s = entry.at_s - engine.state().started_s;
                    let _ = updates.send(Update::Line(format!("{at_s:7.1} s  {line}")));
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

/// How a study that waits goes on.
fn goes_on() -> String {
    format!("it tries again at least every {} s, and goes on by itself", Wait::LONGEST_S)
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
            format!("the study waits: {reason}; {}", goes_on())
        }
        Fact::StudyResumed {} => "the study goes on: what it has waited for is mended".to_owned(),
        Fact::NodeBlocked { node, reason } => {
            format!("{} cannot start workers: {reason}; {}", label(*node), goes_on())
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
        Fact::SuggestionsReopened {} => "the study goes on: its limit is no longer reached".to_owned(),
        Fact::TrialRetried { trial } => format!("trial {trial} is to run again"),
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
        Fact::TrialCreated { trial, params, .. } => format!("trial {trial} is to try {params}"),
        Fact::TrialStarted { trial, .. } | Fact::Retuned { trial, .. } | Fact::TrialPaused { trial, .. } => {
            format!("trial {trial} {}", event(entry, *trial)?)
        }
        Fact::Measured { trial, epochs, metrics: measured, .. } if !measured.is_empty() => {
            format!("trial {trial} at epoch {epochs:.2}: {}", metrics(measured))
        }
        _ => return None,
    })
}

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

/// How fast a study proceeds, since it is watched.
#[derive(Default)]
struct Pace {
    began: Option<(Duration, f64)>,
}

impl Pace {
    /// What a study still takes at this pace, once that can be estimated, from the part of it that is done.
    fn left(&mut self, now: Duration, part: f64) -> Option<String> {
        let (then, before) = *self.began.get_or_insert((now, part));
        let (passed_s, done) = (now.saturating_sub(then).as_secs_f64(), part - before);
        (done >= 0.02).then(|| {
            let left = Duration::from_secs_f64(passed_s * (1.0 - part).max(0.0) / done);
            format!("about {} left", HumanDuration(left))
        })
    }
}

fn move_lines(updates: &Receiver<Update>, title: &str) {
    let all = MultiProgress::new();
    let bar = all.add(ProgressBar::new(0));
    let style =
        |form: &str| ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar());
    // Cut where the terminal ends: a line that breaks would be taken for two.
    bar.set_style(style(&format!("{title}{{pos}} of {{len}} trials {{bar:20}} {{elapsed}}{{wide_msg}}")));
    let plain = style("{wide_msg}");
    let mut pace = Pace::default();
    let mut lines: Vec<ProgressBar> = Vec::new();
    let mut shortage = Shortage::default();
    while let Some(update) = next(updates, &mut shortage) {
        match update {
            Update::Line(line) => drop(all.println(line)),
            Update::Progress(Progress { ended, wanted, part, summary, running }) => {
                bar.set_length(wanted);
                bar.set_position(ended);
                let left = pace.left(bar.elapsed(), part);
                bar.set_message(
                    left.map_or_else(|| format!("  {summary}"), |left| format!(", {left}; {summary}")),
                );
                while lines.len() < running.len() {
                    let line = all.add(ProgressBar::new_spinner());
                    line.set_style(plain.clone());
                    lines.push(line);
                }
                for line in lines.drain(running.len()..) {
                    line.finish_and_clear();
                    all.remove(&line);
                }
                for (line, text) in lines.iter().zip(running) {
                    line.set_message(text);
                }
            }
            Update::Shortage(_) => {}
            Update::Flush(done) => drop(done.send(())),
            Update::End => break,
        }
    }
    for line in lines.iter().chain([&bar]) {
        line.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_estimated_from_what_was_seen() {
        let mut pace = Pace::default();
        // Half of it was done when the study was continued.
        assert_eq!(pace.left(Duration::from_secs(10), 0.5), None);
        assert_eq!(pace.left(Duration::from_secs(11), 0.51), None);
        // A tenth in a minute, four left.
        assert_eq!(pace.left(Duration::from_secs(70), 0.6).as_deref(), Some("about 4 minutes left"));
    }
}
