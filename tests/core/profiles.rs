//! The throughput model against measured step times of six models on T4 and A100 GPUs.

#![expect(clippy::print_stdout, reason = "the figures are read with --nocapture")]

use std::fmt::Write;

use pollux_tune::goodput::ThroughputParams;

use crate::measured::{MODELS, Measured, fitted, measured};

fn mean_error(params: &ThroughputParams, rows: &[Measured]) -> f64 {
    let error =
        |row: &Measured| (params.iter_time_s(row.shape, f64::from(row.per_gpu), 0) / row.step_s - 1.0).abs();
    rows.iter().map(error).sum::<f64>() / rows.len() as f64
}

#[test]
fn the_model_fits_measured_step_times_within_the_papers_ten_percent() {
    let mut table =
        String::from("| model | T4: rows | mean error | A100: rows | mean error |\n|---|---|---|---|---|\n");
    for model in MODELS {
        write!(table, "| {model} ").unwrap();
        for gpu in ["t4", "a100"] {
            let rows = measured(model, gpu);
            let error = mean_error(&fitted(&rows), &rows);
            write!(table, "| {} | {:.1} % ", rows.len(), 100.0 * error).unwrap();
            // YOLOv3 on A100 does not get slower with the batch, but jumps up and down: see docs/goodput.md.
            if (model, gpu) != ("yolov3", "a100") {
                assert!(error <= 0.10, "{model} on {gpu}: {error}");
            }
        }
        table.push_str("|\n");
    }
    println!("{table}");
    assert!(
        include_str!("../../docs/goodput.md").contains(&table),
        "docs/goodput.md shows another table than\n{table}"
    );
}

#[test]
fn yolov3_on_a100_fits_where_its_step_time_is_monotone_in_the_batch() {
    let rows = measured("yolov3", "a100");
    let time = |gpus: u32, per_gpu: u32| {
        let mut times = rows
            .iter()
            .filter(|row| row.shape.gpus() == gpus && row.shape.nodes() == 1 && row.per_gpu == per_gpu)
            .map(|row| row.step_s);
        times.next().unwrap()
    };
    // More examples in less time: no model that grows with the batch can follow.
    assert!(time(8, 32) < 0.8 * time(8, 23));
    assert!(time(8, 8) < 0.7 * time(8, 6));
    let (smooth, all): (Vec<_>, Vec<_>) =
        (measured("yolov3", "a100").into_iter().filter(|row| row.per_gpu.is_power_of_two()).collect(), rows);
    let (smooth_error, all_error) = (mean_error(&fitted(&smooth), &smooth), mean_error(&fitted(&all), &all));
    println!(
        "yolov3 on a100: {:.1} %, batches of 4, 8, 16, 32 only: {:.1} %",
        100.0 * all_error,
        100.0 * smooth_error
    );
    assert!(smooth_error < 0.6 * all_error);
}

/// Least-squares fit of a sequence that never falls: pool neighbours that are out of order.
fn never_falling(values: &[f64]) -> Vec<f64> {
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for &value in values {
        pools.push((value, 1));
        while let [.., (before, m), (after, n)] = pools[..]
            && before > after
        {
            pools.truncate(pools.len() - 2);
            pools.push(((before * m as f64 + after * n as f64) / (m + n) as f64, m + n));
        }
    }
    pools.into_iter().flat_map(|(value, count)| std::iter::repeat_n(value, count)).collect()
}

#[test]
fn no_model_that_grows_with_the_batch_fits_yolov3_on_a100_within_ten_percent() {
    let mut rows = measured("yolov3", "a100");
    // The file lists each placement with its batches in ascending order.
    let mut error = (0.0, 0);
    while !rows.is_empty() {
        let falls = (1..rows.len()).find(|&row| rows[row].per_gpu <= rows[row - 1].per_gpu);
        let rest = rows.split_off(falls.unwrap_or(rows.len()));
        let logs: Vec<f64> = rows.iter().map(|row| row.step_s.ln()).collect();
        for (fitted, measured) in never_falling(&logs).iter().zip(&logs) {
            error = (error.0 + ((fitted - measured).exp() - 1.0).abs(), error.1 + 1);
        }
        rows = rest;
    }
    let mean = error.0 / f64::from(error.1);
    assert!((mean - 0.131).abs() < 0.0005, "{mean}");
}
