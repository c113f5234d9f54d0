//! Examples on pages: that of `docs/rust.md`, which quotes this file and shows what it prints, and all study files.

use std::{fs, path::Path};

use pollux_tune::space::Study;

// The example begins.
use pollux_tune::{alloc::*, goodput::*, ids::*};
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

fn share_gpus() -> Result<String, Box<dyn std::error::Error>> {
    let cluster = Cluster::parse("4x4xt4,1x8xa100")?; // nodes 0 to 3 with T4s, node 4 with A100s
    let (t4, a100) = (GpuType::new("t4")?, GpuType::new("a100")?);

    // On T4s some steps were timed: GPUs, nodes, examples per GPU, seconds.
    let timed =
        [(1, 1, 129, 0.104), (1, 1, 513, 0.355), (4, 1, 129, 0.111), (4, 1, 513, 0.395), (8, 2, 129, 0.231)];
    let mut seen = Observations::default();
    for (gpus, nodes, per_gpu, step_s) in timed {
        seen.record(Shape::new(gpus, nodes)?, per_gpu, 0, step_s)?;
    }
    let on_t4 = fit(&seen, None, None)?.params;
    // For A100s the costs are known, in seconds.
    let sync = [SyncCost { alpha_s: 0.002, beta_s: 0.0001 }, SyncCost { alpha_s: 0.01, beta_s: 0.001 }];
    let on_a100 = ThroughputParams::new(ComputeCost { alpha_s: 0.04, beta_s: 0.0003 }, sync, 2.0)?;

    // The noisier its gradient, the larger a batch and the more GPUs a trial makes good use of.
    let limits = BatchLimits::new(128, BatchMode::Adaptive { max: 4096 }, 32, 1024)?;
    let mut trials = Vec::new();
    for (id, noise) in [(0, 100.0), (1, 1_000.0), (2, 30_000.0)] {
        let model = GoodputModel::new(NoiseScale::new(noise)?).with_type(t4.clone(), on_t4, limits);
        let model = model.with_type(a100.clone(), on_a100, limits);
        trials.push(TrialRequest::new(TrialId(id), model.table(cluster.room(u32::MAX))?));
    }
    trials[0].current = [(NodeId(4), 8)].into_iter().collect(); // it was alone, and has all A100s
    (trials[0].age_s, trials[0].realloc_delay_s) = (600.0, 20.0);

    let problem = Problem::new(cluster, trials);
    let plan = GoodputPolicy::default().allocate(&problem, &mut ChaCha8Rng::seed_from_u64(0))?;
    let line = |TrialPlacement { trial, allocation, speedup, reason }: &TrialPlacement| {
        format!("trial {trial}: {allocation}, speedup {speedup:.2}: {reason}\n")
    };
    Ok(plan.placements.iter().map(line).collect())
}
// The example ends.

#[test]
fn the_page_shows_this_example_and_what_it_prints() {
    let page = include_str!("../../docs/rust.md");
    let file = include_str!("pages.rs");
    let (_, rest) = file.split_once("// The example begins.\n").expect("the first mark is there");
    let (example, _) = rest.split_once("// The example ends.\n").expect("the second mark is there");
    assert!(
        page.contains(&format!("```rust\n{example}\n")),
        "docs/rust.md quotes another example:\n{example}"
    );
    let printed = share_gpus().expect("the example works");
    assert!(
        page.contains(&format!("```text\n{printed}```\n")),
        "docs/rust.md shows other output than\n{printed}"
    );
}

#[test]
fn all_study_files_on_pages_are_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = fs::read_dir(root.join("docs")).expect("there are pages");
    let pages = pages.map(|entry| entry.expect("it can be listed").path()).chain([root.join("README.md")]);
    let mut found = 0;
    for page in pages.filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(&page).expect("it can be read");
        let blocks = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split_once("```"));
        let whole = |text: &&str| {
            ["space:", "objective:"].iter().all(|key| text.lines().any(|line| line.starts_with(key)))
        };
        for study in blocks.map(|(block, _)| block).filter(whole) {
            found += 1;
            let read = Study::from_yaml(&page.display().to_string(), study);
            assert!(read.is_ok(), "{}\n{study}", read.expect_err("it is not valid").report());
        }
    }
    assert!(found >= 8, "only {found} were found");
}
