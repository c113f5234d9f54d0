use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use super::{
    Error, Outcome,
    pareto::{Fronts, select},
};
use crate::{
    ids::TrialId,
    space::{Dims, Point},
};

/// How good a trial is, the best first: those that ran to their end by value, then those that were stopped
/// (the later the better, then by value), then those that failed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Merit {
    /// It ended with this value.
    Done(f64),
    /// It ended with several values, which fronts compare.
    Several,
    /// It came this far.
    Stopped { step: u64, value: f64 },
    /// It did not give a number.
    Failed,
    /// It says nothing.
    Cancelled,
}

impl Merit {
    fn of(trial: TrialId, outcome: &Outcome, objectives: usize) -> Result<Self, Error> {
        Ok(match outcome {
            Outcome::Done(values) if values.len() != objectives => {
                return Err(Error::Objectives { trial, given: values.len(), expected: objectives });
            }
            Outcome::Done(values) if !values.iter().all(|value| value.is_finite()) => Self::Failed,
            Outcome::Done(values) => match values[..] {
                [value] => Self::Done(value),
                _ => Self::Several,
            },
            Outcome::Stopped { value, step } => {
                let value = value.filter(|value| value.is_finite()).unwrap_or(f64::INFINITY);
                Self::Stopped { step: *step, value }
            }
            Outcome::Failed => Self::Failed,
            Outcome::Cancelled => Self::Cancelled,
        })
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Done(a), Self::Done(b)) => a.total_cmp(b),
            (Self::Stopped { step: a, value: x }, Self::Stopped { step: b, value: y }) => {
                b.cmp(a).then(x.total_cmp(y))
            }
            _ => self.class().cmp(&other.class()),
        }
    }

    fn class(&self) -> u8 {
        match self {
            Self::Done(_) | Self::Several => 0,
            Self::Stopped { .. } => 1,
            Self::Failed => 2,
            Self::Cancelled => 3,
        }
    }
}

/// What a suggester knows about the trials of a study. Rows count trials in the order they were asked for.
#[derive(Debug)]
pub(super) struct History {
    dims: Dims,
    rows: BTreeMap<TrialId, usize>,
    /// Row by row; NaN where a parameter is inactive.
    coordinates: Vec<f64>,
    merits: Vec<Option<Merit>>,
    /// Rows with a result, the best first; with several objectives, only those that did not run to their end.
    ranked: Vec<u32>,
    /// With several objectives, the rows that ran to their end.
    fronts: Fronts,
    /// Rows with a result, in the order of the results.
    with_result: Vec<u32>,
    failed: usize,
    /// Rows that say nothing, in the order of their ends.
    cancelled: Vec<usize>,
    /// Rows of an earlier study, in order; they are in none of the lists above.
    foreign: Vec<usize>,
    /// Those of them that say something, the best first.
    foreign_ranked: Vec<u32>,
    /// In finite spaces, all points that were asked for.
    tried: Option<BTreeSet<Vec<u64>>>,
}

impl History {
    /// A study with one objective.
    pub(super) fn new(dims: Dims) -> Self {
        Self::of(dims, 1)
    }

    /// A study with some objectives, at least one.
    pub(super) fn with_objectives(dims: Dims, objectives: usize) -> Result<Self, Error> {
        if objectives == 0 {
            let what = "the number of objectives";
            return Err(Error::OutOfRange { what, value: 0.0, allowed: "1 or more" });
        }
        Ok(Self::of(dims, objectives))
    }

    fn of(dims: Dims, objectives: usize) -> Self {
        let finite = dims.iter().all(|dim| dim.cells().is_some());
        Self {
            dims,
            rows: BTreeMap::new(),
            coordinates: Vec::new(),
            merits: Vec::new(),
            ranked: Vec::new(),
            fronts: Fronts::new(objectives),
            with_result: Vec::new(),
            failed: 0,
            cancelled: Vec::new(),
            foreign: Vec::new(),
            foreign_ranked: Vec::new(),
            tried: finite.then(BTreeSet::new),
        }
    }

    pub(super) fn dims(&self) -> &Dims {
        &self.dims
    }

    /// The number of values of a result.
    pub(super) fn objectives(&self) -> usize {
        self.fronts.objectives()
    }

    /// The number of trials that were asked for.
    pub(super) fn len(&self) -> usize {
        self.merits.len()
    }

    /// The number of trials of this study that were asked for.
    pub(super) fn own(&self) -> usize {
        self.len() - self.foreign.len()
    }

