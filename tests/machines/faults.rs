//! One training over two of three machines, through everything that can happen to them.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use pollux_tune::{ids::TrialId, store::Folder};

use crate::{
    checkpoint_files::{assert_same, last_state},
    machines::Machines,
    net::Gate,
};

const MACHINES: usize = 3;
/// After so many steps the training waits for the next misfortune.
const STEPS: [u64; 4] = [20, 40, 60, 80];
/// The longest that a recovery may take.
const RECOVERY: Duration = Duration::from_secs(60);
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
struct World {
    machines: Machines,
    root: PathBuf,
    agents: Vec<Option<Child>>,
    head: Option<Child>,
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
    fn new(machines: Machines) -> Self {
        let root = env::temp_dir().join(format!("pollux-machines-{}", process::id()));
        fs::create_dir_all(&root).expect("a folder");
        machines.enter(None);
        Self { machines, root, agents: (0..MACHINES).map(|_| None).collect(), head: None }
    }

    fn folder(&self) -> PathBuf {
        self.root.join("study")
    }

    fn log(&self, name: &str) -> Stdio {
        File::options().create(true).append(true).open(self.root.join(name)).expect("a file").into()
    }

    /// Runs a study at the hub.
    fn run(&self, name: &str, gates: &str, gpus: u32, arguments: &[&str]) -> Command {
        let file = self.root.join(format!("{name}.yaml"));
        fs::write(&file, study(gates, gpus)).expect("a file");
        let mut head = Command::new(env::current_exe().expect("this program"));
        head.arg("run").arg(file).arg("--folder").arg(self.root.join(name));
        head.args(["--cpu", "--threads", "1", "--keep-checkpoints", "all"]).args(arguments);
        head.stdin(Stdio::null()).stdout(self.log("head")).stderr(self.log("head"));
        head
    }

    fn start_agent(&mut self, machine: usize) {
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

    /// How often the agent of a machine has joined.
    fn joined(&self, machine: usize) -> usize {
        let text = fs::read_to_string(self.root.join(format!("agent-{machine}"))).unwrap_or_default();
        text.lines().filter(|line| line.starts_with("joined study")).count()
    }

    /// As if a machine has lost its power and got it back: nothing is left of what ran there.
    fn kill_all(&mut self, machine: usize, workers: &[(usize, u32)]) {
        let mut agent = self.agents[machine].take().expect("it runs");
        agent.kill().expect("it is ours");
        agent.wait().expect("it is ours");
        for (_, pid) in workers.iter().filter(|(at, _)| *at == machine) {
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).output();
        }
    }

    /// Waits until the training is at a gate, with two workers. Gives their machines and processes.
    fn members(gate: &Gate) -> [(usize, u32); 2] {
        until("two workers come to their gate", || gate.waiting().len() == 2);
        let at = |pid: &u32| (machine_of(*pid).expect("a worker of an agent"), *pid);
        let mut members: Vec<(usize, u32)> = gate.waiting().iter().map(at).collect();
        members.sort_unstable();
        members.try_into().expect("two of them")
    }

    /// Something has just happened to the training: how long it takes until that goes on.
    fn recovers(what: &str, from: &Gate, to: &Gate) -> [(usize, u32); 2] {
        let began = Instant::now();
        from.open();
        let members = Self::members(to);
        let took = began.elapsed();
        let on = members.map(|(machine, _)| machine);
        println!("{what}: the training goes on after {:.1} s, on machines {on:?}", took.as_secs_f64());
        assert!(took < RECOVERY, "{what}: it took {took:?}");
        members
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}: not in time");
        thread::yield_now();
    }
}

/// The machine of a worker.
fn machine_of(pid: u32) -> Option<usize> {
    let environment = fs::read(Path::new("/proc").join(pid.to_string()).join("environ")).ok()?;
    let mut variables =
        environment.split(|byte| *byte == 0).filter_map(|variable| str::from_utf8(variable).ok());
    let address = variables.find_map(|it| it.strip_prefix("POLLUX_TUNE_WORKER_MACHINE_ADDRESS="))?;
    (0..MACHINES).find(|machine| Machines::address(*machine).to_string() == address)
}

/// The end of a training, from its last checkpoint.
fn end_of(folder: &Path) -> Vec<(String, tch::Tensor)> {
    last_state(&Folder::new(folder).checkpoint(TrialId(0)))
}

pub(crate) fn a_training_survives_the_loss_of_machines_and_links() {
    let Some(machines) = Machines::new(MACHINES as u8) else { return };
    let mut world = World::new(machines);
    let undisturbed = world.run("undisturbed", "", 1, &["--slots", "1"]).status().expect("it runs");
    assert!(undisturbed.success());

    let gates: Vec<Gate> = STEPS.iter().map(|steps| Gate::closed(&world.root, &steps.to_string())).collect();
    let text: String = gates.iter().zip(STEPS).map(|(gate, steps)| gate.after(steps, None)).collect();
    let head = world.run("study", &text, 2, &["--listen", "10.77.0.1", "--slots", "0"]).spawn();
    world.head = Some(head.expect("it starts"));
    let join = world.folder().join("cluster/join.json");
    until("the head writes a join file", || join.exists());
    for machine in 0..MACHINES {
        world.start_agent(machine);
    }
    until("all agents join", || (0..MACHINES).all(|machine| world.joined(machine) == 1));
    let members = World::members(&gates[0]);

    let victim = members[1].0;
    world.kill_all(victim, &members);
    let members = World::recovers("a machine is killed", &gates[0], &gates[1]);
    world.start_agent(victim);
    until("it joins again", || world.joined(victim) == 2);

    let silent = members[1].0;
    let before = world.joined(silent);
    world.machines.set_cut_off(silent, true);
    let members = World::recovers("a machine is cut off", &gates[1], &gates[2]);
    let healed = Instant::now();
    world.machines.set_cut_off(silent, false);
    until("it joins again", || world.joined(silent) == before + 1);
    println!(
        "a machine is cut off: it has joined again {:.1} s after it is back",
        healed.elapsed().as_secs_f64()
    );

    let parted = [members[0].0, members[1].0];
    world.machines.set_parted(&parted, true);
    World::recovers("the link between two workers is cut", &gates[2], &gates[3]);
    world.machines.set_parted(&parted, false);

    gates[3].open();
    let mut head = world.head.take().expect("it runs");
    assert!(head.wait().expect("it is ours").success());
    assert_same(&end_of(&world.folder()), &end_of(&world.root.join("undisturbed")), "disturbed");
}
