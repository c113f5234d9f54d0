//! Settings that change nothing next to the others, and placeholders that stand for nothing.

use super::{
    super::{
        command::{BUILT_IN, Piece, pieces},
        error::similar,
    },
    diagnostic::{DiagnosticKind, did_you_mean},
    read::{Reader, Values, join, list},
    settings::{Program, StoppingRule},
    study::Study,
    table::{EARLY_STOPPING, Field, SCHEDULER, TRIAL},
};
use crate::space::Parameter;

/// Keys of `trial` that are for what trains elastically.
const ELASTIC: [&str; 9] = [
    "initial_batch",
    "max_batch",
    "max_batch_per_gpu",
    "batch_per_gpu",
    "scaling",
    "checkpoint_interval",
    "keep_checkpoints",
    "min_gpus",
    "max_gpus",
];

impl Reader<'_> {
    /// Settings that have no effect in a file that will be run as it is.
    pub(super) fn refuse_idle(&mut self, values: &Values<'_>, study: &Study) {
        let stopping = values.section("search").and_then(|search| search.section("early_stopping"));
        if let Some(stopping) = stopping {
            self.refuse_idle_stopping(stopping, study.search.early_stopping.rule);
        }
        if let Some(Program::Command(words)) = &study.trial.program {
            self.refuse_idle_for_commands(values, study);
            self.placeholders(values, words, study);
        }
    }

    fn refuse_idle_stopping(&mut self, values: &Values<'_>, rule: StoppingRule) {
        for (key, used, allowed) in [
            ("grace", rule != StoppingRule::Never, "it with another `rule`, such as asha"),
            (
                "reduction",
                matches!(rule, StoppingRule::Asha | StoppingRule::Hyperband),
                "it with the rule asha or hyperband",
            ),
            ("patience", rule == StoppingRule::Patience, "it with `rule: patience`"),
            ("threshold", rule == StoppingRule::Threshold, "it with `rule: threshold`"),
        ] {
            if !used && values.is_changed(key, EARLY_STOPPING) {
                let place = format!("with the rule `{rule}`");
                self.no_effect(values, "search.early_stopping", key, place, allowed);
            }
        }
    }

    fn refuse_idle_for_commands(&mut self, values: &Values<'_>, study: &Study) {
        if let Some(trial) = values.section("trial") {
            let usual_batch = trial.count("initial_batch").map(|batch| batch.saturating_mul(32));
            for key in ELASTIC {
                let is_usual = key == "max_batch" && trial.count(key) == usual_batch;
                if !is_usual && trial.is_changed(key, TRIAL) {
                    let allowed = if key.ends_with("_gpus") {
                        "`gpus` instead"
                    } else {
                        "it with `trainable`, `python` or `module`"
                    };
                    self.no_effect(trial, "trial", key, "on a command".to_owned(), allowed);
                }
            }
        }
        let Some(scheduler) = values.section("scheduler").filter(|_| study.trial.elastic.is_none()) else {
            return;
        };
        for Field { key, .. } in SCHEDULER {
            if scheduler.is_changed(key, SCHEDULER) {
                let place = "on a command whose number of GPUs does not change".to_owned();
                let allowed = "it with `elastic: restart`, or with `trainable`, `python` or `module`";
                self.no_effect(scheduler, "scheduler", key, place, allowed);
            }
        }
    }

    pub(super) fn no_effect(
        &mut self,
        values: &Values<'_>,
        section: &str,
        key: &str,
        place: String,
        allowed: &str,
    ) {
        let mistake = DiagnosticKind::NoEffect { key: key.to_owned(), place, allowed: allowed.to_owned() };
        self.wrong(values.place(key), &join(section, key), mistake);
    }

    fn placeholders(&mut self, values: &Values<'_>, words: &[String], study: &Study) {
        // A parameter that could not be read is known all the same.
        if !self.is_clean_below("space") {
            return;
        }
        let names: Vec<&str> = study.space.parameters().iter().map(Parameter::name).collect();
        let is_known = |name: &str| names.contains(&name) || BUILT_IN.contains(&name);
        let trial = values.section("trial");
        let whole = trial.map_or(values.place, |trial| trial.place("command"));
        let places = trial.map_or(&[][..], |trial| trial.word_places("command"));
        for (number, word) in words.iter().enumerate() {
            let place = places.get(number).copied().unwrap_or(whole);
            for piece in pieces(word, |name| names.contains(&name)) {
                let Piece::Name(name) = piece else { continue };
                if !is_known(name) {
                    let known = list(names.iter().chain(&BUILT_IN).copied());
                    let allowed =
                        format!("one of {known}; or `{{{{{name}}}}}` for the text `{{{name}}}` itself");
                    let found = format!("the placeholder `{{{name}}}`");
                    let hint = similar(name, names.iter().copied()).map(did_you_mean);
                    self.wrong(place, "trial.command", DiagnosticKind::BadValue { found, allowed, hint });
                }
            }
        }
    }
}
