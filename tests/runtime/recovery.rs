//! What becomes of studies whose trials fail, whose machine has nothing left to give, and whose time is up: the real program with
//! real processes.

use std::{
    fs,
    io::{BufRead, BufReader, Lines},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Output, Stdio},
};

use pollux_tune::{ids::TrialId, store::Reader, trials::engine::Fact};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

use crate::{
    common::{ends, entries, folder},
    disk::SmallDisk,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_pollux-tune");

/// A study file beside a folder. Its trials run a script, with `GO` for a file that is not there yet.
fn study(root: &Path, script: &str, search: &str) -> PathBuf {
    let script = script.replace("GO", &go(root).display().to_string());
    let script = serde_json::to_string(&script).unwrap();
    let text = format!(
        "space: {{x: {{float: [0, 1]}}}}\nobjective: {{minimize: loss}}\n\
         trial: {{command: [sh, -c, {script}]}}\nsearch: {{{search}}}\n"
    );
    let file = root.with_extension("yaml");
    fs::write(&file, text).unwrap();
    let _ = fs::remove_file(go(root));
    file
}

fn go(root: &Path) -> PathBuf {
    root.with_extension("go")
}

fn clean(root: &Path) {
    fs::remove_dir_all(root).unwrap();
    for extension in ["yaml", "go"] {
        let _ = fs::remove_file(root.with_extension(extension));
    }
}

fn pollux_tune(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().unwrap()
}

fn run(file: &Path, root: &Path) -> (Option<i32>, String) {
    let output = pollux_tune(&["run", &file.display().to_string(), "--folder", &root.display().to_string()]);
    (output.status.code(), text(&output))
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A head that runs, and what it says.
struct Head {
    process: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Head {
    fn start(file: &Path, root: &Path) -> Self {
        let mut process = Command::new(PROGRAM)
            .arg("run")
            .arg(file)
            .arg("--folder")
            .arg(root)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        Self { process, lines }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id().cast_signed()).unwrap()
    }

    /// Waits until it says so.
    fn until(&mut self, words: &str) -> String {
        let mut said = String::new();
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            if line.contains(words) {
                return line;
            }
            said.push_str(&line);
            said.push('\n');
        }
        panic!("it ended without a line with `{words}`:\n{said}");
    }

    /// How often each line with these words comes until its end, and its exit code.
    fn end(mut self, words: &str) -> (usize, Option<i32>) {
        let count = self.lines.by_ref().filter(|line| line.as_ref().unwrap().contains(words)).count();
        (count, self.process.wait().unwrap().code())
    }
}

impl Drop for Head {
    /// A test that failed leaves nobody behind.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_study_of_failures_exits_with_1_and_its_trials_can_be_retried() {
    let root = folder("retry");
    let place = root.display().to_string();
    let script = "[ -e GO ] || { echo no such data >&2; exit 3; }; echo '{\"loss\": 1}'";
    let file = study(&root, script, "trials: 4, parallel: 2");
    let (code, said) = run(&file, &root);
    assert_eq!(code, Some(1), "{said}");
    for words in [
        "4 of 4 trials failed:",
        "4  it ended with exit code 3",
        "pollux-tune show",
        &format!("pollux-tune retry {place}"),
        "the study has failed: 4 of 4 trials have failed and none has finished",
    ] {
        assert!(said.contains(words), "`{words}` is not in\n{said}");
    }
    let params = |trial| Reader::open(&root).unwrap().trial(TrialId(trial)).unwrap().unwrap().params;
    let before: Vec<_> = (0..4).map(params).collect();
    assert_eq!(run(&file, &root).0, Some(1), "nothing has changed");
    let refused = pollux_tune(&["retry", &place, "2", "9"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused).contains("there is no trial 9, there are 4 so far"), "{}", text(&refused));
    let nowhere = pollux_tune(&["retry", &format!("{place}-nowhere")]);
    assert_eq!(nowhere.status.code(), Some(2), "{}", text(&nowhere));
    // The cause is mended: one trial first, then the others.
    fs::write(go(&root), "").unwrap();
    let one = pollux_tune(&["retry", &place, "2"]);
    assert!(one.status.success() && text(&one).starts_with("trial 2 runs again with: "), "{}", text(&one));
    let (code, said) = run(&file, &root);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("3 of 4 trials failed:"), "{said}");
    let done = pollux_tune(&["retry", &place, "2"]);
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done).contains("trial 2 is done: only failed trials can be retried"), "{}", text(&done));
    let rest = pollux_tune(&["retry", &place]);
    assert!(text(&rest).starts_with("trials 0, 1, 3 run again with: pollux-tune run "), "{}", text(&rest));
    let status = text(&pollux_tune(&["status", &place]));
    assert!(
        status.contains("is stopped: run it again to resume") && status.contains("3 waiting"),
        "{status}"
    );
    let (code, said) = run(&file, &root);
    assert_eq!((code, said.contains("failed")), (Some(0), false), "{said}");
    assert_eq!((0..4).map(params).collect::<Vec<_>>(), before, "with the same parameters");
    assert!(text(&pollux_tune(&["retry", &place])).contains("no trial of"), "none is left");
    clean(&root);
}

#[test]
fn a_study_that_runs_cannot_be_retried() {
    let root = folder("retry-running");
    let file = study(&root, "while [ ! -e GO ]; do sleep 0.02; done; echo '{\"loss\": 1}'", "trials: 1");
    let mut head = Head::start(&file, &root);
    head.until("trial 0 launched");
    let refused = pollux_tune(&["retry", &root.display().to_string()]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused).contains("is run by another process"), "{}", text(&refused));
    fs::write(go(&root), "").unwrap();
    assert_eq!(head.end("").1, Some(0));
    clean(&root);
}

