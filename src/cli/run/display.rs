//! What the user sees while a study runs: moving lines on a terminal, else a line for everything that matters.

use std::{
    io::{self, IsTerminal, Write},
    sync::mpsc::{self, Receiver, Sender, SyncSender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::{
    cli::inspect::event,
    space::{Assignment, Direction, Study, Value},
    trials::{
        End,
        engine::{Active, Engine, Entry, Fact, Phase, SlotId},
    },
};

/// How often the moving lines move.
const FRAME: Duration = Duration::from_millis(100);
/// The most characters of the parameters of a trial.
const PARAMS: usize = 44;

/// Shows a study on a thread of its own: a terminal that does not take anything must not hold the study up.
pub(super) struct Display {
    speaker: Speaker,
    thread: Option<JoinHandle<()>>,
    is_terminal: bool,
    objectives: Vec<(String, Direction)>,
}

/// Says something to the user, from any thread.
#[derive(Clone)]
pub(super) struct Speaker(Sender<Say>);

enum Say {
    Line(String),
    Scene(Scene),
    Flush(SyncSender<()>),
    End,
}

/// What there is to see at one moment.
struct Scene {
    ended: u64,
    wanted: u64,
    summary: String,
    running: Vec<String>,
}

impl Speaker {
    pub(super) fn say(&self, line: &str) {
        let _ = self.0.send(Say::Line(line.to_owned()));
    }

    /// Waits until all of it is shown.
    pub(super) fn flush(&self) {
        let (done, wait) = mpsc::sync_channel(0);
        let _ = self.0.send(Say::Flush(done));
        let _ = wait.recv();
    }
}

impl Display {
    pub(super) fn start(study: &Study, quiet: bool, emulated: bool) -> Self {
        let is_terminal = io::stderr().is_terminal() && !quiet;
        let (sender, told) = mpsc::channel();
        let title = if emulated { "emulated " } else { "" };
        let show = move || if is_terminal { move_lines(&told, title) } else { print_lines(&told, quiet) };
        let thread = thread::Builder::new().name("display".to_owned()).spawn(show).ok();
        let objectives = study.objectives.iter().map(|goal| (goal.metric.clone(), goal.direction)).collect();
        Self { speaker: Speaker(sender), thread, is_terminal, objectives }
    }

    pub(super) fn speaker(&self) -> Speaker {
        self.speaker.clone()
    }

    pub(super) fn say(&self, line: &str) {
        self.speaker.say(line);
    }

    /// What is to see every step.
    pub(super) fn watch(&self) -> impl FnMut(&Engine, &[Entry]) + Send + 'static {
        let Speaker(tell) = self.speaker();
        let (is_terminal, objectives) = (self.is_terminal, self.objectives.clone());
        let mut last: Option<Instant> = None;
        let mut best = Best::default();
        move |engine, entries| {
            best.see(&objectives, engine, entries);
            for entry in entries {
                if let Some(line) = line(entry, engine, is_terminal) {
                    let at_s = entry.at_s - engine.state().started_s;
                    let _ = tell.send(Say::Line(format!("{at_s:7.1} s  {line}")));
                }
            }
            if is_terminal && last.is_none_or(|last| last.elapsed() >= FRAME) {
                last = Some(Instant::now());
                let _ = tell.send(Say::Scene(scene(engine, &objectives, &best)));
            }
        }
    }

    pub(super) fn end(mut self) {
        let _ = self.speaker.0.send(Say::End);
        if let Some(thread) = self.thread.take() {
            // It has nothing left to say if it died.
            let _ = thread.join();
        }
    }
}

/// The best result so far.
#[derive(Default)]
struct Best(Option<(f64, String)>);

impl Best {
    fn see(&mut self, objectives: &[(String, Direction)], engine: &Engine, entries: &[Entry]) {
        let [(metric, direction)] = objectives else { return };
        // A study that goes on has results from before.
        let before = engine.state().ended.iter().filter(|_| self.0.is_none());
        let before = before.filter_map(|(trial, ended)| match &ended.end {
            End::Done(values) => Some((*trial, values.first().copied()?)),
            _ => None,
        });
        let new = entries.iter().filter_map(|entry| match &entry.fact {
            Fact::TrialDone { trial, values } => Some((*trial, values.first().copied()?)),
            _ => None,
        });
        for (trial, value) in before.chain(new).collect::<Vec<_>>() {
            let is_better = |old: f64| match direction {
                Direction::Minimize => value < old,
                Direction::Maximize => value > old,
            };
            if self.0.as_ref().is_none_or(|(old, _)| is_better(*old)) {
                let text = format!("best {metric} {} (trial {trial})", Value::from(value).short());
                self.0 = Some((value, text));
            }
        }
    }
}

/// A line for the user, if a fact is worth one. Moving lines show the rest.
fn line(entry: &Entry, engine: &Engine, is_terminal: bool) -> Option<String> {
    let metrics = |metrics: &crate::trials::engine::Metrics| {
        let each =
            metrics.iter().map(|(name, value)| format!("{name} {}", Value::from(value.value()).short()));
        each.collect::<Vec<_>>().join(", ")
    };
    Some(match &entry.fact {
        Fact::SlotLost { slot, reason } => format!("slot {slot} has lost its worker: {reason}"),
        Fact::SlotJoined { slot } => format!("slot {slot} has a worker again"),
        Fact::SuggestionsEnded { reason, .. } => format!("no more trials: {reason}"),
        Fact::TrialDone { trial, values } => {
            let goals = engine.study().objectives.iter().zip(values);
            let shown = goals.map(|(goal, value)| format!("{} {}", goal.metric, Value::from(*value).short()));
            format!("trial {trial} is done: {}", shown.collect::<Vec<_>>().join(", "))
        }
        Fact::TrialStopped { trial, .. }
        | Fact::TrialFailed { trial, .. }
        | Fact::TrialCancelled { trial, .. }
        | Fact::TrialInterrupted { trial, .. } => format!("trial {trial} {}", event(entry, *trial)?),
        _ if is_terminal => return None,
        Fact::NodeJoined { node, gpu_type, slots, .. } => {
            format!("node {node} has joined with {slots} slots ({gpu_type})")
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

fn scene(engine: &Engine, objectives: &[(String, Direction)], best: &Best) -> Scene {
    let state = engine.state();
    let busy = state.active.values().map(|active| active.slots.len()).sum::<usize>();
    let mut summary = format!("{busy} of {} slots in use", state.slot_count());
    if let Some((_, text)) = &best.0 {
        summary = format!("{text}, {summary}");
    }
    let running = state.active.iter().map(|(trial, active)| {
        let epochs = format!("epoch {:.1} of {}", active.epochs, engine.study().trial.epochs);
        let metric = objectives.iter().find_map(|(name, _)| {
            let value = active.metrics.get(name)?.value();
            Some(format!("{name} {}", Value::from(value).short()))
        });
        let parts = [Some(epochs), metric, Some(place(active)), batch(active)];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        format!("trial {trial:<4} {:PARAMS$}  {}", short(&active.params), parts.join(", "))
    });
    Scene {
        ended: state.ended.len() as u64,
        wanted: u64::from(engine.study().search.trials),
        summary,
        running: running.collect(),
    }
}

fn place(active: &Active) -> String {
    let slots = active.slots.iter().map(SlotId::to_string).collect::<Vec<_>>().join(" ");
    match active.phase {
        Phase::Waiting => "waits".to_owned(),
        Phase::Forming | Phase::Broken => format!("forms on {slots}"),
        Phase::Pausing => format!("leaves {slots}"),
        Phase::Running if active.slots.len() > 8 => format!("{} slots", active.slots.len()),
        Phase::Running => format!("on {slots}"),
    }
}

fn batch(active: &Active) -> Option<String> {
    let total = active.batch?.total(active.slots.len() as u32);
    Some(format!("batch {total}"))
}

/// Parameters in as many characters as there are.
fn short(params: &Assignment) -> String {
    let text = params.to_string();
    if text.chars().count() <= PARAMS {
        return text;
    }
    text.chars().take(PARAMS - 1).chain(['…']).collect()
}

fn print_lines(told: &Receiver<Say>, quiet: bool) {
    let mut out = io::stderr();
    while let Ok(say) = told.recv() {
        match say {
            // Nobody is left to hear that stderr is gone.
            Say::Line(line) if !quiet => drop(writeln!(out, "{line}")),
            Say::Line(_) | Say::Scene(_) => {}
            Say::Flush(done) => drop(done.send(())),
            Say::End => return,
        }
    }
}

fn move_lines(told: &Receiver<Say>, title: &str) {
    let all = MultiProgress::new();
    let bar = all.add(ProgressBar::new(0));
    let form = format!("{title}{{pos}} of {{len}} trials {{bar:30}} {{elapsed}}  {{msg}}");
    bar.set_style(ProgressStyle::with_template(&form).unwrap_or_else(|_| ProgressStyle::default_bar()));
    let plain = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
    let mut lines: Vec<ProgressBar> = Vec::new();
    while let Ok(say) = told.recv() {
        match say {
            Say::Line(line) => drop(all.println(line)),
            Say::Scene(Scene { ended, wanted, summary, running }) => {
                bar.set_length(wanted);
                bar.set_position(ended);
                bar.set_message(summary);
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
            Say::Flush(done) => drop(done.send(())),
            Say::End => break,
        }
    }
    for line in lines.iter().chain([&bar]) {
        line.finish_and_clear();
    }
}
