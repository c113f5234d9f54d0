//! The results of all optimizers.

use std::{collections::BTreeMap, error::Error};

use serde_json::Value;

/// What is compared: trials, workers and the place of the problem in the report.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Setting {
    pub(crate) trials: usize,
    pub(crate) workers: usize,
    pub(crate) problem: usize,
}

/// The regret, and the seconds of the processor for each trial, by seed.
#[derive(Default)]
pub(crate) struct Sample(BTreeMap<u64, (f64, f64)>);

impl Sample {
    pub(crate) fn regrets(&self) -> Vec<f64> {
        self.0.values().map(|(regret, _)| *regret).collect()
    }

    pub(crate) fn seconds(&self) -> Vec<f64> {
        self.0.values().map(|(_, seconds)| *seconds).collect()
    }
}

/// Samples by setting and by optimizer, and times by optimizer and number of trials.
pub(crate) struct Runs {
    pub(crate) problems: Vec<&'static str>,
    pub(crate) samples: BTreeMap<Setting, BTreeMap<String, Sample>>,
    pub(crate) speed_ms: BTreeMap<String, BTreeMap<u32, f64>>,
    pub(crate) versions: BTreeMap<String, String>,
}

impl Runs {
    pub(crate) fn new(problems: Vec<&'static str>) -> Self {
        let (samples, speed_ms, versions) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { problems, samples, speed_ms, versions }
    }

    /// Adds a line that `peers.py` or [`line`](crate::study::line) has written; what is not a problem here is left out.
    pub(crate) fn add(&mut self, row: &Value) -> Result<(), Box<dyn Error>> {
        let wrong = |key: &str| format!("no `{key}` in {row}");
        let peer = row["peer"].as_str().ok_or_else(|| wrong("peer"))?.to_owned();
        if let Some(version) = row["version"].as_str() {
            self.versions.insert(peer.clone(), version.to_owned());
        }
        let number = |key: &str| row[key].as_u64().ok_or_else(|| wrong(key));
        let list = |key: &str| row[key].as_array().ok_or_else(|| wrong(key));
        if let Some(ms) = row["ask_and_tell_ms"].as_f64() {
            self.speed_ms.entry(peer).or_default().insert(number("size")? as u32, ms);
            return Ok(());
        }
        let Some(problem) = self.problems.iter().position(|name| row["problem"] == *name) else {
            return Ok(());
        };
        let (workers, seed) = (number("workers")? as usize, number("seed")?);
        let marks = list("trials")?.iter().zip(list("regrets")?).zip(list("seconds")?);
        for ((trials, regret), seconds) in marks {
            let trials = trials.as_u64().ok_or_else(|| wrong("trials"))? as usize;
            let samples = self.samples.entry(Setting { trials, workers, problem }).or_default();
            let regret = regret.as_f64().ok_or_else(|| wrong("regrets"))?;
            let seconds = seconds.as_f64().ok_or_else(|| wrong("seconds"))? / trials as f64;
            samples.entry(peer.clone()).or_default().0.insert(seed, (regret, seconds));
        }
        Ok(())
    }

    /// Adds a file of lines.
    pub(crate) fn read(&mut self, lines: &str) -> Result<(), Box<dyn Error>> {
        lines.lines().try_for_each(|line| self.add(&serde_json::from_str(line)?))
    }
}
