use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{
    Error,
    distribution::Widths,
    draw::{feasible, uniform},
    earlier::Earlier,
    expert::Expert,
    history::History,
    parzen::Parzen,
    split::{Set, better, worse},
    suggester::FromHistory,
};
use crate::space::{Dims, Point};

/// Kernels of good trials.
pub(super) const BETTER: Widths = Widths { scale: 0.7, floor: 0.2, other: 0.5 };
/// Kernels of the others: narrower, so that they do not push away from a good region they surround.
pub(super) const WORSE: Widths = Widths { scale: 0.5, floor: 0.2, other: 1.0 };
/// Candidates that are infeasible or were tried before may be replaced, this number of times for each candidate.
const REPLACEMENTS: usize = 40;
/// The number of rounds of candidates that come from the good trials, before others come from anywhere.
const GOOD_ROUNDS: usize = 4;

/// How a [`Tpe`] searches. The defaults did best on the functions of `docs/search.md` and seven others, with other
/// seeds than there.
///
/// ```
/// use pollux_tune::tpe::TpeOptions;
///
/// let options = TpeOptions { startup: 20, ..TpeOptions::default() };
/// assert_eq!(options.candidates, 24);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct TpeOptions {
    /// The first trials are random until this number has ended without failure; 1 or more.
    pub startup: usize,
    /// How many points are drawn near good trials, to take the most promising one; 1 or more.
    pub candidates: usize,
    /// The share of trials that count as good; above 0, up to 1.
    pub good_share: f64,
    /// The largest number of trials that count as good; 1 or more.
    pub max_good: usize,
    /// How many values each result has; 1 or more.
    pub objectives: usize,
}

impl Default for TpeOptions {
    fn default() -> Self {
        Self { startup: 10, candidates: 24, good_share: 0.15, max_good: 50, objectives: 1 }
    }
}

impl TpeOptions {
    fn check(&self) -> Result<(), Error> {
        let counts = [
            ("the number of random trials", self.startup),
            ("the number of candidates", self.candidates),
            ("the largest number of good trials", self.max_good),
        ];
        if let Some(&(what, count)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(Error::OutOfRange { what, value: count as f64, allowed: "1 or more" });
        }
        if self.good_share > 0.0 && self.good_share <= 1.0 {
            return Ok(());
        }
        let (what, value) = ("the share of good trials", self.good_share);
        Err(Error::OutOfRange { what, value, allowed: "a number above 0, at most 1" })
    }
}

/// The tree-structured Parzen estimator (Bergstra et al. 2011, "Algorithms for Hyper-Parameter Optimization").
///
/// It models where good trials are, l, and where the others are, g, and suggests the point that maximizes l / g
/// among some drawn from l. Both are mixtures over all parameters at once, with a bandwidth for each
/// parameter, probabilities for cells and choices, and a uniform prior as one more trial. Trials that run, with less weight, and
/// those that failed or were stopped early belong to g. In finite spaces no point is suggested twice before all have
/// been.
///
/// With several objectives (Ozaki et al. 2022, "Multiobjective Tree-Structured Parzen Estimator"), good trials are
/// those of the first fronts, and of the front that is cut those that together dominate most.
///
/// A suggestion costs the same after 1 000 trials as after 100 000: g is sampled.
///
/// [`Suggester`](super::Suggester) shows it at work.
#[derive(Debug)]
pub struct Tpe {
    history: History,
    options: TpeOptions,
    expert: Option<Expert>,
    earlier: Option<Earlier>,
}

impl Tpe {
    /// A search of a space.
    #[must_use]
    pub fn new(dims: Dims) -> Self {
        let expert = Expert::new(&dims);
        Self { history: History::new(dims), options: TpeOptions::default(), expert, earlier: None }
    }

    /// A search with other settings than the defaults.
    ///
    /// ```
    /// use pollux_tune::space::Dims;
    /// use pollux_tune::tpe::{Tpe, TpeOptions};
    ///
    /// let options = TpeOptions { good_share: 0.0, ..TpeOptions::default() };
    /// let error = Tpe::with_options(Dims::flat(vec![])?, options).expect_err("nothing would be good");
    /// assert_eq!(error.to_string(), "the share of good trials is 0; expected a number above 0, at most 1");
    /// # Ok::<(), pollux_tune::space::BadDims>(())
    /// ```
    pub fn with_options(dims: Dims, options: TpeOptions) -> Result<Self, Error> {
        options.check()?;
        let expert = Expert::new(&dims);
        Ok(Self {
            history: History::with_objectives(dims, options.objectives)?,
            options,
            expert,
            earlier: None,
        })
    }

