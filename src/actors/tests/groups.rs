use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use actix::{Actor, System};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver},
    time::{self, Instant},
};

use super::{drain, exits, in_virtual_time, probe, settle, slot, study};
use crate::{
    actors::{
        agents::NodeMap,
        elastic::{Elastic, StudyTasks, Tasks},
        exit::SessionExit,
        group::{ClusterHandles, GroupMessage, NodeHandle, Observer, TrialGroup},
        message::{EngineInput, ForGroup, FromWorker, KillWorker, ToWorker},
        supervisor::TrialRunners,
    },
    ids::{Generation, NodeId, Round, SlotId, StudyId, TrialId},
    space::Params,
    trials::{
        engine::{GroupCommand, GroupEvent, Input, Launch},
        group::{Activity, Batch, FinalState, Limits, Pause, Task, WorkerCommand, WorkerEvent},
    },
};

const TRIAL: TrialId = TrialId(4);
const DISCARD: GroupCommand = GroupCommand::Stop(FinalState::Discarded);

/// What an observer has seen, in short.
type Seen = Arc<Mutex<Vec<String>>>;

/// A cluster of one node, which is a probe.
struct Scene {
    cluster: ClusterHandles,
    to_workers: UnboundedReceiver<ToWorker>,
    kills: UnboundedReceiver<KillWorker>,
    exits: UnboundedReceiver<SessionExit>,
    seen: Seen,
}

impl Scene {
    fn new() -> Self {
        let ((commands, to_workers), (exit, exits)) = (probe::<ToWorker>(), exits());
        let (to_kill, kills) = probe::<KillWorker>();
        let seen = Seen::default();
        let log = seen.clone();
        let observer = move |trial: TrialId, slot: SlotId, message: GroupMessage<'_>| {
            let text = match message {
                GroupMessage::Command(WorkerCommand::Prepare(_)) => "prepare",
                GroupMessage::Command(_) => "command",
                GroupMessage::Event(_) => "event",
                GroupMessage::Lost => "lost",
            };
            log.lock().expect("a log").push(format!("{trial} {slot} {text}"));
        };
        let (nodes, (agent, _)) = (NodeMap::default(), mpsc::unbounded_channel());
        nodes.insert(NodeId(0), NodeHandle { agent, workers: Some((commands, to_kill)) });
        let (limits, observer) = (Limits::default(), Some(Arc::new(Mutex::new(observer)) as Observer));
        let cluster = ClusterHandles { nodes, limits, observer, exit };
        Self { cluster, to_workers, kills, exits, seen }
    }

    async fn sent(&mut self) -> ToWorker {
        self.to_workers.recv().await.expect("a command")
    }
}

fn launch(generation: u32, slots: &[SlotId]) -> Launch {
    Launch {
        generation: Generation(generation),
        slots: slots.to_vec(),
        params: Params::from_iter([("x", 0.5.into())]),
        batch: Some(Batch { total: 64, accumulation: 0 }),
        checkpoint: None,
    }
}

