use std::{
    collections::{VecDeque, hash_map::DefaultHasher},
    fmt,
    hash::Hasher,
};

use super::world::Message;
use crate::trials::{
    engine::{Input, JournalEntry},
    group::{WorkerCommand, WorkerEvent},
};

/// How many events are shown when a rule is broken.
const LAST: usize = 60;

/// What has happened: the last events as text, and all of them as one number.
#[derive(Debug, Default)]
pub(super) struct Trace {
    last: VecDeque<String>,
    hasher: DefaultHasher,
    events: u64,
}

impl Trace {
    pub(super) fn note(&mut self, at_s: f64, what: fmt::Arguments<'_>) {
        let line = format!("{at_s:10.3} s  {what}");
        self.hasher.write(line.as_bytes());
        self.events += 1;
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    pub(super) fn last(&self) -> impl Iterator<Item = &str> {
        self.last.iter().map(String::as_str)
    }

    pub(super) fn hash(&self) -> u64 {
        self.hasher.finish()
    }
}

pub(super) fn shown(input: &Input) -> String {
    match input {
        Input::PlanSolved { answer, .. } => format!("a plan, found: {}", answer.is_ok()),
        Input::Suggested { answer, .. } => format!("a suggestion, found: {}", answer.is_ok()),
        Input::FitDone { trial, answer, .. } => {
            format!("the speed of trial {trial}, found: {}", answer.is_some())
        }
        input => format!("{input:?}"),
    }
}

pub(super) fn shown_fact(entry: &JournalEntry) -> String {
    let trial = entry.fact.trial().map(|trial| format!(" of trial {trial}")).unwrap_or_default();
    format!("{}{trial}", entry.fact.kind())
}

pub(super) fn shown_command(command: &WorkerCommand) -> String {
    match command {
        WorkerCommand::Prepare(task) => format!("prepare trial {}", task.trial),
        WorkerCommand::Form(form) => {
            let slots = |list: &[crate::trials::group::Member]| {
                list.iter().map(|member| member.slot.to_string()).collect::<Vec<_>>().join(" ")
            };
            let (members, donors) = (slots(&form.members), slots(&form.donors));
            format!("form round {} of trial {}: {members}; donors: {donors}", form.round, form.trial)
        }
        command => format!("{command:?}"),
    }
}

pub(super) fn shown_message(message: &Message) -> String {
    match message {
        Message::Event(WorkerEvent::Reported(report)) => {
            format!("a report of trial {} at {:.2} epochs", report.trial, report.epochs)
        }
        Message::Event(event) => format!("{event:?}"),
        message => format!("{message:?}"),
    }
}
