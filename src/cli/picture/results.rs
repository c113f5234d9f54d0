//! How the results came about: over trials, over epochs, by objective, and which parameters matter.

use std::cmp::Ordering;

use super::{
    Error,
    axis::{Axis, number},
    canvas::{ACCENT, COLORS, Canvas, Frame, GOOD, GREY, HEIGHT, WARN},
    data::{Data, LINES, evenly},
};
use crate::{
    cli::{
        output::pluralize,
        plot::{FAINT, Text, fitting},
    },
    ids::TrialId,
    tpe::pareto::pareto_front,
};

/// Results in the order of the trials, and the best so far.
pub(super) fn history(data: &Data) -> String {
    let last =
        data.results.iter().map(|(row, _)| row.trial).chain(data.stopped.iter().map(|(trial, _)| *trial));
    let last = f64::from(last.max().map_or(1, |trial| trial.0.max(1)));
    let values =
        data.results.iter().map(|(_, value)| *value).chain(data.stopped.iter().map(|(_, value)| *value));
    let (x, y) = (Axis::from_zero(last), Axis::around(values));
    let mut canvas = Canvas::new(data, "optimization history");
    let best = best(data);
    canvas.caption(&format!(
        "{}{}",
        pluralize(data.results.len(), "finished trial"),
        best.map_or_else(String::new, |(trial, value)| format!(
            ", the best is trial {trial} with {} {}",
            data.metric(),
            number(value)
        ))
    ));
    let frame = Frame::WHOLE;
    canvas.axes(frame, (&x, "trial"), (&y, data.metric()));
    let at = |trial: TrialId, value: f64| frame.at(x.at(f64::from(trial.0)), y.at(value));
    let size = if data.results.len() > 300 { 4.0 } else { 7.0 };
    canvas.dots(WARN, size, 0.5, data.stopped.iter().map(|(trial, value)| at(*trial, *value)));
    canvas.dots(ACCENT, size, 0.7, data.results.iter().map(|(row, value)| at(row.trial, *value)));
    canvas.path(
        GOOD,
        2.0,
        1.0,
        record(data).into_iter().map(|(trial, value)| frame.at(x.at(trial), y.at(value))),
    );
    let mut items = vec![(ACCENT, "finished"), (GOOD, "best so far")];
    if !data.stopped.is_empty() {
        items.insert(1, (WARN, "stopped early"));
    }
    canvas.legend(&items);
    canvas.end()
}

fn best(data: &Data) -> Option<(TrialId, f64)> {
    let by_loss = |a: &f64, b: &f64| data.loss(*a).total_cmp(&data.loss(*b));
    data.results.iter().map(|(row, value)| (row.trial, *value)).min_by(|a, b| by_loss(&a.1, &b.1))
}

/// The best value after each trial, as steps.
fn record(data: &Data) -> Vec<(f64, f64)> {
    let mut steps: Vec<(f64, f64)> = Vec::new();
    for (row, value) in &data.results {
        let trial = f64::from(row.trial.0);
        match steps.last().copied() {
            Some((_, best)) if data.loss(best) <= data.loss(*value) => {}
            Some((_, best)) => steps.extend([(trial, best), (trial, *value)]),
            None => steps.push((trial, *value)),
        }
    }
    let last = data.results.last().map(|(row, _)| f64::from(row.trial.0));
    let end = last.zip(steps.last().map(|(_, best)| *best));
    steps.extend(end);
    steps
}

/// Learning curves, those of the best trials in colour.
pub(super) fn curves(data: &Data) -> String {
    let points = || data.curves.values().flatten();
    let epochs = points().map(|(epochs, _)| *epochs).fold(0.0, f64::max);
    let (x, y) = (Axis::from_zero(epochs), Axis::around(points().map(|(_, value)| *value)));
    let mut ranked: Vec<(TrialId, f64)> = data
        .curves
        .iter()
        .filter_map(|(trial, curve)| {
            let result = data.results.iter().find(|(row, _)| row.trial == *trial).map(|(_, value)| *value);
            Some((*trial, result.or_else(|| Some(curve.last()?.1))?))
        })
        .collect();
    ranked.sort_by(|a, b| data.loss(a.1).total_cmp(&data.loss(b.1)).then(a.0.cmp(&b.0)));
    let best: Vec<TrialId> = ranked.iter().take(COLORS.len()).map(|(trial, _)| *trial).collect();
    let mut canvas = Canvas::new(data, "learning curves");
    canvas.caption(&format!("{} have reported {}", pluralize(data.curves.len(), "trial"), data.metric()));
    let frame = Frame::WHOLE;
    canvas.axes(frame, (&x, "statistical epochs"), (&y, data.metric()));
    let others: Vec<&Vec<(f64, f64)>> =
        data.curves.iter().filter(|(trial, _)| !best.contains(trial)).map(|(_, curve)| curve).collect();
    let places = |curve: &[(f64, f64)]| -> Vec<(f64, f64)> {
        curve.iter().map(|(epochs, value)| frame.at(x.at(*epochs), y.at(*value))).collect()
    };
    for curve in evenly(&others, LINES) {
        canvas.path(GREY, 1.0, 0.3, places(curve).into_iter());
    }
    let colored: Vec<(&str, TrialId)> = COLORS.into_iter().zip(best).collect();
    for (color, trial) in colored.iter().rev() {
        let curve = data.curves.get(trial).map(|curve| places(curve)).unwrap_or_default();
        canvas.path(color, 2.0, 1.0, curve.iter().copied());
        canvas.dots(color, 5.0, 1.0, curve.into_iter());
    }
    let names: Vec<String> = colored.iter().map(|(_, trial)| format!("trial {trial}")).collect();
    let mut items: Vec<(&str, &str)> =
        colored.iter().zip(&names).map(|((color, _), name)| (*color, name.as_str())).collect();
    if !others.is_empty() {
        items.push((GREY, "others"));
    }
    canvas.legend(&items);
    canvas.end()
}