#[test]
fn a_group_carries_messages_between_workers_and_the_engine() {
    in_virtual_time(async {
        let mut scene = Scene::new();
        let (supervisor, mut inputs) = probe::<EngineInput>();
        let task = Task::new(TRIAL, "net");
        let group =
            TrialGroup::new(task.clone(), launch(2, &[slot(0, 1)]), scene.cluster.clone(), supervisor);
        let group = group.start();
        let ToWorker { slot: to, from, command } = scene.sent().await;
        assert_eq!((to, from.trial, from.round), (slot(0, 1), TRIAL, Round::before(Generation(2))));
        assert_eq!(command, WorkerCommand::Prepare(Box::new(task)));
        let event = WorkerEvent::Prepared { trial: TRIAL, rendezvous_addr: "host:1".to_owned() };
        from.events.do_send(FromWorker { slot: to, event: Some(event) });
        let WorkerCommand::Form(form) = scene.sent().await.command else { panic!("it forms") };
        let event =
            WorkerEvent::Formed { trial: TRIAL, round: form.round, steps: 0, pause: Pause::default() };
        from.events.do_send(FromWorker { slot: to, event: Some(event) });
        let input = inputs.recv().await.expect("an input").input;
        assert_eq!(input, Input::group(TRIAL, Generation(2), GroupEvent::Formed));
        // When it is dropped and its last worker is gone, it ends, and nobody misses it.
        group.do_send(ForGroup(DISCARD));
        assert!(matches!(scene.sent().await.command, WorkerCommand::Release { .. }));
        from.events.do_send(FromWorker { slot: to, event: None });
        settle().await;
        assert!(!group.connected());
        assert!(drain(&mut scene.exits).is_empty());
        let seen =
            ["prepare", "event", "command", "event", "command", "lost"].map(|what| format!("4 0.1 {what}"));
        assert_eq!(*scene.seen.lock().expect("a log"), seen);
    });
}

/// The driver is told the time, whether anything else happens or not.
#[test]
fn a_worker_that_stands_still_is_killed() {
    in_virtual_time(async {
        let mut scene = Scene::new();
        let (supervisor, mut inputs) = probe::<EngineInput>();
        let task = Task::new(TRIAL, "net");
        let launch = launch(2, &[slot(0, 1)]);
        let group = TrialGroup::new(task, launch, scene.cluster.clone(), supervisor).start();
        let ToWorker { slot: to, from, .. } = scene.sent().await;
        let tell = |event| from.events.do_send(FromWorker { slot: to, event: Some(event) });
        time::sleep(Duration::from_secs(590)).await;
        tell(WorkerEvent::Prepared { trial: TRIAL, rendezvous_addr: "host:1".to_owned() });
        let WorkerCommand::Form(form) = scene.sent().await.command else { panic!("it forms") };
        let (trial, round) = (TRIAL, form.round);
        tell(WorkerEvent::Formed { trial, round, steps: 0, pause: Pause::default() });
        let input = inputs.recv().await.expect("an input").input;
        assert_eq!(input, Input::group(TRIAL, Generation(2), GroupEvent::Formed));
        for steps in 1..100 {
            let (longest_step_s, activity) = (0.1, Activity::Training);
            tell(WorkerEvent::Progress { trial, round, steps, longest_step_s, activity });
            time::sleep(Duration::from_secs(1)).await;
        }
        assert!(drain(&mut scene.kills).is_empty());
        let began = Instant::now();
        let KillWorker { slot: victim, from: by, reason } = scene.kills.recv().await.expect("it is killed");
        assert_eq!((victim, by == from), (to, true));
        assert_eq!(reason, "worker 0.1 made no step for 60 s, expected at most 60 s: it was killed");
        let waited = began.elapsed().as_secs_f64();
        assert!((58.9..59.1).contains(&waited), "{waited}");
        from.events.do_send(FromWorker { slot: to, event: None });
        group.do_send(ForGroup(DISCARD));
        settle().await;
        assert!(!group.connected());
        assert!(drain(&mut inputs).is_empty(), "it is nobody's fault");
    });
}

#[test]
fn a_slot_of_a_node_that_is_not_there_is_lost_at_once() {
    in_virtual_time(async {
        let scene = Scene::new();
        let (supervisor, _inputs) = probe::<EngineInput>();
        let launch = launch(1, &[slot(9, 0)]);
        let group =
            TrialGroup::new(Task::new(TRIAL, "net"), launch, scene.cluster.clone(), supervisor).start();
        settle().await;
        assert_eq!(*scene.seen.lock().expect("a log"), ["4 9.0 prepare", "4 9.0 lost"]);
        group.do_send(ForGroup(DISCARD));
        settle().await;
        assert!(!group.connected());
    });
}

