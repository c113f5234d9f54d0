//! Words of other tools, and what study files have in their place: for hints only.

use std::path::Path;

use super::{
    node::{Content, Key, Node, Scalar},
    settings::{Algorithm, StoppingRule},
    table::{DOMAIN, Field, Kind, STUDY},
};

/// How the values of a parameter are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Float,
    Log,
    Int,
    LogInt,
    Choice,
    Fixed,
    /// The bounds say which numbers.
    Numbers,
}

/// Distributions of Ray Tune, Optuna, Hyperopt, W&B, NNI, Ax and Hydra, without prefixes such as `tune.` and `suggest_`.
const DISTRIBUTIONS: [(Shape, &[&str]); 7] = [
    (Shape::Float, &["uniform", "quniform", "q_uniform", "discrete_uniform", "double", "real", "interval"]),
    (
        Shape::Log,
        &["loguniform", "log_uniform", "log_uniform_values", "qloguniform", "q_log_uniform", "reciprocal"],
    ),
    (Shape::Int, &["randint", "qrandint", "int_uniform", "integer", "uniformint", "quniformint"]),
    (Shape::LogInt, &["lograndint", "qlograndint", "log_int", "int_log_uniform"]),
    (
        Shape::Choice,
        &["categorical", "choices", "options", "values", "grid_search", "oneof", "one_of", "categories"],
    ),
    (Shape::Fixed, &["value", "constant", "const"]),
    (Shape::Numbers, &["range", "bounds"]),
];
/// Keys that come with such a distribution.
const NAME: [&str; 6] = ["type", "_type", "distribution", "dist", "suggest", "kind"];
const LOW: [&str; 5] = ["low", "min", "lower", "start", "lower_bound"];
const HIGH: [&str; 7] = ["high", "max", "upper", "stop", "end", "upper_bound", "high_bound"];
const LIST: [&str; 8] = ["_value", "range", "bounds", "values", "choices", "options", "categories", "args"];
const STEP: [&str; 3] = ["q", "step", "step_size"];
const LOG: [&str; 5] = ["log", "log_scale", "logscale", "is_log", "scale"];

/// Keys that stand for one of ours: its path, what it could hold, and the words.
const KEYS: [(&str, &str, &[&str]); 13] = [
    (
        "search.trials",
        "100",
        &[
            "num_samples",
            "n_trials",
            "max_trials",
            "num_trials",
            "max_evals",
            "run_cap",
            "n_iter",
            "num_runs",
        ],
    ),
    (
        "search.parallel",
        "4",
        &["n_jobs", "max_concurrent_trials", "max_concurrent", "concurrency", "trial_concurrency"],
    ),
    (
        "search.algorithm",
        "tpe",
        &["sampler", "search_alg", "searcher", "tuner", "search_algorithm", "algo", "method"],
    ),
    (
        "search.early_stopping.rule",
        "asha",
        &["pruner", "early_terminate", "early_stop", "assessor", "stopper", "pruning"],
    ),
    ("search.early_stopping.grace", "1", &["grace_period", "min_resource", "min_iter", "n_warmup_steps"]),
    ("search.early_stopping.reduction", "3", &["reduction_factor", "eta"]),
    ("search.timeout", "1h", &["time_budget_s", "time_budget", "time_limit", "walltime", "max_time"]),
    ("search.seed", "0", &["random_state", "random_seed", "rng"]),
    (
        "trial.epochs",
        "10",
        &["max_t", "max_epochs", "num_epochs", "n_epochs", "max_iter", "training_iteration", "max_resource"],
    ),
    ("trial.initial_batch", "128", &["batch_size", "batch"]),
    ("trial.command", "[python, train.py]", &["program", "script", "entrypoint", "cmd", "run"]),
    ("trial.gpus", "1", &["resources", "resources_per_trial", "gpus_per_trial", "num_gpus", "n_gpus", "gpu"]),
    ("trial.checkpoint_interval", "5m", &["checkpoint_freq", "checkpoint_frequency", "save_every"]),
];
const SPACE: [&str; 9] = [
    "parameters",
    "params",
    "config",
    "param_space",
    "search_space",
    "searchspace",
    "hyperparameters",
    "hparams",
    "parameter_space",
];
const METRIC: [&str; 3] = ["metric", "metrics", "objective_metric"];
const MODE: [&str; 5] = ["mode", "goal", "direction", "directions", "optimize"];
const FOLDER: [&str; 6] = ["study_name", "experiment_name", "storage", "storage_path", "name", "project"];

