//! `status`, `trials`, `show` and `best` of a study in its folder, also of one that an earlier version wrote.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use pollux_tune::{
    alloc::Reason,
    goodput::BatchPlan,
    ids::{Generation, GpuType, NodeId, SlotId, StudyId, TrialId},
    internal::checkpoint::make_checkpoint,
    store::{Folder, Journal, Reader, Store},
    trials::{
        engine::{Checkpoint, Fact, JournalEntry, Metrics, Target},
        group::Task,
    },
};

const YAML: &str = "
space: {lr: {log: [1e-5, 1]}, act: [relu, gelu]}
objective: {maximize: accuracy}
trial: {trainable: toy, epochs: 10}
search: {trials: 4}
";

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("inspect").join(name);
    if path.exists() {
        fs::remove_dir_all(&path).expect("what an earlier run left can be removed");
    }
    path
}

fn slots(places: &[(u32, u32)]) -> Vec<SlotId> {
    places.iter().map(|&(node, index)| SlotId { node: NodeId(node), index }).collect()
}

fn created(trial: u32, lr: f64) -> Fact {
    let params = [("lr", lr.into()), ("act", "relu".into())].into_iter().collect();
    Fact::TrialCreated { trial: TrialId(trial), params, point: vec![Some(0.5), Some(0.0)] }
}

fn started(trial: u32, generation: u32, to: &[(u32, u32)], from: &[(u32, u32)]) -> Fact {
    let batch = Some(BatchPlan { per_gpu: 64, accumulation: 0 });
    Fact::TrialStarted {
        trial: TrialId(trial),
        generation: Generation(generation),
        slots: slots(to),
        batch,
        holders: slots(from),
    }
}

fn measured(trial: u32, epochs: f64, accuracy: f64) -> Fact {
    let metrics = Metrics::from([("accuracy".to_owned(), accuracy.into())]);
    let (generation, number, steps) = (1, 1, vec![]);
    let trial = TrialId(trial);
    Fact::Measured {
        trial,
        generation: Generation(generation),
        number,
        epochs,
        metrics,
        gpu_type: None,
        steps,
        noise: None,
        noise_batch: None,
    }
}

/// Three of four trials: one done, one stopped, one that has lost a worker.
fn facts() -> Vec<(f64, Fact)> {
    let gpu_type = GpuType::new("t4").expect("it is a name");
    let target = |trial, places: &[(u32, u32)]| {
        let (trial, slots) = (TrialId(trial), slots(places));
        Target { trial, slots, speedup: 1.5, reason: Reason::Started }
    };
    vec![
        (1000.0, Fact::StudyCreated { yaml: YAML.to_owned() }),
        (1000.0, Fact::HeadStarted {}),
        (1001.0, Fact::NodeJoined { node: NodeId(0), name: String::new(), gpu_type, island: 0, slots: 4 }),
        (1002.0, created(0, 0.1)),
        (1002.5, created(1, 0.01)),
        (1003.0, created(2, 0.001)),
        (
            1004.0,
            Fact::PlanAdopted {
                targets: vec![target(0, &[(0, 0)]), target(1, &[(0, 1)]), target(2, &[(0, 2), (0, 3)])],
                fitness: 1.0,
                bound: None,
            },
        ),
        (1004.0, started(0, 1, &[(0, 0)], &[])),
        (1004.0, started(1, 1, &[(0, 1)], &[])),
        (1004.0, started(2, 1, &[(0, 2), (0, 3)], &[])),
        (1005.0, Fact::GroupFormed { trial: TrialId(2), generation: Generation(1) }),
        (1010.0, measured(0, 10.0, 0.9)),
        (1010.0, Fact::TrialDone { trial: TrialId(0), values: vec![0.9] }),
        (1011.0, measured(1, 1.0, 0.1)),
        (1011.0, Fact::TrialStopped { trial: TrialId(1), reason: "rank 2 of 2".to_owned().into() }),
        (
            1012.0,
            Fact::Checkpointed {
                trial: TrialId(2),
                checkpoint: Checkpoint { name: "2".to_owned(), epochs: 2.0 },
            },
        ),
        (1013.0, measured(2, 2.5, 0.5)),
        (1014.0, Fact::SlotLost { slot: slots(&[(0, 3)])[0], reason: "killed".to_owned() }),
        (1014.0, started(2, 2, &[(0, 2)], &[(0, 2)])),
        (1075.5, Fact::GroupFormed { trial: TrialId(2), generation: Generation(2) }),
    ]
}

