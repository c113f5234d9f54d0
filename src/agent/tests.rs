//! An agent whose processes are fakes.

use std::{
    path::Path,
    process,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{
        mpsc::{self, UnboundedReceiver, UnboundedSender},
        oneshot,
    },
    task::{JoinHandle, LocalSet},
};

use super::{
    Error, Machine,
    process::{Gone, Running, Spawner},
    serve::{Ended, serve},
};
use crate::{
    ids::{GpuType, NodeId, SlotId, StudyId, TrialId},
    trials::{
        agent::{AgentCommand, AgentEvent, AgentNode, AgentSlot, Welcome, Work},
        group::{FinalState, WorkerCommand, WorkerEvent},
        node::ProcessFault,
    },
    wire::{self, Address, Hello, Secret, VERSION},
};

/// A process that ends when the test wants it.
struct FakeProcess {
    /// What it finds in its environment.
    address: Address,
    end: oneshot::Sender<Gone>,
    kill: oneshot::Receiver<()>,
}

/// Starts nothing. The first refusals are the machine's.
struct FakeSpawner {
    started: UnboundedSender<FakeProcess>,
    refusals: Mutex<u32>,
}

impl Spawner for FakeSpawner {
    fn spawn(
        &self,
        command: process::Command,
        _: Option<&Path>,
        kill: oneshot::Receiver<()>,
    ) -> Result<Running, Gone> {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if *refusals > 0 {
            *refusals -= 1;
            return Err(Gone { how: "no more processes".to_owned(), fault: ProcessFault::Environment });
        }
        let address = command.get_envs().find(|(name, _)| *name == "POLLUX_TUNE_WORKER_ADDRESS");
        let address = address.and_then(|(_, value)| value?.to_str()?.parse().ok()).expect("an address");
        let (end, ended) = oneshot::channel();
        self.started.send(FakeProcess { address, end, kill }).expect("the test lives");
        Ok(Box::pin(async { ended.await.unwrap_or_else(|_| "dropped by the test".to_owned().into()) }))
    }
}

/// An agent of node 7 with two slots, and its head, which the test is.
struct Scene {
    commands: Option<UnboundedSender<AgentCommand>>,
    events: UnboundedReceiver<AgentEvent>,
    processes: UnboundedReceiver<FakeProcess>,
    secret: Secret,
    served: JoinHandle<Result<Ended, Error>>,
}

impl Scene {
    fn new(refusals: u32) -> Self {
        let (started, processes) = mpsc::unbounded_channel();
        let slot = AgentSlot { device: None, memory_bytes: None, threads: 1 };
        let machine = Machine {
            nodes: vec![AgentNode { gpu_type: GpuType::cpu(), slots: vec![slot; 2] }],
            address: None,
            arguments: Vec::new(),
            is_sole: false,
            spawner: Arc::new(FakeSpawner { started, refusals: Mutex::new(refusals) }),
        };
        let welcome = Welcome {
            study: StudyId::default(),
            epoch: 1,
            nodes: vec![NodeId(7)],
            work: Work::Trainable,
            folder: "/nowhere".into(),
            probe: String::new(),
            wanted: Vec::new(),
        };
        let (commands, mut received) = mpsc::unbounded_channel();
        let (happened, events) = mpsc::unbounded_channel();
        let secret = Secret::random().expect("random numbers");
        let of_workers = secret.clone();
        let served = tokio::task::spawn_local(async move {
            serve(&machine, welcome, None, of_workers, None, &mut received, happened).await
        });
        Self { commands: Some(commands), events, processes, secret, served }
    }

    fn tell(&self, command: AgentCommand) {
        self.commands.as_ref().expect("it is not lost").send(command).expect("the agent lives");
    }

    async fn start(&mut self, process: u32) -> FakeProcess {
        self.tell(AgentCommand::Start { node: NodeId(7), process });
        self.processes.recv().await.expect("a process")
    }

