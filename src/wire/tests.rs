use std::{ffi::OsString, os::unix::ffi::OsStringExt};

use proptest::{collection::btree_map, collection::vec, option, prelude::*};
use prost::Message;
use serde_json::{Value, json};

use super::{proto::command::Kind as ToDo, proto::event::Kind as Happened, *};
use crate::{
    goodput::{GradientStats, Observation, Shape},
    ids::{NodeId, Round, SlotId, StudyId, TrialId},
    trials::{
        engine::FailureCause,
        group::{
            Activity, Batch, Evaluation, FinalState, Form, Member, MemoryLimit, Pause, Task, WorkerCommand,
            WorkerEvent, WorkerReport,
        },
    },
};

pub(super) fn trial() -> impl Strategy<Value = TrialId> {
    any::<u32>().prop_map(TrialId)
}

fn round() -> impl Strategy<Value = Round> {
    any::<u64>().prop_map(Round)
}

fn params() -> impl Strategy<Value = serde_json::Map<String, Value>> {
    let value = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        proptest::num::f64::NORMAL.prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    vec((".*", value), 0..4).prop_map(|list| list.into_iter().collect())
}

prop_compose! {
    fn task()(
        (trial, seed, initial_batch) in (trial(), any::<u64>(), any::<u32>()),
        (trainable, lr_rule) in (".*", ".*"),
        params in params(),
        (epochs, checkpoint_every_s, report_every_s, evaluate_every) in any::<(f64, f64, f64, f64)>(),
        path in vec(any::<u8>(), 0..8),
        study in any::<u128>().prop_map(StudyId),
        (measure_noise, mixed_precision) in any::<(bool, bool)>(),
    ) -> Task {
        let checkpoint = OsString::from_vec(path).into();
        Task {
            study,
            trial, trainable, params, seed, epochs, initial_batch, lr_rule, checkpoint, checkpoint_every_s,
            report_every_s, evaluate_every, measure_noise, mixed_precision,
        }
    }
}

prop_compose! {
    fn batch()((total, accumulation) in any::<(u32, u32)>()) -> Batch {
        Batch { total, accumulation }
    }
}

fn members() -> impl Strategy<Value = Vec<Member>> {
    let member = |(node, index, rendezvous_addr)| {
        let slot = SlotId { node: NodeId(node), index };
        Member { slot, rendezvous_addr }
    };
    vec((any::<u32>(), any::<u32>(), ".*").prop_map(member), 0..3)
}

pub(super) fn commands() -> impl Strategy<Value = WorkerCommand> {
    let form = ((trial(), round(), any::<bool>()), members(), members(), batch());
    let state = prop_oneof![Just(FinalState::Saved), Just(FinalState::Discarded)];
    prop_oneof![
        task().prop_map(|task| WorkerCommand::Prepare(Box::new(task))),
        form.prop_map(|((trial, round, broken), members, donors, batch)| {
            WorkerCommand::Form(Form { trial, round, members, donors, batch, broken })
        }),
        (trial(), round(), batch()).prop_map(|(trial, round, batch)| WorkerCommand::Retune {
            trial,
            round,
            batch
        }),
        (trial(), state).prop_map(|(trial, state)| WorkerCommand::Release { trial, state }),
    ]
}

fn metrics() -> impl Strategy<Value = std::collections::BTreeMap<String, f64>> {
    btree_map(".*", any::<f64>(), 0..3)
}

prop_compose! {
    pub(super) fn step_time()(
        shape in (1..=u32::MAX).prop_flat_map(|gpus| (Just(gpus), 1..=gpus)),
        (accumulation, per_gpu, iter_time_s, steps) in any::<(u32, f64, f64, f64)>(),
    ) -> Observation {
        let shape = Shape::new(shape.0, shape.1).expect("no more nodes than GPUs");
        Observation { shape, per_gpu, accumulation, iter_time_s, steps }
    }
}

