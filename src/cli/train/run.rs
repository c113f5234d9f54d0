//! The head of one training, as the user sees it.

use std::{
    collections::{BTreeMap, VecDeque},
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process, thread,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{Rescale, Settings, When};
use crate::{
    actors::{self, Training, TrainingEvent, TrainingSettings},
    cli,
    ids::{StudyId, TrialId},
    trials::group::{Task, WorkerReport},
    worker::{self, Registry, Slot},
};

/// Why a training cannot start, or has failed.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum Error {
    #[error("there is no trainable `{name}` in this program; it knows {known}")]
    UnknownTrainable { name: String, known: String },
    #[error("--rescale: there is no slot {slot} at `{entry}`; with --slots {slots} they go from 0 to {last}")]
    NoSuchSlot { slot: u32, entry: String, slots: u32, last: u32 },
    #[error("--max-batch is {max}, less than the --batch of {batch}")]
    MaxBatch { max: u32, batch: u32 },
    #[error("cannot start the workers")]
    Start(#[source] actors::Error),
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// Whether the user can correct it.
    pub(in crate::cli) const fn is_of_input(&self) -> bool {
        !matches!(self, Self::Start(_) | Self::Failed(_))
    }
}

/// Trains, and prints what happens.
pub(in crate::cli) fn run(
    arguments: &Settings,
    trainables: &Registry,
    out: &mut impl Write,
    stderr: &mut impl Write,
) -> Result<(), cli::Error> {
    let slots = slots(arguments);
    check(arguments, trainables, slots.len() as u32)?;
    let folder = Scratch::new()?;
    let task = task(arguments, folder.path());
    let first: Vec<u32> = (0..arguments.start.unwrap_or(slots.len() as u32)).collect();
    let kind = if slots[0].cuda.is_some() { "GPU" } else { "CPU" };
    // The training does not need anybody to read this.
    let _ = writeln!(
        stderr,
        "training {} on {} of {} {kind} slots, {} threads each",
        arguments.name,
        first.len(),
        slots.len(),
        slots[0].threads
    );
    let settings = TrainingSettings {
        slots,
        start: first,
        max_batch: arguments.max_batch,
        max_batch_per_worker: arguments.max_batch_per_worker,
        worker_arguments: Vec::new(),
        python: None,
        silence: None,
    };
    let mut training = Training::start(vec![task], &settings).map_err(Error::Start)?;
    let began = Instant::now();
    let mut plan: VecDeque<Rescale> = arguments.rescale.clone().into();
    let mut printer = Printer { began, json: arguments.json, epochs: arguments.epochs };
    let mut steps = 0;
    loop {
        let patience = match plan.front().map(|next| next.when) {
            Some(When::After(time)) => time.saturating_sub(began.elapsed()),
            Some(When::Steps(_)) | None => Duration::from_secs(3600),
        };
        if let Some(event) = training.next(patience)? {
            if let TrainingEvent::Reported(report) = &event {
                steps = report.steps;
            }
            printer.show(&event, out)?;
            match event {
                TrainingEvent::Finished { .. } => {
                    for missed in plan {
                        let _ = writeln!(stderr, "the training had ended before {}", missed.entry);
                    }
                    return Ok(());
                }
                TrainingEvent::Failed { reason } => return Err(Error::Failed(reason).into()),
                _ => {}
            }
        }
        let is_due = |next: &Rescale| match next.when {
            When::After(time) => began.elapsed() >= time,
            When::Steps(at) => steps >= at,
        };
        if plan.front().is_some_and(is_due)
            && let Some(next) = plan.pop_front()
        {
            printer.print(
                &format!("continuing with {}", next.entry),
                &json!({"rescale": next.on.list()}),
                out,
            )?;
            training.rescale(&next.on.list())?;
        }
    }
}

fn slots(arguments: &Settings) -> Vec<Slot> {
    let gpus = if arguments.cpu { 0 } else { worker::gpus() };
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let count = arguments.slots.unwrap_or(if gpus > 0 { gpus } else { 2 });
    let threads = arguments.threads.unwrap_or_else(|| (cores / count).max(1));
    let slot = |number| Slot { threads, cuda: (number < gpus).then(|| worker::gpu_id(number)) };
    (0..count).map(slot).collect()
}

fn check(arguments: &Settings, trainables: &Registry, slots: u32) -> Result<(), Error> {
    if !trainables.contains(&arguments.name) {
        let known: Vec<&str> = trainables.names().collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(Error::UnknownTrainable { name: arguments.name.clone(), known });
    }
    if let Some(max) = arguments.max_batch.filter(|max| *max < arguments.batch) {
        return Err(Error::MaxBatch { max, batch: arguments.batch });
    }
    let last = slots - 1;
    if let Some(start) = arguments.start.filter(|start| *start > slots) {
        return Err(Error::NoSuchSlot { slot: start - 1, entry: format!("--start {start}"), slots, last });
    }
    for Rescale { on, entry, .. } in &arguments.rescale {
        if let Some(slot) = on.list().into_iter().find(|slot| *slot >= slots) {
            return Err(Error::NoSuchSlot { slot, entry: entry.clone(), slots, last });
        }
    }
    Ok(())
}

fn task(arguments: &Settings, scratch: &Path) -> Task {
    Task {
        study: StudyId::default(),
        trial: TrialId(0),
        trainable: arguments.name.clone(),
        params: arguments.params.iter().cloned().collect(),
        seed: arguments.seed,
        epochs: arguments.epochs,
        initial_batch: arguments.batch,
        lr_rule: arguments.lr_rule.name().to_owned(),
        checkpoint: arguments.checkpoint.clone().unwrap_or_else(|| scratch.join("checkpoint")),
        checkpoint_every_s: arguments.checkpoint_every.as_secs_f64(),
        report_every_s: arguments.report_every.as_secs_f64(),
        evaluate_every: arguments.evaluate_every,
        measure_noise: true,
        mixed_precision: arguments.mixed_precision,
    }
}

/// A folder for the sockets of this training, gone at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, cli::Error> {
        let path = env::temp_dir().join(format!("pollux-tune-{}", process::id()));
        let made = fs::create_dir_all(&path);
        made.map_err(cli::Error::system(format!("make the folder {}", path.display())))?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Prints what happens, as text or as JSON.
struct Printer {
    began: Instant,
    json: bool,
    epochs: f64,
}

impl Printer {
    fn print(&self, text: &str, object: &serde_json::Value, out: &mut impl Write) -> Result<(), cli::Error> {
        let seconds = self.began.elapsed().as_secs_f64();
        let written = if self.json {
            let mut object = object.clone();
            object["seconds"] = json!(seconds);
            writeln!(out, "{object}")
        } else {
            writeln!(out, "{seconds:7.1} s  {text}")
        };
        // Others may be waiting for the line.
        written.and_then(|()| out.flush()).map_err(cli::Error::Stdout)
    }

    fn show(&mut self, event: &TrainingEvent, out: &mut impl Write) -> Result<(), cli::Error> {
        let (text, object) = match event {
            // It is over in a moment, and then told with its pause.
            TrainingEvent::Forming { .. } => return Ok(()),
            TrainingEvent::Formed { group: generation, slots, steps, pause } => {
                let ms = |seconds: f64| format!("{:.0} ms", seconds * 1000.0);
                let still = match generation {
                    1 => String::new(),
                    _ => format!(
                        ", after a pause of {} (forming {}, hand-over {})",
                        ms(pause.total_s),
                        ms(pause.form_s),
                        ms(pause.hand_over_s)
                    ),
                };
                let text =
                    format!("group {generation} trains on slots {slots:?} from step {steps} on{still}");
                (
                    text,
                    json!({"formed": {"generation": generation, "slots": slots, "steps": steps, "pause": pause}}),
                )
            }
            TrainingEvent::Reported(report) => (self.report(report), json!({"reported": report})),
            TrainingEvent::Retuned(batch) => (
                format!("batch {} from now on, in {} passes", batch.total, batch.accumulation + 1),
                json!({"retuned": batch}),
            ),
            TrainingEvent::CheckpointFailed { reason } => {
                (format!("warning: {reason}"), json!({"checkpoint_failed": {"reason": reason}}))
            }
            TrainingEvent::OutOfMemory { slot, memory } => (
                format!(
                    "passes of {} examples do not fit into the memory of slot {slot}: at most {} from now on",
                    memory.failed, memory.limit
                ),
                json!({"out_of_memory": {"slot": slot, "failed": memory.failed, "limit": memory.limit}}),
            ),
            TrainingEvent::Checkpointed { steps } => {
                (format!("checkpoint of step {steps}"), json!({"checkpointed": {"steps": steps}}))
            }
            TrainingEvent::Broken { slot, group: generation, steps, reason } => (
                format!("slot {slot} has lost group {generation}: {}", first_line(reason)),
                json!({"broken": {"slot": slot, "generation": generation, "steps": steps, "reason": reason}}),
            ),
            TrainingEvent::Lost { slot } => (
                format!("the worker on slot {slot} has died; another one takes its place"),
                json!({"gone": {"slot": slot}}),
            ),
            TrainingEvent::Finished { metrics } => {
                (format!("finished: {}", shown(metrics)), json!({"finished": {"metrics": metrics}}))
            }
            TrainingEvent::Failed { reason } => ("failed".to_owned(), json!({"failed": {"reason": reason}})),
        };
        self.print(&text, &object, out)
    }

    fn report(&self, report: &WorkerReport) -> String {
        let mut parts =
            vec![format!("epoch {:.2} of {}", report.epochs, self.epochs), format!("step {}", report.steps)];
        if let Some(loss) = report.loss {
            parts.push(format!("loss {loss:.4}"));
        }
        if let Some(batch) = report.batch {
            parts.push(format!("batch {}", batch.total));
        }
        parts.push(format!("lr {:.4}", report.learning_rate));
        if let Some(noise) = report.noise {
            let phi = noise.noise_scale();
            parts.push(format!("noise scale {:.0}", phi.value()));
        }
        if let Some(times) = report.step_times.first() {
            let batch = times.per_gpu * f64::from(times.shape.gpus() * (times.accumulation + 1));
            parts.push(format!("{:.0} examples/s", batch / times.iter_time_s));
        }
        for metric in &report.evaluations {
            parts.push(shown(&metric.values));
        }
        parts.join(", ")
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn shown(metrics: &BTreeMap<String, f64>) -> String {
    let each = metrics.iter().map(|(name, value)| format!("{name} {value:.4}"));
    each.collect::<Vec<_>>().join(", ")
}
