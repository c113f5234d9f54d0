//! A head at the hub, and agents on machines around it.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use pollux_tune::{
    ids::TrialId,
    store::{Folder, Reader},
    trials::engine::JournalEntry,
};

use crate::{
    checkpoint_files::{assert_same, last_state},
    machines::Machines,
};

pub(crate) const MACHINES: usize = 3;
/// For what comes sooner or later, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// One trial, whose result depends on nothing but its parameters and epochs.
pub(crate) struct Training {
    /// Where it waits.
    pub(crate) gates: String,
    /// While this file is there, it is slow.
    pub(crate) slow: PathBuf,
    /// The fewest and the most workers.
    pub(crate) gpus: (u32, u32),
    pub(crate) epochs: u32,
    pub(crate) checkpoint_interval: &'static str,
    /// From plan to plan, where nothing happens.
    pub(crate) interval: &'static str,
}

impl Default for Training {
    /// A short one of one worker that waits for nothing.
    fn default() -> Self {
        let (gates, slow) = (String::new(), PathBuf::from("never"));
        Self { gates, slow, gpus: (1, 1), epochs: 6, checkpoint_interval: "1h", interval: "1s" }
    }
}

impl Training {
    fn yaml(&self) -> String {
        let Self { gates, slow, gpus: (least, most), epochs, checkpoint_interval, interval } = self;
        let slow = slow.display();
        format!(
            "
space: {{lr: {{choice: [0.05]}}, gates: {{choice: ['{gates}']}}, slow: {{choice: ['{slow}']}}, init: {{choice: [7]}}}}
objective: {{maximize: accuracy}}
trial:
  {{trainable: net, epochs: {epochs}, initial_batch: 24, max_batch: 24, min_gpus: {least}, max_gpus: {most}, \
            checkpoint_interval: {checkpoint_interval}}}
search: {{trials: 1, parallel: 1}}
scheduler: {{interval: {interval}}}
"
        )
    }
}

/// Everything of a test: processes end with it.
pub(crate) struct World {
    pub(crate) machines: Machines,
    pub(crate) root: PathBuf,
    pub(crate) agents: Vec<Option<Child>>,
    pub(crate) head: Option<Child>,
}

