//! `pollux-tune stop`, with a real process that runs a study.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use pollux_tune::{
    store::{Journal, Reader, Runner, Store},
    trials::engine::{Fact, JournalEntry},
};
use signal_hook::{consts::SIGINT, iterator::Signals};

const YAML: &str = "space: {lr: {log: [1e-5, 1]}}\nobjective: {minimize: loss}\nsearch: {trials: 4}\n";
/// Where the process that runs a study has it, if this is that process.
const RUNNER: &str = "POLLUX_TUNE_TEST_RUNNER";

/// An empty folder for one test.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stop").join(name);
    if path.exists() {
        fs::remove_dir_all(&path).expect("what an earlier run left can be removed");
    }
    path
}

fn append(store: &mut Store, facts: Vec<Fact>) {
    let entries: Vec<JournalEntry> = facts.into_iter().map(|fact| JournalEntry { at_s: 1.0, fact }).collect();
    store.append(&entries).expect("it can be written");
}

/// Runs a study until it is asked to stop and, after that, told to end.
#[test]
fn runner() {
    let Some(root) = env::var_os(RUNNER) else { return };
    let mut signals = Signals::new([SIGINT]).expect("they can be handled");
    let mut store = Store::open(Path::new(&root)).expect("nobody else runs it");
    append(&mut store, vec![Fact::StudyCreated { yaml: YAML.to_owned() }, Fact::HeadStarted {}]);
    let say = |what: &str| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{what}").and_then(|()| out.flush()).expect("somebody listens");
    };
    say("runs");
    assert_eq!(signals.forever().next(), Some(SIGINT));
    say("asked");
    std::io::stdin().read_line(&mut String::new()).expect("somebody speaks");
    append(&mut store, vec![Fact::StopRequested {}]);
}

/// A process that runs a study.
struct Running {
    process: Child,
    lines: BufReader<ChildStdout>,
    tell: ChildStdin,
}

impl Running {
    fn start(root: &Path) -> Self {
        let program = env::current_exe().expect("this is a program");
        let mut process = Command::new(program)
            .args(["--exact", "stop::runner", "--nocapture", "--test-threads=1"])
            .env(RUNNER, root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be started");
        let lines = BufReader::new(process.stdout.take().expect("it is piped"));
        let tell = process.stdin.take().expect("it is piped");
        let mut running = Self { process, lines, tell };
        running.until("runs");
        running
    }

    /// Waits until it says so.
    fn until(&mut self, word: &str) {
        let mut line = String::new();
        // The harness may have begun the line.
        while !line.trim_end().ends_with(word) {
            line.clear();
            assert!(self.lines.read_line(&mut line).expect("it is text") > 0, "it ended before it {word}");
        }
    }

    fn end(mut self) {
        writeln!(self.tell, "end").expect("it listens");
        assert!(self.process.wait().expect("it ends").success());
    }
}

fn stop(root: &Path, arguments: &[&str]) -> Command {
    let mut stop = Command::new(env!("CARGO_BIN_EXE_pollux-tune"));
    stop.arg("stop").arg(root).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    stop
}

/// Exit code, output and errors.
fn ended(process: Child, root: &Path) -> (Option<i32>, String, String) {
    let output = process.wait_with_output().expect("it ends");
    let text = |bytes: Vec<u8>| {
        String::from_utf8(bytes).expect("it is text").replace(&root.display().to_string(), "FOLDER")
    };
    (output.status.code(), text(output.stdout), text(output.stderr))
}

const STOPPED: &str = "\
FOLDER is stopped: run it again to resume
  trials  0 of 4 ended
  slots   0 of 0 in use
  time    0.0 s
resume with: pollux-tune run FOLDER/study.yaml --folder FOLDER
";

#[test]
fn a_study_is_stopped_and_shown_once_its_process_has_ended() {
    let root = folder("waits");
    let mut running = Running::start(&root);
    let number = running.process.id();
    let runner = Reader::open(&root).expect("it is there").runner().expect("it is named").expect("it runs");
    assert!(runner.study.is_some(), "{runner:?}");
    assert_eq!(runner, Runner { process: number, study: runner.study, ..Runner::this() });
    let mut stop = stop(&root, &[]).spawn().expect("it can be started");
    running.until("asked");
    assert!(stop.try_wait().expect("it can be asked").is_none(), "the study still runs");
    running.end();
    let notes = format!("process {number} was asked to stop; waiting until it has\n");
    assert_eq!(ended(stop, &root), (Some(0), STOPPED.to_owned(), notes));
}

#[test]
fn who_does_not_wait_returns_at_once() {
    let root = folder("no-wait");
    let mut running = Running::start(&root);
    let stop = stop(&root, &["--no-wait"]).spawn().expect("it can be started");
    let asked = format!("process {} was asked to stop\n", running.process.id());
    assert_eq!(ended(stop, &root), (Some(0), asked, String::new()));
    running.until("asked");
    running.end();
}

#[test]
fn a_study_that_nobody_runs_is_said_to_be_so() {
    let root = folder("nobody");
    append(
        &mut Store::open(&root).expect("it can be made"),
        vec![Fact::StudyCreated { yaml: YAML.to_owned() }, Fact::HeadStarted {}],
    );
    let nobody = format!("nobody runs the study in FOLDER\n{STOPPED}");
    let stop = |root: &Path| ended(stop(root, &[]).spawn().expect("it can be started"), root);
    assert_eq!(stop(&root), (Some(0), nobody, String::new()));
    let nowhere = root.join("nowhere");
    assert_eq!(stop(&nowhere), (Some(2), String::new(), "error: FOLDER holds no study\n".to_owned()));
}

#[test]
fn processes_of_other_machines_are_left_alone() {
    let root = folder("elsewhere");
    let mut store = Store::open(&root).expect("it can be made");
    append(&mut store, vec![Fact::StudyCreated { yaml: YAML.to_owned() }, Fact::HeadStarted {}]);
    let stop = || ended(stop(&root, &[]).spawn().expect("it can be started"), &root);
    for (text, message) in [
        ("7 other-machine\n", "the study in FOLDER is run by process 7 on other-machine: stop it there"),
        ("\n", "FOLDER/lock is damaged: it does not name the process that runs the study"),
        ("0 HOST\n", "FOLDER is damaged: there can be no process 0"),
    ] {
        fs::write(root.join("lock"), text.replace("HOST", &Runner::this().host)).expect("it can be written");
        assert_eq!(stop(), (Some(2), String::new(), format!("error: {message}\n")));
    }
}
