//! How a worker process is started, and what it finds when it starts.

use std::{
    env,
    net::IpAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::Error;
use crate::{
    ids::SlotId,
    trials::agent::{AgentSlot, PythonWork},
    wire::{Address, Secret, this_program},
};

/// What a program that is started again as a worker finds in its environment.
const ADDRESS: &str = "POLLUX_TUNE_WORKER_ADDRESS";
const SECRET: &str = "POLLUX_TUNE_WORKER_SECRET";
const NODE: &str = "POLLUX_TUNE_WORKER_NODE";
const SLOT: &str = "POLLUX_TUNE_WORKER_SLOT";
const THREADS: &str = "POLLUX_TUNE_WORKER_THREADS";
const DEVICE: &str = "POLLUX_TUNE_WORKER_DEVICE";
const MACHINE_ADDRESS: &str = "POLLUX_TUNE_WORKER_MACHINE_ADDRESS";
const LOCK: &str = "POLLUX_TUNE_WORKER_LOCK";
/// Which GPUs a process sees.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Where a worker runs: a GPU, or a share of the cores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Threads that libtorch may use.
    pub threads: u32,
    /// The GPU as `CUDA_VISIBLE_DEVICES` names it, a number or a UUID; none is a share of the cores. The worker sees no other one.
    pub cuda: Option<String>,
}

impl From<&AgentSlot> for Slot {
    fn from(slot: &AgentSlot) -> Self {
        Self { threads: slot.threads, cuda: slot.device.clone() }
    }
}

impl From<&Slot> for AgentSlot {
    fn from(slot: &Slot) -> Self {
        Self { device: slot.cuda.clone(), memory_bytes: None, threads: slot.threads }
    }
}

/// How many GPUs this machine has that libtorch can use.
#[cfg(feature = "torch")]
#[must_use]
pub fn gpus() -> u32 {
    tch::Cuda::device_count().try_into().unwrap_or(0)
}

/// What the GPU is called that has this number among those that this process sees, for [`Slot::cuda`].
#[must_use]
pub fn gpu_id(number: u32) -> String {
    id_among(env::var(VISIBLE).ok().as_deref(), number)
}

fn id_among(visible: Option<&str>, number: u32) -> String {
    let named = visible.and_then(|ids| ids.split(',').nth(number as usize)).map(str::trim);
    named.filter(|id| !id.is_empty()).map_or_else(|| number.to_string(), str::to_owned)
}

/// What a worker's environment has unless it is there already.
const DEFAULTS: [(&str, &str); 3] = [
    // Lost connections are events, and need no page of libtorch's about each.
    ("TORCH_CPP_LOG_LEVEL", "FATAL"),
    // A step frees what the next one needs. To have the memory mapped again each time took a tenth of a step; glibc keeps what is up to
    // this large (its limit), and gives nothing back below a terabyte.
    ("MALLOC_MMAP_THRESHOLD_", "33554432"),
    ("MALLOC_TRIM_THRESHOLD_", "1099511627776"),
];

/// A worker that is to be started.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// Where its head listens.
    pub address: &'a Address,
    /// What the head asks for.
    pub secret: &'a Secret,
    /// Its slot.
    pub slot: SlotId,
    /// Its device.
    pub place: &'a Slot,
    /// Where workers of other machines reach those of this one: there it meets them, and listens nowhere else. None is the loopback
    /// interface, for groups on one machine.
    pub machine_address: Option<IpAddr>,
    /// A file that the worker locks before it goes to its head, and for as long as it lives: the next worker of its slot waits until it has
    /// ended, whoever has started the two.
    pub lock: Option<&'a Path>,
    /// Arguments for the program. They do not matter to one that calls `serve_if_worker` first thing.
    pub arguments: &'a [String],
    /// What trains in Python, instead of this program.
    pub python: Option<&'a PythonWork>,
}

/// The module that runs Python code as a worker.
const PYTHON_WORKER: &str = "pollux_tune.worker";

/// What runs Python code: what is asked for, else `python3` beside this program, as in a virtual environment, else that of the search path.
#[must_use]
pub fn interpreter(asked: Option<&str>) -> PathBuf {
    let beside = || {
        let program = env::current_exe().ok()?;
        Some(program.parent()?.join("python3")).filter(|python| python.is_file())
    };
    asked.map(PathBuf::from).or_else(beside).unwrap_or_else(|| PathBuf::from("python3"))
}

