//! The default policy against the paper's search, on problems as studies pose them.

#![expect(clippy::print_stdout, reason = "the figures are read with --nocapture")]

use pollux_tune::alloc::{Cluster, GoodputPolicy, Policy, PolluxPolicy};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::measured::Zoo;

const INSTANCES: u64 = 200;

#[test]
fn goodput_is_never_worse_than_the_papers_search_and_better_on_the_mean() {
    let zoo = Zoo::load();
    let clusters = ["16x4xt4", "2x8xa100", "4x4xt4,2x8xa100", "8x4xt4,1x8xa100", "6x4xt4,1x4xt4,1x2xa100"];
    let (mut gains, mut gaps) = ([Vec::new(), Vec::new()], Vec::new());
    for seed in 0..INSTANCES {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let cluster = Cluster::parse(clusters[seed as usize % clusters.len()]).unwrap();
        let mut study = Zoo::study(&cluster, rng.random_range(4..40), rng);
        let mut pollux = PolluxPolicy::default();
        // Half of the instances are the first question of a study, half come after three rounds under `pollux`, which
        // then brings its population along.
        let warm = seed % 2 == 1;
        for _ in 0..if warm { 3 } else { 0 } {
            let plan = pollux.allocate(&study.problem(&zoo), rng).unwrap();
            study.advance(&plan, rng);
        }
        let problem = study.problem(&zoo);
        let theirs = pollux.allocate(&problem, rng).unwrap();
        let ours = GoodputPolicy::default().allocate(&problem, rng).unwrap();
        assert!(
            ours.fitness >= theirs.fitness * (1.0 - 1e-9),
            "instance {seed}: {} below {}",
            ours.fitness,
            theirs.fitness
        );
        gains[usize::from(warm)].push(ours.fitness / theirs.fitness - 1.0);
        gaps.push(ours.gap().unwrap());
    }
    let report = |name: &str, values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let (median, last) = (values[values.len() / 2], values[values.len() - 1]);
        println!(
            "{name}: mean {:.2} %, median {:.2} %, most {:.2} %",
            100.0 * mean,
            100.0 * median,
            100.0 * last
        );
        mean
    };
    report("gain over pollux, first question", &mut gains[0]);
    let mean = report("gain over pollux, later question", &mut gains[1]);
    report("proven gap to the optimum", &mut gaps);
    assert!(mean > 0.0);
}
