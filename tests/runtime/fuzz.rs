//! The corpus of the fuzzer, once more: what it has found stays found, on any toolchain.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use pollux_tune::{
    goodput::{GradientStats, Observation, Shape},
    ids::{Generation, GpuType, NodeId, Round, SlotId, StudyId, TrialId},
    internal::{
        checkpoint::make_checkpoint,
        wire::{encode_agent_command, encode_agent_event, encode_agent_hello, encode_command, encode_event},
    },
    space::Study,
    trials::{
        agent::{
            AgentCommand, AgentEvent, AgentHello, AgentNode, AgentSlot, HeldCheckpoint, ProgramLaunch,
            Welcome, Work,
        },
        engine::{FailureCause, GroupEvent, Metrics, Report, TrialKind},
        group::{
            Batch, Evaluation, FinalState, Form, Member, Pause, Task, WorkerCommand, WorkerEvent,
            WorkerReport,
        },
        node::ProcessFault,
    },
};

use crate::{
    fuzz_targets::{ELASTIC, TARGETS, run},
    world::{Faults, World},
};

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target)
}

/// All files of a corpus, by name.
fn files(target: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(corpus(target)).unwrap_or_else(|error| panic!("{target}: {error}"));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn the_corpus_holds() {
    for (target, _) in TARGETS {
        let files = files(target);
        assert!(files.len() >= 5, "{target} has a corpus of {}", files.len());
        for file in files {
            let bytes = fs::read(&file).unwrap();
            let held = std::panic::catch_unwind(|| run(target, &bytes));
            assert!(held.is_ok(), "{}", file.display());
        }
    }
}

/// Targets that were forgotten in `fuzz/` would not be run.
#[test]
fn every_target_has_a_program() {
    let manifest = include_str!("../../fuzz/Cargo.toml");
    for (target, _) in TARGETS {
        assert!(manifest.contains(&format!("name = \"{target}\"")), "{target}");
    }
    assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
}

/// Bytes with small changes, of which the fuzzer tries millions: cut, doubled, and with other bytes in them.
#[test]
fn small_changes_of_the_corpus_hold() {
    for (target, _) in TARGETS {
        for file in files(target).iter().filter(|file| file.to_string_lossy().contains("seed")) {
            let bytes = fs::read(file).unwrap();
            let step = bytes.len() / 16 + 1;
            for at in (0..bytes.len()).step_by(step) {
                run(target, &bytes[..at]);
                run(target, &[&bytes[..at], &bytes[bytes.len() - at..], &bytes[at..]].concat());
                for other in [0, 0xff, b'9', b'-', bytes[at] ^ 1, bytes[at] ^ 0x80] {
                    let mut changed = bytes.clone();
                    changed[at] = other;
                    run(target, &changed);
                }
            }
        }
    }
}

fn report(trial: TrialId, round: Round, epochs: f64) -> WorkerEvent {
    let shape = Shape::new(2, 1).unwrap();
    let seen = Observation { shape, per_gpu: 16.0, accumulation: 0, iter_time_s: 0.1, steps: 9.0 };
    let values = [("accuracy".to_owned(), 0.5)].into();
    WorkerEvent::Reported(Box::new(WorkerReport {
        trial,
        round,
        steps: 9,
        examples: 288,
        epochs,
        loss: Some(0.5),
        learning_rate: 0.1,
        batch: Some(Batch { total: 32, accumulation: 0 }),
        step_times: vec![seen],
        noise: Some(GradientStats { sqr: 1.0, var: 2.0 }),
        noise_batch: Some(24.0),
        evaluations: vec![Evaluation { epochs, values }],
    }))
}

/// What the workers of a trial say, from their start to their end.
fn life(trial: u32) -> Vec<WorkerEvent> {
    let (trial, round) = (TrialId(trial), Round::before(Generation(1)).next());
    let pause = Pause { total_s: 1.0, form_s: 0.5, hand_over_s: 0.25 };
    let metrics = [("accuracy".to_owned(), 0.75)].into();
    vec![
        WorkerEvent::Prepared { trial, rendezvous_addr: "127.0.0.1:4000".to_owned() },
        WorkerEvent::Formed { trial, round, steps: 0, pause },
        report(trial, round, 1.0),
        WorkerEvent::Checkpointed { trial, steps: 9 },
        report(trial, round, 4.0),
        WorkerEvent::Finished { trial, round, metrics },
        WorkerEvent::Released { trial },
    ]
}

fn commands() -> Vec<WorkerCommand> {
    let (trial, batch) = (TrialId(0), Batch { total: 64, accumulation: 1 });
    let member = |index| Member {
        slot: SlotId { node: NodeId(0), index },
        rendezvous_addr: "127.0.0.1:4000".to_owned(),
    };
    let form = Form {
        trial,
        round: Round(7),
        members: vec![member(0), member(1)],
        donors: vec![member(2)],
        batch,
        broken: true,
    };
    let mut task = Task::new(trial, "net");
    task.params.insert("lr".to_owned(), 0.1.into());
    vec![
        WorkerCommand::Prepare(Box::new(task)),
        WorkerCommand::Form(form),
        WorkerCommand::Retune { trial, round: Round(7), batch },
        WorkerCommand::Release { trial, state: FinalState::Saved },
    ]
}

/// Messages between a head and an agent, by name.
fn agent_messages() -> Vec<(String, Vec<u8>)> {
    let (node, slot) = (NodeId(1), SlotId { node: NodeId(1), index: 2 });
    let (trial, generation) = (TrialId(3), Generation(4));
    let held = HeldCheckpoint { study: StudyId(5), trial, file: "a.checkpoint".to_owned() };
    let gpu = AgentSlot { device: Some("GPU-1".to_owned()), memory_bytes: Some(1 << 34), threads: 4 };
    let hello = AgentHello {
        build: "pollux-tune".to_owned(),
        incarnation: 6,
        name: "gpu1".to_owned(),
        address: Some([10, 0, 0, 1].into()),
        island: "rack".to_owned(),
        nodes: vec![AgentNode { gpu_type: GpuType::new("t4").unwrap(), slots: vec![gpu] }],
        ends_in_s: Some(60.0),
        job: Some("7".to_owned()),
        held: vec![held.clone()],
    };
    let welcome = Welcome {
        study: StudyId(5),
        epoch: 8,
        nodes: vec![node],
        work: Work::Emulated { time_scale: 0.5 },
        folder: "studies/a".into(),
        probe: "9".to_owned(),
        wanted: vec![held],
    };
    let launch = ProgramLaunch {
        trial,
        generation,
        slots: vec![slot],
        share: 1,
        words: vec!["train.sh".to_owned(), "{lr}".to_owned()],
        params: [("lr", 0.1.into())].into_iter().collect(),
        absent: vec!["momentum".to_owned()],
        env: [("HOME".to_owned(), "/tmp".to_owned())].into(),
        folder: Some("code".into()),
        epochs: 9.0,
        objectives: vec!["accuracy".to_owned()],
        silence_s: Some(60.0),
        grace_s: 5.0,
    };
    let mut all = vec![("hello".to_owned(), encode_agent_hello(hello))];
    let told = commands().into_iter().map(|command| AgentCommand::ToWorker { slot, command });
    let told = told.chain([
        AgentCommand::Welcome(Box::new(welcome)),
        AgentCommand::Start { node, process: 2 },
        AgentCommand::Launch(Box::new(launch)),
        AgentCommand::ReportTaken { trial, generation },
        AgentCommand::Leave { reason: "over".to_owned() },
    ]);
    all.extend(told.enumerate().map(|(number, it)| (format!("command-{number}"), encode_agent_command(it))));
    let metrics: Metrics = [("accuracy".to_owned(), 0.5.into())].into();
    let report = Report { number: 1, epochs: 2.0, metrics: metrics.clone(), ..Report::default() };
    let program = |event| AgentEvent::Program { trial, generation, event };
    let said = life(3).into_iter().map(|event| AgentEvent::Worker { slot, event });
    let (how, output) = ("exit status: 1".to_owned(), "no room".to_owned());
    let said = said.chain([
        AgentEvent::Ended { node, process: 2, how, fault: ProcessFault::Environment, output },
        AgentEvent::WorkerLost { slot },
        program(GroupEvent::Reported(report)),
        program(GroupEvent::Finished(metrics)),
        program(GroupEvent::Failed { reason: "exit status: 1".to_owned(), cause: FailureCause::Trial }),
        AgentEvent::ProgramGone { trial, generation },
        AgentEvent::Draining { within_s: 120.0, reason: "SIGUSR1".to_owned() },
    ]);
    all.extend(said.enumerate().map(|(number, it)| (format!("event-{number}"), encode_agent_event(it))));
    all
}

/// Steps of the target `events`: who says what.
fn said(lines: &[(u8, WorkerEvent)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (slot, event) in lines {
        let event = encode_event(event.clone());
        bytes.extend([*slot, event.len().try_into().unwrap()]);
        bytes.extend(event);
    }
    bytes
}

/// Not a test: with `UPDATE_FUZZ_SEEDS` it writes inputs of targets that are bytes, for a new form of messages.
#[test]
fn seeds() {
    if env::var_os("UPDATE_FUZZ_SEEDS").is_none() {
        return;
    }
    let write = |target: &str, name: &str, bytes: &[u8]| {
        fs::create_dir_all(corpus(target)).unwrap();
        fs::write(corpus(target).join(format!("seed-{name}")), bytes).unwrap();
    };
    let (trial, round) = (TrialId(0), Round::before(Generation(1)).next());
    let reason = "the loss is NaN".to_owned();
    let failed = WorkerEvent::Failed { trial, reason: reason.clone(), cause: FailureCause::Trial };
    let broken = WorkerEvent::Broken { trial, round, steps: Some(9), reason };
    let all = life(0).into_iter().chain([failed.clone(), broken.clone()]);
    for (number, event) in all.enumerate() {
        write("message", &format!("event-{number}"), &encode_event(event));
    }
    for (number, command) in commands().into_iter().enumerate() {
        write("message", &format!("command-{number}"), &encode_command(command));
    }
    for (name, bytes) in agent_messages() {
        write("agent_message", &name, &bytes);
    }
    let whole: Vec<_> = life(0).into_iter().map(|event| (0, event)).collect();
    write("events", "whole", &said(&whole));
    let both: Vec<_> =
        (0..2).flat_map(|trial| life(trial).into_iter().map(move |event| (trial as u8, event))).collect();
    write("events", "both", &said(&both));
    let three: Vec<_> =
        (0..3_u8).flat_map(|slot| life(0).into_iter().take(3).map(move |event| (slot, event))).collect();
    write("events", "three", &said(&three));
    write("events", "failed", &said(&[&whole[..3], &[(0, failed)]].concat()));
    write("events", "broken", &said(&[&whole[..3], &[(0, broken)], &whole[..2]].concat()));
    let mut lost = said(&whole[..4]);
    lost.extend([3, 60, 6, 60]);
    lost.extend(said(&whole));
    write("events", "lost", &lost);
    for (name, numbers) in [("empty", &[][..]), ("small", &[1.0, -2.0, f32::NAN])] {
        let bytes = make_checkpoint(&Task::new(TrialId(0), "net"), 9, numbers).unwrap();
        write("checkpoint", name, &bytes);
        // The target adds it.
        write("checkpoint", &format!("{name}-unsealed"), &bytes[..bytes.len() - 32]);
    }
    let other = make_checkpoint(&Task::new(TrialId(1), "net"), 9, &[]).unwrap();
    write("checkpoint", "other", &other[..other.len() - 32]);
    for seed in 0..6 {
        let study = Study::from_yaml("study.yaml", ELASTIC).unwrap();
        let mut world = World::new(&study, TrialKind::Elastic, &[("t4", 2), ("t4", 2)], seed);
        let faults = Faults {
            worker: 20,
            node: 5,
            drain: 5,
            group: 5,
            head: if seed == 0 { 0 } else { 5 },
            messages: 0,
            environment: 0,
            trial: 0,
        };
        (0..600).for_each(|_| world.step(faults));
        let lines = world.journal.iter().take(64).map(|entry| serde_json::to_string(entry).unwrap());
        write("journal", &format!("{seed}"), lines.collect::<Vec<_>>().join("\n").as_bytes());
    }
}
