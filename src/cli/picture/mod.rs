//! `pollux-tune plot`: the plots of a study as SVG and PNG.
//!
//! `data` reads the study, `axis` knows where values are, `canvas` has what all pictures share; `results` and `parameters` draw, and `png`
//! turns drawings into pixels.
//!
//! *Architecture invariant:* a drawing is SVG text that depends on the journal alone; however long a study, it stays below a few megabytes.

mod axis;
mod canvas;
mod data;
mod parameters;
mod png;
mod results;
#[cfg(test)]
mod tests;

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use clap::ValueEnum;
use thiserror::Error;

use self::data::Data;
use super::{output::write_whole, timeline};
use crate::{cli, store::Reader};

/// Which picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// Results in the order of the trials, and the best so far
    History,
    /// Learning curves, those of the best trials in colour
    Curves,
    /// Which trial had which slot when
    Timeline,
    /// A line for each trial through its parameters and its result
    Parallel,
    /// How much each parameter matters
    Importance,
    /// The result by each parameter
    Slice,
    /// The result by two parameters
    Contour,
    /// Two objectives, and the trials that no other one beats
    Pareto,
}

impl Kind {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// What is to be drawn.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) folder: PathBuf,
    pub(super) kind: Kind,
    /// A name that ends in `.svg` or `.png`; one in the folder of the study, if it is not said.
    pub(super) output: Option<PathBuf>,
    /// The metric; the first objective, if it is not said.
    pub(super) objective: Option<String>,
    /// Instead of all parameters, or the first two.
    pub(super) parameters: Vec<String>,
    /// Whether it may replace a file.
    pub(super) force: bool,
}

/// Why there is no picture.
#[derive(Debug, Error)]
pub(super) enum Error {
    #[error("{} has no trial with a result yet", .0.display())]
    NoResult(PathBuf),
    #[error("no trial of {} has reported `{metric}`", .folder.display())]
    NoCurve { folder: PathBuf, metric: String },
    #[error("there is no objective `{name}`; expected one of {allowed}")]
    NoObjective { name: String, allowed: String },
    #[error("there is no parameter `{name}` that is searched; expected one of {allowed}")]
    NoParameter { name: String, allowed: String },
    #[error("`contour` needs two parameters, {0} given")]
    TwoParameters(usize),
    #[error("`pareto` needs a study with several objectives")]
    OneObjective,
    #[error("the drawing cannot be turned into pixels")]
    Pixels(#[from] png::Error),
    #[error("{} exists; --force replaces it", .0.display())]
    Exists(PathBuf),
}

/// Draws what the user wants, and prints where it is.
pub(super) fn run(settings: &Settings, out: &mut impl Write) -> Result<(), cli::Error> {
    let path = match &settings.output {
        Some(path) if fs::symlink_metadata(path).is_ok() && !settings.force => {
            return Err(Error::Exists(path.clone()).into());
        }
        Some(path) => path.clone(),
        // Nobody else writes it.
        None => settings.folder.join(format!("{}.svg", settings.kind.name())),
    };
    let reader = Reader::open(&settings.folder)?;
    let svg = draw(settings, &reader)?;
    let bytes = if is_png(&path) { png::of_svg(&svg).map_err(Error::from)? } else { svg.into_bytes() };
    write_whole(&path, |file| file.write_all(&bytes))?;
    writeln!(out, "{}", path.display()).map_err(cli::Error::Stdout)
}

/// Whether a name is one of a picture of pixels.
pub(super) fn is_png(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("png"))
}

fn draw(settings: &Settings, reader: &Reader) -> Result<String, cli::Error> {
    if settings.kind == Kind::Timeline {
        return Ok(timeline::draw(reader, reader.folder().emulated().as_deref())?);
    }
    let data = Data::read(reader, &settings.folder, settings.objective.as_deref())?;
    if settings.kind == Kind::Curves {
        if data.curves.is_empty() {
            let metric = data.metric().to_owned();
            return Err(Error::NoCurve { folder: settings.folder.clone(), metric }.into());
        }
        return Ok(results::curves(&data));
    }
    if data.results.is_empty() {
        return Err(Error::NoResult(settings.folder.clone()).into());
    }
    Ok(match settings.kind {
        Kind::Importance => {
            let search = super::results::search(&settings.folder)?;
            results::importance(&data, &search.importance(data.objective)?)
        }
        Kind::Pareto => results::pareto(&data)?,
        Kind::Parallel => parameters::parallel(&data, &data.chosen(&settings.parameters)?),
        Kind::Slice => parameters::slice(&data, &data.chosen(&settings.parameters)?),
        Kind::Contour => {
            let mut chosen = data.chosen(&settings.parameters)?;
            if settings.parameters.is_empty() {
                chosen.truncate(2);
            }
            let [x, y] = chosen[..] else { return Err(Error::TwoParameters(chosen.len()).into()) };
            parameters::contour(&data, x, y)
        }
        Kind::History | Kind::Curves | Kind::Timeline => results::history(&data),
    })
}
