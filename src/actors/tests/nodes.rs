use std::time::Duration;

use actix::{Actor, Addr};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver},
    time::Instant,
};

use super::{drain, exits, in_virtual_time, probe, settle, slot};
use crate::{
    actors::{
        error::Error,
        exit::SessionExit,
        message::{EngineInput, FromWorker, KillWorker, ToWorker, WorkerOwner},
        node::{AgentLost, FromAgent, Node, NodeContext},
    },
    ids::{GpuType, NodeId, Round, TrialId},
    trials::{
        agent::{AgentCommand, AgentEvent},
        engine::{FailureCause, Input},
        group::{FinalState, Task, WorkerCommand, WorkerEvent},
        node::{NodeDescription, ProcessFault},
    },
};

/// A node of number 3 with a process of two slots and one of one, and its agent, which the test is.
struct Scene {
    node: Addr<Node>,
    commands: UnboundedReceiver<AgentCommand>,
    inputs: UnboundedReceiver<EngineInput>,
    exits: UnboundedReceiver<SessionExit>,
}

impl Scene {
    fn new() -> Self {
        let (agent, commands) = mpsc::unbounded_channel();
        let ((supervisor, inputs), (exit, exits)) = (probe::<EngineInput>(), exits());
        let gpu_type = GpuType::new("t4").expect("a name");
        let of = NodeDescription {
            node: NodeId(3),
            name: String::new(),
            gpu_type,
            island: 0,
            processes: vec![2, 1],
        };
        let around = NodeContext { agent, is_needed: true, supervisor, exit };
        Self { node: Node::new(of, around).start(), commands, inputs, exits }
    }

    /// The same with all workers, of which the engine knows.
    async fn joined() -> Self {
        let mut scene = Self::new();
        assert_eq!(scene.started().await, 0);
        assert_eq!(scene.started().await, 1);
        for index in 0..3 {
            scene.join(index);
        }
        settle().await;
        let gpu_type = GpuType::new("t4").expect("a name");
        let joined =
            Input::NodeJoined { node: NodeId(3), name: String::new(), gpu_type, island: 0, slots: 3 };
        assert_eq!(scene.inputs(), [joined]);
        scene
    }

    /// The process that is to be started next. Nothing else is asked for before.
    async fn started(&mut self) -> u32 {
        let command = self.commands.recv().await.expect("a command");
        let AgentCommand::Start { node: NodeId(3), process } = command else { panic!("{command:?}") };
        process
    }

    /// What the agent is to do.
    fn commands(&mut self) -> Vec<AgentCommand> {
        drain(&mut self.commands)
    }

    /// What the worker of a slot is to do.
    fn sent_to(&mut self, index: u32) -> Vec<WorkerCommand> {
        let command = |command| match command {
            AgentCommand::ToWorker { slot: of, command } if of == slot(3, index) => command,
            other => panic!("{other:?}"),
        };
        self.commands().into_iter().map(command).collect()
    }

    fn say(&self, event: AgentEvent) {
        self.node.do_send(FromAgent(event));
    }

    fn join(&self, index: u32) {
        self.say(AgentEvent::WorkerJoined { slot: slot(3, index) });
    }

    fn event(&self, index: u32, event: WorkerEvent) {
        self.say(AgentEvent::Worker { slot: slot(3, index), event });
    }

    fn end(&self, process: u32, how: &str, fault: ProcessFault) {
        let (node, how, output) = (NodeId(3), how.to_owned(), String::new());
        self.say(AgentEvent::Ended { node, process, how, fault, output });
    }

    fn exit(&self, process: u32) {
        self.end(process, "exit status: 1", ProcessFault::Own);
    }

    fn be_killed(&self, process: u32) {
        self.end(process, "signal: 9", ProcessFault::Killed);
    }

    fn inputs(&mut self) -> Vec<Input> {
        drain(&mut self.inputs).into_iter().map(|input| input.input).collect()
    }
}

const fn kill(process: u32) -> AgentCommand {
    AgentCommand::Kill { node: NodeId(3), process }
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
        let mut scene = Scene::new();
        for _ in 0..100 {
            let process = scene.started().await;
            scene.end(process, "no more processes", ProcessFault::Environment);
        }
        settle().await;
        assert!(drain(&mut scene.exits).is_empty(), "it was not given up");
        let blocked = Input::NodeBlocked { node: NodeId(3), reason: "no more processes".to_owned() };
        let inputs = scene.inputs();
        assert_eq!((inputs.len(), inputs.iter().all(|input| *input == blocked)), (100, true));
        for index in 0..3 {
            scene.join(index);
        }
        settle().await;
        assert!(matches!(scene.inputs()[..], [Input::NodeJoined { .. }]));
    });
}

