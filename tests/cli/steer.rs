//! `pollux-tune pause`, `resume`, `enqueue` and `rm`, with a head that runs a study on emulated machines and without one.

use std::{fs, process::Command};

use pollux_tune::{
    ids::TrialId,
    store::{Journal, Store},
    trials::engine::{Fact, JournalEntry},
};

use super::nodes::{Head, PROGRAM, folder, program};

#[test]
fn a_study_is_paused_and_resumed_while_it_runs_and_while_it_does_not() {
    let (root, file) = folder("pause");
    let mut head = Head::start(&file, &root);
    head.until("trial 1 launched on slots");
    let (code, said) = program("pause", &root, &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("FOLDER is paused: no trial is launched"), "{said}");
    assert!(said.ends_with("continue with: pollux-tune resume FOLDER\n"), "{said}");
    head.until("the study is paused: no trial is launched until");
    let (_, said) = program("pause", &root, &[]);
    assert!(said.starts_with("FOLDER is paused already"), "{said}");
    // Known parameters are taken note of meanwhile, all or none.
    let (code, said) = program("enqueue", &root, &["lr=7"]);
    assert!(
        code == Some(2) && said.contains("these parameters cannot be tried") && said.contains("`lr`"),
        "{said}"
    );
    let (code, said) = program("enqueue", &root, &["lr=0.25"]);
    assert_eq!(
        (code, said.as_str()),
        (Some(0), "enqueued: lr=0.25\nit is tried when there is room for another trial\n")
    );
    head.until("enqueued, to be tried next: lr=0.25");
    let (_, status) = program("status", &root, &[]);
    assert!(
        status.starts_with(
            "FOLDER is paused\n  paused  no trial is launched until: pollux-tune resume FOLDER\n"
        ),
        "{status}"
    );
    let (code, said) = program("rm", &root, &["--yes"]);
    assert!(code == Some(2) && said.contains("is run by process"), "{said}");
    assert_eq!(head.stop(), Some(130));

    // It is still paused when it is run again.
    let mut head = Head::start(&file, &root);
    head.until("the study is paused: no trial is launched until");
    let (_, status) = program("status", &root, &["--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).expect("it is JSON");
    assert_eq!(
        (&status["state"], &status["paused"], &status["version"]),
        (&"paused".into(), &true.into(), &1.into())
    );
    let (code, said) = program("resume", &root, &[]);
    assert_eq!((code, said.as_str()), (Some(0), "FOLDER continues: trials are launched again\n"));
    head.until("the study continues: trials are launched again");
    head.until("launched on slots");
    let (_, said) = program("resume", &root, &[]);
    assert_eq!(said, "FOLDER is not paused\n");
    assert_eq!(head.stop(), Some(130));

    // Nobody runs it: the journal takes note.
    let (_, said) = program("pause", &root, &[]);
    assert_eq!(said, "FOLDER is paused: a run of it launches no trial until: pollux-tune resume FOLDER\n");
    let (_, status) = program("status", &root, &[]);
    assert!(status.starts_with("FOLDER is stopped: run it again to resume\n  paused  no trial"), "{status}");
    let (_, said) = program("resume", &root, &[]);
    assert!(
        said.starts_with("FOLDER is no longer paused; run it with: pollux-tune run FOLDER/study.yaml"),
        "{said}"
    );
    let (code, said) = program("enqueue", &root, &["lr=0.5"]);
    assert!(
        code == Some(0) && said.starts_with("enqueued: lr=0.5\nit is the next trial of: pollux-tune run"),
        "{said}"
    );
}

#[test]
fn studies_and_trials_have_tags_and_notes() {
    let (root, _) = folder("tags");
    let mut store = Store::open(&root).expect("it can be made");
    let yaml = "{space: {lr: {log: [1e-5, 1]}}, objective: {minimize: loss}}".to_owned();
    let created = |trial| {
        let params = [("lr", 0.1.into())].into_iter().collect();
        Fact::TrialCreated { trial: TrialId(trial), params, point: vec![Some(0.5)] }
    };
    let facts = [Fact::StudyCreated { yaml }, created(0), created(1)];
    let entries = facts.map(|fact| JournalEntry { at_s: 1.0, fact });
    store.append(&entries).expect("it can be written");
    // Somebody runs it meanwhile: the store is still open.
    let done = |command: &str, arguments: &[&str]| {
        let (code, said) = program(command, &root, arguments);
        assert_eq!(code, Some(0), "{said}");
        said
    };
    assert_eq!(done("tag", &["paper", "baseline"]), "FOLDER: baseline, paper\n");
    assert_eq!(done("tag", &["--trial", "0,1", "good"]), "trial 0: good\ntrial 1: good\n");
    assert_eq!(done("tag", &["--trial", "1", "--remove", "good", "bad"]), "trial 1: no tags\n");
    assert_eq!(done("tag", &[]), "FOLDER: baseline, paper\ntrial 0: good\n");
    assert_eq!(done("note", &["first try\nof all"]), "FOLDER: first try\n  of all\n");
    assert_eq!(done("note", &["--trial", "1", "diverged"]), "trial 1: diverged\n");
    let status = done("status", &[]);
    assert!(
        status.contains("  tags    baseline, paper\n  note    first try\n          of all\n"),
        "{status}"
    );
    assert!(done("show", &["1"]).contains("  note    diverged\n"));
    let tagged = done("trials", &["--tag", "good", "--columns", "trial,tags,note"]);
    assert_eq!(tagged, "  trial  tags  note\n      0  good  -\n");
    let trials = done("trials", &["--json"]);
    let rows: Vec<serde_json::Value> =
        trials.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    assert_eq!(
        (&rows[0]["tags"], &rows[0]["note"]),
        (&serde_json::json!(["good"]), &serde_json::Value::Null)
    );
    assert_eq!((&rows[1]["tags"], &rows[1]["note"]), (&serde_json::json!([]), &"diverged".into()));
    assert_eq!(done("note", &["--trial", "1", ""]), "trial 1: no note\n");
    let (code, said) = program("tag", &root, &["--trial", "7", "good"]);
    assert_eq!((code, said.as_str()), (Some(2), "error: there is no trial 7 in FOLDER, 2 trials so far\n"));
    let (code, said) = program("tag", &root, &["two words"]);
    assert!(code == Some(2) && said.contains("a tag is a word of at most 64 characters"), "{said}");
    drop(store);
    let (_, said) = program("rm", &root, &["--yes"]);
    assert_eq!(said, "FOLDER is deleted\n", "tags and notes are of the study");
}

#[test]
fn a_study_is_deleted_and_what_is_not_of_it_stays() {
    let (root, _) = folder("rm");
    let mut store = Store::open(&root).expect("it can be made");
    let yaml = "{space: {lr: {log: [1e-5, 1]}}, objective: {minimize: loss}}".to_owned();
    store
        .append(&[JournalEntry { at_s: 1.0, fact: Fact::StudyCreated { yaml } }])
        .expect("it can be written");
    drop(store);
    // What is not of the study stays.
    fs::write(root.join("notes.txt"), "mine").expect("it can be written");
    let (code, said) = program("rm", &root, &[]);
    assert!(
        code == Some(2) && said.contains("delete this study with all checkpoints and logs? [y/N]"),
        "{said}"
    );
    assert!(said.ends_with("error: nothing was deleted; to delete without a question: --yes\n"), "{said}");
    let (code, said) = program("rm", &root, &["--yes"]);
    assert_eq!(
        (code, said.as_str()),
        (Some(0), "FOLDER is deleted; 1 file or folder that the study has not made stayed\n")
    );
    let left: Vec<_> =
        fs::read_dir(&root).expect("it is there").map(|entry| entry.expect("a name").file_name()).collect();
    assert_eq!(left, ["notes.txt"]);
    let (code, said) = program("rm", &root, &["--yes"]);
    assert_eq!((code, said.as_str()), (Some(2), "error: FOLDER holds no study\n"));
}

#[test]
fn events_of_a_run_are_lines_of_json() {
    let (root, file) = folder("json");
    let yaml = r#"{space: {x: {float: [0, 1]}}, objective: {minimize: loss}, trial: {command: [sh, -c, "echo '{\"loss\": 0.5}'"]}, search: {trials: 2, parallel: 1}}"#;
    fs::write(&file, yaml).expect("it can be written");
    let run = Command::new(PROGRAM)
        .args(["run", "--json", "--quiet", "--cpu", "--folder"])
        .args([&root, &file])
        .output();
    let run = run.expect("it can be run");
    assert!(run.status.success(), "{run:?}");
    let text = String::from_utf8(run.stdout).expect("it is text");
    let read = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("it is JSON");
    let events: Vec<serde_json::Value> = text.lines().map(read).collect();
    assert!(events.iter().all(|event| event["version"] == 1), "{text}");
    let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).cloned().collect::<Vec<_>>();
    assert_eq!((of("trial_created").len(), of("trial_done").len()), (2, 2), "{text}");
    assert_eq!(of("trial_done")[0]["values"], serde_json::json!({"loss": 0.5}));
    assert_eq!(of("measured")[0]["metrics"], serde_json::json!({"loss": 0.5}));
    let end = events.last().expect("there are events");
    assert_eq!((&end["event"], &end["outcome"]), (&"end".into(), &"done".into()), "{end}");
    assert_eq!(end["best"][0]["values"]["loss"], 0.5, "{end}");
}