/// Values that stand for one of ours.
const VALUES: [(&str, &[&str]); 11] = [
    ("maximize", &["max", "maximise", "maximum", "higher", "up", "increase", "descending"]),
    ("minimize", &["min", "minimise", "minimum", "lower", "down", "decrease", "ascending"]),
    ("random", &["random_search", "randomsearch", "randomsampler"]),
    ("grid", &["grid_search", "gridsearch", "gridsampler", "bruteforce", "brute_force"]),
    (
        "gp",
        &["bayes", "bayesian", "bayesopt", "bo", "gpsampler", "skopt", "ax", "botorch", "gaussian_process"],
    ),
    ("tpe", &["optuna", "hyperopt", "tpesampler", "optunasearch", "hyperoptsearch"]),
    ("halton", &["sobol", "qmc", "qmcsampler", "quasi_random"]),
    (
        "asha",
        &[
            "ashascheduler",
            "sha",
            "successive_halving",
            "successivehalving",
            "successivehalvingpruner",
            "async_hyperband",
            "asynchyperband",
        ],
    ),
    ("hyperband", &["hyperbandscheduler", "hyperbandpruner"]),
    (
        "median",
        &["median_stopping_rule", "medianstopping", "medianstoppingrule", "medianpruner", "medianstop"],
    ),
    ("none", &["never", "false", "nop", "noppruner", "fifo"]),
];

/// No parameter is described by a longer text.
const LONGEST: usize = 300;

fn simple(word: &str) -> String {
    word.trim().to_lowercase().replace(['-', ' '], "_")
}

fn is_any(words: &[&str], word: &str) -> bool {
    words.contains(&simple(word).as_str())
}

fn shape(word: &str) -> Option<Shape> {
    let word = simple(word);
    let word = word.rsplit('.').next().unwrap_or_default();
    let word = word.strip_prefix("suggest_").unwrap_or(word);
    match word {
        "float" => Some(Shape::Float),
        "int" => Some(Shape::Int),
        "choice" | "ordinal" => Some(Shape::Choice),
        "fixed" => Some(Shape::Fixed),
        "log" => Some(Shape::Log),
        _ => DISTRIBUTIONS.iter().find(|(_, words)| words.contains(&word)).map(|(shape, _)| *shape),
    }
}

/// What is known of a parameter in the words of another tool.
#[derive(Debug, Default)]
struct Described {
    bounds: Vec<String>,
    step: Option<String>,
    is_log: bool,
    values: Option<String>,
}

impl Described {
    /// As study files have it.
    fn rewrite(&self, shape: Shape) -> Option<String> {
        let is_whole = |text: &String| text.parse::<i64>().is_ok();
        let shape = match shape {
            Shape::Numbers if self.bounds.iter().all(is_whole) => Shape::Int,
            Shape::Numbers => Shape::Float,
            shape => shape,
        };
        let shape = match (shape, self.is_log) {
            (Shape::Float, true) => Shape::Log,
            (Shape::Int, true) => Shape::LogInt,
            (shape, _) => shape,
        };
        if let Shape::Choice | Shape::Fixed = shape {
            let key = if shape == Shape::Choice { "choice" } else { "fixed" };
            return self.values.as_ref().map(|values| format!("{key}: {values}"));
        }
        let [low, high, rest @ ..] = self.bounds.as_slice() else { return None };
        let step = self.step.as_ref().or_else(|| rest.first());
        let step = step.map_or_else(String::new, |step| format!(", step: {step}"));
        Some(match shape {
            Shape::Log => format!("log: [{low}, {high}]"),
            Shape::Int => format!("int: [{low}, {high}]{step}"),
            Shape::LogInt => format!("int: [{low}, {high}], log: true"),
            _ => format!("float: [{low}, {high}]{step}"),
        })
    }
}

fn is_number(text: &str) -> bool {
    text.parse::<f64>().is_ok_and(f64::is_finite)
}

/// A value as it would be written in one line.
fn written(node: &Node) -> Option<String> {
    let scalar = |scalar: &Scalar| {
        if scalar.plain { scalar.text.clone() } else { format!("{:?}", scalar.text) }
    };
    match &node.content {
        Content::Scalar(_) if node.is_null() => None,
        Content::Scalar(value) => Some(scalar(value)),
        Content::List(nodes) => {
            let all: Option<Vec<String>> = nodes.iter().take(12).map(written).collect();
            let dots = if nodes.len() > 12 { ", ..." } else { "" };
            Some(format!("[{}{dots}]", all?.join(", ")))
        }
        Content::Map(_) => None,
    }
}

/// Numbers of a list.
fn numbers(node: &Node) -> Vec<String> {
    match &node.content {
        Content::List(nodes) => nodes.iter().filter_map(written).filter(|text| is_number(text)).collect(),
        Content::Scalar(_) | Content::Map(_) => Vec::new(),
    }
}

