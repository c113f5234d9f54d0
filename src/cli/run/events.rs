//! `run --json`: what happens in a study, as lines of JSON on the standard output.

use std::{
    fs::File,
    io::Write,
    sync::mpsc::{self, Sender},
    thread::{self, JoinHandle},
};

use serde_json::{Value, json};

use crate::{
    cli::{self, json as shape},
    space::Objective,
    trials::engine::{Engine, Fact, JournalEntry},
};

/// Writes events on a thread of its own: a pipe that nobody reads must not hold the study up.
pub(super) struct EventLines {
    lines: Option<Sender<String>>,
    thread: Option<JoinHandle<()>>,
}

impl EventLines {
    /// To the standard output, beside whoever has locked it and writes nothing meanwhile.
    pub(super) fn start() -> Result<Self, cli::Error> {
        let out = rustix::stdio::stdout().try_clone_to_owned().map_err(cli::Error::Stdout)?;
        let mut out = File::from(out);
        let (lines, texts) = mpsc::channel::<String>();
        let write = move || {
            // Who has closed the other end wants no more.
            while let Ok(line) = texts.recv()
                && out.write_all(line.as_bytes()).is_ok()
            {}
        };
        let thread = thread::Builder::new().name("events".to_owned()).spawn(write);
        let thread = thread.map_err(cli::Error::system("start a thread"))?;
        Ok(Self { lines: Some(lines), thread: Some(thread) })
    }

    /// A callback for every step of the study.
    pub(super) fn watch(&self) -> impl FnMut(&Engine, &[JournalEntry]) + Send + 'static {
        let lines = self.lines.clone();
        move |engine, entries| {
            let objectives = &engine.study().objectives;
            for entry in entries {
                let since_s = entry.at_s - engine.state().started_s;
                if let (Some(lines), Some(event)) = (&lines, event(&entry.fact, since_s, objectives)) {
                    let _ = lines.send(format!("{}\n", shape::object(event)));
                }
            }
        }
    }

    /// Waits until all of it is written.
    pub(super) fn end(mut self) {
        self.lines = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A fact as an event: its kind, the time since this head has started, and its fields. What only the program needs is none.
fn event(fact: &Fact, since_s: f64, objectives: &[Objective]) -> Option<Value> {
    if matches!(fact, Fact::StudyCreated { .. } | Fact::StudyChanged { .. } | Fact::Refitted { .. }) {
        return None;
    }
    let mut fields = match serde_json::to_value(fact).ok()? {
        Value::Object(all) => all.into_iter().next()?.1,
        _ => return None,
    };
    let object = fields.as_object_mut()?;
    // As other programs search, parameters are enough.
    object.remove("point");
    if let Fact::TrialDone { values, .. } = fact {
        object.insert("values".to_owned(), shape::values(objectives, values));
    }
    object.insert("event".to_owned(), json!(fact.kind()));
    object.insert("seconds".to_owned(), json!(since_s));
    Some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::TrialId,
        space::{Params, Study},
    };

    #[test]
    fn facts_are_events_with_names() {
        let study =
            Study::from_yaml("study.yaml", "{space: {lr: {float: [0, 1]}}, objective: {minimize: loss}}")
                .unwrap();
        let shown = |fact: &Fact| event(fact, 1.5, &study.objectives);
        let trial = TrialId(3);
        let params = Params::from_iter([("lr", 0.5.into())]);
        let created = Fact::TrialCreated { trial, params, point: vec![Some(0.5)] };
        let wanted = json!({"event": "trial_created", "seconds": 1.5, "trial": 3, "params": {"lr": 0.5}});
        assert_eq!(shown(&created), Some(wanted));
        let done = Fact::TrialDone { trial, values: vec![0.25] };
        let wanted = json!({"event": "trial_done", "seconds": 1.5, "trial": 3, "values": {"loss": 0.25}});
        assert_eq!(shown(&done), Some(wanted));
        assert_eq!(shown(&Fact::HeadStarted {}), Some(json!({"event": "head_started", "seconds": 1.5})));
        assert_eq!(shown(&Fact::StudyCreated { yaml: String::new() }), None);
    }
}