    /// The rows of an earlier study.
    pub(super) fn foreign(&self) -> &[usize] {
        &self.foreign
    }

    /// The rows of an earlier study that say something, the best first.
    pub(super) fn foreign_best(&self) -> &[u32] {
        &self.foreign_ranked
    }

    /// The number of trials that ended without failure.
    pub(super) fn informative(&self) -> usize {
        self.fronts.len() + self.ranked.len() - self.failed
    }

    /// The rows of `count` trials with a result, the best first; fewer if there are fewer.
    ///
    /// With several objectives, those that ran to their end come front by front, and within a front those first
    /// that together dominate most.
    pub(super) fn best(&self, count: usize) -> Vec<usize> {
        let mut best = Vec::with_capacity(count);
        for front in self.fronts.levels() {
            let left = count - best.len();
            if left == 0 {
                break;
            }
            let values: Vec<&[f64]> = front.iter().map(|&row| self.fronts.values(row)).collect();
            best.extend(select(&values, left).into_iter().map(|at| front[at] as usize));
        }
        let left = count - best.len();
        best.extend(self.ranked.iter().take(left).map(|&row| row as usize));
        best
    }

    /// Rows with a result, in the order of the results.
    pub(super) fn results(&self) -> &[u32] {
        &self.with_result
    }

    /// Whether a trial is better than another; both have results.
    pub(super) fn compare(&self, a: usize, b: usize) -> Ordering {
        match (self.merits[a], self.merits[b]) {
            (Some(x), Some(y)) => x.compare(&y).then(a.cmp(&b)),
            (x, y) => y.is_some().cmp(&x.is_some()).then(a.cmp(&b)),
        }
    }

    /// Trials that say nothing.
    pub(super) fn cancelled(&self) -> &[usize] {
        &self.cancelled
    }

    /// How good a trial is; none while it runs.
    pub(super) fn merit(&self, row: usize) -> Option<Merit> {
        self.merits[row]
    }

    /// Whether the space is finite and this point was asked for.
    pub(super) fn was_tried(&self, point: &Point) -> bool {
        self.tried.as_ref().is_some_and(|tried| tried.contains(&key(point)))
    }

    /// Whether a point is feasible and, in finite spaces, new.
    pub(super) fn is_worth_it(&self, point: &Point) -> bool {
        !self.was_tried(point) && self.dims.is_feasible(point)
    }

    /// Whether a point differs by no more than this from a trial, and from one that runs by no more than the second
    /// distance: in each of its numbers, with the same cells and choices.
    pub(super) fn is_near(&self, point: &Point, ended: f64, running: f64) -> bool {
        (0..self.len()).filter(|row| self.foreign.binary_search(row).is_err()).any(|row| {
            let reach = if self.merits[row].is_some() { ended } else { running };
            self.row(row).iter().zip(point).zip(self.dims.iter()).all(|((&known, value), dim)| match value {
                None => known.is_nan(),
                Some(value) if dim.cells().is_some() => (known - value).abs() < 0.5,
                Some(value) => (known - value).abs() <= reach,
            })
        })
    }

    /// The coordinates of a trial; NaN where a parameter is inactive.
    pub(super) fn row(&self, row: usize) -> &[f64] {
        &self.coordinates[row * self.dims.len()..][..self.dims.len()]
    }

    /// The same as a point.
    pub(super) fn point(&self, row: usize) -> Point {
        self.row(row).iter().map(|x| (!x.is_nan()).then_some(*x)).collect()
    }

    /// A trial is asked for once.
    pub(super) fn check_new(&self, id: TrialId) -> Result<(), Error> {
        if self.rows.contains_key(&id) { Err(Error::DuplicateTrial(id)) } else { Ok(()) }
    }

    pub(super) fn insert(&mut self, id: TrialId, point: &Point) -> Result<(), Error> {
        self.push(id, point)?;
        if let Some(tried) = &mut self.tried {
            tried.insert(key(point));
        }
        Ok(())
    }

    /// Adds a row; gives its number.
    fn push(&mut self, id: TrialId, point: &Point) -> Result<usize, Error> {
        self.check_new(id)?;
        if !self.dims.contains(point) {
            return Err(Error::BadPoint(id));
        }
        let row = self.len();
        self.rows.insert(id, row);
        self.coordinates.extend(point.iter().map(|value| value.unwrap_or(f64::NAN)));
        self.merits.push(None);
        Ok(row)
    }

