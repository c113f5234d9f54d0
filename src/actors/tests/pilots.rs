//! The pilots of a study, with a queue that the test is.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use actix::{Actor, Addr, Context, Handler, MessageResult};
use tokio::sync::mpsc;

use super::in_virtual_time;
use crate::{
    actors::{
        clock::Clock,
        exit::{ExitSender, SessionExit},
        message::EngineInput,
        pilots::{EndPilots, PilotContext, PilotNews, Pilots, TakeDemand},
    },
    alloc::Node,
    ids::{GpuType, NodeId},
    slurm::{Error, Provider, QueuedJob},
    space::Study,
    trials::{
        engine::{AllocationSnapshot, Engine, Input, TrialKind},
        pilots::{Demand, JobEnd, JobState},
    },
};

/// What the queue has, and what was done to it.
#[derive(Default)]
struct World {
    jobs: BTreeMap<String, (usize, JobState)>,
    submitted: usize,
    is_down: bool,
    /// What the next submission is answered with.
    refusal: Option<String>,
}

#[derive(Clone, Default)]
struct Queue(Arc<Mutex<World>>);

impl Queue {
    fn set(&self, job: &str, state: JobState) {
        self.0.lock().unwrap().jobs.get_mut(job).expect("it was submitted").1 = state;
    }

    fn alive(&self) -> usize {
        let alive = |(_, state): &&(usize, JobState)| !matches!(state, JobState::Ended { .. });
        self.0.lock().unwrap().jobs.values().filter(alive).count()
    }
}

impl Provider for Queue {
    fn submit(&mut self, kind: usize) -> Result<String, Error> {
        let mut world = self.0.lock().unwrap();
        world.submitted += 1;
        if let Some(text) = world.refusal.clone() {
            return Err(Error::Refused { program: "sbatch", text });
        }
        let job = format!("{}_0", world.submitted);
        world.jobs.insert(job.clone(), (kind, JobState::Pending { reason: "Resources".to_owned() }));
        Ok(job)
    }

    fn poll(&mut self) -> Result<Vec<QueuedJob>, Error> {
        let world = self.0.lock().unwrap();
        if world.is_down {
            return Err(Error::Silent { program: "squeue", seconds: 60 });
        }
        let queued = |(job, (kind, state)): (&String, &(usize, JobState))| QueuedJob {
            job: job.clone(),
            kind: Some(*kind).filter(|kind| *kind < 9),
            node: String::new(),
            state: state.clone(),
        };
        Ok(world.jobs.iter().map(queued).collect())
    }

    fn cancel(&mut self, jobs: &[String]) -> Result<(), Error> {
        let mut world = self.0.lock().unwrap();
        for job in jobs {
            if let Some((_, state)) = world.jobs.get_mut(job) {
                *state = ended(JobEnd::Ended);
            }
        }
        Ok(())
    }

    fn log(&mut self, _: &str) -> String {
        "the last line".to_owned()
    }
}

fn ended(end: JobEnd) -> JobState {
    JobState::Ended { end, reason: "GONE".to_owned(), log: String::new() }
}

/// Stands for the supervisor: says what the study has to do.
struct Supervisor {
    demand: Arc<Mutex<Demand>>,
    inputs: Arc<Mutex<Vec<Input>>>,
}

impl Actor for Supervisor {
    type Context = Context<Self>;
}

impl Handler<TakeDemand> for Supervisor {
    type Result = MessageResult<TakeDemand>;

    fn handle(&mut self, _: TakeDemand, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.demand.lock().unwrap().clone())
    }
}

impl Handler<EngineInput> for Supervisor {
    type Result = ();

    fn handle(&mut self, message: EngineInput, _: &mut Context<Self>) {
        self.inputs.lock().unwrap().push(message.input);
    }
}

struct Scene {
    queue: Queue,
    demand: Arc<Mutex<Demand>>,
    inputs: Arc<Mutex<Vec<Input>>>,
    notices: Arc<Mutex<Vec<String>>>,
    pilots: Addr<Pilots>,
    exits: Mutex<mpsc::UnboundedReceiver<SessionExit>>,
}

