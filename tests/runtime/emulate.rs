//! Emulated nodes as real processes: the program itself, started again, with a head in the test.

use std::{
    collections::BTreeMap,
    env, fs,
    ops::Range,
    path::PathBuf,
    process::{self, Child, Command as Process, Stdio},
    time::Duration,
};

use pollux_tune::{
    ids::{GpuType, Round, StudyId, TrialId},
    internal::{
        emulate::{NodeLaunch, launch},
        wire::{Gateway, GatewayEvent, Hello, Secret, WorkerHandle, WorkerId},
    },
    trials::group::{Batch, Form, Member, Task, WorkerCommand, WorkerEvent},
};
use tokio::{sync::mpsc::Receiver, time::timeout};

/// Only so that a test that fails does so some time.
const PATIENCE: Duration = Duration::from_secs(120);
const TRIAL: TrialId = TrialId(1);

/// A process that does not outlive its test.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        // Gone already, if this fails.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process as it is launched, but of the program, and not of this test.
fn prepared(gateway: &Gateway, secret: &Secret, node: u32, slots: Range<u32>) -> Process {
    let launched = launch(&NodeLaunch {
        address: gateway.address().clone(),
        secret: secret.clone(),
        node,
        slots,
        gpu_type: GpuType::new("a100").expect("it has a name"),
        time_scale: 0.01,
        machine_address: None,
        arguments: Vec::new(),
    });
    let launched = launched.expect("it makes a node");
    let mut process = Process::new(env!("CARGO_BIN_EXE_pollux-tune"));
    process.args(launched.get_args()).stdin(Stdio::null());
    process.envs(launched.get_envs().filter_map(|(name, value)| Some((name, value?))));
    process
}

/// The workers that have come, and what they say.
struct Head {
    heard: Receiver<GatewayEvent>,
    workers: BTreeMap<u32, (WorkerId, Hello, WorkerHandle)>,
    /// Where workers that have prepared can be met.
    addresses: BTreeMap<u32, String>,
}

impl Head {
    async fn next(&mut self) -> GatewayEvent {
        timeout(PATIENCE, self.heard.recv()).await.expect("something happens").expect("the gateway is open")
    }

    async fn await_workers(&mut self, count: usize) {
        while self.workers.len() < count {
            if let GatewayEvent::Joined { worker, hello, handle } = self.next().await {
                self.workers.insert(hello.slot.index, (worker, hello, handle));
            }
        }
    }

    fn tell(&self, slots: &[u32], command: &WorkerCommand) {
        for slot in slots {
            self.workers[slot].2.send(command.clone());
        }
    }

    /// The next event, with its slot; none of a worker that is gone, which is forgotten.
    async fn event(&mut self) -> (u32, Option<WorkerEvent>) {
        let slot = |head: &Self, of: WorkerId| {
            *head.workers.iter().find(|(_, (worker, ..))| *worker == of).expect("it has joined").0
        };
        match self.next().await {
            GatewayEvent::Event { worker, event } => (slot(self, worker), Some(event)),
            GatewayEvent::Lost { worker } => {
                let slot = slot(self, worker);
                self.workers.remove(&slot);
                (slot, None)
            }
            other => panic!("{other:?}"),
        }
    }

    async fn find<T>(&mut self, wanted: impl Fn(u32, &WorkerEvent) -> Option<T>) -> T {
        loop {
            if let (slot, Some(event)) = self.event().await
                && let Some(found) = wanted(slot, &event)
            {
                return found;
            }
        }
    }

    /// What each of some workers says of a kind.
    async fn find_all<T>(
        &mut self,
        slots: &[u32],
        wanted: impl Fn(&WorkerEvent) -> Option<T>,
    ) -> BTreeMap<u32, T> {
        let mut found = BTreeMap::new();
        while found.len() < slots.len() {
            let (slot, one) = self.find(|slot, event| wanted(event).map(|found| (slot, found))).await;
            found.insert(slot, one);
        }
        assert!(found.keys().eq(slots));
        found
    }

    fn form(&self, round: u64, slots: &[u32], broken: bool) -> WorkerCommand {
        let member = |slot: &u32| Member {
            slot: self.workers[slot].1.slot,
            rendezvous_addr: self.addresses[slot].clone(),
        };
        let members = slots.iter().map(member).collect();
        let batch = Batch { total: 128 * slots.len() as u32, accumulation: 0 };
        WorkerCommand::Form(Form {
            trial: TRIAL,
            round: Round(round),
            members,
            donors: Vec::new(),
            batch,
            broken,
        })
    }
}

fn task(checkpoint: PathBuf) -> Task {
    Task {
        study: StudyId(1),
        trial: TRIAL,
        trainable: "cifar10".to_owned(),
        params: serde_json::Map::new(),
        seed: 0,
        epochs: 60.0,
        initial_batch: 128,
        lr_rule: "adascale".to_owned(),
        checkpoint,
        checkpoint_every_s: 1e6,
        report_every_s: 5.0,
        evaluate_every: 10.0,
        measure_noise: true,
        mixed_precision: false,
    }
}

fn formed(event: &WorkerEvent) -> Option<u64> {
    match event {
        WorkerEvent::Formed { steps, .. } => Some(*steps),
        _ => None,
    }
}

