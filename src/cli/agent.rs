//! `agent`: this machine serves the study of another one.

use std::{
    cell::RefCell,
    env,
    io::{self, Read, Write},
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use rustix::process::{Signal, getpid, kill_process};
use tokio::{runtime::Builder, task::LocalSet};

use super::{Error, ExitStatus};
use crate::{
    agent::{
        AgentEnd, Join, Machine, RemoteAgent, SystemSpawner,
        devices::{self, Readings, Request, SlotsWanted},
    },
    store,
    wire::{HostPort, JoinFile},
};

/// How an agent finds its head.
#[derive(Debug)]
pub(super) enum Way {
    /// By a join file; `-` is standard input.
    File(PathBuf),
    /// At an address, with the token and the certificate of a join file.
    At { address: HostPort, file: PathBuf },
}

/// What to serve with, and whom.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) way: Way,
    /// Whether the end of standard input is the end of the agent.
    pub(super) tethered: bool,
    pub(super) name: Option<String>,
    pub(super) slots: Option<SlotsWanted>,
    pub(super) threads: Option<u32>,
    pub(super) cpu: bool,
    pub(super) only_gpus: bool,
    pub(super) address: Option<IpAddr>,
    pub(super) island: String,
    pub(super) scratch: Option<PathBuf>,
    pub(super) job: Option<String>,
}

/// Standard input, without a lock: another thread waits for its end.
struct Input;

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| rustix::io::read(rustix::stdio::stdin(), &mut *buffer))?)
    }
}

/// The JSON value that comes first, and not a byte more.
fn first_value() -> io::Result<String> {
    let mut values = serde_json::Deserializer::from_reader(Input).into_iter::<serde_json::Value>();
    let value = values.next().unwrap_or(Ok(serde_json::Value::Null))?;
    Ok(value.to_string())
}

/// At the end of standard input whoever has started this is gone: that is as if the machine were to be taken away.
fn end_with_input() {
    thread::spawn(|| {
        // What else comes is of no interest, and an error is an end, too.
        let _ = io::copy(&mut Input, &mut io::sink());
        // This process is there.
        let _ = kill_process(getpid(), Signal::TERM);
    });
}

/// Serves until the head needs this machine no longer.
pub(super) fn run(settings: Settings, stderr: &mut impl Write) -> Result<ExitStatus, Error> {
    let Settings { way, tethered, name, slots, threads, cpu, only_gpus, .. } = settings;
    let Settings { address, island, scratch, job, .. } = settings;
    let join = match way {
        Way::File(path) if path == Path::new("-") => {
            let text = first_value().map_err(Error::Stdin)?;
            let join = JoinFile::parse(Path::new("standard input"), &text)?;
            if tethered {
                end_with_input();
            }
            Join::Known(Box::new(join))
        }
        Way::File(path) => {
            // What is wrong with it is better told before anything is waited for.
            JoinFile::read(&path)?;
            Join::File(path)
        }
        Way::At { address, file } => {
            let mut join = JoinFile::read(&file)?;
            join.addresses = vec![address];
            Join::Known(Box::new(join))
        }
    };
    // How many GPUs trainings can use, if this program trains.
    #[cfg(feature = "torch")]
    let usable = Some(crate::worker::gpus());
    #[cfg(not(feature = "torch"))]
    let usable = None;
    let devices = devices::decide(&Readings::read(usable), &Request { slots, threads, cpu, only_gpus })?;
    for note in &devices.notes {
        // Without stderr there is nowhere to tell it.
        let _ = writeln!(stderr, "{note}");
    }
    let machine = Machine {
        nodes: devices.nodes,
        address,
        arguments: Vec::new(),
        is_sole: true,
        spawner: Arc::new(SystemSpawner),
    };
    let name = name.unwrap_or_else(|| store::Runner::this().host);
    let scratch = scratch.unwrap_or_else(env::temp_dir);
    let stderr = RefCell::new(stderr);
    let notify = |notice: &str| drop(writeln!(stderr.borrow_mut(), "{notice}"));
    let agent = RemoteAgent { join, machine, name, island, job, scratch, notify: Box::new(notify) };
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Error::system("start a runtime"))?;
    let end = LocalSet::new().block_on(&runtime, agent.run())?;
    match end {
        AgentEnd::Told(reason) => notify(&format!("the head no longer needs this machine: {reason}")),
        AgentEnd::TakenAway => notify("this machine is taken away"),
    }
    Ok(ExitStatus::Success)
}
