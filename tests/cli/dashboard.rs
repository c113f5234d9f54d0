//! `pollux-tune dashboard` and `run --dashboard`: real processes, asked as a browser would.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use pollux_tune::{
    ids::TrialId,
    store::{Journal, Store},
    trials::engine::{Fact, JournalEntry},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const YAML: &str = "space: {lr: {log: [1e-5, 1]}}\nobjective: {minimize: loss}\ntrial: {command: [\"true\"]}\nsearch: {trials: 4}\n";

/// An empty folder for one test.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboard").join(name);
    if path.exists() {
        fs::remove_dir_all(&path).expect("what an earlier run left can be removed");
    }
    fs::create_dir_all(&path).expect("it can be made");
    path
}

fn append(store: &mut Store, at_s: f64, facts: Vec<Fact>) {
    let entries: Vec<JournalEntry> = facts.into_iter().map(|fact| JournalEntry { at_s, fact }).collect();
    store.append(&entries).expect("it can be written");
}

fn created(trial: u32) -> Fact {
    let study = pollux_tune::space::Study::from_yaml("study.yaml", YAML).expect("it is right");
    let point = vec![Some(0.1 + 0.2 * f64::from(trial))];
    let params = study.space.decode(&point).expect("a point");
    Fact::TrialCreated { trial: TrialId(trial), params, point }
}

/// A study with a finished trial and one that has failed.
fn study(root: &Path) -> Store {
    let mut store = Store::open(root).expect("a new one");
    let (trial, reason) = (TrialId(1), "Traceback (most recent call last):\n  boom".to_owned());
    let facts = vec![
        Fact::StudyCreated { yaml: YAML.to_owned() },
        Fact::HeadStarted {},
        created(0),
        created(1),
        Fact::TrialDone { trial: TrialId(0), values: vec![0.5] },
        Fact::TrialFailed { trial, reason },
    ];
    append(&mut store, 10.0, facts);
    store
}

/// A process with a page.
struct Page {
    process: Child,
    host: String,
    token: String,
    cookie: String,
    /// So that its output has somewhere to go.
    _lines: Box<dyn BufRead>,
}

struct Response {
    status: u16,
    head: String,
    body: String,
}

impl Response {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl Page {
    fn serve(folder: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pollux-tune"));
        command.arg("dashboard").arg(folder).args(["--port", "0"]).args(more);
        let mut process =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it can be started");
        let lines = BufReader::new(process.stdout.take().expect("it is piped"));
        Self::of(process, lines)
    }

    /// Reads the address from what the process prints, and gets the cookie.
    fn of(process: Child, mut lines: impl BufRead + 'static) -> Self {
        let mut line = String::new();
        while !line.starts_with("dashboard: http://") {
            line.clear();
            assert!(lines.read_line(&mut line).expect("it is text") > 0, "it has ended");
        }
        let (host, token) =
            line.trim_start_matches("dashboard: http://").trim().split_once("/?token=").expect("an address");
        let (host, token) = (host.to_owned(), token.to_owned());
        let mut page = Self { process, host, token, cookie: String::new(), _lines: Box::new(lines) };
        let welcome = page.send("GET", &format!("/?token={}", page.token), "", "");
        assert_eq!(welcome.status, 200, "{}", welcome.body);
        let cookie =
            welcome.head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
        cookie.split(';').next().expect("its value").clone_into(&mut page.cookie);
        page
    }

    fn open(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.host).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a time");
        let host =
            if headers.contains("Host: ") { String::new() } else { format!("Host: {}\r\n", self.host) };
        let length = body.len();
        let text = format!(
            "{method} {path} HTTP/1.1\r\n{host}{headers}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(text.as_bytes()).expect("it is heard");
        stream
    }

    fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Response {
        let mut bytes = Vec::new();
        self.open(method, path, headers, body).read_to_end(&mut bytes).expect("an answer");
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").expect("an answer");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        Response { status, head: head.to_owned(), body: body.to_owned() }
    }

    fn cookie(&self) -> String {
        format!("Cookie: {}\r\n", self.cookie)
    }

    fn get(&self, path: &str) -> Response {
        self.send("GET", path, &self.cookie(), "")
    }

    fn ask(&self, path: &str) -> Value {
        let response = self.get(path);
        assert_eq!(response.status, 200, "{path}: {}", response.body);
        response.json()
    }