/// How much each parameter matters, as bars.
pub(super) fn importance(data: &Data, shares: &[(&str, f64)]) -> String {
    const ROW: f64 = 30.0;
    let (left, top, width) = (210.0, 84.0, 640.0);
    let height = ROW * shares.len() as f64;
    let mut canvas =
        Canvas::with_height(data, "importance of parameters", (top + height + 60.0).max(HEIGHT / 3.0));
    canvas.caption(&format!(
        "share of the variance of {} that each parameter explains by itself, {}",
        data.metric(),
        pluralize(data.results.len(), "finished trial")
    ));
    let most = shares.iter().map(|(_, share)| *share).fold(0.0, f64::max);
    let axis = Axis::from_zero(most * 1.08);
    for (share, text) in axis.ticks() {
        let x = left + width * share;
        canvas.page.line(&format!(r#"<path d="M{x:.1} {top}v{height}" stroke="{FAINT}"/>"#));
        canvas.page.text(x, top + height + 18.0, Text { size: 12.0, ..Text::MIDDLE }, &text);
    }
    for (place, (name, share)) in shares.iter().enumerate() {
        let y = top + ROW * place as f64;
        let length = (width * axis.at(*share)).max(1.0);
        canvas.page.line(&format!(
            r#"<rect class="bar" x="{left}" y="{:.1}" width="{length:.1}" height="{:.1}" fill="{ACCENT}"/>"#,
            y + 5.0,
            ROW - 10.0
        ));
        let middle = y + ROW / 2.0 + 4.5;
        canvas.page.text(left - 10.0, middle, Text { size: fitting(name, 13.0, 190.0), ..Text::END }, name);
        canvas.page.text(
            left + length + 8.0,
            middle,
            Text { size: 12.0, ..Text::START },
            &format!("{share:.2}"),
        );
    }
    canvas.end()
}

/// The first two objectives, or the chosen one and the one after it.
pub(super) fn pareto(data: &Data) -> Result<String, Error> {
    let goals = &data.study.objectives;
    if goals.len() < 2 {
        return Err(Error::OneObjective);
    }
    let (first, second) = (data.objective, (data.objective + 1) % goals.len());
    let all: Vec<(&[f64], f64, f64)> = data
        .results
        .iter()
        .filter_map(|(row, _)| {
            let values = row.values.as_deref()?;
            Some((values, *values.get(first)?, *values.get(second)?))
        })
        .collect();
    let losses: Vec<Vec<f64>> = all
        .iter()
        .map(|(values, ..)| goals.iter().zip(*values).map(|(goal, value)| goal.loss(*value)).collect())
        .collect();
    let front = pareto_front(&losses);
    let (x, y) = (Axis::around(all.iter().map(|row| row.1)), Axis::around(all.iter().map(|row| row.2)));
    let mut canvas = Canvas::new(data, "Pareto front");
    canvas.caption(&format!(
        "{} of {} that no other one beats in all objectives",
        front.len(),
        pluralize(all.len(), "finished trial")
    ));
    let frame = Frame::WHOLE;
    canvas.axes(frame, (&x, &goals[first].metric), (&y, &goals[second].metric));
    let at = |place: usize| frame.at(x.at(all[place].1), y.at(all[place].2));
    canvas.dots(GREY, 5.0, 0.45, (0..all.len()).filter(|place| !front.contains(place)).map(at));
    if goals.len() == 2 {
        let mut line: Vec<(f64, f64)> = front.iter().map(|place| at(*place)).collect();
        line.sort_by(|a, b| a.0.partial_cmp(&b.0).unwrap_or(Ordering::Equal));
        canvas.path(WARN, 1.2, 0.8, line.into_iter());
    }
    canvas.dots(WARN, 8.0, 1.0, front.iter().map(|place| at(*place)));
    canvas.legend(&[(WARN, "Pareto front"), (GREY, "others")]);
    Ok(canvas.end())
}
