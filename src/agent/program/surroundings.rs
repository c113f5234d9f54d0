//! What a program finds around it: its environment, its folders, its share of the machine.

use std::{
    collections::BTreeSet,
    env, io,
    net::{Ipv4Addr, TcpListener},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::process::Command;

use crate::{
    space::{Piece, pieces},
    trials::agent::{AgentSlot, ProgramLaunch},
};

/// What a program finds in its environment.
const PARAMS: &str = "POLLUX_TUNE_PARAMS";
const PARAMS_FILE: &str = "POLLUX_TUNE_PARAMS_FILE";
const TRIAL: &str = "POLLUX_TUNE_TRIAL";
pub(super) const FOLDER: &str = "POLLUX_TUNE_FOLDER";
const SLOTS: &str = "POLLUX_TUNE_SLOTS";
const METRICS: &str = "POLLUX_TUNE_METRICS";
const DEVICES: &str = "CUDA_VISIBLE_DEVICES";
const THREADS: &str = "OMP_NUM_THREADS";
const LOCALHOST: &str = "127.0.0.1";

/// Ports of this machine that its programs use.
#[derive(Debug, Clone, Default)]
pub(super) struct Ports(Arc<Mutex<BTreeSet<u16>>>);

impl Ports {
    /// How often a port is tried that a program has been given and does not use yet.
    const TRIES: usize = 64;

    /// A port that nobody uses now, for the processes of a program to meet. No other program of this machine is given it.
    pub(super) fn reserve(&self) -> io::Result<Port> {
        for _ in 0..Self::TRIES {
            let number = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            if self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(number) {
                return Ok(Port { number, reserved: self.clone() });
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "all ports of this machine are in use"))
    }
}

/// A port that is reserved as long as this lives.
#[derive(Debug)]
pub(super) struct Port {
    number: u16,
    reserved: Ports,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.reserved.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

/// What one start of a program finds around it.
pub(super) struct Surroundings<'a> {
    pub(super) launch: &'a ProgramLaunch,
    /// Its slots.
    pub(super) places: &'a [AgentSlot],
    /// Its own folder.
    pub(super) home: PathBuf,
    /// Where it may write metrics.
    pub(super) metrics: PathBuf,
    pub(super) port: &'a Port,
}

impl Surroundings<'_> {
    /// How many slots it has.
    fn slots(&self) -> String {
        self.launch.slots.len().to_string()
    }

    /// An argument with values in the place of names. What comes from a value is left as it is.
    pub(super) fn fill_in(&self, word: &str) -> String {
        let ProgramLaunch { trial, params, absent, .. } = self.launch;
        let is_parameter =
            |name: &str| params.get(name).is_some() || absent.iter().any(|known| known == name);
        let text = |piece: Piece<'_>| match piece {
            Piece::Text(text) => text.to_owned(),
            Piece::Name(name) => match params.get(name) {
                Some(value) => value.to_string(),
                None if is_parameter(name) => String::new(),
                None => match name {
                    "trial" => trial.to_string(),
                    "slots" => self.slots(),
                    "folder" => self.home.to_string_lossy().into_owned(),
                    "port" => self.port.number.to_string(),
                    _ => format!("{{{name}}}"),
                },
            },
        };
        pieces(word, is_parameter).into_iter().map(text).collect()
    }

    /// Writes down the parameters, and prepares the command.
    pub(super) fn dress(&self, command: &mut Command, params: &str, file: &PathBuf) {
        let (slots, port) = (self.slots(), self.port.number.to_string());
        command
            .env(PARAMS, params)
            .env(PARAMS_FILE, file)
            .env(FOLDER, &self.home)
            .env(METRICS, &self.metrics);
        command.env(TRIAL, self.launch.trial.to_string()).env(SLOTS, &slots);
        // Its metrics are wanted as soon as they are printed.
        command.env("PYTHONUNBUFFERED", "1");
        let devices: Vec<&str> = self.places.iter().filter_map(|place| place.device.as_deref()).collect();
        if !devices.is_empty() {
            command.env(DEVICES, devices.join(","));
        }
        // Those of one slot: a program on several has a process for each.
        if let Some(place) = self.places.first().filter(|_| env::var_os(THREADS).is_none()) {
            command.env(THREADS, (place.threads / self.launch.share.max(1)).max(1).to_string());
        }
        // PyTorch's own names, and those by which torchrun takes its arguments.
        for prefix in ["", "PET_"] {
            command.env(format!("{prefix}MASTER_ADDR"), LOCALHOST);
            command.env(format!("{prefix}MASTER_PORT"), &port);
        }
        command.env("PET_NPROC_PER_NODE", &slots);
        command.envs(&self.launch.env);
        if let Some(folder) = &self.launch.folder {
            command.current_dir(folder);
        }
    }
}
