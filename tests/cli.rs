//! The program as a user meets it: transcripts in `tests/cmd`, files it writes, pipes that close.

#![expect(
    clippy::disallowed_methods,
    reason = "the list in clippy.toml is for the pure modules of the library"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_pollux-tune");
const MEASURED: [&str; 2] = ["tests/fixtures/fit/placements.csv", "tests/fixtures/fit/counts.csv"];

/// An empty folder for one test.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if path.exists() {
        fs::remove_dir_all(&path).expect("what an earlier run left can be removed");
    }
    fs::create_dir_all(&path).expect("the folder for tests can be written");
    path
}

fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    entries.map(|entry| name(entry.expect("the folder can be read"))).collect()
}

#[test]
fn transcripts() {
    trycmd::TestCases::new().case("tests/cmd/*.trycmd");
}

#[test]
fn a_drawing_is_written_whole_and_replaces_an_older_one() {
    let folder = folder("drawing");
    let drawing = folder.join("fit.svg");
    fs::write(&drawing, "older").unwrap();
    let run = Command::new(PROGRAM).arg("fit").args(MEASURED).arg("--svg").arg(&drawing).output().unwrap();
    assert!(run.status.success());
    assert!(!run.stdout.is_empty());
    assert_eq!(String::from_utf8(run.stderr).unwrap(), format!("wrote {}\n", drawing.display()));
    let text = fs::read_to_string(&drawing).unwrap();
    assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"));
    assert!(text.contains("placements, counts: mean error"));
    assert_eq!(files(&folder), ["fit.svg"]);
}

#[test]
fn a_failure_leaves_an_older_drawing_alone() {
    let folder = folder("failure");
    let drawing = folder.join("fit.svg");
    fs::write(&drawing, "older").unwrap();
    let bad = ["fit", "tests/fixtures/fit/nan.csv", "--svg"];
    let run = Command::new(PROGRAM).args(bad).arg(&drawing).output().unwrap();
    assert_eq!(run.status.code(), Some(2));
    assert!(run.stdout.is_empty());
    assert_eq!(fs::read_to_string(&drawing).unwrap(), "older");
    // A folder cannot be replaced by a drawing, and the temporary file goes away.
    let taken = folder.join("taken.svg");
    fs::create_dir(&taken).unwrap();
    let run = Command::new(PROGRAM).args(["fit", MEASURED[0], "--svg"]).arg(&taken).output().unwrap();
    assert_eq!(run.status.code(), Some(1));
    let mut left = files(&folder);
    left.sort();
    assert_eq!(left, ["fit.svg", "taken.svg"]);
}

#[test]
fn a_closed_pipe_is_a_silent_end() {
    let mut run = Command::new(PROGRAM);
    run.arg("fit").args(MEASURED).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = run.spawn().unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), String::from_utf8(ended.stderr).unwrap()), (Some(0), String::new()));
}
