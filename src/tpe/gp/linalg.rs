//! Cholesky factors of small dense matrices, in plain loops that the compiler turns into vector instructions.
//!
//! The order of all sums is fixed, so that the same numbers come out on every machine; a library that chooses
//! its code by the processor does not promise that.

/// The number of right-hand sides that are solved at once.
pub(super) const LANES: usize = 8;

/// A square matrix, row by row. What is above the diagonal does not matter where only a triangle is meant.
#[derive(Debug, Clone, Default)]
pub(super) struct Matrix {
    n: usize,
    values: Vec<f64>,
}

impl Matrix {
    pub(super) fn zeros(n: usize) -> Self {
        Self { n, values: vec![0.0; n * n] }
    }

    pub(super) fn len(&self) -> usize {
        self.n
    }

    pub(super) fn row(&self, i: usize) -> &[f64] {
        &self.values[i * self.n..][..self.n]
    }

    pub(super) fn row_mut(&mut self, i: usize) -> &mut [f64] {
        &mut self.values[i * self.n..][..self.n]
    }

    /// Replaces the lower triangle by its Cholesky factor. It fails if the matrix is not positive definite.
    pub(super) fn factor(&mut self) -> Option<()> {
        for i in 0..self.n {
            let (before, rest) = self.values.split_at_mut(i * self.n);
            let row = &mut rest[..self.n];
            for j in 0..i {
                let other = &before[j * self.n..][..=j];
                row[j] = (row[j] - dot(&row[..j], &other[..j])) / other[j];
            }
            let pivot = row[i] - dot(&row[..i], &row[..i]);
            if !(pivot > 0.0 && pivot.is_finite()) {
                return None;
            }
            row[i] = pivot.sqrt();
        }
        Some(())
    }

    /// ln of the determinant of the matrix whose factor this is.
    pub(super) fn log_determinant(&self) -> f64 {
        (0..self.n).map(|i| 2.0 * libm::log(self.row(i)[i])).sum()
    }

    /// Solves L x = b in place; b may be shorter than the factor, which is then cut off.
    pub(super) fn solve_lower(&self, b: &mut [f64]) {
        for i in 0..b.len() {
            let row = self.row(i);
            b[i] = (b[i] - dot(&row[..i], &b[..i])) / row[i];
        }
    }

    /// Solves transposed(L) x = b in place.
    pub(super) fn solve_upper(&self, b: &mut [f64]) {
        for i in (0..b.len()).rev() {
            let row = self.row(i);
            b[i] /= row[i];
            let x = b[i];
            for (b, l) in b[..i].iter_mut().zip(row) {
                *b -= l * x;
            }
        }
    }

    /// Solves L x = b for several b at once; each row of `b` has one element of each.
    pub(super) fn solve_lower_lanes(&self, b: &mut [[f64; LANES]]) {
        for i in 0..b.len() {
            let row = self.row(i);
            let (before, rest) = b.split_at_mut(i);
            let mut sums = rest[0];
            for (l, x) in row.iter().zip(before.iter()) {
                for lane in 0..LANES {
                    sums[lane] -= l * x[lane];
                }
            }
            rest[0] = sums.map(|sum| sum / row[i]);
        }
    }

    /// The lower triangle of the inverse of the matrix whose factor this is.
    pub(super) fn inverse(&self) -> Self {
        let n = self.n;
        // First the inverse of the factor, row by row.
        let mut x = Self::zeros(n);
        for i in 0..n {
            let (before, rest) = x.values.split_at_mut(i * n);
            let (row, l) = (&mut rest[..n], self.row(i));
            for j in 0..i {
                add(&mut row[..=j], -l[j], &before[j * n..][..=j]);
            }
            row[i] = 1.0;
            let scale = 1.0 / l[i];
            row[..=i].iter_mut().for_each(|value| *value *= scale);
        }
        let mut inverse = Self::zeros(n);
        for i in 0..n {
            let row = x.row(i);
            for j in 0..=i {
                add(&mut inverse.row_mut(j)[..=j], row[j], &row[..=j]);
            }
        }
        inverse
    }
}

/// Adds a multiple of one vector to another.
fn add(to: &mut [f64], factor: f64, from: &[f64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

/// The inner product, summed in eight lanes.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let tail: f64 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    let mut sums = [0.0; LANES];
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let [s0, s1, s2, s3, s4, s5, s6, s7] = sums;
    ((s0 + s4) + (s1 + s5)) + ((s2 + s6) + (s3 + s7)) + tail
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Something positive definite: 1 / (1 + |i - j|), and 2 on the diagonal.
    fn sample(n: usize) -> Matrix {
        let mut matrix = Matrix::zeros(n);
        for i in 0..n {
            for j in 0..n {
                matrix.row_mut(i)[j] = if i == j { 2.0 } else { 1.0 / (1.0 + i.abs_diff(j) as f64) };
            }
        }
        matrix
    }

    #[test]
    fn a_factor_solves_and_inverts() {
        for n in [1, 2, 7, 8, 9, 30] {
            let matrix = sample(n);
            let mut factor = matrix.clone();
            factor.factor().expect("it is positive definite");
            let b: Vec<f64> = (0..n).map(|i| (i as f64).sin()).collect();
            let mut x = b.clone();
            factor.solve_lower(&mut x);
            let mut lanes: Vec<[f64; LANES]> = b.iter().map(|b| [*b; LANES]).collect();
            factor.solve_lower_lanes(&mut lanes);
            assert!(lanes.iter().zip(&x).all(|(lanes, x)| (lanes[3] - x).abs() < 1e-12));
            factor.solve_upper(&mut x);
            let inverse = factor.inverse();
            for i in 0..n {
                assert!((dot(matrix.row(i), &x) - b[i]).abs() < 1e-12, "{n}");
                let row: f64 = (0..n).map(|j| inverse.row(i.max(j))[i.min(j)] * b[j]).sum();
                assert!((row - x[i]).abs() < 1e-12, "{n}");
            }
        }
    }

    #[test]
    fn a_small_one_by_hand() {
        let mut matrix = Matrix::zeros(2);
        matrix.row_mut(0)[0] = 4.0;
        matrix.row_mut(1).copy_from_slice(&[2.0, 10.0]);
        matrix.factor().expect("it is positive definite");
        // The factor is 2, (1, 3); the determinant 36.
        assert!((matrix.log_determinant() - libm::log(36.0)).abs() < 1e-14);
        let mut part = [6.0];
        matrix.solve_lower(&mut part);
        assert!((part[0] - 3.0).abs() < 1e-15, "the upper left part only");
    }

    #[test]
    fn what_is_not_positive_definite_is_refused() {
        let mut matrix = Matrix::zeros(2);
        matrix.row_mut(0)[0] = 1.0;
        matrix.row_mut(1).copy_from_slice(&[1.0, 1.0]);
        assert!(matrix.factor().is_none());
        matrix.row_mut(0)[0] = f64::NAN;
        assert!(matrix.factor().is_none());
    }
}
