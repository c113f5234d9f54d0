//! Workers that stand still: they are noticed, killed and replaced, and the trial goes on with those who do not.

use std::{
    env, fs,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use pollux_tune::{
    actors::{Runner, Training, TrainingEvent, TrainingSettings},
    ids::GpuType,
    space::{Params, Study},
    trials::{
        engine::{Fact, Outcome, Severity},
        group::Task,
    },
    worker::{BoxError, Dataset, Optimizer, Registry, Schedule, Slot, Trainable, serve_if_worker},
};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::json;
use tch::{Tensor, nn};

use crate::{
    common::{Folder, STEPS, assert_same, sgd, state, steps, task},
    net::Net,
};

/// Far longer than a step takes on a busy machine.
const SILENCE: Duration = Duration::from_secs(10);
/// For what comes sooner or later, also on a busy machine.
const SOON: Duration = Duration::from_secs(300);

/// A network whose training stands still at some step: on one worker, and once.
struct Hanging {
    net: Net,
    /// Whether it is the process that is stopped, or the code of the trainable that never returns.
    is_stopped: bool,
    /// What says that it was done; none on other workers.
    marker: Option<PathBuf>,
    passes: AtomicU32,
}

impl Hanging {
    fn new(root: &nn::Path, params: &Params) -> Result<Self, BoxError> {
        let is_it = |slot: &str| env::var("POLLUX_TUNE_WORKER_NODE").is_ok_and(|node| node == slot);
        let marker =
            params.text("victim").ok().filter(|slot| is_it(slot)).and_then(|_| params.text("marker").ok());
        Ok(Self {
            net: Net::new(root, params)?,
            is_stopped: params.bool("stopped").unwrap_or(false),
            marker: marker.map(PathBuf::from),
            passes: AtomicU32::new(0),
        })
    }

    fn stand_still(&self) -> Result<(), BoxError> {
        let passes = self.passes.fetch_add(1, Ordering::Relaxed);
        match &self.marker {
            Some(marker) if passes >= 20 && fs::File::create_new(marker).is_ok() => {}
            _ => return Ok(()),
        }
        if self.is_stopped {
            return Ok(kill_process(getpid(), Signal::STOP)?);
        }
        loop {
            thread::park();
        }
    }
}

impl Trainable for Hanging {
    fn optimizer(&self) -> Optimizer {
        self.net.optimizer()
    }

    fn learning_rate(&self, schedule: Schedule) -> f64 {
        self.net.learning_rate(schedule)
    }

    fn training_data(&self) -> Result<Box<dyn Dataset>, BoxError> {
        self.net.training_data()
    }

    fn test_data(&self) -> Result<Option<Box<dyn Dataset>>, BoxError> {
        self.net.test_data()
    }

    fn loss(&self, batch: &[Tensor]) -> Result<Tensor, BoxError> {
        self.stand_still()?;
        self.net.loss(batch)
    }

    fn evaluate(&self, batch: &[Tensor]) -> Result<Vec<(&'static str, Tensor)>, BoxError> {
        self.net.evaluate(batch)
    }
}

/// Not a test: what the worker processes of these tests run. Started by `cargo test` it does nothing.
#[test]
fn worker() {
    serve_if_worker(&Registry::default().with("hanging", Hanging::new));
}

fn arguments() -> Vec<String> {
    ["hangs::worker", "--exact", "--nocapture"].map(str::to_owned).into()
}

/// Trains a task on two workers to its end, and gives what has happened.
fn train(task: Task) -> Vec<TrainingEvent> {
    let settings = TrainingSettings {
        slots: vec![Slot { threads: 1, cuda: None }; 2],
        start: vec![0, 1],
        max_batch: None,
        max_batch_per_worker: 1000,
        worker_arguments: arguments(),
        python: None,
        silence: Some(SILENCE),
    };
    let task = Task { trainable: "hanging".to_owned(), ..task };
    let mut training = Training::start(vec![task], &settings).expect("it starts");
    let mut events = Vec::new();
    while !matches!(events.last(), Some(TrainingEvent::Finished { .. } | TrainingEvent::Failed { .. })) {
        events.push(training.next(SOON).expect("no failure of the head").expect("something happens"));
    }
    events
}

/// The thread that trains hangs for ever in the code of the trainable, while that of the connection lives; or the whole process is
/// stopped, as by a debugger, and holds its connections. The other member waits for it in the middle of the step, and is as silent.
#[test]
fn a_worker_that_stands_still_is_killed_and_the_other_one_goes_on_from_the_same_step() {
    let folder = Folder::new();
    train(task(&folder, "undisturbed", sgd()));
    let undisturbed = state(&folder, "undisturbed");
    // Most of the time they wait.
    let cases = [(0_u32, false), (1, false), (0, true), (1, true)].map(|(victim, stopped)| {
        let name = format!("victim-{victim}-{stopped}");
        let marker = folder.path().join(format!("{name}-stood-still"));
        let params = json!({"lr": 0.05, "victim": victim.to_string(), "stopped": stopped, "marker": marker});
        let task = task(&folder, &name, params);
        (name, victim, thread::spawn(move || train(task)))
    });
    for (name, victim, training) in cases {
        let events = training.join().expect("it ends");
        let lost: Vec<&TrainingEvent> =
            events.iter().filter(|event| matches!(event, TrainingEvent::Lost { .. })).collect();
        assert_eq!(lost, [&TrainingEvent::Lost { slot: victim }], "{name}");
        // Nobody goes back to a step that was done: only the survivor has it, and there is no checkpoint.
        let mut reported = 0;
        for event in &events {
            reported = reported.max(steps(event).unwrap_or(0));
            if let TrainingEvent::Formed { steps, .. } = event {
                assert!(*steps >= reported, "{name}: {steps} after {reported}");
            }
        }
        assert_eq!(reported, STEPS, "{name}");
        assert_same(&state(&folder, &name), &undisturbed, &name);
    }
}

/// The reason is in the journal, and nobody is to blame.
#[test]
fn the_journal_tells_why_a_worker_was_killed() {
    let folder = Folder::new();
    let marker = folder.path().join("stood-still");
    let yaml = format!(
        "
space: {{unused: {{float: [0, 1]}}, lr: 0.05, victim: {{fixed: \"0\"}}, marker: {}}}
objective: {{maximize: accuracy}}
trial: {{trainable: hanging, epochs: 6, initial_batch: 24, max_batch: 24, silence: 10s, checkpoint_interval: 1s}}
search: {{trials: 1, algorithm: random}}
",
        marker.display()
    );
    let facts = Arc::new(Mutex::new(Vec::new()));
    let seen = facts.clone();
    let finished = Runner::new(Study::from_yaml("study.yaml", &yaml).expect("a study"))
        .folder(folder.path().join("study"))
        .worker_arguments(arguments())
        .watch(move |_, entries| {
            seen.lock().expect("a list").extend(entries.iter().map(|entry| entry.fact.clone()));
        })
        .run_trainable(&GpuType::new("cpu").expect("a name"), &[Slot { threads: 1, cuda: None }])
        .expect("it runs");
    assert_eq!(finished.outcome, Outcome::Done);
    let mut done = 0;
    let mut reasons = Vec::new();
    for fact in facts.lock().expect("a list").drain(..) {
        match fact {
            Fact::SlotLost { reason, .. } => reasons.push(reason),
            Fact::TrialInterrupted { severity, reason, .. } => {
                assert_eq!(severity, Severity::Normal, "{reason}");
            }
            Fact::TrialFailed { reason, .. } => panic!("{reason}"),
            Fact::TrialDone { .. } => done += 1,
            _ => {}
        }
    }
    assert_eq!(done, 1);
    let [reason] = &reasons[..] else { panic!("{reasons:?}") };
    let silent = reason.strip_prefix("worker 0.0 made no step for ").expect(reason);
    assert!(silent.ends_with(" s, expected at most 10 s: it was killed"), "{reason}");
}
