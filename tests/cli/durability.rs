//! What is acted on is on the disk first: seen from outside, by a library that writes down the order of both.

#![expect(clippy::unwrap_used, reason = "a test that cannot talk to the program has failed")]

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// An empty folder for one test.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("durability").join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// The program with the library in it, which writes into `order` in the folder.
fn watched(folder: &Path) -> Command {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/durability/order.c");
    let library = folder.join("order.so");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
    assert!(compiled.unwrap().success());
    let mut program = Command::new(env!("CARGO_BIN_EXE_pollux-tune"));
    program.env("LD_PRELOAD", library).env("ORDER_OF_THINGS", folder.join("order"));
    program
}

/// Whether the log of the journal was waited for, in each part of the order that ends with `mark`.
fn waits_before(order: &str, mark: &str) -> Vec<bool> {
    let mut waited = false;
    let mut found = Vec::new();
    for line in order.lines() {
        match line {
            "disk journal.sqlite-wal" => waited = true,
            line if line == mark => found.push(std::mem::take(&mut waited)),
            _ => {}
        }
    }
    found
}

#[test]
fn what_was_asked_and_told_is_on_the_disk_before_it_is_answered() {
    let folder = folder("ask-tell");
    let study = folder.join("study.yaml");
    fs::write(&study, "space: {x: {float: [0, 1]}}\nobjective: {minimize: loss}\nsearch: {trials: 9}\n")
        .unwrap();
    let mut search = watched(&folder)
        .arg("ask-tell")
        .arg(&study)
        .args([Path::new("--folder"), &folder.join("study")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, mut output) =
        (search.stdin.take().unwrap(), BufReader::new(search.stdout.take().unwrap()));
    for trial in 0..5 {
        for request in
            ["{\"ask\": 1}".to_owned(), format!("{{\"tell\": {{\"id\": {trial}, \"value\": 0.5}}}}")]
        {
            writeln!(input, "{request}").unwrap();
            let mut reply = String::new();
            output.read_line(&mut reply).unwrap();
            assert!(!reply.contains("error"), "{request}: {reply}");
        }
    }
    drop(input);
    assert!(search.wait().unwrap().success());
    let order = fs::read_to_string(folder.join("order")).unwrap();
    assert_eq!(waits_before(&order, "said"), [true; 10], "{order}");
}

#[test]
fn a_trial_is_on_the_disk_before_it_begins() {
    let order = order_of_a_run("run", &[]);
    assert_eq!(waits_before(&order, "begun"), [true; 4], "{order}");
}

/// The system takes what it could not write for written, so another wait for the disk would succeed without it.
#[test]
fn after_a_wait_that_failed_everything_is_written_again_before_the_next_one() {
    let order = order_of_a_run("again", &[("FULL_AT", "3")]);
    assert_eq!(waits_before(&order, "begun"), [true; 4], "{order}");
    let mut rest = order.lines().skip_while(|line| *line != "full journal.sqlite-wal").skip(1);
    let is_of_log = |line: &&str| line.ends_with(" journal.sqlite-wal");
    assert_eq!(rest.find(is_of_log), Some("wrote journal.sqlite-wal"), "{order}");
    assert_eq!(
        rest.find(|line| is_of_log(line) && !line.starts_with("wrote")),
        Some("disk journal.sqlite-wal")
    );
}

/// What happens, in its order, when a study of four trials runs with these variables.
fn order_of_a_run(name: &str, variables: &[(&str, &str)]) -> String {
    let folder = folder(name);
    let study = folder.join("study.yaml");
    let script = r#"echo begun >> \"$ORDER_OF_THINGS\"; echo '{\"loss\": 1}'"#;
    let trial = format!("trial: {{command: [sh, -c, \"{script}\"]}}");
    let search = "search: {trials: 4, parallel: 1}";
    fs::write(
        &study,
        format!("space: {{x: {{float: [0, 1]}}}}\nobjective: {{minimize: loss}}\n{trial}\n{search}\n"),
    )
    .unwrap();
    let run = watched(&folder)
        .arg("run")
        .arg(&study)
        .arg("--cpu")
        .arg("--folder")
        .arg(folder.join("study"))
        .envs(variables.iter().copied())
        .output();
    let run = run.unwrap();
    assert!(run.status.success(), "{run:?}");
    fs::read_to_string(folder.join("order")).unwrap()
}
