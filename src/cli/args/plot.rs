//! `plot`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::picture;

const ABOUT: &str = "\
Draw a study: one of the plots of the web page as SVG or PNG

The ending of OUT tells which of both. Pictures as PNG need no fonts on the machine.";

const EXAMPLES: &str = "\
Examples:
  pollux-tune plot studies/cifar10 -o history.png
  pollux-tune plot studies/cifar10 --kind slice -o slice.svg --param lr
  pollux-tune plot studies/cifar10 --kind contour -o contour.png --param lr --param momentum";

/// Draw a study: one of the plots of the web page as SVG or PNG
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct PlotArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Which picture
    #[arg(short, long, value_name = "KIND", default_value = "history")]
    kind: picture::Kind,
    /// The file to write [default: KIND.svg in the folder]
    #[arg(short, long, value_name = "OUT.svg|OUT.png", value_parser = picture_path)]
    output: Option<PathBuf>,
    /// The objective [default: the first one]
    #[arg(long, value_name = "METRIC")]
    objective: Option<String>,
    /// A parameter; may be given several times [default: all, and the first two for contour]
    #[arg(long, value_name = "NAME")]
    param: Vec<String>,
    /// Replace the file if it is there
    #[arg(long)]
    force: bool,
}

impl From<PlotArgs> for picture::Settings {
    fn from(PlotArgs { folder, kind, output, objective, param, force }: PlotArgs) -> Self {
        Self { folder, kind, output, objective, parameters: param, force }
    }
}

/// A picture must not replace something else because of a typo.
fn picture_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_svg = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("svg"));
    if is_svg || picture::is_png(&path) {
        Ok(path)
    } else {
        Err("the name of a picture must end in `.svg` or `.png`".to_owned())
    }
}
