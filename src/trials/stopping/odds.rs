//! From ranks to probabilities.

use libm::{exp, log, sqrt};

/// The number of comparable trials that weigh as much as having no evidence at all.
const DOUBT: f64 = 4.0;
/// Ranks never determine later ranks.
const CORRELATION_MAX: f64 = 0.95;

/// How likely a trial is to be among the best `cut` of all (a share) later, if `rank` is its share of better ones now and
/// ranks correlate like that: the odds of both are logistic, as a Gaussian copula would have them normal.
/// Without correlation it is `cut`; the better its rank, the larger it is.
pub(super) fn survival(rank: f64, cut: f64, correlation: f64) -> f64 {
    let correlation = correlation.clamp(0.0, CORRELATION_MAX);
    let ahead = logit(cut) - correlation * logit(rank);
    1.0 / (1.0 + exp(-ahead / sqrt(1.0 - correlation * correlation)))
}

fn logit(share: f64) -> f64 {
    log(share / (1.0 - share))
}

/// The share of better ones among `others`, strictly between 0 and 1; those alike count half.
pub(super) fn rank_share(value: f64, others: &[f64]) -> f64 {
    let (better, alike) = others.iter().fold((0.0, 0.0), |(better, alike), &other| match () {
        () if other < value => (better + 1.0, alike),
        () if other > value => (better, alike),
        () => (better, alike + 1.0),
    });
    (better + 0.5 * alike + 0.5) / (others.len() as f64 + 1.0)
}

/// Pulls a probability towards 1 where few trials support it: no evidence, no punishment.
pub(super) fn doubtful(probability: f64, trials: usize) -> f64 {
    let trials = trials as f64;
    (trials * probability + DOUBT) / (trials + DOUBT)
}

/// Spearman's rank correlation, pulled towards 0 where there are few pairs.
pub(super) fn rank_correlation(first: &[f64], second: &[f64]) -> f64 {
    let (first, second) = (ranks(first), ranks(second));
    let pairs = first.len() as f64;
    let middle = (pairs - 1.0) / 2.0;
    let product =
        |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| (a - middle) * (b - middle)).sum() };
    let scale = sqrt(product(&first, &first) * product(&second, &second));
    if scale > 0.0 { product(&first, &second) / scale * pairs / (pairs + DOUBT) } else { 0.0 }
}

/// The rank of each value from 0; those alike share the middle of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut from = 0;
    for group in order.chunk_by(|&a, &b| values[a] >= values[b]) {
        for &at in group {
            ranks[at] = from as f64 + (group.len() as f64 - 1.0) / 2.0;
        }
        from += group.len();
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn survival_by_hand() {
        assert!(close(survival(0.9, 0.25, 0.0), 0.25), "nothing known: the share that continues");
        // logit(1/2) = 0 and logit(0.8) = ln 4, so the odds are 4 to the power of 0.6 / 0.8.
        let odds = libm::pow(4.0, 0.75);
        assert!(close(survival(0.2, 0.5, 0.6), odds / (1.0 + odds)));
        assert!(close(survival(0.8, 0.5, 0.6), 1.0 / (1.0 + odds)));
        assert!(survival(0.1, 0.3, 2.0) > 0.98 && survival(0.9, 0.3, 2.0) < 0.001);
        assert!(close(survival(0.9, 0.3, -1.0), 0.3), "being bad is never good");
    }

    #[test]
    fn ranks_by_hand() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, -2.0]), [2.5, 1.0, 2.5, 0.0]);
        assert!(close(rank_share(2.0, &[1.0, 2.0, 3.0]), 0.5));
        assert!(close(rank_share(0.0, &[]), 0.5) && close(rank_share(9.0, &[1.0, 2.0, 3.0]), 3.5 / 4.0));
    }

    #[test]
    fn correlation_by_hand() {
        // 1 - 6 * (1 + 1) / (4 * 15) = 0.8, times 4 / 8.
        assert!(close(rank_correlation(&[1.0, 2.0, 3.0, 4.0], &[10.0, 30.0, 20.0, 40.0]), 0.4));
        assert!(close(rank_correlation(&[1.0, 1.0], &[1.0, 2.0]), 0.0));
        assert!(close(rank_correlation(&[], &[]), 0.0));
    }

    #[test]
    fn without_evidence_there_is_no_doubt() {
        assert!(
            close(doubtful(0.0, 0), 1.0) && close(doubtful(0.0, 4), 0.5) && close(doubtful(0.2, 16), 0.36)
        );
    }
}
