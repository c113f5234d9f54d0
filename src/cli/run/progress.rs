//! How far a study is at one moment.

use crate::{
    ids::SlotId,
    space::{Direction, Params, Value},
    trials::{
        End,
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
    pub(super) fn of(engine: &Engine, objectives: &[(String, Direction)], best: &Best) -> Self {
        let state = engine.state();
        let busy = state.active.values().map(|active| active.slots().len()).sum::<usize>();
        let mut summary = format!("{busy} of {} slots", state.slot_count());
        if let Some((_, text)) = &best.0 {
            summary = format!("{text}, {summary}");
        }
        let epochs = engine.study().trial.epochs;
        let part = |active: &ActiveTrial| (active.epochs / epochs).clamp(0.0, 1.0);
        let running = state.active.iter().map(|(trial, active)| {
            let metric = objectives.iter().find_map(|(name, _)| {
                let value = active.metrics.get(name)?.value();
                Some(format!("{name} {}", brief(value)))
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

/// The best result so far.
#[derive(Default)]
pub(super) struct Best(Option<(f64, String)>);

impl Best {
    pub(super) fn update(
        &mut self,
        objectives: &[(String, Direction)],
        engine: &Engine,
        entries: &[JournalEntry],
    ) {
        let [(metric, direction)] = objectives else { return };
        // A study that is resumed has results from before.
        let before = engine.state().ended.iter().filter(|_| self.0.is_none());
        let before = before.filter_map(|(trial, ended)| match &ended.end {
            End::Done(values) => Some((*trial, values.first().copied()?)),
            _ => None,
        });
        let new = entries.iter().filter_map(|entry| match &entry.fact {
            Fact::TrialDone { trial, values } => Some((*trial, values.first().copied()?)),
            _ => None,
        });
        for (trial, value) in before.chain(new).collect::<Vec<_>>() {
            let is_better = |old: f64| match direction {
                Direction::Minimize => value < old,
                Direction::Maximize => value > old,
            };
            if self.0.as_ref().is_none_or(|(old, _)| is_better(*old)) {
                let text = format!("best {metric} {} (trial {trial})", brief(value));
                self.0 = Some((value, text));
            }
        }
    }
}

fn location(active: &ActiveTrial) -> String {
    let slots = ranges(active.slots());
    match active.phase {
        Phase::Waiting => "waits".to_owned(),
        Phase::Forming { .. } | Phase::Broken { .. } => format!("forms on {slots}"),
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
