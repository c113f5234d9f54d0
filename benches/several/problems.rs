//! Problems with several objectives. `peers.py` has the same ones.

use std::f64::consts::{FRAC_PI_2, PI};

use pollux_tune::{
    space::{Dim, Dims, Parent},
    tpe::pareto::hypervolume,
};

/// Functions to minimize together.
pub(crate) struct Problem {
    pub(crate) name: &'static str,
    pub(crate) dims: Dims,
    pub(crate) values: fn(&[Option<f64>]) -> Vec<f64>,
    /// Where volumes are measured from.
    pub(crate) reference: Vec<f64>,
    /// The volume of the true front.
    best: f64,
}

impl Problem {
    /// How much of the volume of the true front is missing.
    pub(crate) fn missing(&self, results: &[Vec<f64>]) -> f64 {
        self.best - hypervolume(results, &self.reference)
    }
}

/// All problems, in the order of the report.
pub(crate) fn problems() -> Vec<Problem> {
    let cube = Dims::flat(vec![Dim::Continuous; 5]).expect("it is a space");
    let plane = || vec![1.1, 5.0];
    vec![
        Problem { name: "zdt1", dims: cube.clone(), values: zdt1, reference: plane(), best: 5.5 - 1.0 / 3.0 },
        Problem { name: "zdt2", dims: cube.clone(), values: zdt2, reference: plane(), best: 5.5 - 2.0 / 3.0 },
        Problem { name: "dtlz2", dims: cube, values: dtlz2, reference: vec![1.5; 3], best: 3.375 - PI / 6.0 },
        Problem {
            name: "loss-cost",
            dims: training(),
            values: loss_and_cost,
            reference: vec![2.0, 1.5],
            best: best_loss_and_cost(),
        },
    ]
}

fn active(point: &[Option<f64>]) -> Vec<f64> {
    point.iter().map(|x| x.expect("all are active")).collect()
}

/// Zitzler, Deb and Thiele 2000; its front is 1 - the root of the first objective.
fn zdt1(point: &[Option<f64>]) -> Vec<f64> {
    let x = active(point);
    let g = 1.0 + 9.0 / 4.0 * x[1..].iter().sum::<f64>();
    vec![x[0], g * (1.0 - (x[0] / g).sqrt())]
}

/// As before; its front is 1 - the square of the first objective.
fn zdt2(point: &[Option<f64>]) -> Vec<f64> {
    let x = active(point);
    let g = 1.0 + 9.0 / 4.0 * x[1..].iter().sum::<f64>();
    vec![x[0], g * (1.0 - (x[0] / g).powi(2))]
}

/// Deb et al. 2002; its front is an eighth of a sphere.
fn dtlz2(point: &[Option<f64>]) -> Vec<f64> {
    let x = active(point);
    let radius = 1.0 + x[2..].iter().map(|x| (x - 0.5).powi(2)).sum::<f64>();
    let (a, b) = (x[0] * FRAC_PI_2, x[1] * FRAC_PI_2);
    vec![radius * a.cos() * b.cos(), radius * a.cos() * b.sin(), radius * a.sin()]
}

/// Optimizer, learning rate, layers, momentum of the first optimizer, beta of the second, dropout and its rate.
fn training() -> Dims {
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

/// The loss of a training, and a cost that grows with the layers and falls with the learning rate.
fn loss_and_cost(point: &[Option<f64>]) -> Vec<f64> {
    let always = |dim: usize| point[dim].expect("it is always active");
    let (kind, learning_rate, layers) = (always(0) as usize, always(1), always(2));
    let bowl = |x: Option<f64>, middle: f64| x.map(|x| 2.0 * (x - middle).powi(2));
    let loss = 4.0 * (learning_rate - 0.62 + 0.03 * (layers - 4.0)).powi(2)
        + 0.02 * (layers - 4.0).powi(2)
        + [0.0, 0.1, 0.25][kind]
        + bowl(point[3], 0.83).unwrap_or(0.0)
        + bowl(point[4], 0.2).unwrap_or(0.0)
        + bowl(point[6], 0.35).unwrap_or(0.3);
    let cost = (layers + 1.0) / 8.0 * [1.0, 0.8, 0.5][kind] + 0.5 * (1.0 - learning_rate);
    vec![loss, cost]
}

/// All that does not cost anything at its best, the rest on a fine grid.
fn best_loss_and_cost() -> f64 {
    let points = (0..3 * 8 * 4001).map(|at| {
        let (kind, layers, step) = (at % 3, f64::from(at / 3 % 8), f64::from(at / 24));
        let of = |wanted: i32, value: f64| (kind == wanted).then_some(value);
        let rest = [of(0, 0.83), of(1, 0.2), Some(1.0), Some(0.35)];
        loss_and_cost(&[&[Some(f64::from(kind)), Some(step / 4000.0), Some(layers)], &rest[..]].concat())
    });
    hypervolume(&points.collect::<Vec<_>>(), &[2.0, 1.5])
}
