//! `report`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::report;

const ABOUT: &str = "\
Write a study as one web page, to send and to keep

The page has the plots of `pollux-tune dashboard`: optimization history, GPU timeline, parallel coordinates,
importance, slice, contour and Pareto front, and a page for each of up to 200 trials. It is one file that a
browser opens without this program and without a network. Logs of trials are not in it.";

/// Write a study as one web page, to send and to keep
#[derive(Debug, Args)]
#[command(long_about = ABOUT, arg_required_else_help = true)]
pub(crate) struct ReportArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// The file to write [default: report.html in the folder]
    #[arg(short, long, value_name = "OUT.html")]
    output: Option<PathBuf>,
    /// Replace the file if it is there
    #[arg(long)]
    force: bool,
}

impl From<ReportArgs> for report::Settings {
    fn from(ReportArgs { folder, output, force }: ReportArgs) -> Self {
        Self { folder, output, force }
    }
}
