//! Studies of programs: whatever happens to the head, its programs have time to end, and nothing of them stays.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use pollux_tune::{
    store::Reader,
    trials::{End, engine::Fact},
};
use rustix::process::{Pid, Signal, kill_process};

/// An empty folder for one test.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs").join(name);
    if path.exists() {
        fs::remove_dir_all(&path).expect("what an earlier run left can be removed");
    }
    fs::create_dir_all(&path).expect("a folder");
    path
}

/// Waits until this is so. Only a test that fails waits long.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(120), "{what}: not in two minutes");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for what may never come if the head has failed.
fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    wait.recv_timeout(Duration::from_secs(120)).unwrap_or_else(|_| panic!("{what}: not in two minutes"))
}

/// Whether a process runs; one that has ended and waits for its parent does not.
fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// A folder with a study of scripts, which run in it and find named pipes there.
struct Scene(PathBuf);

impl Scene {
    fn new(name: &str, script: &str, trial: &str, trials: u32) -> Self {
        let root = folder(name);
        for pipe in ["begun", "asked", "release", "never"] {
            assert!(Command::new("mkfifo").arg(root.join(pipe)).status().expect("mkfifo").success());
        }
        let script = serde_json::to_string(&format!("cd {}; {script}", root.display())).expect("a text");
        let study = format!(
            "space: {{x: {{float: [0, 1]}}}}\nobjective: {{minimize: loss}}\n\
             trial: {{command: [sh, -c, {script}]{trial}}}\nsearch: {{trials: {trials}, parallel: 1}}\n"
        );
        fs::write(root.join("study.yaml"), study).expect("it can be written");
        Self(root)
    }

    fn command(&self) -> Command {
        self.command_of(Path::new(env!("CARGO_BIN_EXE_pollux-tune")))
    }

    fn command_of(&self, program: &Path) -> Command {
        let mut run = Command::new(program);
        run.arg("run").arg(self.0.join("study.yaml")).arg("--folder").arg(self.0.join("study")).arg("--cpu");
        run
    }

    /// As if from a terminal: whoever runs the tests may have told them not to mind its end.
    fn run(&self) -> Running {
        self.run_through(&["env", "--default-signal=HUP"])
    }

    fn run_through(&self, words: &[&str]) -> Running {
        let run = self.command();
        let mut through = Command::new(words[0]);
        through.args(&words[1..]).arg(run.get_program()).args(run.get_args());
        Running::start(&mut through)
    }

    /// Waits until a program says something through a pipe.
    fn hear(&self, pipe: &str) -> String {
        let path = self.0.join(pipe);
        in_time(pipe, move || fs::read_to_string(path).expect("a pipe").trim().to_owned())
    }

    /// Lets a program go on that reads from a pipe.
    fn tell(&self, pipe: &str) {
        let path = self.0.join(pipe);
        in_time(pipe, move || fs::write(path, "go\n").expect("a pipe"));
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).expect("it was written").trim().to_owned()
    }

    /// How each trial that has ended did, in the order of their ends.
    fn ends(&self) -> Vec<End> {
        let end = |fact| match fact {
            Fact::TrialDone { values, .. } => Some(End::Done(values)),
            Fact::TrialFailed { reason, .. } => Some(End::Failed(reason)),
            _ => None,
        };
        self.facts().into_iter().filter_map(end).collect()
    }

    fn facts(&self) -> Vec<Fact> {
        let reader = Reader::open(&self.0.join("study")).expect("a study");
        reader.entries(0).expect("facts").into_iter().map(|entry| entry.fact).collect()
    }
}

/// A head.
struct Running {
    head: Child,
    lines: BufReader<ChildStderr>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut head = command.spawn().expect("it can be started");
        let lines = BufReader::new(head.stderr.take().expect("it is piped"));
        Self { head, lines }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.head.id().cast_signed()).expect("a process");
        kill_process(pid, signal).expect("it runs");
    }

    /// Waits for a line with these words.
    fn until(&mut self, words: &str) -> String {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert!(self.lines.read_line(&mut line).expect("it is text") > 0, "it ended without `{words}`");
        }
        line
    }

    /// Waits for its end.
    fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).expect("it is text");
        (self.head.wait().expect("it ends").code(), rest)
    }
}

/// Says when it was asked to end, and then needs to be let go.
const SAVES: &str = "trap 'echo asked > asked; read line < release; touch saved; exit 0' TERM; \
                     echo begun > begun; while :; do read line < never; done";

