//! The keys of study files: what the reader accepts, and what the schema describes.

use super::{
    machines::{Gres, NodeRange, SlotSet, is_host, is_listen, is_name, is_name_list},
    settings::{
        Algorithm, Confidence, Direction, Elasticity, InvalidParallel, Parallel, ResultValue, StoppingRule,
        is_function,
    },
};
use crate::{alloc::PolicyKind, goodput::LrRule};

/// A key of a mapping.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) key: &'static str,
    /// For people, in the schema.
    pub(super) about: &'static str,
    pub(super) kind: Kind,
    /// As it would be written in a file.
    pub(super) default: Option<&'static str>,
}

/// What a key holds.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Text,
    /// A program and its arguments.
    Words,
    Whole {
        min: u64,
        max: u64,
    },
    Number {
        min: f64,
        max: f64,
    },
    /// Above 0 and finite.
    Positive,
    Finite,
    Duration,
    Size,
    Flag,
    /// `all`, `none` or how many.
    Share,
    OneOf(&'static [&'static str]),
    /// A text of some form.
    Form(&'static Form),
    Section(&'static [Field]),
    /// Read elsewhere; this is its JSON Schema.
    Raw(&'static str),
}

/// What a text has to look like.
#[derive(Debug)]
pub(super) struct Form {
    pub(super) fits: fn(&str) -> bool,
    /// In words, for messages.
    pub(super) allowed: &'static str,
    /// As a regular expression, for the schema.
    pub(super) pattern: &'static str,
}

const fn field(key: &'static str, kind: Kind, default: Option<&'static str>, about: &'static str) -> Field {
    Field { key, about, kind, default }
}

const COUNT: Kind = Kind::Whole { min: 1, max: u32::MAX as u64 };

pub(super) const STUDY: &[Field] = &[
    field(
        "space",
        Kind::Raw(r##"{"type": "object", "additionalProperties": {"$ref": "#/$defs/parameter"}}"##),
        None,
        "The parameters to search: a name and a domain each",
    ),
    field(
        "constraints",
        Kind::Raw(r#"{"type": ["string", "array"], "items": {"type": "string"}}"#),
        None,
        "Rules between parameters, such as `batch * accumulation <= 4096`",
    ),
    field(
        "objective",
        Kind::Raw(
            r##"{"anyOf": [
            {"$ref": "#/$defs/objective"},
            {"type": "array", "items": {"$ref": "#/$defs/objective"}, "minItems": 1}
        ]}"##,
        ),
        None,
        "What to minimize or maximize; a list for several objectives",
    ),
    field("trial", Kind::Section(TRIAL), None, "How a trial is trained"),
    field("search", Kind::Section(SEARCH), None, "How parameters are chosen and trials stopped early"),
    field("scheduler", Kind::Section(SCHEDULER), None, "How GPUs are divided among trials"),
    field(
        "cluster",
        Kind::Raw(r##"{"anyOf": [{"type": "string"}, {"$ref": "#/$defs/machines"}]}"##),
        None,
        "The GPUs, as NODESxGPUSxTYPE with commas between: `4x4xt4,1x8xa100`; or where machines come from; or a YAML file with such a \
         `cluster`",
    ),
];

pub(super) const MACHINES: &[Field] = &[
    field(
        "listen",
        Kind::Form(&Form {
            fits: is_listen,
            allowed: "a name or an address of this machine, and perhaps a port, such as 10.0.0.5:7000",
            pattern: "^[^ ]+$",
        }),
        None,
        "Where the head listens for agents: a name or an address, and perhaps a port; by default it chooses by itself",
    ),
    field(
        "slurm",
        Kind::Raw(
            r##"{"anyOf": [{"$ref": "#/$defs/pilots"}, {"type": "array", "items": {"$ref": "#/$defs/pilots"}}]}"##,
        ),
        None,
        "Nodes that are asked of Slurm, one kind each",
    ),
    field(
        "hosts",
        Kind::Raw(
            r##"{"anyOf": [{"type": "string"}, {"$ref": "#/$defs/host"},
            {"type": "array", "items": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/host"}]}}]}"##,
        ),
        None,
        "Machines on which agents are started by ssh",
    ),
];

const SLOTS: Kind = Kind::Form(&Form {
    fits: |text| text.parse::<SlotSet>().is_ok(),
    allowed: "COUNTxTYPE, such as 4xcpu",
    pattern: "^[0-9]+x[A-Za-z0-9_.+-]+$",
});
const NAME: Kind = Kind::Form(&Form {
    fits: is_name,
    allowed: "a name without blanks and quotes",
    pattern: "^[A-Za-z0-9_][A-Za-z0-9_.+-]*$",
});

pub(super) const PILOTS: &[Field] = &[
    field(
        "nodes",
        Kind::Form(&Form {
            fits: |text| text.parse::<NodeRange>().is_ok(),
            allowed: "a number of nodes from 1 to 65536, or the fewest and the most, such as 0..4",
            pattern: "^[0-9]+([.][.][0-9]+)?$",
        }),
        Some("1"),
        "How many: a number, or the fewest and the most, such as 0..4; between them, as many as the study can make use of",
    ),
    field(
        "gres",
        Kind::Form(&Form {
            fits: |text| text.parse::<Gres>().is_ok(),
            allowed: "the GPUs of a node as Slurm counts them, such as gpu:a100:8 or gpu:8",
            pattern: "^gpu:([A-Za-z0-9_.+-]+:)?[0-9]+$",
        }),
        None,
        "The GPUs of a node as Slurm counts them, such as gpu:a100:8",
    ),
    field("slots", SLOTS, None, "Slots instead of the GPUs that the agent finds, such as 4xcpu"),
    field(
        "partition",
        Kind::Form(&Form {
            fits: is_name_list,
            allowed: "the name of a partition, or several with commas between",
            pattern: "^[A-Za-z0-9_.+,-]+$",
        }),
        None,
        "The partition; Slurm's default one by default",
    ),
    field("time", Kind::Duration, None, "The time limit; that of the partition by default"),
    field("setup", Kind::Text, None, "Lines of shell that come before the agent, such as `module load cuda`"),
    field("account", NAME, None, "Who pays"),
    field("qos", NAME, None, "The quality of service"),
    field("cpus", COUNT, None, "Cores of a node; one for each slot by default"),
    field("extra", Kind::Words, None, "Further options of sbatch, such as [--mem=32G, --exclusive]"),
];

pub(super) const HOST: &[Field] = &[
    field(
        "host",
        Kind::Form(&Form {
            fits: is_host,
            allowed: "a host as ssh takes it, such as gpu1 or user@gpu2",
            pattern: "^[A-Za-z0-9_[][A-Za-z0-9_.@:%[\\]-]*$",
        }),
        None,
        "As ssh takes it",
    ),
    field("program", Kind::Text, None, "This program over there; the path that it has here by default"),
    field("slots", SLOTS, None, "Slots instead of the GPUs that the agent finds, such as 4xcpu"),
];

pub(super) const OBJECTIVE: &[Field] = &[
    field("metric", Kind::Text, None, "The name under which trials report it"),
    field("direction", Kind::OneOf(Direction::NAMES), None, "Which way is better"),
    field("minimize", Kind::Text, None, "Short for metric and direction: minimize"),
    field("maximize", Kind::Text, None, "Short for metric and direction: maximize"),
];

pub(super) const TRIAL: &[Field] = &[
    field("trainable", Kind::Text, None, "The name of a trainable that is built in"),
    field("command", Kind::Words, None, "A program and its arguments, instead of a trainable"),
    field(
        "python",
        Kind::Text,
        None,
        "A Python script that trains elastically with the package pollux_tune, instead of a trainable",
    ),
    field(
        "module",
        Kind::Form(&Form {
            fits: is_function,
            allowed: "a function of a module, such as package.train:main",
            pattern: r"^[^:]+:[^:.]+$",
        }),
        None,
        "A function that trains elastically with the package pollux_tune, as package.module:function",
    ),
    field(
        "interpreter",
        Kind::Text,
        None,
        "The Python of `python` and `module`; by default python3 in the folder of this program, else that of PATH",
    ),
    field(
        "epochs",
        Kind::Positive,
        Some("10"),
        "Statistical epochs of a full trial: passes over the data at the efficiency of the initial batch",
    ),
    field("initial_batch", Kind::Size, Some("128"), "The total batch that learning rates are meant for"),
    field("max_batch", Kind::Size, None, "The largest total batch; 32 times the initial one by default"),
    field(
        "max_batch_per_gpu",
        Kind::Size,
        None,
        "The largest pass on a GPU, in examples; by default what fits into its memory is learned",
    ),
    field(
        "batch_per_gpu",
        Kind::Size,
        None,
        "A fixed batch for each GPU; by default it is adapted to the training",
    ),
    field("scaling", Kind::OneOf(LrRule::NAMES), Some("adascale"), "How the learning rate follows the batch"),
    field("checkpoint_interval", Kind::Duration, Some("5m"), "The time between two checkpoints"),
    field(
        "keep_checkpoints",
        Kind::Share,
        Some("1"),
        "The best trials whose checkpoints are kept after their end: how many, `all` or `none`",
    ),
    field("min_gpus", COUNT, Some("1"), "The smallest number of GPUs of a running trial"),
    field("max_gpus", COUNT, None, "The largest number of GPUs of a trial; no limit by default"),
    field(
        "gpus",
        Kind::Raw(
            r#"{"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": "^[0-9]+[.][.][0-9]+$"}]}"#,
        ),
        None,
        "The GPUs of a program, 1 by default: a number; a part of one, such as 0.5, that it shares with others; with `elastic: restart` the \
         fewest and the most, such as 1..4",
    ),
    field(
        "elastic",
        Kind::OneOf(Elasticity::NAMES),
        None,
        "Restart a program with another number of GPUs when that pays; it resumes from its own checkpoint",
    ),
    field(
        "result",
        Kind::OneOf(ResultValue::NAMES),
        Some("last"),
        "Which value of the objective is the result of a trial: the last one that it reports, or the best",
    ),
    field("timeout", Kind::Duration, None, "The longest a trial may take; no limit by default"),
    field(
        "silence",
        Kind::Duration,
        None,
        "The longest that a program may print nothing before it is ended and started again, no limit by default; a step of a \
         trainable may always take as long, 1m by default",
    ),
    field(
        "env",
        Kind::Raw(
            r#"{"type": "object", "propertyNames": {"pattern": "^[^=]+$"}, "additionalProperties": {"type": ["string", "number", "boolean"]}}"#,
        ),
        None,
        "Variables in the environment of a program or of Python code, in addition to those that it inherits",
    ),
    field(
        "folder",
        Kind::Text,
        None,
        "The folder in which a program or Python code begins, seen from the folder of the study file; that of `run` or of the agent by default",
    ),
];

pub(super) const SEARCH: &[Field] = &[
    field("algorithm", Kind::OneOf(Algorithm::NAMES), Some("auto"), "How the next parameters are chosen"),
    field("trials", COUNT, Some("100"), "How many trials there are"),
    field(
        "parallel",
        Kind::Form(&Form {
            fits: |text| text.parse::<Parallel>().is_ok(),
            allowed: InvalidParallel::ALLOWED,
            pattern: "^(auto|[1-9][0-9]*)$",
        }),
        None,
        "How many of them are active at a time: a number, or `auto` for as many as pay off; by default `auto` for trainables under the \
         policies `goodput` and `pollux`, else 4",
    ),
    field(
        "seed",
        Kind::Whole { min: 0, max: (1 << 53) - 1 },
        Some("0"),
        "What all random choices follow from",
    ),
    field("timeout", Kind::Duration, None, "The longest the study may take; no limit by default"),
    field(
        "max_failures",
        Kind::Whole { min: 0, max: u32::MAX as u64 },
        Some("10"),
        "The study ends as failed after this many failed trials if none has finished; 0 for never",
    ),
    field("early_stopping", Kind::Section(EARLY_STOPPING), None, "When trials are stopped early"),
];

pub(super) const EARLY_STOPPING: &[Field] = &[
    field("rule", Kind::OneOf(StoppingRule::NAMES), Some("none"), "By which rule trials are stopped early"),
    field(
        "grace",
        Kind::Positive,
        None,
        "Statistical epochs before the first decision; by default a sixteenth of the epochs of a trial",
    ),
    field(
        "reduction",
        Kind::Number { min: 1.1, max: 1000.0 },
        None,
        "For asha and hyperband: one in this number of trials continues at each rung; by default 1.25, four in five, and 2 for hyperband",
    ),
    field("patience", Kind::Positive, Some("5"), "For patience: statistical epochs without improvement"),
    field("threshold", Kind::Finite, None, "For threshold: a trial that is worse is stopped"),
];

pub(super) const SCHEDULER: &[Field] = &[
    field("policy", Kind::OneOf(PolicyKind::NAMES), Some("goodput"), "How GPUs are divided"),
    field(
        "interval",
        Kind::Duration,
        Some("60s"),
        "The time between two decisions where nothing else asks for one",
    ),
    field(
        "immediate",
        Kind::Flag,
        Some("true"),
        "GPUs are divided as soon as something changes, not only at each interval",
    ),
    field(
        "p",
        Kind::Number { min: -20.0, max: 20.0 },
        None,
        "The fairness exponent of Pollux; by default -1 under the other policies, while `goodput` aims at the progress of all trials together",
    ),
    field("avoid_interference", Kind::Flag, Some("true"), "No two trials on several nodes share a node"),
    field(
        "knowledge_sharing",
        Kind::Flag,
        Some("true"),
        "New trials start with the model learned from others",
    ),
    field("promise_weighting", Kind::Flag, Some("false"), "Trials about to be stopped are not scaled out"),
];

pub(super) const DOMAIN: &[Field] = &[
    field(
        "float",
        Kind::Raw(r#"{"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}"#),
        None,
        "Numbers from the first to the second",
    ),
    field(
        "int",
        Kind::Raw(r#"{"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}"#),
        None,
        "Whole numbers from the first to the second",
    ),
    field(
        "log",
        Kind::Raw(
            r#"{"type": ["boolean", "array"], "items": {"type": "number"}, "minItems": 2, "maxItems": 2}"#,
        ),
        None,
        "With float or int, whether logarithms are equally likely; alone, the bounds of such a float",
    ),
    field(
        "step",
        Kind::Raw(r#"{"type": "number", "exclusiveMinimum": 0}"#),
        None,
        "With float or int, the distance between two values",
    ),
    field(
        "choice",
        Kind::Raw(
            r##"{"anyOf": [
            {"type": "array", "items": {"$ref": "#/$defs/value"}, "minItems": 1},
            {"type": "object", "additionalProperties": {
                "type": ["object", "null"], "additionalProperties": {"$ref": "#/$defs/parameter"}
            }}
        ]}"##,
        ),
        None,
        "One of several values without order, perhaps each with parameters of its own",
    ),
    field(
        "ordinal",
        Kind::Raw(r##"{"type": "array", "items": {"$ref": "#/$defs/value"}, "minItems": 1}"##),
        None,
        "One of several values in order",
    ),
    field("fixed", Kind::Raw(r##"{"$ref": "#/$defs/value"}"##), None, "Always this value"),
    field(
        "prior",
        Kind::Raw(r##"{"$ref": "#/$defs/value"}"##),
        None,
        "The value that is expected to be best, where the search begins",
    ),
    field(
        "confidence",
        Kind::OneOf(Confidence::NAMES),
        None,
        "How sure the prior is, medium by default: the surer, the closer to it the search begins",
    ),
    field(
        "when",
        Kind::Raw(
            r##"{"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": {"anyOf": [
            {"$ref": "#/$defs/value"},
            {"type": "array", "items": {"$ref": "#/$defs/value"}, "minItems": 1}
        ]}}"##,
        ),
        None,
        "An earlier parameter, and the value or values with which this one is active",
    ),
];
