//! Checkpoints of studies on emulated devices: which are kept, and what a full disk does.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use pollux_tune::{store::Folder, trials::engine::Fact};

use crate::{
    common::{ends, entries, folder},
    disk::SmallDisk,
};

const TRIALS: u32 = 5;

fn program(root: &Path, more: &[&str]) -> Command {
    let file = root.with_extension("yaml");
    let text = format!(
        "space: {{lr: {{log: [1e-4, 1e-1]}}}}\nobjective: {{maximize: accuracy}}\n\
         trial: {{trainable: cifar10, epochs: 2, checkpoint_interval: 1s}}\n\
         search: {{trials: {TRIALS}, parallel: 2}}\ncluster: 1x2xt4\n"
    );
    fs::write(&file, text).expect("a study file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pollux-tune"));
    command
        .arg("run")
        .arg(file)
        .args(["--emulate", "--time-scale", "0.002", "--folder"])
        .arg(root)
        .args(more);
    command
}

/// Trials that have checkpoints.
fn kept(root: &Path) -> BTreeSet<u32> {
    let folder = Folder::new(root);
    let has = |trial: &u32| {
        let files = fs::read_dir(folder.checkpoint(pollux_tune::ids::TrialId(*trial)));
        files.is_ok_and(|files| {
            let names = files.map(|file| file.expect("an entry").file_name().into_string().expect("text"));
            names.into_iter().any(|name| name.ends_with(".checkpoint"))
        })
    };
    (0..TRIALS).filter(has).collect()
}

/// The best trials of a study, the best first.
fn best(root: &Path) -> Vec<u32> {
    let mut done: Vec<(f64, u32)> = entries(root)
        .into_iter()
        .filter_map(|fact| match fact {
            Fact::TrialDone { trial, values } => Some((values[0], trial.0)),
            _ => None,
        })
        .collect();
    done.sort_by(|a, b| b.0.total_cmp(&a.0));
    done.into_iter().map(|(_, trial)| trial).collect()
}

fn run(root: &Path, more: &[&str]) {
    let run = program(root, more).output().expect("it can be run");
    assert!(run.status.success(), "{run:?}");
}

#[test]
fn the_best_trials_keep_their_checkpoints() {
    let root = folder("kept");
    run(&root, &["--keep-checkpoints", "all"]);
    assert_eq!(kept(&root), (0..TRIALS).collect());
    let best = best(&root);
    assert_eq!(best.len(), TRIALS as usize);
    let first = |count: usize| best[..count].iter().copied().collect::<BTreeSet<u32>>();
    let notes = Folder::new(&root).checkpoint(pollux_tune::ids::TrialId(best[4])).join("notes.txt");
    fs::write(&notes, "mine").expect("a file");
    run(&root, &["--keep-checkpoints", "3"]);
    assert_eq!(kept(&root), first(3), "also those of before");
    assert_eq!(fs::read_to_string(&notes).expect("it is still there"), "mine");
    run(&root, &[]);
    assert_eq!(kept(&root), first(1), "by default that of the best one");
    run(&root, &["--keep-checkpoints", "none"]);
    assert_eq!(kept(&root), first(0));
    fs::remove_dir_all(&root).expect("it can be removed");

    // While it runs, and not only at the next start.
    let root = folder("kept-at-once");
    run(&root, &[]);
    assert_eq!(kept(&root), self::best(&root)[..1].iter().copied().collect());
    fs::remove_dir_all(&root).expect("it can be removed");
    for root in [folder("kept"), folder("kept-at-once")] {
        fs::remove_file(root.with_extension("yaml")).expect("it can be removed");
    }
}

#[test]
fn keeping_something_else_is_refused() {
    let root = folder("kept-wrong");
    let run = program(&root, &["--keep-checkpoints", "some"]).output().expect("it can be run");
    assert_eq!(run.status.code(), Some(2));
    let error = String::from_utf8(run.stderr).expect("text");
    assert!(error.contains("expected `all`, `none` or the number of the best trials"), "{error}");
    assert!(!root.exists());
    fs::remove_file(root.with_extension("yaml")).expect("it can be removed");
}

#[test]
fn a_full_disk_costs_checkpoints_and_no_trials() {
    let root = folder("full-disk");
    run(&root, &["--trials", "1", "--keep-checkpoints", "none"]);
    let Some(disk) = SmallDisk::mount(&Folder::new(&root).checkpoints(), 1 << 16) else { return };
    let filler = disk.fill();
    let mut head = program(&root, &["--keep-checkpoints", "all"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it can be started");
    let mut lines =
        BufReader::new(head.stderr.take().expect("a pipe")).lines().map(|line| line.expect("text"));
    let warning = lines.find(|line| line.contains("warning: trial")).expect("the user is told");
    assert!(
        warning.contains("cannot be written to") && warning.contains("No space left on device"),
        "{warning}"
    );
    fs::remove_file(filler).expect("it is there");
    lines.for_each(drop);
    assert!(head.wait().expect("it ends").success());
    assert_eq!(ends(&root), (0..TRIALS).map(|trial| (trial, 1)).collect());
    let facts = entries(&root);
    let count = |wanted: fn(&Fact) -> bool| facts.iter().filter(|fact| wanted(fact)).count();
    assert_eq!(count(|fact| matches!(fact, Fact::TrialDone { .. })), TRIALS as usize);
    assert!(count(|fact| matches!(fact, Fact::CheckpointFailed { .. })) >= 1);
    assert!(count(|fact| matches!(fact, Fact::Checkpointed { .. })) >= 1, "there is room again");
    drop(disk);
    fs::remove_dir_all(&root).expect("it can be removed");
    fs::remove_file(root.with_extension("yaml")).expect("it can be removed");
}
