//! Runs the Rust peers on the problems of `problems.rs` and writes the regret of each run as a JSON line.
//!
//! `search-peers FOLDER OUT.jsonl [--seeds N] [--problems NAME,...]`, where `problems.py` has filled the folder. What
//! is in OUT already is not run again.

mod optimizer_crate;
mod parzen_crate;
#[path = "../../problems.rs"]
mod problems;
#[path = "../../study.rs"]
mod study;
mod tpe_crate;

use std::{
    collections::BTreeSet,
    error::Error,
    fs::{self, File, OpenOptions},
    io::Write,
    path::Path,
};

use optimizer_crate::OptimizerCrate;
use parzen_crate::ParzenCrate;
use problems::Problem;
use serde_json::{Value, json};
use study::{MARKS, Optimizer, SEEDS, SIZES, WORKERS, ask_and_tell_ms, line, run};
use tpe_crate::TpeCrate;

const FIRST_SEED: u64 = 1000;

/// Makes an optimizer from the problem, a seed and the number of workers.
type Make = fn(&Problem, u64, usize) -> Box<dyn Optimizer>;

/// Name, version and how it is made.
const PEERS: [(&str, &str, Make); 5] = [
    ("parzen", "0.3.0", |problem, seed, _| Box::new(ParzenCrate::new(problem, seed, false))),
    ("parzen-grouped", "0.3.0", |problem, seed, _| Box::new(ParzenCrate::new(problem, seed, true))),
    ("tpe", "0.3.1", |problem, seed, _| Box::new(TpeCrate::new(problem, seed))),
    ("optimizer", "1.0.1", |problem, seed, _| Box::new(OptimizerCrate::independent(problem, seed))),
    ("optimizer-multivariate", "1.0.1", |problem, seed, workers| {
        Box::new(OptimizerCrate::multivariate(problem, seed, workers))
    }),
];

fn main() -> Result<(), Box<dyn Error>> {
    let (mut paths, mut seeds, mut problems) = (Vec::new(), SEEDS, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seeds" => seeds = arguments.next().ok_or("--seeds needs a number")?.parse()?,
            "--problems" => problems = Some(arguments.next().ok_or("--problems needs names")?),
            _ => paths.push(argument),
        }
    }
    let [folder, out] = &paths[..] else {
        return Err("usage: search-peers FOLDER OUT.jsonl [--seeds N] [--problems NAME,...]".into());
    };
    let chosen =
        |name: &str| problems.as_ref().is_none_or(|names| names.split(',').any(|chosen| chosen == name));
    let known = known(out)?;
    let mut out = OpenOptions::new().create(true).append(true).open(out)?;
    for problem in problems::all(Path::new(folder))?.into_iter().filter(|problem| chosen(problem.name)) {
        for (name, version, make) in PEERS {
            for workers in WORKERS {
                for seed in
                    (0..seeds).filter(|seed| !known.contains(&key(name, problem.name, workers, *seed)))
                {
                    let mut optimizer = make(&problem, FIRST_SEED + seed, workers);
                    let run = run(&problem, &mut *optimizer, FIRST_SEED + seed, workers, &MARKS);
                    write(&mut out, line(name, problem.name, workers, seed, &MARKS, &run), version)?;
                }
            }
        }
    }
    for (name, version, make) in PEERS {
        for size in SIZES.into_iter().filter(|size| !known.contains(&key(name, "speed", 1, (*size).into()))) {
            let ms = ask_and_tell_ms(&mut *make(&problems::speed(), FIRST_SEED, 1), size);
            write(&mut out, json!({ "peer": name, "size": size, "ask_and_tell_ms": ms }), version)?;
        }
    }
    Ok(())
}

fn write(out: &mut File, mut row: Value, version: &str) -> Result<(), Box<dyn Error>> {
    row["version"] = version.into();
    Ok(writeln!(out, "{row}")?)
}

fn key(peer: &str, problem: &str, workers: usize, seed: u64) -> String {
    format!("{peer} {problem} {workers} {seed}")
}

/// The keys of all lines there are.
fn known(out: &str) -> Result<BTreeSet<String>, Box<dyn Error>> {
    let text = if Path::new(out).exists() { fs::read_to_string(out)? } else { String::new() };
    let mut known = BTreeSet::new();
    for line in text.lines() {
        let row: Value = serde_json::from_str(line)?;
        let number = |field: &str| row[field].as_u64();
        let peer = row["peer"].as_str().ok_or(line)?;
        known.insert(match number("size") {
            Some(size) => key(peer, "speed", 1, size),
            None => key(
                peer,
                row["problem"].as_str().ok_or(line)?,
                number("workers").ok_or(line)? as usize,
                number("seed").ok_or(line)?,
            ),
        });
    }
    Ok(known)
}
