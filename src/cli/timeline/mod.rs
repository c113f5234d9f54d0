//! `pollux-tune timeline`: a picture of slots that move among trials over time.
//!
//! *Architecture invariant:* [`history`] reads the journal, [`scene`] decides what is where on the page, [`paint`]
//! writes it down. However long a study, the picture stays below a few megabytes.

mod history;
mod paint;
mod scene;
mod strip;
#[cfg(test)]
mod tests;

use std::{io::Write, path::PathBuf};

use anyhow::Context;
use clap::Args;

use super::{fit::write_whole, output_error, svg_path};
use crate::store::{self, Reader};
use history::History;
use scene::Scene;

/// Draw how slots moved among the trials of a study
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(super) struct TimelineArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Where to draw [default: timeline.svg in the folder]
    #[arg(long, value_name = "OUT.svg", value_parser = svg_path)]
    svg: Option<PathBuf>,
}

/// Draws the study in a folder, and prints where the picture is.
pub(super) fn run(arguments: &TimelineArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let TimelineArgs { folder, svg } = arguments;
    let path = svg.clone().unwrap_or_else(|| folder.join("timeline.svg"));
    let reader = Reader::open(folder)?;
    let picture = draw(&reader, reader.folder().emulated().as_deref())?;
    write_whole(&path, &picture).with_context(|| format!("cannot write {}", path.display()))?;
    writeln!(out, "{}", path.display()).map_err(output_error)
}

/// The study as an SVG document. `emulated` says what the slots stand for, if they are not real.
pub(crate) fn draw(reader: &Reader, emulated: Option<&str>) -> Result<String, store::Error> {
    let history = History::read(reader)?;
    Ok(paint::svg(&Scene::new(&history), &history, emulated))
}
