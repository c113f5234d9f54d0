//! Measured step times from CSV files.
//!
//! *Architecture invariant:* a row that leaves this module is valid; every complaint names file and line.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    cli::{self, output::quoted},
    goodput::{self, Shape},
};
use csv::{Position, StringRecord};
use thiserror::Error;

/// One measured step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    /// Where it was read.
    pub(crate) file: PathBuf,
    /// The line there, counted from 1.
    pub(crate) line: u64,
    /// GPUs and nodes.
    pub(crate) shape: Shape,
    /// Examples on each GPU in one pass.
    pub(crate) per_gpu: u32,
    /// Passes before the one that synchronizes.
    pub(crate) accumulation: u32,
    /// Seconds of the step.
    pub(crate) step_s: f64,
}

/// What can be wrong with a file of measured step times.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// There is not even a header.
    #[error("{} is empty, its first line must name {NEEDED}", .file.display())]
    Empty { file: PathBuf },
    /// There is only a header.
    #[error("{} has a header but no rows", .file.display())]
    NoRows { file: PathBuf },
    /// A column that is needed is not there.
    #[error("{}:{line}: no column {wanted} among {present}{hint}", .file.display())]
    MissingColumn { file: PathBuf, line: u64, wanted: &'static str, present: String, hint: String },
    /// A column is there twice.
    #[error("{}:{line}: column `{column}` appears twice", .file.display())]
    DuplicateColumn { file: PathBuf, line: u64, column: &'static str },
    /// A row has more or fewer fields than the header.
    #[error("{}:{line}: the row has {fields} fields, the header has {expected}", .file.display())]
    WrongWidth { file: PathBuf, line: u64, fields: u64, expected: u64 },
    /// A field holds something else than it should.
    #[error("{}:{line}: {column} is `{value}`; expected {allowed}", .file.display())]
    BadField { file: PathBuf, line: u64, column: &'static str, value: String, allowed: String },
    /// No model describes the rows.
    #[error("{files}: the step times cannot be fitted")]
    Unfit { files: String, source: goodput::Error },
    /// The file is not a table of text.
    #[error("{}:{line}: not CSV in UTF-8", .file.display())]
    Malformed { file: PathBuf, line: u64, source: csv::Error },
}

const NEEDED: &str = "`step_time`, `local_bsz` and `placement`";

/// Reads all rows of one file.
pub(crate) fn read(file: &Path) -> Result<Vec<Row>, cli::Error> {
    let bytes = fs::read(file).map_err(cli::Error::reading(file))?;
    Ok(parse(file, &bytes)?)
}

fn parse(file: &Path, bytes: &[u8]) -> Result<Vec<Row>, Error> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).comment(Some(b'#')).from_reader(bytes);
    let header = reader.headers().map_err(|source| not_csv(file, bytes, source))?.clone();
    if header.is_empty() {
        return Err(Error::Empty { file: file.to_owned() });
    }
    let columns = Columns::find(&header, file, line_of(bytes, header.position()))?;
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|source| not_csv(file, bytes, source))?;
        let line = line_of(bytes, record.position());
        rows.push(columns.row(&Fields { file, line, record: &record })?);
    }
    if rows.is_empty() {
        return Err(Error::NoRows { file: file.to_owned() });
    }
    Ok(rows)
}

fn not_csv(file: &Path, bytes: &[u8], source: csv::Error) -> Error {
    let file = file.to_owned();
    let line = line_of(bytes, source.position());
    match *source.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            Error::WrongWidth { file, line, fields: len, expected: expected_len }
        }
        _ => Error::Malformed { file, line, source },
    }
}

/// The line on which a record really begins: the reader stderr its position before it skips blank lines and
/// comments.
fn line_of(bytes: &[u8], position: Option<&Position>) -> u64 {
    let Some(position) = position else { return 1 };
    let mut line = position.line();
    let mut in_comment = false;
    for &byte in bytes.get(position.byte() as usize..).unwrap_or_default() {
        match byte {
            b'\n' => {
                line += 1;
                in_comment = false;
            }
            b'\r' => {}
            b'#' => in_comment = true,
            _ if in_comment => {}
            _ => break,
        }
    }
    line
}

const STEP_TIME: &str = "step_time";
const LOCAL_BSZ: &str = "local_bsz";
const PLACEMENT: &str = "placement";
const NUM_NODES: &str = "num_nodes";
const NUM_REPLICAS: &str = "num_replicas";
const ACCUMULATION: &str = "accumulation";

/// Where the numbers of a row are.
struct Columns {
    step_time: usize,
    local_bsz: usize,
    shape: ShapeColumns,
    accumulation: Option<usize>,
}

enum ShapeColumns {
    Placement(usize),
    Counts { nodes: usize, replicas: usize },
}