prop_compose! {
    fn report()(
        (trial, round, steps, examples) in (trial(), round(), any::<u64>(), any::<u64>()),
        (epochs, loss, learning_rate) in any::<(f64, Option<f64>, f64)>(),
        batch in option::of(batch()),
        step_times in vec(step_time(), 0..3),
        noise in option::of(any::<(f64, f64)>().prop_map(|(sqr, var)| GradientStats { sqr, var })),
        noise_batch in any::<Option<f64>>(),
        evaluations in vec((any::<f64>(), metrics()).prop_map(|(epochs, values)| Evaluation { epochs, values }), 0..3),
    ) -> WorkerReport {
        WorkerReport { trial, round, steps, examples, epochs, loss, learning_rate, batch, step_times, noise, noise_batch, evaluations }
    }
}

fn activity() -> impl Strategy<Value = Activity> {
    prop_oneof![
        Just(Activity::Training),
        Just(Activity::Joining),
        Just(Activity::Evaluating),
        Just(Activity::Saving),
        Just(Activity::Idle)
    ]
}

pub(super) fn cause() -> impl Strategy<Value = FailureCause> {
    prop_oneof![
        Just(FailureCause::Trial),
        Just(FailureCause::Infrastructure),
        Just(FailureCause::Environment)
    ]
}

pub(super) fn events() -> impl Strategy<Value = WorkerEvent> {
    prop_oneof![
        (trial(), ".*").prop_map(|(trial, rendezvous_addr)| WorkerEvent::Prepared { trial, rendezvous_addr }),
        (trial(), round(), any::<(u64, f64, f64, f64)>()).prop_map(
            |(trial, round, (steps, total_s, form_s, hand_over_s))| {
                let pause = Pause { total_s, form_s, hand_over_s };
                WorkerEvent::Formed { trial, round, steps, pause }
            }
        ),
        (trial(), round(), any::<Option<u64>>(), ".*").prop_map(|(trial, round, steps, reason)| {
            WorkerEvent::Broken { trial, round, steps, reason }
        }),
        (trial(), round(), any::<u64>(), any::<f64>(), activity()).prop_map(
            |(trial, round, steps, longest_step_s, activity)| WorkerEvent::Progress {
                trial,
                round,
                steps,
                longest_step_s,
                activity
            }
        ),
        report().prop_map(|report| WorkerEvent::Reported(Box::new(report))),
        (trial(), any::<u64>()).prop_map(|(trial, steps)| WorkerEvent::Checkpointed { trial, steps }),
        (trial(), any::<String>())
            .prop_map(|(trial, reason)| WorkerEvent::CheckpointFailed { trial, reason }),
        (trial(), any::<u32>(), any::<u32>()).prop_map(|(trial, failed, limit)| {
            WorkerEvent::OutOfMemory { trial, memory: MemoryLimit { failed, limit } }
        }),
        (trial(), round(), metrics()).prop_map(|(trial, round, metrics)| WorkerEvent::Finished {
            trial,
            round,
            metrics
        }),
        trial().prop_map(|trial| WorkerEvent::Released { trial }),
        (trial(), ".*", cause()).prop_map(|(trial, reason, cause)| WorkerEvent::Failed {
            trial,
            reason,
            cause
        }),
    ]
}

/// Through bytes, as on a socket.
pub(super) fn sent<T: Message + Default>(message: &T) -> T {
    T::decode(message.encode_to_vec().as_slice()).expect("what was written can be read")
}

proptest! {
    #[test]
    fn a_command_arrives_as_it_was_sent(command in commands()) {
        let arrived = WorkerCommand::try_from(sent(&proto::Command::from(command.clone()))).expect("it makes sense");
        prop_assert_eq!(arrived, command);
    }

    #[test]
    fn an_event_arrives_as_it_was_sent(event in events()) {
        let arrived = WorkerEvent::try_from(sent(&proto::Event::from(event.clone()))).expect("it makes sense");
        prop_assert_eq!(arrived, event);
    }

    #[test]
    fn whatever_bytes_come_there_is_no_panic(bytes in vec(any::<u8>(), 0..64)) {
        let _ = proto::Command::decode(bytes.as_slice()).map(WorkerCommand::try_from);
        let _ = proto::Event::decode(bytes.as_slice()).map(|event| (convert::hello(&event), WorkerEvent::try_from(event)));
    }
}

