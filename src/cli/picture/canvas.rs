//! What all pictures share: the page, diagrams with axes, colours, legends.

use std::fmt::Write;

use super::{
    axis::{Axis, number},
    data::Data,
};
use crate::cli::plot::{FAINT, INK, Page, Text, escaped, fitting};

pub(super) const WIDTH: f64 = 960.0;
pub(super) const HEIGHT: f64 = 540.0;
pub(super) const GREY: &str = "#6b7685";
pub(super) const ACCENT: &str = "#1f5fbf";
pub(super) const GOOD: &str = "#1b7f4b";
pub(super) const WARN: &str = "#b0700f";
/// For lines that have a name, the best first: Okabe and Ito's palette, which colour-blind readers can distinguish.
pub(super) const COLORS: [&str; 7] =
    ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#5b4a9f"];
/// From the worst to the best, as on the page of the dashboard.
const SCALE: [[f64; 3]; 5] = [
    [195.0, 207.0, 223.0],
    [127.0, 169.0, 207.0],
    [47.0, 127.0, 193.0],
    [26.0, 79.0, 156.0],
    [11.0, 31.0, 85.0],
];

/// The colour of a merit from 0 to 1.
pub(super) fn shade(merit: f64) -> String {
    let place = merit.clamp(0.0, 1.0) * (SCALE.len() - 1) as f64;
    let below = (place.floor() as usize).min(SCALE.len() - 2);
    let part = place - below as f64;
    let mut color = "#".to_owned();
    for (low, high) in SCALE[below].iter().zip(SCALE[below + 1]) {
        _ = write!(color, "{:02x}", (low + part * (high - low)).round() as u8);
    }
    color
}

/// A picture in the making.
pub(super) struct Canvas {
    pub(super) page: Page,
}

/// A rectangle in which a diagram is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Frame {
    /// The only one of a picture.
    pub(super) const WHOLE: Self = Self { left: 82.0, top: 96.0, width: 846.0, height: 380.0 };

    /// Where two shares of its axes meet, from the left and from below.
    pub(super) fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (self.left + self.width * x, self.top + self.height * (1.0 - y))
    }
}

impl Canvas {
    pub(super) fn new(data: &Data, what: &str) -> Self {
        Self::with_height(data, what, HEIGHT)
    }

