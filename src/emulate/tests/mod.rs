//! Emulated workers in virtual time: a clock that jumps to the next moment at which anything happens.

mod group;
mod random;
mod rendezvous;
mod session;

use std::{
    collections::BTreeMap,
    env, fs,
    path::PathBuf,
    process,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use tokio::{
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::{
    backend::{Place, work},
    rendezvous::Rendezvous,
};
use crate::{
    ids::{GpuType, NodeId, Round, SlotId, StudyId, TrialId},
    trials::group::{Batch, Form, Member, Task, WorkerCommand, WorkerEvent, WorkerReport},
    wire::Secret,
};

/// Slots of a node.
const NODE: u32 = 4;
const ADDRESS: &str = "here";
const TRIAL: TrialId = TrialId(7);

const fn slot(index: u32) -> SlotId {
    SlotId { node: NodeId(index / NODE), index }
}

fn task() -> Task {
    Task {
        study: StudyId(1),
        trial: TRIAL,
        trainable: "cifar10".to_owned(),
        params: json!({"lr": 0.05}).as_object().expect("it is one").clone(),
        seed: 3,
        epochs: 2.0,
        initial_batch: 128,
        lr_rule: "adascale".to_owned(),
        checkpoint: PathBuf::from("nowhere"),
        checkpoint_every_s: 5.0,
        report_every_s: 1.0,
        evaluate_every: 0.5,
        measure_noise: true,
        mixed_precision: false,
    }
}

const fn batch(total: u32) -> Batch {
    Batch { total, accumulation: 0 }
}

fn member(index: u32) -> Member {
    Member { slot: slot(index), rendezvous_addr: ADDRESS.to_owned() }
}

fn form(round: u64, members: &[u32], donors: &[u32], total: u32) -> Form {
    let list = |slots: &[u32]| slots.iter().map(|slot| member(*slot)).collect();
    let (members, donors) = (list(members), list(donors));
    Form { trial: TRIAL, round: Round(round), members, donors, batch: batch(total), broken: false }
}

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("pollux-emulate-{}-{number}", process::id()));
        fs::create_dir_all(&path).expect("a folder for checkpoints");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing of it is missed, if this fails.
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Worker {
    life: u32,
    commands: UnboundedSender<WorkerCommand>,
    running: JoinHandle<()>,
}

/// Emulated workers of one rendezvous, seen from their head.
struct World {
    began: Instant,
    time_scale: f64,
    gpu_type: GpuType,
    rendezvous: Arc<Rendezvous>,
    folder: Folder,
    workers: BTreeMap<u32, Worker>,
    lives: u32,
    events: UnboundedReceiver<(u32, u32, WorkerEvent)>,
    send: UnboundedSender<(u32, u32, WorkerEvent)>,
}

impl World {
    fn new(slots: u32, time_scale: f64) -> Self {
        Self::of("a100", slots, time_scale)
    }

    fn of(gpu_type: &str, slots: u32, time_scale: f64) -> Self {
        let (send, events) = mpsc::unbounded_channel();
        let mut world = Self {
            began: Instant::now(),
            time_scale,
            gpu_type: GpuType::new(gpu_type).expect("it has a name"),
            rendezvous: Arc::new(Rendezvous::new(time_scale)),
            folder: Folder::new(),
            workers: BTreeMap::new(),
            lives: 0,
            events,
            send,
        };
        (0..slots).for_each(|slot| world.start(slot));
        world
    }

    /// Real seconds.
    fn now_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    fn task(&self) -> Task {
        Task { checkpoint: self.folder.0.join("trial"), ..task() }
    }

    fn start(&mut self, slot: u32) {
        let place = Place {
            slot: self::slot(slot),
            gpu_type: self.gpu_type.clone(),
            time_scale: self.time_scale,
            rendezvous: self.rendezvous.clone(),
            rendezvous_addr: ADDRESS.to_owned(),
            secret: Secret::random().expect("random numbers"),
        };
        let (commands, orders) = mpsc::unbounded_channel();
        let (tx, mut rx) = mpsc::unbounded_channel();
        let running = tokio::spawn(async move { work(place, orders, tx).await });
        self.lives += 1;
        let (life, send) = (self.lives, self.send.clone());
        tokio::spawn(async move {
            while let Some(event) = rx.recv().await {
                if send.send((slot, life, event)).is_err() {
                    return;
                }
            }
        });
        self.workers.insert(slot, Worker { life, commands, running });
    }

    /// As `kill -9` would: it does not leave its group.
    fn kill(&mut self, slot: u32) {
        self.workers.remove(&slot).expect("it lives").running.abort();
    }

    fn send_to(&self, slot: u32, command: WorkerCommand) {
        self.workers[&slot].commands.send(command).expect("it listens");
    }

    fn send_all(&self, slots: &[u32], command: &WorkerCommand) {
        for slot in slots {
            self.send_to(*slot, command.clone());
        }
    }

    /// The next event of a living worker other than a sign of progress; none if there is none within this many emulated seconds.
    async fn next(&mut self, within_s: f64) -> Option<(u32, WorkerEvent)> {
        let end_s = self.now_s() + within_s * self.time_scale;
        loop {
            let event = self.next_event((end_s - self.now_s()).max(0.0) / self.time_scale).await?;
            if !matches!(event.1, WorkerEvent::Progress { .. }) {
                return Some(event);
            }
        }
    }

    /// The next event of a living worker; none if there is none within this many emulated seconds.
    async fn next_event(&mut self, within_s: f64) -> Option<(u32, WorkerEvent)> {
        let deadline = Instant::now() + Duration::from_secs_f64(within_s * self.time_scale);
        loop {
            let wait = deadline.saturating_duration_since(Instant::now());
            let (slot, life, event) = timeout(wait, self.events.recv()).await.ok()??;
            if self.workers.get(&slot).is_some_and(|worker| worker.life == life) {
                return Some((slot, event));
            }
        }
    }

    /// Waits for something. Everything until then is dropped.
    async fn find<T>(&mut self, mut wanted: impl FnMut(u32, &WorkerEvent) -> Option<T>) -> T {
        loop {
            let (slot, event) = self.next(1e6).await.expect("it comes some time");
            if let Some(found) = wanted(slot, &event) {
                return found;
            }
        }
    }

    async fn report(&mut self) -> WorkerReport {
        self.find(|_, event| match event {
            WorkerEvent::Reported(report) => Some(report.as_ref().clone()),
            _ => None,
        })
        .await
    }

    /// Lets workers prepare the trial.
    async fn prepare(&mut self, slots: &[u32]) {
        self.send_all(slots, &WorkerCommand::Prepare(Box::new(self.task())));
        for _ in slots {
            self.find(|_, event| matches!(event, WorkerEvent::Prepared { trial: TRIAL, .. }).then_some(()))
                .await;
        }
    }

    /// Has a group formed, and gives the step at which it starts.
    async fn form(&mut self, form: Form) -> u64 {
        let all: Vec<u32> = self.workers.keys().copied().collect();
        self.send_all(&all, &WorkerCommand::Form(form.clone()));
        let mut started = None;
        for _ in &form.members {
            let steps = self
                .find(|_, event| match event {
                    WorkerEvent::Formed { round, steps, .. } if *round == form.round => Some(*steps),
                    _ => None,
                })
                .await;
            assert!(started.is_none_or(|started| started == steps), "all start from the same step");
            started = Some(steps);
        }
        started.expect("a group has members")
    }

    /// Has the workers of some slots prepare and form the first group.
    async fn begin(&mut self, slots: &[u32], total: u32) -> u64 {
        self.prepare(slots).await;
        self.form(form(1, slots, &[], total)).await
    }
}

/// Emulated seconds since a moment.
fn since(world: &World, moment: Instant) -> f64 {
    moment.elapsed().as_secs_f64() / world.time_scale
}
