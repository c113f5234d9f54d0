//! What the goodput engine costs, against the authors' published figures and against our own `pollux` policy.
//!
//! `make bench` prints the table of `docs/performance.md`. All times are wall-clock medians of one core in one run; compare
//! them within a run, not between machines.

#[path = "../tests/support/measured.rs"]
mod study;

use std::{hint::black_box, path::Path, time::Instant};

use criterion::{BenchmarkId, Criterion};
use pollux_tune::{
    alloc::{Cluster, GoodputOptions, GoodputPolicy, Policy, PolluxPolicy, Problem},
    goodput::{Observations, Shape, fit},
    ids::GpuType,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use study::{Study, Zoo};

/// Name, cluster, trials. Half of the mixed clusters' GPUs are A100.
const ROUNDS: [(&str, &str, u32); 5] = [
    ("64 GPUs, 40 trials", "16x4xt4", 40),
    ("64 GPUs, 160 trials", "16x4xt4", 160),
    ("64 GPUs of two types, 40 trials", "8x4xt4,4x8xa100", 40),
    ("512 GPUs of two types, 500 trials", "64x4xt4,32x8xa100", 500),
    ("2048 GPUs of two types, 2000 trials", "256x4xt4,128x8xa100", 2000),
];

/// CPU seconds of others, with the source: (what, seconds, source).
const PUBLISHED: [(&str, f64, &str); 6] = [
    ("fit, cold", 0.2, "paper, section 5.2"),
    ("argmax", 0.4e-3, "paper, section 5.2"),
    (ROUNDS[0].0, 1.0, "paper, section 5.2: its search"),
    (ROUNDS[1].0, 1.0, "paper, section 5.2: its search"),
    (ROUNDS[3].0, 0.161, "Sia's artifact at 512 GPUs"),
    (ROUNDS[4].0, 0.345, "Sia's artifact at 2048 GPUs"),
];

fn main() {
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("criterion");
    let mut criterion =
        Criterion::default().output_directory(&output).sample_size(20).without_plots().configure_from_args();
    let zoo = Zoo::load();
    job_level(&mut criterion, &zoo);
    let problems: Vec<Problem> =
        ROUNDS.iter().map(|&(_, cluster, trials)| later_question(&zoo, cluster, trials)).collect();
    for ((name, ..), problem) in ROUNDS.iter().zip(&problems) {
        cluster_level(&mut criterion, name, problem);
    }
    criterion.final_summary();
    if !std::env::args().any(|argument| argument == "--test") {
        report(&output, &zoo, &problems);
    }
}

/// The question that a study asks after a few rounds: most trials run, some have just begun.
fn later_question(zoo: &Zoo, cluster: &str, trials: u32) -> Problem {
    let rng = &mut ChaCha8Rng::seed_from_u64(1);
    let cluster = Cluster::parse(cluster).expect("the cluster is well-formed");
    let mut study: Study = Zoo::study(&cluster, trials, rng);
    for _ in 0..3 {
        let plan = GoodputPolicy::default().allocate(&study.problem(zoo), rng).expect("the problem is valid");
        study.advance(&plan, rng);
    }
    study.problem(zoo)
}

/// 15 configurations of CIFAR-10 on T4, as a trial has after some rescales.
fn fifteen() -> Observations {
    let mut seen = Observations::default();
    for (gpus, nodes) in [(1, 1), (2, 1), (4, 1), (8, 2), (16, 4)] {
        for per_gpu in [64, 256, 1024] {
            let shape = Shape::new(gpus, nodes).expect("a valid shape");
            let rows = study::measured("cifar10", "t4");
            let row = rows
                .iter()
                .filter(|row| row.shape == shape)
                .min_by_key(|row| row.per_gpu.abs_diff(per_gpu))
                .expect("the shape was measured");
            for _ in 0..50 {
                seen.record(shape, row.per_gpu, 0, row.step_s).expect("times are positive");
            }
        }
    }
    seen
}

fn job_level(criterion: &mut Criterion, zoo: &Zoo) {
    let seen = fifteen();
    let last = fit(&seen, None, None).expect("the fit succeeds").params;
    criterion.bench_function("fit, cold", |b| b.iter(|| fit(black_box(&seen), None, None)));
    criterion.bench_function("fit, warm", |b| b.iter(|| fit(black_box(&seen), None, Some(&last))));
    let (model, t4) = (zoo.goodput(1, 0.5), GpuType::new("t4").expect("a plain name"));
    let shape = Shape::new(8, 2).expect("a valid shape");
    criterion.bench_function("argmax", |b| b.iter(|| black_box(&model).best_batch(&t4, black_box(shape))));
    let cluster = Cluster::parse("16x4xt4").expect("the cluster is well-formed");
    criterion.bench_function("table, 64 GPUs", |b| b.iter(|| zoo.table(1, black_box(0.5), &cluster, 64)));
}

fn cluster_level(criterion: &mut Criterion, name: &str, problem: &Problem) {
    let mut group = criterion.benchmark_group("round");
    let placed = GoodputOptions { local_steps: 0, exact_rows: 0 };
    for (kind, options) in [("whole", GoodputOptions::default()), ("without local search", placed)] {
        let rng = &mut ChaCha8Rng::seed_from_u64(2);
        group.bench_with_input(BenchmarkId::new(kind, name), problem, |b, problem| {
            b.iter(|| GoodputPolicy::new(options).allocate(problem, rng));
        });
    }
}

/// Median seconds of a benchmark, as criterion stored it.
fn median(output: &Path, id: &[&str]) -> Option<f64> {
    let folder = id.iter().fold(output.to_owned(), |path, part| path.join(part.replace(['/', '"'], "_")));
    let text = std::fs::read_to_string(folder.join("new/estimates.json")).ok()?;
    let json: serde_json::Value = serde_json::from_str(&text).ok()?;
    Some(json["median"]["point_estimate"].as_f64()? * 1e-9)
}

#[expect(clippy::print_stdout, reason = "a benchmark prints its table")]
fn report(output: &Path, zoo: &Zoo, problems: &[Problem]) {
    let published = |name: &str| PUBLISHED.iter().find(|entry| entry.0 == name);
    let against = |name: &str, ours: f64| {
        published(name).map_or_else(
            || "| – | – ".to_owned(),
            |(_, theirs, source)| format!("| {} ({source}) | {:.0}x ", seconds(*theirs), theirs / ours),
        )
    };
    println!("\n| what | ours | published | ratio | our `pollux` | ratio | FITNESS against `pollux` |");
    println!("|---|---|---|---|---|---|---|");
    for name in ["fit, cold", "fit, warm", "argmax", "table, 64 GPUs"] {
        let Some(ours) = median(output, &[name]) else { continue };
        println!("| {name} | {} {}| | | |", seconds(ours), against(name, ours));
    }
    for ((name, ..), problem) in ROUNDS.iter().zip(problems) {
        let Some(ours) = median(output, &["round", "whole", name]) else { continue };
        let rng = &mut ChaCha8Rng::seed_from_u64(3);
        let start = Instant::now();
        let theirs = PolluxPolicy::default().allocate(problem, rng).expect("the problem is valid");
        let pollux = start.elapsed().as_secs_f64();
        let plan = GoodputPolicy::default().allocate(problem, rng).expect("the problem is valid");
        let (round, ratio) = (seconds(ours), pollux / ours);
        let gain = plan.fitness / theirs.fitness;
        println!(
            "| {name} | {round} {}| {} | {ratio:.0}x | {gain:.2}x |",
            against(name, ours),
            seconds(pollux)
        );
    }
    println!(
        "\n| where a round spends its time | tables of all trials | prices and placement | local search | proven gap |"
    );
    println!("|---|---|---|---|---|");
    for ((name, cluster, trials), problem) in ROUNDS.iter().zip(problems) {
        let Some(whole) = median(output, &["round", "whole", name]) else { continue };
        let placed = median(output, &["round", "without local search", name]).unwrap_or(f64::NAN);
        let (rng, cluster) =
            (&mut ChaCha8Rng::seed_from_u64(1), Cluster::parse(cluster).expect("well-formed"));
        let study = Zoo::study(&cluster, *trials, rng);
        let start = Instant::now();
        black_box(study.problem(zoo));
        let tables = start.elapsed().as_secs_f64();
        let plan = GoodputPolicy::default().allocate(problem, rng).expect("the problem is valid");
        let gap = 100.0 * plan.gap().unwrap_or(f64::NAN);
        let parts = [tables, placed, (whole - placed).max(0.0)].map(seconds);
        println!("| {name} | {} | {} | {} | {gap:.3} % |", parts[0], parts[1], parts[2]);
    }
}

fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1e-6 => format!("{:.0} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}
