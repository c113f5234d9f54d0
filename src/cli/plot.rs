//! Figures of two panels as SVG text.
//!
//! *Architecture invariant:* numbers in, text out; what a figure shows is decided elsewhere.

pub(crate) mod axis;

use std::fmt::Write;

use axis::Axis;
pub(crate) use axis::Scale;

/// Two panels side by side under a title.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figure {
    pub(crate) title: String,
    pub(crate) caption: String,
    pub(crate) panels: [Panel; 2],
}

/// One diagram.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) x_label: String,
    pub(crate) x_scale: Scale,
    pub(crate) y_label: String,
    pub(crate) y_scale: Scale,
    /// As many as [`COLORS`] can be distinguished.
    pub(crate) series: Vec<Series>,
}

/// Measured points and the line that was fitted to them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) points: Vec<Point>,
    pub(crate) line: Vec<(f64, f64)>,
}

/// The maximum number of places of a distribution that are drawn.
const PLACES: usize = 160;

/// The cumulative distribution of some values, as a line.
pub(crate) fn distribution(mut values: Vec<f64>) -> Vec<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let (count, step) = (values.len(), values.len().div_ceil(PLACES).max(1));
    let drawn = |place: &usize| place.is_multiple_of(step) || place + 1 == count;
    (0..count).filter(drawn).map(|place| (values[place], (place + 1) as f64 / count as f64)).collect()
}

/// A measured value with its range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Okabe and Ito's palette, which colour-blind readers can distinguish; markers differ as well.
const COLORS: [&str; 4] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7"];

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 460.0;
pub(crate) const INK: &str = "#222222";
pub(crate) const FAINT: &str = "#dddddd";

