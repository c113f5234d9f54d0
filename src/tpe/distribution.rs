//! The kernels of all trials of a set along one parameter.

use libm::{exp, log, sqrt};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::normal::{draw_in_unit, log_peak, mass, mass_of_unit};
use crate::space::Dim;

/// Up to this number of ordered cells have their probabilities in a table; more are as good as a continuum.
const TABLE: u64 = 64;
/// Kernels are at least this wide compared to a cell: then its neighbours have a chance.
const MIN_CELLS: f64 = 0.25;
/// More trials than this do not make the narrowest kernel any narrower ("magic clipping").
const NARROWEST: f64 = 100.0;

/// How wide kernels are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Widths {
    /// The standard deviation over that of Scott's rule.
    pub(super) scale: f64,
    /// The smallest standard deviation, over 1 / (the number of trials + 2).
    pub(super) floor: f64,
    /// The weight of the uniform distribution in the kernel of a choice, in trials for each choice.
    pub(super) other: f64,
}

/// Normal distributions truncated at 0 and 1.
#[derive(Debug)]
pub(super) struct Smooth {
    dim: Dim,
    sd: f64,
    /// 1/2 where the parameter is inactive.
    mean: Vec<f64>,
    /// 1 / (2 variance); 0 where the parameter is inactive.
    steepness: Vec<f64>,
    /// ln of the density at the mean; the prior's where the parameter is inactive.
    log_peak: Vec<f64>,
    log_prior: f64,
}

/// Probabilities of cells.
#[derive(Debug)]
pub(super) struct Cells {
    dim: Dim,
    count: u32,
    spread: Spread,
    /// The cell of each trial; `count` where the parameter is inactive.
    cell: Vec<u32>,
    /// ln of the probability of a cell (row) by the cell of the trial (column), for cells in order.
    table: Vec<f64>,
    log_prior: f64,
}

/// How a kernel reaches other cells than its own.
#[derive(Debug, Clone, Copy)]
enum Spread {
    /// A normal distribution over cells in order, of this standard deviation.
    Ordered(f64),
    /// Any choice with the probability `other`; `here` and `elsewhere` are ln of the probabilities that its own
    /// choice and another one have then.
    Unordered { other: f64, here: f64, elsewhere: f64 },
}

/// The kernels along one parameter.
#[derive(Debug)]
pub(super) enum Column {
    /// Of numbers, and of cells that are as good as numbers because there are many.
    Smooth(Smooth),
    /// Of cells and of choices.
    Cells(Cells),
}

impl Column {
    /// `values` are NaN where the parameter is inactive; `dims` is how many parameters there are.
    pub(super) fn new(dim: Dim, values: &[f64], dims: usize, widths: &Widths) -> Self {
        match dim {
            Dim::Discrete { count } if count <= TABLE => {
                Self::Cells(Cells::ordered(dim, count as u32, values, dims, widths))
            }
            Dim::Categorical { count } => Self::Cells(Cells::unordered(dim, count as u32, values, widths)),
            _ => Self::Smooth(Smooth::new(dim, values, dims, widths)),
        }
    }

    pub(super) fn log_prior(&self) -> f64 {
        match self {
            Self::Smooth(Smooth { log_prior, .. }) | Self::Cells(Cells { log_prior, .. }) => *log_prior,
        }
    }

    /// Adds ln of the density of each kernel (of the probability, for cells) to `sums`.
    pub(super) fn add_log_density(&self, value: f64, sums: &mut [f64]) {
        match self {
            Self::Smooth(smooth) => smooth.add_log_density(value, sums),
            Self::Cells(cells) => cells.add_log_density(value, sums),
        }
    }

    /// Draws a value from one kernel.
    pub(super) fn draw(&self, kernel: usize, rng: &mut ChaCha8Rng) -> f64 {
        match self {
            Self::Smooth(smooth) => smooth.draw(kernel, rng.random()),
            Self::Cells(cells) => cells.draw(kernel, rng.random()),
        }
    }
}

