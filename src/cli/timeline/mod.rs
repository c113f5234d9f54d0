//! `pollux-tune timeline`: a picture of slots that move among trials over time.
//!
//! *Architecture invariant:* [`history`] reads the journal, [`layout`] decides what is where on the page, [`paint`]
//! writes it down. However long a study, the picture occupancies below a few megabytes.

mod chart;
mod history;
mod layout;
mod paint;
#[cfg(test)]
mod tests;

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use super::{Error, output::write_atomically};
use crate::store::{self, Reader};
use history::History;
use layout::Layout;

/// Draws the study in a folder into the given file, or one in the folder, and prints where the picture is.
pub(super) fn run(folder: &Path, svg: Option<PathBuf>, out: &mut impl Write) -> Result<(), Error> {
    let path = svg.unwrap_or_else(|| folder.join("timeline.svg"));
    let reader = Reader::open(folder)?;
    let picture = draw(&reader, reader.folder().emulated().as_deref())?;
    write_atomically(&path, &picture)?;
    writeln!(out, "{}", path.display()).map_err(Error::Stdout)
}

/// The study as an SVG document. `emulated` is what the slots stand for, if they are not real.
pub(crate) fn draw(reader: &Reader, emulated: Option<&str>) -> Result<String, store::Error> {
    let history = History::read(reader)?;
    Ok(paint::svg(&Layout::new(&history), &history, emulated))
}