/// The key of a parameter that is another tool's, and the parameter as study files have it.
pub(super) fn parameter(entries: &[(Key, Node)]) -> Option<(&Key, String)> {
    let is_ours = |key: &Key| DOMAIN.iter().any(|field| field.key == key.scalar.text);
    let (first, _) = entries.iter().find(|(key, _)| !is_ours(key))?;
    let find = |words: &[&str]| {
        entries.iter().find(|(key, _)| is_any(words, &key.scalar.text)).map(|(_, node)| node)
    };
    let mut described = Described {
        bounds: [&LOW[..], &HIGH].into_iter().filter_map(|words| written(find(words)?)).collect(),
        step: find(&STEP).and_then(written),
        is_log: find(&LOG).and_then(written).is_some_and(|text| is_any(&["true", "log"], &text)),
        values: None,
    };
    if let Some(node) = find(&LIST) {
        described.values = written(node);
        if described.bounds.is_empty() {
            described.bounds = numbers(node);
        }
    }
    let named = find(&NAME).and_then(written).and_then(|word| shape(&word));
    if let Some(shape) = named {
        return Some((first, described.rewrite(shape)?));
    }
    if described.bounds.len() == 2 && described.values.is_none() {
        return Some((first, described.rewrite(Shape::Numbers)?));
    }
    // The key itself is the distribution.
    let (key, node) = entries.iter().find(|(key, _)| !is_ours(key) && shape(&key.scalar.text).is_some())?;
    let shape = shape(&key.scalar.text)?;
    if let Content::Map(inner) = &node.content {
        let word = |words: &[&str]| inner.iter().find(|(key, _)| is_any(words, &key.scalar.text));
        let text = |words: &[&str]| written(&word(words)?.1);
        described.bounds = [&LOW[..], &HIGH].into_iter().filter_map(text).collect();
        described.step = text(&STEP);
        described.is_log = text(&LOG).is_some_and(|text| is_any(&["true", "log"], &text));
    } else {
        described.values = written(node);
        described.bounds = numbers(node);
    }
    Some((key, described.rewrite(shape)?))
}

/// What a text such as `tune.loguniform(1e-5, 1)`, `suggest_int("layers", 1, 8)` or `0.1..0.5` is in study files.
pub(super) fn text(text: &str) -> Option<String> {
    if text.len() > LONGEST {
        return None;
    }
    if let Some((low, high)) = text.split_once("..").filter(|(low, high)| is_number(low) && is_number(high)) {
        let bounds = vec![low.to_owned(), high.to_owned()];
        return Described { bounds, ..Described::default() }
            .rewrite(Shape::Numbers)
            .map(|domain| braces(&domain));
    }
    let (word, inside) = text.trim().strip_suffix(')')?.split_once('(')?;
    if simple(word) == "tag" {
        // Hydra: tag(log, interval(1e-5, 1)).
        let (tag, inner) = inside.split_once(',')?;
        let inner = self::text(inner)?;
        return Some(if tag.trim() == "log" { inner.replacen("float: ", "log: ", 1) } else { inner });
    }
    let shape = shape(word)?;
    let values = inside.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(values, _)| values);
    let mut described =
        Described { values: values.map(|values| format!("[{values}]")), ..Described::default() };
    for argument in inside.split(',').map(str::trim) {
        let (name, value) = argument.split_once('=').unwrap_or(("", argument));
        let (name, value) = (name.trim(), value.trim());
        if LOG.contains(&name) {
            described.is_log = value.eq_ignore_ascii_case("true");
        } else if STEP.contains(&name) {
            described.step = Some(value.to_owned());
        } else if is_number(value) {
            described.bounds.push(value.to_owned());
        }
    }
    if shape == Shape::Choice && described.values.is_none() {
        described.values = Some(format!("[{inside}]"));
    }
    described.rewrite(shape).map(|domain| braces(&domain))
}

fn braces(domain: &str) -> String {
    format!("{{{domain}}}")
}

