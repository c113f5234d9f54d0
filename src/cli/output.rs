//! What commands print and write: tables, numbers of things, quotations, and files that are whole or not there.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process,
};

use super::Error;
use crate::space::{Params, Value};

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
}

/// Rows as lines: numbers to the right, the last column to the left.
pub(super) fn table(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(column, cell)| match widths[column] {
            _ if column + 1 == columns => cell.clone(),
            width => format!("{cell:>width$}"),
        });
        format!("  {}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// `1 row`, `2 rows`.
pub(super) fn pluralize(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Parameters as `name=value`, numbers with four digits.
pub(super) fn brief_params(params: &Params) -> String {
    let each = params.iter().map(|(name, value)| {
        let value = if let Value::Float(number) = value { brief(*number) } else { value.to_string() };
        format!("{name}={value}")
    });
    each.collect::<Vec<_>>().join(" ")
}

/// A number with four digits.
pub(super) fn brief(number: f64) -> String {
    let rounded = format!("{number:.3e}").parse().unwrap_or(number);
    Value::from(rounded).short()
}

/// Text from a file as a message may quote it: short, and harmless to a terminal.
pub(super) fn quoted(text: &str) -> String {
    const MAX: usize = 40;
    let mut quoted: String = text.chars().take(MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX).is_some() {
        quoted.push('…');
    }
    quoted
}

/// Writes a file that is either complete or not there: others never see a part of it.
pub(super) fn write_atomically(path: &Path, text: &str) -> Result<(), Error> {
    write_whole(path, |file| file.write_all(text.as_bytes()))
}

/// The same for what `write` writes.
pub(super) fn write_whole(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), Error> {
    let failed = || Error::writing(path);
    let temporary = temporary(path)?;
    let written = File::create(&temporary)
        .and_then(|mut file| write(&mut file).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first failure is the one to report, not that there is nothing to remove.
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(failed())
}

/// A name next to a path, for what becomes that path once it is whole.
pub(super) fn temporary(path: &Path) -> Result<PathBuf, Error> {
    let name = path.file_name().ok_or_else(|| io::ErrorKind::InvalidFilename.into());
    let mut name = name.map_err(Error::writing(path))?.to_owned();
    name.push(format!(".{}.tmp", process::id()));
    Ok(path.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let rows = [["trial", "loss", "why"], ["7", "0.5", ""], ["10", "0.25", "late"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&rows), ["  trial  loss  why", "      7   0.5", "     10  0.25  late"]);
    }

    #[test]
    fn numbers_have_four_digits() {
        assert_eq!([0.013_403_7, 12_345.6, 1.0, f64::NAN].map(brief), ["0.0134", "12350", "1", "NaN"]);
    }

    #[test]
    fn quotations_are_short_and_harmless() {
        assert_eq!(quoted("lr"), "lr");
        assert_eq!(quoted("\u{1b}[31m"), r"\u{1b}[31m");
        assert_eq!(quoted(&"x".repeat(41)), format!("{}…", "x".repeat(40)));
    }
}
