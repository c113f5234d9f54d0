//! What each trial costs the head, by the number of trials.

use std::path::Path;

use pollux_tune::{
    alloc::Cluster,
    sim::{SimulatedCluster, simulate_study},
    space::{Algorithm, Study},
    store::Store,
};

use crate::{Result, folder, run, scale::processor_s, study};

/// Prints the time of the processor for whole studies, and for each of their trials.
///
/// *Elastic* is all that a head decides on the study of Table 3 in virtual time: suggestions, fits, comparisons, plans, batches, one thread;
/// the modelled trainings are part of it. *Journaled* are trials that end at once, with each fact on disk.
#[expect(clippy::print_stdout, reason = "it prints a table")]
pub(crate) fn measure(counts: &[u32]) -> Result<()> {
    println!("| what | trials | of the processor | for each trial |\n|---|---|---|---|");
    for algorithm in [Algorithm::Random, Algorithm::Tpe] {
        let row = |what: &str, trials: u32, seconds: f64| {
            let each_ms = 1e3 * seconds / f64::from(trials);
            println!("| {what}, `{}` | {trials} | {seconds:.2} s | {each_ms:.2} ms |", algorithm.name());
        };
        for &trials in counts {
            row("elastic", trials, elastic(trials, algorithm)?);
        }
        for &trials in counts {
            let start_s = processor_s();
            run(&study(trials, algorithm.name())?, &mut Store::open(&folder("growth")?)?)?;
            row("journaled", trials, processor_s() - start_s);
        }
    }
    Ok(())
}

fn elastic(trials: u32, algorithm: Algorithm) -> Result<f64> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("search-spaces/table3.yaml");
    let mut study = Study::from_yaml("table3.yaml", &std::fs::read_to_string(file)?)?;
    (study.search.trials, study.search.algorithm) = (trials, algorithm);
    let simulated = SimulatedCluster::new(Cluster::parse("2x8xa100")?);
    let start_s = processor_s();
    let report = simulate_study(&study, &simulated)?;
    assert_eq!(report.trials.len(), trials as usize, "all trials were run");
    Ok(processor_s() - start_s)
}
