//! Results on a scale that suits a Gaussian process.
//!
//! Losses often have a long upper tail, which would leave no room for the differences among the good ones. So the scale may be
//! bent towards a logarithm, as far as the data speak for it: the model is fitted on each scale of
//! [`Bend::ALL`], and the most likely one is taken (a warped Gaussian process, Snelson et al. 2004, with the power
//! transformation of Box and Cox 1964).

use libm::{log, log1p, pow};

use super::super::history::Merit;

/// A result that is so many times farther from the best than the next better one is an outlier, and so are all that are worse.
const GAP: f64 = 10.0;
/// Results whose distances from the best differ by less than this share count once where outliers are looked for: most results of a
/// study may be the same penalty.
const SAME: f64 = 1e-3;
/// No result counts as farther away than this number of units.
const FARTHEST: f64 = 1e150;

/// A way to bend the scale: ((1 + z)^power - 1) / power, or ln(1 + z) where the power is 0. Here z is how much worse
/// than the best a result is; `unit` times the median of that is 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bend {
    power: f64,
    unit: f64,
}

impl Bend {
    /// From straight to strongly bent.
    pub(super) const ALL: [Self; 4] = [
        Self { power: 1.0, unit: 1.0 },
        Self { power: 0.5, unit: 1.0 },
        Self { power: 0.0, unit: 1.0 },
        Self { power: 0.0, unit: 0.1 },
    ];

    fn apply(self, z: f64) -> f64 {
        if self.power > 0.0 { (pow(1.0 + z, self.power) - 1.0) / self.power } else { log1p(z) }
    }
}

/// What the model is fitted to.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Targets {
    /// With mean 0 and variance 1; smaller is better.
    pub(super) values: Vec<f64>,
    /// Whether all results are the same.
    pub(super) constant: bool,
    /// ln of how much they were stretched, all together: what is comparable between scales is the loss of a fit
    /// less this.
    pub(super) log_stretch: f64,
}

impl Targets {
    /// Results on a bent scale.
    pub(super) fn new(merits: &[Merit], bend: Bend) -> Self {
        let raw = without_outliers(numbers(merits));
        let (min, median, worst) = spread(&raw);
        let unit = bend.unit * if median > min { median - min } else { worst - min };
        if !(unit > 0.0 && unit.is_finite()) {
            return Self { values: vec![0.0; raw.len()], constant: true, log_stretch: 0.0 };
        }
        let zs: Vec<f64> = raw.iter().map(|y| ((y - min) / unit).min(FARTHEST)).collect();
        let slopes: f64 = zs.iter().map(|&z| (bend.power - 1.0) * log1p(z) - log(bend.unit)).sum();
        let mut values: Vec<f64> = zs.into_iter().map(|z| bend.apply(z)).collect();
        let n = values.len() as f64;
        let mean = values.iter().map(|v| v / n).sum::<f64>();
        let sd = (values.iter().map(|v| (v - mean) * (v - mean) / n).sum::<f64>()).sqrt();
        for value in &mut values {
            *value = (*value - mean) / sd;
        }
        Self { values, constant: false, log_stretch: slopes - n * log(sd) }
    }
}

/// Every trial as a number. One that failed is as bad as the worst. One that was stopped counts with its last value, but
/// neither as better than half of those that ended, for it was stopped because it fell behind, nor as worse
/// than all.
fn numbers(merits: &[Merit]) -> Vec<f64> {
    let done = |merit: &Merit| if let Merit::Done(value) = merit { Some(*value) } else { None };
    let stopped = |merit: &Merit| match merit {
        Merit::Stopped { value, .. } if value.is_finite() => Some(*value),
        _ => None,
    };
    let mut known: Vec<f64> = merits.iter().filter_map(done).collect();
    let mut min_stopped = f64::NEG_INFINITY;
    if known.is_empty() {
        known = merits.iter().filter_map(stopped).collect();
    } else {
        min_stopped = spread(&known).1;
    }
    let worst = if known.is_empty() { 0.0 } else { spread(&known).2 };
    let number = |merit: &Merit| match *merit {
        Merit::Done(value) => value,
        Merit::Stopped { value, .. } => value.min(worst).max(min_stopped),
        Merit::Failed | Merit::Several | Merit::Cancelled => worst,
    };
    merits.iter().map(number).collect()
}

/// Results that are far worse than the worse half of the others, however many they are, such as a penalty of 1e6, become twice as far from the best as
/// the last one before them: the model is to know that they are bad, not to bend everything for them.
fn without_outliers(mut values: Vec<f64>) -> Vec<f64> {
    let mut sorted = values.clone();
    sorted.sort_by(f64::total_cmp);
    let Some(&min) = sorted.first() else { return values };
    sorted.dedup_by(|worse, better| *worse - *better <= SAME * (*worse - min));
    let worse_half = &sorted[sorted.len() / 2..];
    let far = worse_half.windows(2).find(|pair| pair[0] > min && pair[1] - min > GAP * (pair[0] - min));
    if let Some(pair) = far {
        let most = min + 2.0 * (pair[0] - min);
        for value in &mut values {
            *value = value.min(most);
        }
    }
    values
}