fn study(name: &str) -> (PathBuf, Store) {
    let root = folder(name);
    let mut store = Store::open(&root).expect("it can be made");
    let entries: Vec<JournalEntry> =
        facts().into_iter().map(|(at_s, fact)| JournalEntry { at_s, fact }).collect();
    store.append(&entries).expect("it can be written");
    (root, store)
}

fn program(arguments: &[&str], folder: &Path) -> Output {
    let (command, rest) = arguments.split_first().expect("there is a command");
    Command::new(env!("CARGO_BIN_EXE_pollux-tune"))
        .arg(command)
        .arg(folder)
        .args(rest)
        .output()
        .expect("it can be run")
}

fn said(arguments: &[&str], folder: &Path) -> String {
    let output = program(arguments, folder);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("it is text").replace(&folder.display().to_string(), "FOLDER")
}

#[test]
fn a_study_is_looked_at_while_it_runs_and_after() {
    let (root, store) = study("status");
    let status = "\
FOLDER is running
  trials  2 of 4 ended (1 running, 1 done, 1 stopped)
  slots   1 of 3 in use
  best    trial 0: accuracy 0.9, lr=0.1 act=relu
  time    1 min 15 s
";
    assert_eq!(said(&["status"], &root), status);
    drop(store);
    let stopped = status.replace("FOLDER is running", "FOLDER is stopped: run it again to resume");
    assert_eq!(said(&["status"], &root), stopped);
    let json: serde_json::Value =
        serde_json::from_str(&said(&["status", "--json"], &root)).expect("it is JSON");
    assert_eq!((&json["state"], &json["trials"]["done"]), (&"stopped".into(), &1.into()));
    assert_eq!(json["best"]["values"]["accuracy"], 0.9);
}

#[test]
fn trials_are_listed() {
    let (root, _store) = study("trials");
    let table = "  trial    state  epochs  slots  batch    duration  accuracy  parameters
      0     done   10.00      -      -       8.0 s       0.9  lr=0.1 act=relu
      1  stopped    1.00      -      -       8.5 s       0.1  lr=0.01 act=relu
      2  running    2.50      1     64  1 min 12 s       0.5  lr=0.001 act=relu
";
    assert_eq!(said(&["trials"], &root), table);
    let lines = said(&["trials", "--json"], &root);
    let last: serde_json::Value =
        serde_json::from_str(lines.lines().last().expect("there are three")).expect("it is JSON");
    assert_eq!((&last["id"], &last["params"]["lr"], &last["batch"]), (&2.into(), &0.001.into(), &64.into()));
    assert_eq!(
        (&last["version"], &last["start"], &last["end"]),
        (&1.into(), &3.0.into(), &serde_json::Value::Null)
    );
    let best = said(
        &["trials", "--where", "accuracy>0.2", "--sort", "accuracy", "--columns", "trial,start,end,lr"],
        &root,
    );
    assert_eq!(
        best,
        "  trial  start     end  lr\n      0  2.0 s  10.0 s  0.1\n      2  3.0 s       -  0.001\n"
    );
    assert_eq!(said(&["trials", "--state", "failed", "--json"], &root), "");
    let output = program(&["trials", "--sort", "loss"], &root);
    let error = String::from_utf8(output.stderr).expect("it is text");
    assert!(output.status.code() == Some(2) && error.contains("there is no column `loss`"), "{error}");
}

