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
    expert::Expert,
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
/// The number of trials of an earlier study,
const MAX_FOREIGN: usize = 64;
/// and of results of this one from which on it does not look at them.
const MAX_GUIDED: usize = 200;
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
    expert: Option<Expert>,
    startup: usize,
    fitted: Option<Fitted>,
}

/// What was learned from the first results. It depends on nothing else, so a restart does not change it.
#[derive(Debug, Clone)]
struct Fitted {
    results: usize,
    /// The number of trials of an earlier study.
    foreign: usize,
    hyper: Hyper,
    bend: Bend,
}

impl Gp {
    /// A search of a space.
    #[must_use]
    pub fn new(dims: Dims) -> Self {
        let (axes, expert) = (Axis::all(&dims), Expert::new(&dims));
        let startup = (STARTUP + axes.len()).min(MAX_STARTUP);
        Self { history: History::new(dims), axes, expert, startup, fitted: None }
    }

    /// With at most so many random trials first, where a study is short of time.
    #[must_use]
    pub fn with_startup(mut self, most: usize) -> Self {
        self.startup = self.startup.min(most);
        self
    }

    fn best_candidate(&mut self, rng: &mut ChaCha8Rng) -> Option<Point> {
        let results = self.history.results().len();
        let due = due(results);
        let fitted = match self.fitted.take() {
            Some(fitted) if fitted.results == due && fitted.foreign == self.history.foreign().len() => fitted,
            _ => self.fit(due),
        };
        let mut rows = self.sample(results, MAX_ENDED);
        let foreign = rows.len();
        rows = [self.foreign(due), rows].concat();
        let foreign = rows.len() - foreign;
        let targets = Targets::new(&self.merits(&rows), fitted.bend);
        if targets.constant {
            // Nothing to improve on: the most uncertain points would be the corners.
            self.fitted = Some(fitted);
            return self.anywhere(rng);
        }
        let running = (0..self.history.len()).rev().filter(|&row| self.history.merit(row).is_none());
        rows.extend(running.take(MAX_RUNNING));
        let axes = self.axes(foreign, due);
        let spots = self.spots(&axes, &rows);
        let posterior = Posterior::new(axes, spots, rows.len(), foreign, &targets.values, &fitted.hyper);
        self.fitted = Some(fitted);
        let strength = self.expert.as_ref().map_or(0.0, |expert| expert.strength(&self.history));
        let expert = self.expert.as_ref().filter(|_| strength > 0.0);
        Search::new(&self.history, &posterior?, expert.map(|expert| (expert, strength))).run(rng)
    }

    /// Those of an earlier study that the model looks at after these results: the best and the last half.
    fn foreign(&self, results: usize) -> Vec<usize> {
        let max = if results < MAX_GUIDED { MAX_FOREIGN } else { 0 };
        let ranked = self.history.foreign_best().iter().map(|&row| row as usize);
        if ranked.len() <= max {
            return ranked.collect();
        }
        let (best, mut rest) = (ranked.clone().take(max / 2), ranked.skip(max / 2).collect::<Vec<_>>());
        rest.sort_unstable();
        best.chain(rest.split_off(rest.len() - max / 2)).collect()
    }

    /// With one more that tells apart the trials of an earlier study, if there are any. Before the first result nothing speaks for a
    /// difference.
    fn axes(&self, foreign: usize, results: usize) -> Vec<Axis> {
        let task = (foreign > 0 && results > 0).then(|| Axis::task(self.history.dims().len()));
        self.axes.iter().copied().chain(task).collect()
    }

    /// A random point that is feasible and, in finite spaces, new.
    fn anywhere(&self, rng: &mut ChaCha8Rng) -> Option<Point> {
        let dims = self.history.dims();
        (0..DRAWS).map(|_| uniform(dims, rng)).find(|point| self.history.is_worth_it(point))
    }

    /// What is tried again of an earlier study: until there is a result, every second trial is the next best of it.
    fn next_of_earlier(&self) -> Option<usize> {
        let own = self.history.own();
        let is_due = self.history.results().is_empty() && own.is_multiple_of(2);
        self.history.foreign_best().get(own / 2).filter(|_| is_due).map(|&row| row as usize)
    }

    /// A point of an earlier study, or else any.
    fn first_of(&self, best: usize, rng: &mut ChaCha8Rng) -> Option<Point> {
        let again = Some(self.history.point(best)).filter(|point| self.history.is_worth_it(point));
        again.or_else(|| self.anywhere(rng))
    }

    /// One of the first points.
    fn begin(&self, rng: &mut ChaCha8Rng) -> Option<Point> {
        let (dims, trial) = (self.history.dims(), self.history.own());
        let Some(expert) = &self.expert else { return self.anywhere(rng) };
        let found = (0..DRAWS).map(|_| expert.begin(dims, trial, rng));
        let found = found.take(DRAWS).find(|point| self.history.is_worth_it(point));
        found.or_else(|| self.anywhere(rng))
    }

    /// The most likely length scales, noise and scale of results, given the first results.
    fn fit(&self, results: usize) -> Fitted {
        let foreign = self.foreign(results);
        let axes = self.axes(foreign.len(), results);
        let rows = [foreign, self.sample(results, MAX_FITTED)].concat();
        let (spots, merits) = (self.spots(&axes, &rows), self.merits(&rows));
        let mut min = f64::INFINITY;
        let foreign = self.history.foreign().len();
        let mut best = Fitted { results, foreign, hyper: Hyper::start(&axes), bend: Bend::ALL[0] };
        let mut start = best.hyper.clone();
        for bend in Bend::ALL {
            let targets = Targets::new(&merits, bend);
            let (hyper, loss) = Evidence::new(&axes, &spots, &targets.values).fit(&start);
            start = hyper.clone();
            if loss - targets.log_stretch < min {
                min = loss - targets.log_stretch;
                best = Fitted { results, foreign, hyper, bend };
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

    fn spots(&self, axes: &[Axis], rows: &[usize]) -> Vec<Spots> {
        let foreign = |row: &usize| self.history.foreign().binary_search(row).is_ok();
        let of_axis = |axis: &Axis| {
            let mut spots = Spots::default();
            for row in rows {
                spots.push(match self.history.row(*row).get(axis.dim) {
                    Some(coordinate) => axis.spot(*coordinate),
                    None => axis.spot(if foreign(row) { 1.0 } else { f64::NAN }),
                });
            }
            spots
        };
        axes.iter().map(of_axis).collect()
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
        let known = self.history.informative() + self.history.foreign_best().len();
        let found = match self.next_of_earlier() {
            Some(row) => self.first_of(row, rng),
            None if known < self.startup => self.begin(rng),
            None => self.best_candidate(rng),
        };
        let dims = self.history.dims();
        match found {
            Some(point) => Ok(point),
            None => feasible(dims, uniform(dims, rng), rng),
        }
    }
}
