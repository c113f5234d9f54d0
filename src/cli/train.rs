//! `train`: one trainable with given hyper-parameters, on slots that may change while it trains.

use std::{
    collections::{BTreeMap, VecDeque},
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process, thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use serde_json::json;

use super::output_error;
use crate::{
    goodput::{GradientStats, LrRule},
    space,
    wire::{Report, Task},
    worker::{Batching, Happening, Pool, Registry, Slot, Training},
};

/// What the user can put right.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("there is no trainable `{name}` in this program; it knows {known}")]
    UnknownTrainable { name: String, known: String },
    #[error("--rescale: there is no slot {slot} at `{entry}`; with --slots {slots} they go from 0 to {last}")]
    NoSuchSlot { slot: u32, entry: String, slots: u32, last: u32 },
    #[error("--max-batch is {max}, less than the --batch of {batch}")]
    MaxBatch { max: u32, batch: u32 },
    #[error("{0}")]
    Failed(String),
}

const EXAMPLES: &str = "\
Examples:
  Three epochs on two workers:
    pollux-tune train cifar10 -p width=8 -p lr=0.05 --epochs 3
  Start on one worker, grow to two after 30 seconds, move to slot 1 after 60:
    pollux-tune train cifar10 -p width=8 --slots 2 --start 1 --rescale \"30s:2,60s:[1]\"
  Grow after 200 optimizer steps, and let the batch adapt up to 1024:
    pollux-tune train cifar10 -p width=8 --rescale \"200 steps:2\" --max-batch 1024";

/// Train one trainable, elastically
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, arg_required_else_help = true)]
pub(super) struct TrainArgs {
    /// What to train, by the name it is registered with
    #[arg(value_name = "TRAINABLE")]
    name: String,
    /// A hyper-parameter; may be given several times
    #[arg(short, long = "param", value_name = "NAME=VALUE", value_parser = parameter)]
    params: Vec<(String, serde_json::Value)>,
    /// Statistical epochs
    #[arg(long, value_name = "EPOCHS", default_value_t = 3.0, value_parser = positive, help_heading = "Training")]
    epochs: f64,
    /// The batch that the learning rate is meant for, over all workers
    #[arg(long, value_name = "EXAMPLES", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Training")]
    batch: u32,
    /// Let the batch grow up to this [default: always --batch]
    #[arg(long, value_name = "EXAMPLES", help_heading = "Training")]
    max_batch: Option<u32>,
    /// The most examples that a worker takes at once
    #[arg(long, value_name = "EXAMPLES", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Training")]
    max_batch_per_worker: u32,
    /// How the learning rate follows the batch: adascale, linear, sqrt, legw or none
    #[arg(long, value_name = "RULE", default_value = "adascale", value_parser = lr_rule, help_heading = "Training")]
    lr_rule: LrRule,
    /// Decides initial weights, the order of the examples and their augmentation
    #[arg(long, value_name = "NUMBER", default_value_t = 0, help_heading = "Training")]
    seed: u64,
    /// Epochs from evaluation to evaluation
    #[arg(long, value_name = "EPOCHS", default_value_t = 1.0, value_parser = positive, help_heading = "Training")]
    evaluate_every: f64,
    /// Half precision where a GPU gains by it
    #[arg(long, help_heading = "Training")]
    mixed_precision: bool,
    /// Workers that there are [default: one for each GPU, else 2]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Workers")]
    slots: Option<u32>,
    /// Workers to start with [default: all]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Workers")]
    start: Option<u32>,
    /// When to go on with how many workers, or on which slots: `30s:2,60s:1`, `200 steps:[1]`
    #[arg(long, value_name = "TIME:SLOTS", value_delimiter = ',', value_parser = rescale, help_heading = "Workers")]
    rescale: Vec<Rescale>,
    /// Threads of each worker [default: cores divided by workers]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Workers")]
    threads: Option<u32>,
    /// Use CPU cores even if there are GPUs
    #[arg(long, help_heading = "Workers")]
    cpu: bool,
    /// Go on from this file if it exists, and save to it [default: a file that is removed at the end]
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    checkpoint: Option<PathBuf>,
    /// Time between checkpoints
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration, help_heading = "Output")]
    checkpoint_every: Duration,
    /// Time between reports
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration, help_heading = "Output")]
    report_every: Duration,
    /// Print everything that happens as lines of JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// A change of slots.
