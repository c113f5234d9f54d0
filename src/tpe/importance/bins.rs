//! The space in bins: what a tree can tell apart, and how much of the space each bin is.

use crate::space::{Dim, Dims, Point};

/// A set of bins of one parameter, one bit for each.
pub(super) type Mask = u64;

/// The bin of points where a parameter is inactive; other bins are below.
pub(super) const INACTIVE: usize = 63;

/// The bins of one parameter.
#[derive(Debug)]
pub(super) struct Axis {
    /// Whether the bins are in order.
    pub(super) ordered: bool,
    /// Whether it is always active.
    pub(super) root: bool,
    /// The share of the values in each bin.
    measure: Vec<f64>,
    /// The lower ends of all bins but the first.
    edges: Vec<f64>,
    /// Parameters that depend on this one, with the share of each bin where they are active.
    children: Vec<(usize, Vec<f64>)>,
}

/// The bins of all parameters, and those of the trials.
///
/// The measure of the space is that of a random draw: each parameter uniform, once it is known to be active.
#[derive(Debug)]
pub(super) struct Bins {
    pub(super) axes: Vec<Axis>,
    /// The bin of each parameter of each trial.
    pub(super) trials: Vec<Vec<usize>>,
}

impl Bins {
    pub(super) fn new(dims: &Dims, points: &[&Point]) -> Self {
        let values = |dim: usize| points.iter().filter_map(|point| point[dim]).collect();
        let mut axes: Vec<Axis> =
            dims.iter().enumerate().map(|(dim, parameter)| Axis::new(parameter, values(dim))).collect();
        for dim in 0..dims.len() {
            let Some(parent) = dims.parent(dim) else { continue };
            axes[dim].root = false;
            let shares = axes[parent.dim].shares(dims.dim(parent.dim), &parent.choices);
            axes[parent.dim].children.push((dim, shares));
        }
        let bin = |(axis, value): (&Axis, &Option<f64>)| value.map_or(INACTIVE, |value| axis.bin(value));
        let trials = points.iter().map(|point| axes.iter().zip(*point).map(bin).collect()).collect();
        Self { axes, trials }
    }

    /// All bins of each parameter, and that of inactive points.
    pub(super) fn everything(&self) -> Vec<Mask> {
        self.axes.iter().map(|axis| lowest(axis.measure.len()) | 1 << INACTIVE).collect()
    }

    /// How much of the space is in a box.
    pub(super) fn measure(&self, masks: &[Mask]) -> f64 {
        let roots = (0..self.axes.len()).filter(|&dim| self.axes[dim].root);
        roots.map(|root| self.active(root, masks)).product()
    }

    /// How much is in a box of an active parameter and of those that depend on it.
    fn active(&self, dim: usize, masks: &[Mask]) -> f64 {
        let axis = &self.axes[dim];
        let of_child = |bin: usize, &(child, ref shares): &(usize, Vec<f64>)| match shares[bin] {
            0.0 => self.inactive(child, masks),
            share => share * self.active(child, masks) + (1.0 - share) * self.inactive(child, masks),
        };
        let of_bin = |bin: usize| {
            axis.children.iter().map(|child| of_child(bin, child)).product::<f64>() * axis.measure[bin]
        };
        axis.bins(masks[dim]).map(of_bin).sum()
    }

    /// 1 if a box has room for a parameter that is inactive, and so are those that depend on it; else 0.
    fn inactive(&self, dim: usize, masks: &[Mask]) -> f64 {
        let room = masks[dim] >> INACTIVE & 1 == 1;
        let of_children = self.axes[dim].children.iter().map(|(child, _)| self.inactive(*child, masks));
        if room { of_children.product() } else { 0.0 }
    }
}

impl Axis {
    /// A bin for each value if there are few, otherwise bins with about as many trials each.
    fn new(parameter: Dim, mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let end = parameter.cells().map_or(1.0, |count| count as f64);
        let edges = match parameter {
            Dim::Continuous => quantiles(&values),
            _ if end <= INACTIVE as f64 => (1..end as u32).map(f64::from).collect(),
            // Cells reach from their number to the next one.
            _ => {
                let mut edges: Vec<f64> = quantiles(&values).into_iter().map(f64::ceil).collect();
                edges.dedup();
                edges
            }
        };
        let ends = edges.iter().copied().chain([end]);
        let starts = [0.0].into_iter().chain(edges.iter().copied());
        let measure = starts.zip(ends).map(|(start, end_of_bin)| (end_of_bin - start) / end).collect();
        let ordered = !matches!(parameter, Dim::Categorical { .. });
        Self { ordered, root: true, measure, edges, children: Vec::new() }
    }

    fn bin(&self, value: f64) -> usize {
        self.edges.partition_point(|edge| *edge <= value)
    }

    /// The share that these cells of a finite parameter have of each bin.
    fn shares(&self, parameter: Dim, cells: &[u64]) -> Vec<f64> {
        let mut cells = cells.to_vec();
        cells.sort_unstable();
        cells.dedup();
        let mut counts = vec![0.0; self.measure.len()];
        for cell in cells {
            counts[self.bin(cell as f64)] += 1.0;
        }
        let total = parameter.cells().map_or(1.0, |count| count as f64);
        counts.iter().zip(&self.measure).map(|(count, measure)| count / (measure * total).round()).collect()
    }

    /// The bins of a set where the parameter is active.
    pub(super) fn bins(&self, mask: Mask) -> impl Iterator<Item = usize> + use<> {
        let mut left = mask & lowest(self.measure.len());
        std::iter::from_fn(move || {
            let bin = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(bin)
        })
    }

    pub(super) fn is_parent(&self) -> bool {
        !self.children.is_empty()
    }

    /// The share of the values in a set of bins.
    pub(super) fn measure(&self, mask: Mask) -> f64 {
        self.bins(mask).map(|bin| self.measure[bin]).sum()
    }
}

/// The lowest `count` bits, at most 63.
pub(super) fn lowest(count: usize) -> Mask {
    (1 << count) - 1
}

/// At most 62 values between sorted ones, with about as many of them between two.
fn quantiles(sorted: &[f64]) -> Vec<f64> {
    let mut distinct = sorted.to_vec();
    distinct.dedup();
    let of = if distinct.len() <= INACTIVE { &distinct } else { sorted };
    let bins = of.len().min(INACTIVE);
    let places = (1..bins).map(|bin| bin * of.len() / bins).filter(|&place| of[place - 1] < of[place]);
    let mut edges: Vec<f64> = places.map(|place| f64::midpoint(of[place - 1], of[place])).collect();
    edges.dedup();
    edges
}