/// It was killed after 36 ms.
#[test]
fn a_program_has_time_to_end_when_the_head_is_asked_to() {
    for (name, signal) in [("interrupt", Signal::INT), ("terminate", Signal::TERM), ("hangup", Signal::HUP)] {
        let scene = Scene::new(name, SAVES, "", 1);
        let mut running = scene.run();
        scene.hear("begun");
        running.signal(signal);
        scene.hear("asked");
        running.until("waiting for the programs of trial 0 to end");
        scene.tell("release");
        assert_eq!(running.end().0, Some(130), "{name}");
        assert!(scene.file("saved").exists(), "{name}");
    }
}

#[test]
fn stop_waits_for_programs() {
    let scene = Scene::new("stop", SAVES, "", 1);
    let mut running = scene.run();
    scene.hear("begun");
    let mut stop = Command::new(env!("CARGO_BIN_EXE_pollux-tune"));
    let stop = stop.arg("stop").arg(scene.file("study")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut stop = stop.spawn().expect("it can be started");
    scene.hear("asked");
    running.until("waiting for the programs of trial 0 to end");
    assert!(stop.try_wait().expect("it can be asked").is_none(), "the program still runs");
    scene.tell("release");
    assert!(stop.wait().expect("it ends").success());
    assert!(scene.file("saved").exists());
    assert_eq!(running.end().0, Some(130));
}

#[test]
fn a_second_interrupt_kills_at_once() {
    let script = "trap '' TERM; echo $$ > program; sh -c 'env -i setsid sleep 10000 & echo $! > child'; \
                  echo begun > begun; while :; do read line < never; done";
    let scene = Scene::new("twice", script, "", 1);
    let mut running = scene.run();
    scene.hear("begun");
    running.signal(Signal::INT);
    running.until("waiting for the programs of trial 0 to end");
    running.signal(Signal::INT);
    running.until("stopped at once");
    assert_eq!(running.end().0, Some(130));
    for process in ["program", "child"] {
        // They were killed before the head ended, and are gone as soon as the system gets to it.
        until(process, || !is_alive(&scene.text(process)));
    }
}

/// `timeout` sends its signal to the program and then to the whole group: that is one request.
#[test]
fn timeout_stops_a_run_in_an_orderly_way() {
    let scene = Scene::new("timeout", SAVES, "", 1);
    let running = scene.run_through(&["timeout", "--signal=TERM", "1000"]);
    scene.hear("begun");
    // What its clock would make it do.
    running.signal(Signal::TERM);
    scene.hear("asked");
    scene.tell("release");
    let (_, said) = running.end();
    assert!(!said.contains("stopped at once"), "{said}");
    assert!(scene.file("saved").exists());
}

#[test]
fn who_does_not_mind_the_end_of_the_terminal_goes_on() {
    let script = "echo begun > begun; read line < release; echo '{\"loss\": 1}'";
    let scene = Scene::new("nohup", script, "", 1);
    let running = scene.run_through(&["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]);
    scene.hear("begun");
    running.signal(Signal::HUP);
    scene.tell("release");
    assert_eq!(running.end().0, Some(0));
    assert_eq!(scene.ends(), [End::Done(vec![1.0])]);
}

/// Neither a session nor an environment of its own hides a process; with control groups and without.
#[test]
fn nothing_that_a_program_has_started_outlives_it() {
    for (name, groups) in [("tree", "off"), ("tree-cgroup", "on")] {
        let script = "for number in 1 2; do sh -c 'env -i setsid sh -c \"sleep 10000 & echo \\$! > inner; echo > ready; wait\" & \
                      echo $! > outer'; read line < ready; done; echo '{\"loss\": 1}'"
            .replace("ready", "begun");
        let scene = Scene::new(name, &script, "", 2);
        let running = Running::start(scene.command().env("POLLUX_TUNE_CGROUPS", groups));
        assert_eq!(running.end().0, Some(0), "{name}");
        assert_eq!(scene.ends(), [End::Done(vec![1.0]), End::Done(vec![1.0])]);
        for process in ["inner", "outer"] {
            assert!(!is_alive(&scene.text(process)), "{name}: {process}");
        }
    }
}

/// Nobody was there to end the program, and the next head began another one beside it.
#[test]
fn programs_end_with_a_head_that_is_killed_and_the_next_one_ends_the_rest() {
    let script = "if [ -e program ]; then for process in program child; do \
                  readlink /proc/$(cat $process)/exe && exit 1; done; echo '{\"loss\": 1}'; exit; fi; \
                  setsid sleep 10000 & echo $! > child; echo $$ > program; echo begun > begun; while :; do read line < never; done";
    let scene = Scene::new("killed", script, "", 1);
    let running = scene.run();
    scene.hear("begun");
    running.signal(Signal::KILL);
    running.end();
    until("the program ends with its head", || !is_alive(&scene.text("program")));
    assert!(is_alive(&scene.text("child")), "it cannot know");
    assert_eq!(scene.run().end().0, Some(0));
    assert_eq!(scene.ends(), [End::Done(vec![1.0])], "two attempts at once");
    assert!(!is_alive(&scene.text("child")));
}

/// Upgrades do that: `make install`, `pip install --upgrade`. No trial could be started any more.
#[test]
fn a_study_goes_on_when_its_own_program_is_replaced() {
    let script = "echo begun > begun; read line < release; echo '{\"loss\": 1}'";
    let scene = Scene::new("replaced", script, "", 3);
    let program = scene.file("pollux-tune");
    fs::hard_link(env!("CARGO_BIN_EXE_pollux-tune"), &program).expect("they are on one file system");
    let running = Running::start(&mut scene.command_of(&program));
    scene.hear("begun");
    fs::remove_file(&program).expect("it is there");
    scene.tell("release");
    scene.hear("begun");
    fs::write(&program, "another version").expect("nothing has this name");
    scene.tell("release");
    scene.hear("begun");
    scene.tell("release");
    assert_eq!(running.end().0, Some(0));
    assert_eq!(scene.ends(), vec![End::Done(vec![1.0]); 3]);
}

/// Everybody on the machine can connect to the page. The head had no files left for its trials.
#[test]
fn strangers_at_its_page_take_no_files_of_a_study() {
    let script = "echo begun > begun; read line < release; echo '{\"loss\": 1}'";
    let scene = Scene::new("strangers", script, "", 2);
    let run = scene.command();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 240; exec \"$@\"", "sh"]).arg(run.get_program()).args(run.get_args());
    let mut running = Running::start(limited.arg("--dashboard"));
    let line = running.until("dashboard: http://");
    let (_, address) = line.trim().split_once("http://").expect("an address");
    let (host, token) = address.split_once("/?token=").expect("a token");
    let ask = |path: &str| {
        let mut stream = TcpStream::connect(host).expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it is heard");
        BufReader::new(stream)
    };
    // Waits until the page says this.
    let hear = |mut page: BufReader<TcpStream>, words: &'static str| {
        in_time(words, move || {
            let mut line = String::new();
            while !line.contains(words) {
                line.clear();
                assert!(page.read_line(&mut line).expect("it is text") > 0, "it ended without `{words}`");
            }
            page
        })
    };
    scene.hear("begun");
    let viewer = hear(ask("/events"), "\"running\":true");
    let strangers: Vec<TcpStream> = (0..230).map(|_| TcpStream::connect(host).expect("it listens")).collect();
    scene.tell("release");
    scene.hear("begun");
    hear(viewer, "\"running\":true");
    hear(ask("/api/studies"), "HTTP/1.1 200");
    drop(strangers);
    scene.tell("release");
    let (code, said) = running.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("the study waits"), "{said}");
    assert_eq!(scene.ends(), vec![End::Done(vec![1.0]); 2]);
}