/// A rectangle on the page.
#[derive(Clone, Copy)]
struct Frame {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

/// Where the two diagrams are; around them is room for labels and legends.
const FRAMES: [Frame; 2] = [
    Frame { left: 72.0, top: 134.0, width: 406.0, height: 270.0 },
    Frame { left: 578.0, top: 134.0, width: 406.0, height: 270.0 },
];

/// The figure as an SVG document.
pub(crate) fn svg(figure: &Figure) -> String {
    let mut page = Page(String::new());
    let size = format!(r#"width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}""#);
    let font = r#"font-family="Helvetica, Arial, 'Liberation Sans', sans-serif""#;
    page.line(&format!(r#"<svg xmlns="http://www.w3.org/2000/svg" {size} {font} fill="{INK}">"#));
    page.line(&format!("<title>{}</title>", escaped(&figure.title)));
    page.line(&format!(r##"<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>"##));
    page.text(
        WIDTH / 2.0,
        30.0,
        Text { size: fitting(&figure.title, 20.0, WIDTH - 20.0), bold: true, ..Text::MIDDLE },
        &figure.title,
    );
    page.text(
        WIDTH / 2.0,
        52.0,
        Text { size: fitting(&figure.caption, 13.0, WIDTH - 20.0), ..Text::MIDDLE },
        &figure.caption,
    );
    for (panel, frame) in figure.panels.iter().zip(FRAMES) {
        draw(&mut page, panel, frame);
    }
    page.line("</svg>");
    page.0
}

/// The largest font size up to `size` at which a text fits into a width, at about 0.6 em for a character.
pub(crate) fn fitting(text: &str, size: f64, width: f64) -> f64 {
    size.min(width / (0.6 * text.chars().count().max(1) as f64))
}

fn draw(page: &mut Page, panel: &Panel, frame: Frame) {
    let points = || panel.series.iter().flat_map(|series| &series.points);
    let lines = || panel.series.iter().flat_map(|series| &series.line);
    let x = Axis::new(panel.x_scale, points().map(|point| point.x).chain(lines().map(|(x, _)| *x)));
    let bars = points().flat_map(|point| [point.low, point.high]);
    let y = Axis::new(panel.y_scale, bars.chain(lines().map(|(_, y)| *y)));
    let at = |(x_value, y_value): (f64, f64)| {
        (frame.left + frame.width * x.share(x_value), frame.top + frame.height * (1.0 - y.share(y_value)))
    };
    let middle = frame.left + frame.width / 2.0;
    page.text(middle, 82.0, Text { size: 15.0, bold: true, ..Text::MIDDLE }, &panel.title);
    grid(page, frame, &x, &y);
    axis_labels(page, frame, panel);
    for (index, series) in panel.series.iter().enumerate() {
        let color = COLORS[index % COLORS.len()];
        page.line(&format!(r#"<g class="series" stroke="{color}" fill="{color}">"#));
        let line: Vec<_> = series.line.iter().map(|&place| at(place)).collect();
        page.polyline(&line);
        for point in &series.points {
            let (_, low) = at((point.x, point.low));
            let (left, high) = at((point.x, point.high));
            if low - high > 0.5 {
                let path = format!(r#"class="range" d="M{left:.1} {low:.1}V{high:.1}""#);
                page.line(&format!(r#"<path {path} stroke-width="1.2" stroke-opacity="0.55"/>"#));
            }
        }
        for point in &series.points {
            page.marker(index, at((point.x, point.y)));
        }
        page.line("</g>");
        legend(page, frame, index, &series.label);
    }
}

fn grid(page: &mut Page, Frame { left, top, width, height }: Frame, x: &Axis, y: &Axis) {
    page.line(&format!(r#"<g stroke="{FAINT}" stroke-width="1">"#));
    for tick in &x.ticks {
        page.line(&format!(r#"<path d="M{:.1} {top}v{height}"/>"#, left + width * tick.share));
    }
    for tick in &y.ticks {
        page.line(&format!(r#"<path d="M{left} {:.1}h{width}"/>"#, top + height * (1.0 - tick.share)));
    }
    page.line("</g>");
    page.line(&format!(
        r#"<path d="M{left} {top}v{height}h{width}" fill="none" stroke="{INK}" stroke-width="1.2"/>"#
    ));
    for tick in &x.ticks {
        page.text(left + width * tick.share, top + height + 18.0, Text::MIDDLE, &tick.label);
    }
    for tick in &y.ticks {
        page.text(left - 7.0, top + height * (1.0 - tick.share) + 4.5, Text::END, &tick.label);
    }
}

fn axis_labels(page: &mut Page, Frame { left, top, width, height }: Frame, panel: &Panel) {
    let label = Text { size: 14.0, ..Text::MIDDLE };
    page.text(left + width / 2.0, top + height + 42.0, label, &panel.x_label);
    page.text(left - 55.0, top + height / 2.0, Text { upright: true, ..label }, &panel.y_label);
}

/// An entry of the legend above a diagram, two in a row.
fn legend(page: &mut Page, frame: Frame, index: usize, label: &str) {
    let left = frame.left - 24.0 + 224.0 * (index % 2) as f64;
    let middle = 101.0 + 19.0 * (index / 2) as f64;
    let color = COLORS[index % COLORS.len()];
    page.line(&format!(r#"<g stroke="{color}" fill="{color}">"#));
    page.polyline(&[(left, middle), (left + 30.0, middle)]);
    page.marker(index, (left + 15.0, middle));
    page.line("</g>");
    page.text(left + 38.0, middle + 4.5, Text::START, label);
}

/// How a text is set.
#[derive(Clone, Copy)]
pub(crate) struct Text {
    pub(crate) size: f64,
    pub(crate) anchor: &'static str,
    pub(crate) bold: bool,
    pub(crate) upright: bool,
}

impl Text {
    pub(crate) const START: Self = Self { size: 13.0, anchor: "start", bold: false, upright: false };
    pub(crate) const MIDDLE: Self = Self { anchor: "middle", ..Self::START };
    pub(crate) const END: Self = Self { anchor: "end", ..Self::START };
}

/// SVG text in the making.
pub(crate) struct Page(pub(crate) String);

impl Page {
    pub(crate) fn line(&mut self, element: &str) {
        self.0.push_str(element);
        self.0.push('\n');
    }

    pub(crate) fn text(&mut self, x: f64, y: f64, style: Text, text: &str) {
        let Text { size, anchor, bold, upright } = style;
        let weight = if bold { r#" font-weight="bold""# } else { "" };
        let turn = if upright { format!(r#" transform="rotate(-90 {x:.1} {y:.1})""#) } else { String::new() };
        let style = format!(r#"font-size="{size:.1}" text-anchor="{anchor}"{weight}{turn}"#);
        self.line(&format!(r#"<text x="{x:.1}" y="{y:.1}" {style}>{}</text>"#, escaped(text)));
    }

    fn polyline(&mut self, places: &[(f64, f64)]) {
        let mut points = String::new();
        for (x, y) in places {
            write!(points, "{x:.1},{y:.1} ").expect("strings can always be written to");
        }
        self.line(&format!(r#"<polyline points="{}" fill="none" stroke-width="2"/>"#, points.trim_end()));
    }

    /// The marker of a series: circle, square, triangle or diamond, the circle so large that it shows below a
    /// square at the same place.
    fn marker(&mut self, series: usize, (x, y): (f64, f64)) {
        let shape = match series % COLORS.len() {
            0 => format!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="4.8""#),
            1 => format!(r#"<path d="M{:.1} {:.1}h6.6v6.6h-6.6z""#, x - 3.3, y - 3.3),
            2 => format!(r#"<path d="M{x:.1} {:.1}l4.6 8h-9.2z""#, y - 5.2),
            _ => format!(r#"<path d="M{x:.1} {:.1}l5 5l-5 5l-5 -5z""#, y - 5.0),
        };
        self.line(&format!(r##"{shape} class="point" stroke="#ffffff" stroke-width="0.8"/>"##));
    }
}

/// Text as XML may hold it.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            _ if character.is_control() => safe.push(' '),
            _ => safe.push(character),
        }
    }
    safe
}

#[cfg(test)]
mod tests;
