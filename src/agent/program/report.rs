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
    /// The metrics of the objectives.
    objectives: Vec<String>,
    count: u32,
    /// The last value of each metric.
    last: Metrics,
    /// Numbers of lines that did not count.
    others: Metrics,
    waiting: Option<Report>,
    /// When the next report may be sent.
    due: Option<Instant>,
}

impl Reports {
    pub(super) fn new(epochs: f64, objectives: &[String]) -> Self {
        let (objectives, last, others) = (objectives.to_vec(), Metrics::new(), Metrics::new());
        Self { epochs, objectives, count: 0, last, others, waiting: None, due: None }
    }

    /// Takes a printed line, which counts if it has an objective or is marked. A report that it completes is to be sent.
    pub(super) fn take(&mut self, line: &str) -> Option<Report> {
        match printed(line, &self.objectives)? {
            Printed::Counts(measured) => self.measured(measured),
            Printed::Other(Measured { metrics, .. }) => {
                self.others.extend(metrics);
                None
            }
        }
    }

    /// Takes a line of the file for metrics: all of them count.
    pub(super) fn take_marked(&mut self, line: &str) -> Option<Report> {
        let (object, _) = object(line.trim())?;
        let measured = marked(&object).or_else(|| Measured::of(&object))?;
        self.measured(measured)
    }

