use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use pollux_tune::{
    actors::{Error, Runner},
    space::Study,
    trials::{
        End, State,
        engine::{Fact, Outcome},
    },
};

use crate::common::{ends, entries, folder};

/// A study whose trials are scripts.
fn study(script: &str, more: &str) -> Study {
    let script = serde_json::to_string(script).unwrap();
    let text = format!(
        "space: {{x: {{float: [0, 1]}}, deep: [false, true]}}\nobjective: {{minimize: loss}}\n\
         trial: {{command: [sh, -c, {script}], epochs: 5}}\nsearch: {{trials: 4, parallel: 2, {more}}}"
    );
    Study::from_yaml("study.yaml", &text).unwrap()
}

fn states(study: Study, folder: &Path) -> Vec<State> {
    let finished = Runner::new(study).folder(folder).run_command(0).unwrap();
    assert_eq!(finished.outcome, Outcome::Done);
    finished.search().trials().map(|trial| trial.state.clone()).collect()
}

#[test]
fn a_program_gets_its_parameters_and_its_metrics_are_heard() {
    let root = folder("command");
    let script = "echo starting; echo \"{\\\"epoch\\\": 1, \\\"loss\\\": $(sed 's/.*\"x\":\\([0-9.e-]*\\).*/\\1/' \
                  \"$POLLUX_TUNE_PARAMS_FILE\"), \\\"note\\\": \\\"text\\\"}\"; echo \"$POLLUX_TUNE_PARAMS\" >&2";
    let finished = Runner::new(study(script, "seed: 3")).folder(&root).run_command(0).unwrap();
    for trial in finished.search().trials() {
        let x = trial.params.float("x").unwrap();
        assert_eq!(trial.values(), Some(&[x][..]), "what was printed is what was tried");
        let log = fs::read_to_string(root.join(format!("logs/trial-{}.log", trial.id))).unwrap();
        assert!(log.contains("starting\n") && log.contains("\"deep\":"), "{log}");
    }
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn parameters_can_stand_in_the_arguments() {
    let root = folder("arguments");
    let text = "space: {x: {float: [0, 1]}}\nobjective: {minimize: loss}\nsearch: {trials: 2}\n\
                trial: {command: [echo, '{\"loss\": {x}}']}";
    let study = Study::from_yaml("study.yaml", text).unwrap();
    let finished = Runner::new(study).folder(&root).run_command(0).unwrap();
    for trial in finished.search().trials() {
        let x = trial.params.float("x").unwrap();
        assert_eq!(trial.values(), Some(&[x][..]));
    }
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn exit_codes_and_numbers_that_are_none_are_failures_with_reasons() {
    let root = folder("exit");
    let script = "case $POLLUX_TUNE_TRIAL in 0) echo oh no >&2; exit 3;; 1) echo '{\"loss\": NaN}';; 2) ;; \
                  *) echo '{\"loss\": 1}';; esac";
    let states = states(study(script, ""), &root);
    let reason = |state: &State| match state {
        State::Ended(End::Failed(reason)) => reason.clone(),
        other => panic!("{other:?}"),
    };
    let first = reason(&states[0]);
    // The cause is in the first line, which is all that many see.
    assert!(first.starts_with("it ended with exit code 3: oh no, see "), "{first}");
    assert!(first.ends_with("\noh no"), "{first}");
    assert!(reason(&states[1]).contains("`loss`"), "{states:?}");
    assert!(reason(&states[2]).contains("it ended without a value for `loss`"), "{states:?}");
    assert_eq!(states[3], State::Ended(End::Done(vec![1.0])));
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn a_program_that_was_killed_is_run_again() {
    let root = folder("killed");
    // The first attempt of each trial kills itself.
    let script = "if [ -e \"$POLLUX_TUNE_FOLDER/again\" ]; then echo '{\"loss\": 1}'; else \
                  touch \"$POLLUX_TUNE_FOLDER/again\"; kill -9 $$; fi";
    let states = states(study(script, ""), &root);
    assert!(states.iter().all(|state| *state == State::Ended(End::Done(vec![1.0]))), "{states:?}");
    assert_eq!(ends(&root), (0..4).map(|trial| (trial, 1)).collect());
    let killed = entries(&root).iter().filter(|fact| matches!(fact, Fact::TrialInterrupted { .. })).count();
    assert_eq!(killed, 4);
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn a_program_that_takes_too_long_is_ended_with_all_it_has_started() {
    let root = folder("late");
    let text = "space: {x: {float: [0, 1]}}\nobjective: {minimize: loss}\nsearch: {trials: 1}\n\
                trial: {command: [sh, -c, 'sleep 1000 & echo $! > child; wait'], timeout: 3s}";
    let text = text.replace("child", &root.with_extension("child").display().to_string());
    let finished =
        Runner::new(Study::from_yaml("study.yaml", &text).unwrap()).folder(&root).run_command(0).unwrap();
    let state = format!("{:?}", finished.search().trials().next().unwrap().state);
    assert!(state.contains("longer than the 3 s"), "{state}");
    let child = fs::read_to_string(root.with_extension("child")).unwrap();
    let runs = || {
        let command = fs::read(format!("/proc/{}/cmdline", child.trim())).unwrap_or_default();
        command.starts_with(b"sleep")
    };
    // It was killed, and ends when the kernel has time for it.
    let patience = Instant::now() + Duration::from_secs(60);
    while runs() {
        assert!(Instant::now() < patience, "it still runs");
        thread::yield_now();
    }
    fs::remove_file(root.with_extension("child")).unwrap();
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn a_program_that_is_not_there_is_told_before_anything_begins() {
    let root = folder("missing");
    let text =
        "space: {x: {float: [0, 1]}}\nobjective: {minimize: loss}\ntrial: {command: [no-such-program]}";
    let study = Study::from_yaml("study.yaml", text).unwrap();
    let error = Runner::new(study).folder(&root).run_command(0).err().unwrap();
    assert!(matches!(&error, Error::NoSuchProgram(name) if name == "no-such-program"), "{error}");
    assert!(!root.exists());
}

#[test]
fn another_study_is_not_mixed_in() {
    let root = folder("mixed");
    let first = study("echo '{\"loss\": 1}'", "");
    Runner::new(first.clone()).folder(&root).run_command(0).unwrap();
    let mut other = first;
    other.objectives[0].metric = "time".to_owned();
    let before = fs::read(root.join("study.yaml")).unwrap();
    let error = Runner::new(other).folder(&root).run_command(0).err().unwrap();
    assert!(matches!(error, Error::Differs { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("objective `loss` was removed: it was minimize; objective `time` was added"),
        "{text}"
    );
    assert_eq!(fs::read(root.join("study.yaml")).unwrap(), before);
    fs::remove_dir_all(&root).unwrap();
}
