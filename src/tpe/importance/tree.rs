//! Regression trees over bins (Breiman et al. 1984).

use super::bins::{Bins, INACTIVE, Mask, lowest};

/// A box of the space with the mean of its trials.
#[derive(Debug)]
pub(super) struct Leaf {
    pub(super) masks: Vec<Mask>,
    pub(super) value: f64,
}

/// A part of the trials and the box it is in.
struct Node {
    masks: Vec<Mask>,
    trials: Vec<usize>,
}

/// The best way to cut a node in two, so far.
struct Split {
    dim: usize,
    /// The bins of the one part.
    left: Mask,
    /// The squared sums of both parts over their sizes, added up: the larger, the less is left unexplained.
    gain: f64,
}

/// Numbers of trials and sums of their values by bin.
struct Histogram {
    counts: [f64; INACTIVE + 1],
    sums: [f64; INACTIVE + 1],
}

/// Grows a tree until the trials of each leaf are all in the same bins or have all the same value. Trials may be
/// repeated.
pub(super) fn grow(bins: &Bins, values: &[f64], trials: Vec<usize>) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    let mut open = vec![Node { masks: bins.everything(), trials }];
    while let Some(node) = open.pop() {
        let Some(split) = split(bins, values, &node) else {
            let sum: f64 = node.trials.iter().map(|&trial| values[trial]).sum();
            leaves.push(Leaf { masks: node.masks, value: sum / node.trials.len() as f64 });
            continue;
        };
        let is_left = |&&trial: &&usize| split.left >> bins.trials[trial][split.dim] & 1 == 1;
        let (left, right) = node.trials.iter().partition(is_left);
        for (trials, mask) in [(left, split.left), (right, !split.left)] {
            let mut masks = node.masks.clone();
            masks[split.dim] &= mask;
            open.push(Node { masks, trials });
        }
    }
    leaves
}

fn split(bins: &Bins, values: &[f64], node: &Node) -> Option<Split> {
    let first = values[*node.trials.first()?];
    if node.trials.iter().all(|&trial| (values[trial] - first).abs() <= f64::EPSILON) {
        return None;
    }
    let mut best: Option<Split> = None;
    for (dim, axis) in bins.axes.iter().enumerate() {
        let histogram = Histogram::new(bins, values, &node.trials, dim);
        let mut seen: Vec<usize> = (0..=INACTIVE).filter(|&bin| histogram.counts[bin] > 0.0).collect();
        if !axis.ordered {
            seen.sort_by(|&a, &b| histogram.mean(a).total_cmp(&histogram.mean(b)));
        }
        let mut orders = vec![seen];
        if axis.ordered && orders[0].last() == Some(&INACTIVE) {
            // Those where it is inactive may be with the small values or with the large ones.
            let mut first = orders[0].clone();
            first.rotate_right(1);
            orders.push(first);
        }
        for order in orders {
            let Some((cut, gain)) = histogram.best_cut(&order) else { continue };
            if best.as_ref().is_none_or(|best| gain > best.gain) {
                let left = histogram.left(node.masks[dim], axis.ordered, &order, cut);
                best = Some(Split { dim, left, gain });
            }
        }
    }
    best
}

impl Histogram {
    fn new(bins: &Bins, values: &[f64], trials: &[usize], dim: usize) -> Self {
        let mut histogram = Self { counts: [0.0; INACTIVE + 1], sums: [0.0; INACTIVE + 1] };
        for &trial in trials {
            let bin = bins.trials[trial][dim];
            histogram.counts[bin] += 1.0;
            histogram.sums[bin] += values[trial];
        }
        histogram
    }

    fn mean(&self, bin: usize) -> f64 {
        self.sums[bin] / self.counts[bin]
    }

    /// How many of the bins in this order go to the left, and what is gained.
    fn best_cut(&self, order: &[usize]) -> Option<(usize, f64)> {
        let total: f64 = order.iter().map(|&bin| self.counts[bin]).sum();
        let sum: f64 = order.iter().map(|&bin| self.sums[bin]).sum();
        let (mut count, mut left) = (0.0, 0.0);
        let mut best: Option<(usize, f64)> = None;
        for (at, &bin) in order.iter().enumerate().take(order.len().saturating_sub(1)) {
            count += self.counts[bin];
            left += self.sums[bin];
            let gain = left * left / count + (sum - left) * (sum - left) / (total - count);
            if best.is_none_or(|(_, max)| gain > max) {
                best = Some((at + 1, gain));
            }
        }
        best
    }

    /// The bins on the left of a cut. Those without a trial go with their neighbours if they have an order,
    /// otherwise with the larger part.
    fn left(&self, mask: Mask, ordered: bool, order: &[usize], cut: usize) -> Mask {
        let set = |bins: &[usize]| bins.iter().fold(0, |mask: Mask, bin| mask | 1 << bin);
        let count = |bins: &[usize]| bins.iter().map(|&bin| self.counts[bin]).sum::<f64>();
        let (left, right) = (set(&order[..cut]), set(&order[cut..]));
        let inactive: Mask = 1 << INACTIVE;
        let largest = if count(&order[..cut]) >= count(&order[cut..]) { mask & !right } else { left };
        let (below, above) = (left & !inactive, right & !inactive);
        if !ordered || below == 0 || above == 0 {
            return largest;
        }
        let last = below.ilog2() as usize;
        let end = usize::midpoint(last + 1, above.trailing_zeros() as usize);
        mask & lowest(end) | largest & inactive
    }
}
