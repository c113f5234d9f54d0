//! The line search of Moré and Thuente (1994), as L-BFGS-B uses it.

/// The conditions of the search: a decrease of this share of the slope, a slope of at most this share of the first one, and an interval
/// of no less than this share of its end.
const DECREASE: f64 = 1e-3;
const SLOPE: f64 = 0.9;
const INTERVAL: f64 = 0.1;

/// A step with the value and the slope there.
#[derive(Debug, Clone, Copy)]
struct End {
    step: f64,
    value: f64,
    slope: f64,
}

impl End {
    /// The same seen from a line that falls by `slope` a step.
    fn above(self, slope: f64) -> Self {
        Self { step: self.step, value: self.value - self.step * slope, slope: self.slope - slope }
    }
}

/// A search for a step that is low and flat enough, one evaluation at a time.
#[derive(Debug)]
pub(super) struct LineSearch {
    start: End,
    max_step: f64,
    next: f64,
    /// The best step so far, and the other end of the interval.
    best: End,
    other: End,
    bracketed: bool,
    /// Whether a step that is low enough, where the function rises, was seen.
    rising: bool,
    width: [f64; 2],
    range: [f64; 2],
}

impl LineSearch {
    /// From a value and a slope on, which must be downhill, first to `next`, never beyond `max_step`.
    pub(super) fn new(value: f64, slope: f64, next: f64, max_step: f64) -> Option<Self> {
        if slope.is_nan() || slope >= 0.0 || next > max_step {
            return None;
        }
        let start = End { step: 0.0, value, slope };
        let width = [max_step, 2.0 * max_step];
        let (best, other, range) = (start, start, [0.0, 5.0 * next]);
        Some(Self { start, max_step, next, best, other, bracketed: false, rising: false, width, range })
    }

    /// The step to evaluate.
    pub(super) fn step(&self) -> f64 {
        self.next
    }

    /// Records the value and the slope there; gives whether it is good enough, or the best that can be found.
    pub(super) fn is_done(&mut self, value: f64, slope: f64) -> bool {
        let here = End { step: self.next, value, slope };
        let wanted = DECREASE * self.start.slope;
        let low = value <= self.start.value + here.step * wanted;
        self.rising |= low && slope >= 0.0;
        let [from, to] = self.range;
        let stuck = self.bracketed && (here.step <= from || here.step >= to || to - from <= INTERVAL * to);
        let at_end = here.step.total_cmp(&self.max_step).is_eq() && low && slope <= wanted;
        let at_start = here.step <= 0.0 && (!low || slope >= wanted);
        if stuck || at_end || at_start || (low && slope.abs() <= SLOPE * -self.start.slope) {
            return true;
        }
        if !self.rising && value <= self.best.value && !low {
            // Until then the function above the wanted decrease is searched.
            let seen = [self.best, self.other, here].map(|end| end.above(wanted));
            let [best, other] = self.narrow(seen);
            (self.best, self.other) = (best.above(-wanted), other.above(-wanted));
        } else {
            [self.best, self.other] = self.narrow([self.best, self.other, here]);
        }
        self.bound();
        false
    }

    /// Limits the next step to the interval.
    fn bound(&mut self) {
        let (best, other) = (self.best.step, self.other.step);
        if self.bracketed {
            let width = (other - best).abs();
            if width >= 0.66 * self.width[1] {
                self.next = best + 0.5 * (other - best);
            }
            self.width = [width, self.width[0]];
            self.range = [best.min(other), best.max(other)];
        } else {
            self.range = [1.1, 4.0].map(|share| self.next + share * (self.next - best));
        }
        self.next = self.next.clamp(0.0, self.max_step);
        let [from, to] = self.range;
        if self.bracketed && (self.next <= from || self.next >= to || to - from <= INTERVAL * to) {
            self.next = best;
        }
    }

    /// Chooses the next step by cubic and quadratic interpolation; returns the new ends.
    fn narrow(&mut self, [best, other, here]: [End; 3]) -> [End; 2] {
        let turned = here.slope * best.slope.signum() < 0.0;
        let secant =
            |from: &End, to: &End| from.step + from.slope / (from.slope - to.slope) * (to.step - from.step);
        let nearer = |a: f64, b: f64, to: f64| if (a - to).abs() < (b - to).abs() { a } else { b };
        let farther = |a: f64, b: f64, to: f64| if (a - to).abs() > (b - to).abs() { a } else { b };
        let next = if here.value > best.value {
            let cubic = cubic(&best, &here);
            let slope = (best.value - here.value) / (here.step - best.step) + best.slope;
            let quadratic = best.step + best.slope / slope / 2.0 * (here.step - best.step);
            self.bracketed = true;
            if (cubic - best.step).abs() < (quadratic - best.step).abs() {
                cubic
            } else {
                cubic + (quadratic - cubic) / 2.0
            }
        } else if turned {
            self.bracketed = true;
            farther(cubic(&here, &best), secant(&here, &best), here.step)
        } else if here.slope.abs() < best.slope.abs() {
            let end = if here.step > best.step { self.range[1] } else { self.range[0] };
            let (cubic, secant) = (onward(&here, &best).unwrap_or(end), secant(&here, &best));
            if self.bracketed {
                let (next, limit) =
                    (nearer(cubic, secant, here.step), here.step + 0.66 * (other.step - here.step));
                if here.step > best.step { next.min(limit) } else { next.max(limit) }
            } else {
                farther(cubic, secant, here.step).min(self.range[1]).max(self.range[0])
            }
        } else if self.bracketed {
            cubic(&here, &other)
        } else if here.step > best.step {
            self.range[1]
        } else {
            self.range[0]
        };
        self.next = next;
        if here.value > best.value {
            [best, here]
        } else if turned {
            [here, best]
        } else {
            [here, other]
        }
    }
}

/// The minimum of the cubic through two ends, seen from the first one.
fn cubic(from: &End, to: &End) -> f64 {
    let (theta, gamma) = coefficients(from, to);
    let (p, q) = ((gamma - from.slope) + theta, ((gamma - from.slope) + gamma) + to.slope);
    from.step + p / q * (to.step - from.step)
}

/// The same, if it lies beyond `from` as seen from `to`.
fn onward(from: &End, to: &End) -> Option<f64> {
    let (theta, gamma) = coefficients(from, to);
    let (p, q) = ((gamma - from.slope) + theta, (gamma + (to.slope - from.slope)) + gamma);
    let share = p / q;
    (share < 0.0 && gamma != 0.0).then_some(from.step + share * (to.step - from.step))
}

fn coefficients(from: &End, to: &End) -> (f64, f64) {
    let theta = 3.0 * (from.value - to.value) / (to.step - from.step) + from.slope + to.slope;
    let scale = theta.abs().max(from.slope.abs()).max(to.slope.abs());
    let square = (theta / scale).powi(2) - from.slope / scale * (to.slope / scale);
    let gamma = scale * square.max(0.0).sqrt();
    (theta, if from.step > to.step { -gamma } else { gamma })
}