#[test]
fn a_trial_whose_workers_get_ready_is_starting_wherever_it_is_named() {
    let root = folder("starting");
    let mut store = Store::open(&root).expect("it can be made");
    // Up to the first group, before it has formed.
    let entries = facts().into_iter().take(10).map(|(at_s, fact)| JournalEntry { at_s, fact });
    store.append(&entries.collect::<Vec<_>>()).expect("it can be written");
    let file = root.join("trials.csv").display().to_string();
    said(&["export", "--format", "csv", "-o", &file], &root);
    let csv = fs::read_to_string(&file).expect("it was written");
    for (what, text) in [
        ("status", said(&["status"], &root)),
        ("status --json", said(&["status", "--json"], &root)),
        ("trials", said(&["trials", "--state", "starting"], &root)),
        ("trials --json", said(&["trials", "--json"], &root)),
        ("show", said(&["show", "2"], &root)),
        ("show --json", said(&["show", "2", "--json"], &root)),
        ("explain", said(&["explain", "2"], &root)),
        ("export", csv),
    ] {
        assert!(text.contains("starting") && !text.contains("forming"), "{what}: {text}");
    }
}

#[test]
fn a_trial_is_explained() {
    let (root, _store) = study("explain");
    let explained = said(&["explain", "2"], &root);
    let wanted = "\
trial 2: lr=0.001 act=relu
  state  running on 1 slot (t4): 0.2
why it has these slots:
     at    slots         expected goodput  reason of the plan
  4.0 s  2 slots  1.50x of its fair share  started
  goodput: examples per second, each counted by how much it teaches; a fair share: the same part of the slots for each trial
with other numbers of slots:
  nothing is known of its speed yet: that takes a report with step times
";
    assert_eq!(explained, wanted);
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(&said(arguments, &root)).expect("it is JSON")
    };
    let explained = json(&["explain", "2", "--json"]);
    assert_eq!((&explained["version"], &explained["state"]), (&1.into(), &"running".into()));
    assert_eq!(explained["plans"][0]["slots"], serde_json::json!(["0.2", "0.3"]));
    assert_eq!(
        (&explained["prospects"], &explained["stopped"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );
    assert_eq!(json(&["explain", "1", "--json"])["stopped"][0], "rank 2 of 2");
    let stopped = said(&["explain", "1"], &root);
    assert!(stopped.contains("why it was stopped:\n  rank 2 of 2\n"), "{stopped}");
}

#[test]
fn a_study_is_followed_from_another_terminal() {
    let (root, store) = study("tail");
    let lines = "   13.0 s  trial 2 at epoch 2.50: accuracy 0.5
   14.0 s  slot 0.3 has lost its worker: killed
   14.0 s  trial 2 moved to slots [0.2], batch 64
";
    assert_eq!(said(&["tail", "--no-follow", "-n", "3"], &root), lines);
    let top = said(&["top", "--once"], &root);
    assert!(top.starts_with("2 of 4 trials ━━━━━━━━━━━─────────"), "{top}");
    assert!(top.contains("\nbest accuracy 0.9 (trial 0): lr=0.1 act=relu\n0 t4 ··2x\n2 2  25 %  accuracy 0.5  1 slot, batch 64  lr=0.001 act=relu\n"), "{top}");
    drop(store);
    // Nobody runs it any more: there is nothing to wait for.
    assert_eq!(said(&["tail", "-n", "3"], &root), format!("{lines}nobody runs the study in FOLDER\n"));
    let trial = said(&["tail", "--trial", "1"], &root);
    assert!(
        trial.contains("   11.0 s  trial 1 at epoch 1.00: accuracy 0.1\n   11.0 s  stopped: rank 2 of 2\n"),
        "{trial}"
    );
}

#[test]
fn studies_and_trials_are_compared() {
    let (root, _store) = study("compare");
    let (other, _other) = study("compare-other");
    let both = said(&["compare", &other.display().to_string()], &root);
    assert!(both.contains("0.9 (trial 0)  0.9 (trial 0)\n"), "{both}");
    assert!(both.ends_with("all settings are the same\n"), "{both}");
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(&said(arguments, &root)).expect("it is JSON")
    };
    let both = json(&["compare", &other.display().to_string(), "--json"]);
    assert_eq!((&both["version"], &both["differences"]), (&1.into(), &serde_json::json!([])));
    assert_eq!(both["studies"][0]["best"]["accuracy"], serde_json::json!({"trial": 0, "value": 0.9}));
    let trials = json(&["compare", "--trials", "0,2", "--json"]);
    assert_eq!(
        (&trials["trials"][1]["id"], &trials["trials"][0]["values"]["accuracy"]),
        (&2.into(), &0.9.into())
    );
    let trials = said(&["compare", "--trials", "0,2"], &root);
    assert!(trials.contains("* lr") && trials.contains("state"), "{trials}");
    for (arguments, message) in [
        (&["compare"][..], "two studies are compared, or trials of one"),
        (&["compare", "--trials", "9"], "there is no trial 9"),
    ] {
        let output = program(arguments, &root);
        let error = String::from_utf8(output.stderr).expect("it is text");
        assert!(output.status.code() == Some(2) && error.contains(message), "{error}");
    }
}