#[test]
fn a_program_is_known_before_it_begins() {
    let script = "grep -q \"\\\"pid\\\":$$,\" $POLLUX_TUNE_FOLDER/process && echo '{\"loss\": 1}'";
    let scene = Scene::new("known", script, "", 5);
    assert_eq!(scene.run().end().0, Some(0));
    assert_eq!(scene.ends(), vec![End::Done(vec![1.0]); 5]);
    let left: Vec<_> = (0..5)
        .filter(|trial| scene.file(&format!("study/checkpoints/trial-{trial}/process")).exists())
        .collect();
    assert!(left.is_empty(), "{left:?} has ended");
}

/// The head was killed before its launcher had begun: there is nobody whom the program could end with.
#[test]
fn a_launcher_without_its_head_starts_nothing() {
    let root = folder("launcher");
    let mark = root.join("mark").display().to_string();
    let record = serde_json::json!({"pid": 1, "start": 1, "boot": "none"});
    let orders = serde_json::json!({"words": ["touch", mark], "head": 1, "record": record, "home": root});
    for orders in [orders.to_string(), String::new()] {
        let mut launcher = Command::new(env!("CARGO_BIN_EXE_pollux-tune"));
        let launcher = launcher.env("POLLUX_TUNE_LAUNCHER", "1").stdin(Stdio::piped());
        let mut launcher = launcher.spawn().expect("it can be started");
        launcher.stdin.take().expect("it is piped").write_all(orders.as_bytes()).expect("it reads");
        assert_eq!(launcher.wait().expect("it ends").code(), Some(125));
        assert!(!root.join("mark").exists() && !root.join("process").exists());
    }
}

