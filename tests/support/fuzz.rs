//! What is fuzzed: each function takes any bytes and panics if they break a promise. The targets of `fuzz/` call them with what the
//! fuzzer finds, `tests/runtime/fuzz.rs` with the corpus.

use std::{collections::BTreeMap, sync::LazyLock};

use pollux_tune::{
    alloc::{Cluster, PolicyKind},
    goodput::LrRule,
    ids::{GpuType, NodeId, SlotId, StudyId, TrialId},
    internal::{
        ask_tell::answer_requests,
        checkpoint::{check_checkpoint, seal_checkpoint},
        wire::{
            decode_agent_command, decode_agent_event, decode_agent_hello, decode_command, decode_event,
            decode_hello, encode_agent_command, encode_agent_event, encode_agent_hello, encode_command,
            encode_event,
        },
    },
    space::Study,
    trials::{
        Search,
        engine::{Command, Engine, GroupCommand, Input, JournalEntry, Services, TrialKind},
        group::{Driver, Limits, Output, Task, WorkerEvent},
    },
};

/// A target: its name, which is that of its corpus, and what it does with bytes.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// All targets.
pub(crate) const TARGETS: [Target; 8] = [
    ("study", study),
    ("texts", texts),
    ("message", message),
    ("agent_message", agent_message),
    ("events", events),
    ("journal", journal),
    ("checkpoint", checkpoint),
    ("ask_tell", ask_tell),
];

/// Calls a target.
pub(crate) fn run(name: &str, bytes: &[u8]) {
    let (_, target) = TARGETS.iter().find(|(of, _)| *of == name).expect("a target");
    target(bytes);
}

/// A study file: it is read, or what is wrong with it can be shown. What was read is written so that it means the same, and can be
/// searched unless the search says why not.
fn study(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let study = match Study::from_yaml("study.yaml", text) {
        Ok(study) => study,
        Err(problems) => {
            assert!(!problems.list().is_empty() && !problems.report().is_empty());
            return;
        }
    };
    let again = Study::from_yaml("again.yaml", &study.to_yaml());
    let again = again.unwrap_or_else(|problems| panic!("{}\n{}", study.to_yaml(), problems.report()));
    assert_eq!(again, study, "{}", study.to_yaml());
    // Larger ones take longer than a fuzzer has.
    if study.space.parameters().len() < 20
        && let Ok(mut search) = Search::new(&study)
        && let Ok(trial) = search.ask()
    {
        assert!(study.space.satisfies(&trial.params));
        let again = study.space.encode(&trial.params).and_then(|point| study.space.decode(&point));
        assert_eq!(again.as_ref(), Ok(&trial.params));
    }
}

