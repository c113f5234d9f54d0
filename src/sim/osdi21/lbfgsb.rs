//! L-BFGS-B (Byrd, Lu, Nocedal and Zhu, 1995), with the subspace step of version 3.0 (Morales and Nocedal, 2011).
//!
//! The authors of Pollux fit with it, by the limits of scipy, and it often stops long before the minimum; who wants their
//! models must stop where it stops. For so few variables the matrix of the quadratic model is kept whole: the compact form
//! of the papers gives the same steps.

use super::line_search::LineSearch;
use crate::goodput::damped_step;

/// Pairs of steps and gradients that the model remembers.
const MEMORY: usize = 10;
/// scipy's limits: on the projected gradient, on the relative decrease, and on evaluations in one line search.
const GRADIENT_MIN: f64 = 1e-5;
const DECREASE_MIN: f64 = 2.220_446_049_250_313e-9;
const EVALUATIONS: u32 = 20;
/// More iterations than any fit was seen to take.
const ITERATIONS: u32 = 1000;

type Matrix<const N: usize> = [[f64; N]; N];

/// Bounds of the variables; those between two equal ones are fixed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds<const N: usize> {
    pub(super) low: [f64; N],
    pub(super) high: [f64; N],
}

/// A point with the value and the gradient there.
#[derive(Clone, Copy)]
struct At<const N: usize> {
    x: [f64; N],
    value: f64,
    gradient: [f64; N],
}

/// Minimises a function, given with its gradient, from a point on, as far as scipy would go.
pub(super) fn minimise<const N: usize>(
    start: [f64; N],
    bounds: &Bounds<N>,
    function: impl Fn(&[f64; N]) -> (f64, [f64; N]),
) -> [f64; N] {
    let evaluate = |x: [f64; N]| {
        let (value, gradient) = function(&x);
        At { x, value, gradient }
    };
    let mut at = evaluate(std::array::from_fn(|i| start[i].clamp(bounds.low[i], bounds.high[i])));
    let mut pairs: Vec<([f64; N], [f64; N])> = Vec::new();
    for iteration in 0..ITERATIONS {
        if bounds.projected(&at) <= GRADIENT_MIN {
            break;
        }
        let next = model(&pairs)
            .and_then(|model| target(&model, &at, bounds, !pairs.is_empty()))
            .and_then(|target| search(&at, &target, bounds, iteration == 0, evaluate));
        let Some(next) = next else {
            // What was remembered misleads: again without it.
            if pairs.is_empty() {
                break;
            }
            pairs.clear();
            continue;
        };
        let step = difference(&next.x, &at.x);
        let change = difference(&next.gradient, &at.gradient);
        let scale = at.value.abs().max(next.value.abs()).max(1.0);
        let (decrease, slope) = (at.value - next.value, -dot(&at.gradient, &step));
        at = next;
        if decrease <= DECREASE_MIN * scale {
            break;
        }
        if dot(&step, &change) > f64::EPSILON * slope {
            if pairs.len() == MEMORY {
                pairs.remove(0);
            }
            pairs.push((step, change));
        }
    }
    at.x
}

impl<const N: usize> Bounds<N> {
    fn is_fixed(&self, i: usize) -> bool {
        self.high[i] <= self.low[i]
    }

    /// The largest component of the gradient that bounds let one follow.
    fn projected(&self, at: &At<N>) -> f64 {
        let component = |i: usize| {
            let slope = at.gradient[i];
            if slope < 0.0 {
                slope.max(at.x[i] - self.high[i]).abs()
            } else {
                slope.min(at.x[i] - self.low[i]).abs()
            }
        };
        (0..N).map(component).fold(0.0, f64::max)
    }

    /// How far along a way from `x` bounds allow to go, at most `max`.
    fn reach(&self, x: &[f64; N], way: &[f64; N], max: f64) -> (f64, Option<usize>) {
        let mut reach = (max, None);
        for i in 0..N {
            let room = if way[i] < 0.0 { self.low[i] - x[i] } else { self.high[i] - x[i] };
            if way[i] != 0.0 && room / way[i] < reach.0 {
                reach = ((room / way[i]).max(0.0), Some(i));
            }
        }
        reach
    }
}

