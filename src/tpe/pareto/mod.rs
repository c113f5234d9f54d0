//! Several objectives: which results are better than which others, and how good a set of them is.
//!
//! Results are slices with one value for each objective; smaller is better. Those that hold a NaN, or another number
//! of values than the others, are better than nothing and worse than nothing.
//!
//! ```
//! use pollux_tune::tpe::pareto::{hypervolume, pareto_front};
//!
//! // Loss and cost of four trials.
//! let results = [[0.1, 9.0], [0.3, 2.0], [0.4, 3.0], [0.9, 1.0]];
//! assert_eq!(pareto_front(&results), [0, 1, 3], "the third is worse than the second in both");
//! // What they dominate within a loss below 1 and a cost below 10.
//! assert!((hypervolume(&results, &[1.0, 10.0]) - (0.9 * 1.0 + 0.7 * 7.0 + 0.1 * 1.0)).abs() < 1e-12);
//! ```

mod fronts;
mod subset;
mod volume;

pub(super) use fronts::Fronts;
pub(super) use subset::select;
pub use volume::hypervolume;

/// Whether the first result is at least as good as the second in all objectives, and better in one.
///
/// ```
/// use pollux_tune::tpe::pareto::dominates;
///
/// assert!(dominates(&[1.0, 2.0], &[1.0, 3.0]));
/// assert!(!dominates(&[1.0, 2.0], &[1.0, 2.0]), "they are the same");
/// assert!(!dominates(&[1.0, 2.0], &[0.0, 3.0]), "each is better in one");
/// ```
#[must_use]
pub fn dominates(a: &[f64], b: &[f64]) -> bool {
    let mut better = a.len() != b.len();
    if better {
        return false;
    }
    for (a, b) in a.iter().zip(b) {
        if a.is_nan() || b.is_nan() || a > b {
            return false;
        }
        better |= a < b;
    }
    better
}

/// The places of all results that no other dominates, in order. Equal ones are all there, and none that holds a NaN.
///
/// ```
/// use pollux_tune::tpe::pareto::pareto_front;
///
/// let results = vec![vec![2.0, 2.0], vec![1.0, 4.0], vec![f64::NAN, 0.0], vec![3.0, 2.0], vec![2.0, 2.0]];
/// assert_eq!(pareto_front(&results), [0, 1, 4]);
/// ```
#[must_use]
pub fn pareto_front<R: AsRef<[f64]>>(results: &[R]) -> Vec<usize> {
    let ranks = ranks(results, 1);
    (0..results.len()).filter(|&at| ranks[at] == Some(0)).collect()
}

/// For each result how many fronts are before its own: 0 for those that nothing dominates, 1 for those that
/// nothing but them dominates, and so on; none for those that hold a NaN.
///
/// ```
/// use pollux_tune::tpe::pareto::non_dominated_ranks;
///
/// let results = [[1.0, 2.0], [2.0, 1.0], [2.0, 2.0], [3.0, 3.0], [0.0, f64::NAN]];
/// assert_eq!(non_dominated_ranks(&results), [Some(0), Some(0), Some(1), Some(2), None]);
/// ```
#[must_use]
pub fn non_dominated_ranks<R: AsRef<[f64]>>(results: &[R]) -> Vec<Option<usize>> {
    ranks(results, usize::MAX)
}

/// The ranks below a limit. Zhang et al. 2015, "An Efficient Approach to Nondominated Sorting": in lexicographic order
/// nothing dominates what comes before it, so each joins the first front that does not dominate it.
fn ranks<R: AsRef<[f64]>>(results: &[R], limit: usize) -> Vec<Option<usize>> {
    let of = |at: usize| results[at].as_ref();
    let mut order: Vec<usize> = (0..results.len()).filter(|&at| !of(at).iter().any(|v| v.is_nan())).collect();
    order.sort_by(|&a, &b| lexicographic(of(a), of(b)));
    let (mut fronts, mut ranks) = (Vec::<Vec<usize>>::new(), vec![None; results.len()]);
    for at in order {
        let dominated = |front: &Vec<usize>| {
            // Of two objectives, the last of a front has the best second value.
            let reach = if of(at).len() == 2 { 1 } else { front.len() };
            front.iter().rev().take(reach).any(|&other| dominates(of(other), of(at)))
        };
        let rank = fronts.partition_point(dominated);
        if rank == limit {
            continue;
        }
        if rank == fronts.len() {
            fronts.push(Vec::new());
        }
        fronts[rank].push(at);
        ranks[at] = Some(rank);
    }
    ranks
}

fn lexicographic(a: &[f64], b: &[f64]) -> std::cmp::Ordering {
    a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal)
}

#[cfg(test)]
mod tests;
