//! What exports say of a study: its trials as they stand, with their times and all that they have reported.

use std::collections::BTreeMap;

use crate::{
    ids::{StudyId, TrialId},
    space::{Params, Study},
    store::{TrialRow, TrialState},
    trials::engine::{Fact, JournalEntry, Metrics},
};

/// A study and its trials.
#[derive(Debug)]
pub(super) struct Record {
    /// What people call it.
    pub(super) name: String,
    pub(super) id: StudyId,
    pub(super) study: Study,
    /// When it began, in seconds since 1970.
    pub(super) created_s: f64,
    /// The names of all metrics that were ever reported, in their order.
    pub(super) metrics: Vec<String>,
    pub(super) steps: Steps,
    pub(super) trials: Vec<Trial>,
    /// Parameters that are to be tried, and are no trial yet.
    pub(super) queue: Vec<Params>,
}

/// A trial.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) row: TrialRow,
    pub(super) started_s: Option<f64>,
    /// In the order of time.
    pub(super) reports: Vec<Report>,
}

/// What a trial has reported at one moment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Report {
    pub(super) at_s: f64,
    pub(super) epochs: f64,
    /// The places of metrics among those of the study, and their values, which need not be finite.
    pub(super) values: Vec<(usize, f64)>,
}

/// A point of a curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) step: i64,
    pub(super) at_s: f64,
    pub(super) value: f64,
}

/// How epochs become steps, which other tools have as whole numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Steps {
    /// All reports are of whole epochs, which are the steps.
    Epochs,
    /// There are parts of epochs: a step is a thousandth of one.
    Thousandths,
}

impl Steps {
    /// Up to here all whole numbers are exact.
    const LARGEST: f64 = 9e15;

    pub(super) fn step(self, epochs: f64) -> i64 {
        match self {
            Self::Epochs => epochs as i64,
            Self::Thousandths => (epochs * 1000.0).round() as i64,
        }
    }

    /// What a step is, for people.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Epochs => "epoch",
            Self::Thousandths => "epoch/1000",
        }
    }

    fn of(mut epochs: impl Iterator<Item = f64>) -> Self {
        let is_whole = |epochs: f64| epochs.fract() == 0.0 && epochs.abs() < Self::LARGEST;
        if epochs.all(is_whole) { Self::Epochs } else { Self::Thousandths }
    }
}

impl Trial {
    /// When it began; those that have ended have begun.
    pub(super) fn began_s(&self) -> Option<f64> {
        let ended = || self.row.state.is_end().then_some(self.row.created_s);
        self.started_s.or_else(ended)
    }

    /// When it ended.
    pub(super) fn ended_s(&self) -> Option<f64> {
        self.row.ended_s.filter(|_| self.row.state.is_end())
    }

    /// The curve of a metric: what was reported again after a restart from a checkpoint takes the place of what was before.
    pub(super) fn curve(&self, metric: usize, steps: Steps) -> Vec<Point> {
        let mut curve: Vec<Point> = Vec::new();
        for Report { at_s, epochs, values } in &self.reports {
            let Some((_, value)) = values.iter().find(|(place, _)| *place == metric) else { continue };
            let point = Point { step: steps.step(*epochs), at_s: *at_s, value: *value };
            while curve.last().is_some_and(|last| last.step >= point.step) {
                curve.pop();
            }
            curve.push(point);
        }
        curve
    }

    /// What it tries of a parameter.
    pub(super) fn param(&self, name: &str) -> Option<&crate::space::Value> {
        self.row.params.get(name)
    }
}

/// Makes a record, fact by fact.
#[derive(Debug)]
pub(super) struct Recorder {
    trials: BTreeMap<TrialId, Trial>,
    metrics: BTreeMap<String, usize>,
    queue: Vec<Params>,
}

impl Recorder {
    /// Of trials as they stand.
    pub(super) fn new(rows: Vec<TrialRow>) -> Self {
        let trial = |row: TrialRow| (row.trial, Trial { row, started_s: None, reports: Vec::new() });
        Self { trials: rows.into_iter().map(trial).collect(), metrics: BTreeMap::new(), queue: Vec::new() }
    }

    /// Takes note of a fact. Trials that were created since then are left out.
    pub(super) fn take(&mut self, JournalEntry { at_s, fact }: JournalEntry) {
        match fact {
            Fact::TrialEnqueued { params } => self.queue.push(params),
            Fact::TrialCreated { params, .. } if self.queue.first() == Some(&params) => {
                self.queue.remove(0);
            }
            Fact::TrialStarted { trial, .. } => self.begin(trial, at_s),
            Fact::Measured { trial, epochs, metrics, .. } => {
                self.begin(trial, at_s);
                let values = self.values(metrics);
                if let Some(trial) = self.trials.get_mut(&trial).filter(|_| !values.is_empty()) {
                    trial.reports.push(Report { at_s, epochs, values });
                }
            }
            _ => {}
        }
    }

    fn begin(&mut self, trial: TrialId, at_s: f64) {
        if let Some(trial) = self.trials.get_mut(&trial) {
            trial.started_s.get_or_insert(at_s);
        }
    }

    fn values(&mut self, metrics: Metrics) -> Vec<(usize, f64)> {
        let mut place = |name| {
            let next = self.metrics.len();
            *self.metrics.entry(name).or_insert(next)
        };
        metrics.into_iter().map(|(name, value)| (place(name), value.value())).collect()
    }