/// Programs of earlier versions have only their number on record.
#[test]
fn records_of_earlier_versions_are_honoured() {
    let scene = Scene::new("earlier", "echo '{\"loss\": 1}'", "", 1);
    assert_eq!(scene.run().end().0, Some(0));
    let home = scene.file("study/checkpoints/trial-0");
    let mut old = Command::new("sleep").arg("10000").env("POLLUX_TUNE_FOLDER", &home).spawn().expect("sleep");
    let mut other = Command::new("sleep").arg("10000").spawn().expect("sleep");
    fs::write(home.join("process"), old.id().to_string()).expect("it can be written");
    fs::create_dir_all(scene.file("study/checkpoints/trial-1")).expect("a folder");
    fs::write(scene.file("study/checkpoints/trial-1/process"), other.id().to_string())
        .expect("it can be written");
    assert_eq!(scene.run().end().0, Some(0));
    assert_eq!(old.wait().expect("it has ended").code(), None, "it was killed");
    assert!(other.try_wait().expect("it is ours").is_none(), "its number was given to somebody else");
    other.kill().expect("it runs");
    other.wait().expect("it ends");
}

/// 700 MB without an end of line were 700 MB of the head.
#[test]
fn what_a_program_prints_does_not_fill_the_memory() {
    let script = "case $POLLUX_TUNE_TRIAL in 0) head -c 200000000 /dev/zero | tr '\\0' x; echo; echo '{\"loss\": 0}';; \
                  *) sed -n 's/VmHWM:[^0-9]*\\([0-9]*\\).*/{\"loss\": \\1}/p' /proc/$PPID/status;; esac";
    let scene = Scene::new("memory", script, "", 2);
    assert_eq!(scene.run().end().0, Some(0));
    let [End::Done(first), End::Done(second)] = &scene.ends()[..] else { panic!("{:?}", scene.ends()) };
    assert_eq!(first, &[0.0]);
    assert!(second[0] > 1e3 && second[0] < 150e3, "{} kB at most", second[0]);
}

#[test]
fn a_program_that_cannot_be_started_says_why() {
    let scene = Scene::new("denied", "true", "", 1);
    fs::write(scene.file("program"), "no program").expect("it can be written");
    let study = scene.text("study.yaml");
    let (before, rest) = study.split_once("command: [").expect("a command");
    let (_, after) = rest.split_once("]\"}").or_else(|| rest.split_once("\"]}")).expect("its end");
    let study = format!("{before}command: [\"{}\"]}}{after}", scene.file("program").display());
    fs::write(scene.file("study.yaml"), study).expect("it can be written");
    scene.run().end();
    let [End::Failed(reason)] = &scene.ends()[..] else { panic!("{:?}", scene.ends()) };
    assert!(reason.contains("cannot be started: Permission denied"), "{reason}");
}

#[test]
fn a_silent_program_is_run_again() {
    let script = "if [ -e $POLLUX_TUNE_FOLDER/again ]; then echo '{\"loss\": 1}'; else \
                  touch $POLLUX_TUNE_FOLDER/again; kill -STOP $$; fi";
    let scene = Scene::new("silent", script, ", silence: 500ms", 1);
    assert_eq!(scene.run().end().0, Some(0));
    assert_eq!(scene.ends(), [End::Done(vec![1.0])]);
    let reasons = scene.facts().into_iter().filter_map(|fact| match fact {
        Fact::TrialInterrupted { reason, .. } => Some(reason),
        _ => None,
    });
    let reasons: Vec<String> = reasons.collect();
    assert!(matches!(&reasons[..], [reason] if reason.contains("`trial.silence`")), "{reasons:?}");
}
