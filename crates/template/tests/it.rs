//! What `pollux-tune init --rust` writes is a program of its own: it finds libtorch without settings, and trains its own model.

use std::{fs, path::Path, process::Command};

#[test]
fn a_program_that_depends_on_pollux_tune_runs_a_study_of_its_own_trainable() {
    let study = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../templates/rust/study.yaml");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("study-of-a-template");
    if folder.exists() {
        fs::remove_dir_all(&folder).expect("what an earlier run left can be removed");
    }
    let program = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_template"));
        command.env_remove("LD_LIBRARY_PATH").env_remove("LIBTORCH");
        command
    };
    let check = program().arg("check").arg(&study).output().expect("it can be started");
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    let run = program()
        .arg("run")
        .arg(&study)
        .args(["--trials", "2", "--quiet", "--cpu", "--folder"])
        .arg(&folder)
        .output()
        .expect("it can be started");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let best = program().args(["best", "--json"]).arg(&folder).output().expect("it can be started");
    let best = String::from_utf8_lossy(&best.stdout).into_owned();
    assert!(best.contains("\"width\""), "{best}");
}
