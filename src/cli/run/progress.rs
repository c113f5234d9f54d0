//! How far a study is at one moment.

use crate::{
    ids::{SlotId, TrialId},
    space::{Objective, Params, Value},
    trials::{
        End, best,
        engine::{ActiveTrial, Engine, Fact, JournalEntry, Phase},
    },
};

/// The moving lines.
pub(super) struct Progress {
    pub(super) ended: u64,
    pub(super) wanted: u64,
    /// The part of the study that is done, with what running trials have done.
    pub(super) part: f64,
    pub(super) summary: String,
    /// One line for each running trial, the most important first: it may be cut.
    pub(super) running: Vec<String>,
}

impl Progress {
    pub(super) fn of(engine: &Engine, best: &Best) -> Self {
        let (state, objectives) = (engine.state(), &engine.study().objectives);
        let busy = state.active.values().map(|active| active.slots().len()).sum::<usize>();
        let mut summary = format!("{busy} of {} slots", state.slot_count());
        if let Some(text) = objectives.first().and_then(|objective| best.text(objective)) {
            summary = format!("{text}, {summary}");
        }
        let epochs = engine.study().trial.epochs;
        let part = |active: &ActiveTrial| (active.epochs / epochs).clamp(0.0, 1.0);
        let running = state.active.iter().map(|(trial, active)| {
            let metric = objectives.iter().find_map(|Objective { metric, .. }| {
                let value = active.metrics.get(metric)?.value();
                Some(format!("{metric} {}", brief(value)))
            });
            let parts = [metric, Some(location(active)), batch(active)];
            let parts = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
            format!(
                "trial {trial:<4} {:3.0} %  {parts}  {}",
                100.0 * part(active),
                brief_params(&active.params)
            )
        });
        let wanted = u64::from(engine.study().search.trials);
        let done = state.ended.len() as f64 + state.active.values().map(part).sum::<f64>();
        Self {
            ended: state.ended.len() as u64,
            wanted,
            part: done / wanted.max(1) as f64,
            summary,
            running: running.collect(),
        }
    }
}

/// The best result so far, of a study with one objective.
#[derive(Default)]
pub(super) struct Best(Option<(TrialId, Vec<f64>)>);

impl Best {
    pub(super) fn update(&mut self, engine: &Engine, entries: &[JournalEntry]) {
        let objectives = &engine.study().objectives;
        if objectives.len() != 1 {
            return;
        }
        // A study that is resumed has results from before.
        let before = engine.state().ended.iter().filter(|_| self.0.is_none());
        let before = before.filter_map(|(trial, ended)| match &ended.end {
            End::Done(values) => Some((*trial, &values[..])),
            _ => None,
        });
        let new = entries.iter().filter_map(|entry| match &entry.fact {
            Fact::TrialDone { trial, values } => Some((*trial, &values[..])),
            _ => None,
        });
        let known = self.0.iter().map(|(trial, values)| (*trial, &values[..]));
        let results = known.chain(before).chain(new).map(|(trial, values)| ((trial, values), values));
        let found = best(objectives, results, 1).pop();
        self.0 = found.map(|(trial, values)| (trial, values.to_vec()));
    }

    fn text(&self, objective: &Objective) -> Option<String> {
        let (trial, values) = self.0.as_ref()?;
        Some(format!("best {} {} (trial {trial})", objective.metric, brief(*values.first()?)))
    }
}

fn location(active: &ActiveTrial) -> String {
    let slots = ranges(active.slots());
    match &active.phase {
        Phase::Waiting => "waits".to_owned(),
        Phase::Forming { .. } | Phase::Broken { .. } => format!("starts on {slots}"),
        Phase::Pausing(_) => format!("leaves {slots}"),
        Phase::Running(_) => format!("on {slots}"),
    }
}

/// `0.0-3 1.5` for the first four slots of node 0 and the sixth of node 1.
fn ranges(slots: &[SlotId]) -> String {
    let mut slots = slots.to_vec();
    slots.sort_unstable();
    let follows = |a: &SlotId, b: &SlotId| a.node == b.node && a.index + 1 == b.index;
    let runs = slots.chunk_by(follows).map(|run| match run {
        [first, .., last] => format!("{first}-{}", last.index),
        _ => run.first().map_or_else(String::new, SlotId::to_string),
    });
    runs.collect::<Vec<_>>().join(" ")
}

fn batch(active: &ActiveTrial) -> Option<String> {
    let group = active.phase.group()?;
    let total = group.batch?.total(group.slots.len() as u32);
    Some(format!("batch {total}"))
}

fn brief_params(params: &Params) -> String {
    let each = params.iter().map(|(name, value)| {
        let value = if let Value::Float(number) = value { brief(*number) } else { value.to_string() };
        format!("{name}={value}")
    });
    each.collect::<Vec<_>>().join(" ")
}

/// A number with four digits.
fn brief(number: f64) -> String {
    let rounded = format!("{number:.3e}").parse().unwrap_or(number);
    Value::from(rounded).short()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NodeId;

    #[test]
    fn slots_in_a_row_are_a_range() {
        let slot = |(node, index)| SlotId { node: NodeId(node), index };
        let text = |slots: &[(u32, u32)]| ranges(&slots.iter().copied().map(slot).collect::<Vec<_>>());
        assert_eq!(text(&[(0, 3), (0, 0), (0, 1), (1, 2), (2, 3)]), "0.0-1 0.3 1.2 2.3");
        assert_eq!(text(&[]), "");
    }

    #[test]
    fn numbers_have_four_digits() {
        assert_eq!([0.013_403_7, 12_345.6, 1.0, f64::NAN].map(brief), ["0.0134", "12350", "1", "NaN"]);
    }
}
