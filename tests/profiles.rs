//! The throughput model against measured step times of six models on T4 and A100 GPUs.

use std::path::Path;

use pollux_tune::goodput::{Observations, Shape, ThroughputParams, fit};

struct Measured {
    shape: Shape,
    per_gpu: u32,
    step_s: f64,
}

fn measured(model: &str, gpu: &str) -> Vec<Measured> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/profiles").join(model);
    let mut rows = Vec::new();
    for kind in ["placements", "scalability"] {
        let path = folder.join(format!("{kind}-{gpu}.csv"));
        let mut reader = csv::Reader::from_path(&path).unwrap();
        let header = reader.headers().unwrap().clone();
        let column = |name: &str| header.iter().position(|field| field == name);
        for record in reader.records() {
            let record = record.unwrap();
            let number = |name: &str| record[column(name).unwrap()].parse::<f64>().unwrap();
            let (gpus, nodes) = match column("placement") {
                Some(placement) => {
                    let digits = &record[placement];
                    (digits.bytes().map(|digit| u32::from(digit - b'0')).sum(), digits.len() as u32)
                }
                None => (number("num_replicas") as u32, number("num_nodes") as u32),
            };
            let shape = Shape::new(gpus, nodes).unwrap();
            rows.push(Measured { shape, per_gpu: number("local_bsz") as u32, step_s: number("step_time") });
        }
    }
    rows
}

fn mean_error(params: &ThroughputParams, rows: &[Measured]) -> f64 {
    let error =
        |row: &Measured| (params.iter_time_s(row.shape, f64::from(row.per_gpu), 0) / row.step_s - 1.0).abs();
    rows.iter().map(error).sum::<f64>() / rows.len() as f64
}

#[test]
fn the_model_fits_measured_step_times_within_the_papers_ten_percent() {
    for gpu in ["t4", "a100", "rtx2080ti"] {
        for model in ["bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"] {
            let rows = measured(model, gpu);
            let mut seen = Observations::default();
            for row in &rows {
                seen.record(row.shape, row.per_gpu, 0, row.step_s).unwrap();
            }
            let fitted = fit(&seen, None, None).unwrap();
            let error = mean_error(&fitted.params, &rows);
            eprintln!(
                "{gpu:5} {model:12} {:5} rows {:4} cells error {:5.1} % rmsle {:.3} {:?}",
                rows.len(),
                seen.len(),
                100.0 * error,
                fitted.rmsle,
                fitted.params
            );
        }
    }
}