impl Scene {
    /// A study of programs that could use twelve slots, in a queue as it is.
    fn new(queue: Queue) -> Self {
        let yaml = "{space: {x: {float: [0, 1]}}, objective: {minimize: loss}, search: {trials: 12, parallel: 12}, \
                    trial: {command: [true]}, cluster: {slurm: [{nodes: 1..3, slots: 2xcpu}]}}";
        let study = Study::from_yaml("study.yaml", yaml).unwrap();
        let mut engine = Engine::new(&study, TrialKind::Rigid).unwrap();
        engine.handle(Input::Started, 0.0);
        let demand = Arc::new(Mutex::new(engine.demand(0.0)));
        let (inputs, notices) = (Arc::<Mutex<Vec<Input>>>::default(), Arc::<Mutex<Vec<String>>>::default());
        let supervisor = Supervisor { demand: demand.clone(), inputs: inputs.clone() }.start();
        let (tell, exits) = mpsc::unbounded_channel();
        let told = notices.clone();
        let around = PilotContext {
            study,
            clock: Clock::after(1e9, 0.5),
            // Not 1: the clock of the test is then that of the queue.
            time_scale: 0.5,
            demand: supervisor.clone().recipient(),
            supervisor: supervisor.recipient(),
            notify: Some(Arc::new(move |notice: &str| told.lock().unwrap().push(notice.to_owned()))),
            exit: ExitSender::new(tell),
        };
        let pilots = Pilots::new(Box::new(queue.clone()), around).start();
        Self { queue, demand, inputs, notices, pilots, exits: Mutex::new(exits) }
    }

    /// So many seconds of the study pass.
    async fn pass(&self, seconds: u32) {
        for _ in 0..4 * seconds {
            tokio::time::sleep(Duration::from_millis(125)).await;
        }
    }

    /// The agent of a job has come, and its node is in the cluster.
    async fn join(&self, job: &str, node: u32, busy: bool) {
        self.queue.set(job, JobState::Running { since_s: 0.0, ends_s: None });
        let mut demand = self.demand.lock().unwrap().clone();
        let AllocationSnapshot { cluster, .. } = &mut demand.snapshot;
        cluster.add(NodeId(node), Node { gpu_type: GpuType::cpu(), gpus: 2, island: 0 }).unwrap();
        demand.busy = if busy { cluster.iter().map(|(node, _)| node).collect() } else { BTreeSet::new() };
        *self.demand.lock().unwrap() = demand;
        let nodes = [NodeId(node)].into();
        self.pilots.send(PilotNews::Joined { job: job.to_owned(), nodes, gpu_type: None }).await.unwrap();
    }

    fn submitted(&self) -> usize {
        self.queue.0.lock().unwrap().submitted
    }

    fn has_notice(&self, text: &str) -> bool {
        self.notices.lock().unwrap().iter().any(|notice| notice.contains(text))
    }
}

#[test]
fn pilots_grow_with_the_demand_and_nothing_is_left_at_the_end() {
    in_virtual_time(async {
        let scene = Scene::new(Queue::default());
        scene.pass(5).await;
        assert_eq!(scene.submitted(), 1, "the minimum");
        scene.pass(30).await;
        assert_eq!(scene.submitted(), 2, "one more is worth it, and two wait");
        assert!(scene.has_notice("the study would run about 2.0 times as fast"));
        scene.join("1_0", 0, true).await;
        scene.pass(30).await;
        assert_eq!(scene.submitted(), 3, "there may be three");
        scene.join("2_0", 1, true).await;
        scene.queue.set("1_0", ended(JobEnd::Preempted));
        scene.pilots.send(PilotNews::Lost { job: "1_0".to_owned() }).await.unwrap();
        scene.pass(30).await;
        assert_eq!(scene.submitted(), 4, "another one for the one that was preempted");
        scene.pilots.send(EndPilots).await.unwrap();
        assert_eq!(scene.queue.alive(), 0);
    });
}