#[tokio::test]
async fn a_group_over_two_nodes_survives_the_loss_of_the_one_where_it_met() {
    let secret = Secret::random().unwrap();
    let (gateway, heard) = Gateway::open(&"127.0.0.1:0".parse().unwrap(), &secret).unwrap();
    let mut head = Head { heard, workers: BTreeMap::new(), addresses: BTreeMap::new() };
    let mut nodes = [(0, 0..2), (1, 2..4)]
        .map(|(node, slots)| Node(prepared(&gateway, &secret, node, slots).spawn().expect("it starts")));
    head.await_workers(4).await;
    for (slot, (_, hello, _)) in &head.workers {
        assert_eq!((hello.slot.node.0, hello.pid), (slot / 2, nodes[*slot as usize / 2].0.id()));
    }
    #[cfg(target_os = "linux")]
    {
        let shown = fs::read_to_string(format!("/proc/{}/cmdline", nodes[0].0.id())).unwrap();
        assert!(shown.contains("\0emulated\0node\x000\0"), "{shown:?}");
    }
    let folder = env::temp_dir().join(format!("pollux-emulated-nodes-{}", process::id()));
    let all = [0, 1, 2, 3];
    head.tell(&all, &WorkerCommand::Prepare(Box::new(task(folder.join("trial")))));
    let prepared = |event: &WorkerEvent| match event {
        WorkerEvent::Prepared { trial: TRIAL, rendezvous_addr } => Some(rendezvous_addr.clone()),
        _ => None,
    };
    head.addresses = head.find_all(&all, prepared).await;
    head.tell(&all, &head.form(1, &all, false));
    assert!(head.find_all(&all, formed).await.values().all(|steps| *steps == 0));
    let report = |slot: u32, event: &WorkerEvent| match event {
        WorkerEvent::Reported(report) => Some((slot, report.as_ref().clone())),
        _ => None,
    };
    let (first, report) = head.find(report).await;
    let times = report.step_times[0];
    assert_eq!(
        (first, times.shape.gpus(), times.shape.nodes(), report.examples),
        (0, 4, 2, 512 * report.steps)
    );

    nodes[0].0.kill().unwrap();
    let (mut gone, mut left) = (Vec::new(), BTreeMap::new());
    while gone.len() + left.len() < 4 {
        match head.event().await {
            (slot, None) => gone.push(slot),
            (slot, Some(WorkerEvent::Broken { round: Round(1), steps, .. })) => {
                left.insert(slot, steps.expect("it has trained"));
            }
            (_, Some(_)) => {}
        }
    }
    gone.sort_unstable();
    assert_eq!((gone, left.keys().copied().collect::<Vec<_>>()), (vec![0, 1], vec![2, 3]));
    let furthest = *left.values().max().unwrap();
    assert!(furthest > 0);
    head.tell(&[2, 3], &head.form(2, &[2, 3], true));
    assert!(head.find_all(&[2, 3], formed).await.values().all(|steps| *steps == furthest));
    let finished = |slot: u32, event: &WorkerEvent| match event {
        WorkerEvent::Finished { round, metrics, .. } => Some((slot, *round, metrics["accuracy"])),
        _ => None,
    };
    let (slot, round, accuracy) = head.find(finished).await;
    assert_eq!((slot, round), (2, Round(2)));
    assert!((0.5..1.0).contains(&accuracy));
    assert!(folder.join("trial").exists());
    fs::remove_dir_all(folder).unwrap();

    // Without a head there is nobody to emulate for.
    drop((head, gateway));
    let ended = tokio::task::spawn_blocking(move || nodes[1].0.wait().unwrap());
    assert!(timeout(PATIENCE, ended).await.expect("it ends").unwrap().success());
}

#[tokio::test]
async fn a_node_that_is_not_wanted_says_why_it_ends() {
    let secret = Secret::random().unwrap();
    let (gateway, mut heard) = Gateway::open(&"127.0.0.1:0".parse().unwrap(), &secret).unwrap();
    let mut stranger = prepared(&gateway, &Secret::random().unwrap(), 3, 0..2);
    let ended = tokio::task::spawn_blocking(move || stranger.output().unwrap()).await.unwrap();
    let message = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(message.starts_with("emulated node 3: the head refuses this worker"), "{message}");
    assert!(matches!(heard.recv().await, Some(GatewayEvent::Refused { .. })));

    let mut muddled = prepared(&gateway, &secret, 3, 0..2);
    muddled.env("POLLUX_TUNE_EMULATED_SLOTS", "two");
    let ended = tokio::task::spawn_blocking(move || muddled.output().unwrap()).await.unwrap();
    let message = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(message.contains("POLLUX_TUNE_EMULATED_SLOTS is `two`"), "{message}");
}

#[tokio::test]
async fn what_makes_no_node_is_not_launched() {
    let secret = Secret::random().unwrap();
    let good = NodeLaunch {
        address: "127.0.0.1:1".parse().unwrap(),
        secret,
        node: 0,
        slots: 0..1,
        gpu_type: GpuType::new("t4").unwrap(),
        time_scale: 1.0,
        machine_address: None,
        arguments: vec!["first".to_owned()],
    };
    let launched = launch(&good).unwrap();
    assert_eq!(launched.get_args().next().unwrap(), "first");
    let message = |launching: &NodeLaunch| launch(launching).unwrap_err().to_string();
    for time_scale in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(message(&NodeLaunch { time_scale, ..good.clone() }).contains("time scale"));
    }
    assert!(message(&NodeLaunch { slots: 4..4, ..good }).contains("slots"));
}