/// The smallest, the middle and the largest of some numbers; 0 if there are none.
fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.first(), sorted.get(sorted.len() / 2), sorted.last()) {
        (Some(&min), Some(&median), Some(&worst)) => (min, median, worst),
        _ => (0.0, 0.0, 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRAIGHT: Bend = Bend::ALL[0];

    #[test]
    fn every_trial_is_a_number() {
        let stopped = |value| Merit::Stopped { step: 1, value };
        let merits = [
            Merit::Done(1.0),
            Merit::Done(2.0),
            Merit::Done(5.0),
            Merit::Failed,
            stopped(0.5),
            stopped(3.0),
            stopped(f64::INFINITY),
        ];
        assert_eq!(numbers(&merits), [1.0, 2.0, 5.0, 5.0, 2.0, 3.0, 5.0]);
        assert_eq!(numbers(&[Merit::Failed, stopped(0.5), stopped(f64::INFINITY)]), [0.5, 0.5, 0.5]);
        assert_eq!(numbers(&[Merit::Failed]), [0.0]);
    }

    #[test]
    fn targets_by_hand() {
        let merits = [Merit::Done(1.0), Merit::Done(3.0)];
        let targets = Targets::new(&merits, STRAIGHT);
        assert_eq!(targets.values, [-1.0, 1.0]);
        // z is 0 and 1, so the standard deviation is 1/2, and the stretch 2 for each.
        assert!((targets.log_stretch - 2.0 * log(2.0)).abs() < 1e-14);
        // On a logarithmic scale 1, 3, 7 with the unit 2 are ln 1, ln 2, ln 4.
        let merits = [Merit::Done(1.0), Merit::Done(3.0), Merit::Done(7.0)];
        let values = Targets::new(&merits, Bend::ALL[2]).values;
        assert!((values[0] + 1.5_f64.sqrt()).abs() < 1e-12 && values[1].abs() < 1e-12, "{values:?}");
    }

    #[test]
    fn a_penalty_leaves_the_others_apart() {
        let mut merits: Vec<Merit> = (0..20).map(|value| Merit::Done(f64::from(value))).collect();
        merits.extend([Merit::Done(1e6), Merit::Done(3e6)]);
        for bend in Bend::ALL {
            let targets = Targets::new(&merits, bend).values;
            assert!(targets[19] - targets[0] > 1.5, "{bend:?}: {targets:?}");
            assert!(targets[20] > targets[19] && (targets[20] - targets[21]).abs() < 1e-12, "{targets:?}");
        }
    }

    /// With more than half of them, the worse half once was nothing but penalties.
    #[test]
    fn many_penalties_leave_the_others_apart() {
        let penalties: [fn(u32) -> f64; 2] = [|_| 1e6, |number| 1e6 + f64::from(number % 10)];
        for penalty in penalties {
            let mut merits: Vec<Merit> = (0..10).map(|value| Merit::Done(f64::from(value))).collect();
            merits.extend((0..30).map(|number| Merit::Done(penalty(number))));
            for bend in Bend::ALL {
                let targets = Targets::new(&merits, bend).values;
                assert!(targets[9] - targets[0] > 1.0, "{bend:?}: {targets:?}");
                assert!(targets[10] > targets[9], "{bend:?}: {targets:?}");
            }
        }
        // A good half far below the rest is what a search is for.
        let found: Vec<f64> =
            (0..20).map(|number| if number < 8 { 1e-6 } else { 1.0 } * f64::from(number + 1)).collect();
        assert_eq!(without_outliers(found.clone()), found);
    }

    #[test]
    fn anything_gives_finite_targets() {
        let cases: [&[f64]; 6] = [
            &[],
            &[3.0],
            &[3.0; 5],
            &[f64::MIN, 0.0, f64::MAX],
            &[0.0, 1e-300, f64::MAX],
            &[1.0, 1.0 + f64::EPSILON, 1.0],
        ];
        for values in cases {
            let merits: Vec<Merit> = values.iter().map(|&value| Merit::Done(value)).collect();
            for bend in Bend::ALL {
                let targets = Targets::new(&merits, bend);
                assert!(targets.values.iter().all(|value| value.is_finite()), "{values:?} {targets:?}");
                assert!(targets.log_stretch.is_finite(), "{values:?} {targets:?}");
            }
        }
    }
}
