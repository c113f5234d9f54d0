use std::path::PathBuf;

use crate::goodput::{ComputeCost, SyncCost};

use super::*;
use crate::cli::plot;

fn params() -> ThroughputParams {
    let sync = [SyncCost { alpha_s: 0.02, beta_s: 0.001 }, SyncCost { alpha_s: 0.1, beta_s: 0.01 }];
    ThroughputParams::new(ComputeCost { alpha_s: 0.1, beta_s: 0.01 }, sync, 2.0).unwrap()
}

fn row(gpus: u32, nodes: u32, per_gpu: u32, slower: f64) -> Row {
    let shape = Shape::new(gpus, nodes).unwrap();
    let step_s = slower * params().iter_time_s(shape, f64::from(per_gpu), 0);
    Row { file: PathBuf::from("t.csv"), line: 2, shape, per_gpu, accumulation: 0, step_s }
}

fn measured() -> Vec<Row> {
    let shapes = [(1, 1), (2, 1), (2, 2), (3, 1), (4, 1), (4, 2), (8, 2), (8, 4), (16, 4), (32, 8)];
    let at = |per_gpu| shapes.map(|(gpus, nodes)| row(gpus, nodes, per_gpu, 1.0));
    let mut rows: Vec<Row> = [8, 16, 32].into_iter().flat_map(at).collect();
    rows.push(row(1, 1, 64, 1.0));
    rows.push(row(1, 1, 16, 1.2));
    rows.push(row(1, 1, 16, 1.7));
    rows
}

#[test]
fn panels_show_medians_of_the_best_measured_batch_and_a_few_counts_of_gpus() {
    let rows = measured();
    let [times, throughputs] = of_fit("t", &rows, &params(), 0.1).panels;
    assert_eq!(times.title, "Step time, 16 examples per GPU");
    let gpus = |series: &Series| series.points.iter().map(|point| point.x).collect::<Vec<_>>();
    assert_eq!(
        times.series.iter().map(gpus).collect::<Vec<_>>(),
        [vec![1.0, 2.0, 3.0, 4.0], vec![2.0, 4.0, 8.0, 16.0, 32.0]]
    );
    let alone = times.series[0].points[0];
    assert!(
        [alone.low, alone.y, alone.high].iter().zip([260.0, 312.0, 442.0]).all(|(a, b)| (a - b).abs() < 1e-6)
    );
    let labels: Vec<_> = throughputs.series.iter().map(|series| series.label.as_str()).collect();
    assert_eq!(labels, ["1 GPU", "4 GPUs, one node", "8 GPUs, several nodes", "32 GPUs, several nodes"]);
    assert_eq!(gpus(&throughputs.series[0]), [8.0, 16.0, 32.0, 64.0]);
}

#[test]
fn lines_go_through_points_that_the_model_explains() {
    let rows = measured();
    let panels = of_fit("t", &rows, &params(), 0.1).panels;
    for series in panels.iter().flat_map(|panel| &panel.series) {
        for point in series.points.iter().filter(|point| point.low >= point.high) {
            let place = series.line.iter().find(|(x, _)| (x - point.x).abs() < 1e-9);
            let (_, y) = place.expect("the line is sampled at every small whole number");
            assert!((y / point.y - 1.0).abs() < 1e-9, "{}: {point:?}", series.label);
        }
    }
}

#[test]
fn the_drawing_has_every_measured_point_and_only_numbers() {
    let rows = measured();
    let figure = of_fit("t", &rows, &params(), 0.1);
    let expected: Vec<_> =
        figure.panels.iter().flat_map(|panel| &panel.series).map(|series| series.points.len()).collect();
    let text = plot::svg(&figure);
    let groups = text.split(r#"<g class="series""#).skip(1);
    let drawn: Vec<_> = groups
        .map(|group| group.split_once("</g>").expect("groups end").0.matches(r#"class="point""#).count())
        .collect();
    assert_eq!(drawn, expected);
    assert!(!text.contains("NaN") && !text.contains("inf"));
}

#[test]
fn a_single_row_and_absurd_numbers_are_drawn_too() {
    let huge = Shape::new(u32::MAX, 1).unwrap();
    let absurd = [
        Row { shape: huge, per_gpu: u32::MAX, step_s: 1e-310, ..row(1, 1, 1, 1.0) },
        Row { step_s: 1e300, ..row(1, 1, 1, 1.0) },
    ];
    for rows in [&[row(1, 1, 8, 1.0)][..], &absurd] {
        let text = plot::svg(&of_fit("t", rows, &params(), 0.1));
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
}