/// Texts of the command line, and of fields: a cluster, a policy, a rule, the id of a study, a type of GPU.
fn texts(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Ok(cluster) = Cluster::parse(text) {
        assert!(cluster.total_gpus() > 0 && !cluster.is_empty(), "{text}");
    }
    if let Ok(policy) = text.parse::<PolicyKind>() {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    if let Ok(rule) = text.parse::<LrRule>() {
        assert_eq!(rule.to_string().parse(), Ok(rule));
    }
    if let Ok(id) = text.parse::<StudyId>() {
        assert_eq!(id.to_string().parse(), Ok(id));
    }
    if let Ok(gpu_type) = GpuType::new(text) {
        assert_eq!(GpuType::new(gpu_type.name()), Ok(gpu_type));
    }
}

/// One message between a head and a worker, in either direction: what is understood is sent again as it was meant.
fn message(bytes: &[u8]) {
    let _ = decode_hello(bytes);
    if let Ok(command) = decode_command(bytes) {
        let sent = encode_command(command);
        let again = decode_command(&sent).expect("what is sent is understood");
        assert_eq!(encode_command(again), sent);
    }
    if let Ok(event) = decode_event(bytes) {
        let sent = encode_event(event);
        let again = decode_event(&sent).expect("what is sent is understood");
        assert_eq!(encode_event(again), sent);
    }
}

/// As `message`, between a head and an agent.
fn agent_message(bytes: &[u8]) {
    if let Ok(hello) = decode_agent_hello(bytes) {
        let sent = encode_agent_hello(hello);
        let again = decode_agent_hello(&sent).expect("what is sent is understood");
        assert_eq!(encode_agent_hello(again), sent);
    }
    if let Ok(Some(command)) = decode_agent_command(bytes) {
        let sent = encode_agent_command(command);
        let again = decode_agent_command(&sent).expect("what is sent is understood");
        assert_eq!(again.map(encode_agent_command), Some(sent));
    }
    if let Ok(Some(event)) = decode_agent_event(bytes) {
        let sent = encode_agent_event(event);
        let again = decode_agent_event(&sent).expect("what is sent is understood");
        assert_eq!(again.map(encode_agent_event), Some(sent));
    }
}

/// The study of the targets `events` and `journal`.
pub(crate) const ELASTIC: &str = "
space: {lr: {log: [1e-3, 1]}, wide: [false, true]}
objective: {maximize: accuracy}
trial: {trainable: net, epochs: 4, initial_batch: 32, max_batch: 256, max_batch_per_gpu: 64}
search: {trials: 3, parallel: 2, algorithm: random, early_stopping: {rule: asha}}
";

static STUDY: LazyLock<Study> = LazyLock::new(|| Study::from_yaml("study.yaml", ELASTIC).expect("a study"));

/// The longest input of those that are made of several.
const STEPS_MAX: usize = 64;

/// A head with one node, whose workers say whatever the input holds: no event of a worker brings it down, its rules hold, and its
/// journal can be replayed.
///
/// The input is a list of steps. Their first byte is what happens: 0 to 2 an event of that worker, whose length is in the second
/// byte; 3 to 5 the worker is lost, 6 to 8 it is back, others let as many seconds pass.
fn events(bytes: &[u8]) {
    let mut head = Head::start();
    let mut rest = bytes;
    for _ in 0..STEPS_MAX {
        let Some((&what, more)) = rest.split_first() else { break };
        rest = more;
        let slot = SlotId { node: NodeId(0), index: u32::from(what % 3) };
        match what {
            0..=2 => {
                let Some((&length, more)) = rest.split_first() else { break };
                let (event, more) = more.split_at(more.len().min(length.into()));
                rest = more;
                if let Ok(event) = decode_event(event) {
                    head.event(slot, event);
                }
            }
            3..=5 => head.lost(slot),
            6..=8 => head.hear(Input::WorkerJoined { slot }),
            seconds => {
                head.now_s += f64::from(seconds);
                head.hear(Input::Tick);
            }
        }
    }
    head.check();
}

/// An engine, its services and the drivers of its groups; the workers are the caller's.
struct Head {
    engine: Engine,
    services: Services,
    drivers: BTreeMap<TrialId, Driver>,
    journal: Vec<JournalEntry>,
    now_s: f64,
}

impl Head {
    fn start() -> Self {
        let engine = Engine::new(&STUDY, TrialKind::Elastic).expect("a good study");
        let services = Services::new(&STUDY).expect("a good study");
        let (drivers, journal) = (BTreeMap::new(), Vec::new());
        let mut head = Self { engine, services, drivers, journal, now_s: 1.0 };
        head.hear(Input::Started);
        let gpu_type = GpuType::new("t4").expect("a name");
        head.hear(Input::NodeJoined { node: NodeId(0), name: String::new(), gpu_type, island: 0, slots: 3 });
        head
    }

    /// Carries out what follows from an input, until nothing does.
    fn hear(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let step = self.engine.handle(input, self.now_s);
            for entry in &step.facts {
                self.services.apply(entry).expect("everybody understands");
            }
            self.journal.extend(step.facts);
            for command in step.commands {
                inputs.extend(self.services.answer(&command));
                if let Command::Group { trial, command } = command {
                    let outputs = match command {
                        GroupCommand::Launch(launch) => {
                            let task = Task::new(trial, "net");
                            let (driver, outputs) =
                                Driver::launch(task, launch, Limits::default(), self.now_s);
                            self.drivers.insert(trial, driver);
                            outputs
                        }
                        command => {
                            let driver = self.drivers.get_mut(&trial);
                            driver.map_or_else(Vec::new, |driver| driver.on_command(command, self.now_s))
                        }
                    };
                    inputs.extend(self.carry_out(trial, outputs));
                }
            }
        }
    }

    fn carry_out(&mut self, trial: TrialId, outputs: Vec<Output>) -> Vec<Input> {
        let mut inputs = Vec::new();
        for output in outputs {
            match output {
                Output::Engine { generation, event } => inputs.push(Input::group(trial, generation, event)),
                Output::Left => drop(self.drivers.remove(&trial)),
                // The workers are the caller's.
                Output::Send { .. } | Output::Kill { .. } => {}
            }
        }
        inputs
    }

    fn event(&mut self, slot: SlotId, event: WorkerEvent) {
        let trial = event.trial();
        let Some(driver) = self.drivers.get_mut(&trial) else { return };
        let outputs = driver.on_worker(slot, event, self.now_s);
        self.carry_out(trial, outputs).into_iter().for_each(|input| self.hear(input));
    }

    fn lost(&mut self, slot: SlotId) {
        for trial in self.drivers.keys().copied().collect::<Vec<_>>() {
            let outputs = self.drivers.get_mut(&trial).map(|driver| driver.on_lost(slot, self.now_s));
            let inputs = self.carry_out(trial, outputs.unwrap_or_default());
            for input in inputs {
                self.hear(input);
            }
        }
        self.hear(Input::WorkerLost { slot, reason: "says the fuzzer".to_owned() });
    }

    /// The journal is the study, also after a way through JSON.
    fn check(&self) {
        let mut twin = Engine::new(&STUDY, TrialKind::Elastic).expect("a good study");
        for entry in &self.journal {
            let text = serde_json::to_string(entry).expect("facts are JSON");
            let again: JournalEntry =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            twin.apply(&again).unwrap_or_else(|error| panic!("{error}: {text}"));
        }
        assert_eq!(twin.state(), self.engine.state());
    }
}