impl Smooth {
    fn new(dim: Dim, values: &[f64], dims: usize, widths: &Widths) -> Self {
        let count = dim.cells().map(|count| count as f64);
        let centre = |value: f64| count.map_or(value, |count| (value + 0.5) / count);
        let min = count.map_or(0.0, |count| MIN_CELLS / count);
        let sd = bandwidth(values.iter().map(|&value| centre(value)), dims, widths).max(min);
        let log_prior = count.map_or(0.0, |count| -log(count));
        let peak = log_peak(sd) + log_prior;
        let steepness = 0.5 / (sd * sd);
        let mut smooth = Self {
            dim,
            sd,
            mean: Vec::with_capacity(values.len()),
            steepness: Vec::with_capacity(values.len()),
            log_peak: Vec::with_capacity(values.len()),
            log_prior,
        };
        for &value in values {
            let active = !value.is_nan();
            let mean = if active { centre(value) } else { 0.5 };
            let inside = if active { mass_of_unit(mean, sd) } else { 1.0 };
            let kept = if inside < 1.0 { peak - log(inside) } else { peak };
            smooth.mean.push(mean);
            smooth.steepness.push(if active { steepness } else { 0.0 });
            smooth.log_peak.push(if active { kept } else { log_prior });
        }
        smooth
    }

    fn add_log_density(&self, value: f64, sums: &mut [f64]) {
        let x = self.dim.cells().map_or(value, |count| (value + 0.5) / count as f64);
        let kernels = self.mean.iter().zip(&self.steepness).zip(&self.log_peak);
        for (sum, ((mean, steepness), log_peak)) in sums.iter_mut().zip(kernels) {
            let distance = x - mean;
            *sum += log_peak - steepness * (distance * distance);
        }
    }

    fn draw(&self, kernel: usize, uniform: f64) -> f64 {
        let active = self.steepness[kernel] > 0.0;
        self.dim.at(if active { draw_in_unit(self.mean[kernel], self.sd, uniform) } else { uniform })
    }
}

impl Cells {
    fn ordered(dim: Dim, count: u32, values: &[f64], dims: usize, widths: &Widths) -> Self {
        let width = f64::from(count).recip();
        let sd = bandwidth(values.iter().map(|value| (value + 0.5) * width), dims, widths);
        let sd = sd.max(MIN_CELLS * width);
        let reach = |cells: u32| {
            let distance = f64::from(cells) * width;
            log(mass((distance - 0.5 * width) / sd, (distance + 0.5 * width) / sd).max(f64::MIN_POSITIVE))
        };
        let log_mass: Vec<f64> = (0..count).map(reach).collect();
        let inside = |cell: u32| log(mass_of_unit((f64::from(cell) + 0.5) * width, sd));
        let log_inside: Vec<f64> = (0..count).map(inside).collect();
        let mut cells = Self::new(dim, count, Spread::Ordered(sd), values);
        for cell in 0..count {
            let kernels = (0..count).zip(&log_inside);
            cells.table.extend(
                kernels.map(|(around, log_inside)| log_mass[cell.abs_diff(around) as usize] - log_inside),
            );
            cells.table.push(cells.log_prior);
        }
        cells
    }

    fn unordered(dim: Dim, count: u32, values: &[f64], widths: &Widths) -> Self {
        let active = values.iter().filter(|value| !value.is_nan()).count() as f64;
        let doubt = widths.other * f64::from(count);
        let other = doubt / (doubt + active + 1.0);
        let elsewhere = log(other / f64::from(count));
        let here = log(other / f64::from(count) + (1.0 - other));
        Self::new(dim, count, Spread::Unordered { other, here, elsewhere }, values)
    }

    fn new(dim: Dim, count: u32, spread: Spread, values: &[f64]) -> Self {
        let cell = |&value: &f64| if value.is_nan() { count } else { value as u32 };
        let cell = values.iter().map(cell).collect();
        Self { dim, count, spread, cell, table: Vec::new(), log_prior: -log(f64::from(count)) }
    }

    fn add_log_density(&self, value: f64, sums: &mut [f64]) {
        let kernels = sums.iter_mut().zip(&self.cell);
        match self.spread {
            Spread::Ordered(_) => {
                let width = self.count as usize + 1;
                let row = &self.table[value as usize * width..][..width];
                kernels.for_each(|(sum, &around)| *sum += row[around as usize]);
            }
            Spread::Unordered { here, elsewhere, .. } => {
                let cell = value as u32;
                kernels.for_each(|(sum, &around)| {
                    let inactive = around == self.count;
                    let active = if around == cell { here } else { elsewhere };
                    *sum += if inactive { self.log_prior } else { active };
                });
            }
        }
    }

