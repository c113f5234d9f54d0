//! What is where on the page.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    chart::Chart,
    history::{History, Occupancy},
};
use crate::{
    cli::plot::axis::{multiples, plain, round_step},
    ids::{NodeId, SlotId, TrialId},
};

pub(super) const WIDTH: f64 = 1200.0;
pub(super) const LEFT: f64 = 118.0;
const RIGHT: f64 = 150.0;
pub(super) const TOP: f64 = 104.0;
/// All rows together, as far as they are neither too high nor too low then.
const ROWS: f64 = 560.0;
const CHART: f64 = 132.0;
const BELOW: f64 = 50.0;
/// The minimum width of a bar, with this number of slots or fewer: what is narrower is drawn as a part of what comes next.
const MIN_WIDTH: (f64, f64) = (1.0, 64.0);
/// Changes of a group that are closer to each other cannot be distinguished.
const CHANGE_DISTANCE_MIN: f64 = 4.0;
/// The smallest number that can be read.
const MIN_FONT: f64 = 7.0;
const MAX_FONT: f64 = 13.0;
/// Of the height of a bar, for its number.
const SHARE: f64 = 0.8;
/// Paul Tol's muted scheme, which colour-blind readers can distinguish, and whether white is read better on it.
pub(super) const COLORS: [(&str, bool); 9] = [
    ("#CC6677", false),
    ("#332288", true),
    ("#DDCC77", false),
    ("#117733", true),
    ("#88CCEE", false),
    ("#882255", true),
    ("#44AA99", false),
    ("#999933", false),
    ("#AA4499", true),
];

/// The number of a trial on its color, if that is not a dark one.
pub(super) const DARK: &str = "#000000";

/// A trial on a slot for a while, in pixels.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bar {
    pub(super) trial: TrialId,
    pub(super) left: f64,
    pub(super) right: f64,
    /// Where its group changed.
    pub(super) changes: Vec<f64>,
}

/// The number of a trial on its bars.
#[derive(Debug, PartialEq)]
pub(super) struct Label {
    pub(super) trial: TrialId,
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) size: f64,
}

/// A number below the page.
pub(super) struct Tick {
    pub(super) x: f64,
    pub(super) label: String,
}

/// Everything that has a place.
pub(super) struct Layout {
    /// The upper edge of each slot.
    pub(super) rows: BTreeMap<SlotId, f64>,
    /// From one row to the next.
    pub(super) row_height: f64,
    /// A little less than that of a row.
    pub(super) bar_height: f64,
    pub(super) bars: BTreeMap<SlotId, Vec<Bar>>,
    pub(super) labels: Vec<Label>,
    pub(super) colors: BTreeMap<TrialId, usize>,
    pub(super) chart: Option<Chart>,
    pub(super) ticks: Vec<Tick>,
    /// Of time.
    pub(super) unit: &'static str,
    /// Where all diagrams end.
    pub(super) end: f64,
    pub(super) height: f64,
    scale: f64,
}

impl Layout {
    pub(super) fn new(history: &History) -> Self {
        let length_s = if history.length_s > 0.0 { history.length_s } else { 1.0 };
        let scale = (WIDTH - LEFT - RIGHT) / length_s;
        let (rows, row_height, bottom) = rows(history);
        let gap = if row_height < 6.0 { 0.5 } else { 1.0 };
        let min_width = MIN_WIDTH.0 * (rows.len() as f64 / MIN_WIDTH.1).max(1.0);
        let mut occupancies: BTreeMap<SlotId, Vec<&Occupancy>> = BTreeMap::new();
        for occupancy in &history.occupancies {
            occupancies.entry(occupancy.at.slot).or_default().push(occupancy);
        }
        let bars: BTreeMap<_, _> = occupancies
            .into_iter()
            .map(|(slot, occupancies)| (slot, bars(&occupancies, scale, min_width)))
            .collect();
        let chart = Chart::new(history, bottom + 26.0, CHART, |at_s| LEFT + scale * at_s);
        let end = chart.as_ref().map_or(bottom, |chart| chart.top + chart.height);
        let (unit, unit_s) = unit(length_s);
        let length = length_s / unit_s;
        let ticks = multiples(0.0, length, round_step(length / 10.0));
        let ticks =
            ticks.into_iter().map(|value| Tick { x: LEFT + scale * unit_s * value, label: plain(value) });
        Self {
            labels: labels(&rows, &bars, row_height - gap),
            colors: colors(history),
            bar_height: row_height - gap,
            ticks: ticks.collect(),
            height: end + BELOW,
            rows,
            row_height,
            bars,
            chart,
            unit,
            end,
            scale,
        }
    }

    /// Where a time is.
    pub(super) fn x(&self, at_s: f64) -> f64 {
        LEFT + self.scale * at_s
    }
}