/// Python code as a worker. What it prints is seen at once.
fn python(work: &PythonWork) -> Command {
    let mut process = Command::new(interpreter(work.interpreter.as_deref()));
    process.args(["-m", PYTHON_WORKER]).args(&work.arguments).env("PYTHONUNBUFFERED", "1").envs(&work.env);
    if let Some(folder) = &work.folder {
        process.current_dir(folder);
    }
    process
}

/// How to start a worker: this program again, as a worker by its environment, or Python code. It reads nothing, and what it prints to
/// standard output is dropped.
pub fn launch(launch: &Launch) -> Result<Command, Error> {
    let threads = launch.place.threads.to_string();
    let mut process = if let Some(work) = launch.python {
        python(work)
    } else {
        let mut process = this_program().map_err(Error::io("finding this program"))?;
        process.args(launch.arguments);
        process
    };
    process
        .env(ADDRESS, launch.address.to_string())
        .env(SECRET, launch.secret.reveal())
        .env(NODE, launch.slot.node.to_string())
        .env(SLOT, launch.slot.index.to_string())
        .env(THREADS, &threads)
        // Libraries that have pools of their own, besides libtorch's.
        .env("OMP_NUM_THREADS", &threads)
        .env("MKL_NUM_THREADS", &threads);
    match &launch.place.cuda {
        Some(device) => process.env(DEVICE, device).env(VISIBLE, device),
        None => process.env_remove(DEVICE),
    };
    match launch.machine_address {
        Some(address) => process.env(MACHINE_ADDRESS, address.to_string()),
        None => process.env_remove(MACHINE_ADDRESS),
    };
    match launch.lock {
        Some(lock) => process.env(LOCK, lock),
        None => process.env_remove(LOCK),
    };
    if let Some(interface) = launch.machine_address.and_then(interface) {
        // NCCL takes a name for the beginning of one unless told otherwise.
        for (name, value) in
            [("GLOO_SOCKET_IFNAME", interface.clone()), ("NCCL_SOCKET_IFNAME", format!("={interface}"))]
        {
            if env::var_os(name).is_none() {
                process.env(name, value);
            }
        }
    }
    for (name, value) in DEFAULTS {
        if env::var_os(name).is_none() {
            process.env(name, value);
        }
    }
    // What a trainable prints is for people, and not part of the head's output.
    process.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(process)
}

/// The network interface that has an address. None if none has, or nobody can tell: what uses it finds its own then.
fn interface(address: IpAddr) -> Option<String> {
    let interfaces = if_addrs::get_if_addrs().ok()?;
    interfaces.into_iter().find(|interface| interface.ip() == address).map(|interface| interface.name)
}

/// What a worker process finds when it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) address: Address,
    pub(super) secret: Secret,
    pub(super) slot: SlotId,
    pub(super) threads: u32,
    /// Whether it has a GPU: then it sees one only.
    pub(super) is_gpu: bool,
    pub(super) machine_address: Option<IpAddr>,
    pub(super) lock: Option<std::path::PathBuf>,
}