    /// Takes a trial of an earlier study. With one objective it counts apart from those of this study, because its result
    /// may not hold here, and its point may be tried again.
    pub(super) fn import(&mut self, id: TrialId, point: &Point, outcome: &Outcome) -> Result<(), Error> {
        if self.objectives() > 1 {
            self.insert(id, point)?;
            return self.tell(id, outcome);
        }
        let merit = Merit::of(id, outcome, 1)?;
        let row = self.push(id, point)?;
        self.merits[row] = Some(merit);
        self.foreign.push(row);
        if merit != Merit::Cancelled {
            let place = self.place(&self.foreign_ranked, merit, row);
            self.foreign_ranked.insert(place, row as u32);
        }
        Ok(())
    }

    /// Where a row belongs among those that are ranked.
    fn place(&self, ranked: &[u32], merit: Merit, row: usize) -> usize {
        ranked.partition_point(|&other| {
            let before = self.merits[other as usize].map_or(Ordering::Less, |other| other.compare(&merit));
            before.then((other as usize).cmp(&row)) == Ordering::Less
        })
    }

    pub(super) fn tell(&mut self, id: TrialId, outcome: &Outcome) -> Result<(), Error> {
        let row = *self.rows.get(&id).ok_or(Error::UnknownTrial(id))?;
        if self.merits[row].is_some() {
            return Err(Error::DuplicateResult(id));
        }
        let merit = Merit::of(id, outcome, self.objectives())?;
        self.failed += usize::from(merit == Merit::Failed);
        self.merits[row] = Some(merit);
        if merit == Merit::Cancelled {
            self.cancelled.push(row);
            return Ok(());
        }
        self.with_result.push(row as u32);
        if let (Merit::Several, Outcome::Done(values)) = (merit, outcome) {
            self.fronts.insert(row as u32, values);
            return Ok(());
        }
        let place = self.place(&self.ranked, merit, row);
        self.ranked.insert(place, row as u32);
        Ok(())
    }

    /// Takes back that a trial has failed or was cancelled.
    pub(super) fn retract(&mut self, id: TrialId) -> Result<(), Error> {
        let row = *self.rows.get(&id).ok_or(Error::UnknownTrial(id))?;
        match self.merits[row] {
            _ if self.foreign.binary_search(&row).is_ok() => return Err(Error::NotRetractable(id)),
            Some(Merit::Failed) => {
                self.failed -= 1;
                self.with_result.retain(|other| *other as usize != row);
                self.ranked.retain(|other| *other as usize != row);
            }
            Some(Merit::Cancelled) => self.cancelled.retain(|other| *other != row),
            Some(Merit::Done(_) | Merit::Several | Merit::Stopped { .. }) | None => {
                return Err(Error::NotRetractable(id));
            }
        }
        self.merits[row] = None;
        Ok(())
    }
}

