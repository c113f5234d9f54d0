//! `train`.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use serde_json::json;

use crate::{
    cli::train::{Rescale, Slots, When},
    goodput::LrRule,
    space,
};

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
pub(crate) struct TrainArgs {
    /// What to train, by the name it is registered with
    #[arg(value_name = "TRAINABLE")]
    pub(crate) name: String,
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
    /// Seed of the initial weights, the order of the examples and their augmentation
    #[arg(long, value_name = "NUMBER", default_value_t = 0, help_heading = "Training")]
    seed: u64,
    /// Epochs between evaluations
    #[arg(long, value_name = "EPOCHS", default_value_t = 1.0, value_parser = positive, help_heading = "Training")]
    evaluate_every: f64,
    /// Use mixed precision on GPUs
    #[arg(long, help_heading = "Training")]
    mixed_precision: bool,
    /// The number of slots, each with a worker [default: one for each GPU, else 2]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Workers")]
    slots: Option<u32>,
    /// The number of workers to start with [default: all]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Workers")]
    start: Option<u32>,
    /// Changes of the number of workers, or of their slots: `30s:2,60s:1`, `200 steps:[1]`
    #[arg(long, value_name = "TIME:SLOTS", value_delimiter = ',', value_parser = rescale, help_heading = "Workers")]
    rescale: Vec<Rescale>,
    /// Threads of each worker [default: cores divided by workers]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Workers")]
    threads: Option<u32>,
    /// Use CPU cores even if there are GPUs
    #[arg(long, help_heading = "Workers")]
    cpu: bool,
    /// Resume from the last checkpoint in this folder, if it has one, and save to it [default: one that is removed at the end]
    #[arg(long, value_name = "FOLDER", help_heading = "Output")]
    checkpoint: Option<PathBuf>,
    /// Time between checkpoints
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration, help_heading = "Output")]
    checkpoint_every: Duration,
    /// Time between reports
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration, help_heading = "Output")]
    report_every: Duration,
    /// Print all events as lines of JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

#[cfg(feature = "torch")]
impl From<TrainArgs> for crate::cli::train::Settings {
    fn from(args: TrainArgs) -> Self {
        Self {
            name: args.name,
            params: args.params,
            epochs: args.epochs,
            batch: args.batch,
            max_batch: args.max_batch,
            max_batch_per_worker: args.max_batch_per_worker,
            lr_rule: args.lr_rule,
            seed: args.seed,
            evaluate_every: args.evaluate_every,
            mixed_precision: args.mixed_precision,
            slots: args.slots,
            start: args.start,
            rescale: args.rescale,
            threads: args.threads,
            cpu: args.cpu,
            checkpoint: args.checkpoint,
            checkpoint_every: args.checkpoint_every,
            report_every: args.report_every,
            json: args.json,
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
    if time.is_zero() { Err("expected a time above 0".to_owned()) } else { Ok(time) }
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && number.is_finite());
    number.ok_or_else(|| "expected a number above 0".to_owned())
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