/// What to write in the place of a key that `section` does not have, and what stands beside it.
pub(super) fn key(word: &str, node: &Node, section: &str, beside: &[(Key, Node)]) -> Option<String> {
    if section.starts_with("space") {
        return None;
    }
    let value = written(node).filter(|text| text.chars().count() <= 40);
    let shown = || value.clone().unwrap_or_else(|| "...".to_owned());
    if let Some((path, usual, _)) = KEYS.iter().find(|(.., words)| is_any(words, word)) {
        let fits = |value: &&str| is_number(value) == is_number(usual);
        let value = match *path {
            "search.algorithm" => value.as_deref().and_then(|text| meaning(text, Algorithm::NAMES)),
            "search.early_stopping.rule" => {
                value.as_deref().and_then(|text| meaning(text, StoppingRule::NAMES))
            }
            "trial.command" => None,
            _ => value.as_deref().filter(fits),
        };
        return Some(write(path, value.unwrap_or(usual), section));
    }
    let at_top = section.is_empty();
    if at_top && is_any(&SPACE, word) {
        return Some("write `space`".to_owned());
    }
    if at_top && is_any(&FOLDER, word) {
        return Some(
            "the folder of a study is an option: `pollux-tune run STUDY.yaml --folder FOLDER`".to_owned(),
        );
    }
    let direction = value.as_deref().and_then(|value| meaning(value, &["minimize", "maximize"]));
    let in_objective = section.starts_with("objective");
    if in_objective && let Some(direction) = direction {
        return Some(if is_any(&MODE, word) {
            format!("write `direction: {direction}`")
        } else {
            format!("write `{direction}: {word}`")
        });
    }
    if !in_objective && (is_any(&METRIC, word) || is_any(&MODE, word)) {
        // Other tools have the metric and its direction in two keys.
        let other = |words: &[&str]| {
            let (_, node) = beside.iter().find(|(key, _)| is_any(words, &key.scalar.text))?;
            written(node)
        };
        let metric = if is_any(&METRIC, word) { value } else { other(&METRIC) };
        let metric = metric.unwrap_or_else(|| "loss".to_owned());
        let direction = direction.or_else(|| meaning(&other(&MODE)?, &["minimize", "maximize"]));
        return Some(write(
            "objective",
            &format!("{{{}: {metric}}}", direction.unwrap_or("minimize")),
            section,
        ));
    }
    let elsewhere: Vec<String> = places(word).iter().map(|path| nested(path, &shown(), section)).collect();
    (!elsewhere.is_empty()).then(|| format!("write {}", elsewhere.join(" or ")))
}

/// What to write in the place of a text where a section belongs.
pub(super) fn section(node: &Node, path: &str, table: &[Field]) -> Option<String> {
    let text = written(node).filter(|_| matches!(node.content, Content::Scalar(_)))?;
    if path.starts_with("objective") {
        return Some(format!("write `{{minimize: {text}}}` or `{{maximize: {text}}}`"));
    }
    if path == "trial" {
        let is_script = Path::new(&text).extension().is_some_and(|extension| extension == "py");
        let key = if is_script { "python" } else { "command" };
        return Some(write(&format!("trial.{key}"), &text, ""));
    }
    let own = table.iter().find_map(|field| Some((format!("{path}.{}", field.key), one_of(field, &text)?)));
    let rule =
        || Some(("search.early_stopping.rule".to_owned(), meaning(&text, &["asha", "hyperband", "median"])?));
    let (path, word) = own.or_else(rule)?;
    Some(write(&path, word, ""))
}

fn one_of(field: &Field, text: &str) -> Option<&'static str> {
    match field.kind {
        Kind::OneOf(names) => meaning(text, names),
        _ => None,
    }
}

/// The name that a word of another tool stands for; a name stands for itself.
pub(super) fn meaning(word: &str, names: &'static [&'static str]) -> Option<&'static str> {
    let word = simple(word);
    let ours = VALUES.iter().find(|(_, words)| words.contains(&word.as_str())).map(|(ours, _)| *ours);
    names.iter().find(|name| **name == word || Some(**name) == ours).copied()
}

/// Where a key stands that is ours.
fn places(word: &str) -> Vec<String> {
    fn within(table: &[Field], path: &str, word: &str, found: &mut Vec<String>) {
        for field in table {
            let path = if path.is_empty() { field.key.to_owned() } else { format!("{path}.{}", field.key) };
            if field.key == word {
                found.push(path.clone());
            }
            if let Kind::Section(table) = field.kind {
                within(table, &path, word, found);
            }
        }
    }
    let mut found = Vec::new();
    within(STUDY, "", word, &mut found);
    found
}

fn write(path: &str, value: &str, section: &str) -> String {
    format!("write {}", nested(path, value, section))
}

/// A key with its value, below the sections that are not open yet.
fn nested(path: &str, value: &str, section: &str) -> String {
    let inside = path.strip_prefix(section).filter(|_| !section.is_empty());
    let rest = inside.and_then(|rest| rest.strip_prefix('.'));
    let keys: Vec<&str> = rest.unwrap_or(path).split('.').collect();
    let braces = "}".repeat(keys.len() - 1);
    let at_top = if rest.is_some() || section.is_empty() { "" } else { " at the top of the file" };
    format!("`{}: {value}{braces}`{at_top}", keys.join(": {"))
}
