//! What is minimized, with the regret as its value: formulas, and the tables that `problems.py` has written.
//!
//! `problems.py` has the same problems, and [`check`] compares the values of both.

use std::{
    error::Error,
    f64::consts::{E, PI},
    fs,
    path::Path,
    sync::Arc,
};

use pollux_tune::space::{Dim, Dims, Parent};
use serde_json::Value;

/// Tables, the main ones first.
const TABLES: [&str; 10] = [
    "hpolib-slice",
    "hpolib-protein",
    "hpobench-segment",
    "nb201-cifar10",
    "hpolib-naval",
    "hpolib-parkinsons",
    "hpobench-phoneme",
    "hpobench-vehicle",
    "nb201-cifar100",
    "nb201-imagenet",
];
/// The values of the same point in both languages differ by no more, relative to 1.
const TOLERANCE: f64 = 1e-9;

/// A problem to minimize.
#[derive(Clone)]
pub(crate) struct Problem {
    pub(crate) name: &'static str,
    pub(crate) dims: Dims,
    /// The standard deviation of what is added to each observation.
    pub(crate) noise: f64,
    source: Source,
}

type Function = dyn Fn(&[Option<f64>]) -> f64 + Send + Sync;

#[derive(Clone)]
enum Source {
    /// A formula and its smallest value.
    Formula(fn(&[Option<f64>]) -> f64, f64),
    /// Regrets, the last parameter changing fastest.
    Table(Arc<[f64]>),
    /// The regret itself.
    Function(Arc<Function>),
}

impl Problem {
    fn new(name: &'static str, dims: Dims, best: f64, formula: fn(&[Option<f64>]) -> f64) -> Self {
        Self { name, dims, noise: 0.0, source: Source::Formula(formula, best) }
    }

    /// A function with the smallest value 0, which no other language knows.
    pub(crate) fn function(
        name: &'static str,
        dims: Dims,
        regret: impl Fn(&[Option<f64>]) -> f64 + Send + Sync + 'static,
    ) -> Self {
        Self { name, dims, noise: 0.0, source: Source::Function(Arc::new(regret)) }
    }

    /// How much larger than the smallest value it is at a point, without noise.
    pub(crate) fn regret(&self, point: &[Option<f64>]) -> f64 {
        match &self.source {
            Source::Formula(formula, best) => formula(point) - best,
            Source::Function(regret) => regret(point),
            Source::Table(regrets) => {
                let place = |at: usize, (dim, x): (Dim, &Option<f64>)| {
                    at * dim.cells().expect("tables are finite") as usize
                        + x.expect("all are active") as usize
                };
                regrets[self.dims.iter().zip(point).fold(0, place)]
            }
        }
    }

    fn noisy(&self, name: &'static str, noise: f64) -> Self {
        Self { name, noise, ..self.clone() }
    }
}

/// All problems, in the order of the report; the folder is what `problems.py` has written.
pub(crate) fn all(folder: &Path) -> Result<Vec<Problem>, Box<dyn Error>> {
    let branin = Problem::new("branin", cube(2), 0.397_887_357_729_738_16, branin);
    let hartmann6 = Problem::new("hartmann6", cube(6), -3.322_368_011_391_339, hartmann6);
    let noisy = [branin.noisy("branin-noisy", 2.0), hartmann6.noisy("hartmann6-noisy", 0.2)];
    let mut all = vec![
        branin,
        hartmann6,
        Problem::new("ackley10", cube(10), 0.0, ackley10),
        Problem::new("rosenbrock5", cube(5), 0.0, rosenbrock),
        Problem::new("mixed", mixed_dims(), 0.0, mixed),
    ];
    all.extend(noisy);
    for name in TABLES {
        all.push(table(name, &fs::read_to_string(folder.join(format!("{name}.json")))?)?);
    }
    check(&all, &fs::read_to_string(folder.join("points.jsonl"))?)?;
    Ok(all)
}

fn table(name: &'static str, text: &str) -> Result<Problem, Box<dyn Error>> {
    let table: Value = serde_json::from_str(text)?;
    let mut dims = Vec::new();
    for param in table["params"].as_array().ok_or("a table has no parameters")? {
        let count = param["count"].as_u64().ok_or("a parameter has no count")?;
        let ordered = param["kind"] == "whole";
        dims.push(if ordered { Dim::Discrete { count } } else { Dim::Categorical { count: count as usize } });
    }
    let regrets = table["regrets"].as_array().ok_or("a table has no regrets")?;
    let source = Source::Table(regrets.iter().filter_map(Value::as_f64).collect());
    Ok(Problem { name, dims: Dims::flat(dims)?, noise: 0.0, source })
}

/// Fails where the value that `problems.py` found at a point is another one.
fn check(problems: &[Problem], lines: &str) -> Result<(), Box<dyn Error>> {
    for line in lines.lines() {
        let row: Value = serde_json::from_str(line)?;
        let problem = problems.iter().find(|problem| row["problem"] == problem.name).ok_or(line)?;
        let point = row["point"].as_array().ok_or(line)?.iter().map(Value::as_f64).collect::<Vec<_>>();
        let theirs = row["regret"].as_f64().ok_or(line)?;
        let ours = problem.regret(&point);
        if !problem.dims.contains(&point) || (ours - theirs).abs() > TOLERANCE * theirs.abs().max(1.0) {
            return Err(format!("problems.py and problems.rs differ: {line}, here it is {ours}").into());
        }
    }
    for problem in problems {
        if !lines.contains(&format!("\"{}\"", problem.name)) {
            return Err(format!("problems.py has no {}", problem.name).into());
        }
    }
    Ok(())
}

/// The space in which speed is measured: numbers, one of them conditional, cells and choices.
pub(crate) fn speed() -> Problem {
    let dims = vec![
        Dim::Continuous,
        Dim::Continuous,
        Dim::Discrete { count: 16 },
        Dim::Discrete { count: 1000 },
        Dim::Categorical { count: 4 },
        Dim::Continuous,
    ];
    let parents = vec![None, None, None, None, None, Some(Parent { dim: 4, choices: vec![0] })];
    let bowl = |point: &[Option<f64>]| {
        let units = [1.0, 1.0, 15.0, 999.0, 3.0, 1.0];
        point.iter().zip(units).filter_map(|(x, unit)| Some((x.as_ref()? / unit - 0.3).powi(2))).sum()
    };
    Problem::function("speed", Dims::new(dims, parents).expect("it is a space"), bowl)
}

/// A box with so many continuous parameters.
fn cube(dims: usize) -> Dims {
    Dims::flat(vec![Dim::Continuous; dims]).expect("it is a space")
}

/// The coordinates in the box `[low, high]`; 0 where a parameter is inactive.
fn scaled(point: &[Option<f64>], low: f64, high: f64) -> Vec<f64> {
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
    let parents = vec![None, None, None, child(0, 0), child(0, 1), None, child(5, 1)];
    Dims::new(dims, parents).expect("it is a space")
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