#[test]
fn a_node_without_work_is_drained_and_then_given_back() {
    in_virtual_time(async {
        let scene = Scene::new(Queue::default());
        scene.pass(40).await;
        for (job, node) in [("1_0", 0), ("2_0", 1), ("3_0", 2)] {
            scene.join(job, node, false).await;
            scene.pass(20).await;
        }
        scene.demand.lock().unwrap().to_come = 0;
        scene.pass(330).await;
        let drained = scene.inputs.lock().unwrap().clone();
        assert_eq!(drained.len(), 2, "one is held: {drained:?}");
        assert!(matches!(&drained[0], Input::NodeDraining { .. }));
        assert!(scene.has_notice("back to Slurm: no trial has used it for 5 minutes"));
        assert_eq!(scene.queue.alive(), 1);
    });
}

#[test]
fn jobs_of_an_earlier_head_are_taken_over_and_strange_ones_cancelled() {
    in_virtual_time(async {
        let queue = Queue::default();
        let running = JobState::Running { since_s: 0.0, ends_s: None };
        for (job, kind) in [("71_0", 0), ("72_0", 9)] {
            queue.0.lock().unwrap().jobs.insert(job.to_owned(), (kind, running.clone()));
        }
        let scene = Scene::new(queue);
        scene.demand.lock().unwrap().to_come = 2;
        scene.join("71_0", 0, true).await;
        scene.pass(3).await;
        assert_eq!(scene.submitted(), 0, "the minimum is there");
        assert!(
            scene.has_notice("job 72_0 is cancelled: the study file no longer asks for a node like that")
        );
        assert_eq!(scene.queue.alive(), 1);
    });
}

#[test]
fn a_queue_that_does_not_answer_is_told_of_once_and_one_that_refuses_gives_its_reason() {
    in_virtual_time(async {
        let queue = Queue::default();
        queue.0.lock().unwrap().is_down = true;
        queue.0.lock().unwrap().refusal = Some("Invalid qos specification".to_owned());
        let scene = Scene::new(queue);
        scene.pass(20).await;
        let down = |notice: &&String| {
            notice.contains("the queue cannot be asked: `squeue` has not answered for 60 s")
        };
        assert_eq!(scene.notices.lock().unwrap().iter().filter(down).count(), 1);
        scene.queue.0.lock().unwrap().is_down = false;
        scene.pass(20).await;
        assert!(scene.has_notice("the queue answers again"));
        assert!(scene.has_notice("failed: Slurm refused it: `sbatch` says: Invalid qos specification"));
        scene.pass(600).await;
        assert_eq!(scene.submitted(), 3, "and then no more");
        assert!(scene.has_notice("that was number 3 in a row"));
        let Some(SessionExit::Failed(error)) = scene.exits.lock().unwrap().try_recv().ok() else {
            panic!("the study has no machine, and waits for none");
        };
        assert!(error.to_string().contains("failed 3 times in a row: Slurm refused it"), "{error}");
    });
}

/// Whoever has other machines goes on with them.
#[test]
fn a_study_with_a_machine_goes_on_without_pilots() {
    in_virtual_time(async {
        let queue = Queue::default();
        queue.0.lock().unwrap().refusal = Some("Invalid qos specification".to_owned());
        let scene = Scene::new(queue);
        let cluster = &mut scene.demand.lock().unwrap().snapshot.cluster;
        cluster.add(NodeId(7), Node { gpu_type: GpuType::cpu(), gpus: 2, island: 0 }).unwrap();
        scene.pass(600).await;
        assert_eq!(scene.submitted(), 3);
        assert!(scene.exits.lock().unwrap().try_recv().is_err());
    });
}

#[test]
fn a_study_that_is_done_asks_for_nothing() {
    in_virtual_time(async {
        let queue = Queue::default();
        let running = JobState::Running { since_s: 0.0, ends_s: None };
        queue.0.lock().unwrap().jobs.insert("71_0".to_owned(), (0, running));
        let scene = Scene::new(queue);
        scene.demand.lock().unwrap().is_over = true;
        scene.pass(60).await;
        assert_eq!(scene.submitted(), 0);
        scene.pilots.send(EndPilots).await.unwrap();
        assert_eq!(scene.queue.alive(), 0, "what a killed head has left is cancelled");
    });
}
