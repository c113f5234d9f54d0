//! What happened to a search, line by line in a file, so that it can go on after any end.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use crate::{
    cli,
    ids::TrialId,
    space::{Diagnostics, Params, Point, Study},
    trials::{self, End, Fact, Search},
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The form of the file; a reader of an older form refuses it.
const VERSION: u32 = 1;

/// What can be wrong with a journal.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error("cannot {doing} {}", .file.display())]
    Io { doing: &'static str, file: PathBuf, source: io::Error },
    #[error("{} is in use by another process: wait for it to end, or give another file", .0.display())]
    InUse(PathBuf),
    #[error("{}:{line}: {problem}", .file.display())]
    Line { file: PathBuf, line: usize, problem: String },
    #[error("{} is not a journal of `ask-tell`: it does not begin with a study", .0.display())]
    NoStudy(PathBuf),
    #[error("{} has form {found}, this program knows {VERSION}: use a newer one", .file.display())]
    Newer { file: PathBuf, found: u32 },
    #[error("{} belongs to another study: its {what} differ; give another file{remedy}", .file.display())]
    OtherStudy { file: PathBuf, what: &'static str, remedy: &'static str },
    #[error("{} has other objectives ({theirs}) than this study ({ours}): nothing can be learned from it", .file.display())]
    OtherObjectives { file: PathBuf, theirs: String, ours: String },
    #[error("{} is not a file: give the name of a file that can be read again", .0.display())]
    NotAFile(PathBuf),
}

impl Error {
    /// Whether the disk is to blame, and not the journal.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self, Self::Io { doing: WRITE, .. })
    }
}

const WRITE: &str = "write";

/// A line of a journal.
#[derive(Debug, Serialize, Deserialize)]
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

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ended {
    Done(Vec<Option<f64>>),
    Stopped(String),
    Cancelled(String),
    Failed(String),
}

/// JSON has no numbers that are not finite.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

impl From<&End> for Ended {
    fn from(end: &End) -> Self {
        match end {
            End::Done(values) => Self::Done(values.iter().copied().map(finite).collect()),
            End::Stopped(why) => Self::Stopped(why.clone()),
            End::Cancelled(why) => Self::Cancelled(why.clone()),
            End::Failed(why) => Self::Failed(why.clone()),
        }
    }
}

impl From<Ended> for End {
    fn from(end: Ended) -> Self {
        match end {
            Ended::Done(values) => {
                Self::Done(values.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect())
            }
            Ended::Stopped(why) => Self::Stopped(why),
            Ended::Cancelled(why) => Self::Cancelled(why),
            Ended::Failed(why) => Self::Failed(why),
        }
    }
}

impl From<&Fact> for Line {
    fn from(fact: &Fact) -> Self {
        match fact {
            Fact::Learned { params, end, last } => {
                Self::Learned { params: params.clone(), end: end.into(), last: *last }
            }
            Fact::Enqueued { params } => Self::Enqueued { params: params.clone() },
            Fact::Asked { id, params, point } => {
                Self::Asked { id: id.0, params: params.clone(), point: point.clone() }
            }
            Fact::Reported { id, epochs, value } => {
                Self::Reported { id: id.0, epochs: *epochs, value: finite(*value) }
            }
            Fact::Ended { id, end } => Self::Ended { id: id.0, end: end.into() },
        }
    }
}

impl Line {
    /// The study and the end of a warm start are none.
    fn fact(self) -> Option<Fact> {
        Some(match self {
            Self::Study { .. } | Self::Warm {} => return None,
            Self::Learned { params, end, last } => Fact::Learned { params, end: end.into(), last },
            Self::Enqueued { params } => Fact::Enqueued { params },
            Self::Asked { id, params, point } => Fact::Asked { id: TrialId(id), params, point },
            Self::Reported { id, epochs, value } => {
                Fact::Reported { id: TrialId(id), epochs, value: value.unwrap_or(f64::NAN) }
            }
            Self::Ended { id, end } => Fact::Ended { id: TrialId(id), end: end.into() },
        })
    }
}

/// What a journal holds.
pub(crate) struct Contents {
    pub(crate) study: Study,
    /// With the numbers of their lines.
    facts: Vec<(usize, Fact)>,
    /// Where the last whole line ends; what follows was being written when its writer died.
    whole: u64,
}

impl Contents {
    /// The search as it stood at the end.
    pub(crate) fn replay(self, file: &Path, study: &Study) -> Result<Search, cli::Error> {
        let mut search = Search::new(study)?;
        for (line, fact) in self.facts {
            let wrong = |error: trials::Error| Error::Line {
                file: file.to_owned(),
                line,
                problem: error.to_string(),
            };
            search.apply(fact).map_err(wrong)?;
        }
        Ok(search)
    }
}

/// Reads a journal without changing it.
pub(crate) fn read(file: &Path) -> Result<Contents, Error> {
    let mut text = Vec::new();
    let open = File::open(file).and_then(|mut open| open.read_to_end(&mut text));
    open.map_err(|source| Error::Io { doing: "read", file: file.to_owned(), source })?;
    parse(file, &text)
}

