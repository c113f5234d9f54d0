//! `pollux-tune ask-tell` as other programs meet it: real processes, killed and started again.

#![expect(clippy::unwrap_used, reason = "a test that cannot talk to the program has failed")]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use pollux_tune::{store::Reader, trials::engine::JournalEntry};
use serde_json::{Value, json};

const STUDY: &str = "
space:
  lr: {log: [1e-5, 1]}
  optimizer:
    choice:
      sgd: {momentum: {float: [0, 0.99]}}
      adam:
objective: {maximize: accuracy}
search: {algorithm: tpe, trials: 40, seed: 7, early_stopping: {rule: asha, grace: 1, reduction: 3}}
trial: {epochs: 9}
";

struct Search {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Search {
    fn start(arguments: &[&Path]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_pollux-tune"))
            .arg("ask-tell")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, input, output }
    }

    fn send(&mut self, line: &str) -> Value {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
        self.next()
    }

    fn next(&mut self) -> Value {
        let mut reply = String::new();
        self.output.read_line(&mut reply).unwrap();
        serde_json::from_str(&reply).unwrap()
    }

    /// Ends it without a warning.
    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Closes the input; returns the exit code and what it said besides.
    fn end(mut self) -> (Option<i32>, String) {
        drop(self.input.take());
        let mut notes = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut notes).unwrap();
        (self.process.wait().unwrap().code(), notes)
    }
}

/// An empty folder with a study file.
fn folder(name: &str) -> (PathBuf, PathBuf) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ask-tell").join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    let study = path.join("study.yaml");
    fs::write(&study, STUDY).unwrap();
    (path, study)
}

/// What earlier versions wrote and printed.
fn earlier(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/earlier").join(name);
    fs::read_to_string(path).unwrap()
}

/// What happened to the study in a folder.
fn facts(folder: &Path) -> Vec<JournalEntry> {
    Reader::open(folder).unwrap().entries(0).unwrap()
}

/// What a command prints.
fn printed(command: &str, arguments: &[&Path]) -> String {
    let run = Command::new(env!("CARGO_BIN_EXE_pollux-tune")).arg(command).args(arguments).output().unwrap();
    assert!(run.status.success(), "{run:?}");
    String::from_utf8(run.stdout).unwrap()
}

fn accuracy(trial: &Value, epochs: f64) -> f64 {
    let lr = trial["params"]["lr"].as_f64().unwrap().log10();
    let bonus = trial["params"]["momentum"].as_f64().map_or(0.0, |momentum| 0.1 * momentum);
    (0.9 - 0.1 * (lr + 2.0).abs() + bonus) * (1.0 - 0.5 / (1.0 + epochs))
}