#[derive(Debug, Clone, PartialEq)]
struct Rescale {
    when: When,
    on: Slots,
    entry: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum When {
    After(Duration),
    Steps(u64),
}

#[derive(Debug, Clone, PartialEq)]
enum Slots {
    Count(u32),
    List(Vec<u32>),
}

impl Slots {
    fn list(&self) -> Vec<u32> {
        match self {
            Self::Count(count) => (0..*count).collect(),
            Self::List(slots) => slots.clone(),
        }
    }
}

fn rescale(text: &str) -> Result<Rescale, String> {
    const ALLOWED: &str =
        "write `30s:2` or `200 steps:[0 1]`: a time or a number of steps, and how many slots or which";
    let (when, on) = text.split_once(':').ok_or(ALLOWED)?;
    let when = match when.trim().strip_suffix("steps") {
        Some(steps) => When::Steps(steps.trim().parse().map_err(|_| ALLOWED)?),
        None => When::After(space::duration(when.trim()).ok_or(ALLOWED)?),
    };
    let on = on.trim();
    let on = match on.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(list) => {
            let slots: Result<Vec<u32>, _> = list.split_whitespace().map(str::parse).collect();
            Slots::List(slots.map_err(|_| ALLOWED)?)
        }
        None => Slots::Count(on.parse().map_err(|_| ALLOWED)?),
    };
    if on.list().is_empty() {
        return Err(format!("a training needs at least one slot; {ALLOWED}"));
    }
    Ok(Rescale { when, on, entry: text.trim().to_owned() })
}

fn duration(text: &str) -> Result<Duration, String> {
    let time = space::duration(text).ok_or("write a time with its unit, such as 30s, 5m or 1h30m")?;
    if time.is_zero() { Err("a time of nothing is too short".to_owned()) } else { Ok(time) }
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && number.is_finite());
    number.ok_or_else(|| "allowed is a number above 0".to_owned())
}

fn lr_rule(text: &str) -> Result<LrRule, String> {
    text.parse().map_err(|error: crate::goodput::Error| error.to_string())
}

/// As in a study file: what looks like a number is one.
fn parameter(text: &str) -> Result<(String, serde_json::Value), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE, such as lr=0.1")?;
    let value = match value {
        "true" => json!(true),
        "false" => json!(false),
        _ => match (value.parse::<i64>(), value.parse::<f64>()) {
            (Ok(whole), _) => json!(whole),
            (_, Ok(number)) if number.is_finite() => json!(number),
            _ => json!(value),
        },
    };
    Ok((name.trim().to_owned(), value))
}