impl Place {
    /// From this process's environment; none if it was not started as a worker.
    pub(super) fn of_this_process() -> Result<Option<Self>, Error> {
        Self::read(|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn read(look: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Error> {
        let Some(address) = look(ADDRESS) else { return Ok(None) };
        let wrong = |name: &str, found: Option<&str>| {
            let found = found.map_or_else(|| "missing".to_owned(), |text| format!("`{text}`"));
            Error::Protocol(format!("{name} is {found} in a worker's environment; expected a whole number"))
        };
        let number = |name: &str| {
            let text = look(name);
            let number = text.as_ref().and_then(|text| text.parse::<u32>().ok());
            number.ok_or_else(|| wrong(name, text.as_deref()))
        };
        let machine_address = |text: String| {
            let wrong = |_| {
                Error::Protocol(format!(
                    "{MACHINE_ADDRESS} is `{text}` in a worker's environment; expected an IP address"
                ))
            };
            text.parse().map_err(wrong)
        };
        Ok(Some(Self {
            address: address.parse()?,
            secret: look(SECRET).unwrap_or_default().parse()?,
            slot: SlotId { node: crate::ids::NodeId(number(NODE)?), index: number(SLOT)? },
            threads: number(THREADS)?,
            is_gpu: look(DEVICE).is_some(),
            machine_address: look(MACHINE_ADDRESS).map(machine_address).transpose()?,
            lock: look(LOCK).map(std::path::PathBuf::from),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn environment(cuda: Option<&str>, machine_address: Option<&str>) -> (Place, BTreeMap<String, String>) {
        let address: Address = "unix:/a b/head".parse().expect("an address");
        let secret = Secret::random().expect("random numbers");
        let place = Slot { threads: 3, cuda: cuda.map(str::to_owned) };
        let slot = SlotId { node: crate::ids::NodeId(2), index: 5 };
        let machine_address = machine_address.map(|address| address.parse().expect("an address"));
        let lock = machine_address.map(|_| Path::new("/a b/2.5.lock"));
        let started = Launch {
            address: &address,
            secret: &secret,
            slot,
            place: &place,
            machine_address,
            lock,
            arguments: &[],
            python: None,
        };
        let process = launch(&started).expect("it can be started");
        let text = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
        let set = process.get_envs().filter_map(|(name, value)| Some((text(name), text(value?))));
        let expected = Place {
            address: address.clone(),
            secret: secret.clone(),
            slot,
            threads: 3,
            is_gpu: cuda.is_some(),
            machine_address,
            lock: lock.map(Path::to_owned),
        };
        (expected, set.collect())
    }

    #[test]
    fn a_worker_finds_what_it_was_started_with() {
        for (cuda, address) in
            [(None, None), (Some("1"), Some("10.0.0.7")), (Some("GPU-7f2b"), Some("fd00::7"))]
        {
            let (expected, environment) = environment(cuda, address);
            let read = Place::read(|name| environment.get(name).cloned()).expect("all is there");
            assert_eq!(read, Some(expected));
            assert_eq!(environment.get(VISIBLE).map(String::as_str), cuda);
        }
        assert_eq!(Place::read(|_| None).expect("nothing is there"), None);
    }

    #[test]
    fn python_code_is_run_by_the_interpreter_in_its_folder_and_environment() {
        let work = PythonWork {
            interpreter: Some("/opt/python".to_owned()),
            arguments: vec!["train.py".to_owned()],
            env: BTreeMap::from([("SEED".to_owned(), "7".to_owned())]),
            folder: Some("/work".into()),
        };
        let process = python(&work);
        assert_eq!(process.get_program(), "/opt/python");
        assert!(process.get_args().eq(["-m", "pollux_tune.worker", "train.py"]));
        assert_eq!(process.get_current_dir(), Some(Path::new("/work")));
        assert!(process.get_envs().any(|(name, value)| name == "SEED" && value == Some("7".as_ref())));
        // There is none beside a test.
        assert_eq!(interpreter(None), Path::new("python3"));
    }

    #[test]
    fn libraries_use_the_interface_of_the_machines_address() {
        let (_, environment) = environment(None, Some("127.0.0.1"));
        assert_eq!(environment.get("GLOO_SOCKET_IFNAME").map(String::as_str), Some("lo"));
        assert_eq!(environment.get("NCCL_SOCKET_IFNAME").map(String::as_str), Some("=lo"));
        // An address for documentation, which no interface has.
        let (_, environment) = self::environment(None, Some("192.0.2.1"));
        assert_eq!(environment.get("NCCL_SOCKET_IFNAME"), None);
    }

    #[test]
    fn a_gpu_keeps_its_name_among_those_that_are_visible() {
        for (visible, expected) in
            [(None, "1"), (Some("4, 6"), "6"), (Some("GPU-a,GPU-b"), "GPU-b"), (Some("4"), "1")]
        {
            assert_eq!(id_among(visible, 1), expected, "{visible:?}");
        }
    }

    #[test]
    fn an_environment_that_makes_no_sense_says_so() {
        let (_, environment) = environment(Some("0"), None);
        for (name, value, expected) in [
            (ADDRESS, "nowhere", "`nowhere` is no address"),
            (SECRET, "guess", "a secret has 32 hexadecimal digits"),
            (
                SLOT,
                "-1",
                "POLLUX_TUNE_WORKER_SLOT is `-1` in a worker's environment; expected a whole number",
            ),
            (
                MACHINE_ADDRESS,
                "eth0",
                "POLLUX_TUNE_WORKER_MACHINE_ADDRESS is `eth0` in a worker's environment; expected an IP address",
            ),
        ] {
            let look = |asked: &str| {
                if asked == name { Some(value.to_owned()) } else { environment.get(asked).cloned() }
            };
            let error = Place::read(look).expect_err("it makes no sense").to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error = Place::read(|asked| environment.get(asked).filter(|_| asked != NODE).cloned());
        assert!(
            error.expect_err("one is missing").to_string().contains("POLLUX_TUNE_WORKER_NODE is missing")
        );
    }
}
