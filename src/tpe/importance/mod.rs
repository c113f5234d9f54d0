//! Which parameters matter.

mod bins;
mod tree;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use self::{
    bins::{Bins, INACTIVE, Mask},
    tree::{Leaf, grow},
};
use super::Error;
use crate::space::{Dims, Point};

/// Fewer finished trials say nothing.
const MIN_TRIALS: usize = 10;
const TREES: usize = 64;
/// The largest number of trials of a tree, which bounds its cost.
const MAX_TRIALS: usize = 2000;

/// How much of the variance of the results each parameter explains by itself: one share for each, which add up to
/// at most 1. The rest is explained only by several parameters together.
///
/// Functional analysis of variance on a random forest (Hutter, Hoos and Leyton-Brown 2014, "An Efficient Approach for
/// Assessing Hyperparameter Importance"): 64 regression trees predict the value anywhere in the space, and
/// the variance is that of their predictions over the whole space, not only where trials are. It is exact for
/// each tree; the shares are means over the trees. A tree sees at most 2 000 trials.
///
/// - Trials whose value is not finite are left out. Give NaN for those that failed or were stopped: their
///   values cannot be compared.
/// - A conditional parameter counts where it is active: its variance there, times the share of the space where it is.
///   What it means to have it active at all counts for its parent.
/// - If all values are equal, all shares are 0.
/// - A few huge values hide everything else. Take their logarithms, or NaN for them.
/// - Constraints are not looked at: the whole space is as if it were feasible.
///
/// It is an error if there is not one value for each point, if a point is not in the space, or if fewer than 10
/// trials have finished.
///
/// ```
/// use pollux_tune::space::{Dim, Dims};
/// use pollux_tune::tpe::importance;
/// use rand::{RngExt, SeedableRng};
/// use rand_chacha::ChaCha8Rng;
///
/// let dims = Dims::flat(vec![Dim::Continuous; 3])?;
/// let rng = &mut ChaCha8Rng::seed_from_u64(1);
/// let points: Vec<_> = (0..200).map(|_| dims.build(|_, dim| dim.at(rng.random()))).collect();
/// let value = |point: &Vec<Option<f64>>| 3.0 * point[0].unwrap_or(0.0) + point[1].unwrap_or(0.0);
/// let values: Vec<f64> = points.iter().map(value).collect();
/// let shares = importance(&dims, &points, &values, rng)?;
/// // Their variances are as 9 to 1 to 0.
/// assert!(shares[0] > 0.8 && shares[1] < 0.15 && shares[2] < 0.02, "{shares:?}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn importance(
    dims: &Dims,
    points: &[Point],
    values: &[f64],
    rng: &mut ChaCha8Rng,
) -> Result<Vec<f64>, Error> {
    if points.len() != values.len() {
        return Err(Error::Values { points: points.len(), values: values.len() });
    }
    if let Some(at) = points.iter().position(|point| !dims.contains(point)) {
        return Err(Error::Outside(at));
    }
    let finished: Vec<usize> = (0..values.len()).filter(|&at| values[at].is_finite()).collect();
    if finished.len() < MIN_TRIALS {
        return Err(Error::TooFewTrials { given: finished.len(), min: MIN_TRIALS });
    }
    let points: Vec<&Point> = finished.iter().map(|&at| &points[at]).collect();
    let values = scaled(finished.iter().map(|&at| values[at]).collect());
    let bins = Bins::new(dims, &points);
    let (mut shares, mut trees) = (vec![0.0; dims.len()], 0.0);
    for _ in 0..TREES {
        let drawn = (0..values.len().min(MAX_TRIALS)).map(|_| rng.random_range(0..values.len())).collect();
        if let Some(of_tree) = main_effects(&bins, &grow(&bins, &values, drawn)) {
            trees += 1.0;
            shares.iter_mut().zip(of_tree).for_each(|(share, of_tree)| *share += of_tree);
        }
    }
    // Where no tree found a difference, nothing matters.
    Ok(shares.iter().map(|share| if trees > 0.0 { share / trees } else { 0.0 }).collect())
}

/// From 0 to 1, so that squares neither overflow nor vanish. Halves do not overflow.
fn scaled(values: Vec<f64>) -> Vec<f64> {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min) / 2.0;
    let range = values.iter().copied().fold(f64::NEG_INFINITY, f64::max) / 2.0 - low;
    values.into_iter().map(|value| if range > 0.0 { (value / 2.0 - low) / range } else { 0.0 }).collect()
}

/// The share of the variance of a tree that each parameter explains by itself; none if there is no variance.
fn main_effects(bins: &Bins, leaves: &[Leaf]) -> Option<Vec<f64>> {
    let weights: Vec<f64> = leaves.iter().map(|leaf| bins.measure(&leaf.masks)).collect();
    let weighted = || leaves.iter().zip(&weights);
    let mean: f64 = weighted().map(|(leaf, weight)| weight * leaf.value).sum();
    let square = |value: f64| (value - mean) * (value - mean);
    let variance: f64 = weighted().map(|(leaf, weight)| weight * square(leaf.value)).sum();
    if variance <= f64::EPSILON * f64::EPSILON {
        return None;
    }
    Some((0..bins.axes.len()).map(|dim| main_effect(bins, leaves, &weights, dim) / variance).collect())
}

/// The variance of the mean over everything but one parameter, where it is active, times the share where it is.
/// `weights` are the shares of the leaves of the space.
fn main_effect(bins: &Bins, leaves: &[Leaf], weights: &[f64], dim: usize) -> f64 {
    let axis = &bins.axes[dim];
    let only = |masks: &[Mask], mask: Mask| {
        let mut masks = masks.to_vec();
        masks[dim] &= mask;
        bins.measure(&masks)
    };
    let everything = bins.everything();
    let active = only(&everything, !(1 << INACTIVE));
    // The sum over all leaves of their value times what they have of a bin.
    let mut sums = [0.0; INACTIVE];
    for (leaf, &weight) in leaves.iter().zip(weights) {
        let mask = leaf.masks[dim];
        if axis.is_parent() {
            axis.bins(mask).for_each(|bin| sums[bin] += leaf.value * only(&leaf.masks, 1 << bin));
            continue;
        }
        // What nothing depends on is independent of the rest.
        let weight = if axis.root { weight } else { only(&leaf.masks, !(1 << INACTIVE)) };
        let width = axis.measure(mask);
        if width > 0.0 {
            let density = leaf.value * weight / width;
            axis.bins(mask).for_each(|bin| sums[bin] += density * axis.measure(1 << bin));
        }
    }
    let mean = sums.iter().sum::<f64>() / active;
    let bins = axis.bins(everything[dim]).map(|bin| (sums[bin], active * axis.measure(1 << bin)));
    let deviations = bins.filter(|(_, weight)| *weight > 0.0).map(|(sum, weight)| {
        let deviation = sum / weight - mean;
        weight * deviation * deviation
    });
    deviations.sum()
}

#[cfg(test)]
mod tests;