/// Trains, and says how it goes.
pub(super) fn run(
    arguments: &TrainArgs,
    trainables: &Registry,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> anyhow::Result<()> {
    let slots = slots(arguments);
    check(arguments, trainables, slots.len() as u32)?;
    let folder = Scratch::new()?;
    let task = task(arguments, folder.path());
    let per_worker = arguments.max_batch_per_worker;
    let batching = match arguments.max_batch {
        Some(max) => Batching::adaptive(arguments.batch, max, per_worker.min(max)),
        None => Batching::fixed(arguments.batch, per_worker),
    }?;
    let first: Vec<u32> = (0..arguments.start.unwrap_or(slots.len() as u32)).collect();
    let kind = if slots[0].cuda.is_some() { "GPU" } else { "CPU" };
    writeln!(
        notes,
        "training {} on {} of {} {kind} slots, {} threads each",
        arguments.name,
        first.len(),
        slots.len(),
        slots[0].threads
    )?;
    let pool = Pool::new(slots, folder.path(), &[]).context("cannot start the workers")?;
    let began = Instant::now();
    let mut training = Training::start(pool, task, batching, &first)?;
    let mut plan: VecDeque<Rescale> = arguments.rescale.clone().into();
    let mut shown = Shown { began, json: arguments.json, epochs: arguments.epochs };
    let mut steps = 0;
    loop {
        let patience = match plan.front().map(|next| next.when) {
            Some(When::After(time)) => time.saturating_sub(began.elapsed()),
            Some(When::Steps(_)) | None => Duration::from_secs(3600),
        };
        if let Some(happening) = training.next(patience)? {
            if let Happening::Reported(report) = &happening {
                steps = report.steps;
            }
            shown.show(&happening, out)?;
            match happening {
                Happening::Finished { .. } => {
                    for missed in plan {
                        writeln!(notes, "the training had ended before {}", missed.entry)?;
                    }
                    return Ok(());
                }
                Happening::Failed { reason } => return Err(Error::Failed(reason).into()),
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
            shown.say(&format!("going on with {}", next.entry), &json!({"rescale": next.on.list()}), out)?;
            training.reshape(&next.on.list())?;
        }
    }
}

fn slots(arguments: &TrainArgs) -> Vec<Slot> {
    let gpus = if arguments.cpu { 0 } else { Pool::gpus() };
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let count = arguments.slots.unwrap_or(if gpus > 0 { gpus } else { 2 });
    let threads = arguments.threads.unwrap_or_else(|| (cores / count).max(1));
    let slot = |number| Slot { threads, cuda: (number < gpus).then_some(number) };
    (0..count).map(slot).collect()
}

fn check(arguments: &TrainArgs, trainables: &Registry, slots: u32) -> Result<(), Error> {
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

fn task(arguments: &TrainArgs, scratch: &Path) -> Task {
    Task {
        trial: 0,
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
    fn new() -> anyhow::Result<Self> {
        let path = env::temp_dir().join(format!("pollux-tune-{}", process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot make the folder {}", path.display()))?;
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

/// How things are shown.
struct Shown {
    began: Instant,
    json: bool,
    epochs: f64,
}

impl Shown {
    fn say(&self, text: &str, object: &serde_json::Value, out: &mut impl Write) -> anyhow::Result<()> {
        let seconds = self.began.elapsed().as_secs_f64();
        let written = if self.json {
            let mut object = object.clone();
            object["seconds"] = json!(seconds);
            writeln!(out, "{object}")
        } else {
            writeln!(out, "{seconds:7.1} s  {text}")
        };
        // Others may be waiting for the line.
        written.and_then(|()| out.flush()).map_err(output_error)
    }

    fn show(&mut self, happening: &Happening, out: &mut impl Write) -> anyhow::Result<()> {
        let (text, object) = match happening {
            Happening::Formed { generation, slots, steps, pause } => {
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
            Happening::Reported(report) => (self.report(report), json!({"reported": report})),
            Happening::Retuned(batch) => (
                format!("batch {} from now on, in {} passes", batch.total, batch.accumulation + 1),
                json!({"retuned": batch}),
            ),
            Happening::Checkpointed { steps } => {
                (format!("checkpoint of step {steps}"), json!({"checkpointed": {"steps": steps}}))
            }
            Happening::Broken { slot, generation, steps, reason } => (
                format!("slot {slot} has lost group {generation}: {}", first_line(reason)),
                json!({"broken": {"slot": slot, "generation": generation, "steps": steps, "reason": reason}}),
            ),
            Happening::Gone { slot } => (
                format!("the worker on slot {slot} has died; another one takes its place"),
                json!({"gone": {"slot": slot}}),
            ),
            Happening::Finished { metrics } => {
                (format!("finished: {}", shown(metrics)), json!({"finished": {"metrics": metrics}}))
            }
            Happening::Failed { reason } => ("failed".to_owned(), json!({"failed": {"reason": reason}})),
        };
        self.say(&text, &object, out)
    }

    fn report(&self, report: &Report) -> String {
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
            let phi = GradientStats { sqr: noise.sqr, var: noise.var }.noise_scale();
            parts.push(format!("noise scale {:.0}", phi.value()));
        }
        if let Some(times) = report.step_times.first() {
            let batch = times.per_gpu * f64::from(times.replicas * (times.accumulation + 1));
            parts.push(format!("{:.0} examples/s", batch / times.seconds));
        }
        for metric in &report.metrics {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rescales_are_times_or_steps_and_counts_or_lists() {
        let parsed = |text| rescale(text).map(|rescale| (rescale.when, rescale.on));
        let after = |seconds| When::After(Duration::from_secs(seconds));
        assert_eq!(parsed("30s:2"), Ok((after(30), Slots::Count(2))));
        assert_eq!(parsed("1m30s:1"), Ok((after(90), Slots::Count(1))));
        assert_eq!(parsed("200 steps:[1 0]"), Ok((When::Steps(200), Slots::List(vec![1, 0]))));
        for wrong in ["30:2", "30s", "30s:", "30s:-1", "30s:0", "30s:[]", "steps:1", "30s:[a]"] {
            assert!(rescale(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn parameters_are_typed_as_they_look() {
        let values = ["a=1", "b=0.5", "c=1e-4", "d=true", "e=relu", "f="]
            .map(|text| parameter(text).map(|(_, value)| value));
        let expected = [json!(1), json!(0.5), json!(1e-4), json!(true), json!("relu"), json!("")];
        assert_eq!(values, expected.map(Ok));
        assert!(parameter("lr").is_err());
    }
}
