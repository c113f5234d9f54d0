//! What it costs to run a study: trials that do nothing, facts on their way to disk, and the way back.
//!
//! `make bench-study` prints the figures of `docs/performance.md`, Ray Tune's in the same run. Compare figures within a run.

mod growth;
mod head;
mod scale;

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::{Command as Process, Stdio},
    time::Instant,
};

use pollux_tune::{
    actors::Runner,
    goodput::{Observation, Shape},
    ids::{Generation, NodeId, TrialId},
    space::{Params, Study},
    store::{Journal, Memory, Reader, Store},
    trials::engine::{
        Command, Engine, Fact, GroupCommand, GroupEvent, Input, JournalEntry, Launch, Metrics,
        SuggestService, TrialKind,
    },
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[expect(clippy::print_stdout, reason = "it prints a table")]
fn main() -> Result<()> {
    if scale::open_if_asked()? {
        return Ok(());
    }
    // `cargo test --benches` only wants to know whether it runs.
    let trials = if std::env::args().any(|argument| argument == "--bench") { 10_000 } else { 100 };
    if std::env::args().any(|argument| argument == "--growth") {
        return growth::measure(&[100, 1000, 10_000]);
    }
    let python = std::env::args().find_map(|argument| Some(argument.strip_prefix("--ray=")?.to_owned()));
    scale::measure(&folder("scale")?, 10 * trials)?;
    for algorithm in ["random", "tpe"] {
        let study = study(trials, algorithm)?;
        let (seconds, facts) = whole(&study, &folder("whole")?)?;
        show(&format!("{trials} trials, {algorithm}, whole studies"), seconds, trials, facts);
        if let (Some(python), "random") = (&python, algorithm) {
            ray(python, f64::from(trials) / seconds)?;
        }
    }
    for algorithm in ["random", "tpe"] {
        let (seconds, facts) = run(&study(trials, algorithm)?, &mut Memory::default())?;
        show(&format!("{trials} trials, {algorithm}, in memory"), seconds, trials, facts);
        let folder = folder("run")?;
        let (seconds, facts) = run(&study(trials, algorithm)?, &mut Store::open(&folder)?)?;
        show(&format!("{trials} trials, {algorithm}, on disk"), seconds, trials, facts);
    }
    let seconds = if trials > 100 { 60 } else { 1 };
    let share = head::load(&folder("head")?, seconds)?;
    println!(
        "the head of 64 emulated workers and 16 trials at time scale 1: {:.1} % of a core",
        100.0 * share
    );
    growth::measure(if trials > 100 { &[100, 1000, 10_000] } else { &[10] })?;
    appends(trials)?;
    replay(&study(trials, "tpe")?)
}

#[expect(clippy::print_stdout, reason = "it prints a table")]
fn show(what: &str, seconds: f64, trials: u32, facts: u64) {
    let (trials, facts) = (f64::from(trials) / seconds, facts as f64 / seconds);
    println!("{what:<40} {seconds:>8.3} s {trials:>10.0} trials/s {facts:>10.0} facts/s");
}

fn folder(name: &str) -> Result<PathBuf> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-study").join(name);
    if path.exists() {
        fs::remove_dir_all(&path)?;
    }
    Ok(path)
}

fn study(trials: u32, algorithm: &str) -> Result<Study> {
    let yaml = format!(
        "
space: {{lr: {{log: [1e-5, 1]}}, width: {{int: [1, 64]}}, act: [relu, gelu]}}
objective: {{minimize: loss}}
search: {{trials: {trials}, parallel: 8, algorithm: {algorithm}}}
"
    );
    Ok(Study::from_yaml("study.yaml", &yaml)?)
}

/// Runs a study with all its actors; its trials are functions that end at once, each on one of 8 threads.
fn whole(study: &Study, folder: &Path) -> Result<(f64, u64)> {
    let start = Instant::now();
    let finished = Runner::new(study.clone()).folder(folder).run_function(|trial| {
        let loss = trial.params().float("lr")?;
        Ok(Metrics::from([("loss".to_owned(), loss.into())]))
    })?;
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(finished.search().trials().len(), study.search.trials as usize, "all trials were run");
    Ok((seconds, Reader::open(folder)?.status()?.facts))
}

