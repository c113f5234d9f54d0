//! The Gaussian process: `linalg` and `minimize`, then `kernel`, then `targets` and `fit` (what the data say about
//! the kernel), then `posterior`, `improvement` and `search`. Each knows only those before it.

mod fit;
mod improvement;
mod kernel;
mod linalg;
mod minimize;
mod posterior;
mod search;
mod targets;

use rand_chacha::ChaCha8Rng;

use self::{
    fit::{Evidence, Hyper},
    kernel::{Axis, Spots},
    posterior::Posterior,
    search::Search,
    targets::{Bend, Targets},
};
use super::{
    Error,
    draw::{feasible, uniform},
    history::{History, Merit},
    suggester::FromHistory,
};
use crate::space::{Dims, Point};

/// The first trials are random until this number has ended without failure, and one more for each parameter,
const STARTUP: usize = 10;
/// but not more than this. With fewer, more searches stay at the second best minimum.
const MAX_STARTUP: usize = 20;
/// The number of random points that may be drawn for one that is feasible and new.
const DRAWS: usize = 1000;
/// The number of ended trials that the model looks at: the best and the newest.
const MAX_ENDED: usize = 256;
/// The number of running trials, the newest.
const MAX_RUNNING: usize = 128;
/// The number of trials that length scales and noise are fitted to.
const MAX_FITTED: usize = 128;
/// They are fitted again after this share of more results.
const PATIENCE: f64 = 0.05;

/// A Gaussian process with a Matern 5/2 kernel, which suggests the point with the largest expected improvement
/// (Jones et al. 1998, "Efficient Global Optimization of Expensive Black-Box Functions").
///
/// Every parameter has its own length scale. It learns them, the noise and the scale of the results from the
/// trials. Conditional parameters, cells and choices belong to the same model. Trials that run count as if
/// they ended as expected; those that failed are as bad as the worst. In finite spaces no point is suggested twice
/// before all have been.
///
/// It needs fewer trials than [`Tpe`](super::Tpe) where results depend smoothly on the parameters, and some
/// milliseconds for a suggestion. The cost stops growing after some hundred trials: the model then looks at the
/// best and the newest ones only.
///
/// ```
/// use pollux_tune::space::{Dim, Dims};
/// use pollux_tune::{ids::TrialId, tpe::{Gp, Outcome, Suggester}};
/// use rand::SeedableRng;
/// use rand_chacha::ChaCha8Rng;
///
/// let mut gp = Gp::new(Dims::flat(vec![Dim::Continuous; 2])?);
/// let mut best = f64::INFINITY;
/// for number in 0..30 {
///     let rng = &mut ChaCha8Rng::seed_from_u64(number.into());
///     let point = gp.ask(TrialId(number), rng)?;
///     let value: f64 = point.iter().flatten().map(|x| (x - 0.7).powi(2)).sum();
///     best = best.min(value);
///     gp.tell(TrialId(number), Outcome::Done(vec![value]))?;
/// }
/// assert!(best < 1e-4, "{best}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Gp {
    history: History,
    axes: Vec<Axis>,
    fitted: Option<Fitted>,
}

/// What was learned from the first results. It depends on nothing else, so a restart does not change it.
#[derive(Debug, Clone)]
struct Fitted {
    results: usize,
    hyper: Hyper,
    bend: Bend,
}

impl Gp {
    /// A search of a space.
    #[must_use]
    pub fn new(dims: Dims) -> Self {
        let axes = Axis::all(&dims);
        Self { history: History::new(dims), axes, fitted: None }
    }

    fn best_candidate(&mut self, rng: &mut ChaCha8Rng) -> Option<Point> {
        let results = self.history.results().len();
        let due = due(results);
        let fitted = match self.fitted.take() {
            Some(fitted) if fitted.results == due => fitted,
            _ => self.fit(due),
        };
        let mut rows = self.sample(results, MAX_ENDED);
        let targets = Targets::new(&self.merits(&rows), fitted.bend);
        if targets.constant {
            // Nothing to improve on: the most uncertain points would be the corners.
            self.fitted = Some(fitted);
            return self.anywhere(rng);
        }
        let running = (0..self.history.len()).rev().filter(|&row| self.history.merit(row).is_none());
        rows.extend(running.take(MAX_RUNNING));
        let spots = self.spots(&rows);
        let posterior = Posterior::new(self.axes.clone(), spots, rows.len(), &targets.values, &fitted.hyper);
        self.fitted = Some(fitted);
        Search::new(&self.history, &posterior?).run(rng)
    }

    /// A random point that is feasible and, in finite spaces, new.
    fn anywhere(&self, rng: &mut ChaCha8Rng) -> Option<Point> {
        let dims = self.history.dims();
        (0..DRAWS).map(|_| uniform(dims, rng)).find(|point| self.history.is_worth_it(point))
    }

    /// The most likely length scales, noise and scale of results, given the first results.
    fn fit(&self, results: usize) -> Fitted {
        let rows = self.sample(results, MAX_FITTED);
        let (spots, merits) = (self.spots(&rows), self.merits(&rows));
        let mut min = f64::INFINITY;
        let mut best = Fitted { results, hyper: Hyper::start(self.axes.len()), bend: Bend::ALL[0] };
        let mut start = best.hyper.clone();
        for bend in Bend::ALL {
            let targets = Targets::new(&merits, bend);
            let (hyper, loss) = Evidence::new(&self.axes, &spots, &targets.values).fit(&start);
            start = hyper.clone();
            if loss - targets.log_stretch < min {
                min = loss - targets.log_stretch;
                best = Fitted { results, hyper, bend };
            }
        }
        best
    }

    /// At most `max` of the trials with the first results: the best half and the newest half.
    fn sample(&self, results: usize, max: usize) -> Vec<usize> {
        let mut rows: Vec<usize> =
            self.history.results()[..results].iter().map(|&row| row as usize).collect();
        if rows.len() > max {
            let newest = rows.split_off(rows.len() - max / 2);
            rows.sort_by(|&a, &b| self.history.compare(a, b));
            rows.truncate(max - max / 2);
            rows.extend(newest);
        }
        rows
    }

    fn merits(&self, rows: &[usize]) -> Vec<Merit> {
        rows.iter().filter_map(|&row| self.history.merit(row)).collect()
    }

    fn spots(&self, rows: &[usize]) -> Vec<Spots> {
        let of_axis = |axis: &Axis| {
            let mut spots = Spots::default();
            for &row in rows {
                spots.push(axis.spot(self.history.row(row)[axis.dim]));
            }
            spots
        };
        self.axes.iter().map(of_axis).collect()
    }
}

/// The number of results that the fit is made with when there are `results`.
fn due(results: usize) -> usize {
    let mut due = 1;
    loop {
        let next = due + ((due as f64 * PATIENCE) as usize).max(1);
        if next > results {
            return due.min(results);
        }
        due = next;
    }
}

impl FromHistory for Gp {
    const NAME: &'static str = "gp";

    fn history(&mut self) -> &mut History {
        &mut self.history
    }

    fn unlearn(&mut self) {
        self.fitted = None;
    }

    fn choose(&mut self, rng: &mut ChaCha8Rng) -> Result<Point, Error> {
        let startup = (STARTUP + self.axes.len()).min(MAX_STARTUP);
        let found =
            if self.history.informative() < startup { self.anywhere(rng) } else { self.best_candidate(rng) };
        let dims = self.history.dims();
        match found {
            Some(point) => Ok(point),
            None => feasible(dims, uniform(dims, rng), rng),
        }
    }
}
