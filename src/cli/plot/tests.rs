use super::*;

fn example() -> Figure {
    let series = |label: &str, points: usize| Series {
        label: label.to_owned(),
        points: (1..=points)
            .map(|x| x as f64)
            .map(|x| Point { x, y: x, low: 0.5 * x, high: 2.0 * x })
            .collect(),
        line: vec![(1.0, 1.0), (points as f64, points as f64)],
    };
    let panel = |scale, series| Panel {
        title: "a <b> & c".to_owned(),
        x_label: "x".to_owned(),
        x_scale: Scale::Log2,
        y_label: "y".to_owned(),
        y_scale: scale,
        series,
    };
    Figure {
        title: "bell\u{7} and <tag>".to_owned(),
        caption: "points".to_owned(),
        panels: [
            panel(Scale::Linear, vec![series("one", 3), series("two", 5)]),
            panel(Scale::Log10, vec![series("three", 2)]),
        ],
    }
}

/// The names of tags that are open, after checking that each is closed in order.
fn check_nesting(text: &str) {
    let mut open = Vec::new();
    for tag in text.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("tags end");
        let name = tag.split([' ', '/']).find(|part| !part.is_empty()).expect("tags have names");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
    }
    assert_eq!(open, [""; 0]);
}

#[test]
fn every_series_has_its_points_and_every_point_its_range() {
    let text = svg(&example());
    check_nesting(&text);
    let counts: Vec<_> = text
        .split(r#"<g class="series""#)
        .skip(1)
        .map(|group| group.split_once("</g>").expect("groups end").0)
        .map(|group| (group.matches(r#"class="point""#).count(), group.matches(r#"class="range""#).count()))
        .collect();
    assert_eq!(counts, [(3, 3), (5, 5), (2, 2)]);
}

#[test]
fn text_is_escaped_and_no_number_is_missing() {
    let text = svg(&example());
    assert!(text.contains("a &lt;b&gt; &amp; c") && text.contains("bell  and &lt;tag&gt;"));
    assert!(!text.contains("NaN") && !text.contains("inf") && !text.contains('\u{7}'));
}

#[test]
fn a_figure_without_data_is_still_a_figure() {
    let mut empty = example();
    for panel in &mut empty.panels {
        panel.series.clear();
    }
    let text = svg(&empty);
    check_nesting(&text);
    assert!(!text.contains("NaN"));
}

#[test]
fn a_long_title_is_set_in_a_smaller_font() {
    assert!((fitting("short", 20.0, WIDTH - 20.0) - 20.0).abs() < 1e-12);
    assert!(fitting(&"long".repeat(50), 20.0, WIDTH - 20.0) < 9.0);
}

#[test]
fn a_distribution_ends_at_all_and_is_not_too_long() {
    assert_eq!(distribution(vec![3.0, 1.0, 2.0, 2.0]), [(1.0, 0.25), (2.0, 0.5), (2.0, 0.75), (3.0, 1.0)]);
    let long = distribution((0..1000).map(f64::from).collect());
    assert!(long.len() <= 161 && long.is_sorted(), "{}", long.len());
    assert_eq!(long.last(), Some(&(999.0, 1.0)));
    assert!(distribution(Vec::new()).is_empty());
}