fn parse(file: &Path, text: &[u8]) -> Result<Contents, Error> {
    let wrong = |line: usize, problem: String| Error::Line { file: file.to_owned(), line, problem };
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let (mut study, mut facts, mut is_warm, mut first) = (None, Vec::new(), false, 0);
    for (number, line) in (1..).zip(text[..whole].split_inclusive(|&byte| byte == b'\n')) {
        if number == 1 {
            first = line.len();
        }
        let line: Line = serde_json::from_slice(line).map_err(|error| match number {
            1 => Error::NoStudy(file.to_owned()),
            _ => wrong(number, error.to_string()),
        })?;
        match (line, &study) {
            (Line::Study { version, .. }, _) if version > VERSION => {
                return Err(Error::Newer { file: file.to_owned(), found: version });
            }
            (Line::Study { yaml, .. }, None) => {
                let read = Study::from_yaml(&file.display().to_string(), &yaml);
                study = Some(read.map_err(|problems: Diagnostics| wrong(number, problems.to_string()))?);
            }
            (Line::Warm {}, Some(_)) => is_warm = true,
            (line, Some(_)) => match line.fact() {
                Some(fact) => facts.push((number, fact)),
                None => return Err(wrong(number, "a second study".to_owned())),
            },
            (_, None) => return Err(Error::NoStudy(file.to_owned())),
        }
    }
    let study = study.ok_or_else(|| Error::NoStudy(file.to_owned()))?;
    // A warm start that was cut off begins anew.
    if !is_warm && facts.iter().all(|(_, fact)| matches!(fact, Fact::Learned { .. })) {
        return Ok(Contents { study, facts: Vec::new(), whole: first as u64 });
    }
    Ok(Contents { study, facts, whole: whole as u64 })
}

/// An open journal; nobody else writes to it.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Opens or begins the journal of a study, and says how the search stands.
    pub(super) fn open(path: &Path, yaml: &str, study: &Study) -> Result<(Self, Search), cli::Error> {
        let io = |doing: &'static str| {
            let file = path.to_owned();
            move |source| Error::Io { doing, file, source }
        };
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = options.map_err(io("open"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::InUse(path.to_owned()).into()),
            Err(TryLockError::Error(source)) => return Err(io("lock")(source).into()),
        }
        if !file.metadata().map_err(io("read"))?.is_file() {
            return Err(Error::NotAFile(path.to_owned()).into());
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(io("read"))?;
        let mut journal = Self { path: path.to_owned(), file };
        // A file without a whole line is one whose first line was not finished.
        let begun = br#"{"study":"#;
        if !text.contains(&b'\n') && (begun.starts_with(&text) || text.starts_with(begun)) {
            return journal.begin(yaml, study);
        }
        let contents = parse(path, &text)?;
        for (what, same, remedy) in [
            ("search spaces", contents.study.space == study.space, ", or pass this one to --warm-start"),
            ("objectives", contents.study.objectives == study.objectives, ""),
        ] {
            if !same && contents.facts.is_empty() {
                return journal.begin(yaml, study);
            }
            if !same {
                return Err(Error::OtherStudy { file: path.to_owned(), what, remedy }.into());
            }
        }
        journal.cut(contents.whole)?;
        let search = contents.replay(path, study)?;
        Ok((journal, search))
    }

    /// Begins a journal without facts, in a file that survives a crash of the machine.
    fn begin(mut self, yaml: &str, study: &Study) -> Result<(Self, Search), cli::Error> {
        self.cut(0)?;
        self.write(&[Line::Study { version: VERSION, yaml: yaml.to_owned() }])?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder =
            File::open(folder.unwrap_or_else(|| Path::new("."))).and_then(|folder| folder.sync_all());
        folder.map_err(self.io(WRITE))?;
        Ok((self, Search::new(study)?))
    }

    fn io(&self, doing: &'static str) -> impl FnOnce(io::Error) -> Error {
        let file = self.path.clone();
        move |source| Error::Io { doing, file, source }
    }

    fn cut(&mut self, length: u64) -> Result<(), Error> {
        let cut = self.file.set_len(length).and_then(|()| self.file.seek(SeekFrom::Start(length)));
        cut.map(|_| ()).map_err(self.io(WRITE))
    }

    /// Once this returns, the fact survives a crash of the machine.
    pub(super) fn append(&mut self, fact: &Fact) -> Result<(), Error> {
        self.write(&[fact.into()])
    }

    /// All that is learned from earlier studies, as a whole or not at all.
    pub(super) fn append_learned(&mut self, facts: &[Fact]) -> Result<(), Error> {
        let lines: Vec<Line> = facts.iter().map(Line::from).chain([Line::Warm {}]).collect();
        self.write(&lines)
    }

    fn write(&mut self, lines: &[Line]) -> Result<(), Error> {
        let mut text = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut text, line).map_err(|error| self.io(WRITE)(error.into()))?;
            text.push(b'\n');
        }
        let written = self.file.write_all(&text).and_then(|()| self.file.sync_data());
        written.map_err(self.io(WRITE))
    }
}
