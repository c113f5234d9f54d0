//! How a worker process is started, and what it finds when it starts.

use std::{env, process::Command, process::Stdio};

use super::Error;
use crate::{
    ids::SlotId,
    trials::agent::AgentSlot,
    wire::{Address, Secret},
};

/// What a program that is started again as a worker finds in its environment.
const ADDRESS: &str = "POLLUX_TUNE_WORKER_ADDRESS";
const SECRET: &str = "POLLUX_TUNE_WORKER_SECRET";
const NODE: &str = "POLLUX_TUNE_WORKER_NODE";
const SLOT: &str = "POLLUX_TUNE_WORKER_SLOT";
const THREADS: &str = "POLLUX_TUNE_WORKER_THREADS";
const DEVICE: &str = "POLLUX_TUNE_WORKER_DEVICE";

/// Where a worker runs: a GPU, or a share of the cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Threads that libtorch may use.
    pub threads: u32,
    /// The CUDA device, if it is a GPU.
    pub cuda: Option<u32>,
}

impl From<&AgentSlot> for Slot {
    fn from(slot: &AgentSlot) -> Self {
        let cuda = slot.device.as_ref().and_then(|device| device.parse().ok());
        Self { threads: slot.threads, cuda }
    }
}

impl From<&Slot> for AgentSlot {
    fn from(slot: &Slot) -> Self {
        Self { device: slot.cuda.map(|device| device.to_string()), memory_bytes: None, threads: slot.threads }
    }
}

/// How many GPUs this machine has that libtorch can use.
#[cfg(feature = "torch")]
#[must_use]
pub fn gpus() -> u32 {
    tch::Cuda::device_count().try_into().unwrap_or(0)
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
    /// Its slot.
    pub place: Slot,
    /// Arguments for the program. They do not matter to one that calls `serve_if_worker` first thing.
    pub arguments: &'a [String],
}

/// How to start a worker: this program again, as a worker by its environment. It reads nothing, and what it prints to
/// standard output is dropped.
pub fn launch(launch: &Launch) -> Result<Command, Error> {
    let program = env::current_exe().map_err(Error::io("finding this program"))?;
    let threads = launch.place.threads.to_string();
    let mut process = Command::new(program);
    process
        .args(launch.arguments)
        .env(ADDRESS, launch.address.to_string())
        .env(SECRET, launch.secret.reveal())
        .env(NODE, launch.slot.node.to_string())
        .env(SLOT, launch.slot.index.to_string())
        .env(THREADS, &threads)
        // Libraries that have pools of their own, besides libtorch's.
        .env("OMP_NUM_THREADS", &threads)
        .env("MKL_NUM_THREADS", &threads);
    match launch.place.cuda {
        Some(device) => process.env(DEVICE, device.to_string()),
        None => process.env_remove(DEVICE),
    };
    for (name, value) in DEFAULTS {
        if env::var_os(name).is_none() {
            process.env(name, value);
        }
    }
    // What a trainable prints is for people, and not part of the head's output.
    process.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(process)
}

/// What a worker process finds when it starts.
#[cfg(feature = "torch")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) address: Address,
    pub(super) secret: Secret,
    pub(super) slot: SlotId,
    pub(super) threads: u32,
    pub(super) cuda: Option<u32>,
}

#[cfg(feature = "torch")]
impl Place {
    /// From this process's environment; none if it was not started as a worker.
    pub(super) fn of_this_process() -> Result<Option<Self>, Error> {
        Self::read(|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn read(look: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Error> {
        let Some(address) = look(ADDRESS) else { return Ok(None) };
        let wrong = |name: &str, found: Option<&str>| {
            let found = found.map_or_else(|| "missing".to_owned(), |text| format!("`{text}`"));
            Error::Protocol(format!("{name} is {found} in a worker's environment; allowed is a whole number"))
        };
        let number = |name: &str| {
            let text = look(name);
            let number = text.as_ref().and_then(|text| text.parse::<u32>().ok());
            number.ok_or_else(|| wrong(name, text.as_deref()))
        };
        Ok(Some(Self {
            address: address.parse()?,
            secret: look(SECRET).unwrap_or_default().parse()?,
            slot: SlotId { node: crate::ids::NodeId(number(NODE)?), index: number(SLOT)? },
            threads: number(THREADS)?,
            cuda: look(DEVICE).is_some().then(|| number(DEVICE)).transpose()?,
        }))
    }
}

#[cfg(all(test, feature = "torch"))]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn environment(cuda: Option<u32>) -> (Place, BTreeMap<String, String>) {
        let address: Address = "unix:/a b/head".parse().expect("an address");
        let secret = Secret::random().expect("random numbers");
        let place = Slot { threads: 3, cuda };
        let slot = SlotId { node: crate::ids::NodeId(2), index: 5 };
        let started = Launch { address: &address, secret: &secret, slot, place, arguments: &[] };
        let process = launch(&started).expect("it can be started");
        let text = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
        let set = process.get_envs().filter_map(|(name, value)| Some((text(name), text(value?))));
        let expected = Place { address: address.clone(), secret: secret.clone(), slot, threads: 3, cuda };
        (expected, set.collect())
    }

    #[test]
    fn a_worker_finds_what_it_was_started_with() {
        for cuda in [None, Some(1)] {
            let (expected, environment) = environment(cuda);
            let read = Place::read(|name| environment.get(name).cloned()).expect("all is there");
            assert_eq!(read, Some(expected));
        }
        assert_eq!(Place::read(|_| None).expect("nothing is there"), None);
    }

    #[test]
    fn an_environment_that_makes_no_sense_says_so() {
        let (_, environment) = environment(Some(0));
        for (name, value, expected) in [
            (ADDRESS, "nowhere", "`nowhere` is no address"),
            (SECRET, "guess", "a secret has 32 hexadecimal digits"),
            (
                SLOT,
                "-1",
                "POLLUX_TUNE_WORKER_SLOT is `-1` in a worker's environment; allowed is a whole number",
            ),
            (DEVICE, "", "POLLUX_TUNE_WORKER_DEVICE is ``"),
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
