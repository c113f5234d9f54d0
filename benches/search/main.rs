//! How good and how fast the suggesters are, next to others.
//!
//! `make bench-search` runs the others with `peers.py` and `peers-rs` and then this, which joins all into Markdown
//! tables. By hand: `cargo bench --bench search -- FOLDER [PEERS.jsonl ...] [--seeds N] [--only NAME,...]
//! [--problems NAME,...] [--first-seed N] [--report OUT.md]`, where `problems.py` has filled the folder; and with `--unseen` instead of the
//! folder, functions that only exist here. The seeds are not those that the defaults were chosen with.

#![expect(clippy::print_stdout, reason = "the tables are its output")]

mod ours;
mod problems;
mod report;
mod runs;
mod stats;
mod study;
mod unseen;

use std::{
    error::Error,
    fs,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use ours::{OURS, Ours, Seeded};
use problems::Problem;
use runs::Runs;
use serde_json::{Value, json};
use study::{SEEDS, SIZES, WORKERS, ask_and_tell_ms, line, run};

/// Seeds of the report start here; settings are to be chosen with others.
const FIRST_SEED: u64 = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    if arguments.unseen {
        let only = |name: &str| includes(arguments.only.as_ref(), name);
        println!("{}", unseen::report(only, arguments.first_seed, arguments.seeds));
        return Ok(());
    }
    let mut problems = problems::all(&arguments.folder)?;
    problems.retain(|problem| includes(arguments.problems.as_ref(), problem.name));
    let mut runs = Runs::new(problems.iter().map(|problem| problem.name).collect());
    for file in &arguments.peers {
        runs.read(&fs::read_to_string(file)?)?;
    }
    let ours: Vec<&Ours> = OURS.iter().filter(|ours| includes(arguments.only.as_ref(), ours.name)).collect();
    for row in studies(&ours, &problems, &arguments) {
        runs.add(&row)?;
    }
    for ours in ours {
        for size in SIZES {
            let seed = arguments.first_seed;
            let suggester = (ours.make)(problems::speed().dims, seed);
            let ms = ask_and_tell_ms(&mut Seeded { suggester, seed }, size);
            runs.add(&json!({ "peer": ours.name, "size": size, "ask_and_tell_ms": ms }))?;
        }
    }
    let report = report::markdown(&runs)?;
    println!("{report}");
    if let Some(path) = arguments.report {
        fs::write(path, report)?;
    }
    Ok(())
}

struct Arguments {
    folder: PathBuf,
    peers: Vec<PathBuf>,
    seeds: u64,
    first_seed: u64,
    only: Option<Vec<String>>,
    problems: Option<Vec<String>>,
    report: Option<PathBuf>,
    /// Functions that differ by seed, instead of those in the folder.
    unseen: bool,
}

impl Arguments {
    fn parse(mut given: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let (mut seeds, mut first_seed) = (SEEDS, FIRST_SEED);
        let (mut paths, mut only, mut problems, mut report) = (Vec::new(), None, None, None);
        let mut unseen = false;
        while let Some(argument) = given.next() {
            let mut value = || given.next().ok_or_else(|| format!("{argument} needs a value"));
            let names = |list: String| list.split(',').map(str::to_owned).collect();
            match argument.as_str() {
                "--bench" => {}
                "--unseen" => unseen = true,
                "--seeds" => seeds = value()?.parse()?,
                "--first-seed" => first_seed = value()?.parse()?,
                "--only" => only = Some(names(value()?)),
                "--problems" => problems = Some(names(value()?)),
                "--report" => report = Some(value()?.into()),
                _ => paths.push(PathBuf::from(argument)),
            }
        }
        if paths.is_empty() && !unseen {
            return Err("give the folder that `problems.py` has filled".into());
        }
        let folder = if unseen { PathBuf::new() } else { paths.remove(0) };
        Ok(Self { folder, peers: paths, seeds, first_seed, only, problems, report, unseen })
    }
}

fn includes(chosen: Option<&Vec<String>>, name: &str) -> bool {
    chosen.is_none_or(|chosen| chosen.iter().any(|chosen| chosen == name))
}

/// The lines of all studies of ours, which run on all cores.
fn studies(ours: &[&Ours], problems: &[Problem], arguments: &Arguments) -> Vec<Value> {
    let mut jobs = Vec::new();
    for ours in ours {
        for problem in problems {
            for workers in WORKERS {
                jobs.extend((0..arguments.seeds).map(|seed| (*ours, problem, workers, seed)));
            }
        }
    }
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(&(ours, problem, workers, seed)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let study_seed = arguments.first_seed + seed;
            let suggester = (ours.make)(problem.dims.clone(), study_seed);
            let mut optimizer = Seeded { suggester, seed: study_seed };
            let run = run(problem, &mut optimizer, study_seed, workers, ours.marks);
            let row = line(ours.name, problem.name, workers, seed, ours.marks, &run);
            rows.lock().expect("no thread panics with it").push(row);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    rows.into_inner().expect("no thread panics with it")
}
