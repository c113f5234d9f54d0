//! The picture as SVG text.

use std::{collections::BTreeMap, fmt::Write};

use super::{
    chart::Chart,
    history::{History, Occupancy, value_of},
    layout::{COLORS, DARK, LEFT, Layout, TOP, WIDTH},
};
use crate::{
    cli::{
        output::pluralize,
        plot::{FAINT, INK, Page, Text, escaped, fitting},
    },
    ids::{SlotId, TrialId},
    space::Value,
    store::TrialState,
};

/// A slot that nobody has.
const FREE: &str = "#eeeeee";
const GREY: &str = "#666666";
/// Over what does not train yet.
const PALE: &str = r##"stroke="#ffffff" stroke-opacity="0.6""##;
/// With more trials there are no tooltips.
const TOOLTIPS_MAX: usize = 2000;
/// With more results they are smaller.
const FEW: usize = 300;
/// A forming group that is narrower cannot be seen.
const SEEN: f64 = 1.0;

/// The whole document.
pub(super) fn svg(layout: &Layout, history: &History, emulated: Option<&str>) -> String {
    let mut page = Page(String::new());
    let height = layout.height;
    let size = format!(r#"width="{WIDTH}" height="{height:.0}" viewBox="0 0 {WIDTH} {height:.0}""#);
    let font = r#"font-family="Helvetica, Arial, 'Liberation Sans', sans-serif""#;
    page.line(&format!(r#"<svg xmlns="http://www.w3.org/2000/svg" {size} {font} fill="{INK}">"#));
    let title = title(history, emulated);
    page.line(&format!("<title>{}</title>", escaped(&title)));
    page.line(&format!(r##"<rect width="{WIDTH}" height="{height:.0}" rx="8" fill="#ffffff"/>"##));
    let room = WIDTH - 40.0;
    page.text(
        WIDTH / 2.0,
        32.0,
        Text { size: fitting(&title, 20.0, room), bold: true, ..Text::MIDDLE },
        &title,
    );
    let caption = caption(history);
    page.text(WIDTH / 2.0, 54.0, Text { size: fitting(&caption, 13.0, room), ..Text::MIDDLE }, &caption);
    nodes(&mut page, layout, history);
    grid(&mut page, layout, history);
    slots(&mut page, layout, history);
    if let Some(chart) = &layout.chart {
        objective(&mut page, layout, history, chart);
    }
    resumed(&mut page, layout, history);
    legend(&mut page, layout, history);
    page.line("</svg>");
    page.0
}

fn title(history: &History, emulated: Option<&str>) -> String {
    let goals = history.study.objectives.iter().map(|goal| format!("{} {}", goal.direction, goal.metric));
    let goals = goals.collect::<Vec<_>>().join(" and ");
    let (begun, wanted) = (history.trials.len(), history.study.search.trials as usize);
    let trials = pluralize(begun.max(wanted), "trial");
    let trials = if begun < wanted { format!("{begun} of {trials}") } else { trials };
    let emulated = emulated.map_or_else(String::new, |what| format!(" (emulated: {what})"));
    format!("{trials} to {goals}{emulated}")
}

fn caption(history: &History) -> String {
    let mut states: BTreeMap<TrialState, usize> = BTreeMap::new();
    history.trials.values().for_each(|row| *states.entry(row.state).or_default() += 1);
    let states = states.iter().map(|(state, count)| match state {
        TrialState::Stopped => format!("{count} stopped early"),
        _ => format!("{count} {state}"),
    });
    let mut parts = vec![states.collect::<Vec<_>>().join(", ")];
    parts.retain(|part| !part.is_empty());
    if let Some((trial, objective)) = winner(history).zip(history.objective()) {
        let value = history.trials.get(&trial).and_then(|row| value_of(row, objective));
        parts.extend(value.map(|value| {
            format!("best: trial {trial}, {} {}", objective.metric, Value::from(value).short())
        }));
    }
    let up_s: f64 = history.up.iter().map(|interval| interval.to_s - interval.from_s).sum();
    let busy_s: f64 =
        history.occupancies.iter().map(|occupancy| occupancy.at.to_s - occupancy.at.from_s).sum();
    if up_s > 0.0 {
        parts.push(format!("slots in use {:.0} % of the time", 100.0 * (busy_s / up_s).min(1.0)));
    }
    if history.reshapes > 0 {
        parts.push(format!("{} of groups that trained", pluralize(history.reshapes, "change")));
    }
    parts.join("  ·  ")
}

/// The best trial, if there is one that is.
fn winner(history: &History) -> Option<TrialId> {
    let first = history.best.first().copied().filter(|_| history.study.objectives.len() == 1)?;
    history.trials.get(&first).filter(|row| row.values.is_some()).map(|row| row.trial)
}

/// Names of nodes, numbers of slots.
fn nodes(page: &mut Page, layout: &Layout, history: &History) {
    let pitch = layout.row_height;
    let mut above = f64::NEG_INFINITY;
    for (&node, known) in &history.nodes {
        let Some(&top) = layout.rows.get(&SlotId { node, index: 0 }) else { continue };
        let height = pitch * f64::from(known.slots);
        let middle = top + height / 2.0;
        let name = if known.name.is_empty() { format!("node {node}") } else { known.name.clone() };
        if height >= 28.0 {
            let size = fitting(&name, 12.0, 72.0);
            page.text(16.0, middle - 2.0, Text { size, bold: true, ..Text::START }, &name);
            let size = fitting(&known.gpu_type, 11.0, 72.0);
            page.text(16.0, middle + 11.0, Text { size, ..Text::START }, &known.gpu_type);
        } else if middle - above >= 8.0 {
            let name = format!("{name}, {}", known.gpu_type);
            let size = fitting(&name, 10.0, 78.0);
            page.text(16.0, middle + 0.36 * size, Text { size, ..Text::START }, &name);
            above = middle;
        }
        if pitch >= 8.0 && known.slots > 1 {
            let size = (0.7 * pitch).min(10.0);
            for index in 0..known.slots {
                let y = top + pitch * (f64::from(index) + 0.5) + 0.36 * size - 0.5;
                page.text(LEFT - 8.0, y, Text { size, ..Text::END }, &index.to_string());
            }
        }
    }
    if history.nodes.is_empty() {
        page.text(WIDTH / 2.0, TOP + 14.0, Text::MIDDLE, "no slots yet");
    }
}

/// Times.
fn grid(page: &mut Page, layout: &Layout, history: &History) {
    let mut lines = String::new();
    for tick in &layout.ticks {
        push(&mut lines, format_args!("M{:.1} {TOP:.1}V{:.1}", tick.x, layout.end + 4.0));
        page.text(tick.x, layout.end + 18.0, Text { size: 12.0, ..Text::MIDDLE }, &tick.label);
    }
    page.line(&format!(r#"<path d="{lines}" stroke="{FAINT}" stroke-width="1"/>"#));
    let since = if history.resumed.is_empty() { "since the study began" } else { "in which the study ran" };
    let middle = layout.x(history.length_s / 2.0);
    let label = format!("{} {since}", layout.unit);
    page.text(middle, layout.end + 38.0, Text::MIDDLE, &label);
}

/// Who had them when.
fn slots(page: &mut Page, layout: &Layout, history: &History) {
    let height = layout.bar_height;
    let wide = |class: &str, style: &str, d: &str| {
        format!(r#"<path class="{class}" {style} stroke-width="{height:.2}" d="{d}"/>"#)
    };
    let mut free = String::new();
    for interval in &history.up {
        let Some(top) = layout.rows.get(&interval.slot) else { continue };
        let (left, right) = (layout.x(interval.from_s), layout.x(interval.to_s));
        push(&mut free, format_args!("M{left:.1} {:.1}h{:.1}", top + height / 2.0, right - left));
    }
    page.line(&wide("free", &format!(r#"stroke="{FREE}""#), &free));
    let has_tooltips = layout.colors.len() <= TOOLTIPS_MAX;
    let mut paths: BTreeMap<(usize, Option<TrialId>), String> = BTreeMap::new();
    let (mut changes, mut best) = (String::new(), String::new());
    let winner = winner(history);
    for (slot, bars) in &layout.bars {
        let Some(top) = layout.rows.get(slot) else { continue };
        for bar in bars {
            let color = layout.colors.get(&bar.trial).copied().unwrap_or_default();
            let path = paths.entry((color, has_tooltips.then_some(bar.trial))).or_default();
            let (middle, width) = (top + height / 2.0, bar.right - bar.left);
            push(path, format_args!("M{:.1} {middle:.1}h{width:.1}", bar.left));
            for change in &bar.changes {
                push(&mut changes, format_args!("M{change:.1} {top:.1}v{height:.1}"));
            }
            if winner == Some(bar.trial) {
                push(
                    &mut best,
                    format_args!("M{:.1} {top:.1}h{width:.1}v{height:.1}h-{width:.1}z", bar.left),
                );
            }
        }
    }
    for ((color, trial), path) in &paths {
        let style = format!(r#"stroke="{}""#, COLORS[*color].0);
        let path = wide("trial", &style, path);
        let text = trial.map(|trial| escaped(&history.describe(trial)));
        page.line(&text.map_or_else(|| path.clone(), |text| format!("<g><title>{text}</title>{path}</g>")));
    }
    page.line(&wide("forming", PALE, &forming(layout, history)));
    page.line(&format!(r##"<path class="changes" stroke="#ffffff" stroke-width="1.4" d="{changes}"/>"##));
    page.line(&format!(r#"<path class="best" stroke="{INK}" stroke-width="1.6" fill="none" d="{best}"/>"#));
    numbers(page, layout, history, winner);
}

/// Groups whose workers are not together yet.
fn forming(layout: &Layout, history: &History) -> String {
    let mut path = String::new();
    for (occupancy, left, right) in unformed(layout, history) {
        if let Some(top) = layout.rows.get(&occupancy.at.slot) {
            push(
                &mut path,
                format_args!("M{left:.1} {:.1}h{:.1}", top + layout.bar_height / 2.0, right - left),
            );
        }
    }
    path
}

/// What can be seen of them, and where.
fn unformed<'a>(layout: &'a Layout, history: &'a History) -> impl Iterator<Item = (&'a Occupancy, f64, f64)> {
    let places = history
        .occupancies
        .iter()
        .map(|occupancy| (occupancy, layout.x(occupancy.at.from_s), layout.x(occupancy.formed_s)));
    places.filter(|(_, left, right)| right - left >= SEEN)
}

/// Numbers of trials on their bars.
fn numbers(page: &mut Page, layout: &Layout, history: &History, winner: Option<TrialId>) {
    let mut pale: BTreeMap<TrialId, Vec<(f64, f64)>> = BTreeMap::new();
    for (occupancy, left, right) in unformed(layout, history) {
        pale.entry(occupancy.trial).or_default().push((left, right));
    }
    page.line(&format!(r#"<g class="numbers" fill="{DARK}" text-anchor="middle" pointer-events="none">"#));
    for label in &layout.labels {
        let mut pale = pale.get(&label.trial).into_iter().flatten();
        let on_pale = pale.any(|(left, right)| (*left..*right).contains(&label.x));
        let white = COLORS[layout.colors.get(&label.trial).copied().unwrap_or_default()].1 && !on_pale;
        let fill = if white { r##" fill="#ffffff""## } else { "" };
        let bold = if winner == Some(label.trial) { r#" font-weight="bold""# } else { "" };
        let place = format!(r#"x="{:.1}" y="{:.1}" font-size="{:.0}""#, label.x, label.y, label.size);
        page.line(&format!("<text {place}{fill}{bold}>{}</text>", label.trial));
    }
    page.line("</g>");
}

/// The objective over time, with the best trials to the right.
fn objective(page: &mut Page, layout: &Layout, history: &History, chart: &Chart) {
    let right = layout.x(history.length_s);
    let color = |trial: &TrialId| COLORS[layout.colors.get(trial).copied().unwrap_or_default()].0;
    let mut lines = String::new();
    for (y, label) in &chart.ticks {
        push(&mut lines, format_args!("M{LEFT:.1} {y:.1}H{right:.1}"));
        page.text(LEFT - 8.0, y + 4.0, Text { size: 11.0, ..Text::END }, label);
    }
    page.line(&format!(r#"<path d="{lines}" stroke="{FAINT}" stroke-width="1"/>"#));
    let middle = chart.top + chart.height / 2.0;
    let size = fitting(&chart.metric, 13.0, chart.height);
    page.text(52.0, middle, Text { size, upright: true, ..Text::MIDDLE }, &chart.metric);
    page.line(r#"<g fill="none" stroke-linejoin="round" stroke-linecap="round">"#);
    let record = line(&chart.record);
    page.line(&format!(
        r#"<path class="record" d="{record}" stroke="{GREY}" stroke-width="1.5" stroke-dasharray="1 4"/>"#
    ));
    dots(page, chart, color);
    // The best one is on top; an edge keeps pale colors visible on white.
    for (trial, places) in chart.curves.iter().rev() {
        let d = line(places);
        page.line(&format!(r#"<path d="{d}" stroke="{GREY}" stroke-width="3"/>"#));
        page.line(&format!(r#"<path class="curve" d="{d}" stroke="{}" stroke-width="2"/>"#, color(trial)));
    }
    page.line("</g>");
    ranking(page, layout, history, chart);
}

/// Results, smaller ones if there are many.
fn dots(page: &mut Page, chart: &Chart, color: impl Fn(&TrialId) -> &'static str) {
    let mut dots: BTreeMap<&str, String> = BTreeMap::new();
    let mut edges = String::new();
    for (trial, x, y) in &chart.results {
        push(dots.entry(color(trial)).or_default(), format_args!("M{x:.1} {y:.1}h0"));
        push(&mut edges, format_args!("M{x:.1} {y:.1}h0"));
    }
    let few = chart.results.len() <= FEW;
    if few {
        page.line(&format!(r#"<path d="{edges}" stroke="{GREY}" stroke-width="7"/>"#));
    }
    let size = if few { 5.5 } else { 3.0 };
    for (color, d) in dots {
        page.line(&format!(r#"<path class="results" d="{d}" stroke="{color}" stroke-width="{size}"/>"#));
    }
}

/// The best trials by name.
fn ranking(page: &mut Page, layout: &Layout, history: &History, chart: &Chart) {
    let Some(objective) = history.objective() else { return };
    let left = layout.x(history.length_s) + 18.0;
    page.text(left, chart.top + 8.0, Text { size: 12.0, bold: true, ..Text::START }, "best trials");
    for (place, trial) in history.best.iter().enumerate() {
        let Some(row) = history.trials.get(trial) else { continue };
        let y = chart.top + 27.0 + 18.0 * place as f64;
        let color = COLORS[layout.colors.get(trial).copied().unwrap_or_default()].0;
        page.line(&format!(
            r#"<rect x="{left:.1}" y="{:.1}" width="12" height="11" fill="{color}"/>"#,
            y - 9.5
        ));
        let value = value_of(row, objective).map(|value| Value::from(value).short()).unwrap_or_default();
        let state = if row.values.is_some() { String::new() } else { format!(", {}", row.state) };
        let text = format!("{trial}: {value}{state}");
        let size = fitting(&text, 12.0, 108.0);
        page.text(left + 18.0, y, Text { size, ..Text::START }, &text);
    }
}

/// Where another head took over.
fn resumed(page: &mut Page, layout: &Layout, history: &History) {
    let mut lines = String::new();
    for &at_s in &history.resumed {
        push(&mut lines, format_args!("M{:.1} {:.1}V{:.1}", layout.x(at_s), TOP - 5.0, layout.end));
    }
    if !lines.is_empty() {
        page.line(&format!(
            r#"<path class="resumed" d="{lines}" stroke="{INK}" stroke-width="1.2" stroke-dasharray="5 3"/>"#
        ));
    }
}

/// What the signs mean, those that are there.
fn legend(page: &mut Page, layout: &Layout, history: &History) {
    let box_at =
        |style: &str, x: f64| format!(r#"<rect x="{x:.1}" y="74.5" width="22" height="12" {style}/>"#);
    let fill = |color: &str, x: f64| box_at(&format!(r#"fill="{color}""#), x);
    let trial = COLORS[0].0;
    let any_bar = |test: fn(&super::layout::Bar) -> bool| layout.bars.values().flatten().any(test);
    let forms = unformed(layout, history).next().is_some();
    let mut x = LEFT;
    let mut item = |shown: bool, text: &str, sign: &dyn Fn(f64) -> String| {
        if shown {
            page.line(&sign(x));
            page.text(x + 29.0, 84.7, Text { size: 12.0, ..Text::START }, text);
            x += 29.0 + 6.1 * text.chars().count() as f64 + 20.0;
        }
    };
    item(!layout.bars.is_empty(), "a trial has the slot", &|x| fill(trial, x));
    item(any_bar(|bar| !bar.changes.is_empty()), "its group changes", &|x| {
        let line = format!(r##"<path d="M{:.1} 74.5v12" stroke="#ffffff" stroke-width="1.4"/>"##, x + 11.0);
        fill(trial, x) + &line
    });
    item(forms, "its workers form a group", &|x| {
        fill(trial, x) + &box_at(r##"fill="#ffffff" fill-opacity="0.6""##, x)
    });
    item(winner(history).is_some(), "the best trial", &|x| {
        box_at(&format!(r#"fill="{trial}" stroke="{INK}" stroke-width="1.6""#), x)
    });
    item(!history.up.is_empty(), "free", &|x| fill(FREE, x));
    let record = layout.chart.as_ref().is_some_and(|chart| !chart.record.is_empty());
    let across = |style: &str, x: f64| {
        format!(r#"<path d="M{x:.1} 80.5h22" {style} stroke-width="1.5" stroke-linecap="round"/>"#)
    };
    item(record, "best so far", &|x| across(&format!(r#"stroke="{GREY}" stroke-dasharray="1 4""#), x));
    item(!history.resumed.is_empty(), "run again", &|x| {
        format!(
            r#"<path d="M{:.1} 72v17" stroke="{INK}" stroke-width="1.2" stroke-dasharray="5 3"/>"#,
            x + 11.0
        )
    });
}

fn line(places: &[(f64, f64)]) -> String {
    let mut d = String::new();
    for (x, y) in places {
        let verb = if d.is_empty() { 'M' } else { 'L' };
        push(&mut d, format_args!("{verb}{x:.1} {y:.1}"));
    }
    d
}

fn push(path: &mut String, what: std::fmt::Arguments) {
    path.write_fmt(what).expect("strings can always be written to");
}
