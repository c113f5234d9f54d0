//! The program as a user meets it: transcripts in `tests/cmd`, files it writes, pipes that close.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use pollux_tune::{
    store::{Journal, Store},
    trials::engine::{Fact, JournalEntry},
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

const STUDY: &str = "space: {lr: {log: [1e-4, 1]}}\nobjective: {minimize: loss}\n";

/// A folder with a study that has not begun, one that another process runs, things that are no studies, and study files.
fn workplace(name: &str) -> (PathBuf, Store) {
    let root = folder(name);
    let begin = |folder: &str| {
        let mut store = Store::open(&root.join(folder)).expect("it can be made");
        let fact = Fact::StudyCreated { yaml: STUDY.to_owned() };
        store.append(&[JournalEntry { at_s: 0.0, fact }]).expect("it can be written");
        store
    };
    drop(begin("study"));
    let running = begin("running");
    for folder in ["garbage", "taken.svg"] {
        fs::create_dir(root.join(folder)).expect("it can be made");
    }
    for (file, text) in [
        ("garbage/journal.sqlite", "not a database, and longer than its header is. ".repeat(9)),
        ("journal.jsonl", "{}\n".to_owned()),
        ("wrong.yaml", "space: {}\n".to_owned()),
        ("plain.yaml", STUDY.to_owned()),
        ("missing.yaml", format!("{STUDY}trial: {{command: [./no-such-program]}}\n")),
        ("program.yaml", format!("{STUDY}trial: {{command: [sh]}}\n")),
        ("trainable.yaml", format!("{STUDY}trial: {{trainable: cifar10}}\n")),
        ("wide.yaml", format!("{STUDY}trial: {{trainable: cifar10, min_gpus: 4}}\n")),
    ] {
        fs::write(root.join(file), text).expect("it can be written");
    }
    (root, running)
}