    /// The record.
    pub(super) fn end(self, name: String, id: StudyId, created_s: f64, study: Study) -> Record {
        let mut trials: Vec<Trial> = self.trials.into_values().collect();
        // In the order of their names, not of their first report.
        let order: Vec<usize> = self.metrics.values().copied().collect();
        let mut places = vec![0; order.len()];
        for (place, number) in order.into_iter().enumerate() {
            places[number] = place;
        }
        for (place, _) in
            trials.iter_mut().flat_map(|trial| &mut trial.reports).flat_map(|report| &mut report.values)
        {
            *place = places[*place];
        }
        let steps = Steps::of(trials.iter().flat_map(|trial| &trial.reports).map(|report| report.epochs));
        let metrics = self.metrics.into_keys().collect();
        Record { name, id, study, created_s, metrics, steps, trials, queue: self.queue }
    }
}

impl Record {
    /// The place of a metric among those that were reported.
    pub(super) fn metric(&self, name: &str) -> Option<usize> {
        self.metrics.iter().position(|known| known == name)
    }

    /// The results of a trial that ran to its end, with the names of the objectives.
    pub(super) fn results<'a>(&'a self, trial: &'a Trial) -> impl Iterator<Item = (&'a str, f64)> {
        let values = trial.row.values.iter().flatten().copied();
        let is_done = trial.row.state == TrialState::Done;
        let names = self.study.objectives.iter().map(|objective| objective.metric.as_str());
        names.zip(values).filter(move |_| is_done)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{ids::Generation, space::Value};

    pub(in super::super) const STUDY: &str = "
space: {lr: {log: [1e-5, 1]}, opt: [sgd, adam], depth: {int: [1, 8]}, flag: [false, true]}
objective: {maximize: acc}
";

    pub(in super::super) fn row(trial: u32, state: TrialState, params: &[(&str, Value)]) -> TrialRow {
        let ended_s = state.is_end().then_some(1030.5);
        TrialRow {
            trial: TrialId(trial),
            state,
            params: params.iter().cloned().collect(),
            created_s: 1000.0,
            ended_s,
            epochs: 3.0,
            metrics: Metrics::from([("acc".to_owned(), 0.75.into())]),
            values: (state == TrialState::Done).then(|| vec![0.75]),
            reason: None,
            generation: 1,
            slots: 0,
            batch: None,
            slot_s: 20.5,
        }
    }

    pub(in super::super) fn measured(
        trial: u32,
        at_s: f64,
        epochs: f64,
        metrics: &[(&str, f64)],
    ) -> JournalEntry {
        let metrics = metrics.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        let (trial, generation) = (TrialId(trial), Generation(1));
        let (steps, gpu_type, noise) = (Vec::new(), None, None);
        let fact = Fact::Measured {
            trial,
            generation,
            number: 1,
            epochs,
            metrics,
            gpu_type,
            steps,
            noise,
            noise_batch: None,
        };
        JournalEntry { at_s, fact }
    }

    /// One trial that is done, one that was stopped, one that waits.
    pub(in super::super) fn record() -> Record {
        let params: [(&str, Value); 4] =
            [("lr", 0.01.into()), ("opt", "adam".into()), ("depth", 3.into()), ("flag", true.into())];
        let states = [TrialState::Done, TrialState::Stopped, TrialState::Waiting];
        let mut recorder =
            Recorder::new((0..).zip(states).map(|(trial, state)| row(trial, state, &params)).collect());
        for (trial, at_s, epochs, metrics) in [
            (0, 1010.0, 1.0, &[("loss", 2.0), ("acc", 0.5)][..]),
            (0, 1020.0, 2.0, &[("loss", f64::NAN), ("acc", 0.75)]),
            (1, 1011.25, 1.0, &[("acc", 0.125)]),
            (7, 1012.0, 1.0, &[("other", 1.0)]),
        ] {
            recorder.take(measured(trial, at_s, epochs, metrics));
        }
        let study = Study::from_yaml("study.yaml", STUDY).expect("a study");
        recorder.end("demo".to_owned(), StudyId(7), 999.0, study)
    }

    #[test]
    fn a_curve_has_what_counts_after_a_restart() {
        let mut recorder = Recorder::new(vec![row(0, TrialState::Running, &[])]);
        for (at_s, epochs, value) in
            [(1.0, 1.0, 0.1), (2.0, 2.0, 0.2), (3.0, 3.0, 0.3), (9.0, 2.0, 0.25), (10.0, 3.0, 0.35)]
        {
            recorder.take(measured(0, at_s, epochs, &[("acc", value)]));
        }
        let study = Study::from_yaml("study.yaml", STUDY).expect("a study");
        let record = recorder.end(String::new(), StudyId(7), 0.0, study);
        let curve = record.trials[0].curve(0, record.steps);
        let points: Vec<_> = curve.iter().map(|point| (point.step, point.at_s, point.value)).collect();
        assert_eq!(points, [(1, 1.0, 0.1), (2, 9.0, 0.25), (3, 10.0, 0.35)]);
        assert_eq!(record.trials[0].reports.len(), 5, "all of them are there, too");
    }

    #[test]
    fn metrics_keep_their_names_whoever_came_first() {
        let record = record();
        assert_eq!(record.metrics, ["acc", "loss", "other"]);
        let report = &record.trials[0].reports[0];
        assert_eq!(report.values.iter().find(|(place, _)| *place == 1), Some(&(1, 2.0)));
        assert_eq!(record.steps, Steps::Epochs);
        assert_eq!(record.trials[0].began_s(), Some(1010.0));
        assert_eq!(record.trials[2].began_s(), None);
    }

    #[test]
    fn parts_of_epochs_are_steps_in_all_of_the_study() {
        assert_eq!(Steps::of([1.0, 2.5].into_iter()), Steps::Thousandths);
        assert_eq!(Steps::of(std::iter::empty()), Steps::Epochs);
        assert_eq!((Steps::Thousandths.step(2.0), Steps::Epochs.step(2.0)), (2000, 2));
    }
}
