//! SVG as pixels, with letters that the program brings along: machines in clusters have none.

use std::sync::Arc;

use resvg::{
    tiny_skia::{Pixmap, Transform},
    usvg::{Options, Tree, fontdb::Database},
};
use thiserror::Error;

/// DejaVu Sans, the letters that `scripts/vendor-font.sh` chooses.
const FONTS: [&[u8]; 2] = [include_bytes!("font/sans.ttf"), include_bytes!("font/sans-bold.ttf")];
/// Pixels for each unit of a drawing, so that it is sharp on any screen.
const SHARPNESS: f32 = 2.0;
/// No picture is wider or higher.
const LARGEST: f32 = 16_000.0;

/// Why there are no pixels.
#[derive(Debug, Error)]
pub(in crate::cli) enum Error {
    #[error("the drawing is damaged")]
    Drawing(#[from] resvg::usvg::Error),
    #[error("it is {width} x {height} pixels large")]
    Size { width: u32, height: u32 },
    #[error("{0}")]
    Encoding(String),
}

/// A PNG file.
pub(super) fn of_svg(svg: &str) -> Result<Vec<u8>, Error> {
    let mut fonts = Database::new();
    for font in FONTS {
        fonts.load_font_data(font.to_vec());
    }
    fonts.set_sans_serif_family("DejaVu Sans");
    let options =
        Options { fontdb: Arc::new(fonts), font_family: "DejaVu Sans".to_owned(), ..Options::default() };
    let tree = Tree::from_str(svg, &options)?;
    let (width, height) = (tree.size().width(), tree.size().height());
    let sharpness = SHARPNESS.min(LARGEST / width.max(height));
    let (pixels, lines) = ((width * sharpness).ceil() as u32, (height * sharpness).ceil() as u32);
    let mut picture = Pixmap::new(pixels, lines).ok_or(Error::Size { width: pixels, height: lines })?;
    resvg::render(&tree, Transform::from_scale(sharpness, sharpness), &mut picture.as_mut());
    picture.encode_png().map_err(|error| Error::Encoding(error.to_string()))
}
