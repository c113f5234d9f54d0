//! `chaos`.

use std::{num::NonZero, thread};

use clap::Args;

use super::format;
use crate::cli::chaos;

/// Test the program itself: run simulated studies through all kinds of faults
#[derive(Debug, Args)]
#[command(long_about = ABOUT)]
pub(crate) struct ChaosArgs {
    /// How many seeds to run
    #[arg(long, value_name = "COUNT", default_value_t = 300, conflicts_with = "seed",
          value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed
    #[arg(long, value_name = "SEED", default_value_t = 0, conflicts_with = "seed")]
    from: u64,
    /// Run only this seed
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// The number of studies at the same time [default: one for each processor]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl From<ChaosArgs> for chaos::Settings {
    fn from(args: ChaosArgs) -> Self {
        let ChaosArgs { seeds, from, seed, threads, json } = args;
        let (from, seeds) = seed.map_or((from, seeds), |seed| (seed, 1));
        let threads = threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, NonZero::get));
        Self { from, seeds, threads, format: format(json) }
    }
}

const ABOUT: &str = "\
Test the program itself: run simulated studies through all kinds of faults

A seed stands for a cluster, a study and its faults: workers, nodes and heads that die, lost connections,
full disks, lost power, jumping clocks, failing trials and solvers. Everything but processes, connections,
training and disk is the code that runs real studies. All rules are checked after every event, and when
the faults are over the study must come to its end. The same seed always gives the same events. A seed that
breaks a rule is shown with its last events, and the program exits with 1.";
