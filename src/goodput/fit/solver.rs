//! Levenberg-Marquardt as an argmin solver.
//!
//! argmin has no least-squares solver with damping, and the line searches behind its L-BFGS have no limit on their
//! steps: on measured profiles one was seen to run forever. A fit must always end, so each iteration here is one
//! linear system and one evaluation, and the executor counts the iterations.

use argmin::core::{
    CostFunction, Error, Gradient, Hessian, IterState, KV, Problem, Solver, TerminationReason,
    TerminationStatus,
};

pub(crate) type Matrix = Vec<Vec<f64>>;
type FitState = IterState<Vec<f64>, Vec<f64>, (), Matrix, (), f64>;

pub(super) struct LevenbergMarquardt {
    damping: f64,
    converged: bool,
}

impl LevenbergMarquardt {
    const DAMPING_MAX: f64 = 1e10;
    /// A step that changes the cost by less than this share (or this much, near a perfect fit) is the last one.
    const TOLERANCE: f64 = 1e-9;

    pub(super) const fn new() -> Self {
        Self { damping: 1e-3, converged: false }
    }
}

impl<O> Solver<O, FitState> for LevenbergMarquardt
where
    O: CostFunction<Param = Vec<f64>, Output = f64>
        + Gradient<Param = Vec<f64>, Gradient = Vec<f64>>
        + Hessian<Param = Vec<f64>, Hessian = Matrix>,
{
    fn name(&self) -> &'static str {
        "Levenberg-Marquardt"
    }

    fn init(&mut self, problem: &mut Problem<O>, state: FitState) -> Result<(FitState, Option<KV>), Error> {
        let start = state.param.clone().unwrap_or_default();
        let cost = problem.cost(&start)?;
        self.converged = start.is_empty() || !cost.is_finite();
        Ok((state.cost(cost), None))
    }

    fn next_iter(
        &mut self,
        problem: &mut Problem<O>,
        state: FitState,
    ) -> Result<(FitState, Option<KV>), Error> {
        let at = state.param.clone().unwrap_or_default();
        let (gradient, hessian) = (problem.gradient(&at)?, problem.hessian(&at)?);
        while self.damping < Self::DAMPING_MAX {
            let tried: Option<Vec<f64>> = damped_step(&hessian, &gradient, self.damping)
                .map(|step| at.iter().zip(step).map(|(value, step)| value - step).collect());
            let better = match tried {
                Some(tried) => Some((problem.cost(&tried)?, tried)).filter(|(cost, _)| *cost < state.cost),
                None => None,
            };
            if let Some((cost, tried)) = better {
                self.damping = (self.damping * 0.2).max(1e-9);
                self.converged = state.cost - cost < Self::TOLERANCE * (1.0 + cost);
                return Ok((state.param(tried).cost(cost), None));
            }
            self.damping *= 5.0;
        }
        self.converged = true;
        let cost = state.cost;
        Ok((state.param(at).cost(cost), None))
    }

    fn terminate(&mut self, _state: &FitState) -> TerminationStatus {
        if self.converged {
            TerminationStatus::Terminated(TerminationReason::SolverConverged)
        } else {
            TerminationStatus::NotTerminated
        }
    }
}

/// Solves `(H + damping * diag(H)) step = g`, of which the lower triangle is given; none if that is not positive definite.
pub(crate) fn damped_step(hessian: &Matrix, gradient: &[f64], damping: f64) -> Option<Vec<f64>> {
    let lower = cholesky(hessian, damping)?;
    let mut step = gradient.to_vec();
    solve(&lower, &mut step);
    Some(step)
}

/// The inverse of a positive definite matrix of which the lower triangle is given.
pub(super) fn inverse(matrix: &Matrix) -> Option<Matrix> {
    let lower = cholesky(matrix, 0.0)?;
    let unit = |i: usize| {
        let mut column = vec![0.0; matrix.len()];
        column[i] = 1.0;
        solve(&lower, &mut column);
        column
    };
    Some((0..matrix.len()).map(unit).collect())
}

/// L of `L L^T = H + damping * diag(H)`; none if that is not positive definite.
fn cholesky(matrix: &Matrix, damping: f64) -> Option<Matrix> {
    let n = matrix.len();
    let mut lower = matrix.clone();
    for (i, row) in lower.iter_mut().enumerate() {
        row[i] = row[i].mul_add(1.0 + damping, 1e-12);
    }
    for i in 0..n {
        for j in 0..=i {
            let (head, tail) = lower.split_at_mut(i);
            let row_j: &[f64] = if j == i { &tail[0][..j] } else { &head[j][..j] };
            let dot: f64 = tail[0][..j].iter().zip(row_j).map(|(a, b)| a * b).sum();
            let value = tail[0][j] - dot;
            if i == j {
                if value.is_nan() || value <= 0.0 {
                    return None;
                }
                tail[0][j] = value.sqrt();
            } else {
                tail[0][j] = value / head[j][j];
            }
        }
    }
    Some(lower)
}

/// Solves `L L^T x = b` in place.
fn solve(lower: &Matrix, x: &mut [f64]) {
    let n = x.len();
    for i in 0..n {
        let dot: f64 = lower[i][..i].iter().zip(&*x).map(|(a, b)| a * b).sum();
        x[i] = (x[i] - dot) / lower[i][i];
    }
    for i in (0..n).rev() {
        let dot: f64 = (i + 1..n).map(|k| lower[k][i] * x[k]).sum();
        x[i] = (x[i] - dot) / lower[i][i];
    }
}