#[test]
fn a_loss_that_is_no_number_arrives() {
    let report = WorkerReport { loss: Some(f64::NAN), epochs: f64::INFINITY, ..WorkerReport::default() };
    let arrived = WorkerEvent::try_from(sent(&proto::Event::from(WorkerEvent::Reported(Box::new(report)))));
    let Ok(WorkerEvent::Reported(arrived)) = arrived else { panic!("{arrived:?}") };
    assert!(arrived.loss.is_some_and(f64::is_nan) && arrived.epochs.is_infinite());
}

#[test]
fn hello_arrives_first_and_only_first() {
    let hello = Hello { version: 1, slot: SlotId { node: NodeId(2), index: 3 }, pid: 4 };
    let sent = sent(&proto::Event::from(hello.clone()));
    assert_eq!(convert::hello(&sent).expect("it is one"), hello);
    let again = WorkerEvent::try_from(sent).expect_err("too late").to_string();
    assert_eq!(again, "Hello: it comes again, after the first message");
    let released = WorkerEvent::Released { trial: TrialId(1) };
    let late = convert::hello(&released.into()).expect_err("too early").to_string();
    assert_eq!(late, "the first message of a worker: it is not a hello");
}

/// The numbers of a hello are those of the first release that had one: other versions have to be able to read it.
#[test]
fn the_form_of_a_hello_never_changes() {
    let hello = Hello { version: 2, slot: SlotId { node: NodeId(3), index: 4 }, pid: 5 };
    let bytes = proto::Event::from(hello).encode_to_vec();
    assert_eq!(bytes, [10, 8, 8, 2, 16, 3, 24, 4, 32, 5]);
}

#[test]
fn what_makes_no_sense_says_so() {
    let command =
        |kind| WorkerCommand::try_from(proto::Command { kind }).expect_err("it makes no sense").to_string();
    assert_eq!(command(None), "a command: it has no kind that is known");
    assert_eq!(command(Some(ToDo::Form(proto::Form::default()))), "Form: it has no batch");
    assert_eq!(command(Some(ToDo::Retune(proto::Retune::default()))), "Retune: it has no batch");
    let params = |text: &str| {
        let task = proto::Task { params_json: text.to_owned(), ..proto::Task::default() };
        command(Some(ToDo::Prepare(task)))
    };
    for wrong in ["", "[1]", "{\"a\":"] {
        let error = params(wrong);
        assert!(error.starts_with("Task: its parameters are no JSON object: "), "{error}");
    }
    let event =
        |kind| WorkerEvent::try_from(proto::Event { kind }).expect_err("it makes no sense").to_string();
    assert_eq!(event(None), "an event: it has no kind that is known");
    assert_eq!(event(Some(Happened::Formed(proto::Formed::default()))), "Formed: it has no pause");
}

/// Whole numbers stay whole, and the text of numbers keeps every digit.
#[test]
fn hyper_parameters_keep_their_types() {
    let Value::Object(params) = json!({"a": 1, "b": 1.0, "c": 0.1, "d": "1", "e": true, "f": i64::MAX})
    else {
        panic!("an object")
    };
    let (study, params_json) = (StudyId(7).to_string(), Value::Object(params.clone()).to_string());
    let task = proto::Task { study, params_json, ..proto::Task::default() };
    let task = Task::try_from(sent(&task)).expect("it makes sense");
    assert!(task.params["a"].is_i64() && task.params["b"].is_f64());
    assert_eq!(task.params, params);
}
