//! Functions to minimize, with the regret as their value. `peers.py` has the same ones.

use std::f64::consts::{E, PI};

use pollux_tune::space::{Dim, Dims, Parent};

/// A function to minimize.
#[derive(Clone)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) dims: Dims,
    /// The standard deviation of what is added to each observation.
    pub(crate) noise: f64,
    /// What the smallest value is.
    best: f64,
    value: fn(&[Option<f64>]) -> f64,
}

impl Function {
    /// A function of a search space whose smallest value is known.
    pub(crate) fn new(name: &'static str, dims: Dims, best: f64, value: fn(&[Option<f64>]) -> f64) -> Self {
        Self { name, dims, noise: 0.0, best, value }
    }

    /// How much larger than the smallest value it is at a point, without noise.
    pub(crate) fn regret(&self, point: &[Option<f64>]) -> f64 {
        (self.value)(point) - self.best
    }

    fn noisy(&self, name: &'static str, noise: f64) -> Self {
        Self { name, noise, ..self.clone() }
    }
}

/// All functions, in the order of the report.
pub(crate) fn all() -> Vec<Function> {
    let branin = Function::new("branin", cube(2), 0.397_887_357_729_738_16, branin);
    let hartmann6 = Function::new("hartmann6", cube(6), -3.322_368_011_391_339, hartmann6);
    let cells = Dims::flat(vec![Dim::Categorical { count: 5 }; 6]).expect("it is a space");
    let noisy = [branin.noisy("branin-noisy", 2.0), hartmann6.noisy("hartmann6-noisy", 0.2)];
    let mut all = vec![
        branin,
        hartmann6,
        Function::new("ackley10", cube(10), 0.0, ackley10),
        Function::new("rosenbrock5", cube(5), 0.0, rosenbrock),
        Function::new("mixed", mixed_dims(), 0.0, mixed),
        Function::new("cells6", cells, best_cells(), cells6),
    ];
    all.extend(noisy);
    all
}

/// A box with so many continuous parameters.
pub(crate) fn cube(dims: usize) -> Dims {
    Dims::flat(vec![Dim::Continuous; dims]).expect("it is a space")
}

/// The coordinates in the box `[low, high]`; 0 where a parameter is inactive.
pub(crate) fn scaled(point: &[Option<f64>], low: f64, high: f64) -> Vec<f64> {
    point.iter().map(|x| low + x.unwrap_or(0.0) * (high - low)).collect()
}

fn branin(point: &[Option<f64>]) -> f64 {
    let (x, y) = (scaled(point, -5.0, 10.0)[0], scaled(point, 0.0, 15.0)[1]);
    let t = y - 5.1 / (4.0 * PI * PI) * x * x + 5.0 / PI * x - 6.0;
    t * t + 10.0 * (1.0 - 1.0 / (8.0 * PI)) * x.cos() + 10.0
}

fn hartmann6(point: &[Option<f64>]) -> f64 {
    const A: [[f64; 6]; 4] = [
        [10.0, 3.0, 17.0, 3.5, 1.7, 8.0],
        [0.05, 10.0, 17.0, 0.1, 8.0, 14.0],
        [3.0, 3.5, 1.7, 10.0, 17.0, 8.0],
        [17.0, 8.0, 0.05, 10.0, 0.1, 14.0],
    ];
    const P: [[f64; 6]; 4] = [
        [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
        [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
        [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
        [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
    ];
    let x = scaled(point, 0.0, 1.0);
    let well = |row: usize| -(0..6).map(|i| A[row][i] * (x[i] - P[row][i]).powi(2)).sum::<f64>();
    -[1.0, 1.2, 3.0, 3.2].iter().enumerate().map(|(row, depth)| depth * well(row).exp()).sum::<f64>()
}

fn ackley10(point: &[Option<f64>]) -> f64 {
    const SHIFT: [f64; 10] = [9.1, -14.3, 12.7, -5.9, 16.2, -10.4, 7.5, -17.8, 4.6, -12.1];
    let z: Vec<f64> = scaled(point, -32.768, 32.768).iter().zip(SHIFT).map(|(x, s)| x - s).collect();
    let n = z.len() as f64;
    let square = (z.iter().map(|v| v * v).sum::<f64>() / n).sqrt();
    let cosine = z.iter().map(|v| (2.0 * PI * v).cos()).sum::<f64>() / n;
    -20.0 * (-0.2 * square).exp() - cosine.exp() + 20.0 + E
}

fn rosenbrock(point: &[Option<f64>]) -> f64 {
    let x = scaled(point, -5.0, 10.0);
    x.windows(2).map(|x| 100.0 * (x[1] - x[0] * x[0]).powi(2) + (1.0 - x[0]).powi(2)).sum()
}

/// Optimizer, learning rate, layers, momentum of the first optimizer, beta of the second, dropout and its rate.
fn mixed_dims() -> Dims {
    let dims = vec![
        Dim::Categorical { count: 3 },
        Dim::Continuous,
        Dim::Discrete { count: 8 },
        Dim::Continuous,
        Dim::Continuous,
        Dim::Categorical { count: 2 },
        Dim::Continuous,
    ];
    let child = |dim, choice| Some(Parent { dim, choices: vec![choice] });
    Dims::new(dims, vec![None, None, None, child(0, 0), child(0, 1), None, child(5, 1)])
        .expect("it is a space")
}

fn mixed(point: &[Option<f64>]) -> f64 {
    let kind = point[0].expect("it is always active") as usize;
    let learning_rate = point[1].expect("it is always active");
    let layers = point[2].expect("it is always active") - 4.0;
    let bowl = |x: Option<f64>, middle: f64| x.map(|x| 2.0 * (x - middle).powi(2));
    4.0 * (learning_rate - 0.62 + 0.03 * layers).powi(2)
        + 0.02 * layers * layers
        + [0.0, 0.1, 0.25][kind]
        + bowl(point[3], 0.83).unwrap_or(0.0)
        + bowl(point[4], 0.2).unwrap_or(0.0)
        + bowl(point[6], 0.35).unwrap_or(0.3)
}

/// Six unordered choices of five, main effects and interactions of neighbours, as a table of networks has.
fn cells6(point: &[Option<f64>]) -> f64 {
    let cells: Vec<f64> = scaled(point, 0.0, 1.0);
    let alone = |(i, &cell): (usize, &f64)| effect(i as f64, cell, 0.0);
    let pairs = cells.windows(2).enumerate().map(|(i, c)| 0.7 * effect(10.0 + i as f64, c[0], c[1]));
    cells.iter().enumerate().map(alone).sum::<f64>() + pairs.sum::<f64>()
}

fn effect(i: f64, j: f64, k: f64) -> f64 {
    let v = (12.9898 * i + 78.233 * j + 37.719 * k + 1.0).sin() * 43758.5453;
    v - v.floor()
}

fn best_cells() -> f64 {
    let point = |at: u32| (0..6).map(|i| Some(f64::from(at / 5_u32.pow(i) % 5))).collect::<Vec<_>>();
    (0..5_u32.pow(6)).map(|at| cells6(&point(at))).fold(f64::INFINITY, f64::min)
}