#[test]
fn a_group_that_dies_ends_the_session() {
    in_virtual_time(async {
        let mut scene = Scene::new();
        let (supervisor, _inputs) = probe::<EngineInput>();
        let launch = launch(1, &[slot(0, 0)]);
        let group =
            TrialGroup::new(Task::new(TRIAL, "net"), launch, scene.cluster.clone(), supervisor).start();
        // Nodes know it as long as it has workers.
        drop((group, scene.sent().await));
        let exit = scene.exits.recv().await;
        assert!(matches!(exit, Some(SessionExit::Died("trial group"))), "{exit:?}");
    });
}

fn elastic(scene: &Scene, tasks: Tasks) -> Elastic {
    let arbiter = System::current().arbiter().clone();
    Elastic { tasks, cluster: scene.cluster.clone(), arbiter, groups: BTreeMap::new() }
}

#[test]
fn groups_are_made_of_the_settings_of_the_study() {
    in_virtual_time(async {
        let mut scene = Scene::new();
        let (supervisor, _inputs) = probe::<EngineInput>();
        let yaml =
            "trial: {trainable: net, epochs: 8, initial_batch: 64, max_batch: 512, checkpoint_interval: 9s}
search: {seed: 100}";
        let (study, trainable, folder) = (study(yaml), "net".to_owned(), "study".into());
        let tasks = StudyTasks { study, study_id: StudyId(7), trainable, folder, report_every_s: 2.0 };
        let mut elastic = elastic(&scene, Tasks::OfStudy(Box::new(tasks)));
        elastic.command(TRIAL, GroupCommand::Launch(launch(1, &[slot(0, 0)])), &supervisor);
        let WorkerCommand::Prepare(task) = scene.sent().await.command else { panic!("it prepares") };
        assert_eq!((task.study, task.trial, task.trainable.as_str()), (StudyId(7), TRIAL, "net"));
        assert_eq!(task.seed, 104);
        assert_eq!((task.epochs, task.initial_batch, task.lr_rule.as_str()), (8.0, 64, "adascale"));
        assert_eq!((task.checkpoint_every_s, task.report_every_s), (9.0, 2.0));
        assert_eq!(task.params["x"], 0.5);
        assert_eq!(task.checkpoint, Path::new("study/checkpoints/trial-4"));
    });
}

#[test]
fn a_trial_has_one_group_at_a_time() {
    in_virtual_time(async {
        let mut scene = Scene::new();
        let (supervisor, _inputs) = probe::<EngineInput>();
        let tasks: Vec<Task> = (0..5).map(|trial| Task::new(TrialId(trial), "net")).collect();
        let mut elastic = elastic(&scene, Tasks::Given(tasks));
        elastic.command(TRIAL, GroupCommand::Launch(launch(1, &[slot(0, 0)])), &supervisor);
        let first = scene.sent().await.from;
        elastic.command(TRIAL, GroupCommand::Launch(launch(2, &[slot(0, 1)])), &supervisor);
        settle().await;
        let sent = drain(&mut scene.to_workers);
        let [second, release] = &sent[..] else { panic!("{sent:?}") };
        let (second, release) = if second.from == first { (release, second) } else { (second, release) };
        assert!(matches!(release.command, WorkerCommand::Release { .. }), "{release:?}");
        assert!(matches!(second.command, WorkerCommand::Prepare(_)), "{second:?}");
        // What comes next is for the second one, until it is stopped for good.
        let batch = Batch { total: 64, accumulation: 0 };
        let slots = vec![slot(0, 1), slot(0, 2)];
        let reshape = GroupCommand::Reshape { generation: Generation(3), slots, batch };
        elastic.command(TRIAL, reshape, &supervisor);
        assert_eq!(scene.sent().await.from, second.from);
        elastic.command(TRIAL, DISCARD, &supervisor);
        assert!(elastic.groups.is_empty());
        elastic.command(TrialId(9), GroupCommand::Launch(launch(1, &[slot(0, 0)])), &supervisor);
        assert!(elastic.groups.is_empty(), "there is no such task");
    });
}
