//! Which trial had which slot when.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    dashboard::{model::Span, studies::View},
    ids::SlotId,
};

/// A span that would be narrower than this part of the picture is drawn together with its neighbours.
const PARTS: f64 = 1200.0;
/// Spans that are told apart are so at most.
const MOST: usize = 6000;

/// The part of the time that is looked at.
#[derive(Debug, Deserialize)]
pub(in crate::dashboard) struct Window {
    pub(in crate::dashboard) from: Option<f64>,
    pub(in crate::dashboard) to: Option<f64>,
}

/// Who has a slot for a while; several, if they are too narrow to be told apart.
struct Block<'a> {
    span: &'a Span,
    from_s: f64,
    to_s: f64,
    several: u32,
}

/// Slots, and who had them in a window.
pub(in crate::dashboard) fn timeline(view: &View<'_>, window: &Window) -> Value {
    let model = view.model;
    let now_s = model.clock.now_s;
    let from_s = window.from.filter(|from| from.is_finite()).unwrap_or(0.0).max(0.0);
    let to_s = window.to.filter(|to| to.is_finite()).unwrap_or(now_s).max(from_s);
    let rows: Vec<(SlotId, Value)> = model
        .nodes
        .iter()
        .flat_map(|(node, known)| {
            (0..known.slots).map(move |index| {
                let name = if known.name.is_empty() { format!("node {node}") } else { known.name.clone() };
                let slot = SlotId { node: *node, index };
                (
                    slot,
                    json!({"slot": slot.to_string(), "node": node.0, "name": name, "type": known.gpu_type}),
                )
            })
        })
        .collect();
    let places: BTreeMap<SlotId, usize> =
        rows.iter().enumerate().map(|(place, (slot, _))| (*slot, place)).collect();
    let inside = |span: &&Span| span.from_s <= to_s && span.to_s.unwrap_or(now_s) >= from_s;
    let mut spans: Vec<&Span> = model.spans.iter().filter(inside).collect();
    let found = spans.len();
    spans.sort_by(|a, b| a.slot.cmp(&b.slot).then(a.from_s.total_cmp(&b.from_s)));
    let width_s = if found > MOST { (to_s - from_s) / PARTS } else { 0.0 };
    let blocks = merged(&spans, width_s, now_s);
    let blocks: Vec<Value> = blocks
        .iter()
        .filter_map(|block| {
            let Span { slot, trial, generation, formed_s, is_change, reason, .. } = block.span;
            let reason = reason.map(|reason| reason.to_string());
            let row = places.get(slot)?;
            Some(json!([
                row,
                trial.0,
                block.from_s,
                block.to_s,
                formed_s,
                is_change,
                generation.0,
                reason,
                block.several
            ]))
        })
        .collect();
    json!({
        "seconds": now_s,
        "rows": rows.into_iter().map(|(_, row)| row).collect::<Vec<_>>(),
        "columns": ["row", "trial", "from", "to", "formed", "change", "generation", "reason", "several"],
        "spans": blocks,
        "found": found,
        "resumed": model.clock.resumed,
    })
}

/// Spans, sorted by slot and time, where those narrower than `width_s` are joined with what follows at once.
fn merged<'a>(spans: &[&'a Span], width_s: f64, now_s: f64) -> Vec<Block<'a>> {
    let mut blocks: Vec<Block<'a>> = Vec::new();
    for span in spans {
        let to_s = span.to_s.unwrap_or(now_s);
        let narrow_s = |block: &Block<'_>| (block.to_s - block.from_s).min(to_s - span.from_s);
        match blocks.last_mut() {
            Some(block)
                if block.span.slot == span.slot
                    && narrow_s(block) < width_s
                    && span.from_s - block.to_s < width_s
                    && to_s - block.from_s < 2.0 * width_s =>
            {
                block.to_s = to_s;
                block.several += 1;
            }
            _ => blocks.push(Block { span, from_s: span.from_s, to_s, several: 1 }),
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Generation, NodeId, TrialId};

    fn span(index: u32, trial: u32, from_s: f64, to_s: f64) -> Span {
        Span {
            slot: SlotId { node: NodeId(0), index },
            trial: TrialId(trial),
            generation: Generation(1),
            from_s,
            formed_s: None,
            to_s: Some(to_s),
            is_change: false,
            reason: None,
        }
    }

    #[test]
    fn what_is_too_narrow_is_drawn_together() {
        let spans: Vec<Span> = (0..1000)
            .map(|number| span(number / 500, number, f64::from(number % 500), f64::from(number % 500 + 1)))
            .collect();
        let all: Vec<&Span> = spans.iter().collect();
        assert_eq!(merged(&all, 0.0, 1000.0).len(), 1000);
        let few = merged(&all, 10.0, 1000.0);
        assert!((50..=110).contains(&few.len()), "{}", few.len());
        assert_eq!(few.iter().map(|block| block.several).sum::<u32>(), 1000, "none is lost");
        assert!(few.iter().all(|block| block.to_s - block.from_s <= 20.0));
        let wide = [span(0, 0, 0.0, 400.0), span(0, 1, 400.0, 900.0)];
        assert_eq!(merged(&wide.iter().collect::<Vec<_>>(), 10.0, 1000.0).len(), 2);
    }
}
