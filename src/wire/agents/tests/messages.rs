//! What is said arrives as it was meant.

use std::{ffi::OsString, net::IpAddr, os::unix::ffi::OsStringExt};

use proptest::{
    collection::{btree_map, vec},
    option,
    prelude::*,
};
use prost::Message;

use super::*;
use crate::{
    goodput::NoiseScale,
    ids::{Generation, NodeId, SlotId},
    space::{Params, Value},
    trials::{
        agent::{AgentEvent, HeldCheckpoint, ProgramLaunch, PythonWork, Welcome, Work},
        engine::{Checkpoint, GroupEvent, Metrics, Number, Report},
        group::MemoryLimit,
        node::ProcessFault,
    },
    wire::{
        convert_agent::{Said, agent_hello},
        proto,
        tests::{cause, commands as worker_commands, events as worker_events, sent, step_time, trial},
    },
};

fn node() -> impl Strategy<Value = NodeId> {
    any::<u32>().prop_map(NodeId)
}

fn slot() -> impl Strategy<Value = SlotId> {
    any::<(u32, u32)>().prop_map(|(node, index)| SlotId { node: NodeId(node), index })
}

fn start() -> impl Strategy<Value = (TrialId, Generation)> {
    (trial(), any::<u32>().prop_map(Generation))
}

fn held() -> impl Strategy<Value = HeldCheckpoint> {
    (any::<u128>(), trial(), ".*").prop_map(|(study, trial, file)| HeldCheckpoint {
        study: StudyId(study),
        trial,
        file,
    })
}

fn agent_node() -> impl Strategy<Value = AgentNode> {
    let slot = (option::of(".*"), any::<Option<u64>>(), any::<u32>())
        .prop_map(|(device, memory_bytes, threads)| AgentSlot { device, memory_bytes, threads });
    let name = |name: String| GpuType::new(&name).expect("a name");
    ("[a-z][a-z0-9 ]{0,8}".prop_map(name), vec(slot, 0..3))
        .prop_map(|(gpu_type, slots)| AgentNode { gpu_type, slots })
}

prop_compose! {
    fn hellos()(
        (build, name, island) in (".*", ".*", ".*"),
        (incarnation, address) in any::<(u64, Option<IpAddr>)>(),
        nodes in vec(agent_node(), 0..3),
        ends_in_s in any::<Option<f64>>(),
        job in option::of(".*"),
        held in vec(held(), 0..3),
    ) -> AgentHello {
        AgentHello { build, incarnation, name, address, island, nodes, ends_in_s, job, held }
    }
}

fn work() -> impl Strategy<Value = Work> {
    prop_oneof![
        Just(Work::Trainable),
        any::<f64>().prop_map(|time_scale| Work::Emulated { time_scale }),
        Just(Work::Programs),
        python().prop_map(|work| Work::Python(Box::new(work))),
    ]
}

prop_compose! {
    fn python()(
        interpreter in option::of(".*"),
        arguments in vec(".*", 0..3),
        env in prop::collection::btree_map(".*", ".*", 0..3),
        folder in option::of(".*"),
    ) -> PythonWork {
        PythonWork { interpreter, arguments, env, folder: folder.map(Into::into) }
    }
}

prop_compose! {
    fn welcome()(
        (study, epoch) in any::<(u128, u64)>(),
        nodes in vec(node(), 0..3),
        work in work(),
        folder in vec(any::<u8>(), 0..8),
        probe in ".*",
        wanted in vec(held(), 0..3),
    ) -> Welcome {
        let folder = OsString::from_vec(folder).into();
        Welcome { study: StudyId(study), epoch, nodes, work, folder, probe, wanted }
    }
}

fn params() -> impl Strategy<Value = Params> {
    let value = prop_oneof![
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        proptest::num::f64::NORMAL.prop_map(Value::Float),
        ".*".prop_map(Value::Text),
    ];
    vec((".*", value), 0..4).prop_map(|list| list.into_iter().collect())
}

prop_compose! {
    fn launch()(
        (trial, generation) in start(),
        slots in vec(slot(), 0..3),
        share in any::<u32>(),
        [words, absent, objectives] in [vec(".*", 0..3), vec(".*", 0..3), vec(".*", 0..3)],
        params in params(),
        env in btree_map(".*", ".*", 0..3),
        folder in proptest::option::of(vec(any::<u8>(), 0..9)),
        (epochs, silence_s, grace_s) in any::<(f64, Option<f64>, f64)>(),
    ) -> ProgramLaunch {
        let folder = folder.map(|folder| OsString::from_vec(folder).into());
        ProgramLaunch {
            trial, generation, slots, share, words, params, absent, env, folder, epochs, objectives, silence_s, grace_s,
        }
    }
}

fn commands() -> impl Strategy<Value = AgentCommand> {
    let process = || (node(), any::<u32>());
    prop_oneof![
        welcome().prop_map(|welcome| AgentCommand::Welcome(Box::new(welcome))),
        process().prop_map(|(node, process)| AgentCommand::Start { node, process }),
        process().prop_map(|(node, process)| AgentCommand::Kill { node, process }),
        (slot(), worker_commands()).prop_map(|(slot, command)| AgentCommand::ToWorker { slot, command }),
        launch().prop_map(|launch| AgentCommand::Launch(Box::new(launch))),
        start().prop_map(|(trial, generation)| AgentCommand::StopProgram { trial, generation }),
        start().prop_map(|(trial, generation)| AgentCommand::ReportTaken { trial, generation }),
        ".*".prop_map(|reason| AgentCommand::Leave { reason }),
    ]
}

