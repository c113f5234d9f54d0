//! A minimizer for smooth functions in a box.
//!
//! L-BFGS on the coordinates that are not pressed against the box, with a projected path and a counted line search
//! (Bertsekas 1982, "Projected Newton methods"; Nocedal and Wright 2006, chapter 7). All loops are counted: the line
//! searches of our optimization library were seen not to end (ADR 1), and it has none with bounds.

/// The number of steps that are remembered.
const MEMORY: usize = 8;
/// How often a step may be shortened.
const SHORTENINGS: usize = 12;
/// The share of the promised decrease that is enough.
const ARMIJO: f64 = 1e-4;

/// When to stop.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effort {
    /// After this number of steps.
    pub(super) steps: usize,
    /// Once a step gains less than this.
    pub(super) gain: f64,
}

/// A point and what the function is there.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) at: Vec<f64>,
    pub(super) value: f64,
}

/// A step and the change of the gradient along it.
struct Pair {
    step: Vec<f64>,
    change: Vec<f64>,
    product: f64,
}

/// Minimizes from a point in the box. The function writes its gradient into the second argument; a
/// value that is not finite is a place not to go.
pub(super) fn minimize(
    start: Vec<f64>,
    bounds: &[(f64, f64)],
    effort: Effort,
    mut function: impl FnMut(&[f64], &mut [f64]) -> f64,
) -> Found {
    let n = start.len();
    let mut x = start;
    let (mut gradient, mut next_gradient) = (vec![0.0; n], vec![0.0; n]);
    let mut value = function(&x, &mut gradient);
    let mut pairs: Vec<Pair> = Vec::new();
    for _ in 0..effort.steps {
        if !value.is_finite() || gradient.iter().any(|slope| !slope.is_finite()) {
            break;
        }
        let is_free = |i: usize| {
            let (low, high) = bounds[i];
            !(x[i] <= low && gradient[i] > 0.0 || x[i] >= high && gradient[i] < 0.0)
        };
        let free: Vec<bool> = (0..n).map(is_free).collect();
        let mut direction = descent(&gradient, &free, &pairs);
        if inner(&direction, &gradient) >= 0.0 {
            pairs.clear();
            direction = descent(&gradient, &free, &pairs);
        }
        let first = if pairs.is_empty() { 1.0 / length(&direction).max(1.0) } else { 1.0 };
        let Some((next, next_value)) =
            line_search(&x, value, &gradient, &direction, bounds, first, &mut |at| {
                function(at, &mut next_gradient)
            })
        else {
            if pairs.is_empty() {
                break;
            }
            pairs.clear();
            continue;
        };
        let step: Vec<f64> = next.iter().zip(&x).map(|(a, b)| a - b).collect();
        let change: Vec<f64> = next_gradient.iter().zip(&gradient).map(|(a, b)| a - b).collect();
        let product = inner(&step, &change);
        if product > 1e-10 * length(&step) * length(&change) {
            if pairs.len() == MEMORY {
                pairs.remove(0);
            }
            pairs.push(Pair { step, change, product });
        }
        let gain = value - next_value;
        (x, value) = (next, next_value);
        std::mem::swap(&mut gradient, &mut next_gradient);
        if gain < effort.gain {
            break;
        }
    }
    Found { at: x, value }
}

/// The direction of L-BFGS among the free coordinates.
fn descent(gradient: &[f64], free: &[bool], pairs: &[Pair]) -> Vec<f64> {
    let keep = |values: &mut [f64]| {
        values.iter_mut().zip(free).filter(|(_, free)| !**free).for_each(|(value, _)| *value = 0.0);
    };
    let mut q: Vec<f64> = gradient.iter().map(|slope| -slope).collect();
    keep(&mut q);
    let mut factors = Vec::with_capacity(pairs.len());
    for pair in pairs.iter().rev() {
        let factor = inner(&pair.step, &q) / pair.product;
        q.iter_mut().zip(&pair.change).for_each(|(q, y)| *q -= factor * y);
        factors.push(factor);
    }
    if let Some(last) = pairs.last() {
        let scale = last.product / inner(&last.change, &last.change);
        for q in &mut q {
            *q *= scale;
        }
    }
    for (pair, factor) in pairs.iter().zip(factors.into_iter().rev()) {
        let back = factor - inner(&pair.change, &q) / pair.product;
        q.iter_mut().zip(&pair.step).for_each(|(q, s)| *q += back * s);
    }
    keep(&mut q);
    q
}

/// Shortens a step, cut off at the box, until it gains enough.
fn line_search(
    x: &[f64],
    value: f64,
    gradient: &[f64],
    direction: &[f64],
    bounds: &[(f64, f64)],
    first: f64,
    function: &mut dyn FnMut(&[f64]) -> f64,
) -> Option<(Vec<f64>, f64)> {
    let mut share = first;
    for _ in 0..SHORTENINGS {
        let moved = x.iter().zip(direction).zip(bounds);
        let next: Vec<f64> = moved.map(|((x, d), &(low, high))| (x + share * d).clamp(low, high)).collect();
        let promised: f64 = next.iter().zip(x).zip(gradient).map(|((a, b), g)| (a - b) * g).sum();
        if promised >= 0.0 {
            return None;
        }
        let next_value = function(&next);
        if next_value.is_finite() && next_value <= value + ARMIJO * promised {
            return Some((next, next_value));
        }
        // The minimum of a parabola through both ends, within reason.
        let ideal =
            if next_value.is_finite() { -promised / (2.0 * (next_value - value - promised)) } else { 0.1 };
        share *= ideal.clamp(0.1, 0.5);
    }
    None
}

fn inner(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn length(a: &[f64]) -> f64 {
    inner(a, a).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EFFORT: Effort = Effort { steps: 200, gain: 1e-14 };

    fn rosenbrock(x: &[f64], gradient: &mut [f64]) -> f64 {
        let (a, b) = (1.0 - x[0], x[1] - x[0] * x[0]);
        gradient[0] = -2.0 * a - 400.0 * x[0] * b;
        gradient[1] = 200.0 * b;
        a * a + 100.0 * b * b
    }

    #[test]
    fn a_curved_valley_has_an_end() {
        let found = minimize(vec![-1.2, 1.0], &[(-5.0, 5.0); 2], EFFORT, rosenbrock);
        assert!(found.value < 1e-10 && (found.at[0] - 1.0).abs() < 1e-4, "{found:?}");
    }

    #[test]
    fn the_box_holds() {
        // With x at most 1/2 the best is 1/4 at (1/2, 1/4).
        let found = minimize(vec![-1.2, 1.0], &[(-5.0, 0.5), (-5.0, 5.0)], EFFORT, rosenbrock);
        assert!((found.value - 0.25).abs() < 1e-9 && (found.at[1] - 0.25).abs() < 1e-4, "{found:?}");
    }

    #[test]
    fn it_stays_where_there_is_no_way() {
        let nowhere = minimize(vec![0.5], &[(0.0, 1.0)], EFFORT, |_, _| f64::NAN);
        assert_eq!(nowhere.at, [0.5]);
        let mut calls = 0;
        let wall = |x: &[f64], gradient: &mut [f64]| {
            calls += 1;
            gradient[0] = -1.0;
            if x[0] > 0.5 { f64::INFINITY } else { -x[0] }
        };
        let found = minimize(vec![0.5], &[(0.0, 1.0)], EFFORT, wall);
        assert_eq!(found.at, [0.5]);
        assert!(calls <= 1 + SHORTENINGS, "{calls}");
    }
}