/// A point in a form that can be found again; no coordinate is negative.
pub(super) fn key(point: &Point) -> Vec<u64> {
    point.iter().map(|value| value.map_or(u64::MAX, |value| (value + 0.0).to_bits())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Dim;

    #[test]
    fn results_are_ranked() {
        let mut history = History::new(Dims::flat(vec![Dim::Continuous]).expect("it is a space"));
        let outcomes = [
            Outcome::Failed,
            Outcome::Done(vec![2.0]),
            Outcome::Stopped { value: Some(0.5), step: 3 },
            Outcome::Done(vec![1.0]),
            Outcome::Stopped { value: None, step: 9 },
            Outcome::Done(vec![f64::NAN]),
            Outcome::Done(vec![1.0]),
        ];
        for (id, outcome) in (0..).map(TrialId).zip(&outcomes) {
            history.insert(id, &vec![Some(0.5)]).expect("it is new");
            history.tell(id, outcome).expect("it is the first result");
        }
        assert_eq!(history.best(9), [3, 6, 1, 4, 2, 0, 5]);
        assert_eq!(history.best(2), [3, 6]);
        assert_eq!(history.informative(), 5);
    }

    /// Two fronts, the first of which is chosen from its middle; then what was stopped, then what failed.
    #[test]
    fn several_objectives_are_ranked_by_front() {
        let dims = Dims::flat(vec![Dim::Continuous]).expect("it is a space");
        let mut history = History::with_objectives(dims, 2).expect("there are two");
        let outcomes = [
            Outcome::Done(vec![0.0, f64::NAN]),
            Outcome::Stopped { value: Some(0.0), step: 3 },
            Outcome::Done(vec![6.0, 6.0]),
            Outcome::Done(vec![0.0, 5.0]),
            Outcome::Stopped { value: None, step: 9 },
            Outcome::Done(vec![5.0, 0.0]),
            Outcome::Done(vec![1.0, 1.0]),
        ];
        for (id, outcome) in (0..).map(TrialId).zip(&outcomes) {
            history.insert(id, &vec![Some(0.5)]).expect("it is new");
            history.tell(id, outcome).expect("it is the first result");
        }
        assert_eq!(history.informative(), 6);
        assert_eq!(history.best(9), [6, 3, 5, 2, 4, 1, 0]);
        assert_eq!(history.best(1), [6]);
    }

    #[test]
    fn failures_can_be_taken_back_and_results_cannot() {
        let mut history = History::new(Dims::flat(vec![Dim::Continuous]).expect("it is a space"));
        let outcomes = [Outcome::Failed, Outcome::Done(vec![1.0]), Outcome::Cancelled];
        for (id, outcome) in (0..).map(TrialId).zip(&outcomes) {
            history.insert(id, &vec![Some(0.5)]).expect("it is new");
            history.tell(id, outcome).expect("it is the first result");
        }
        assert_eq!(history.retract(TrialId(1)), Err(Error::NotRetractable(TrialId(1))));
        assert_eq!(history.retract(TrialId(9)), Err(Error::UnknownTrial(TrialId(9))));
        for id in [0, 2].map(TrialId) {
            assert_eq!(history.retract(id), Ok(()));
            assert_eq!(history.retract(id), Err(Error::NotRetractable(id)), "it runs");
        }
        assert_eq!((history.best(9), history.results(), history.cancelled()), (vec![1], &[1][..], &[][..]));
        assert_eq!(history.informative(), 1);
        assert_eq!(history.tell(TrialId(0), &Outcome::Done(vec![0.5])), Ok(()));
        assert_eq!(history.best(9), [0, 1]);
    }

    #[test]
    fn trials_of_an_earlier_study_count_apart() {
        let mut history = History::new(Dims::flat(vec![Dim::Discrete { count: 3 }]).expect("it is a space"));
        for (id, value) in [(10, 3.0), (11, 1.0), (12, f64::NAN)] {
            let point = vec![Some(f64::from(id - 10))];
            history.import(TrialId(id), &point, &Outcome::Done(vec![value])).expect("it is new");
        }
        history.import(TrialId(13), &vec![Some(0.0)], &Outcome::Cancelled).expect("it is new");
        assert_eq!((history.len(), history.own(), history.informative()), (4, 0, 0));
        assert_eq!((history.foreign_best(), history.best(9)), (&[1, 0, 2][..], vec![]));
        assert!(!history.was_tried(&vec![Some(1.0)]), "what was best there may be tried here");
        assert_eq!(history.retract(TrialId(12)), Err(Error::NotRetractable(TrialId(12))));
        assert_eq!(history.tell(TrialId(12), &Outcome::Failed), Err(Error::DuplicateResult(TrialId(12))));
        history.insert(TrialId(0), &vec![Some(2.0)]).expect("it is new");
        history.tell(TrialId(0), &Outcome::Done(vec![9.0])).expect("it is running");
        assert_eq!((history.own(), history.best(9), history.results()), (1, vec![4], &[4][..]));
    }

    #[test]
    fn mistakes_are_named() {
        let mut history = History::new(Dims::flat(vec![Dim::Continuous]).expect("it is a space"));
        let id = TrialId(4);
        assert_eq!(history.tell(id, &Outcome::Failed), Err(Error::UnknownTrial(id)));
        assert_eq!(history.insert(id, &vec![Some(1.5)]), Err(Error::BadPoint(id)));
        assert_eq!(history.insert(id, &vec![Some(0.5)]), Ok(()));
        assert_eq!(history.insert(id, &vec![Some(0.5)]), Err(Error::DuplicateTrial(id)));
        let two = Outcome::Done(vec![1.0, 2.0]);
        assert_eq!(history.tell(id, &two), Err(Error::Objectives { trial: id, given: 2, expected: 1 }));
        assert_eq!(history.tell(id, &Outcome::Failed), Ok(()));
        assert_eq!(history.tell(id, &Outcome::Failed), Err(Error::DuplicateResult(id)));
    }
}