#[test]
fn a_study_is_ended_after_a_number_of_failures() {
    let root = folder("hopeless");
    let file =
        study(&root, "echo '{\"pollux\": {\"losss\": 1}}'", "trials: 1000, parallel: 1, max_failures: 3");
    let (code, said) = run(&file, &root);
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(ends(&root).len(), 3);
    for words in [
        "warning: trial 0 reports `losss`, but not `loss`, the objective",
        "it ended without a value for `loss`: it has reported `losss`",
        "the study has failed: 3 trials have failed and none has finished (`search.max_failures`)",
    ] {
        assert_eq!(said.matches(words).count().min(1), 1, "`{words}` is not in\n{said}");
    }
    assert_eq!(said.matches("warning:").count(), 1, "{said}");
    clean(&root);
}

#[test]
fn a_study_that_ran_out_of_time_is_continued_with_more() {
    let root = folder("more-time");
    let script = "while [ ! -e GO ]; do sleep 0.02; done; echo '{\"loss\": 1}'";
    let file = study(&root, script, "trials: 3, parallel: 1, timeout: 500ms");
    let (code, said) = run(&file, &root);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("no more trials: the time of the study is up"), "{said}");
    assert!(ends(&root).is_empty());
    fs::write(go(&root), "").unwrap();
    assert_eq!(run(&file, &root).0, Some(0));
    assert!(ends(&root).is_empty(), "its time is still up");
    let file = {
        let text = fs::read_to_string(&file).unwrap().replace("500ms", "1h");
        fs::write(&file, text).unwrap();
        file
    };
    let (code, said) = run(&file, &root);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(ends(&root), (0..3).map(|trial| (trial, 1)).collect());
    clean(&root);
}

/// How many files a process may open from now on; what it has is not taken from it.
fn allow_files(head: &Head, count: Option<u64>) {
    let Rlimit { maximum, current } = getrlimit(Resource::Nofile);
    let current = count.or(current);
    prlimit(Some(head.pid()), Resource::Nofile, Rlimit { current, maximum }).unwrap();
}

/// A head whose second trial cannot be started.
fn without_files(root: &Path) -> Head {
    let script = "echo '{\"epoch\": 1, \"loss\": 2}'; \
                  [ $POLLUX_TUNE_TRIAL -gt 0 ] || while [ ! -e GO ]; do sleep 0.02; done; echo '{\"loss\": 1}'";
    let file = study(root, script, "trials: 4, parallel: 1");
    let mut head = Head::start(&file, root);
    // It was launched before that, but whether all files for it are open is only known when it has said something.
    head.until("trial 0 at epoch 1");
    allow_files(&head, Some(3));
    fs::write(go(root), "").unwrap();
    let line = head.until("the study waits: ");
    assert!(line.contains("Too many open files") && line.contains("continues by itself"), "{line}");
    head
}

#[test]
fn a_machine_without_files_is_waited_for_and_nobody_is_blamed() {
    let root = folder("files");
    let mut head = without_files(&root);
    let status = text(&pollux_tune(&["status", &root.display().to_string()]));
    assert!(status.contains("waits   it cannot be started: Too many open files"), "{status}");
    allow_files(&head, None);
    head.until("the study continues: what it has waited for works again");
    assert_eq!(head.end("the study waits"), (0, Some(0)), "it was said once");
    assert_eq!(ends(&root), (0..4).map(|trial| (trial, 1)).collect());
    assert!(entries(&root).iter().all(|fact| !matches!(fact, Fact::TrialFailed { .. })));
    clean(&root);
}

#[test]
fn a_study_that_waits_can_be_stopped_and_continued() {
    let root = folder("stop-waiting");
    let head = without_files(&root);
    kill_process(head.pid(), Signal::INT).unwrap();
    assert_eq!(head.end("").1, Some(130));
    let (code, said) = run(&root.with_extension("yaml"), &root);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(ends(&root), (0..4).map(|trial| (trial, 1)).collect());
    clean(&root);
}

#[test]
fn a_full_disk_is_waited_for_and_nothing_is_lost() {
    let base = folder("full-disk");
    let Some(disk) = SmallDisk::mount(&base, 4 << 20) else { return };
    let root = base.join("study");
    // Outside of the disk, so that it can be made while that is full.
    let outside = base.with_extension("outside");
    let script =
        "[ $POLLUX_TUNE_TRIAL -gt 1 ] || while [ ! -e GO ]; do sleep 0.02; done; echo '{\"loss\": 1}'";
    let file = study(&outside, script, "trials: 6, parallel: 2");
    let mut head = Head::start(&file, &root);
    head.until("trial 1 launched");
    // Both programs run once they have a folder each.
    let filler = disk.fill();
    fs::write(go(&outside), "").unwrap();
    let line = head.until("the study waits: ");
    assert!(line.contains("o space left") && line.contains("continues by itself"), "{line}");
    fs::remove_file(filler).unwrap();
    head.until("the study continues");
    assert_eq!(head.end("").1, Some(0));
    assert_eq!(ends(&root), (0..6).map(|trial| (trial, 1)).collect());
    assert!(entries(&root).iter().all(|fact| !matches!(fact, Fact::TrialFailed { .. })));
    let unmounted = Command::new("umount").arg(&base).status();
    assert!(unmounted.is_ok_and(|status| status.success()), "{} is still in use", base.display());
    drop(disk);
    let _ = fs::remove_dir(&base);
    for extension in ["yaml", "go"] {
        let _ = fs::remove_file(outside.with_extension(extension));
    }
}
