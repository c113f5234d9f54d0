//! `pollux-tune nodes`, `drain` and `remove`, with a head that runs a study on emulated machines.

use std::{
    env, fs,
    io::{BufRead, BufReader, Lines},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

pub(super) const PROGRAM: &str = env!("CARGO_BIN_EXE_pollux-tune");
/// It lasts until it is stopped.
const YAML: &str = "space: {lr: {log: [1e-5, 1]}}\nobjective: {maximize: accuracy}\nsearch: {trials: 4, parallel: 2}\n\
                    trial: {trainable: cifar10, epochs: 100000}\n";

/// An empty folder for one test, and a study file beside it.
pub(super) fn folder(name: &str) -> (PathBuf, PathBuf) {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nodes").join(name);
    if root.exists() {
        fs::remove_dir_all(&root).expect("what an earlier run left can be removed");
    }
    fs::create_dir_all(&root).expect("it can be made");
    let file = root.with_extension("yaml");
    fs::write(&file, YAML).expect("it can be written");
    (root, file)
}

pub(super) fn program(command: &str, root: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let run = Command::new(PROGRAM).arg(command).arg(root).args(arguments).output();
    let Output { status, stdout, stderr } = run.expect("it can be run");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it is text");
    let said = format!("{}{}", text(stdout), text(stderr));
    (status.code(), said.replace(&root.display().to_string(), "FOLDER"))
}

/// The machines of a study: number and state.
fn states(root: &Path) -> Vec<(u64, String)> {
    let (code, said) = program("nodes", root, &["--json"]);
    assert_eq!(code, Some(0), "{said}");
    let row = |line: &str| {
        let row: serde_json::Value = serde_json::from_str(line).expect("it is JSON");
        (row["node"].as_u64().expect("a number"), row["state"].as_str().expect("a word").to_owned())
    };
    said.lines().map(row).collect()
}

/// A head that runs.
pub(super) struct Head {
    process: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Head {
    pub(super) fn start(file: &Path, root: &Path) -> Self {
        let mut process = Command::new(PROGRAM)
            .args(["run", "--emulate", "2x2xa100", "--time-scale", "0.1", "--folder"])
            .args([root, file])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it can be started");
        let lines = BufReader::new(process.stderr.take().expect("it is piped")).lines();
        Self { process, lines }
    }

    /// Waits until it says so.
    pub(super) fn until(&mut self, what: &str) -> String {
        let mut said = Vec::new();
        for line in &mut self.lines {
            let line = line.expect("it is text");
            if line.contains(what) {
                return line;
            }
            said.push(line);
        }
        panic!("it never said `{what}`: {said:#?}")
    }

    /// As Ctrl-C does.
    pub(super) fn stop(&mut self) -> Option<i32> {
        let pid = Pid::from_raw(self.process.id().cast_signed()).expect("it is a process");
        kill_process(pid, Signal::INT).expect("it is there");
        for line in &mut self.lines {
            line.expect("it is text");
        }
        self.process.wait().expect("it ends").code()
    }
}

/// Nothing is left of a test that has failed.
impl Drop for Head {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn machines_are_shown_and_taken_from_a_study_that_runs() {
    let (root, file) = folder("runs");
    let mut head = Head::start(&file, &root);
    let joined = [(); 2].map(|()| head.until("has joined with 2 slots (a100)")).concat();
    assert!(joined.contains("node 0 ") && joined.contains("node 1 "), "{joined}");
    let up = || "up".to_owned();
    assert_eq!(states(&root), [(0, up()), (1, up())]);
    let key = fs::metadata(root.join("control.json")).expect("it is there while a head runs");
    assert_eq!(key.permissions().mode() & 0o777, 0o600);

    let (code, said) = program("drain", &root, &["0", "elsewhere"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("there is no machine `elsewhere` in the study, there are: node 0"), "{said}");
    assert_eq!(states(&root), [(0, up()), (1, up())], "nothing is done by half");

    let (code, said) = program("drain", &root, &["1"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("leaves when nothing runs there any more"), "{said}");
    head.until("will leave when nothing runs there any more: its user takes it away");
    assert_eq!(states(&root), [(0, up()), (1, "draining".to_owned())]);

    // Both nodes are of one machine, which goes when both may.
    let (code, said) = program("remove", &root, &["0", "--grace", "0s"]);
    assert_eq!(code, Some(0), "{said}");
    head.until("is gone: it has left, as it was asked to");
    head.until("is gone: it has left, as it was asked to");
    head.until("the study waits: all machines are gone; it continues by itself when there is room");
    let (_, status) = program("status", &root, &[]);
    assert!(status.contains("waits   all machines are gone"), "{status}");
    assert_eq!(states(&root), [(0, "lost".to_owned()), (1, "lost".to_owned())]);
    assert_eq!(head.stop(), Some(130));

    assert!(!root.join("control.json").exists(), "it goes with its head");
    let (code, said) = program("drain", &root, &["0"]);
    let nobody = "error: nobody runs the study in FOLDER: machines can be taken from it only while it runs\n";
    assert_eq!((code, said.as_str()), (Some(2), nobody));
    let (code, said) = program("nodes", &root, &[]);
    assert_eq!(code, Some(0));
    assert!(said.starts_with("nobody runs the study: these are the machines of its last run\n"), "{said}");
}