    /// As the scripts of the page do.
    fn act(&self, path: &str, body: &str) -> Response {
        self.send("POST", path, &format!("{}X-Pollux-Tune: 1\r\n", self.cookie()), body)
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.id().cast_signed()).expect("a process");
        kill_process(pid, signal).expect("it runs");
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const ASSETS: [&str; 4] = ["app.js", "style.css", "vendor/echarts.js", "views/timeline.js"];

#[test]
fn nothing_is_shown_without_the_token() {
    let root = folder("token");
    drop(study(&root));
    let page = Page::serve(&root, &[]);
    let assets = ASSETS.map(|name| format!("/assets/{name}"));
    let paths = ["/", "/events", "/api/studies", "/api/studies/token", "/nothing"].map(str::to_owned);
    for path in paths.iter().chain(&assets) {
        let refused = page.send("GET", path, "", "");
        assert_eq!(refused.status, 403, "{path}");
        assert!(refused.head.contains("content-security-policy: default-src 'none'"), "{}", refused.head);
        let wrong = page.send("GET", &format!("{path}?token={}", "0".repeat(32)), "", "");
        assert_eq!(wrong.status, 403, "{path}");
        let rebound = page.send("GET", path, &format!("Host: evil.example\r\n{}", page.cookie()), "");
        assert_eq!(rebound.status, 403, "{path}");
    }
    for path in &assets {
        assert_eq!(page.get(path).status, 200, "{path}");
    }
    assert!(page.get("/").body.contains("<script type=\"module\" src=\"/assets/app.js\">"));
    assert_eq!(page.get("/nothing").status, 404);
    assert_eq!(page.get("/assets/../Cargo.toml").status, 404);
}

#[test]
fn a_finished_study_is_shown_and_retried() {
    let root = folder("finished");
    drop(study(&root));
    let page = Page::serve(&root, &[]);
    let all = page.ask("/api/studies");
    assert_eq!(
        (&all["studies"][0]["key"], &all["studies"][0]["state"]),
        (&json!("finished"), &json!("stopped"))
    );
    let about = page.ask("/api/studies/finished");
    assert_eq!((&about["best"]["id"], &about["can"]["retry"]), (&json!(0), &json!(true)));
    let failed = page.ask("/api/studies/finished/trials?state=failed");
    assert_eq!((&failed["found"], &failed["trials"][0]["id"]), (&json!(1), &json!(1)));
    let trial = page.ask("/api/studies/finished/trials/1");
    assert!(trial["reason"].as_str().is_some_and(|reason| reason.contains("Traceback")), "{trial}");
    for path in ["history", "running", "timeline", "analysis", "nodes", "compare?trials=0,1"] {
        page.ask(&format!("/api/studies/finished/{path}"));
    }
    assert_eq!(page.ask("/api/compare?studies=finished")["studies"][0]["points"][0][2], json!(0.5));
    let few = page.ask("/api/studies/finished/importance");
    assert!(few["shares"].is_null() && few["note"].is_string(), "one trial is too few: {few}");
    for (path, status) in [
        ("other", 404),
        ("finished/trials/9", 404),
        ("finished/trials/x", 404),
        ("finished/trials?limit=x", 400),
        ("finished/compare?trials=a", 400),
    ] {
        assert_eq!(page.get(&format!("/api/studies/{path}")).status, status, "{path}");
    }
    // Only as the page itself asks.
    let retry = "/api/studies/finished/retry";
    assert_eq!(page.send("POST", retry, &page.cookie(), "{}").status, 403, "without its header");
    let elsewhere = format!("{}X-Pollux-Tune: 1\r\nOrigin: http://evil.example\r\n", page.cookie());
    assert_eq!(page.send("POST", retry, &elsewhere, "{}").status, 403);
    assert_eq!(page.act(retry, "{\"trials\": [1.5]}").status, 400);
    assert_eq!(page.act(retry, "{\"trials\": [0]}").status, 409, "it has not failed");
    let done = page.act(retry, "");
    assert_eq!(done.status, 200, "{}", done.body);
    assert!(
        done.json()["message"].as_str().is_some_and(|text| text.starts_with("trial 1 runs again with: "))
    );
    assert_eq!(page.ask("/api/studies/finished")["trials"], json!({"done": 1, "waiting": 1}));
}

#[test]
fn a_page_may_only_show() {
    let root = folder("read-only");
    drop(study(&root));
    let page = Page::serve(&root, &["--read-only"]);
    assert_eq!(page.ask("/api/studies/read-only")["can"]["retry"], json!(false));
    let refused = page.act("/api/studies/read-only/retry", "");
    assert!(refused.status == 409 && refused.body.contains("--read-only"), "{}", refused.body);
}

#[test]
fn browsers_hear_of_what_happens() {
    let root = folder("live");
    let mut store = study(&root);
    let page = Page::serve(&root, &[]);
    let mut events = BufReader::new(page.open("GET", "/events", &page.cookie(), ""));
    let mut next = |facts: u64| {
        let mut line = String::new();
        while !line.contains(&format!("\"facts\":{facts},")) {
            line.clear();
            assert!(events.read_line(&mut line).expect("in time") > 0, "it goes on");
        }
        line
    };
    assert!(next(6).contains("\"study\":\"live\""));
    append(&mut store, 11.0, vec![created(2)]);
    next(7);
    let about = page.ask("/api/studies/live");
    assert_eq!((&about["trials"]["waiting"], &about["state"]), (&json!(1), &json!("running")));
}

#[test]
fn studies_that_begin_later_join() {
    let root = folder("many");
    drop(study(&root.join("first")));
    let page = Page::serve(&root, &[]);
    assert_eq!(page.ask("/api/studies")["studies"].as_array().map(Vec::len), Some(1));
    drop(study(&root.join("second")));
    let keys = page.ask("/api/studies");
    let keys: Vec<&str> =
        keys["studies"].as_array().into_iter().flatten().filter_map(|study| study["key"].as_str()).collect();
    assert_eq!(keys, ["first", "second"]);
    assert_eq!(page.ask("/api/studies/second")["best"]["id"], json!(0));
    fs::write(root.join("second/journal.sqlite"), "rubbish").expect("it is there");
    let damaged = page.ask("/api/studies");
    assert!(damaged["studies"][1]["problem"].is_string(), "{damaged}");
    assert_eq!(page.ask("/api/studies/first")["problem"], Value::Null);
}

#[test]
fn a_study_that_runs_is_shown_and_stopped() {
    let root = folder("running");
    // A trial says what it has, and waits until it is ended.
    let script = r#"echo '{"epochs": 1, "loss": 0.5}'; exec sleep 600"#;
    let yaml = format!(
        "space: {{x: {{float: [0, 1]}}}}\nobjective: {{minimize: loss}}\ntrial: {{command: [sh, -c, {}]}}\nsearch: {{trials: 9, parallel: 1}}\n",
        json!(script)
    );
    fs::write(root.join("study.yaml"), yaml).expect("it can be written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pollux-tune"));
    command
        .arg("run")
        .arg(root.join("study.yaml"))
        .arg("--folder")
        .arg(root.join("s"))
        .args(["--cpu", "--dashboard"]);
    let mut process =
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it can be started");
    let lines = BufReader::new(process.stderr.take().expect("it is piped"));
    let mut page = Page::of(process, lines);
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let begun = std::time::Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(120), "{what}");
            std::thread::yield_now();
        }
    };
    // Before its first fact there is no study.
    let running = || page.get("/api/studies/s/running").json();
    until("the first trial reports", &|| running()["trials"][0]["values"]["loss"] == json!(0.5));
    let can = |resume: bool| json!({"stop": true, "stop_trial": true, "retry": false, "enqueue": true, "pause": !resume, "resume": resume});
    assert_eq!(page.ask("/api/studies/s")["can"], can(false));
    let paused = page.act("/api/studies/s/pause", "");
    assert!(
        paused.status == 200 && paused.body.contains("1 running trial runs to its end"),
        "{}",
        paused.body
    );
    until("it is paused", &|| page.ask("/api/studies/s")["state"] == json!("paused"));
    assert_eq!(page.ask("/api/studies/s")["can"], can(true));
    let resumed = page.act("/api/studies/s/resume", "");
    assert!(resumed.status == 200 && resumed.body.contains("trials are launched again"), "{}", resumed.body);
    until("it continues", &|| page.ask("/api/studies/s")["state"] == json!("running"));
    let wrong = page.act("/api/studies/s/enqueue", r#"{"values": {"x": "7"}}"#);
    assert!(wrong.status == 409 && wrong.body.contains("`x`"), "{}", wrong.body);
    let known = page.act("/api/studies/s/enqueue", r#"{"values": {"x": "0.25"}}"#);
    assert!(known.status == 200 && known.body.contains("enqueued: x=0.25"), "{}", known.body);
    let stopped = page.act("/api/studies/s/trials/0/stop", "");
    assert_eq!((stopped.status, stopped.json()), (200, json!({"message": "trial 0 is stopped"})));
    until("the next trial gets the slot", &|| running()["trials"][0]["id"] == json!(1));
    assert_eq!(page.ask("/api/studies/s/trials/1")["params"]["x"], json!(0.25), "it was enqueued");
    let trial = page.ask("/api/studies/s/trials/0");
    assert_eq!((&trial["state"], &trial["reason"]), (&json!("cancelled"), &json!("stopped by its user")));
    let again = page.act("/api/studies/s/trials/0/stop", "");
    assert!(
        again.status == 409 && again.body.contains("trial 0 has ended already: it is cancelled"),
        "{}",
        again.body
    );
    assert_eq!(page.act("/api/studies/s/stop", "").status, 200);
    assert_eq!(page.process.wait().expect("it ends").code(), Some(130));
}

#[test]
fn it_ends_with_ctrl_c_though_browsers_listen() {
    let root = folder("end");
    drop(study(&root));
    let mut page = Page::serve(&root, &[]);
    let mut events = BufReader::new(page.open("GET", "/events", &page.cookie(), ""));
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(events.read_line(&mut line).expect("in time") > 0, "it is served");
    }
    page.signal(Signal::INT);
    assert_eq!(page.process.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_folder_without_a_study_is_refused() {
    let root = folder("nothing");
    let output = Command::new(env!("CARGO_BIN_EXE_pollux-tune"))
        .arg("dashboard")
        .arg(&root)
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.starts_with("error: there is no study in "), "{text}");
}