    fn measured(&mut self, Measured { epochs, metrics }: Measured) -> Option<Report> {
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

    /// Nothing more comes: what has not been sent, and the last value of each metric; without any, what might have been meant.
    pub(super) fn finish(&mut self) -> (Option<Report>, Metrics) {
        let last = if self.last.is_empty() { &mut self.others } else { &mut self.last };
        (self.waiting.take(), std::mem::take(last))
    }

    /// The part of the trial that this belongs to.
    fn part(&self, epochs: f64) -> u64 {
        let part = (self.epochs / PARTS).max(1.0);
        // What comes after the last epoch is one part.
        (epochs.min(self.epochs + part) / part).ceil() as u64
    }
}

type Object = serde_json::Map<String, serde_json::Value>;

/// What an object with numbers says.
#[derive(Debug, Clone, PartialEq)]
struct Measured {
    /// How far the trial is, in what `trial.epochs` counts.
    epochs: Option<f64>,
    metrics: Metrics,
}

impl Measured {
    /// None without a metric. `epoch`, `epochs` and `step` tell how far the trial is, the first of them that is there; the others are metrics.
    fn of(object: &Object) -> Option<Self> {
        let number =
            |value: &serde_json::Value| value.as_f64().or_else(|| value.is_null().then_some(f64::NAN));
        let progress =
            PROGRESS.into_iter().find(|name| object.get(*name).is_some_and(serde_json::Value::is_number));
        let epochs = progress.and_then(|name| object.get(name)).and_then(number);
        let metrics = object.iter().filter(|(name, _)| Some(name.as_str()) != progress);
        let metrics: Metrics =
            metrics.filter_map(|(name, value)| Some((name.clone(), number(value)?.into()))).collect();
        (!metrics.is_empty()).then_some(Self { epochs, metrics })
    }
}

/// Names for how far a trial is.
const PROGRESS: [&str; 3] = ["epoch", "epochs", "step"];
/// The key of an object that is meant for us.
const MARK: &str = "pollux";
/// How many beginnings of objects are looked at in a line.
const BEGINNINGS: usize = 16;

/// What a line says.
enum Printed {
    Counts(Measured),
    /// Numbers that may be anything.
    Other(Measured),
}

/// What is inside the mark.
fn marked(object: &Object) -> Option<Measured> {
    Measured::of(object.get(MARK)?.as_object()?)
}

/// The object in a line that counts: the last one with an objective or our mark. Programs draw over what they have printed before, in colours.
fn printed(line: &str, objectives: &[String]) -> Option<Printed> {
    if !line.contains('{') {
        return None;
    }
    let clean = without_codes(line);
    let mut found = None;
    for part in clean.split('\r').map(str::trim) {
        let mut at = 0;
        for _ in 0..BEGINNINGS {
            let Some(begin) = part[at..].find('{').map(|place| at + place) else { break };
            at = begin + 1;
            let Some((object, length)) = object(&part[begin..]) else { continue };
            at = begin + length;
            if let Some(measured) = marked(&object) {
                found = Some(Printed::Counts(measured));
            } else if let Some(measured) = Measured::of(&object) {
                let counts = objectives.iter().any(|objective| measured.metrics.contains_key(objective));
                if counts {
                    found = Some(Printed::Counts(measured));
                } else if begin == 0 && found.is_none() {
                    found = Some(Printed::Other(measured));
                }
            }
        }
    }
    found
}

/// The object with which a text begins, and how long it is.
fn object(text: &str) -> Option<(Object, usize)> {
    let read = |text: &str| {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<Object>();
        let object = values.next()?.ok()?;
        Some((object, values.byte_offset()))
    };
    // Python writes numbers that JSON does not know.
    read(text).or_else(|| {
        let end = text.rfind('}')? + 1;
        let json =
            text[..end].replace("-Infinity", "null").replace("Infinity", "null").replace("NaN", "null");
        read(&json).filter(|(_, length)| *length == json.len()).map(|(object, _)| (object, end))
    })
}

/// A line without what moves cursors and sets colours.
fn without_codes(line: &str) -> String {
    let mut clean = String::with_capacity(line.len());
    let mut rest = line.chars().peekable();
    while let Some(next) = rest.next() {
        match next {
            '\u{1b}' => skip_code(&mut rest),
            '\r' => clean.push('\r'),
            c if c.is_control() && c != '\t' => {}
            c => clean.push(c),
        }
    }
    clean
}

/// Skips a code that has begun.
fn skip_code(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match rest.next() {
        // Until a letter, or what stands for one.
        Some('[') => while rest.next().is_some_and(|c| !('@'..='~').contains(&c)) {},
        // The title of a window, until a bell or the next code.
        Some(']') => while rest.next_if(|c| *c != '\u{7}' && *c != '\u{1b}').is_some() {},
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss() -> Vec<String> {
        vec!["loss".to_owned()]
    }

    /// Numbers and epochs of the reports that become of lines which are printed at once.
    fn reports(epochs: f64, lines: impl Iterator<Item = String>) -> Vec<(u32, f64)> {
        let (mut reports, now, mut sent) = (Reports::new(epochs, &loss()), Instant::now(), Vec::new());
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
        let (mut reports, mut now) = (Reports::new(9.0, &loss()), Instant::now());
        for number in 1..5 {
            assert_eq!(reports.take("{\"epoch\": 0.5, \"loss\": 1}"), None);
            assert_eq!(reports.due(now).map(|report| report.number), Some(number));
            assert_eq!(reports.due_at(), None);
            now += WINDOW;
        }
    }

    /// What a line brings: how far the trial is, and the metrics.
    fn counted(line: &str) -> Option<String> {
        match printed(line, &loss())? {
            Printed::Counts(Measured { epochs, metrics }) => {
                Some(format!("{epochs:?} {}", serde_json::to_string(&metrics).expect("numbers")))
            }
            Printed::Other(_) => None,
        }
    }

    #[test]
    fn lines_count_that_have_the_objective_or_are_marked() {
        for (line, expected) in [
            (r#"{"loss": 1}"#, r#"None {"loss":1.0}"#),
            (r#"{"epoch": 2, "loss": 1, "note": "x"}"#, r#"Some(2.0) {"loss":1.0}"#),
            (r#"{"step": 7, "loss": 1}"#, r#"Some(7.0) {"loss":1.0}"#),
            (r#"{"step": 700, "epoch": 2, "loss": 1}"#, r#"Some(2.0) {"loss":1.0,"step":700.0}"#),
            (r#"{"loss": NaN, "a": -Infinity}"#, r#"None {"a":null,"loss":null}"#),
            (r#"{"pollux": {"epoch": 1, "f1": 0.5}, "other": 3}"#, r#"Some(1.0) {"f1":0.5}"#),
            (r#"INFO train {"loss": 1}"#, r#"None {"loss":1.0}"#),
            (r#"{"a": {"loss": 1}} {"loss": 2} done"#, r#"None {"loss":2.0}"#),
            ("\r 10%|#  | 1/10\r 20%|## |{\"loss\": 1}", r#"None {"loss":1.0}"#),
            ("{\"loss\": 3}\r{\"loss\": 1}\r", r#"None {"loss":1.0}"#),
            ("\u{1b}[32m{\"loss\"\u{1b}[0m: 1}\u{1b}[K", r#"None {"loss":1.0}"#),
            ("\u{1b}]0;title\u{7}{\"loss\": 1}\u{8}", r#"None {"loss":1.0}"#),
        ] {
            assert_eq!(counted(line).as_deref(), Some(expected), "{line}");
        }
        for line in [
            "",
            "loss: 1",
            r#"{"lr": 0.1, "epoch": 3}"#,
            r#"{"loss": "low"}"#,
            r#"{"loss": 1"#,
            "{'loss': 1}",
            r#"{"pollux": 3}"#,
            r#"{"pollux": {}}"#,
        ] {
            assert_eq!(counted(line), None, "{line}");
        }
        assert_eq!(counted(&"{".repeat(1 << 20)), None);
    }

    #[test]
    fn what_does_not_count_is_known_at_the_end() {
        let mut reports = Reports::new(9.0, &loss());
        assert_eq!(reports.take("{\"losss\": 3}"), None);
        assert_eq!(reports.due_at(), None);
        let (report, metrics) = reports.finish();
        assert_eq!(report, None);
        assert_eq!(metrics.keys().collect::<Vec<_>>(), ["losss"]);
    }

    #[test]
    fn all_lines_of_the_file_for_metrics_count() {
        let (mut reports, now) = (Reports::new(9.0, &loss()), Instant::now());
        for (number, line) in [(1, r#"{"f1": 1}"#), (2, r#"{"pollux": {"epoch": 1, "f1": 1}}"#)] {
            assert_eq!(reports.take_marked(line), None);
            let report = reports.due(now + WINDOW * number).expect("it is due");
            assert_eq!((report.number, report.metrics.len()), (number, 1));
        }
        assert_eq!(reports.take_marked("text"), None);
    }

    #[test]
    fn what_is_printed_in_pieces_is_reported_together() {
        let (mut reports, now) = (Reports::new(9.0, &loss()), Instant::now());
        assert_eq!(reports.take("{\"loss\": 3}"), None);
        assert!(reports.due(now).is_some());
        assert_eq!(reports.take("{\"epoch\": 2, \"loss\": 2}"), None);
        assert_eq!(reports.take("text"), None);
        assert_eq!(reports.take("{\"pollux\": {\"epoch\": 2, \"accuracy\": 0.5}}"), None);
        assert_eq!(reports.due(now), None, "not yet");
        assert_eq!(reports.due_at(), Some(now + WINDOW));
        let report = reports.due(now + WINDOW).expect("it is due");
        let metrics: Metrics =
            [("loss", 2.0), ("accuracy", 0.5)].map(|(name, value)| (name.to_owned(), value.into())).into();
        assert_eq!((report.number, report.epochs, report.metrics), (3, 2.0, metrics.clone()));
        assert_eq!(reports.finish(), (None, metrics));
    }
}
