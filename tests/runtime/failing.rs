//! Trials that fail inside of studies, of functions, programs and emulated training: the study goes on to its end, and each has the
//! right reason. `tests/elastic/failing.rs` has those of real training.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use pollux_tune::{
    actors::Runner,
    space::Study,
    trials::{End, engine::Metrics},
};

use crate::{
    accounts::{in_time, settle},
    common::folder,
};

/// Runs the program with a study file, to its end.
fn run_program(place: &Path, yaml: &str, more: &[&str]) -> Option<i32> {
    let file = place.with_extension("yaml");
    fs::write(&file, yaml).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pollux-tune"));
    command.arg("run").arg(&file).arg("--folder").arg(place).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = in_time(move || command.status().unwrap());
    fs::remove_file(&file).unwrap();
    status.code()
}

/// Looks at what came of each trial, by number: a part of the reason, or nothing for a trial that is done.
fn check(place: &Path, trials: u32, expected: impl Fn(u32, &End) -> &'static str) {
    for (number, account) in settle(place, trials) {
        let wanted = expected(number, &account.end);
        match &account.end {
            End::Done(_) => assert!(wanted.is_empty(), "trial {number} is done"),
            End::Failed(reason) => {
                assert!(!wanted.is_empty() && reason.contains(wanted), "trial {number}: {reason}");
            }
            end => panic!("trial {number}: {end:?}"),
        }
    }
    fs::remove_dir_all(place).unwrap();
}

/// A program that does something else in each trial, and what comes of it.
const PROGRAM: [(&str, &str); 10] = [
    ("echo '{\"loss\": 1}'", ""),
    ("echo oh no >&2; exit 3", "exit code 3"),
    ("echo '{\"loss\": 1}'; exit 1", "exit code 1"),
    ("echo '{\"loss\": NaN}'", "`loss`"),
    ("echo '{\"accuracy\": 1}'", "`loss`"),
    ("exit 0", "`loss`"),
    ("exec ./no-such-program", "exit code 127"),
    ("cat no-such-data && echo '{\"loss\": 1}'", "exit code 1"),
    ("echo '{\"loss\": '; echo '{\"loss\": 2}'", ""),
    // As the kernel does where memory ends; the second attempt has more luck.
    ("if mkdir once 2>/dev/null; then kill -9 $$; fi; echo '{\"loss\": 3}'", ""),
];

fn programs(parallel: u32, trials: u32) -> String {
    let cases = (0..).zip(PROGRAM).map(|(number, (script, _)): (u32, _)| format!("{number}) {script};;"));
    let script = format!(
        "cd \"$POLLUX_TUNE_FOLDER\"; case $((POLLUX_TUNE_TRIAL % {})) in {} esac",
        PROGRAM.len(),
        cases.collect::<Vec<_>>().join(" ")
    );
    format!(
        "space: {{x: {{float: [0, 1]}}}}\nobjective: {{minimize: loss}}\n\
         trial: {{command: [sh, -c, {}], epochs: 5}}\n\
         search: {{trials: {trials}, parallel: {parallel}, algorithm: random}}",
        serde_json::to_string(&script).unwrap()
    )
}

const fn of_program(number: u32, _: &End) -> &'static str {
    PROGRAM[number as usize % PROGRAM.len()].1
}

#[test]
fn programs_that_fail_one_after_the_other() {
    let place = folder("failing-one");
    let study = Study::from_yaml("study.yaml", &programs(1, 10)).unwrap();
    let runner = Runner::new(study).folder(&place);
    in_time(move || runner.run_command(0).map(drop).unwrap());
    check(&place, 10, of_program);
}

#[test]
fn programs_that_fail_side_by_side() {
    let place = folder("failing-many");
    assert_eq!(run_program(&place, &programs(4, 40), &[]), Some(0));
    check(&place, 40, of_program);
}

/// Whatever the exit code says of it, each of them is in the books.
#[test]
fn programs_that_all_fail() {
    let place = folder("failing-all");
    let study = programs(3, 6).replace(&format!("% {}", PROGRAM.len()), "% 3 + 1");
    let code = run_program(&place, &study, &[]);
    assert!(matches!(code, Some(0 | 1)), "{code:?}");
    check(&place, 6, |number, _| PROGRAM[number as usize % 3 + 1].1);
}

type Answer = Result<Metrics, Box<dyn std::error::Error + Send + Sync>>;