    pub(super) fn with_height(data: &Data, what: &str, height: f64) -> Self {
        let mut page = Page(String::new());
        let title = format!("{}: {what}", data.name);
        let font = r#"font-family="'DejaVu Sans', Helvetica, Arial, sans-serif""#;
        page.line(&format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0}" viewBox="0 0 {WIDTH} {height:.0}" {font} fill="{INK}">"#
        ));
        page.line(&format!("<title>{}</title>", escaped(&title)));
        page.line(&format!(r##"<rect width="{WIDTH}" height="{height:.0}" fill="#ffffff"/>"##));
        let size = fitting(&title, 19.0, WIDTH - 40.0);
        page.text(WIDTH / 2.0, 34.0, Text { size, bold: true, ..Text::MIDDLE }, &title);
        Self { page }
    }

    /// A line below the title.
    pub(super) fn caption(&mut self, text: &str) {
        let size = fitting(text, 13.0, WIDTH - 40.0);
        self.page.text(WIDTH / 2.0, 56.0, Text { size, ..Text::MIDDLE }, text);
    }

    /// The grid, its numbers, and the names of both axes; that of the vertical one stands above it.
    pub(super) fn axes(&mut self, frame: Frame, (x, x_name): (&Axis, &str), (y, y_name): (&Axis, &str)) {
        let Frame { left, top, width, height } = frame;
        let mut lines = String::new();
        for (share, _) in x.ticks() {
            _ = write!(lines, "M{:.1} {top:.1}v{height:.1}", left + width * share);
        }
        for (share, _) in y.ticks() {
            _ = write!(lines, "M{left:.1} {:.1}h{width:.1}", top + height * (1.0 - share));
        }
        self.page.line(&format!(r#"<path d="{lines}" stroke="{FAINT}" fill="none"/>"#));
        self.page.line(&format!(r#"<path d="M{left} {top}v{height}h{width}" fill="none" stroke="{INK}"/>"#));
        let small = Text { size: 12.0, ..Text::MIDDLE };
        // What would touch its neighbour is left out.
        let mut free = f64::NEG_INFINITY;
        for (share, text) in x.ticks() {
            let (middle, half) = (left + width * share, 3.6 * text.chars().count() as f64);
            if middle - half > free {
                self.page.text(middle, top + height + 18.0, small, &text);
                free = middle + half + 6.0;
            }
        }
        for (share, text) in y.ticks() {
            let size = fitting(&text, 12.0, 70.0);
            let style = Text { size, ..Text::END };
            self.page.text(left - 7.0, top + height * (1.0 - share) + 4.2, style, &text);
        }
        let named = |text: &str, room: f64| Text { size: fitting(text, 13.0, room), ..Text::MIDDLE };
        self.page.text(left + width / 2.0, top + height + 40.0, named(x_name, width), x_name);
        let style = Text { anchor: "start", ..named(y_name, width.max(200.0)) };
        self.page.text(left - 40.0, top - 10.0, style, y_name);
    }

    /// Round points of one colour.
    pub(super) fn dots(
        &mut self,
        color: &str,
        size: f64,
        opacity: f64,
        places: impl Iterator<Item = (f64, f64)>,
    ) {
        let mut d = String::new();
        for (x, y) in places {
            _ = write!(d, "M{x:.1} {y:.1}h0");
        }
        if !d.is_empty() {
            self.page.line(&format!(
                r#"<path class="dots" d="{d}" stroke="{color}" stroke-width="{size}" stroke-opacity="{opacity}" stroke-linecap="round" fill="none"/>"#
            ));
        }
    }

    /// A line through some places.
    pub(super) fn path(
        &mut self,
        color: &str,
        width: f64,
        opacity: f64,
        places: impl Iterator<Item = (f64, f64)>,
    ) {
        let mut d = String::new();
        for (x, y) in places {
            _ = write!(d, "{}{x:.1} {y:.1}", if d.is_empty() { "M" } else { "L" });
        }
        if !d.is_empty() {
            self.page.line(&format!(
                r#"<path class="line" d="{d}" stroke="{color}" stroke-width="{width}" stroke-opacity="{opacity}" stroke-linejoin="round" fill="none"/>"#
            ));
        }
    }

    /// Names of colours in a row above a diagram.
    pub(super) fn legend(&mut self, items: &[(&str, &str)]) {
        let width = |text: &str| 24.0 + 7.4 * text.chars().count() as f64;
        let all: f64 = items.iter().map(|(_, text)| width(text)).sum();
        let mut x = (WIDTH - all.min(WIDTH - 40.0)) / 2.0;
        for (color, text) in items {
            self.page
                .line(&format!(r#"<rect x="{x:.1}" y="66" width="12" height="10" rx="2" fill="{color}"/>"#));
            self.page.text(x + 17.0, 75.0, Text { size: 12.0, ..Text::START }, text);
            x += width(text);
        }
    }

    /// What the shades mean.
    pub(super) fn scale(&mut self, metric: &str, (worst, best): (f64, f64)) {
        const PARTS: usize = 40;
        let (left, width, top) = (WIDTH / 2.0 - 100.0, 200.0, 66.0);
        for part in 0..PARTS {
            let x = left + width * part as f64 / PARTS as f64;
            let color = shade(part as f64 / (PARTS - 1) as f64);
            let step = width / PARTS as f64 + 0.5;
            self.page.line(&format!(
                r#"<rect x="{x:.1}" y="{top}" width="{step:.1}" height="10" fill="{color}"/>"#
            ));
        }
        let style = Text { size: 12.0, ..Text::END };
        self.page.text(left - 8.0, top + 9.0, style, &format!("{metric} {}", number(worst)));
        self.page.text(left + width + 8.0, top + 9.0, Text { size: 12.0, ..Text::START }, &number(best));
    }

    /// The whole document.
    pub(super) fn end(mut self) -> String {
        self.page.line("</svg>");
        self.page.0
    }
}