    async fn event(&mut self) -> AgentEvent {
        self.events.recv().await.expect("an event")
    }

    /// The agent has heard of all that has happened by the time that it has done this.
    async fn settle(&mut self) {
        // It takes what has come in any order.
        for _ in 0..10 {
            self.tell(AgentCommand::Start { node: NodeId(8), process: 0 });
            let event = self.event().await;
            assert!(matches!(event, AgentEvent::Ended { node: NodeId(8), .. }), "{event:?}");
        }
    }

    /// The worker of a process attaches.
    async fn attach(&mut self, process: &FakeProcess, index: u32) -> Attached {
        let slot = slot(index);
        let hello = Hello { version: VERSION, slot, pid: 1 };
        let attached = wire::attach(&process.address, &self.secret, hello).await.expect("it is let in");
        assert_eq!(self.event().await, AgentEvent::WorkerJoined { slot });
        attached
    }
}

/// A worker's ends of its connection.
type Attached = (UnboundedSender<WorkerEvent>, UnboundedReceiver<WorkerCommand>);

const fn slot(index: u32) -> SlotId {
    SlotId { node: NodeId(7), index }
}

/// Sockets are real, and so is their time.
fn in_real_time<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, test)
}

#[test]
fn commands_and_events_pass_in_their_order() {
    in_real_time(async {
        let mut scene = Scene::new(0);
        let process = scene.start(1).await;
        let (events, mut commands) = scene.attach(&process, 1).await;
        let release = |trial| WorkerCommand::Release { trial: TrialId(trial), state: FinalState::Discarded };
        for trial in 0..50 {
            scene.tell(AgentCommand::ToWorker { slot: slot(1), command: release(trial) });
            // Nobody is there.
            scene.tell(AgentCommand::ToWorker { slot: slot(0), command: release(trial) });
            events.send(WorkerEvent::Released { trial: TrialId(trial) }).expect("it is attached");
        }
        for trial in 0..50 {
            assert_eq!(commands.recv().await, Some(release(trial)));
            let event = WorkerEvent::Released { trial: TrialId(trial) };
            assert_eq!(scene.event().await, AgentEvent::Worker { slot: slot(1), event });
        }
        drop((events, commands));
        assert_eq!(scene.event().await, AgentEvent::WorkerLost { slot: slot(1) });
        let _ = process.end.send("exit status: 0".to_owned().into());
        let (how, output) = ("exit status: 0".to_owned(), String::new());
        let ended = AgentEvent::Ended { node: NodeId(7), process: 1, how, fault: ProcessFault::Own, output };
        assert_eq!(scene.event().await, ended);
    });
}

/// Its end is known before what it has said last, which came another way.
#[test]
fn the_last_words_of_a_process_come_before_its_end() {
    in_real_time(async {
        let mut scene = Scene::new(0);
        let process = scene.start(0).await;
        let (events, mut commands) = scene.attach(&process, 0).await;
        let _ = process.end.send("exit status: 0".to_owned().into());
        scene.settle().await;
        for trial in 0..20 {
            events.send(WorkerEvent::Released { trial: TrialId(trial) }).expect("it is attached");
        }
        drop(events);
        assert_eq!(commands.recv().await, None, "all was received");
        for trial in 0..20 {
            let event = WorkerEvent::Released { trial: TrialId(trial) };
            assert_eq!(scene.event().await, AgentEvent::Worker { slot: slot(0), event });
        }
        assert_eq!(scene.event().await, AgentEvent::WorkerLost { slot: slot(0) });
        assert!(matches!(scene.event().await, AgentEvent::Ended { node: NodeId(7), .. }));
    });
}

