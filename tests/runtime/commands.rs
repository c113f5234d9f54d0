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

/// A study of scripts with these settings of a trial and of the search.
fn custom(script: &str, trial: &str, search: &str) -> Study {
    let script = serde_json::to_string(script).unwrap();
    let text = format!(
        "space: {{x: {{float: [0, 1]}}, text: ['{{x}} $HOME']}}\nobjective: {{minimize: loss}}\n\
         trial: {{command: [sh, -c, {script}, '{{text}}', '{{slots}}'], {trial}}}\nsearch: {{{search}}}"
    );
    Study::from_yaml("study.yaml", &text).unwrap()
}

#[test]
fn a_program_on_several_gpus_is_told_which_and_where_to_meet() {
    let root = folder("several-gpus");
    fs::create_dir_all(&root).unwrap();
    let script = "echo \"$POLLUX_TUNE_SLOTS $CUDA_VISIBLE_DEVICES $PET_NPROC_PER_NODE $MASTER_ADDR $MASTER_PORT $COLOUR $PWD [$0] $1\" \
                  >> seen; echo '{\"loss\": 1}'";
    let trial = format!("gpus: 2, env: {{COLOUR: red}}, folder: '{}'", root.display());
    let study = custom(script, &trial, "trials: 6, parallel: 2");
    let finished = Runner::new(study).folder(root.join("study")).slots(4).run_command(4).unwrap();
    assert_eq!(finished.outcome, Outcome::Done);
    let seen = fs::read_to_string(root.join("seen")).unwrap();
    assert_eq!(seen.lines().count(), 6, "{seen}");
    for line in seen.lines() {
        let words: Vec<&str> = line.splitn(7, ' ').collect();
        assert!(["0,1", "2,3"].contains(&words[1]), "{line}");
        assert_eq!((words[0], words[2], words[3], words[5]), ("2", "2", "127.0.0.1", "red"), "{line}");
        assert!(words[4].parse::<u16>().is_ok_and(|port| port > 0), "{line}");
        // What comes from a value is not filled in again.
        assert_eq!(words[6], format!("{} [{{x}} $HOME] 2", root.canonicalize().unwrap().display()));
    }
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn two_programs_share_a_gpu() {
    let root = folder("share");
    fs::create_dir_all(&root).unwrap();
    // Each waits for the other one.
    let script = "echo $CUDA_VISIBLE_DEVICES > $POLLUX_TUNE_TRIAL; while [ ! -s 0 ] || [ ! -s 1 ]; do sleep 0.02; done; \
                  echo '{\"loss\": 1}'";
    let trial = format!("gpus: 0.5, timeout: 2m, folder: '{}'", root.display());
    let study = custom(script, &trial, "trials: 2, parallel: 2");
    let finished = Runner::new(study).folder(root.join("study")).slots(1).run_command(1).unwrap();
    assert!(finished.search().trials().all(|trial| trial.values() == Some(&[1.0][..])));
    for trial in ["0", "1"] {
        assert_eq!(fs::read_to_string(root.join(trial)).unwrap().trim(), "0");
    }
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn metrics_can_come_by_a_file_and_other_output_is_ignored() {
    let root = folder("metrics-file");
    let script = "echo '{\"epoch\": 7, \"lr\": 3}'; printf '\\r 10%%|#  |\\r 20%%|## |'; \
                  echo '{\"epoch\": 2, \"loss\": 5}' >> $POLLUX_TUNE_METRICS; printf '{\"loss\": 3}' >> $POLLUX_TUNE_METRICS";
    let study = custom(script, "epochs: 9", "trials: 1");
    let finished = Runner::new(study).folder(&root).run_command(0).unwrap();
    let trial = finished.search().trials().next().unwrap();
    assert_eq!(trial.values(), Some(&[3.0][..]));
    let measured = entries(&root).into_iter().filter_map(|fact| match fact {
        Fact::Measured { metrics, .. } => Some(metrics),
        _ => None,
    });
    assert!(measured.into_iter().all(|metrics| metrics.keys().all(|name| name == "loss")));
    fs::remove_dir_all(&root).unwrap();
}

/// Its epochs take a time that becomes shorter with more slots; it keeps how far it is in its folder.
#[test]
fn a_program_is_restarted_with_more_slots_when_that_pays() {
    let root = folder("restart");
    let script = "cd $POLLUX_TUNE_FOLDER; n=$(cat n 2>/dev/null || echo 0); echo \"$n $POLLUX_TUNE_SLOTS\" >> starts; \
                  trap 'echo $n > n; exit 0' TERM; \
                  while [ $n -lt 600 ]; do sleep $(echo \"0.4 / $POLLUX_TUNE_SLOTS\" | awk '{print $1 / $3}'); n=$((n + 1)); \
                  echo \"{\\\"epoch\\\": $n, \\\"loss\\\": 1}\"; [ $POLLUX_TUNE_SLOTS -gt 1 ] && [ $n -gt 5 ] && exit 0; done";
    let study = custom(script, "epochs: 600, gpus: 1..2, elastic: restart", "trials: 1, parallel: 1");
    let finished = Runner::new(study).folder(&root).slots(2).run_command(0).unwrap();
    assert_eq!(finished.outcome, Outcome::Done);
    assert_eq!(finished.search().trials().next().unwrap().values(), Some(&[1.0][..]));
    let starts = fs::read_to_string(root.join("checkpoints/trial-0/starts")).unwrap();
    let starts: Vec<(u32, u32)> = starts
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(n, slots)| (n.parse().unwrap(), slots.parse().unwrap()))
        .collect();
    assert_eq!((starts[0], starts[1].1), ((0, 1), 2), "{starts:?}");
    assert!(starts[1].0 > 1, "it resumes from what it has saved: {starts:?}");
    fs::remove_dir_all(&root).unwrap();
}
