//! A Slurm of its own for a test: a controller and six nodes on this machine, with GPUs that are none.

use std::{
    env,
    fmt::Write as _,
    fs,
    io::Write as _,
    net::TcpListener,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::packages::install;

/// Only so that a test that fails does so some time.
const PATIENCE: Duration = Duration::from_secs(120);
const GLANCE: Duration = Duration::from_millis(50);

/// The nodes: two with A100s, four with T4s, two GPUs each.
const NODES: [(&str, &str); 6] =
    [("a100-0", "a100"), ("a100-1", "a100"), ("t4-0", "t4"), ("t4-1", "t4"), ("t4-2", "t4"), ("t4-3", "t4")];
const PACKAGES: [&str; 3] = ["slurmctld", "slurmd", "slurm-client"];

/// A running Slurm, which ends with its test.
pub(crate) struct Slurm {
    root: PathBuf,
    daemons: Vec<Child>,
}

/// Whether a test has to run where it can, however that is made possible.
fn is_ci() -> bool {
    env::var("CI").is_ok_and(|value| value == "true")
}

/// Whether Slurm is here. It is installed if that can be done.
fn is_there() -> Result<(), String> {
    let has = |program: &str| {
        ["/usr/sbin", "/usr/bin"].iter().any(|folder| Path::new(folder).join(program).exists())
    };
    let all = || ["slurmctld", "slurmd", "sbatch"].into_iter().all(has);
    if all() { Ok(()) } else { install(&PACKAGES, all) }
}

impl Slurm {
    /// Starts one in a folder; none where that cannot be done, with a message.
    pub(crate) fn start(root: &Path) -> Option<Self> {
        if let Err(reason) = is_there() {
            assert!(!is_ci(), "with CI=true this test must run: {reason}");
            let _ = writeln!(std::io::stderr(), "skipped: {reason}");
            return None;
        }
        if !rustix::process::getuid().is_root() {
            assert!(!is_ci(), "with CI=true this test must run, as root");
            let _ = writeln!(std::io::stderr(), "skipped: the daemons of Slurm need root");
            return None;
        }
        for folder in ["state", "spool", "dev", "log"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        // Any character device will do.
        for gpu in 0..2 {
            symlink("/dev/null", root.join(format!("dev/gpu{gpu}"))).unwrap();
        }
        fs::write(root.join("slurm.conf"), configuration(root)).unwrap();
        let gres = |kind: &str, nodes: &str| {
            format!("NodeName={nodes} Name=gpu Type={kind} File={}/dev/gpu[0-1]\n", root.display())
        };
        let gres = format!("AutoDetect=off\n{}{}", gres("a100", "a100-[0-1]"), gres("t4", "t4-[0-3]"));
        fs::write(root.join("gres.conf"), gres).unwrap();
        fs::write(root.join("cgroup.conf"), "CgroupPlugin=cgroup/v1\n").unwrap();
        let mut slurm = Self { root: root.to_owned(), daemons: Vec::new() };
        slurm.daemon("slurmctld", &["-D", "-c"], "slurmctld");
        for (node, _) in NODES {
            fs::create_dir_all(root.join("spool").join(node)).unwrap();
            slurm.daemon("slurmd", &["-D", "-N", node], node);
        }
        slurm.wait_until("all nodes are idle", |slurm| {
            let idle = slurm.text("sinfo", &["-h", "-N", "-t", "idle", "-o", "%N"]);
            let mut idle: Vec<&str> = idle.lines().collect();
            idle.sort_unstable();
            idle.dedup();
            idle.len() == NODES.len()
        });
        Some(slurm)
    }

    fn daemon(&mut self, program: &str, arguments: &[&str], name: &str) {
        let log = fs::File::create(self.root.join(format!("log/{name}.log"))).unwrap();
        let mut command = Command::new(program);
        command.args(arguments).env("SLURM_CONF", self.conf()).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.daemons.push(command.spawn().unwrap());
    }

    /// The controller dies. The daemons of nodes and what they run go on.
    pub(crate) fn kill_controller(&mut self) {
        let mut controller = self.daemons.remove(0);
        controller.kill().unwrap();
        controller.wait().unwrap();
    }

    /// The controller is back, and remembers its jobs.
    pub(crate) fn start_controller(&mut self) {
        self.daemon("slurmctld", &["-D"], "slurmctld-again");
        let last = self.daemons.len() - 1;
        self.daemons.swap(0, last);
    }

    /// What `SLURM_CONF` has to be.
    pub(crate) fn conf(&self) -> PathBuf {
        self.root.join("slurm.conf")
    }

    /// A program that uses this Slurm.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.conf()).stdin(Stdio::null());
        command
    }

    /// What a program of Slurm prints.
    pub(crate) fn text(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// The states of all jobs that are not over, by number.
    pub(crate) fn queue(&self) -> Vec<(String, String)> {
        let text = self.text("squeue", &["-h", "-o", "%F %T"]);
        let pair = |line: &str| line.split_once(' ').map(|(job, state)| (job.to_owned(), state.to_owned()));
        text.lines().filter_map(pair).collect()
    }

    /// Waits for something.
    pub(crate) fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let since = Instant::now();
        while !is_so(self) {
            if since.elapsed() > PATIENCE {
                let log = fs::read_to_string(self.root.join("log/slurmctld.log")).unwrap_or_default();
                panic!("{what}: not within {PATIENCE:?}\n{:?}\n{log}", self.queue());
            }
            thread::sleep(GLANCE);
        }
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // What still runs ends with its node.
        let user = rustix::process::getuid().as_raw().to_string();
        let _ = self.command("scancel").args(["-s", "KILL", "-u", &user]).output();
        let _ = self.command("scancel").args(["-u", &user]).output();
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// A port for each daemon. They are free now, and nobody else looks for these.
fn ports(count: usize) -> Vec<u16> {
    let all: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    all.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

fn configuration(root: &Path) -> String {
    let root = root.display();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host = host.split('.').next().unwrap();
    let ports = ports(1 + NODES.len());
    let mut text = format!(
        "ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmdTimeout=300
KillWait=10
MessageTimeout=60
",
        ports[0]
    );
    for ((node, kind), port) in NODES.iter().zip(&ports[1..]) {
        let _ = writeln!(
            text,
            "NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=16 RealMemory=1000 Gres=gpu:{kind}:2"
        );
    }
    text.push_str(
        "PartitionName=gpu Nodes=a100-[0-1] Default=YES MaxTime=INFINITE State=UP PriorityTier=10
PartitionName=spot Nodes=t4-[0-3] MaxTime=60 State=UP PriorityTier=1 PreemptMode=CANCEL GraceTime=0
PartitionName=urgent Nodes=t4-[0-3] MaxTime=60 State=UP PriorityTier=10
",
    );
    text
}
