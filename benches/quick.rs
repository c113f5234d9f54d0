#[path = "../tests/common/study.rs"]
mod study;
use pollux_tune::alloc::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::time::Instant;
fn main() {
    let zoo = study::Zoo::load();
    for (spec, trials) in [
        ("16x4xt4", 40u32),
        ("16x4xt4", 160),
        ("8x4xt4,4x8xa100", 40),
        ("64x4xt4,32x8xa100", 500),
        ("256x4xt4,128x8xa100", 2000),
    ] {
        let rng = &mut ChaCha8Rng::seed_from_u64(1);
        let cluster = Cluster::parse(spec).unwrap();
        let mut study = zoo.study(&cluster, trials, rng);
        for round in 0..4 {
            let t = Instant::now();
            let problem = study.problem(&zoo);
            let build = t.elapsed();
            let t = Instant::now();
            let plan = GoodputPolicy::default().allocate(&problem, rng).unwrap();
            println!(
                "{spec} {trials} round {round}: tables {:?} solve {:?} fitness {:.4} gap {:.4}%",
                build,
                t.elapsed(),
                plan.fitness,
                100.0 * plan.gap().unwrap()
            );
            study.advance(&plan, rng);
        }
    }
}