fn function(number: u32) -> Answer {
    let loss = |value: f64| -> Answer { Ok([("loss".to_owned(), value.into())].into()) };
    match number % 6 {
        0 => Err("no luck".into()),
        1 => panic!("out of bounds"),
        2 => loss(f64::NAN),
        3 => Ok(Metrics::new()),
        4 => Err(Box::new(std::io::Error::from(std::io::ErrorKind::NotFound))),
        _ => loss(1.0),
    }
}

#[test]
fn functions_that_fail() {
    for parallel in [1, 4] {
        let place = folder(&format!("failing-functions-{parallel}"));
        let text = format!(
            "space: {{x: {{float: [0, 1]}}}}\nobjective: {{minimize: loss}}\n\
             search: {{trials: 24, parallel: {parallel}, algorithm: random}}"
        );
        let runner = Runner::new(Study::from_yaml("study.yaml", &text).unwrap()).folder(&place);
        in_time(move || runner.run_function(|trial| function(trial.number() + 5)).map(drop).unwrap());
        let expected = ["no luck", "it panicked: out of bounds", "`loss`", "`loss`", "not found", ""];
        check(&place, 24, |number, _| expected[(number as usize + 5) % 6]);
    }
}

/// Trainings that are modelled, on two nodes. Nobody has measured a network without end.
fn emulated(space: &str, objective: &str, trials: u32, parallel: u32) -> String {
    format!(
        "space: {{{space}}}\nobjective: {{maximize: {objective}}}\n\
         trial: {{trainable: cifar10, epochs: 2, checkpoint_interval: 20s}}\n\
         search: {{trials: {trials}, parallel: {parallel}, algorithm: grid}}\ncluster: 2x2xt4\n"
    )
}

const EMULATED: [&str; 3] = ["--emulate", "--time-scale", "0.002"];

#[test]
fn emulated_trials_that_fail() {
    for (parallel, widths) in
        [(1, "[64, 1e200, 96]"), (3, "[64, 1e200, 96, 1e201, 1e202]"), (2, "[1e200, 1e201, 1e202]")]
    {
        let place = folder(&format!("failing-emulated-{parallel}"));
        let trials = widths.matches(',').count() as u32 + 1;
        let study = emulated(&format!("width: {widths}"), "accuracy", trials, parallel);
        let code = run_program(&place, &study, &EMULATED);
        assert!(matches!(code, Some(0 | 1)), "{code:?}");
        for (number, account) in settle(&place, trials) {
            let is_known = account.params.float("width").unwrap() < 1e100;
            match &account.end {
                End::Done(_) => assert!(is_known, "trial {number} is done"),
                End::Failed(reason) => {
                    assert!(!is_known && reason.contains("was not measured"), "trial {number}: {reason}");
                }
                end => panic!("trial {number}: {end:?}"),
            }
        }
        fs::remove_dir_all(&place).unwrap();
    }
}

#[test]
fn emulated_trials_without_the_metric() {
    let place = folder("failing-metric");
    let study = emulated("width: [64, 96, 128]", "precision", 3, 2);
    let code = run_program(&place, &study, &EMULATED);
    assert!(matches!(code, Some(0 | 1)), "{code:?}");
    check(&place, 3, |_, _| "`precision`");
}

/// What lies where checkpoints will be is no reason to stand still, whatever becomes of it: trials one after the other need the slots
/// of the one before.
#[test]
fn checkpoints_that_cannot_be_read() {
    for (parallel, bytes) in [(1, &b"x"[..]), (3, b""), (1, b"{\"emulated\":\"cifar10\",\"state\":{}}")] {
        let place: PathBuf = folder(&format!("failing-checkpoint-{parallel}-{}", bytes.len()));
        let study = emulated("width: [64, 96, 128]", "accuracy", 3, parallel);
        let first = [&EMULATED[..], &["--trials", "1"]].concat();
        assert_eq!(run_program(&place, &study, &first), Some(0));
        fs::write(place.join("checkpoints/trial-1"), bytes).unwrap();
        assert_eq!(run_program(&place, &study, &EMULATED), Some(0));
        let done = settle(&place, 3).values().filter(|account| matches!(account.end, End::Done(_))).count();
        assert_eq!(done, 3, "it starts from the beginning");
        fs::remove_dir_all(&place).unwrap();
    }
}