fn metrics() -> impl Strategy<Value = Metrics> {
    // A zero arrives without its sign.
    btree_map(".*", any::<f64>().prop_map(|number| Number::from(number + 0.0)), 0..3)
}

prop_compose! {
    fn report()(
        (number, epochs) in any::<(u32, f64)>(),
        metrics in metrics(),
        steps in vec(step_time(), 0..3),
        noise in option::of((0.0..1e12).prop_map(|phi| NoiseScale::new(phi).expect("it is one"))),
        noise_batch in any::<Option<f64>>(),
    ) -> Report {
        Report { number, epochs, metrics, steps, noise, noise_batch }
    }
}

fn group_events() -> impl Strategy<Value = GroupEvent> {
    let checkpoint = || (".*", any::<f64>()).prop_map(|(name, epochs)| Checkpoint { name, epochs });
    prop_oneof![
        Just(GroupEvent::Formed),
        report().prop_map(GroupEvent::Reported),
        checkpoint().prop_map(GroupEvent::Checkpointed),
        ".*".prop_map(GroupEvent::CheckpointFailed),
        (slot(), any::<(u32, u32)>()).prop_map(|(slot, (failed, limit))| {
            GroupEvent::OutOfMemory { slot, memory: MemoryLimit { failed, limit } }
        }),
        checkpoint().prop_map(GroupEvent::Paused),
        metrics().prop_map(GroupEvent::Finished),
        (".*", cause()).prop_map(|(reason, cause)| GroupEvent::Failed { reason, cause }),
    ]
}

fn events() -> impl Strategy<Value = AgentEvent> {
    let fault =
        prop_oneof![Just(ProcessFault::Own), Just(ProcessFault::Killed), Just(ProcessFault::Environment)];
    prop_oneof![
        (node(), any::<u32>(), ".*", fault, ".*").prop_map(|(node, process, how, fault, output)| {
            AgentEvent::Ended { node, process, how, fault, output }
        }),
        slot().prop_map(|slot| AgentEvent::WorkerJoined { slot }),
        (slot(), worker_events()).prop_map(|(slot, event)| AgentEvent::Worker { slot, event }),
        slot().prop_map(|slot| AgentEvent::WorkerLost { slot }),
        (start(), group_events()).prop_map(|((trial, generation), event)| AgentEvent::Program {
            trial,
            generation,
            event
        }),
        start().prop_map(|(trial, generation)| AgentEvent::ProgramGone { trial, generation }),
        (any::<f64>(), ".*").prop_map(|(within_s, reason)| AgentEvent::Draining { within_s, reason }),
    ]
}

proptest! {
    #[test]
    fn a_command_arrives_as_it_was_sent(command in commands()) {
        let arrived = Said::try_from(sent(&proto::AgentCommand::from(Said::Message(command.clone()))));
        prop_assert_eq!(arrived.expect("it makes sense"), Said::Message(command));
    }

    #[test]
    fn an_event_arrives_as_it_was_sent(event in events()) {
        let arrived = Said::try_from(sent(&proto::AgentEvent::from(Said::Message(event.clone()))));
        prop_assert_eq!(arrived.expect("it makes sense"), Said::Message(event));
    }

    #[test]
    fn a_hello_arrives_as_it_was_sent(hello in hellos()) {
        let arrived = agent_hello(sent(&proto::AgentEvent::from(hello.clone())));
        prop_assert_eq!(arrived.expect("it makes sense"), hello);
    }

    #[test]
    fn whatever_bytes_come_there_is_no_panic(bytes in vec(any::<u8>(), 0..64)) {
        let _ = proto::AgentCommand::decode(bytes.as_slice()).map(Said::<AgentCommand>::try_from);
        let _ = proto::AgentEvent::decode(bytes.as_slice())
            .map(|event| (agent_hello(event.clone()), Said::<AgentEvent>::try_from(event)));
    }
}

/// Other versions have to be able to read it.
#[test]
fn the_build_of_an_agent_is_where_it_always_was() {
    let hello = AgentHello {
        build: "abc".to_owned(),
        incarnation: 0,
        name: String::new(),
        island: String::new(),
        nodes: Vec::new(),
        ..hello("")
    };
    assert_eq!(proto::AgentEvent::from(hello).encode_to_vec(), [10, 5, 10, 3, b'a', b'b', b'c']);
}

#[test]
fn what_makes_no_sense_says_so() {
    use proto::{agent_command::Kind as ToDo, agent_event::Kind as Happened};
    let command = |kind| {
        Said::<AgentCommand>::try_from(proto::AgentCommand { kind })
            .expect_err("it makes no sense")
            .to_string()
    };
    assert_eq!(command(None), "a command to an agent: it has no kind that is known");
    let welcome = proto::Welcome { study: STUDY.to_string(), ..proto::Welcome::default() };
    assert_eq!(command(Some(ToDo::Welcome(welcome))), "Welcome: it has no work");
    assert_eq!(command(Some(ToDo::ToWorker(proto::ToWorker::default()))), "ToWorker: it has no slot");
    let event = |kind| {
        Said::<AgentEvent>::try_from(proto::AgentEvent { kind }).expect_err("it makes no sense").to_string()
    };
    assert_eq!(event(None), "an event of an agent: it has no kind that is known");
    assert_eq!(
        event(Some(Happened::Ended(proto::ProcessEnded::default()))),
        "ProcessEnded: it has no process"
    );
    assert_eq!(
        event(Some(Happened::Program(proto::ProgramEvent::default()))),
        "ProgramEvent: it has no start"
    );
}
