//! Medians, and a test whether two samples differ.

/// Below this probability of an accident a difference counts.
const SIGNIFICANT: f64 = 0.05;

/// How ours stands.
#[derive(Clone, Copy)]
pub(crate) enum Verdict {
    Same,
    Better,
    Worse,
}

/// The test of Mann and Whitney, two-sided.
pub(crate) fn compare(ours: &[f64], theirs: &[f64]) -> Verdict {
    let z = mann_whitney(ours, theirs);
    let p = libm::erfc(z.abs() / std::f64::consts::SQRT_2);
    match (p < SIGNIFICANT, z < 0.0) {
        (false, _) => Verdict::Same,
        (true, true) => Verdict::Better,
        (true, false) => Verdict::Worse,
    }
}

/// The statistic of the Mann-Whitney test in standard deviations, ties taken into account; negative if the first
/// sample is smaller.
fn mann_whitney(a: &[f64], b: &[f64]) -> f64 {
    let mut all: Vec<(f64, bool)> =
        a.iter().map(|&x| (x, true)).chain(b.iter().map(|&x| (x, false))).collect();
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    let (n, m, total) = (a.len() as f64, b.len() as f64, all.len() as f64);
    let (mut ranks, mut ties, mut before) = (0.0, 0.0, 0.0);
    for group in all.chunk_by(|x, y| x.0.total_cmp(&y.0).is_eq()) {
        let size = group.len() as f64;
        let of_first = group.iter().filter(|(_, first)| *first).count() as f64;
        ranks += of_first * (before + f64::midpoint(size, 1.0));
        ties += size * size * size - size;
        before += size;
    }
    let u = ranks - n * (n + 1.0) / 2.0;
    let variance = n * m / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
    if variance > 0.0 { (u - n * m / 2.0) / variance.sqrt() } else { 0.0 }
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    f64::midpoint(sorted[(n - 1) / 2], sorted[n / 2])
}

/// The mean of the logarithms, as a factor.
pub(crate) fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}