#[test]
fn a_trial_is_shown_with_what_happened_to_it() {
    let (root, _store) = study("show");
    let shown = "\
trial 2: lr=0.001 act=relu
  state   running
  epochs  2.50 of 10
  slots   1, batch 64; 82 slot-seconds so far
       3.0 s  created
       4.0 s  planned for slots [0.2 0.3]: started
       4.0 s  launched on slots [0.2 0.3], batch 128
       5.0 s  trains
      12.0 s  checkpoint at epoch 2.00
      14.0 s  moved to slots [0.2], batch 64
  1 min 15 s  trains
";
    assert_eq!(said(&["show", "2"], &root), shown);
    let stopped = said(&["show", "1"], &root);
    assert!(stopped.contains("  state   stopped: rank 2 of 2\n"), "{stopped}");
    let json: serde_json::Value =
        serde_json::from_str(&said(&["show", "2", "--json"], &root)).expect("it is JSON");
    assert_eq!(json["events"][3]["event"], "trains");
}

#[test]
fn the_best_of_a_study_are_those_of_its_folder() {
    let (root, _store) = study("best");
    let best = "\
maximize accuracy: the best of 1 finished trial
  trial  accuracy  parameters
      0       0.9  lr=0.1 act=relu
";
    assert_eq!(said(&["best"], &root), best);
}

#[test]
fn questions_without_an_answer_say_what_is_wrong() {
    let (root, _store) = study("wrong");
    for (arguments, folder, message) in [
        (&["show", "7"][..], root.clone(), "there is no trial 7 in FOLDER, 3 trials so far"),
        (&["status"], root.join("nowhere"), "FOLDER holds no study"),
        (&["trials"], root.join("nowhere"), "FOLDER holds no study"),
        (&["best"], root.join("logs"), "FOLDER holds no study"),
    ] {
        let output = program(arguments, &folder);
        let error = String::from_utf8(output.stderr).expect("it is text");
        let error = error.replace(&folder.display().to_string(), "FOLDER");
        assert_eq!((output.status.code(), error), (Some(2), format!("error: {message}\n")));
    }
}

fn earlier(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/earlier").join(name)
}

/// A copy of a study that an earlier version has run.
fn earlier_study(name: &str) -> PathBuf {
    let (from, to) = (earlier("run"), folder(name));
    fs::create_dir_all(to.join("checkpoints")).expect("it can be made");
    let states = fs::read_dir(from.join("checkpoints")).expect("it is there");
    let states =
        states.map(|entry| Path::new("checkpoints").join(entry.expect("it can be read").file_name()));
    for file in ["emulated", "journal.sqlite", "study.yaml"].into_iter().map(PathBuf::from).chain(states) {
        fs::copy(from.join(&file), to.join(&file)).expect("it can be copied");
    }
    to
}