#[test]
fn a_slot_goes_to_the_next_group_when_the_last_has_left() {
    in_virtual_time(async {
        let mut scene = Scene::joined().await;
        let (mut first, mut second) = (FakeGroup::new(0), FakeGroup::new(1));
        first.send(&scene, 0, prepare(0));
        second.send(&scene, 0, prepare(1));
        second.send(&scene, 0, release(1));
        scene.event(0, prepared(0));
        first.send(&scene, 0, release(0));
        settle().await;
        assert_eq!(scene.sent_to(0), [prepare(0), release(0)]);
        scene.event(0, released(0));
        settle().await;
        // Whoever has waited takes over, with all it had to say.
        assert_eq!(scene.sent_to(0), [prepare(1), release(1)]);
        scene.event(0, prepared(1));
        scene.event(0, prepared(0));
        scene.event(0, released(1));
        first.send(&scene, 0, release(0));
        settle().await;
        assert_eq!(first.events(), [(0, Some(prepared(0))), (0, Some(released(0)))]);
        assert_eq!(second.events(), [(0, Some(prepared(1))), (0, Some(released(1)))]);
        // Nobody has the worker, so only a start is for it.
        assert!(scene.commands().is_empty());
    });
}

#[test]
fn a_failed_trial_has_left_its_worker() {
    in_virtual_time(async {
        let mut scene = Scene::joined().await;
        let (first, second) = (FakeGroup::new(0), FakeGroup::new(1));
        first.send(&scene, 2, prepare(0));
        second.send(&scene, 2, prepare(1));
        scene.event(
            2,
            WorkerEvent::Failed { trial: TrialId(0), reason: "NaN".to_owned(), cause: FailureCause::Trial },
        );
        settle().await;
        assert_eq!(scene.sent_to(2), [prepare(0), prepare(1)]);
    });
}

/// What the engine decides about a loss must not reach a group that does not know of it.
#[test]
fn groups_are_told_of_a_loss_before_the_engine() {
    in_virtual_time(async {
        let mut scene = Scene::joined().await;
        let (mut owner, mut waiting) = (FakeGroup::new(0), FakeGroup::new(1));
        owner.send(&scene, 0, prepare(0));
        waiting.send(&scene, 0, prepare(1));
        settle().await;
        assert_eq!(scene.sent_to(0), [prepare(0)]);
        scene.say(AgentEvent::WorkerLost { slot: slot(3, 0) });
        let input = scene.inputs.recv().await.expect("the engine is told").input;
        assert_eq!(input, Input::WorkerLost { slot: slot(3, 0), reason: "its connection ended".to_owned() });
        assert_eq!(owner.events(), [(0, None)]);
        assert_eq!(waiting.events(), [(0, None)]);
        // A process that nobody can talk to is of no use; its other slot is lost with it.
        assert_eq!(scene.commands(), [kill(0)]);
        scene.be_killed(0);
        settle().await;
        assert_eq!(scene.inputs(), [Input::WorkerLost { slot: slot(3, 1), reason: "signal: 9".to_owned() }]);
        // A slot without a worker: whoever wants to start there is told, and nobody twice.
        owner.send(&scene, 0, release(0));
        waiting.send(&scene, 0, prepare(1));
        settle().await;
        assert!(owner.events().is_empty());
        assert_eq!(waiting.events(), [(0, None)]);
        scene.join(0);
        settle().await;
        assert_eq!(scene.inputs(), [Input::WorkerJoined { slot: slot(3, 0) }]);
    });
}

#[test]
fn a_lost_agent_takes_its_workers_along() {
    in_virtual_time(async {
        let mut scene = Scene::joined().await;
        let (mut owner, mut waiting) = (FakeGroup::new(0), FakeGroup::new(1));
        owner.send(&scene, 0, prepare(0));
        owner.send(&scene, 2, prepare(0));
        waiting.send(&scene, 0, prepare(1));
        settle().await;
        scene.node.do_send(AgentLost { reason: "it fell silent".to_owned() });
        let input = scene.inputs.recv().await.expect("the engine is told").input;
        assert_eq!(input, Input::NodeLost { node: NodeId(3), reason: "it fell silent".to_owned() });
        assert_eq!(owner.events(), [(0, None), (2, None)]);
        assert_eq!(waiting.events(), [(0, None)]);
        settle().await;
        assert!(!scene.node.connected());
        assert!(drain(&mut scene.exits).is_empty(), "that is no mistake");
    });
}