/// The matrix of the quadratic model: a multiple of the unit matrix with all remembered pairs worked in (BFGS).
fn model<const N: usize>(pairs: &[([f64; N], [f64; N])]) -> Option<Matrix<N>> {
    let scale = pairs.last().map_or(1.0, |(step, change)| dot(change, change) / dot(step, change));
    let mut matrix: Matrix<N> = std::array::from_fn(|i| std::array::from_fn(|j| f64::from(i == j) * scale));
    for (step, change) in pairs {
        let curved = times(&matrix, step);
        let (old, new) = (dot(step, &curved), dot(step, change));
        for i in 0..N {
            for j in 0..N {
                matrix[i][j] += change[i] * change[j] / new - curved[i] * curved[j] / old;
            }
        }
    }
    matrix.iter().flatten().all(|value| value.is_finite()).then_some(matrix)
}

/// Where the model within the bounds has its minimum, about: the first minimum down the gradient, bent at the bounds, and from
/// there on among the variables that are still free. None if the model is no bowl.
fn target<const N: usize>(
    model: &Matrix<N>,
    at: &At<N>,
    bounds: &Bounds<N>,
    remembers: bool,
) -> Option<[f64; N]> {
    let (cauchy, free) = cauchy_point(model, at, bounds);
    if free.is_empty() || !remembers {
        return Some(cauchy);
    }
    let bent = times(model, &difference(&cauchy, &at.x));
    let way: Vec<f64> = free.iter().map(|&i| -(at.gradient[i] + bent[i])).collect();
    let part = free.iter().map(|&i| free.iter().map(|&j| model[i][j]).collect()).collect();
    let way = damped_step(&part, &way, 0.0)?;
    let mut full = [0.0; N];
    free.iter().zip(way).for_each(|(&i, way)| full[i] = way);
    let projected: [f64; N] =
        std::array::from_fn(|i| (cauchy[i] + full[i]).clamp(bounds.low[i], bounds.high[i]));
    let touches = free.iter().any(|&i| projected[i] <= bounds.low[i] || projected[i] >= bounds.high[i]);
    if !touches || dot(&difference(&projected, &at.x), &at.gradient) <= 0.0 {
        return Some(projected);
    }
    let (share, first) = bounds.reach(&cauchy, &full, 1.0);
    let mut cut: [f64; N] = std::array::from_fn(|i| share.mul_add(full[i], cauchy[i]));
    if let Some(i) = first {
        cut[i] = if full[i] > 0.0 { bounds.high[i] } else { bounds.low[i] };
    }
    Some(cut)
}

/// The first minimum of the model on the way down the gradient, and the variables that are not at a bound there.
fn cauchy_point<const N: usize>(model: &Matrix<N>, at: &At<N>, bounds: &Bounds<N>) -> ([f64; N], Vec<usize>) {
    let mut point = at.x;
    let mut way = at.gradient.map(|slope| -slope);
    let mut ends = [f64::INFINITY; N];
    let mut free = [true; N];
    for i in 0..N {
        let room = if way[i] < 0.0 { bounds.low[i] - at.x[i] } else { bounds.high[i] - at.x[i] };
        if bounds.is_fixed(i) || (way[i] != 0.0 && room / way[i] <= 0.0) {
            (way[i], free[i]) = (0.0, false);
        } else if way[i] != 0.0 {
            ends[i] = room / way[i];
        }
    }
    let (mut gone, mut min_curvature) = (0.0, 0.0);
    while way.iter().any(|way| *way != 0.0) {
        let curved = times(model, &way);
        let slope = dot(&at.gradient, &way) + dot(&difference(&point, &at.x), &curved);
        let curvature = dot(&way, &curved).max(min_curvature);
        min_curvature = if gone == 0.0 { f64::EPSILON * curvature } else { min_curvature };
        let (next, end) = first_end(&ends);
        let best = -slope / curvature;
        if best < end - gone || !end.is_finite() {
            let best = best.max(0.0);
            (0..N).filter(|&i| free[i]).for_each(|i| point[i] += best * way[i]);
            break;
        }
        (0..N).filter(|&i| free[i]).for_each(|i| point[i] += (end - gone) * way[i]);
        point[next] = if way[next] < 0.0 { bounds.low[next] } else { bounds.high[next] };
        (way[next], free[next], ends[next], gone) = (0.0, false, f64::INFINITY, end);
    }
    (point, (0..N).filter(|&i| free[i]).collect())
}