/// The same with Ray Tune, but fewer trials: it would take hours.
#[expect(clippy::print_stdout, reason = "it prints a table")]
fn ray(python: &str, ours: f64) -> Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/study/ray_tune.py");
    let output = Process::new(python).arg(script).args(["200", "8"]).stderr(Stdio::null()).output()?;
    let text = String::from_utf8(output.stdout)?;
    let last = text.lines().last().ok_or("Ray Tune has said nothing")?;
    let told: serde_json::Value = serde_json::from_str(last)?;
    let (theirs, version) = (told["per_second"].as_f64().ok_or("no figure")?, &told["ray"]);
    println!(
        "200 trials, random, Ray Tune {version}: {theirs:.2} trials/s, ours are {:.0} times as many",
        ours / theirs
    );
    Ok(())
}

/// Runs a study whose trials end at once; every fact is journaled before anything is done about it.
fn run(study: &Study, journal: &mut dyn Journal) -> Result<(f64, u64)> {
    let start = Instant::now();
    let mut engine = Engine::new(study, TrialKind::Rigid)?;
    let mut suggesting = SuggestService::new(study)?;
    let gpu_type = "cpu".to_owned().try_into()?;
    let mut inputs = vec![
        Input::NodeJoined { node: NodeId(0), name: String::new(), gpu_type, island: 0, slots: 8 },
        Input::Started,
    ];
    while let Some(input) = inputs.pop() {
        let step = engine.handle(input, start.elapsed().as_secs_f64());
        journal.append(&step.facts)?;
        for entry in &step.facts {
            suggesting.apply(entry)?;
        }
        for command in step.commands {
            match command {
                Command::Suggest(request) => inputs.push(suggesting.answer(request)),
                Command::Group {
                    trial,
                    command: GroupCommand::Launch(Launch { generation, params, .. }),
                } => {
                    let metrics = Metrics::from([("loss".to_owned(), params.float("lr")?.into())]);
                    inputs.insert(0, Input::group(trial, generation, GroupEvent::Finished(metrics)));
                }
                _ => {}
            }
        }
    }
    assert!(engine.state().done, "all trials were run");
    Ok((start.elapsed().as_secs_f64(), engine.state().facts))
}

/// Reports as elastic trials make them, in transactions of different sizes.
fn appends(count: u32) -> Result<()> {
    for batch in [1, 10, 100, 1000] {
        let facts: Vec<JournalEntry> = (0..count).map(report).collect();
        let mut store = Store::open(&folder("append")?)?;
        let created = (0..16).map(|trial| {
            let fact = Fact::TrialCreated { trial: TrialId(trial), params: Params::default(), point: vec![] };
            JournalEntry { at_s: 0.0, fact }
        });
        store.append(&created.collect::<Vec<_>>())?;
        let start = Instant::now();
        for facts in facts.chunks(batch) {
            store.append(facts)?;
        }
        show(&format!("reports, {batch} in a transaction"), start.elapsed().as_secs_f64(), 0, count.into());
    }
    Ok(())
}

fn report(number: u32) -> JournalEntry {
    let shape = Shape::new(4, 1).expect("four GPUs of a node");
    let steps = vec![Observation { shape, per_gpu: 64.0, accumulation: 0, iter_time_s: 0.1, steps: 10.0 }];
    let fact = Fact::Measured {
        trial: TrialId(number % 16),
        generation: Generation(3),
        number,
        epochs: f64::from(number) * 1e-3,
        metrics: Metrics::from([("loss".to_owned(), 0.5.into()), ("accuracy".to_owned(), 0.9.into())]),
        gpu_type: "t4".to_owned().try_into().ok(),
        steps,
        noise: None,
        noise_batch: None,
    };
    JournalEntry { at_s: f64::from(number), fact }
}

/// The way back after a restart.
fn replay(study: &Study) -> Result<()> {
    let folder = folder("replay")?;
    run(study, &mut Store::open(&folder)?)?;
    let start = Instant::now();
    let entries = Reader::open(&folder)?.entries(0)?;
    show("journal read", start.elapsed().as_secs_f64(), study.search.trials, entries.len() as u64);
    let start = Instant::now();
    let mut engine = Engine::new(study, TrialKind::Rigid)?;
    entries.iter().try_for_each(|entry| engine.apply(entry))?;
    show("journal replayed", start.elapsed().as_secs_f64(), study.search.trials, entries.len() as u64);
    let reader = Reader::open(&folder)?;
    let start = Instant::now();
    let (status, best) = (reader.status()?, reader.best(10)?);
    assert!(status.done && best.len() == 10, "they are all there");
    show("status and the best 10", start.elapsed().as_secs_f64(), study.search.trials, status.facts);
    Ok(())
}
