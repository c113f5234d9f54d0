//! `init`, `doctor`, `completions` and `man`: what a newcomer types first.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_pollux-tune");

/// An empty folder for one test.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if path.exists() {
        fs::remove_dir_all(&path).expect("what an earlier run left can be removed");
    }
    fs::create_dir_all(&path).expect("the folder for tests can be written");
    path
}

fn typed(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).current_dir(folder).output().expect("it can be started")
}

/// What it printed, if it has succeeded.
fn printed(folder: &Path, arguments: &[&str]) -> String {
    let ended = typed(folder, arguments);
    assert!(ended.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8(ended.stdout).expect("it prints text")
}

#[test]
fn a_first_study_is_valid_and_runs_as_it_is() {
    let folder = folder("init-program");
    assert_eq!(printed(&folder, &["init"]), "wrote study.yaml\nnext: pollux-tune run study.yaml\n");
    assert!(printed(&folder, &["check", "study.yaml"]).contains("ok, 2 dimensions"));
    let results = printed(&folder, &["run", "study.yaml", "--trials", "3", "--cpu", "--quiet"]);
    assert!(results.contains("loss"), "{results}");
    let trials = printed(&folder, &["trials", "studies/study", "--json"]);
    assert_eq!(trials.lines().count(), 3, "{trials}");
    assert!(!trials.contains("failed"), "{trials}");
}

/// The block of a language after a heading of a page.
fn block(page: &str, heading: &str, language: &str) -> String {
    let (_, part) = page.split_once(heading).expect("the heading is there");
    let (_, rest) = part.split_once(&format!("```{language}\n")).expect("there is such a block");
    rest.split_once("```").expect("it ends").0.to_owned()
}

#[test]
fn the_objective_of_the_quick_start_is_ten_lines_and_runs_as_it_is_printed() {
    const HEADING: &str = "## An objective of your own, in ten lines\n";
    let page = include_str!("../../docs/quick-start.md");
    let folder = folder("quick-start");
    let script = block(page, HEADING, "python");
    assert!(script.lines().count() <= 10, "{script}");
    fs::write(folder.join("train.py"), script).expect("it can be written");
    fs::write(folder.join("mine.yaml"), block(page, HEADING, "yaml")).expect("it can be written");
    for command in block(page, HEADING, "sh").lines() {
        let typed: Vec<&str> = command.split('#').next().expect("a command").split_whitespace().collect();
        let said = printed(&folder, &typed[1..]);
        assert!(!said.is_empty(), "{command}");
    }
    let best = printed(&folder, &["best", "studies/mine", "-n", "1", "--json"]);
    assert!(best.contains("\"loss\":") && best.contains("\"layers\":"), "{best}");
}

#[test]
fn paths_in_a_study_file_are_seen_from_its_folder() {
    let folder = folder("run-from-elsewhere");
    for below in ["files", "work"] {
        fs::create_dir(folder.join(below)).expect("it is new");
    }
    let study = |trial: &str| {
        let text =
            format!("space: {{x: {{float: [0, 1]}}}}\nobjective: {{minimize: loss}}\ntrial: {{{trial}}}\n");
        fs::write(folder.join("files/study.yaml"), text).expect("it can be written");
    };
    study(r#"command: [sh, -c, 'touch here && echo "{\"loss\": 1}"'], folder: ../work"#);
    printed(&folder, &["run", "files/study.yaml", "--trials", "1", "--cpu", "--quiet"]);
    assert!(folder.join("work/here").is_file());
    study("python: train.py");
    fs::write(folder.join("train.py"), "").expect("it can be written");
    let refused = typed(&folder, &["check", "files/study.yaml"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        said.contains("`train.py`, which does not exist") && said.contains("the folder of the study file"),
        "{said}"
    );
    fs::rename(folder.join("train.py"), folder.join("files/train.py")).expect("it can be moved");
    assert!(typed(&folder, &["check", "files/study.yaml"]).status.success());
}

#[test]
fn a_first_python_study_is_valid_wherever_it_is() {
    let folder = folder("init-python");
    let said = printed(&folder, &["init", "--python", "my studies/first.yaml"]);
    assert!(said.starts_with("wrote my studies/first.yaml\nwrote my studies/train.py\n"), "{said}");
    assert!(said.contains("pollux-tune run 'my studies/first.yaml'"), "{said}");
    assert!(printed(&folder, &["check", "my studies/first.yaml"]).contains("maximize accuracy"));
}

#[test]
fn a_first_rust_project_is_whole() {
    let folder = folder("init-rust");
    let said = printed(&folder, &["init", "--rust", "mine"]);
    for file in ["Cargo.toml", "build.rs", "src/main.rs", "study.yaml", "README.md", ".cargo/config.toml"] {
        assert!(said.contains(&format!("wrote mine/{file}\n")), "{said}");
    }
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
        .arg(folder.join("mine/Cargo.toml"))
        .output()
        .expect("there is a cargo");
    let metadata = String::from_utf8_lossy(&metadata.stdout).into_owned();
    assert!(
        metadata.contains(r#""name":"mine""#) && metadata.contains(r#""kind":["custom-build"]"#),
        "{metadata}"
    );
    let checked = typed(&folder, &["check", "mine/study.yaml"]);
    if cfg!(feature = "torch") {
        // Its trainable is one of the project's own program, whose test is in crates/template.
        let said = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert_eq!(checked.status.code(), Some(2), "{said}");
        assert!(said.contains("`rings`, which is not a trainable of this program"), "{said}");
    } else {
        assert!(String::from_utf8_lossy(&checked.stdout).contains("3 dimensions"));
    }
}

#[test]
fn init_overwrites_nothing_and_then_writes_nothing() {
    let folder = folder("init-again");
    fs::write(folder.join("train.py"), "mine").expect("it can be written");
    let ended = typed(&folder, &["init", "--python"]);
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert_eq!(said, "error: train.py exists: `init` overwrites nothing, give another name\n");
    assert!(!folder.join("study.yaml").exists());
    assert_eq!(fs::read_to_string(folder.join("train.py")).expect("it is there"), "mine");
    assert_eq!(typed(&folder, &["init", "--rust", "1st"]).status.code(), Some(2));
    assert!(!folder.join("1st").exists());
}

#[test]
fn a_doctor_names_each_problem_and_its_remedy() {
    let folder = folder("doctor");
    let study = "space: {lr: {log: [1e-4, 1]}}\nobjective: {minimize: loss}\ntrial: {python: train.py, interpreter: ./no-python}\n";
    fs::write(folder.join("study.yaml"), study).expect("it can be written");
    fs::write(folder.join("train.py"), "").expect("it can be written");
    let ended = typed(&folder, &["doctor", "study.yaml", "--json"]);
    assert_eq!(ended.status.code(), Some(1), "{}", String::from_utf8_lossy(&ended.stderr));
    let report: serde_json::Value = serde_json::from_slice(&ended.stdout).expect("it is JSON");
    assert_eq!(report["ready"], false);
    let findings = report["findings"].as_array().expect("a list");
    let of = |check: &str| findings.iter().find(|finding| finding["check"] == check).expect("it was checked");
    assert_eq!(of("python")["level"], "problem");
    assert!(of("python")["remedy"].as_str().is_some_and(|remedy| remedy.contains("trial.interpreter")));
    for check in ["program", "gpus", "slurm", "disk", "temp", "network", "files", "cgroups"] {
        assert!(of(check)["found"].is_string(), "{check}");
    }
    // Nothing is left behind.
    assert_eq!(fs::read_dir(&folder).expect("it is there").count(), 2);
    assert_eq!(typed(&folder, &["doctor", "missing.yaml"]).status.code(), Some(2));
}

#[test]
fn completions_are_scripts_that_their_shell_understands() {
    let folder = folder("completions");
    let script = printed(&folder, &["completions", "bash"]);
    fs::write(folder.join("script"), script).expect("it can be written");
    let read = Command::new("bash").args(["-n", "script"]).current_dir(&folder).status();
    assert!(read.expect("the scripts of this project need bash, too").success());
    assert!(printed(&folder, &["man", "man1"]).contains("man1"));
    assert!(folder.join("man1/pollux-tune-run.1").is_file());
}
