use super::dominates;

/// How much of the space of objectives is at least as good as a reference point and not better than the results: the
/// larger, the better the set. Results that are not better than the reference in all objectives add nothing.
/// It is infinite if a result or the reference is.
///
/// Exact. Two objectives take n log n steps. More take the recursion of While, Bradstreet and Barone 2012, "A Fast
/// Way of Calculating Exact Hypervolumes", which is fast for some hundred results of three or four
/// objectives and slows down quickly with more objectives.
///
/// ```
/// use pollux_tune::tpe::pareto::hypervolume;
///
/// let boxes = [[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]];
/// // 2 x 2 x 1 and 1 x 1 x 2, which share 1 x 1 x 1.
/// assert_eq!(hypervolume(&boxes, &[2.0, 2.0, 2.0]), 4.0 + 2.0 - 1.0);
/// ```
#[must_use]
pub fn hypervolume<R: AsRef<[f64]>>(results: &[R], reference: &[f64]) -> f64 {
    let inside = |result: &&[f64]| {
        result.len() == reference.len() && result.iter().zip(reference).all(|(value, limit)| value < limit)
    };
    let mut inside: Vec<&[f64]> = results.iter().map(AsRef::as_ref).filter(inside).collect();
    if inside.is_empty() || reference.is_empty() {
        return 0.0;
    }
    let finite = inside.iter().chain(&[reference]).all(|values| values.iter().all(|value| value.is_finite()));
    if finite { volume(&mut inside, reference) } else { f64::INFINITY }
}

/// The volume that only a result has, next to others. All are better than the reference.
pub(super) fn exclusive(result: &[f64], others: &[&[f64]], reference: &[f64]) -> f64 {
    let sides = result.iter().zip(reference).map(|(value, limit)| limit - value);
    let own = sides.product::<f64>();
    let limited = limited(result, others);
    let mut shared = without_dominated(&limited, result.len());
    if shared.is_empty() { own } else { own - volume(&mut shared, reference) }
}

/// What each of the others shares with a result.
fn limited(result: &[f64], others: &[&[f64]]) -> Vec<f64> {
    others.iter().flat_map(|other| result.iter().zip(*other).map(|(a, b)| a.max(*b))).collect()
}

/// Splits results and leaves out those that another one dominates or equals.
fn without_dominated(flat: &[f64], objectives: usize) -> Vec<&[f64]> {
    let mut kept: Vec<&[f64]> = Vec::new();
    for result in flat.chunks_exact(objectives) {
        if kept.iter().any(|other| other == &result || dominates(other, result)) {
            continue;
        }
        kept.retain(|other| !dominates(result, other));
        kept.push(result);
    }
    kept
}

/// The volume of results of as many objectives as the reference has, at least one.
fn volume(results: &mut [&[f64]], reference: &[f64]) -> f64 {
    let last = reference.len() - 1;
    match reference.len() {
        1 => reference[0] - results.iter().map(|result| result[0]).fold(f64::INFINITY, f64::min),
        2 => area(results, reference),
        _ => {
            // Whatever a result shares with those behind it is as deep as itself in the last objective.
            results.sort_by(|a, b| b[last].total_cmp(&a[last]));
            let cut: Vec<&[f64]> = results.iter().map(|result| &result[..last]).collect();
            let slice = |at: usize| {
                let depth = reference[last] - results[at][last];
                depth * exclusive(cut[at], &cut[at + 1..], &reference[..last])
            };
            (0..results.len()).map(slice).sum()
        }
    }
}

/// Two objectives: a sweep along the first.
fn area(results: &mut [&[f64]], reference: &[f64]) -> f64 {
    results.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let (mut area, mut min) = (0.0, reference[1]);
    for result in results {
        if result[1] < min {
            area += (reference[0] - result[0]) * (min - result[1]);
            min = result[1];
        }
    }
    area
}