fn first_end<const N: usize>(ends: &[f64; N]) -> (usize, f64) {
    let first = (0..N).min_by(|&a, &b| ends[a].total_cmp(&ends[b])).unwrap_or(0);
    (first, ends[first])
}

/// A point between here and the target that is low enough; none if there is none to be found.
fn search<const N: usize>(
    at: &At<N>,
    target: &[f64; N],
    bounds: &Bounds<N>,
    first: bool,
    evaluate: impl Fn([f64; N]) -> At<N>,
) -> Option<At<N>> {
    let way = difference(target, &at.x);
    let max_step = if first { 1.0 } else { bounds.reach(&at.x, &way, 1e10).0.max(1.0) };
    let start = if first { dot(&way, &way).sqrt().recip().min(max_step) } else { 1.0 };
    let mut line = LineSearch::new(at.value, dot(&at.gradient, &way), start, max_step)?;
    for _ in 0..EVALUATIONS {
        let step = line.step();
        let x = if step.total_cmp(&1.0).is_eq() {
            *target
        } else {
            std::array::from_fn(|i| step.mul_add(way[i], at.x[i]).clamp(bounds.low[i], bounds.high[i]))
        };
        let tried = evaluate(x);
        if line.is_done(tried.value, dot(&tried.gradient, &way)) {
            return Some(tried);
        }
    }
    None
}

fn dot<const N: usize>(a: &[f64; N], b: &[f64; N]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn difference<const N: usize>(a: &[f64; N], b: &[f64; N]) -> [f64; N] {
    std::array::from_fn(|i| a[i] - b[i])
}

fn times<const N: usize>(matrix: &Matrix<N>, vector: &[f64; N]) -> [f64; N] {
    std::array::from_fn(|i| dot(&matrix[i], vector))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rosenbrock's valley, with its minimum at (1, 1).
    fn valley([x, y]: &[f64; 2]) -> (f64, [f64; 2]) {
        let (a, b) = (1.0 - x, y - x * x);
        (a * a + 100.0 * b * b, [-2.0 * a - 400.0 * x * b, 200.0 * b])
    }

    #[test]
    fn the_end_of_the_valley_is_found() {
        let bounds = Bounds { low: [-5.0; 2], high: [f64::INFINITY; 2] };
        let found = minimise([-1.2, 1.0], &bounds, valley);
        assert!(found.iter().all(|x| (x - 1.0).abs() < 1e-3), "{found:?}");
    }

    #[test]
    fn bounds_are_kept_and_fixed_variables_stay() {
        // With x at most 0.5 the best y is 0.25.
        let bounds = Bounds { low: [-5.0; 2], high: [0.5, 5.0] };
        let found = minimise([-1.2, 1.0], &bounds, valley);
        assert!((found[0] - 0.5).abs() < 1e-12 && (found[1] - 0.25).abs() < 1e-4, "{found:?}");
        let bounds = Bounds { low: [0.7, -5.0], high: [0.7, 5.0] };
        let found = minimise([9.0, 3.0], &bounds, valley);
        assert!((found[0] - 0.7).abs() < 1e-12 && (found[1] - 0.49).abs() < 1e-4, "{found:?}");
    }
}