/// A journal as lines of JSON: facts that do not follow are refused and change nothing; a head that starts from those that do,
/// if they keep its rules, carries on.
fn journal(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let mut engine = Engine::new(&STUDY, TrialKind::Elastic).expect("a good study");
    let mut services = Services::new(&STUDY).expect("a good study");
    for line in text.lines().take(STEPS_MAX) {
        let Ok(entry) = serde_json::from_str::<JournalEntry>(line) else { continue };
        let again = serde_json::to_string(&entry).expect("facts are JSON");
        assert_eq!(serde_json::from_str::<JournalEntry>(&again).expect(&again), entry);
        let before = engine.state().clone();
        match engine.apply(&entry) {
            Ok(()) if services.apply(&entry).is_err() => return,
            Ok(()) => {}
            Err(error) => {
                assert!(!error.to_string().is_empty());
                assert_eq!(*engine.state(), before);
            }
        }
    }
    if engine.check().is_err() {
        return;
    }
    let now_s = engine.state().at_s;
    let mut head = Head { engine, services, drivers: BTreeMap::new(), journal: Vec::new(), now_s };
    head.hear(Input::Started);
    let gpu_type = GpuType::new("t4").expect("a name");
    head.hear(Input::NodeJoined { node: NodeId(0), name: String::new(), gpu_type, island: 0, slots: 3 });
    head.now_s += 100.0;
    head.hear(Input::Tick);
}

/// A checkpoint: what was changed is refused, and so is most of what somebody has given the right checksum.
fn checkpoint(bytes: &[u8]) {
    let task = Task::new(TrialId(0), "net");
    let _ = check_checkpoint(&task, bytes);
    let sealed = seal_checkpoint(bytes);
    let whole = check_checkpoint(&task, &sealed);
    if let (Ok(_), [first, ..]) = (whole, bytes) {
        let mut changed = sealed;
        changed[0] = !first;
        check_checkpoint(&task, &changed).expect_err("it has another checksum");
    }
}

const ASKED: [&str; 4] = [
    "space: {lr: {log: [1e-5, 1]}, optimizer: {choice: {sgd: {momentum: {float: [0, 0.99]}}, adam: }}}
objective: {maximize: accuracy}
search: {trials: 8, seed: 7, early_stopping: {rule: asha, grace: 1, reduction: 3}}
trial: {epochs: 9}",
    "space: {x: {float: [0, 1]}, n: {int: [1, 9]}}
objective: [{minimize: loss}, {maximize: speed}]
search: {trials: 8}",
    "space: {x: {float: [0, 1], step: 0.25}, deep: [false, true]}
objective: {minimize: loss}
search: {trials: 8, algorithm: random, early_stopping: {rule: median}}",
    "space: {x: [a, b, c]}
objective: {minimize: loss}
search: {trials: 8, algorithm: grid}",
];

static ASKED_STUDIES: LazyLock<Vec<Study>> = LazyLock::new(|| {
    ASKED.iter().map(|text| Study::from_yaml("study.yaml", text).expect("a study")).collect()
});

/// Requests of a client, one in a line: every line that is not empty is answered, with JSON. The first byte chooses the study.
fn ask_tell(bytes: &[u8]) {
    let Some((which, requests)) = bytes.split_first() else { return };
    let study = &ASKED_STUDIES[usize::from(*which) % ASKED.len()];
    let lines: Vec<&[u8]> = requests.split(|byte| *byte == b'\n').take(STEPS_MAX).collect();
    let requests = lines.join(&b'\n');
    let mut replies = Vec::new();
    answer_requests(study, &mut &requests[..], &mut replies).expect("memory can be read and written");
    let replies: Vec<_> = replies.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    let asked = lines.iter().filter(|line| !line.trim_ascii().is_empty()).count();
    assert!(replies.len() >= asked, "{asked} requests and {} replies", replies.len());
    for reply in replies {
        serde_json::from_slice::<serde_json::Value>(reply).expect("replies are JSON");
    }
}
