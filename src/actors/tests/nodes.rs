use std::{
    path::Path,
    process,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use actix::{Actor, Addr};
use tokio::{
    sync::{
        mpsc::{self, UnboundedReceiver, UnboundedSender},
        oneshot,
    },
    time::{self, Instant},
};

use super::{drain, exits, in_virtual_time, probe, settle, slot};
use crate::{
    actors::{
        error::Error,
        exit::SessionExit,
        message::{EngineInput, FromWorker, KillWorker, ToWorker, WorkerOwner},
        node::{FromGateway, Node, NodeContext, NodeSpec},
        process::{Gone, ProcessSpec, Running, Spawner},
    },
    ids::{GpuType, NodeId, Round, TrialId},
    trials::{
        engine::{FailureCause, Input},
        group::{FinalState, Task, WorkerCommand, WorkerEvent},
        node::ProcessFault,
    },
    wire::{Address, GatewayEvent, Hello, Secret, VERSION, WorkerHandle, WorkerId},
};

/// A process that ends when the test wants it.
struct FakeProcess {
    at: Instant,
    end: oneshot::Sender<Gone>,
    kill: oneshot::Receiver<()>,
}

impl FakeProcess {
    fn exit(self) {
        let _ = self.end.send("exit status: 1".to_owned().into());
    }

    fn be_killed(self) {
        let _ = self.end.send(Gone { how: "signal: 9".to_owned(), fault: ProcessFault::Killed });
    }
}

/// With a number of attempts that the system refuses first.
struct FakeSpawner(UnboundedSender<FakeProcess>, AtomicU32);

impl Spawner for FakeSpawner {
    fn spawn(
        &self,
        _: process::Command,
        _: Option<&Path>,
        kill: oneshot::Receiver<()>,
    ) -> Result<Running, Gone> {
        let left = self.1.load(Ordering::Relaxed);
        if left > 0 {
            self.1.store(left - 1, Ordering::Relaxed);
            return Err(Gone { how: "no more processes".to_owned(), fault: ProcessFault::Environment });
        }
        let (end, ended) = oneshot::channel();
        self.0
            .send(FakeProcess { at: Instant::now(), end, kill })
            .map_err(|_| Gone::from("no test".to_owned()))?;
        Ok(Box::pin(async { ended.await.unwrap_or_else(|_| "dropped by the test".to_owned().into()) }))
    }
}

/// A node of number 3 with a process of two slots and one of one.
struct Scene {
    node: Addr<Node>,
    processes: UnboundedReceiver<FakeProcess>,
    inputs: UnboundedReceiver<EngineInput>,
    exits: UnboundedReceiver<SessionExit>,
}

/// A worker that has joined.
struct FakeWorker {
    id: WorkerId,
    commands: UnboundedReceiver<WorkerCommand>,
}

impl Scene {
    fn new() -> Self {
        Self::refusing(0)
    }

    /// The same on a machine that refuses some processes first.
    fn refusing(processes: u32) -> Self {
        let refused = AtomicU32::new(processes);
        let (spawned, processes) = mpsc::unbounded_channel();
        let ((supervisor, inputs), (exit, exits)) = (probe::<EngineInput>(), exits());
        let process =
            |slots| ProcessSpec { slots, start: Arc::new(|_, _| Ok(process::Command::new("worker"))) };
        let gpu_type = GpuType::new("t4").expect("a name");
        let processes_of = vec![process(2), process(1)];
        let spec = NodeSpec { node: NodeId(3), gpu_type, island: 0, processes: processes_of };
        let around = NodeContext {
            address: Address::Unix("nowhere".into()),
            secret: Secret::random().expect("random numbers"),
            logs: None,
            spawner: Arc::new(FakeSpawner(spawned, refused)),
            supervisor,
            exit,
        };
        Self { node: Node::new(spec, around).start(), processes, inputs, exits }
    }

    /// The same with all workers, of which the engine knows.
    async fn joined() -> (Self, [FakeProcess; 2], [FakeWorker; 3]) {
        let mut scene = Self::new();
        let first = scene.processes.recv().await.expect("a process");
        let second = scene.processes.recv().await.expect("a process");
        let workers = [0, 1, 2].map(|index| scene.join(u64::from(index), index));
        settle().await;
        let gpu_type = GpuType::new("t4").expect("a name");
        let joined =
            Input::NodeJoined { node: NodeId(3), name: String::new(), gpu_type, island: 0, slots: 3 };
        assert_eq!(scene.inputs(), [joined]);
        (scene, [first, second], workers)
    }

    fn join(&self, id: u64, index: u32) -> FakeWorker {
        let (worker, handle, commands) = WorkerHandle::detached(id);
        let hello = Hello { version: VERSION, slot: slot(3, index), pid: 1 };
        self.node.do_send(FromGateway(GatewayEvent::Joined { worker, hello, handle }));
        FakeWorker { id: worker, commands }
    }

    fn event(&self, worker: &FakeWorker, event: WorkerEvent) {
        self.node.do_send(FromGateway(GatewayEvent::Event { worker: worker.id, event }));
    }

    fn inputs(&mut self) -> Vec<Input> {
        drain(&mut self.inputs).into_iter().map(|input| input.input).collect()
    }
}

/// A group, and what nodes tell it.
struct FakeGroup {
    owner: WorkerOwner,
    events: UnboundedReceiver<FromWorker>,
}

impl FakeGroup {
    fn new(trial: u32) -> Self {
        let (events, seen) = probe::<FromWorker>();
        Self { owner: WorkerOwner { trial: TrialId(trial), round: Round(1), events }, events: seen }
    }

    fn send(&self, scene: &Scene, index: u32, command: WorkerCommand) {
        scene.node.do_send(ToWorker { slot: slot(3, index), from: self.owner.clone(), command });
    }

    fn kill(&self, scene: &Scene, index: u32) {
        let (slot, from, reason) = (slot(3, index), self.owner.clone(), "it stands still".to_owned());
        scene.node.do_send(KillWorker { slot, from, reason });
    }

    fn events(&mut self) -> Vec<(u32, Option<WorkerEvent>)> {
        drain(&mut self.events).into_iter().map(|FromWorker { slot, event }| (slot.index, event)).collect()
    }
}

fn prepare(trial: u32) -> WorkerCommand {
    WorkerCommand::Prepare(Box::new(Task::new(TrialId(trial), "net")))
}

fn release(trial: u32) -> WorkerCommand {
    WorkerCommand::Release { trial: TrialId(trial), state: FinalState::Discarded }
}

fn prepared(trial: u32) -> WorkerEvent {
    WorkerEvent::Prepared { trial: TrialId(trial), rendezvous_addr: "host:1".to_owned() }
}

fn released(trial: u32) -> WorkerEvent {
    WorkerEvent::Released { trial: TrialId(trial) }
}

/// No number of refusals is a reason to give up, as long as they are not the worker's fault.
#[test]
fn a_machine_without_processes_is_waited_for() {
    in_virtual_time(async {
        let mut scene = Scene::refusing(100);
        let first = scene.processes.recv().await.expect("a process");
        let second = scene.processes.recv().await.expect("a process");
        assert!(drain(&mut scene.exits).is_empty(), "it was not given up");
        let blocked = Input::NodeBlocked { node: NodeId(3), reason: "no more processes".to_owned() };
        let inputs = scene.inputs();
        assert_eq!((inputs.len(), inputs.iter().all(|input| *input == blocked)), (100, true));
        for index in 0..3 {
            scene.join(u64::from(index), index);
        }
        settle().await;
        assert!(matches!(scene.inputs()[..], [Input::NodeJoined { .. }]));
        drop((first, second));
    });
}

#[test]
fn a_slot_goes_to_the_next_group_when_the_last_has_left() {
    in_virtual_time(async {
        let (scene, _processes, mut workers) = Scene::joined().await;
        let (mut first, mut second) = (FakeGroup::new(0), FakeGroup::new(1));
        first.send(&scene, 0, prepare(0));
        second.send(&scene, 0, prepare(1));
        second.send(&scene, 0, release(1));
        scene.event(&workers[0], prepared(0));
        first.send(&scene, 0, release(0));
        settle().await;
        assert_eq!(drain(&mut workers[0].commands), [prepare(0), release(0)]);
        scene.event(&workers[0], released(0));
        settle().await;
        // Whoever has waited takes over, with all it had to say.
        assert_eq!(drain(&mut workers[0].commands), [prepare(1), release(1)]);
        scene.event(&workers[0], prepared(1));
        scene.event(&workers[0], prepared(0));
        scene.event(&workers[0], released(1));
        first.send(&scene, 0, release(0));
        settle().await;
        assert_eq!(first.events(), [(0, Some(prepared(0))), (0, Some(released(0)))]);
        assert_eq!(second.events(), [(0, Some(prepared(1))), (0, Some(released(1)))]);
        // Nobody has the worker, so only a start is for it.
        assert!(drain(&mut workers[0].commands).is_empty());
    });
}

#[test]
fn a_failed_trial_has_left_its_worker() {
    in_virtual_time(async {
        let (scene, _processes, mut workers) = Scene::joined().await;
        let (first, second) = (FakeGroup::new(0), FakeGroup::new(1));
        first.send(&scene, 2, prepare(0));
        second.send(&scene, 2, prepare(1));
        scene.event(
            &workers[2],
            WorkerEvent::Failed { trial: TrialId(0), reason: "NaN".to_owned(), cause: FailureCause::Trial },
        );
        settle().await;
        assert_eq!(drain(&mut workers[2].commands), [prepare(0), prepare(1)]);
    });
}

/// What the engine decides about a loss must not reach a group that does not know of it.
#[test]
fn groups_are_told_of_a_loss_before_the_engine() {
    in_virtual_time(async {
        let (mut scene, [process, _second], workers) = Scene::joined().await;
        let (mut owner, mut waiting) = (FakeGroup::new(0), FakeGroup::new(1));
        owner.send(&scene, 0, prepare(0));
        waiting.send(&scene, 0, prepare(1));
        settle().await;
        scene.node.do_send(FromGateway(GatewayEvent::Lost { worker: workers[0].id }));
        let input = scene.inputs.recv().await.expect("the engine is told").input;
        assert_eq!(input, Input::WorkerLost { slot: slot(3, 0), reason: "its connection ended".to_owned() });
        assert_eq!(owner.events(), [(0, None)]);
        assert_eq!(waiting.events(), [(0, None)]);
        // A process that nobody can talk to is of no use; its other slot is lost with it.
        process.kill.await.expect("it is to be killed");
        let _ = process.end.send("signal: 9".to_owned().into());
        settle().await;
        assert_eq!(scene.inputs(), [Input::WorkerLost { slot: slot(3, 1), reason: "signal: 9".to_owned() }]);
        // A slot without a worker: whoever wants to start there is told, and nobody twice.
        owner.send(&scene, 0, release(0));
        waiting.send(&scene, 0, prepare(1));
        settle().await;
        assert!(owner.events().is_empty());
        assert_eq!(waiting.events(), [(0, None)]);
        let _again = scene.join(7, 0);
        settle().await;
        assert_eq!(scene.inputs(), [Input::WorkerJoined { slot: slot(3, 0) }]);
    });
}

#[test]
fn a_worker_that_stands_still_is_killed_with_its_process_and_the_reason_told() {
    in_virtual_time(async {
        let (mut scene, [process, _second], _workers) = Scene::joined().await;
        let (mut owner, mut neighbour, other) = (FakeGroup::new(0), FakeGroup::new(1), FakeGroup::new(2));
        owner.send(&scene, 0, prepare(0));
        neighbour.send(&scene, 1, prepare(1));
        owner.kill(&scene, 0);
        let lost =
            |index, reason: &str| Input::WorkerLost { slot: slot(3, index), reason: reason.to_owned() };
        settle().await;
        let with_it = lost(1, "its process was ended, because it stands still");
        assert_eq!(scene.inputs(), [lost(0, "it stands still"), with_it]);
        assert_eq!((owner.events(), neighbour.events()), (vec![(0, None)], vec![(1, None)]));
        process.kill.await.expect("it is to be killed");
        // It is once enough, and after that there may be another worker.
        owner.kill(&scene, 0);
        other.kill(&scene, 2);
        let _ = process.end.send(Gone { how: "signal: 9".to_owned(), fault: ProcessFault::Killed });
        let _next = scene.processes.recv().await.expect("another one takes its place");
        let _again = scene.join(7, 0);
        owner.kill(&scene, 0);
        settle().await;
        assert_eq!(scene.inputs(), [Input::WorkerJoined { slot: slot(3, 0) }]);
    });
}

/// Milliseconds from one start of the first process to the next, where it ends at once each time.
async fn pauses(scene: &mut Scene, count: usize, end: impl Fn(FakeProcess)) -> Vec<u128> {
    let mut last = None;
    let mut pauses = Vec::new();
    while pauses.len() < count {
        let process = scene.processes.recv().await.expect("another one");
        pauses.extend(last.map(|last| process.at.duration_since(last).as_millis()));
        last = Some(process.at);
        end(process);
    }
    pauses
}

#[test]
fn a_process_that_never_connects_is_killed_and_another_one_started() {
    in_virtual_time(async {
        let mut scene = Scene::new();
        let mut stuck = scene.processes.recv().await.expect("a process");
        let second = scene.processes.recv().await.expect("a process");
        let begun = Instant::now();
        let mut workers = vec![scene.join(2, 2)];
        (&mut stuck.kill).await.expect("it is to be killed");
        assert_eq!(begun.elapsed().as_secs(), 60);
        stuck.be_killed();
        let third = scene.processes.recv().await.expect("another process");
        workers.extend([0, 1].map(|index| scene.join(u64::from(index), index)));
        settle().await;
        assert!(matches!(scene.inputs()[..], [Input::NodeJoined { slots: 3, .. }]));
        drop((second, third, workers));
    });
}

#[test]
fn processes_that_end_again_and_again_are_started_less_and_less_often() {
    in_virtual_time(async {
        let (mut scene, [process, _second], _workers) = Scene::joined().await;
        process.exit();
        let expected = [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000];
        for (pause, expected) in pauses(&mut scene, 8, FakeProcess::exit).await.into_iter().zip(expected) {
            // Timers count milliseconds, and round up.
            assert!((expected..=expected + 2).contains(&pause), "{pause} instead of {expected}");
        }
        assert!(drain(&mut scene.exits).is_empty(), "a node that has joined is not given up");
        // A worker that joins makes all well: the next end is an accident again.
        let process = scene.processes.recv().await.expect("another one");
        scene.join(9, 0);
        settle().await;
        let ended = Instant::now();
        process.exit();
        let process = scene.processes.recv().await.expect("another one");
        assert_eq!(process.at.duration_since(ended), Duration::ZERO);
    });
}

#[test]
fn a_node_that_never_joins_is_given_up_after_three_faults() {
    in_virtual_time(async {
        let mut scene = Scene::new();
        let first = scene.processes.recv().await.expect("a process");
        let _second = scene.processes.recv().await.expect("a process");
        first.exit();
        scene.processes.recv().await.expect("another one").exit();
        settle().await;
        assert!(drain(&mut scene.exits).is_empty());
        scene.processes.recv().await.expect("another one").exit();
        let exit = scene.exits.recv().await;
        let Some(SessionExit::Failed(Error::NoWorkers(reason))) = exit else { panic!("{exit:?}") };
        assert_eq!(reason, "exit status: 1");
    });
}

#[test]
fn processes_that_are_killed_get_more_tries() {
    in_virtual_time(async {
        let mut scene = Scene::new();
        let first = scene.processes.recv().await.expect("a process");
        let _second = scene.processes.recv().await.expect("a process");
        first.be_killed();
        for _ in 0..10 {
            scene.processes.recv().await.expect("another one").be_killed();
        }
        time::sleep(Duration::from_secs(60)).await;
        assert!(drain(&mut scene.exits).is_empty());
        scene.processes.recv().await.expect("another one").be_killed();
        let exit = scene.exits.recv().await;
        assert!(matches!(exit, Some(SessionExit::Failed(Error::NoWorkers(_)))), "{exit:?}");
    });
}