    /// A search for the Pareto front of some objectives, 1 or more.
    ///
    /// ```
    /// use pollux_tune::space::{Dim, Dims};
    /// use pollux_tune::{ids::TrialId, tpe::{Outcome, Suggester, Tpe, pareto::pareto_front}};
    /// use rand::SeedableRng;
    /// use rand_chacha::ChaCha8Rng;
    ///
    /// let mut tpe = Tpe::with_objectives(Dims::flat(vec![Dim::Continuous; 2])?, 2)?;
    /// let mut results = Vec::new();
    /// for number in 0..60 {
    ///     let rng = &mut ChaCha8Rng::seed_from_u64(number.into());
    ///     let point = tpe.ask(TrialId(number), rng)?;
    ///     let (x, y) = (point[0].unwrap_or(0.0), point[1].unwrap_or(0.0));
    ///     results.push(vec![x + y, 1.0 - x + y]);
    ///     tpe.tell(TrialId(number), Outcome::Done(results[number as usize].clone()))?;
    /// }
    /// // Only y = 0 is optimal, whatever x is.
    /// let front = pareto_front(&results);
    /// assert!(front.len() > 5 && front.iter().all(|&trial| results[trial][0] + results[trial][1] < 1.5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_objectives(dims: Dims, objectives: usize) -> Result<Self, Error> {
        Self::with_options(dims, TpeOptions { objectives, ..TpeOptions::default() })
    }

    /// The candidate with the largest l / g, times what was known before.
    fn best_candidate(&mut self, rng: &mut ChaCha8Rng) -> Option<Point> {
        let good = better(&self.history, self.options.good_share, self.options.max_good);
        let g = self.model(&worse(&self.history, &good), &WORSE);
        let l = self.model(&good, &BETTER);
        let by_expert = self.expert.as_ref().map_or(0.0, |expert| expert.strength(&self.history));
        let by_earlier = self.earlier.as_mut().map_or(0.0, |earlier| earlier.strength(&self.history));
        let expert = self.expert.as_ref().filter(|_| by_expert > 0.0);
        let earlier = self.earlier.as_ref().filter(|_| by_earlier > 0.0);
        let dims = self.history.dims();
        let (mut best, mut judged, mut scratch) = (None, 0, Vec::new());
        for drawn in 0..REPLACEMENTS * self.options.candidates {
            let near = drawn < GOOD_ROUNDS * self.options.candidates;
            let point = match (expert, earlier) {
                _ if !near => uniform(dims, rng),
                (Some(expert), _) if rng.random::<f64>() < 0.5 * by_expert => expert.draw(dims, rng),
                (_, Some(earlier)) if rng.random::<f64>() < 0.5 * by_earlier => earlier.draw(dims, rng),
                _ => l.draw(dims, rng),
            };
            if !self.history.is_worth_it(&point) {
                continue;
            }
            let promise = l.log_density(&point, &mut scratch) - g.log_density(&point, &mut scratch)
                + expert.map_or(0.0, |expert| by_expert * expert.log_ratio(&point))
                + earlier.map_or(0.0, |earlier| by_earlier * earlier.log_ratio(&point, &mut scratch));
            if best.as_ref().is_none_or(|(max, _)| promise > *max) {
                best = Some((promise, point));
            }
            judged += 1;
            if judged == self.options.candidates {
                break;
            }
        }
        best.map(|(_, point)| point)
    }

    /// A random point that is feasible and, in finite spaces, new.
    fn anywhere(&self, rng: &mut ChaCha8Rng) -> Option<Point> {
        let tries = REPLACEMENTS * self.options.candidates;
        let dims = self.history.dims();
        (0..tries).map(|_| uniform(dims, rng)).find(|point| self.history.is_worth_it(point))
    }

    /// One of the first points.
    fn begin(&self, rng: &mut ChaCha8Rng) -> Option<Point> {
        let (dims, trial, candidates) = (self.history.dims(), self.history.own(), self.options.candidates);
        let draw = |rng: &mut ChaCha8Rng| match (&self.earlier, &self.expert) {
            (Some(earlier), _) => earlier.begin(&self.history, candidates, rng),
            (None, Some(expert)) => expert.begin(dims, trial, rng),
            (None, None) => uniform(dims, rng),
        };
        let found = (0..REPLACEMENTS).map(|_| draw(rng)).find(|point| self.history.is_worth_it(point));
        found.or_else(|| self.anywhere(rng))
    }

    fn model(&self, set: &Set, widths: &Widths) -> Parzen {
        let rows: Vec<&[f64]> = set.rows.iter().map(|&row| self.history.row(row)).collect();
        Parzen::new(self.history.dims(), &rows, &set.weights, widths)
    }
}

impl FromHistory for Tpe {
    const NAME: &'static str = "tpe";

    fn history(&mut self) -> &mut History {
        &mut self.history
    }

    fn choose(&mut self, rng: &mut ChaCha8Rng) -> Result<Point, Error> {
        let (share, max) = (self.options.good_share, self.options.max_good);
        self.earlier = Earlier::of(self.earlier.take(), &self.history, share, max);
        let begins = self.history.informative() < self.options.startup;
        let known_before = self.expert.is_some() || self.earlier.is_some();
        let found = match (begins, known_before) {
            (true, true) => self.begin(rng),
            (true, false) => self.anywhere(rng),
            (false, _) => self.best_candidate(rng),
        };
        let dims = self.history.dims();
        match found {
            Some(point) => Ok(point),
            None => feasible(dims, uniform(dims, rng), rng),
        }
    }
}