    fn draw(&self, kernel: usize, uniform: f64) -> f64 {
        let around = self.cell[kernel];
        if around == self.count {
            return self.dim.at(uniform);
        }
        match self.spread {
            Spread::Ordered(sd) => {
                let centre = (f64::from(around) + 0.5) / f64::from(self.count);
                self.dim.at(draw_in_unit(centre, sd, uniform))
            }
            Spread::Unordered { other, .. } if uniform < other => self.dim.at(uniform / other),
            Spread::Unordered { .. } => f64::from(around),
        }
    }
}

/// Scott's rule for half as many parameters as there are, scaled, within bounds. The prior counts as one more
/// trial, so that a single one is as uncertain as the prior.
fn bandwidth(values: impl Iterator<Item = f64>, dims: usize, widths: &Widths) -> f64 {
    let (mut n, mut mean, mut squares) = (0.0, 0.0, 0.0);
    for value in values.filter(|value| !value.is_nan()) {
        n += 1.0;
        let distance = value - mean;
        mean += distance / n;
        squares += distance * (value - mean);
    }
    let all = n + 1.0;
    let from_prior = 1.0 / 12.0 + (mean - 0.5) * (mean - 0.5) * n / all;
    let sd = sqrt((squares + from_prior) / all);
    let scott = exp(-log(all) / (0.5 * dims as f64 + 4.0));
    let floor = widths.floor / (all + 1.0).min(NARROWEST);
    (widths.scale * sd * scott).clamp(floor, 1.0)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    const WIDTHS: Widths = Widths { scale: 0.7, floor: 0.4, other: 0.5 };
    const KERNELS: [f64; 4] = [2.0, 2.0, 5.0, f64::NAN];

    fn log_densities(column: &Column, value: f64) -> Vec<f64> {
        let mut sums = vec![0.0; KERNELS.len()];
        column.add_log_density(value, &mut sums);
        sums
    }

    #[test]
    fn kernels_of_cells_add_up_to_one() {
        for dim in [Dim::Discrete { count: 6 }, Dim::Categorical { count: 6 }, Dim::Discrete { count: 200 }] {
            let column = Column::new(dim, &KERNELS, 2, &WIDTHS);
            let mut totals = [0.0; KERNELS.len()];
            for cell in 0..dim.cells().expect("it is finite") {
                for (total, log) in totals.iter_mut().zip(log_densities(&column, cell as f64)) {
                    *total += exp(log);
                }
            }
            assert!(totals.iter().all(|total| (total - 1.0_f64).abs() < 1e-3), "{dim:?}: {totals:?}");
        }
    }

    #[test]
    fn kernels_of_numbers_add_up_to_one() {
        let values = [0.0, 0.3, 0.31, f64::NAN];
        let column = Column::new(Dim::Continuous, &values, 2, &WIDTHS);
        let mut totals = [0.0; 4];
        for step in 0..10_000 {
            for (total, log) in totals.iter_mut().zip(log_densities(&column, (f64::from(step) + 0.5) / 1e4)) {
                *total += exp(log) / 1e4;
            }
        }
        assert!(totals.iter().all(|total| (total - 1.0_f64).abs() < 1e-6), "{totals:?}");
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for dim in [Dim::Discrete { count: 6 }, Dim::Categorical { count: 6 }] {
            let column = Column::new(dim, &KERNELS, 2, &WIDTHS);
            for kernel in 0..KERNELS.len() {
                let mut counts = [0.0; 6];
                for _ in 0..20_000 {
                    counts[column.draw(kernel, &mut rng) as usize] += 1.0 / 20_000.0;
                }
                for (cell, count) in counts.iter().enumerate() {
                    let probability = exp(log_densities(&column, cell as f64)[kernel]);
                    assert!((count - probability).abs() < 0.015, "{dim:?} {kernel} {cell}: {count}");
                }
            }
        }
    }

    #[test]
    fn more_trials_make_narrower_kernels() {
        let width = |n: u32| {
            bandwidth((0..n).map(|at| 0.4 + 0.2 * f64::from(at) / f64::from(n.max(2) - 1)), 2, &WIDTHS)
        };
        assert!(width(0) > width(2) && width(2) > width(20) && width(20) > width(200));
        let same = bandwidth(std::iter::repeat_n(0.5, 1_000_000), 2, &WIDTHS);
        assert!((same - 0.004).abs() < 1e-12, "{same}");
    }
}
