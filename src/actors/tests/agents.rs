//! The registry of agents; the agents are the test.

use actix::{Actor, Addr};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use super::{drain, exits, in_virtual_time, probe, settle};
use crate::{
    actors::{
        agents::{AgentKey, AgentMessage, Agents, NodeMap, StudyTerms},
        clock::Clock,
        exit::SessionExit,
        message::{EngineInput, ReleaseNode},
    },
    ids::{GpuType, NodeId, StudyId},
    trials::{
        agent::{AgentCommand, AgentHello, AgentNode, AgentSlot, Work},
        engine::Input,
    },
    wire::AgentId,
};

struct Scene {
    agents: Addr<Agents>,
    nodes: NodeMap,
    inputs: UnboundedReceiver<EngineInput>,
    _exits: UnboundedReceiver<SessionExit>,
}

impl Scene {
    fn new() -> Self {
        let ((supervisor, inputs), (exit, exits)) = (probe::<EngineInput>(), exits());
        let nodes = NodeMap::default();
        let terms = StudyTerms {
            study: StudyId::default(),
            clock: Clock::after(0.0, 1.0),
            epoch: 1,
            work: Work::Programs,
            folder: "/nowhere".into(),
            probe: String::new(),
        };
        let agents = Agents::new(terms, nodes.clone(), None, None, supervisor, &exit).start();
        Self { agents, nodes, inputs, _exits: exits }
    }

    /// An agent comes, and is told which nodes it is.
    async fn join(&self, agent: AgentKey, name: &str, incarnation: u64, types: &[&str]) -> Joined {
        let (commands, mut sent) = mpsc::unbounded_channel();
        let slot = AgentSlot { device: None, memory_bytes: None, threads: 1 };
        let node = |name: &&str| AgentNode {
            gpu_type: GpuType::new(name).expect("a name"),
            slots: vec![slot.clone()],
        };
        let hello = Box::new(AgentHello {
            build: String::new(),
            incarnation,
            name: name.to_owned(),
            address: None,
            island: String::new(),
            nodes: types.iter().map(node).collect(),
            ends_in_s: None,
            job: None,
            held: Vec::new(),
        });
        self.agents.do_send(AgentMessage::Joined { agent, hello, commands });
        let Some(AgentCommand::Welcome(welcome)) = sent.recv().await else { panic!("no welcome") };
        Joined { nodes: welcome.nodes.iter().map(|node| node.0).collect(), sent }
    }

    /// What the engine has heard, in short.
    fn heard(&mut self) -> Vec<String> {
        let short = |EngineInput { input, .. }| match input {
            Input::NodeJoined { node, name, .. } => format!("+{node} {name}"),
            Input::NodeLost { node, .. } => format!("-{node}"),
            other => panic!("{other:?}"),
        };
        drain(&mut self.inputs).into_iter().map(short).collect()
    }
}

struct Joined {
    nodes: Vec<u32>,
    sent: UnboundedReceiver<AgentCommand>,
}

fn remote(number: u64) -> AgentKey {
    AgentKey::Remote(AgentId::detached(number))
}

/// Two agents of one name took each other for lost, again and again.
#[test]
fn a_second_agent_of_a_name_takes_nothing_from_the_first() {
    in_virtual_time(async {
        let mut scene = Scene::new();
        let here = scene.join(AgentKey::Local, "vm", 0, &["cpu"]).await;
        let mut first = scene.join(remote(0), "vm", 7, &["t4", "a100"]).await;
        let second = scene.join(remote(1), "vm", 8, &["t4"]).await;
        assert_eq!((here.nodes, first.nodes, second.nodes), (vec![0], vec![1, 2], vec![3]));
        assert_eq!(scene.heard(), ["+0 vm", "+1 vm-2/t4", "+2 vm-2/a100", "+3 vm-3"]);
        assert!(first.sent.try_recv().is_err_and(|error| error == mpsc::error::TryRecvError::Empty));
    });
}

/// Its connection was lost, and the head has not noticed yet.
#[test]
fn an_agent_that_comes_again_has_its_name_and_new_numbers() {
    in_virtual_time(async {
        let mut scene = Scene::new();
        let first = scene.join(remote(0), "gpu1", 7, &["t4"]).await;
        let other = scene.join(remote(1), "gpu2", 8, &["t4"]).await;
        let again = scene.join(remote(2), "gpu1", 7, &["t4"]).await;
        assert_eq!((first.nodes, other.nodes, again.nodes), (vec![0], vec![1], vec![2]));
        assert_eq!(scene.heard(), ["+0 gpu1", "+1 gpu2", "-0", "+2 gpu1"]);
        // The old connection has nothing more to say.
        let reason = "it fell silent".to_owned();
        scene.agents.do_send(AgentMessage::Lost { agent: remote(0), reason });
        settle().await;
        assert_eq!(scene.heard(), [""; 0]);
        assert!(scene.nodes.get(NodeId(0)).is_none() && scene.nodes.get(NodeId(2)).is_some());
    });
}

/// The machine drains and is lost before it may go, and comes again: it is not sent away with what it was before.
#[test]
fn a_machine_that_comes_again_is_not_let_go_with_the_one_that_drained() {
    in_virtual_time(async {
        let mut scene = Scene::new();
        let first = scene.join(remote(0), "gpu1", 7, &["t4"]).await;
        let reason = "it fell silent".to_owned();
        scene.agents.do_send(AgentMessage::Lost { agent: remote(0), reason });
        let mut again = scene.join(remote(1), "gpu1", 8, &["t4"]).await;
        // Was under way all the time.
        scene.agents.do_send(ReleaseNode(NodeId(first.nodes[0])));
        settle().await;
        assert_eq!(scene.heard(), ["+0 gpu1", "-0", "+1 gpu1"]);
        assert!(again.sent.try_recv().is_err_and(|error| error == mpsc::error::TryRecvError::Empty));
        // It can still be let go itself.
        scene.agents.do_send(ReleaseNode(NodeId(again.nodes[0])));
        settle().await;
        assert_eq!(scene.heard(), ["-1"]);
        assert!(matches!(again.sent.try_recv(), Ok(AgentCommand::Leave { .. })));
    });
}
