//! The throughput model against measured step times of six models on T4 and A100 GPUs.

#![expect(clippy::print_stdout, reason = "the figures are read with --nocapture")]

#[path = "common/study.rs"]
#[expect(dead_code, reason = "only the profiles are needed here")]
mod study;

use pollux_tune::goodput::ThroughputParams;

fn mean_error(params: &ThroughputParams, rows: &[study::Measured]) -> f64 {
    let error = |row: &study::Measured| {
        (params.iter_time_s(row.shape, f64::from(row.per_gpu), 0) / row.step_s - 1.0).abs()
    };
    rows.iter().map(error).sum::<f64>() / rows.len() as f64
}

#[test]
fn the_model_fits_measured_step_times_within_the_papers_ten_percent() {
    for gpu in ["t4", "a100"] {
        for model in study::MODELS {
            let rows = study::measured(model, gpu);
            let error = mean_error(&study::fitted(&rows), &rows);
            println!("{model} on {gpu}: {:.1} % over {} rows", 100.0 * error, rows.len());
            // YOLOv3 on A100 does not get slower with the batch, but jumps up and down: see docs/goodput.md.
            if (model, gpu) != ("yolov3", "a100") {
                assert!(error <= 0.10, "{model} on {gpu}: {error}");
            }
        }
    }
}

#[test]
fn yolov3_on_a100_fits_where_its_step_time_is_monotone_in_the_batch() {
    let rows = study::measured("yolov3", "a100");
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
    let (smooth, all): (Vec<_>, Vec<_>) = (
        study::measured("yolov3", "a100").into_iter().filter(|row| row.per_gpu.is_power_of_two()).collect(),
        rows,
    );
    let (smooth_error, all_error) =
        (mean_error(&study::fitted(&smooth), &smooth), mean_error(&study::fitted(&all), &all));
    println!(
        "yolov3 on a100: {:.1} %, batches of 4, 8, 16, 32 only: {:.1} %",
        100.0 * all_error,
        100.0 * smooth_error
    );
    assert!(smooth_error < 0.6 * all_error);
}
