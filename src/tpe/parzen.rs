//! A density made of one kernel for each trial and a prior over the whole space.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{
    distribution::{Column, Widths},
    draw::uniform,
    normal::log_sum_exp,
};
use crate::space::{Dims, Point};

/// A mixture of products over the parameters (Bergstra et al. 2011, section 4, for all parameters at once as in
/// Falkner et al. 2018, section 3.1).
///
/// A kernel says nothing about parameters that are inactive in its trial: there it is the prior.
#[derive(Debug)]
pub(super) struct Parzen {
    columns: Vec<Column>,
    /// Of the kernels, then of the prior; sums to 1.
    weights: Vec<f64>,
    log_weights: Vec<f64>,
}

impl Parzen {
    /// One kernel for each of the rows (NaN where a parameter is inactive) with these weights; the prior has the
    /// weight 1.
    pub(super) fn new(dims: &Dims, rows: &[&[f64]], weights: &[f64], widths: &Widths) -> Self {
        let mut values = Vec::with_capacity(rows.len());
        let mut columns = Vec::with_capacity(dims.len());
        for (dim, parameter) in dims.iter().enumerate() {
            values.clear();
            values.extend(rows.iter().map(|row| row[dim]));
            columns.push(Column::new(parameter, &values, dims.len(), widths));
        }
        let total = weights.iter().sum::<f64>() + 1.0;
        let weights: Vec<f64> = weights.iter().chain(&[1.0]).map(|weight| weight / total).collect();
        let log_weights = weights.iter().map(|&weight| libm::log(weight)).collect();
        Self { columns, weights, log_weights }
    }

    pub(super) fn draw(&self, dims: &Dims, rng: &mut ChaCha8Rng) -> Point {
        let mut left: f64 = rng.random();
        let kernels = &self.weights[..self.weights.len() - 1];
        let chosen = kernels.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        match chosen {
            Some(kernel) => dims.build(|dim, _| self.columns[dim].draw(kernel, rng)),
            None => uniform(dims, rng),
        }
    }

    /// ln of the density at a point; `scratch` is only there to be used again.
    pub(super) fn log_density(&self, point: &Point, scratch: &mut Vec<f64>) -> f64 {
        scratch.clear();
        scratch.extend_from_slice(&self.log_weights);
        let kernels = self.weights.len() - 1;
        for (column, value) in self.columns.iter().zip(point) {
            if let Some(value) = *value {
                column.add_log_density(value, &mut scratch[..kernels]);
                scratch[kernels] += column.log_prior();
            }
        }
        log_sum_exp(scratch)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;
    use crate::space::{Dim, Parent};

    /// A choice of two, and a number with the second one.
    fn conditional() -> Dims {
        let parent = Parent { dim: 0, choices: vec![1] };
        Dims::new(vec![Dim::Categorical { count: 2 }, Dim::Continuous], vec![None, Some(parent)])
            .expect("it is a space")
    }

    const WIDTHS: Widths = Widths { scale: 0.7, floor: 0.4, other: 0.5 };

    #[test]
    fn the_density_of_a_conditional_space_adds_up_to_one() {
        let rows: [&[f64]; 3] = [&[0.0, f64::NAN], &[1.0, 0.2], &[1.0, 0.25]];
        let parzen = Parzen::new(&conditional(), &rows, &[1.0, 3.0, 1.0], &WIDTHS);
        let scratch = &mut Vec::new();
        let mut density = |point: Point| parzen.log_density(&point, scratch).exp();
        let first = density(vec![Some(0.0), None]);
        let second: f64 =
            (0..1000).map(|at| density(vec![Some(1.0), Some((f64::from(at) + 0.5) / 1000.0)]) / 1000.0).sum();
        assert!((first + second - 1.0).abs() < 1e-6, "{first} + {second}");
        assert!(second > first);
    }

    #[test]
    fn draws_are_near_the_kernels() {
        let dims = conditional();
        let rows: Vec<&[f64]> = vec![&[1.0, 0.2]; 50];
        let parzen = Parzen::new(&dims, &rows, &[1.0; 50], &WIDTHS);
        let rng = &mut ChaCha8Rng::seed_from_u64(3);
        let near = (0..1000)
            .map(|_| parzen.draw(&dims, rng))
            .filter(|point| point[1].is_some_and(|x| (x - 0.2).abs() < 0.2))
            .count();
        assert!(near > 900, "{near}");
    }
}
