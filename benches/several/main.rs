//! Searches for Pareto fronts, beside Optuna's.
//!
//! `make bench-search` runs it. By hand: `cargo bench --bench several -- PEERS.jsonl` with what `peers.py` wrote.

#![expect(clippy::print_stdout, reason = "the tables are its output")]

mod problems;
#[path = "../search/stats.rs"]
mod stats;

use std::{collections::BTreeMap, error::Error, fs, hint::black_box, time::Instant};

use pollux_tune::{
    ids::TrialId,
    space::{Dim, Dims, Parent},
    tpe::{Outcome, Random, Suggester, Tpe},
};
use problems::Problem;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use stats::{compare, geometric_mean, median};

const TRIALS: u32 = 150;
const SEEDS: u64 = 30;
const PEERS: [&str; 4] = ["optuna", "nsga2", "random", "our random"];
const SIZES: [u32; 4] = [100, 1000, 5000, 10_000];
const REPEATS: u32 = 101;

type Make = fn(Dims, usize) -> Box<dyn Suggester>;

const OURS: [(&str, Make); 2] = [
    ("our tpe", |dims, objectives| Box::new(Tpe::with_objectives(dims, objectives).expect("there are some"))),
    ("our random", |dims, objectives| {
        Box::new(Random::with_objectives(dims, objectives).expect("there are some"))
    }),
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut missing: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for file in std::env::args().skip(1).filter(|argument| argument != "--bench") {
        for line in fs::read_to_string(file)?.lines() {
            let row: Value = serde_json::from_str(line)?;
            let text = |key: &str| {
                row[key].as_str().map(str::to_owned).ok_or_else(|| format!("no `{key}` in {line}"))
            };
            let values = row["missing"].as_array().ok_or_else(|| format!("no `missing` in {line}"))?;
            let values = values.iter().filter_map(Value::as_f64).collect();
            missing.insert((text("problem")?, text("peer")?), values);
        }
    }
    let problems = problems::problems();
    for problem in &problems {
        for (name, make) in OURS {
            let values = (0..SEEDS).map(|seed| volume_missing(problem, make, seed)).collect();
            missing.insert((problem.name.to_owned(), name.to_owned()), values);
        }
    }
    print_quality(&problems, &missing);
    print_speed();
    Ok(())
}

/// How much of the volume of the true front is missing after all trials, one at a time.
fn volume_missing(problem: &Problem, make: Make, seed: u64) -> f64 {
    let seed = 10_000 + seed;
    let mut suggester = make(problem.dims.clone(), problem.reference.len());
    let mut results = Vec::new();
    for id in (0..TRIALS).map(TrialId) {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed << 32 | u64::from(id.0));
        let point = suggester.ask(id, rng).expect("there is a point");
        results.push((problem.values)(&point));
        suggester.tell(id, Outcome::Done((problem.values)(&point))).expect("it is running");
    }
    problem.missing(&results)
}

fn print_quality(problems: &[Problem], missing: &BTreeMap<(String, String), Vec<f64>>) {
    println!("Volume of the true front that is missing after {TRIALS} trials, median of {SEEDS} seeds;");
    println!("`+` where our tpe is significantly better, `-` where it is worse.\n");
    println!("| problem | our tpe | {} |\n|---|---|{}", PEERS.join(" | "), "---|".repeat(PEERS.len()));
    for problem in problems {
        let of = |peer: &str| missing.get(&(problem.name.to_owned(), peer.to_owned()));
        let Some(ours) = of("our tpe") else { continue };
        let cell = |peer: &&str| {
            of(peer).map_or_else(String::new, |theirs| {
                format!("{:.3}{}", median(theirs), ["", " +", " -"][compare(ours, theirs) as usize])
            })
        };
        let cells: Vec<String> = PEERS.iter().map(cell).collect();
        println!("| {} | {:.3} | {} |", problem.name, median(ours), cells.join(" | "));
    }
    for peer in PEERS {
        let ratio = |problem: &Problem| {
            let of = |peer: &str| missing.get(&(problem.name.to_owned(), peer.to_owned()));
            Some(median(of("our tpe")?) / median(of(peer)?))
        };
        if let Some(ratios) = problems.iter().map(ratio).collect::<Option<Vec<f64>>>() {
            println!(
                "\nour tpe leaves {:.2} of what {peer} leaves (geometric mean)",
                geometric_mean(&ratios)
            );
        }
    }
}

fn print_speed() {
    println!(
        "\nOne ask and one tell, median, ms.\n\n| trials | one objective | two | three |\n|---|---|---|---|"
    );
    for size in SIZES {
        let [one, two, three] = [1, 2, 3].map(|objectives| ask_and_tell_ms(size, objectives));
        println!("| {size} | {one:.3} | {two:.3} | {three:.3} |");
    }
}

/// In a space of numbers, cells and choices.
fn ask_and_tell_ms(size: u32, objectives: usize) -> f64 {
    let dims = vec![
        Dim::Continuous,
        Dim::Continuous,
        Dim::Discrete { count: 16 },
        Dim::Discrete { count: 1000 },
        Dim::Categorical { count: 4 },
        Dim::Continuous,
    ];
    let parent = Parent { dim: 4, choices: vec![0, 1] };
    let dims = Dims::new(dims, vec![None, None, None, None, None, Some(parent)]).expect("it is a space");
    let mut tpe = Tpe::with_objectives(dims.clone(), objectives).expect("there are some");
    let rng = &mut ChaCha8Rng::seed_from_u64(1);
    let values = |point: &[Option<f64>]| {
        let value = |middle: f64| point.iter().flatten().map(|x| (x - middle).powi(2)).sum::<f64>();
        Outcome::Done([0.3, 5.0, 20.0].into_iter().take(objectives).map(value).collect())
    };
    for id in (0..size).map(TrialId) {
        let point = dims.build(|_, dim| dim.at(rng.random()));
        let outcome = values(&point);
        tpe.insert(id, point).expect("it is new");
        tpe.tell(id, outcome).expect("it is running");
    }
    let mut times = Vec::new();
    for id in (size..size + REPEATS).map(TrialId) {
        let begin = Instant::now();
        let point = black_box(tpe.ask(id, rng).expect("there is a point"));
        tpe.tell(id, values(&point)).expect("it is running");
        times.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    median(&times)
}