/// Seconds, minutes, hours or days.
fn unit(length_s: f64) -> (&'static str, f64) {
    const UNITS: [(&str, f64); 3] = [("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)];
    UNITS.into_iter().find(|(_, unit_s)| length_s >= 3.0 * unit_s).unwrap_or(("seconds", 1.0))
}

/// The upper edge of each slot, the height of a row, and where the last one ends.
fn rows(history: &History) -> (BTreeMap<SlotId, f64>, f64, f64) {
    let count: u32 = history.nodes.values().map(|node| node.slots).sum();
    let height = (ROWS / f64::from(count.max(1))).clamp(4.0, 26.0);
    let between = height.min(8.0);
    let (mut rows, mut top) = (BTreeMap::new(), TOP);
    for (&node, known) in &history.nodes {
        for index in 0..known.slots {
            rows.insert(SlotId { node, index }, top);
            top += height;
        }
        top += between;
    }
    (rows, height, (top - between).max(TOP + 20.0))
}

/// The bars of a slot: generations of a trial that follow each other are one, and so is what is too narrow to be seen.
fn bars(occupancies: &[&Occupancy], scale: f64, min_width: f64) -> Vec<Bar> {
    let mut bars: Vec<Bar> = Vec::new();
    for occupancy in occupancies {
        let (left, right) = (LEFT + scale * occupancy.at.from_s, LEFT + scale * occupancy.at.to_s);
        let bar = Bar { trial: occupancy.trial, left, right, changes: Vec::new() };
        match bars.last_mut() {
            Some(last) if last.trial == bar.trial && left - last.right < 0.05 => {
                last.right = right;
                if left - last.changes.last().copied().unwrap_or(last.left) > CHANGE_DISTANCE_MIN {
                    last.changes.push(left);
                }
            }
            Some(last) if last.right - last.left < min_width && left - last.right < min_width => {
                *last = Bar { left: last.left, ..bar };
            }
            _ => bars.push(bar),
        }
    }
    for bar in &mut bars {
        bar.right = bar.right.max(bar.left + min_width);
        // Behind the last one nothing can be seen.
        bar.changes.retain(|change| bar.right - change > 1.0);
    }
    bars
}

/// Equal bars one below the other.
struct Block<'a> {
    bar: &'a Bar,
    /// The last row so far.
    index: u32,
    /// The upper edges of its rows.
    tops: Vec<f64>,
}

/// Numbers on bars that are wide enough, once for equal bars one below the other.
fn labels(rows: &BTreeMap<SlotId, f64>, bars: &BTreeMap<SlotId, Vec<Bar>>, bar_height: f64) -> Vec<Label> {
    // Tenths of a pixel, as they are drawn.
    let tenths = |x: f64| (10.0 * x).round() as i64;
    let mut open: BTreeMap<(NodeId, TrialId, i64, i64), Block> = BTreeMap::new();
    let mut labels = Vec::new();
    for (slot, bars) in bars {
        let Some(&top) = rows.get(slot) else { continue };
        for bar in bars {
            let key = (slot.node, bar.trial, tenths(bar.left), tenths(bar.right));
            let block = open.entry(key).or_insert_with(|| Block { bar, index: slot.index, tops: Vec::new() });
            if slot.index > block.index + 1 {
                labels.extend(label(block, bar_height));
                block.tops.clear();
            }
            block.index = slot.index;
            block.tops.push(top);
        }
    }
    labels.extend(open.values().filter_map(|block| label(block, bar_height)));
    labels
}

/// The number on a block, if it can be read there.
fn label(block: &Block, bar_height: f64) -> Option<Label> {
    let Block { bar, tops, .. } = block;
    let (first, last) = (*tops.first()?, *tops.last()?);
    let digits = 0.6 * bar.trial.to_string().len() as f64;
    let edges: Vec<f64> = [&[bar.left][..], &bar.changes, &[bar.right]].concat();
    let widest = edges.windows(2).max_by(|a, b| (a[1] - a[0]).total_cmp(&(b[1] - b[0])))?;
    // Between the marks, if there is room.
    let between = widest[1] - widest[0] >= MAX_FONT * digits + 4.0;
    let (left, right) = if between { (widest[0], widest[1]) } else { (bar.left, bar.right) };
    // On one row, if that is high enough.
    let on_row = SHARE * bar_height >= MIN_FONT + 1.0;
    let height = if on_row { bar_height } else { last - first + bar_height };
    let middle = if on_row { tops[(tops.len() - 1) / 2] } else { first.midpoint(last) } + bar_height / 2.0;
    let size = MAX_FONT.min(SHARE * height).min((right - left - 4.0) / digits);
    let (trial, x) = (bar.trial, left.midpoint(right));
    (size >= MIN_FONT).then_some(Label { trial, x, y: middle + 0.36 * size, size })
}

/// The next color for each trial that no trial next to it has, as long as there are enough.
fn colors(history: &History) -> BTreeMap<TrialId, usize> {
    let mut ended_s: BTreeMap<TrialId, f64> = BTreeMap::new();
    for occupancy in &history.occupancies {
        let last_s = ended_s.entry(occupancy.trial).or_default();
        *last_s = last_s.max(occupancy.at.to_s);
    }
    let (mut colors, mut next): (BTreeMap<TrialId, usize>, usize) = (BTreeMap::new(), 0);
    let mut living: BTreeMap<TrialId, f64> = BTreeMap::new();
    let waiting = history.trials.keys().map(|trial| (history.length_s, *trial));
    let begun = history.occupancies.iter().map(|occupancy| (occupancy.at.from_s, occupancy.trial));
    for (from_s, trial) in begun.chain(waiting) {
        if colors.contains_key(&trial) {
            continue;
        }
        living.retain(|_, ended_s| *ended_s > from_s);
        let taken: BTreeSet<usize> = living.keys().map(|other| colors[other]).collect();
        let order = (next..next + COLORS.len()).map(|color| color % COLORS.len());
        let color = order.clone().find(|color| !taken.contains(color)).unwrap_or(next % COLORS.len());
        colors.insert(trial, color);
        living.insert(trial, ended_s.get(&trial).copied().unwrap_or_default());
        next = color + 1;
    }
    colors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::timeline::history::SlotInterval;

    fn occupancy(trial: u32, from_s: f64, to_s: f64) -> Occupancy {
        let slot = SlotId { node: NodeId(0), index: 0 };
        Occupancy { at: SlotInterval { slot, from_s, to_s }, trial: TrialId(trial), formed_s: from_s }
    }

    fn drawn(occupancies: &[Occupancy], min_width: f64) -> Vec<(u32, f64, f64, Vec<f64>)> {
        let from_left = |x: f64| x - LEFT;
        bars(&occupancies.iter().collect::<Vec<_>>(), 1.0, min_width)
            .into_iter()
            .map(|Bar { trial, left, right, changes }| {
                (trial.0, from_left(left), from_left(right), changes.into_iter().map(from_left).collect())
            })
            .collect()
    }

    #[test]
    fn generations_of_a_trial_are_one_bar_with_marks() {
        let occupancies = [
            occupancy(0, 0.0, 10.0),
            occupancy(0, 10.0, 11.0),
            occupancy(0, 11.0, 20.0),
            occupancy(1, 20.0, 30.0),
        ];
        assert_eq!(drawn(&occupancies, 1.0), [(0, 0.0, 20.0, vec![10.0]), (1, 20.0, 30.0, vec![])]);
        let back = [occupancy(0, 0.0, 10.0), occupancy(0, 12.0, 20.0)];
        assert_eq!(drawn(&back, 1.0), [(0, 0.0, 10.0, vec![]), (0, 12.0, 20.0, vec![])]);
    }

    #[test]
    fn what_is_too_narrow_is_a_part_of_what_follows() {
        let crowd: Vec<Occupancy> =
            (0..100).map(|k| occupancy(k, f64::from(k) / 8.0, f64::from(k + 1) / 8.0)).collect();
        let bars = drawn(&crowd, 1.0);
        assert_eq!(bars.len(), 13, "{bars:?}");
        assert_eq!((bars[0].0, bars[0].1, bars[0].2), (7, 0.0, 1.0));
        // One that is alone is drawn wide enough to be seen.
        assert_eq!(drawn(&[occupancy(0, 5.0, 5.0), occupancy(1, 9.0, 12.0)], 1.0)[0], (0, 5.0, 6.0, vec![]));
    }

    #[test]
    fn times_have_the_unit_that_suits_them() {
        let units = [0.5, 179.0, 180.0, 10_799.0, 10_800.0, 259_200.0].map(|length_s| unit(length_s).0);
        assert_eq!(units, ["seconds", "seconds", "minutes", "minutes", "hours", "days"]);
    }

    /// WCAG 2.2: the relative luminances of two colors, compared.
    #[test]
    fn numbers_can_be_read_on_every_color() {
        let luminance = |color: &str| -> f64 {
            let channel = |place: usize| {
                let value = u8::from_str_radix(&color[place..place + 2], 16).unwrap();
                let value = f64::from(value) / 255.0;
                if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
        };
        for (color, white) in COLORS {
            let text = if white { "#ffffff" } else { DARK };
            let (one, other) = (luminance(color), luminance(text));
            let contrast = (one.max(other) + 0.05) / (one.min(other) + 0.05);
            assert!(contrast >= 4.5, "{color}: {contrast}");
        }
    }
}
