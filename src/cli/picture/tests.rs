use std::path::PathBuf;

use super::{
    axis::Axis,
    data::{Data, evenly},
    parameters, png, results,
};
use crate::{
    ids::TrialId,
    space::{Params, Study, Value},
    store::{TrialRow, TrialState},
};

const STUDY: &str = "
space: {lr: {log: [1e-4, 1]}, depth: {int: [1, 8]}, opt: [sgd, adam, lion]}
objective: [{maximize: accuracy}, {minimize: latency}]
";

fn row(trial: u32) -> TrialRow {
    let part = (f64::from(trial) * 0.618_034).fract();
    let names = ["sgd", "adam", "lion"];
    let params: Params = [
        ("lr".to_owned(), Value::from(10f64.powf(-4.0 * part))),
        ("depth".to_owned(), Value::from(i64::from(1 + trial % 8))),
        ("opt".to_owned(), Value::from(names[trial as usize % 3])),
    ]
    .into_iter()
    .collect();
    TrialRow {
        trial: TrialId(trial),
        state: TrialState::Done,
        params,
        created_s: 0.0,
        ended_s: Some(1.0),
        epochs: 3.0,
        metrics: std::collections::BTreeMap::default(),
        values: Some(vec![0.5 + 0.4 * part, 10.0 * part]),
        reason: None,
        generation: 1,
        slots: 0,
        batch: None,
        slot_s: 1.0,
    }
}

fn data(trials: u32) -> Data {
    let results = (0..trials).map(row).map(|row| (row.clone(), row.values.map_or(0.0, |values| values[0])));
    let curve = |trial: u32| {
        (1..=4).map(|step| (f64::from(step), 0.2 * f64::from(step) + 0.01 * f64::from(trial))).collect()
    };
    Data {
        name: "a <b> & c".to_owned(),
        study: Study::from_yaml("study.yaml", STUDY).expect("a study"),
        objective: 0,
        results: results.collect(),
        stopped: vec![(TrialId(trials), 0.4)],
        curves: (0..trials.min(20)).map(|trial| (TrialId(trial), curve(trial))).collect(),
    }
}

fn all(data: &Data) -> Vec<(&'static str, String)> {
    let chosen = data.chosen(&[]).expect("all of them");
    vec![
        ("history", results::history(data)),
        ("curves", results::curves(data)),
        ("importance", results::importance(data, &[("lr", 0.7), ("depth", 0.2), ("opt", 0.0)])),
        ("pareto", results::pareto(data).expect("two objectives")),
        ("parallel", parameters::parallel(data, &chosen)),
        ("slice", parameters::slice(data, &chosen)),
        ("contour", parameters::contour(data, chosen[0], chosen[1])),
    ]
}

#[test]
fn every_picture_becomes_pixels() {
    for (name, svg) in all(&data(30)) {
        assert!(svg.contains("a &lt;b&gt; &amp; c"), "{name}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}");
        let png = png::of_svg(&svg).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n", "{name}");
        // Width, as the header says: twice that of the drawing.
        assert_eq!(&png[16..20], 1920_u32.to_be_bytes(), "{name}");
    }
}

/// Letters are there without any font on the machine: a picture with a title has more colours of ink than one without.
#[test]
fn letters_are_drawn() {
    let text = |title: &str| {
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="200" height="40" font-family="Helvetica, sans-serif"><text x="5" y="25">{title}</text></svg>"#
        )
    };
    let size = |title: &str| png::of_svg(&text(title)).expect("a picture").len();
    assert!(size("learning rate") > size("") + 500, "{} {}", size("learning rate"), size(""));
}

#[test]
fn large_studies_make_small_pictures() {
    for (name, svg) in all(&data(10_000)) {
        assert!(svg.len() < 1_000_000, "{name}: {} bytes", svg.len());
    }
    assert_eq!(evenly(&[0, 1, 2, 3, 4], 3), [0, 2, 4]);
    assert_eq!(evenly(&[0, 1], 3), [0, 1]);
}

#[test]
fn values_have_places() {
    let log = Axis::Numbers { low: 1e-4, high: 1.0, log: true };
    assert!((log.at(1e-2) - 0.5).abs() < 1e-9);
    let ticks: Vec<String> = log.ticks().into_iter().map(|(_, text)| text).collect();
    assert_eq!(ticks, ["1e-4", "0.001", "0.01", "0.1", "1"]);
    let names = Axis::Names(vec!["sgd".to_owned(), "adam".to_owned()]);
    assert_eq!(names.place(&Value::from("adam")), Some(0.75));
    assert_eq!(names.place(&Value::from("other")), None);
    let narrow = Axis::around([0.5, 0.5].into_iter());
    assert!(narrow.ticks().len() >= 2 && (narrow.at(0.5) - 0.5).abs() < 1e-9, "{narrow:?}");
    assert!(Axis::around([f64::NAN].into_iter()).ticks().len() > 2);
}

#[test]
fn the_best_is_the_darkest() {
    let data = data(30);
    let range = data.range();
    assert!(range.0 < range.1, "accuracy is maximized: {range:?}");
    assert!(data.merit(range, range.1) > data.merit(range, range.0));
    let problem = data.chosen(&["width".to_owned()]).expect_err("there is none").to_string();
    assert_eq!(problem, "there is no parameter `width` that is searched; expected one of lr, depth, opt");
    assert!(super::is_png(&PathBuf::from("A.PNG")) && !super::is_png(&PathBuf::from("a.svg")));
}