fn shown_as_before(root: &Path) {
    for (file, arguments) in [
        ("run-status.txt", &["status"][..]),
        ("run-trials.txt", &["trials", "--columns", "trial,state,epochs,slots,batch,accuracy,parameters"]),
        ("run-best.txt", &["best"]),
        ("run-show3.txt", &["show", "3"]),
        ("run-show5.txt", &["show", "5"]),
        ("run-show9.txt", &["show", "9"]),
    ] {
        let before = fs::read_to_string(earlier(file)).expect("it is there");
        // These words have changed since.
        let before = before.replace("to go on", "to resume").replace("told to leave", "asked to leave");
        let is_over = !before.contains("  state   waiting");
        let line = |line: &str| match line.strip_suffix(" examples in 1 passes on each slot") {
            None if is_over && line.starts_with("  slots   0; ") => {
                line.replace("0; ", "").replace(" so far", "")
            }
            Some(rest) => {
                let (at, count) = rest.rsplit_once("  ").expect("a time comes first");
                format!("{at}  changes its batch to {count} examples on each slot")
            }
            None => line.to_owned(),
        };
        // And plans that changed nothing were shown one by one.
        let is_kept = |line: &&str| line.ends_with(": keeps its GPUs");
        let kept = before.lines().filter(is_kept).count();
        let before: Vec<String> = before.lines().filter(|line| !is_kept(line)).map(line).collect();
        // And there were no curves.
        let now = said(arguments, root);
        let (counts, now): (Vec<&str>, Vec<&str>) = now
            .lines()
            .filter(|line| !line.contains(['▁', '█']))
            .partition(|line| line.contains(" changed nothing for it"));
        assert_eq!(
            (counts.len(), kept > 0),
            (usize::from(kept > 0), !counts.is_empty()),
            "{file}: {counts:?}"
        );
        assert_eq!(now, before, "{file}");
    }
}

/// The form of a journal, from its header.
fn form(root: &Path) -> u8 {
    fs::read(Folder::new(root).journal()).expect("it is there")[63]
}

#[test]
fn a_study_of_an_earlier_version_is_shown_as_it_was() {
    let root = earlier_study("earlier");
    shown_as_before(&root);
    assert_eq!(form(&root), 1, "looking changes nothing");
    let tables = || {
        let reader = Reader::open(&root).expect("it can be read");
        (reader.trials().expect("trials"), reader.timeline().expect("spans"))
    };
    let (trials, spans) = tables();
    let store = Store::open(&root).expect("it can be opened");
    let state = store.state().expect("it is known");
    assert_eq!((state.facts, state.ended.len(), state.active.len()), (store.len(), 9, 1));
    drop(store);
    assert_eq!(form(&root), 3, "its tables were made again");
    let (trials_again, spans_again) = tables();
    assert_eq!(spans_again, spans);
    for (mut again, row) in trials_again.into_iter().zip(trials) {
        assert!((again.slot_s - row.slot_s).abs() < 1e-5, "{} and {}", again.slot_s, row.slot_s);
        again.slot_s = row.slot_s;
        assert_eq!(again, row);
    }
    shown_as_before(&root);
}

#[test]
fn a_study_of_an_earlier_version_is_resumed() {
    let root = earlier_study("resumed");
    // Without the durations, whose width those of later trials change.
    let trials = ["trials", "--columns", "trial,state,epochs,slots,batch,accuracy,parameters"];
    let before = said(&trials, &root);
    let run = Command::new(env!("CARGO_BIN_EXE_pollux-tune"))
        .args(["run", "--quiet", "--emulate", "1x4xa100", "--time-scale", "0.01", "--folder"])
        .args([&root, &root.join("study.yaml")])
        .output()
        .expect("it can be run");
    assert!(run.status.success(), "{run:?}");
    let status = said(&["status"], &root);
    assert!(status.contains("FOLDER is done\n  trials  10 of 10 ended"), "{status}");
    let (kept, after) = (before.lines().skip(1).take(10), said(&trials, &root));
    assert_eq!(after.lines().skip(1).take(10).collect::<Vec<_>>(), kept.collect::<Vec<_>>());
    let events = said(&["show", "9"], &root);
    assert!(events.contains("paused at epoch 0.62") && events.contains("launched on slots ["), "{events}");
}