impl Columns {
    fn find(header: &StringRecord, file: &Path, line: u64) -> Result<Self, Error> {
        let optional = |name: &'static str| {
            let mut places = header.iter().enumerate().filter(|(_, field)| *field == name);
            let first = places.next().map(|(place, _)| place);
            match places.next() {
                Some(_) => Err(Error::DuplicateColumn { file: file.to_owned(), line, column: name }),
                None => Ok(first),
            }
        };
        let missing = |wanted: &'static str, names: &[&str]| Error::MissingColumn {
            file: file.to_owned(),
            line,
            wanted,
            present: header.iter().map(|field| format!("`{}`", quoted(field))).collect::<Vec<_>>().join(", "),
            hint: if header.len() == 1 && header[0].contains([';', '\t']) {
                "; fields must be separated by commas".to_owned()
            } else {
                closest(header, names)
                    .map_or_else(String::new, |field| format!("; did you mean `{}`?", quoted(field)))
            },
        };
        let step_time = optional(STEP_TIME)?.ok_or_else(|| missing("`step_time`", &[STEP_TIME]))?;
        let local_bsz = optional(LOCAL_BSZ)?.ok_or_else(|| missing("`local_bsz`", &[LOCAL_BSZ]))?;
        let shape = match (optional(PLACEMENT)?, optional(NUM_NODES)?, optional(NUM_REPLICAS)?) {
            (Some(placement), ..) => ShapeColumns::Placement(placement),
            (None, Some(nodes), Some(replicas)) => ShapeColumns::Counts { nodes, replicas },
            (None, Some(_), None) => return Err(missing("`num_replicas`", &[NUM_REPLICAS])),
            (None, None, Some(_)) => return Err(missing("`num_nodes`", &[NUM_NODES])),
            (None, None, None) => {
                let wanted = "`placement` (or `num_nodes` and `num_replicas`)";
                return Err(missing(wanted, &[PLACEMENT, NUM_NODES, NUM_REPLICAS]));
            }
        };
        Ok(Self { step_time, local_bsz, shape, accumulation: optional(ACCUMULATION)? })
    }

    fn row(&self, fields: &Fields<'_>) -> Result<Row, Error> {
        let accumulation = self.accumulation.map_or(Ok(0), |place| fields.count(place, ACCUMULATION, 0))?;
        Ok(Row {
            file: fields.file.to_owned(),
            line: fields.line,
            shape: self.shape.read(fields)?,
            per_gpu: fields.count(self.local_bsz, LOCAL_BSZ, 1)?,
            accumulation,
            step_s: fields.seconds(self.step_time, STEP_TIME)?,
        })
    }
}

impl ShapeColumns {
    fn read(&self, fields: &Fields<'_>) -> Result<Shape, Error> {
        match *self {
            Self::Placement(place) => {
                let digits = fields.text(place);
                let gpus: Option<u32> =
                    digits.chars().map(|digit| digit.to_digit(10).filter(|&gpus| gpus > 0)).sum();
                gpus.and_then(|gpus| Shape::new(gpus, digits.len() as u32).ok()).ok_or_else(|| {
                    fields.bad(place, PLACEMENT, "one digit from 1 to 9 for each node, its GPUs")
                })
            }
            Self::Counts { nodes, replicas } => {
                let gpus = fields.count(replicas, NUM_REPLICAS, 1)?;
                Shape::new(gpus, fields.count(nodes, NUM_NODES, 1)?)
                    .map_err(|_| fields.bad(nodes, NUM_NODES, &format!("1 to num_replicas, here {gpus}")))
            }
        }
    }
}

/// The text of one row.
struct Fields<'a> {
    file: &'a Path,
    line: u64,
    record: &'a StringRecord,
}

impl Fields<'_> {
    fn text(&self, place: usize) -> &str {
        self.record.get(place).expect("rows are as wide as the header")
    }

    fn seconds(&self, place: usize, column: &'static str) -> Result<f64, Error> {
        let value = self.text(place).parse().ok();
        value
            .filter(|value: &f64| value.is_finite() && *value > 0.0)
            .ok_or_else(|| self.bad(place, column, "a finite number of seconds above 0"))
    }

    /// A whole number, also written as `32.0`, which is what tables of floating-point numbers become.
    fn count(&self, place: usize, column: &'static str, min: u32) -> Result<u32, Error> {
        let value = self.text(place).parse().ok();
        let whole = value.filter(|value: &f64| {
            value.fract().abs() < f64::EPSILON && (f64::from(min)..=f64::from(u32::MAX)).contains(value)
        });
        let bad = || self.bad(place, column, &format!("a whole number from {min} to {}", u32::MAX));
        whole.map(|value| value as u32).ok_or_else(bad)
    }

    fn bad(&self, place: usize, column: &'static str, allowed: &str) -> Error {
        let value = quoted(self.text(place));
        Error::BadField {
            file: self.file.to_owned(),
            line: self.line,
            column,
            value,
            allowed: allowed.to_owned(),
        }
    }
}

/// The field of the header that is most like one of `names`, if any is close.
fn closest<'a>(header: &'a StringRecord, names: &[&str]) -> Option<&'a str> {
    const MAX_DISTANCE: usize = 2;
    let plain = |text: &str| text.to_lowercase().replace(|c: char| !c.is_alphanumeric(), "");
    header
        .iter()
        .flat_map(|field| {
            names.iter().map(move |name| (strsim::damerau_levenshtein(&plain(field), &plain(name)), field))
        })
        .filter(|(distance, _)| *distance <= MAX_DISTANCE)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, field)| field)
}

#[cfg(test)]
mod tests;
