//! How good and how fast the suggesters are, next to others.
//!
//! `make bench-search` runs the others with `peers.py` and then this, which joins both into Markdown tables. By
//! hand: `cargo bench --bench search -- [PEERS.jsonl] [--seeds N]`. The seeds are not those that the defaults were
//! chosen with.

#![expect(clippy::print_stdout, reason = "the tables are its output")]

mod functions;
mod several;
mod speed;
mod study;
mod table;

use std::{error::Error, fs};

use study::{OURS, OURS_OF_SEVERAL, missing, regrets};
use table::{Runs, print};

/// After so many trials the regret is noted.
const MARKS: [usize; 2] = [100, 300];
/// After so many trials of problems with several objectives the missing volume is noted.
const MARK_OF_SEVERAL: usize = 150;
const WORKERS: [usize; 2] = [1, 4];
const SEEDS: u64 = 30;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let (mut runs, mut seeds) = (Runs::default(), SEEDS);
    while let Some(argument) = arguments.next() {
        if argument == "--seeds" {
            seeds = arguments.next().ok_or("--seeds needs a number")?.parse()?;
        } else {
            runs.read(&fs::read_to_string(&argument)?)?;
        }
    }
    for function in functions::all() {
        for workers in WORKERS {
            for (name, make) in OURS {
                let of_seeds: Vec<Vec<f64>> =
                    (0..seeds).map(|seed| regrets(&function, make, seed, workers, &MARKS)).collect();
                for (at, &mark) in MARKS.iter().enumerate() {
                    let regrets = of_seeds.iter().map(|regrets| regrets[at]).collect();
                    runs.add(name, function.name, workers, mark, regrets);
                }
            }
        }
    }
    let problems = several::problems();
    let mut of_several = runs.split_off(|function| problems.iter().any(|problem| problem.name == function));
    for problem in &problems {
        for (name, make) in OURS_OF_SEVERAL {
            let missing = (0..seeds).map(|seed| missing(problem, make, seed, MARK_OF_SEVERAL)).collect();
            of_several.add(name, problem.name, 1, MARK_OF_SEVERAL, missing);
        }
    }
    print("Median regret", &runs);
    print("Median volume that is missing", &of_several);
    speed::print();
    Ok(())
}