impl Drop for World {
    fn drop(&mut self) {
        for child in self.agents.iter_mut().flatten().chain(&mut self.head) {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
        if thread::panicking() {
            for name in ["head", "agent-0", "agent-1", "agent-2"] {
                let text = fs::read_to_string(self.root.join(name)).unwrap_or_default();
                println!("--- {name}\n{text}");
            }
        } else {
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}

impl World {
    pub(crate) fn new(machines: Machines, name: &str) -> Self {
        let root = env::temp_dir().join(format!("pollux-machines-{name}-{}", process::id()));
        fs::create_dir_all(&root).expect("a folder");
        machines.enter(None);
        Self { machines, root, agents: (0..MACHINES).map(|_| None).collect(), head: None }
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.root.join("study")
    }

    fn log(&self, name: &str) -> Stdio {
        File::options().create(true).append(true).open(self.root.join(name)).expect("a file").into()
    }

    /// Runs a study at the hub.
    pub(crate) fn run(&self, name: &str, training: &Training, arguments: &[&str]) -> Command {
        let file = self.root.join(format!("{name}.yaml"));
        fs::write(&file, training.yaml()).expect("a file");
        let mut head = Command::new(env::current_exe().expect("this program"));
        head.arg("run").arg(file).arg("--folder").arg(self.root.join(name));
        head.args(["--cpu", "--threads", "1", "--keep-checkpoints", "all"]).args(arguments);
        head.stdin(Stdio::null()).stdout(self.log("head")).stderr(self.log("head"));
        head
    }

    /// The same without other machines, to its end.
    pub(crate) fn run_undisturbed(&self, epochs: u32) {
        let training = Training { epochs, ..Training::default() };
        let ended = self.run("undisturbed", &training, &["--slots", "1"]).status().expect("it runs");
        assert!(ended.success());
    }

    /// Starts a head that only others work for, and waits until they can join.
    pub(crate) fn start_head(&mut self, training: &Training) {
        let head = self.run("study", training, &["--listen", "10.77.0.1", "--slots", "0"]).spawn();
        self.head = Some(head.expect("it starts"));
        let join = self.folder().join("cluster/join.json");
        until("the head writes a join file", || join.exists());
    }

    /// The study ends well, with the parameters of the undisturbed run.
    pub(crate) fn ends_as_undisturbed(&mut self, what: &str) {
        let mut head = self.head.take().expect("it runs");
        assert!(head.wait().expect("it is ours").success());
        assert_same(&end_of(&self.folder()), &end_of(&self.root.join("undisturbed")), what);
    }

    /// The facts of the study so far.
    pub(crate) fn facts(&self) -> Vec<JournalEntry> {
        Reader::open(&self.folder()).and_then(|reader| reader.entries(0)).expect("a journal")
    }

    pub(crate) fn start_agent(&mut self, machine: usize) {
        let join = self.folder().join("cluster/join.json");
        let name = format!("agent-{machine}");
        let mut agent = self.machines.command(machine, env::current_exe().expect("this program"));
        agent.arg("agent").arg("--join-file").arg(join).args([
            "--slots",
            "1xcpu",
            "--threads",
            "1",
            "--name",
            &name,
        ]);
        agent.stdin(Stdio::null()).stdout(self.log(&name)).stderr(self.log(&name));
        self.agents[machine] = Some(agent.spawn().expect("it starts"));
    }

    /// Where an agent keeps its files that does not see those of the head.
    pub(crate) fn scratch(&self, machine: usize) -> PathBuf {
        self.root.join(format!("scratch-{machine}"))
    }

    /// The same on a machine that does not see the folder of the study. Gives where it keeps its files.
    pub(crate) fn start_distant_agent(&mut self, machine: usize) -> PathBuf {
        let (join, scratch) = (self.root.join("join.json"), self.scratch(machine));
        // With its permissions.
        fs::copy(self.folder().join("cluster/join.json"), &join).expect("it is there");
        let name = format!("agent-{machine}");
        let mut agent = self.machines.command(machine, "sh");
        agent.args(["-c", r#"mount -t tmpfs none "$0" && exec "$@""#]).arg(self.folder());
        agent.arg(env::current_exe().expect("this program")).arg("agent").arg("--join-file").arg(join);
        agent.args(["--slots", "1xcpu", "--threads", "1", "--name", &name, "--scratch"]).arg(&scratch);
        agent.stdin(Stdio::null()).stdout(self.log(&name)).stderr(self.log(&name));
        self.agents[machine] = Some(agent.spawn().expect("it starts"));
        scratch
    }

    /// How often the agent of a machine has joined.
    pub(crate) fn joined(&self, machine: usize) -> usize {
        let text = fs::read_to_string(self.root.join(format!("agent-{machine}"))).unwrap_or_default();
        text.lines().filter(|line| line.starts_with("joined study")).count()
    }

    /// As if a machine has lost its power and got it back: nothing is left of what ran there.
    pub(crate) fn kill_all(&mut self, machine: usize, workers: &[(usize, u32)]) {
        let mut agent = self.agents[machine].take().expect("it runs");
        agent.kill().expect("it is ours");
        agent.wait().expect("it is ours");
        for (_, pid) in workers.iter().filter(|(at, _)| *at == machine) {
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).output();
        }
    }
}

pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}: not in time");
        thread::yield_now();
    }
}

/// The end of a training, from its last checkpoint.
pub(crate) fn end_of(folder: &Path) -> Vec<(String, tch::Tensor)> {
    last_state(&Folder::new(folder).checkpoint(TrialId(0)))
}
