//! What a study file says of programs: where they run, with what, and on how many GPUs.

use std::{collections::BTreeMap, path::PathBuf};

use super::{
    diagnostic::DiagnosticKind,
    node::{Content, Key, Node, Scalar},
    read::{Reader, Values, join},
    scalar::{bad, resolve},
    settings::{Elasticity, Program, ResultValue, TrialSettings},
};
use crate::space::Value;

/// Variables of this name are ours.
const OURS: &str = "POLLUX_TUNE_";
/// More GPUs than any machine has, and more programs than can share one.
const GPUS_MAX: u32 = 1024;
const SHARE_MAX: u32 = 64;

/// How many GPUs a trial has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gpus {
    pub(super) min: u32,
    pub(super) max: Option<u32>,
    /// The number of programs that share one.
    pub(super) share: u32,
}

impl Gpus {
    const fn whole(count: u32) -> Self {
        Self { min: count, max: Some(count), share: 1 }
    }

    /// `2`, `0.5` or `1..4`.
    fn parse(scalar: &Scalar) -> Option<Self> {
        let count = |text: &str| {
            let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u32>().ok().filter(|count| is_plain && (1..=GPUS_MAX).contains(count))
        };
        if let Some((min, max)) = scalar.text.split_once("..") {
            let (min, max) = (count(min)?, count(max)?);
            return (min < max).then_some(Self { min, max: Some(max), share: 1 });
        }
        match resolve(scalar).ok()? {
            Value::Int(_) => count(&scalar.text).map(Self::whole),
            Value::Float(part) if part > 0.0 && part < 1.0 => {
                // 0.33 is a third.
                let share = (1.0 / part + 1e-9).floor();
                (share <= f64::from(SHARE_MAX)).then(|| Self { share: share as u32, ..Self::whole(1) })
            }
            _ => None,
        }
    }
}

impl Reader<'_> {
    /// `trial.env` and `trial.folder`.
    pub(super) fn surroundings(
        &mut self,
        values: &Values<'_>,
        program: Option<&Program>,
    ) -> (BTreeMap<String, String>, Option<PathBuf>) {
        for key in ["env", "folder"] {
            if !matches!(program, Some(Program::Python(_))) {
                self.only_for_programs(values, key, program, "it with a command or Python code");
            }
        }
        let env = values.raw("env").map_or_else(BTreeMap::new, |node| self.env(node));
        (env, values.text("folder").map(PathBuf::from))
    }

    /// A key that means nothing without a program.
    fn only_for_programs(
        &mut self,
        values: &Values<'_>,
        key: &'static str,
        program: Option<&Program>,
        allowed: &'static str,
    ) {
        if values.get(key).is_some() && !matches!(program, Some(Program::Command(_))) {
            let place = match program {
                Some(Program::Trainable(_)) => "on a trainable",
                Some(_) => "on Python code",
                None => "without a program",
            };
            self.no_effect(values, "trial", key, place.to_owned(), allowed);
        }
    }

    fn env(&mut self, node: &Node) -> BTreeMap<String, String> {
        let path = "trial.env";
        let Content::Map(entries) = &node.content else {
            self.wrong(node.place, path, bad(node.shown(), "a mapping of names and values"));
            return BTreeMap::new();
        };
        let entries = self.entries(entries, path);
        entries.into_iter().filter_map(|(key, value)| self.variable(key, value)).collect()
    }

    fn variable(&mut self, key: &Key, value: &Node) -> Option<(String, String)> {
        let name = &key.scalar.text;
        let path = join("trial.env", name);
        if name.is_empty() || name.contains(['=', '\0']) || name.starts_with(OURS) {
            let allowed = "a name without `=`, and not one of our own (POLLUX_TUNE_...)";
            self.wrong(key.place, &path, bad(key.scalar.shown(), allowed));
            return None;
        }
        match &value.content {
            Content::Scalar(scalar) if !value.is_null() && !scalar.text.contains('\0') => {
                Some((name.clone(), scalar.text.clone()))
            }
            _ => {
                self.wrong(value.place, &path, bad(value.shown(), "a text, with quotes if it is empty"));
                None
            }
        }
    }

    /// The GPUs of a trial, and how their number changes.
    pub(super) fn gpus(
        &mut self,
        values: &Values<'_>,
        program: Option<&Program>,
    ) -> Option<(Gpus, Option<Elasticity>)> {
        for key in ["gpus", "elastic"] {
            self.only_for_programs(values, key, program, "it with a command");
        }
        if !matches!(program, Some(Program::Command(_))) {
            let (min, max) = (values.count("min_gpus")?, values.count("max_gpus"));
            return Some((Gpus { min, max, share: 1 }, None));
        }
        let elastic = values.text("elastic").and_then(Elasticity::from_name);
        let gpus = values.raw("gpus").map_or(Gpus::whole(1), |node| self.gpus_of_program(node));
        let is_range = gpus.max != Some(gpus.min);
        if is_range && elastic.is_none() {
            let found = "a program keeps its number of GPUs".to_owned();
            let allowed = "one number, or a range with `elastic: restart`";
            let mistake = DiagnosticKind::Conflict { found, allowed };
            self.wrong(values.place("gpus"), "trial.gpus", mistake);
        }
        if !is_range && elastic.is_some() {
            let (place, allowed) = ("with one number of GPUs", "it with a range, such as `gpus: 1..4`");
            self.no_effect(values, "trial", "elastic", place.to_owned(), allowed);
        }
        Some((gpus, elastic))
    }

    fn gpus_of_program(&mut self, node: &Node) -> Gpus {
        let read = match &node.content {
            Content::Scalar(scalar) => Gpus::parse(scalar),
            Content::List(_) | Content::Map(_) => None,
        };
        read.unwrap_or_else(|| {
            let allowed = format!(
                "a number of GPUs from 1 to {GPUS_MAX}, a part of one from {} on, such as 0.5, or the fewest and the most, such as 1..4",
                1.0 / f64::from(SHARE_MAX)
            );
            self.wrong(node.place, "trial.gpus", bad(node.shown(), allowed));
            Gpus::whole(1)
        })
    }

    /// The best of several objectives would be that of several moments.
    pub(super) fn check_result(&mut self, values: &Values<'_>, trial: &TrialSettings, objectives: usize) {
        if trial.result == ResultValue::Best && objectives > 1 {
            let found = format!("`result: best` with {objectives} objectives");
            let mistake = DiagnosticKind::Conflict { found, allowed: "`result: last`, or one objective" };
            self.wrong(values.place("result"), "trial.result", mistake);
        }
    }
}
