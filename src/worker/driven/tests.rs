//! A driver that trains nothing: what it is asked, and what the head hears of its answers.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use tokio::sync::mpsc::unbounded_channel;

use super::{backend::Attention, *};
use crate::{
    ids::{NodeId, Round, SlotId, TrialId},
    trials::{
        engine::FailureCause,
        group::{Batch, FinalState, Form, Member, Task, WorkerCommand, WorkerEvent},
    },
    wire::Secret,
    worker::{abort::Aborts, host::HostedTrial, rendezvous::Rendezvous},
};

/// For what comes sooner or later, also on a busy machine.
const SOON: Duration = Duration::from_secs(60);
const SLOT: SlotId = SlotId { node: NodeId(0), index: 0 };

/// Answers as a training would, with a data set of 64 examples; fails at this step.
fn drive(worker: &DrivenWorker, fails_at: Option<u64>) {
    let mut books: Option<Arc<Mutex<Training>>> = None;
    while let Some(request) = worker.next() {
        let answer = match (request, &books) {
            (Request::Prepare { training, .. }, _) => {
                training.lock().expect("no panic").open(64, true).expect("there are examples");
                books = Some(training);
                Answer::Done
            }
            (Request::Form(group), Some(books)) => {
                books.lock().expect("no panic").form(group.group_place());
                Answer::Formed { form_s: 0.0, hand_over_s: 0.0 }
            }
            (Request::Train { leave, retune }, Some(books)) => {
                let mut books = books.lock().expect("no panic");
                if fails_at == Some(books.steps()) {
                    Answer::Failed { fault: Fault::Trial, reason: "Traceback".to_owned() }
                } else {
                    books.stepped(Some(0.01), 0.1, Some(1.0)).expect("a step");
                    Answer::Trained(Trained { left: leave, retuned: retune, ..Trained::default() })
                }
            }
            (Request::Evaluate, _) => Answer::Evaluated(BTreeMap::from([("loss".to_owned(), 1.0)])),
            (Request::Save, _) => {
                let (name, dtype) = ("model.weight".to_owned(), "F64".to_owned());
                Answer::Saved(vec![SavedTensor { name, dtype, shape: vec![2, 1], data: vec![7; 16] }])
            }
            _ => Answer::Done,
        };
        worker.answer(answer);
    }
}

fn task(name: &str) -> Task {
    let folder = std::env::temp_dir().join(format!("pollux-driven-{name}-{}", std::process::id()));
    Task { initial_batch: 8, checkpoint: folder, ..Task::new(TrialId(3), "train.py") }
}

/// The events of a worker that prepares a trial and trains it alone, until one is the last.
fn events_of(task: &Task, fails_at: Option<u64>, is_last: impl Fn(&WorkerEvent) -> bool) -> Vec<WorkerEvent> {
    let (send, commands) = unbounded_channel();
    let (event, events) = mpsc::channel();
    let rendezvous = Rendezvous::host(None, &Secret::random().expect("random numbers")).expect("a free port");
    let address = rendezvous.address().to_owned();
    let around = (Aborts::default(), HostedTrial::default(), Arc::new(Attention::new()));
    let tell = move |said| drop(event.send(said));
    let worker = DrivenWorker::start(SLOT, rendezvous, around, commands, tell, ()).expect("threads");
    let driver = thread::spawn(move || drive(&worker, fails_at));
    let form = Form {
        trial: task.trial,
        round: Round(1),
        members: vec![Member { slot: SLOT, rendezvous_addr: address }],
        donors: Vec::new(),
        batch: Batch { total: 8, accumulation: 0 },
        broken: false,
    };
    for command in [WorkerCommand::Prepare(Box::new(task.clone())), WorkerCommand::Form(form)] {
        send.send(command).expect("the worker lives");
    }
    let mut all = Vec::new();
    loop {
        let said = events.recv_timeout(SOON).expect("the worker goes on");
        let is_last = is_last(&said);
        if matches!(said, WorkerEvent::Finished { .. }) {
            let release = WorkerCommand::Release { trial: task.trial, state: FinalState::Discarded };
            send.send(release).expect("the worker lives");
        }
        all.push(said);
        if is_last {
            break;
        }
    }
    drop(send);
    driver.join().expect("it ends with its head");
    all
}

#[test]
fn the_thread_of_the_caller_trains_a_trial_to_its_end() {
    let task = task("whole");
    let events = events_of(&task, None, |event| matches!(event, WorkerEvent::Released { .. }));
    let metrics = events.iter().find_map(|event| match event {
        WorkerEvent::Finished { metrics, .. } => Some(metrics.clone()),
        _ => None,
    });
    assert_eq!(metrics, Some(BTreeMap::from([("loss".to_owned(), 1.0)])));
    assert!(events.iter().any(|event| matches!(event, WorkerEvent::Checkpointed { steps: 8, .. })));
    let (restored, warning) = load_checkpoint(&task).expect("it can be read");
    let restored = restored.expect("it is there");
    assert_eq!((restored.tensors[0].shape.clone(), warning), (vec![2, 1], None));
    let mut books = Training::new(task.clone()).expect("a task");
    books.restore(&restored.state).expect("its own");
    assert_eq!(books.steps(), 8);
    std::fs::remove_dir_all(&task.checkpoint).expect("the folder of this test");
}

#[test]
fn a_failure_of_the_code_is_the_trials_own() {
    let events = events_of(&task("fails"), Some(3), |event| matches!(event, WorkerEvent::Failed { .. }));
    let Some(WorkerEvent::Failed { reason, cause, .. }) = events.last() else { panic!("{events:?}") };
    assert_eq!((reason.as_str(), *cause), ("Traceback", FailureCause::Trial));
}
