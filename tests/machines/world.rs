//! A head at the hub, and agents on machines around it.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use pollux_tune::{ids::TrialId, store::Folder};

use crate::{checkpoint_files::last_state, machines::Machines};

pub(crate) const MACHINES: usize = 3;
/// For what comes sooner or later, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// One trial of two workers, whose result depends on nothing but its parameters.
fn study(gates: &str, gpus: u32) -> String {
    format!(
        "
space: {{lr: {{choice: [0.05]}}, gates: {{choice: ['{gates}']}}, init: {{choice: [7]}}}}
objective: {{maximize: accuracy}}
trial: {{trainable: net, epochs: 6, initial_batch: 24, max_batch: 24, min_gpus: {gpus}, max_gpus: {gpus}, checkpoint_interval: 1h}}
search: {{trials: 1, parallel: 1}}
scheduler: {{interval: 1s}}
"
    )
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
    pub(crate) fn run(&self, name: &str, gates: &str, gpus: u32, arguments: &[&str]) -> Command {
        let file = self.root.join(format!("{name}.yaml"));
        fs::write(&file, study(gates, gpus)).expect("a file");
        let mut head = Command::new(env::current_exe().expect("this program"));
        head.arg("run").arg(file).arg("--folder").arg(self.root.join(name));
        head.args(["--cpu", "--threads", "1", "--keep-checkpoints", "all"]).args(arguments);
        head.stdin(Stdio::null()).stdout(self.log("head")).stderr(self.log("head"));
        head
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

    /// The same on a machine that does not see the folder of the study. Gives where it keeps its files.
    pub(crate) fn start_distant_agent(&mut self, machine: usize) -> PathBuf {
        let (join, scratch) = (self.root.join("join.json"), self.root.join(format!("scratch-{machine}")));
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