/// Works on one trial until it ends; returns all that was said.
fn one_trial(search: &mut Search) -> Vec<Value> {
    let trial = search.send(r#"{"ask": 1}"#);
    let mut said = vec![trial.clone()];
    if trial.get("finished").is_some() {
        return said;
    }
    for epochs in [1.0, 3.0, 9.0] {
        let report =
            json!({"report": {"id": trial["id"], "epochs": epochs, "value": accuracy(&trial, epochs)}});
        said.push(search.send(&report.to_string()));
        if said.last().unwrap()["stop"] == true {
            return said;
        }
    }
    let tell = json!({"tell": {"id": trial["id"], "value": accuracy(&trial, 9.0)}});
    said.push(search.send(&tell.to_string()));
    said
}

#[test]
fn a_study_that_is_killed_after_every_trial_goes_on_as_if_it_were_not() {
    let (path, study) = folder("killed");
    let mut undisturbed = Search::start(&[&study]);
    let whole: Vec<Vec<Value>> = (0..41).map(|_| one_trial(&mut undisturbed)).collect();
    assert_eq!(undisturbed.end(), (Some(0), String::new()));
    assert!(whole[40][0]["finished"].as_str().unwrap().contains("all 40 trials"), "{:?}", whole[40]);
    let stopped = whole.iter().filter(|said| said.last().unwrap()["stop"] == true).count();
    assert!((5..35).contains(&stopped), "{stopped} of 40 were stopped");

    let kept = path.join("study");
    let arguments = [&study, Path::new("--folder"), &kept];
    for said in &whole {
        let mut search = Search::start(&arguments);
        assert_eq!(&one_trial(&mut search), said);
        search.kill();
    }

    let shown = |command: &str| {
        serde_json::from_str::<Value>(&printed(command, &[&kept, Path::new("--json")])).unwrap()
    };
    let best = shown("best")["best"][0].clone();
    let most = whole.iter().filter(|said| said.len() == 5).map(|said| accuracy(&said[0], 9.0));
    assert_eq!(best["values"]["accuracy"].as_f64(), most.reduce(f64::max));
    let importance = shown("importance");
    assert_eq!(importance["importance"][0]["name"], "lr", "{importance}");
}

#[test]
fn a_study_of_an_earlier_version_goes_on_as_it_would_have() {
    let (path, study) = folder("earlier");
    fs::write(&study, earlier("ask-tell.yaml")).unwrap();
    let (journal, text) = (path.join("journal.jsonl"), earlier("ask-tell.jsonl"));
    fs::write(&journal, &text).unwrap();
    assert_eq!(printed("best", &[&journal]), earlier("ask-tell.best.txt"));
    let arguments = [&study, Path::new("--journal"), &journal];
    let mut search = Search::start(&arguments);
    for line in earlier("ask-tell.next.jsonl").lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(search.send(&line["request"].to_string()), line["reply"], "{}", line["request"]);
    }
    let (code, notes) = search.end();
    let kept = path.join("journal");
    let expected = format!(
        "{}: imported into {kept}\n{kept}: resuming after 29 trials, 2 of them running\n",
        journal.display(),
        kept = kept.display()
    );
    assert_eq!((code, notes), (Some(0), expected));
    assert_eq!(fs::read_to_string(&journal).unwrap(), text, "it stays as it was");
    // The second time it goes on with the folder.
    let (code, notes) = Search::start(&arguments).end();
    let expected = format!("{}: resuming after 33 trials, 3 of them running\n", kept.display());
    assert_eq!((code, notes), (Some(0), expected));
}