/// Those that are whole, that were changed or cut, and that belong to others.
#[test]
fn checkpoints_are_examined_too() {
    let (root, _store) = study("fsck-checkpoints");
    let folder = Folder::new(&root);
    let id = said(&["fsck"], &root);
    let id = id.lines().find_map(|line| line.strip_prefix("  study    ")).expect("it is named");
    let study: StudyId = serde_json::from_value(id.into()).expect("an id");
    let save = |study, trial: u32, place: u32, damage: &dyn Fn(&mut Vec<u8>)| {
        let task = Task { study, ..Task::new(TrialId(trial), "toy") };
        let mut bytes = make_checkpoint(&task, 7, &[1.0, 2.0, 3.0]).expect("into memory");
        damage(&mut bytes);
        let home = folder.checkpoint(TrialId(place));
        fs::create_dir_all(&home).expect("a folder");
        let name = format!("{:012}-{:016x}-{:016x}.checkpoint", 7, 1, study.0 as u64 ^ u64::from(trial));
        fs::write(home.join(name), bytes).expect("it can be written");
    };
    let nothing = |_: &mut Vec<u8>| {};
    save(study, 0, 0, &nothing);
    save(study, 1, 1, &nothing);
    let whole = said(&["fsck"], &root);
    assert!(whole.ends_with("  states   2 of 2 checkpoints are whole and of this study\n"), "{whole}");
    save(study, 2, 2, &|bytes| *bytes.last_mut().expect("not empty") ^= 1);
    save(study, 3, 3, &|bytes| bytes.truncate(60));
    save(StudyId(5), 4, 4, &nothing);
    save(study, 6, 5, &nothing);
    let output = program(&["fsck"], &root);
    let text = String::from_utf8(output.stdout).expect("it is text");
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("  states   2 of 6 checkpoints are whole and of this study\n"), "{text}");
    for (trial, problem) in [
        (2, "is damaged: its checksum is wrong"),
        (3, "is cut off: it has 60 of"),
        (4, "is of another study (00000000000000000000000000000005)"),
        (5, "is of another trial (6)"),
    ] {
        let told =
            |line: &str| line.contains(&format!("checkpoints/trial-{trial}/")) && line.contains(problem);
        assert!(text.lines().any(told), "{trial}: {text}");
    }
}

#[test]
fn a_damaged_study_is_told_and_repaired() {
    let (root, store) = study("fsck");
    let whole = said(&["fsck"], &root);
    assert!(whole.starts_with("FOLDER is whole\n  study    "), "{whole}");
    assert!(whole.contains("facts    20 of 20 are whole, with 1 result\n"), "{whole}");
    drop(store);
    let journal = Folder::new(&root).journal();
    let mut bytes = fs::read(&journal).expect("it is there");
    let needle = b"{\"slot_lost\"";
    let place = bytes.windows(needle.len()).position(|window| window == needle).expect("it is there");
    bytes[place + 3] ^= 1;
    fs::write(&journal, bytes).expect("it can be written");
    let output = program(&["fsck"], &root);
    let damaged = "\
FOLDER is damaged
  study    ID
  facts    17 of 20 are whole, with 1 result
  problem  fact 18 cannot be read: it is not what was written
  problem  the tables do not follow from the facts that are whole
  lost     3 facts after fact 17
";
    let plain = |output: Output| {
        let text = String::from_utf8(output.stdout).expect("it is text");
        let text = text.replace(&root.display().to_string(), "FOLDER");
        let id =
            text.lines().find_map(|line| line.strip_prefix("  study    ")).expect("it is named").to_owned();
        (output.status.code(), text.replace(&id, "ID"))
    };
    assert_eq!(plain(output), (Some(1), damaged.to_owned()));
    said(&["status"], &root);
    let shown = program(&["show", "2"], &root);
    let error = String::from_utf8(shown.stderr).expect("it is text");
    assert!(shown.status.code() == Some(2) && error.contains("`pollux-tune fsck FOLDER` tells"), "{error}");
    let repaired = format!(
        "{damaged}repaired: the first 17 facts are kept\n  the damaged files are in FOLDER/journal.damaged-1\n"
    );
    assert_eq!(plain(program(&["fsck", "--repair"], &root)), (Some(0), repaired));
    assert!(said(&["fsck"], &root).starts_with("FOLDER is whole\n"));
    assert!(said(&["show", "2"], &root).contains("trial 2"));
}
