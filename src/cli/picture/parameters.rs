//! Results by parameters: all at once, one by one, and two at a time.

use super::{
    axis::Axis,
    canvas::{ACCENT, Canvas, Frame, WIDTH, shade},
    data::{Data, LINES, evenly},
};
use crate::{
    cli::{
        output::pluralize,
        plot::{INK, Text, fitting},
    },
    space::Parameter,
};

/// A line for each trial through its parameters and its result; the best ones are above the others.
pub(super) fn parallel(data: &Data, parameters: &[&Parameter]) -> String {
    let (left, top, width, height) = (70.0, 118.0, 790.0, 366.0);
    let values = Axis::around(data.results.iter().map(|(_, value)| *value));
    let axes: Vec<Axis> = parameters.iter().map(|parameter| Axis::of(parameter)).collect();
    let mut canvas = Canvas::new(data, "parallel coordinates");
    canvas.caption(&pluralize(data.results.len(), "finished trial"));
    let range = data.range();
    canvas.scale(data.metric(), range);
    let x = |place: usize| left + width * place as f64 / axes.len().max(1) as f64;
    let y = |share: f64| top + height * (1.0 - share);
    let mut order: Vec<usize> = (0..data.results.len()).collect();
    order.sort_by(|a, b| data.loss(data.results[*b].1).total_cmp(&data.loss(data.results[*a].1)));
    let drawn = evenly(&order, LINES);
    let (thick, opacity) = if drawn.len() > 100 { (1.0, 0.35) } else { (1.5, 0.75) };
    for place in drawn {
        let (row, value) = &data.results[place];
        let known = parameters.iter().zip(&axes).enumerate();
        let mut line: Vec<(f64, f64)> = known
            .filter_map(|(place, (parameter, axis))| {
                Some((x(place), y(axis.place(row.params.get(parameter.name())?)?)))
            })
            .collect();
        line.push((x(axes.len()), y(values.at(*value))));
        canvas.path(&shade(data.merit(range, *value)), thick, opacity, line.into_iter());
    }
    let names = parameters.iter().map(|parameter| parameter.name()).chain([data.metric()]);
    let room = width / axes.len().max(1) as f64;
    for (place, (name, axis)) in names.zip(axes.iter().chain([&values])).enumerate() {
        canvas.page.line(&format!(r#"<path d="M{:.1} {top}v{height}" stroke="{INK}"/>"#, x(place)));
        let style = Text { size: fitting(name, 13.0, room.max(40.0)), bold: true, ..Text::MIDDLE };
        canvas.page.text(x(place), top - 12.0, style, name);
        for (share, text) in axis.ticks() {
            canvas.page.text(x(place) + 5.0, y(share) + 4.0, Text { size: 11.0, ..Text::START }, &text);
        }
    }
    canvas.end()
}

/// The result by each parameter, three in a row.
pub(super) fn slice(data: &Data, parameters: &[&Parameter]) -> String {
    const COLUMNS: usize = 3;
    let columns = parameters.len().clamp(1, COLUMNS);
    let rows = parameters.len().div_ceil(columns).max(1);
    let (top, each) = (92.0, if rows == 1 { 420.0 } else { 300.0 });
    let mut canvas = Canvas::with_height(data, "result by parameter", top + each * rows as f64);
    canvas.caption(&pluralize(data.results.len(), "finished trial"));
    let width = (WIDTH - 30.0) / columns as f64;
    let y = Axis::around(data.results.iter().map(|(_, value)| *value));
    for (place, parameter) in parameters.iter().enumerate() {
        let frame = Frame {
            left: 68.0 + width * (place % columns) as f64,
            top: top + each * (place / columns) as f64,
            width: width - 70.0,
            height: each - 78.0,
        };
        let x = Axis::of(parameter);
        canvas.axes(frame, (&x, parameter.name()), (&y, data.metric()));
        let known = data.results.iter().filter_map(|(row, value)| {
            Some(frame.at(x.place(row.params.get(parameter.name())?)?, y.at(*value)))
        });
        let size = if data.results.len() > 300 { 3.5 } else { 6.0 };
        canvas.dots(ACCENT, size, 0.6, known);
    }
    canvas.end()
}

/// The result by two parameters: means of the trials, weighted by how near they are.
pub(super) fn contour(data: &Data, first: &Parameter, second: &Parameter) -> String {
    const CELLS: usize = 48;
    let (x, y) = (Axis::of(first), Axis::of(second));
    let known: Vec<(f64, f64, f64)> = data
        .results
        .iter()
        .filter_map(|(row, value)| {
            let at = |axis: &Axis, parameter: &Parameter| axis.place(row.params.get(parameter.name())?);
            Some((at(&x, first)?, at(&y, second)?, *value))
        })
        .collect();
    let mut canvas = Canvas::new(data, "result by two parameters");
    canvas.caption(&format!("interpolated between {}", pluralize(known.len(), "finished trial")));
    let range = data.range();
    canvas.scale(data.metric(), range);
    let frame = Frame { top: 112.0, height: 364.0, ..Frame::WHOLE };
    canvas.axes(frame, (&x, first.name()), (&y, second.name()));
    let (width, height) = (frame.width / CELLS as f64, frame.height / CELLS as f64);
    for column in 0..CELLS {
        for row in 0..CELLS {
            let centre = |cell: usize| (cell as f64 + 0.5) / CELLS as f64;
            let Some(value) = mean(&known, centre(column), centre(row)) else { continue };
            let (left, top) = frame.at(column as f64 / CELLS as f64, (row + 1) as f64 / CELLS as f64);
            let color = shade(data.merit(range, value));
            canvas.page.line(&format!(
                r#"<rect class="cell" x="{left:.1}" y="{top:.1}" width="{:.1}" height="{:.1}" fill="{color}"/>"#,
                width + 0.4,
                height + 0.4
            ));
        }
    }
    let shown = evenly(&known, LINES);
    let places = || shown.iter().map(|(x, y, _)| frame.at(*x, *y));
    canvas.dots(INK, 5.5, 0.6, places());
    canvas.dots("#ffffff", 3.5, 1.0, places());
    canvas.end()
}

/// The value at a place, from all that are known: none if there are none.
fn mean(known: &[(f64, f64, f64)], x: f64, y: f64) -> Option<f64> {
    let (mut sum, mut weights) = (0.0, 0.0);
    for (at_x, at_y, value) in known {
        let far = (at_x - x).powi(2) + (at_y - y).powi(2);
        let weight = (far + 4e-4).powi(-2);
        sum += weight * value;
        weights += weight;
    }
    (weights > 0.0).then(|| sum / weights)
}
