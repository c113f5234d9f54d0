//! Journals of earlier versions: lines of JSON. They are read, never written.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::Error;
use crate::{
    ids::{Generation, TrialId},
    space::{Params, Point, Study},
    trials::{
        self, End, Search,
        engine::{Fact, JournalEntry, Metrics},
    },
};

/// The only form that there was.
const VERSION: u32 = 1;
/// How a journal begins.
const BEGIN: &[u8] = br#"{"study":"#;

/// A line of a journal.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    /// The first: the study file, as it was.
    Study {
        version: u32,
        yaml: String,
    },
    Learned {
        params: Params,
        end: Ended,
        last: Option<(f64, f64)>,
    },
    /// All that was to be learned was.
    Warm {},
    Enqueued {
        params: Params,
    },
    Asked {
        id: u32,
        params: Params,
        point: Option<Point>,
    },
    Reported {
        id: u32,
        epochs: f64,
        value: Option<f64>,
    },
    Ended {
        id: u32,
        end: Ended,
    },
}

/// Numbers that are not finite are `null`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ended {
    Done(Vec<Option<f64>>),
    Stopped(String),
    Cancelled(String),
    Failed(String),
}

impl Ended {
    fn end(self) -> End {
        match self {
            Self::Done(values) => {
                End::Done(values.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect())
            }
            Self::Stopped(why) => End::Stopped(why.into()),
            Self::Cancelled(why) => End::Cancelled(why),
            Self::Failed(why) => End::Failed(why),
        }
    }
}

/// What a journal holds.
pub(crate) struct Imported {
    pub(crate) file: PathBuf,
    /// As it stood at the end.
    pub(crate) search: Search,
    /// The same as facts of today.
    pub(super) facts: Vec<Fact>,
}

/// Reads a journal.
pub(crate) fn read(file: &Path) -> Result<Imported, Error> {
    parse(file, &bytes(file)?)
}

/// The same; none if its first line was never finished.
pub(super) fn read_begun(file: &Path) -> Result<Option<Imported>, Error> {
    let text = bytes(file)?;
    if !text.contains(&b'\n') && (BEGIN.starts_with(&text) || text.starts_with(BEGIN)) {
        return Ok(None);
    }
    Ok(Some(parse(file, &text)?))
}

fn bytes(file: &Path) -> Result<Vec<u8>, Error> {
    let unreadable = |source| Error::Unreadable { file: file.to_owned(), source };
    if !fs::metadata(file).map_err(unreadable)?.is_file() {
        return Err(Error::NotAFile(file.to_owned()));
    }
    fs::read(file).map_err(unreadable)
}

fn parse(file: &Path, text: &[u8]) -> Result<Imported, Error> {
    let no_study = || Error::NoStudy(file.to_owned());
    // What follows the last whole line was being written when its writer died.
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let mut lines = (1..).zip(text[..whole].split_inclusive(|&byte| byte == b'\n'));
    let (_, first) = lines.next().ok_or_else(no_study)?;
    let yaml = match serde_json::from_slice(first).map_err(|_| no_study())? {
        Line::Study { version, .. } if version > VERSION => {
            return Err(Error::Newer { file: file.to_owned(), found: version });
        }
        Line::Study { yaml, .. } => yaml,
        _ => return Err(no_study()),
    };
    let wrong = |line: usize, problem: String| Error::Line { file: file.to_owned(), line, problem };
    let study = Study::from_yaml(&file.display().to_string(), &yaml)
        .map_err(|problems| wrong(1, problems.to_string()))?;
    let begin = || Replay::new(&study).map_err(|error| wrong(1, error.to_string()));
    let (mut replay, mut is_warm) = (begin()?, false);
    for (number, line) in lines {
        let line = serde_json::from_slice(line).map_err(|error| wrong(number, error.to_string()))?;
        is_warm |= !matches!(line, Line::Learned { .. });
        replay.take(line).map_err(|problem| wrong(number, problem))?;
    }
    // A warm start that was cut off is done again.
    let Replay { search, facts, .. } = if is_warm { replay } else { begin()? };
    Ok(Imported { file: file.to_owned(), search, facts })
}

/// Turns lines into facts.
struct Replay {
    search: Search,
    facts: Vec<Fact>,
    /// How many reports there were of each trial.
    reports: BTreeMap<u32, u32>,
}

impl Replay {
    fn new(study: &Study) -> Result<Self, trials::Error> {
        Ok(Self { search: Search::new(study)?, facts: Vec::new(), reports: BTreeMap::new() })
    }

    fn take(&mut self, line: Line) -> Result<(), String> {
        let taken = match line {
            Line::Study { .. } => return Err("a second study".to_owned()),
            Line::Warm {} => Ok(()),
            Line::Learned { params, end, last } => self.search.learn(&params, &end.end(), last),
            Line::Enqueued { params } => self.search.enqueue(&params),
            Line::Asked { id, params, point } => {
                let nearest = self.search.study().space.encode(&params).map_err(|error| error.to_string())?;
                let point = point.unwrap_or(nearest);
                self.apply(Fact::TrialCreated { trial: TrialId(id), params, point })
            }
            // Whether it was stopped then is a line of its own.
            Line::Reported { id, epochs, value } => {
                let number = self.reports.entry(id).or_default();
                *number += 1;
                let metric = self.search.study().objectives[0].metric.clone();
                let fact = Fact::Measured {
                    trial: TrialId(id),
                    generation: Generation::NONE,
                    number: *number,
                    epochs,
                    metrics: Metrics::from([(metric, value.unwrap_or(f64::NAN).into())]),
                    gpu_type: None,
                    steps: Vec::new(),
                    noise: None,
                    noise_batch: None,
                };
                self.apply(fact)
            }
            Line::Ended { id, end } => self.search.tell(TrialId(id), end.end()),
        };
        taken.map_err(|error| error.to_string())?;
        self.facts.extend(self.search.take_facts());
        Ok(())
    }

    fn apply(&mut self, fact: Fact) -> Result<(), trials::Error> {
        let entry = JournalEntry { at_s: 0.0, fact };
        self.search.apply(&entry)?;
        self.facts.push(entry.fact);
        Ok(())
    }
}