#[test]
fn a_worker_that_stands_still_is_killed_with_its_process_and_the_reason_told() {
    in_virtual_time(async {
        let mut scene = Scene::joined().await;
        let (mut owner, mut neighbour, other) = (FakeGroup::new(0), FakeGroup::new(1), FakeGroup::new(2));
        owner.send(&scene, 0, prepare(0));
        neighbour.send(&scene, 1, prepare(1));
        settle().await;
        assert_eq!(scene.commands().len(), 2);
        owner.kill(&scene, 0);
        let lost =
            |index, reason: &str| Input::WorkerLost { slot: slot(3, index), reason: reason.to_owned() };
        settle().await;
        let with_it = lost(1, "its process was ended, because it stands still");
        assert_eq!(scene.inputs(), [lost(0, "it stands still"), with_it]);
        assert_eq!((owner.events(), neighbour.events()), (vec![(0, None)], vec![(1, None)]));
        assert_eq!(scene.commands(), [kill(0)]);
        // It is once enough, and after that there may be another worker.
        owner.kill(&scene, 0);
        other.kill(&scene, 2);
        // What it had said before does not count any more.
        scene.event(0, prepared(0));
        scene.be_killed(0);
        assert_eq!(scene.started().await, 0, "another one takes its place");
        scene.join(0);
        owner.kill(&scene, 0);
        settle().await;
        assert_eq!(scene.inputs(), [Input::WorkerJoined { slot: slot(3, 0) }]);
        assert!(owner.events().is_empty() && scene.commands().is_empty());
    });
}

/// Milliseconds from one start of the first process to the next, where it ends at once each time.
async fn pauses(scene: &mut Scene, count: usize, end: impl Fn(&Scene)) -> Vec<u128> {
    let mut last: Option<Instant> = None;
    let mut pauses = Vec::new();
    while pauses.len() < count {
        assert_eq!(scene.started().await, 0);
        pauses.extend(last.map(|last| last.elapsed().as_millis()));
        last = Some(Instant::now());
        end(scene);
    }
    pauses
}

#[test]
fn a_process_that_never_connects_is_killed_and_another_one_started() {
    in_virtual_time(async {
        let mut scene = Scene::new();
        let begun = Instant::now();
        assert_eq!((scene.started().await, scene.started().await), (0, 1));
        scene.join(2);
        assert_eq!(scene.commands.recv().await, Some(kill(0)));
        assert_eq!(begun.elapsed().as_secs(), 60);
        scene.be_killed(0);
        assert_eq!(scene.started().await, 0);
        scene.join(0);
        scene.join(1);
        settle().await;
        assert!(matches!(scene.inputs()[..], [Input::NodeJoined { slots: 3, .. }]));
    });
}

#[test]
fn processes_that_end_again_and_again_are_started_less_and_less_often() {
    in_virtual_time(async {
        let mut scene = Scene::joined().await;
        scene.exit(0);
        let expected = [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000];
        for (pause, expected) in pauses(&mut scene, 8, |scene| scene.exit(0)).await.into_iter().zip(expected)
        {
            // Timers count milliseconds, and round up.
            assert!((expected..=expected + 2).contains(&pause), "{pause} instead of {expected}");
        }
        assert!(drain(&mut scene.exits).is_empty(), "a node that has joined is not given up");
        // A worker that joins makes all well: the next end is an accident again.
        assert_eq!(scene.started().await, 0);
        scene.join(0);
        settle().await;
        let ended = Instant::now();
        scene.exit(0);
        assert_eq!(scene.started().await, 0);
        assert_eq!(ended.elapsed(), Duration::ZERO);
    });
}

#[test]
fn a_node_that_never_joins_is_given_up_after_three_faults() {
    in_virtual_time(async {
        let mut scene = Scene::new();
        assert_eq!((scene.started().await, scene.started().await), (0, 1));
        for _ in 0..2 {
            scene.exit(0);
            assert_eq!(scene.started().await, 0);
        }
        settle().await;
        assert!(drain(&mut scene.exits).is_empty());
        scene.exit(0);
        let exit = scene.exits.recv().await;
        let Some(SessionExit::Failed(Error::NoWorkers(reason))) = exit else { panic!("{exit:?}") };
        assert_eq!(reason, "exit status: 1");
    });
}

#[test]
fn processes_that_are_killed_get_more_tries() {
    in_virtual_time(async {
        let mut scene = Scene::new();
        assert_eq!((scene.started().await, scene.started().await), (0, 1));
        scene.join(2);
        for _ in 0..11 {
            scene.be_killed(0);
            assert_eq!(scene.started().await, 0);
        }
        assert!(drain(&mut scene.exits).is_empty());
        scene.be_killed(0);
        let exit = scene.exits.recv().await;
        assert!(matches!(exit, Some(SessionExit::Failed(Error::NoWorkers(_)))), "{exit:?}");
    });
}
