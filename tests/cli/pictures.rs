//! Pictures of a study, and studies that are kept of a simulation.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const STUDY: &str = "
space: {lr: {log: [5e-3, 5e-1]}, momentum: {float: [0.5, 0.97]}, optimizer: [sgd, adam]}
objective: {maximize: accuracy}
trial: {trainable: cifar10, epochs: 6, initial_batch: 128, max_batch: 2Ki, max_batch_per_gpu: 1Ki}
search: {trials: 24, parallel: 4, seed: 1}
cluster: 1x4xt4
";

fn program(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pollux-tune")).args(arguments).output().expect("it runs")
}

/// What it prints if all is well.
fn prints(arguments: &[&str]) -> String {
    let output = program(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn fails(arguments: &[&str]) -> String {
    let output = program(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Studies of a simulation, one for each of two policies.
fn simulated(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pictures").join(name);
    if root.exists() {
        fs::remove_dir_all(&root).expect("what an earlier run left can be removed");
    }
    fs::create_dir_all(&root).expect("a folder");
    let (file, kept) = (root.join("study.yaml"), root.join("kept"));
    fs::write(&file, STUDY).expect("it can be written");
    let (file, kept) = (file.display().to_string(), kept.display().to_string());
    let command = ["simulate", "study", &file, "--policy", "goodput,static", "--seeds", "1", "--keep", &kept];
    prints(&command);
    let again = fails(&command);
    assert!(again.contains("goodput exists: give another folder to --keep"), "{again}");
    root.join("kept")
}

#[test]
fn a_simulation_is_kept_as_studies_that_are_drawn() {
    let kept = simulated("kept");
    for policy in ["goodput", "static"] {
        let folder = kept.join(policy).display().to_string();
        assert!(prints(&["status", &folder]).contains("24 of 24 ended"), "{policy}");
        assert!(prints(&["trials", &folder]).contains("4 GPUs in virtual time"), "{policy}");
    }
    let folder = kept.join("goodput").display().to_string();
    for kind in ["history", "curves", "timeline", "parallel", "importance", "slice", "contour"] {
        let svg = prints(&["plot", &folder, "--kind", kind]);
        let text = fs::read_to_string(svg.trim()).expect("it is where it says");
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"), "{kind}");
        let png = kept.join(format!("{kind}.png")).display().to_string();
        prints(&["plot", &folder, "-k", kind, "-o", &png]);
        assert_eq!(fs::read(&png).expect("it is there")[..4], *b"\x89PNG", "{kind}");
        assert!(fails(&["plot", &folder, "-k", kind, "-o", &png]).contains("--force replaces it"), "{kind}");
    }
    for (more, problem) in [
        (&["--kind", "pareto"][..], "needs a study with several objectives"),
        (&["--kind", "slice", "--param", "width"], "expected one of lr, momentum, optimizer"),
        (&["--kind", "contour", "--param", "lr"], "needs two parameters, 1 given"),
        (&["--objective", "loss"], "expected one of accuracy"),
        (&["-o", "picture.jpg"], "must end in `.svg` or `.png`"),
    ] {
        let said = fails(&[&["plot", &folder], more].concat());
        assert!(said.contains(problem), "{said}");
    }
}
