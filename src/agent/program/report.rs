//! From printed lines to reports, and not too many of them.

use std::time::Duration;

use tokio::time::Instant;

use crate::trials::engine::{Metrics, Report};

/// Reports come no faster than this, but for the last one of each part of a trial.
const WINDOW: Duration = Duration::from_millis(100);
/// An epoch is a part, or so much of a trial if it has more epochs.
const PARTS: f64 = 1000.0;

/// The metrics of a program so far, as reports.
///
/// What is printed within a tenth of a second becomes one report, with the last value of each metric. But the last report of each epoch
/// always counts for itself: early stopping compares trials there.
#[derive(Debug)]
pub(super) struct Reports {
    /// Epochs of a full trial.
    epochs: f64,
    count: u32,
    /// The last value of each metric.
    last: Metrics,
    waiting: Option<Report>,
    /// When the next report may be sent.
    due: Option<Instant>,
}

impl Reports {
    pub(super) fn new(epochs: f64) -> Self {
        Self { epochs, count: 0, last: Metrics::new(), waiting: None, due: None }
    }

    /// Takes a printed line. A report that it completes is to be sent.
    pub(super) fn take(&mut self, line: &str) -> Option<Report> {
        let (epochs, metrics) = parse(line)?;
        self.count += 1;
        self.last.extend(metrics.clone());
        let epochs = epochs.unwrap_or_else(|| f64::from(self.count));
        let mut report = Report { number: self.count, epochs, metrics, ..Report::default() };
        match self.waiting.take() {
            Some(before) if self.part(before.epochs) == self.part(epochs) => {
                let mut metrics = before.metrics;
                metrics.append(&mut report.metrics);
                report.metrics = metrics;
                self.waiting = Some(report);
                None
            }
            before => {
                self.waiting = Some(report);
                before
            }
        }
    }

    /// When [`due`](Self::due) has something, if nothing is printed before.
    pub(super) fn due_at(&self) -> Option<Instant> {
        self.waiting.as_ref().and(self.due)
    }

    /// The report that may be sent now, if there is one.
    pub(super) fn due(&mut self, now: Instant) -> Option<Report> {
        if self.due.is_some_and(|due| now < due) {
            return None;
        }
        let report = self.waiting.take()?;
        self.due = Some(now + WINDOW);
        Some(report)
    }

    /// Nothing more comes: what has not been sent, and the last value of each metric.
    pub(super) fn finish(&mut self) -> (Option<Report>, Metrics) {
        (self.waiting.take(), std::mem::take(&mut self.last))
    }

    /// The part of the trial that this belongs to.
    fn part(&self, epochs: f64) -> u64 {
        let part = (self.epochs / PARTS).max(1.0);
        // What comes after the last epoch is one part.
        (epochs.min(self.epochs + part) / part).ceil() as u64
    }
}

/// The metrics of a line, if it is an object with numbers, and how far the trial is.
fn parse(line: &str) -> Option<(Option<f64>, Metrics)> {
    let line = line.trim();
    if !line.starts_with('{') {
        return None;
    }
    // Python writes numbers that JSON does not know.
    let parse = |text: &str| serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text).ok();
    let object = parse(line).or_else(|| {
        parse(&line.replace("-Infinity", "null").replace("Infinity", "null").replace("NaN", "null"))
    })?;
    let mut epochs = None;
    let mut metrics = Metrics::new();
    for (name, value) in object {
        let Some(number) = value.as_f64().or_else(|| value.is_null().then_some(f64::NAN)) else { continue };
        if matches!(name.as_str(), "epoch" | "epochs") {
            epochs = Some(number);
        } else {
            metrics.insert(name, number.into());
        }
    }
    (!metrics.is_empty()).then_some((epochs, metrics))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers and epochs of the reports that become of lines which are printed at once.
    fn reports(epochs: f64, lines: impl Iterator<Item = String>) -> Vec<(u32, f64)> {
        let (mut reports, now, mut sent) = (Reports::new(epochs), Instant::now(), Vec::new());
        for line in lines {
            sent.extend(reports.take(&line));
            sent.extend(reports.due(now));
        }
        sent.extend(reports.finish().0);
        sent.into_iter().map(|report| (report.number, report.epochs)).collect()
    }

    #[test]
    fn many_lines_become_few_reports_and_none_of_an_epoch_is_lost() {
        let lines =
            (1..=300_000).map(|step| format!("{{\"epoch\": {}, \"loss\": 1}}", f64::from(step) / 1e5));
        let sent = reports(9.0, lines);
        assert_eq!(sent, [(1, 1e-5), (100_000, 1.0), (200_000, 2.0), (300_000, 3.0)]);
        // Without epochs each line is one, up to those of the trial.
        let sent = reports(9.0, (0..300_000).map(|_| "{\"loss\": 1}".to_owned()));
        let numbers: Vec<u32> = sent.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 9, 300_000]);
        // Of very many epochs a thousandth of the trial stands for one.
        let sent = reports(1e6, (0..300_000).map(|_| "{\"loss\": 1}".to_owned()));
        assert_eq!(sent.len(), 301);
    }

    #[test]
    fn what_comes_slowly_is_sent_at_once() {
        let (mut reports, mut now) = (Reports::new(9.0), Instant::now());
        for number in 1..5 {
            assert_eq!(reports.take("{\"epoch\": 0.5, \"loss\": 1}"), None);
            assert_eq!(reports.due(now).map(|report| report.number), Some(number));
            assert_eq!(reports.due_at(), None);
            now += WINDOW;
        }
    }

    #[test]
    fn what_is_printed_in_pieces_is_reported_together() {
        let (mut reports, now) = (Reports::new(9.0), Instant::now());
        assert_eq!(reports.take("{\"loss\": 3}"), None);
        assert!(reports.due(now).is_some());
        assert_eq!(reports.take("{\"epoch\": 2, \"loss\": 2}"), None);
        assert_eq!(reports.take("text"), None);
        assert_eq!(reports.take("{\"epoch\": 2, \"accuracy\": 0.5}"), None);
        assert_eq!(reports.due(now), None, "not yet");
        assert_eq!(reports.due_at(), Some(now + WINDOW));
        let report = reports.due(now + WINDOW).expect("it is due");
        let metrics: Metrics =
            [("loss", 2.0), ("accuracy", 0.5)].map(|(name, value)| (name.to_owned(), value.into())).into();
        assert_eq!((report.number, report.epochs, report.metrics), (3, 2.0, metrics.clone()));
        assert_eq!(reports.finish(), (None, metrics));
    }
}