#[test]
fn a_line_that_was_cut_off_is_dropped_and_its_trial_asked_for_again() {
    let (path, study) = folder("torn");
    fs::write(&study, earlier("ask-tell.yaml")).unwrap();
    let whole = earlier("ask-tell.jsonl");
    let last = whole.find(r#"{"asked":{"id":28"#).unwrap();
    let end = last + whole[last..].find('\n').unwrap();
    let ask_after = |cut: usize| {
        let (journal, kept) = (path.join(format!("{cut}.jsonl")), path.join(cut.to_string()));
        fs::write(&journal, &whole[..cut]).unwrap();
        let mut search = Search::start(&[&study, Path::new("--journal"), &journal]);
        let asked = search.send(r#"{"ask": 1}"#);
        assert_eq!(search.end().0, Some(0));
        assert_eq!(fs::read_to_string(&journal).unwrap(), whole[..cut]);
        assert_eq!(facts(&kept).iter().filter(|entry| entry.fact.kind() == "trial_created").count(), 29);
        asked
    };
    let undisturbed = ask_after(last);
    assert_eq!(undisturbed["id"], 28);
    for cut in [last + 1, last + 20, end] {
        assert_eq!(ask_after(cut), undisturbed, "cut after {cut} bytes");
    }
    // Cut off in its first line, it begins anew.
    let journal = path.join("30.jsonl");
    fs::write(&journal, &whole[..30]).unwrap();
    let mut search = Search::start(&[&study, Path::new("--journal"), &journal]);
    assert_eq!(search.send(r#"{"ask": 1}"#), Search::start(&[&study]).send(r#"{"ask": 1}"#));
}

#[test]
fn mistakes_are_answered_and_change_nothing() {
    let (path, study) = folder("mistakes");
    let kept = path.join("study");
    let mut search = Search::start(&[&study, Path::new("--folder"), &kept]);
    search.send(r#"{"ask": 1}"#);
    let before = facts(&kept);
    for (line, words) in [
        ("hello", "expected value"),
        (r#"{"aks": 1}"#, "unknown variant `aks`, expected one of `ask`, `report`, `tell`"),
        (r#"{"ask": -1}"#, "invalid value"),
        (r#"{"ask": 0}"#, "expected 1 or more"),
        (r#"{"tell": {"id": 5, "value": 1}}"#, "there is no trial 5, one was asked for"),
        (r#"{"tell": {"id": 0, "values": [1, 2]}}"#, "2 values were given, the study has one objective"),
        (r#"{"tell": {"id": 0}}"#, "`tell` needs an `id` and one of"),
        (r#"{"tell": {"id": 0, "value": 1, "sate": "done"}}"#, "unknown field `sate`"),
        (r#"{"report": {"id": 0, "epochs": -1, "value": 1}}"#, "its progress is -1"),
        (r#"{"enqueue": {"lr": 2, "optimizer": "adam"}}"#, "`lr`"),
        (r#"{"enqueue": {"lr": 0.1, "optimiser": "adam"}}"#, "did you mean `optimizer`?"),
        (r#"{"importance": {}}"#, "trials"),
    ] {
        let reply = search.send(line);
        assert!(reply["error"].as_str().is_some_and(|error| error.contains(words)), "{line}: {reply}");
        assert!(reply["line"].as_u64() > Some(1), "{reply}");
    }
    assert_eq!(facts(&kept), before);
    let told = search.send(r#"{"tell": {"id": 0, "value": NaN}}"#);
    assert_eq!(told, json!({"id": 0, "state": "failed"}));
    let again = search.send(r#"{"tell": {"id": 0, "value": 1}}"#);
    assert!(again["error"].as_str().unwrap().contains("trial 0"), "{again}");
    let status = search.send(r#"{"status": {}}"#);
    assert_eq!((&status["status"]["failed"], &status["status"]["running"]), (&json!(1), &json!([])));
    assert_eq!(search.end(), (Some(0), String::new()));
}

#[test]
fn known_parameters_come_first_and_survive_a_crash() {
    let (path, study) = folder("queue");
    let arguments = [&study, Path::new("--folder"), &path.join("study")];
    let mut search = Search::start(&arguments);
    let queued =
        [json!({"lr": 0.1, "optimizer": "adam"}), json!({"lr": 0.01, "optimizer": "sgd", "momentum": 0.5})];
    assert_eq!(search.send(&json!({"enqueue": queued[0]}).to_string()), json!({"enqueued": 1}));
    assert_eq!(search.send(&json!({"enqueue": queued[1]}).to_string()), json!({"enqueued": 2}));
    search.kill();
    let mut search = Search::start(&arguments);
    assert_eq!(search.send(r#"{"ask": 3}"#)["params"], queued[0]);
    assert_eq!(search.next()["params"], queued[1]);
    let third = search.next();
    search.kill();
    let mut search = Search::start(&arguments);
    let status = search.send(r#"{"status": {}}"#);
    let running: Vec<&Value> = (0..3).map(|at| &status["status"]["running"][at]["params"]).collect();
    assert_eq!(running, [&queued[0], &queued[1], &third["params"]], "a client that was killed too can go on");
    assert_ne!(search.send(r#"{"ask": 1}"#)["params"], third["params"]);
}

#[test]
fn an_earlier_study_guides_a_new_one() {
    let (path, study) = folder("warm");
    let (first, second) = (path.join("first"), path.join("second"));
    let mut search = Search::start(&[&study, Path::new("--folder"), &first]);
    for _ in 0..40 {
        one_trial(&mut search);
    }
    assert_eq!(search.end().0, Some(0));
    let best = |trial: Value| (trial["params"]["lr"].as_f64().unwrap().log10() + 2.0).abs();
    let warm = [&study, Path::new("--folder"), &second, Path::new("--warm-start"), &first];
    let mut search = Search::start(&warm);
    let mut away: Vec<f64> = vec![best(search.send(r#"{"ask": 9}"#))];
    away.extend((1..9).map(|_| best(search.next())));
    let (code, notes) = search.end();
    assert_eq!(
        (code, notes.trim()),
        (Some(0), format!("{}: learned from 40 of 40 trials", first.display()).as_str())
    );
    away.sort_by(f64::total_cmp);
    assert!(away[4] < 0.75, "half of nine trials at random are further off than 1.25: {away:?}");
    // The second time it knows already.
    let (code, notes) = Search::start(&warm).end();
    assert_eq!(code, Some(0));
    assert!(
        notes.contains("resuming after 9 trials, 9 of them running") && !notes.contains("learned"),
        "{notes}"
    );
}

#[test]
fn a_warm_start_that_was_cut_off_is_done_again() {
    let (path, study) = folder("half-warm");
    fs::write(&study, earlier("ask-tell.yaml")).unwrap();
    let first = path.join("first.jsonl");
    fs::write(&first, earlier("warm-start.jsonl")).unwrap();
    let mut search = Search::start(&[&study, Path::new("--warm-start"), &first]);
    let undisturbed = search.send(r#"{"ask": 1}"#);
    search.kill();
    let text = earlier("ask-tell.jsonl");
    for lines in [1, 5, 13, 14] {
        let second = path.join(format!("second-{lines}.jsonl"));
        let half: String = text.split_inclusive('\n').take(lines).collect();
        fs::write(&second, half).unwrap();
        let warm = [&study, Path::new("--journal"), &second, Path::new("--warm-start"), &first];
        let mut search = Search::start(&warm);
        assert_eq!(search.send(r#"{"ask": 1}"#), undisturbed, "after {lines} lines");
        search.kill();
        let kept = facts(&path.join(format!("second-{lines}")));
        assert_eq!(kept.iter().filter(|entry| entry.fact.kind() == "result_imported").count(), 12);
    }
    let other = earlier("ask-tell.yaml").replace("maximize: accuracy", "minimize: loss");
    fs::write(&study, other).unwrap();
    let (code, notes) = Search::start(&[&study, Path::new("--warm-start"), &first]).end();
    assert_eq!(code, Some(2));
    assert!(notes.contains("(maximize accuracy) than this study (minimize loss)"), "{notes}");
}

#[test]
fn a_trial_that_diverges_has_failed_and_hears_so_again() {
    let (path, study) = folder("diverged");
    let mut search = Search::start(&[&study, Path::new("--folder"), &path.join("study")]);
    search.send(r#"{"ask": 1}"#);
    let report = r#"{"report": {"id": 0, "epochs": 2, "value": NaN}}"#;
    let stop = search.send(report);
    assert_eq!(stop["stop"], true, "{stop}");
    assert_eq!(search.send(report), stop, "for clients that did not hear it");
    assert_eq!(search.send(r#"{"status": {}}"#)["status"]["failed"], 1);
    // Bytes that are no text are a mistake like others.
    search.input.as_mut().unwrap().write_all(b"{\"ask\": \xff}\n").unwrap();
    assert!(search.next()["error"].as_str().unwrap().contains("UTF-8"));
    assert_eq!(search.end().0, Some(0));
}

#[test]
fn a_study_that_cannot_be_searched_leaves_no_journal() {
    let (path, study) = folder("refused");
    let kept = path.join("study");
    let large = STUDY
        .replace("lr: {log: [1e-5, 1]}", "lr: {int: [1, 2000000]}")
        .replace("algorithm: tpe", "algorithm: grid");
    fs::write(&study, large).unwrap();
    let (code, notes) = Search::start(&[&study, Path::new("--folder"), &kept]).end();
    assert_eq!(code, Some(2));
    assert!(notes.contains("study.yaml: a grid of more than 1000000 points"), "{notes}");
    assert!(!kept.exists());
    fs::write(&study, STUDY).unwrap();
    for option in ["--folder", "--journal"] {
        let (code, notes) = Search::start(&[&study, Path::new(option), Path::new("/dev/full")]).end();
        assert_eq!(code, Some(2), "{notes}");
    }
}

#[test]
fn a_journal_is_not_shared_mixed_up_or_overwritten() {
    let (path, study) = folder("journal");
    let kept = path.join("study");
    let arguments = [&study, Path::new("--folder"), &kept];
    let mut search = Search::start(&arguments);
    search.send(r#"{"ask": 1}"#);
    let before = facts(&kept);
    let refused = |arguments: &[&Path], words: &str| {
        let (code, notes) = Search::start(arguments).end();
        assert_eq!(code, Some(2), "{notes}");
        assert!(notes.contains(words), "{notes}");
    };
    refused(&arguments, "in use by another process");
    search.kill();
    fs::write(&study, STUDY.replace("1e-5", "1e-4")).unwrap();
    refused(&arguments, "belongs to another study: parameter `");
    fs::write(&study, STUDY.replace("maximize", "minimize")).unwrap();
    refused(&arguments, "was maximize and is now minimize; give another folder\n");
    assert_eq!(facts(&kept), before);
    fs::write(&study, STUDY.replace("trials: 40", "trials: 1")).unwrap();
    let mut search = Search::start(&arguments);
    assert!(search.send(r#"{"ask": 1}"#)["finished"].as_str().unwrap().contains("raise `search.trials`"));
    assert_eq!(search.end().0, Some(0));
}

#[test]
fn what_cannot_be_imported_is_refused_and_leaves_nothing() {
    let (path, study) = folder("broken");
    let journal = path.join("old.jsonl");
    let arguments = [&study, Path::new("--journal"), &journal];
    let text = earlier("ask-tell.jsonl");
    let first: String = text.split_inclusive('\n').take(2).collect();
    let newer = text.replacen("\"version\":1", "\"version\":2", 1);
    for (text, words) in [
        (format!("{first}{{\"asked\": 1}}\n"), "old.jsonl:3:"),
        ("lr,accuracy\n0.1,0.9\n".to_owned(), "does not begin with a study"),
        (newer, "use a newer one"),
    ] {
        fs::write(&journal, &text).unwrap();
        let (code, notes) = Search::start(&arguments).end();
        assert_eq!(code, Some(2), "{notes}");
        assert!(notes.contains(words), "{notes}");
        assert_eq!(fs::read_to_string(&journal).unwrap(), text);
        assert!(!path.join("old").exists());
    }
    let into = [&study, Path::new("--folder"), &path.join("new"), Path::new("--journal"), &path.join("none")];
    assert_eq!(Search::start(&into).end().0, Some(2), "there is nothing to import");
}

#[test]
fn a_study_is_looked_at_like_any_other() {
    let (path, study) = folder("inspect");
    fs::write(&study, STUDY.replace("trials: 40", "trials: 3")).unwrap();
    let kept = path.join("study");
    let arguments = [&study, Path::new("--folder"), &kept];
    let mut search = Search::start(&arguments);
    let first = search.send(r#"{"ask": 2}"#);
    search.next();
    search.send(r#"{"report": {"id": 0, "epochs": 0.5, "value": 0.25}}"#);
    let status = printed("status", &[&kept]);
    assert!(
        status.contains("is running\n  trials  0 of 3 ended (2 running)\n  slots   2 of 2 in use"),
        "{status}"
    );
    search.kill();
    let mut search = Search::start(&arguments);
    search.send(r#"{"tell": {"id": 0, "value": 0.5}}"#);
    search.send(r#"{"tell": {"id": 1, "state": "failed", "reason": "out of memory"}}"#);
    search.send(r#"{"ask": 1}"#);
    search.send(r#"{"tell": {"id": 2, "value": 0.75}}"#);
    assert_eq!(search.end().0, Some(0));
    let status = printed("status", &[&kept]);
    assert!(
        status.contains("is done\n  trials  3 of 3 ended (2 done, 1 failed)\n  best    trial 2:"),
        "{status}"
    );
    let trials: Vec<Value> = printed("trials", &[&kept, Path::new("--json")])
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!((&trials[0]["params"], &trials[0]["epochs"]), (&first["params"], &json!(0.5)));
    let shown = printed("show", &[&kept, Path::new("1")]);
    assert!(shown.contains("failed: out of memory"), "{shown}");
    let picture = printed("timeline", &[&kept]);
    assert_eq!(picture.trim(), kept.join("timeline.svg").display().to_string());
    let lanes = Reader::open(&kept).unwrap().timeline().unwrap();
    let lanes: Vec<_> = lanes.iter().map(|span| (span.trial.0, span.generation, span.slot.node.0)).collect();
    assert_eq!(lanes, [(0, 1, 0), (1, 1, 1), (0, 2, 0), (1, 2, 1), (2, 1, 0)]);
    // All is over, so that looking again changes nothing.
    let before = facts(&kept);
    assert_eq!(Search::start(&arguments).end().0, Some(0));
    assert_eq!(facts(&kept), before);
}