/// The time for the last words of a process is not that of the next one in its place.
#[test]
fn the_next_process_in_a_place_is_left_alone() {
    in_real_time(async {
        let mut scene = Scene::new(0);
        let process = scene.start(0).await;
        let attached = scene.attach(&process, 0).await;
        let _ = process.end.send(Gone { how: "signal: 9".to_owned(), fault: ProcessFault::Killed });
        scene.settle().await;
        drop(attached);
        assert_eq!(scene.event().await, AgentEvent::WorkerLost { slot: slot(0) });
        assert!(matches!(scene.event().await, AgentEvent::Ended { node: NodeId(7), .. }));
        let next = scene.start(0).await;
        let (_events, mut commands) = scene.attach(&next, 0).await;
        tokio::time::pause();
        for _ in 0..15 {
            tokio::time::advance(Duration::from_secs(1)).await;
            scene.settle().await;
        }
        tokio::time::resume();
        let release = WorkerCommand::Release { trial: TrialId(3), state: FinalState::Discarded };
        scene.tell(AgentCommand::ToWorker { slot: slot(0), command: release.clone() });
        assert_eq!(commands.recv().await, Some(release), "it is still attached");
    });
}

#[test]
fn a_process_that_cannot_be_started_has_ended() {
    in_real_time(async {
        let mut scene = Scene::new(1);
        scene.tell(AgentCommand::Start { node: NodeId(7), process: 0 });
        let event = scene.event().await;
        assert!(matches!(event, AgentEvent::Ended { fault: ProcessFault::Environment, .. }), "{event:?}");
        // There is no such process, and no such node.
        for (node, process) in [(7, 2), (8, 0)] {
            scene.tell(AgentCommand::Start { node: NodeId(node), process });
            let event = scene.event().await;
            assert!(matches!(event, AgentEvent::Ended { fault: ProcessFault::Own, .. }), "{event:?}");
        }
        scene.start(0).await;
    });
}

/// What a process says after it is to be killed is not heard, but its end is.
#[test]
fn a_killed_process_is_silent() {
    in_real_time(async {
        let mut scene = Scene::new(0);
        let mut process = scene.start(0).await;
        let (events, _commands) = scene.attach(&process, 0).await;
        scene.tell(AgentCommand::Kill { node: NodeId(7), process: 0 });
        (&mut process.kill).await.expect("it is to be killed");
        events.send(WorkerEvent::Released { trial: TrialId(0) }).expect("it is attached");
        drop(events);
        let _ = process.end.send(Gone { how: "signal: 9".to_owned(), fault: ProcessFault::Killed });
        let event = scene.event().await;
        assert!(matches!(event, AgentEvent::Ended { fault: ProcessFault::Killed, .. }), "{event:?}");
    });
}

#[test]
fn an_agent_that_leaves_has_killed_everything() {
    in_real_time(async {
        let mut scene = Scene::new(0);
        let (first, second) = (scene.start(0).await, scene.start(1).await);
        scene.tell(AgentCommand::Leave { reason: "all is done".to_owned() });
        for process in [first, second] {
            assert!(!scene.served.is_finished(), "it waits");
            process.kill.await.expect("it is to be killed");
            let _ = process.end.send("signal: 9".to_owned().into());
        }
        let how = scene.served.await.expect("no panic").expect("no error");
        assert_eq!(how, Ended::Told("all is done".to_owned()));
    });
}

/// Workers write their state when their connection ends; those that take too long are killed.
#[test]
fn without_a_head_workers_have_time() {
    in_real_time(async {
        let mut scene = Scene::new(0);
        let (first, mut second) = (scene.start(0).await, scene.start(1).await);
        let (events, mut commands) = scene.attach(&first, 0).await;
        scene.commands = None;
        assert_eq!(commands.recv().await, None, "its connection ends");
        drop(events);
        tokio::time::pause();
        let _ = first.end.send("exit status: 0".to_owned().into());
        (&mut second.kill).await.expect("it is killed in the end");
        let _ = second.end.send("signal: 9".to_owned().into());
        assert_eq!(scene.served.await.expect("no panic").expect("no error"), Ended::HeadLost);
    });
}