/// Every kind of error: what was typed, the exit code, and stderr, of which `...` is any text.
const ERRORS: [(&str, i32, &str); 31] = [
    // The command line.
    ("run", 2, "Run a study, or resume it..."),
    ("status study --no-such-flag", 2, "error: unexpected argument '--no-such-flag' found..."),
    (
        "run plain.yaml --policy best",
        2,
        "error: invalid value 'best' for '--policy <POLICY>': there is no policy `best`; expected one of ...",
    ),
    // Files that cannot be read.
    ("check none.yaml", 2, "error: cannot read none.yaml: No such file or directory (os error 2)"),
    ("fit none.csv", 2, "error: cannot read none.csv: No such file or directory (os error 2)"),
    ("simulate workload none.csv", 2, "error: cannot read none.csv: No such file or directory (os error 2)"),
    ("best none.jsonl", 2, "error: cannot read none.jsonl: No such file or directory (os error 2)"),
    // Files that say something wrong.
    ("check wrong.yaml", 2, "wrong.yaml:...error: 1 mistake in 1 file"),
    ("fit plain.yaml", 2, "error: plain.yaml:1: no column `step_time` among ..."),
    (
        "best journal.jsonl",
        2,
        "error: journal.jsonl is not a journal of `ask-tell`: it does not begin with a study",
    ),
    (
        "simulate study plain.yaml",
        2,
        "error: plain.yaml names no cluster: add a line such as `cluster: 2x8xa100`",
    ),
    // What cannot be run.
    (
        "run plain.yaml",
        2,
        "error: the study file says none of `trial.python`, `trial.module`, `trial.trainable` and `trial.command`: add one of them",
    ),
    (
        "run missing.yaml",
        2,
        "...error: the study in studies/missing did not finish: `trial.command` names the program `./no-such-program`, which is not there: ...",
    ),
    (
        "run plain.yaml --emulate 1x1xt4",
        2,
        "error: only trainables can be emulated, and plain.yaml runs neither",
    ),
    ("run trainable.yaml --emulate", 2, "error: trainable.yaml names no `cluster` to emulate: ..."),
    (
        "run trainable.yaml --emulate 4xt4",
        2,
        "error: `--emulate 4xt4`: `4xt4` describes no nodes: write NODESxGPUSxTYPE, ...",
    ),
    (
        "run trainable.yaml --emulate 1x4xh100",
        2,
        "error: `cifar10` was not measured on GPUs of type `h100`; expected one of ...",
    ),
    (
        "run wide.yaml --emulate 2x1xa100,1x3xt4",
        2,
        "error: `trial.min_gpus` is 4, but there are only 3 slots of one type",
    ),
    // Studies on disk.
    ("status none", 2, "error: none holds no study"),
    ("timeline none", 2, "error: none holds no study"),
    ("best garbage", 2, "error: garbage/journal.sqlite is not the journal of a study: give another folder"),
    (
        "run program.yaml --folder garbage",
        2,
        "error: garbage/journal.sqlite is not the journal of a study: ...",
    ),
    (
        "run program.yaml --folder running",
        2,
        "...error: the study in running is run by another process: wait for it to end, or stop it (`pollux-tune stop`)",
    ),
    (
        "run program.yaml --folder plain.yaml/x",
        2,
        "error: cannot write plain.yaml/...: give a folder that can be written: Not a directory (os error 20)",
    ),
    ("show study 7", 2, "error: there is no trial 7 in study, 0 trials so far"),
    (
        "importance study --objective accuracy",
        2,
        "error: there is no objective `accuracy` in study; expected one of loss",
    ),
    ("importance study", 2, "error: study: ..."),
    // What the system refuses.
    (
        "timeline study --svg none/a.svg",
        1,
        "error: cannot write none/a.svg: No such file or directory (os error 2)",
    ),
    ("timeline study --svg taken.svg", 1, "error: cannot write taken.svg: Is a directory (os error 21)"),
    (
        "simulate paper plain.yaml --only autoscale",
        1,
        "error: cannot make plain.yaml: File exists (os error 17)",
    ),
    (
        "ask-tell plain.yaml --journal /dev/full",
        2,
        "error: /dev/full is not a file: give the name of a file that can be read again",
    ),
];

/// Whether a text is as expected, where `...` is any text.
fn is_like(text: &str, expected: &str) -> bool {
    let mut parts = expected.split("...");
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    for part in parts {
        let Some(at) = rest.rfind(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.is_empty()
}

#[test]
fn errors_have_their_exit_codes_and_messages() {
    let (root, _running) = workplace("errors");
    let mut wrong = Vec::new();
    for (line, code, stderr) in ERRORS {
        let mut command = Command::new(PROGRAM);
        let ended = command.args(line.split(' ')).current_dir(&root).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        if ended.status.code() != Some(code) || !is_like(said.trim_end(), stderr) {
            wrong.push(format!("{line}: {:?}, {said}", ended.status.code()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn output_and_input_that_fail_are_failures() {
    let (root, _running) = workplace("streams");
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let run = |line: &str, stdin: Stdio, stdout: Stdio| {
        let mut command = Command::new(PROGRAM);
        command.args(line.split(' ')).current_dir(&root).stdin(stdin).stdout(stdout).stderr(Stdio::piped());
        let ended = command.spawn().unwrap().wait_with_output().unwrap();
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    };
    let no_space = "error: cannot write the output: No space left on device (os error 28)\n";
    for line in ["status study", "schema", "check plain.yaml", "timeline study"] {
        assert_eq!(run(line, Stdio::null(), full().into()), (Some(1), no_space.to_owned()), "{line}");
    }
    let directory = fs::File::open(&root).unwrap();
    let unreadable = "error: cannot read the input: Is a directory (os error 21)\n";
    let ended = run("ask-tell plain.yaml", directory.into(), Stdio::null());
    assert_eq!(ended, (Some(1), unreadable.to_owned()));
}
