//! An emulated node as a process: this program started again.

use std::{
    env,
    net::IpAddr,
    ops::Range,
    os::unix::process::CommandExt,
    process::{self, Command as Process, Stdio},
    sync::Arc,
};

use tokio::{runtime, task::JoinSet};

use super::{
    backend::{Place, work},
    error::Error,
    rendezvous::Rendezvous,
    rendezvous_tcp::{listen, serve_remote},
};
use crate::{
    ids::{GpuType, NodeId, SlotId},
    wire::{self, Address, Hello, Secret, VERSION},
};

/// What a program that is started again as an emulated node finds in its environment.
const ADDRESS: &str = "POLLUX_TUNE_EMULATED_ADDRESS";
const SECRET: &str = "POLLUX_TUNE_EMULATED_SECRET";
const NODE: &str = "POLLUX_TUNE_EMULATED_NODE";
const SLOTS: &str = "POLLUX_TUNE_EMULATED_SLOTS";
const GPU_TYPE: &str = "POLLUX_TUNE_EMULATED_GPU_TYPE";
const TIME_SCALE: &str = "POLLUX_TUNE_EMULATED_TIME_SCALE";
const MACHINE_ADDRESS: &str = "POLLUX_TUNE_EMULATED_MACHINE_ADDRESS";

/// An emulated node that is to be started.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeLaunch {
    /// Where the head listens.
    pub address: Address,
    /// What its workers have to know to be let in.
    pub secret: Secret,
    /// The number of the node.
    pub node: u32,
    /// The numbers of its slots. Each has a worker with a stream of its own to the head.
    pub slots: Range<u32>,
    /// What its GPUs are emulated to be: a type that was measured.
    pub gpu_type: GpuType,
    /// Real seconds of an emulated one.
    pub time_scale: f64,
    /// Where nodes of other machines reach it; none is the loopback interface.
    pub machine_address: Option<IpAddr>,
    /// What the program is to be called with, before the arguments that describe it.
    pub arguments: Vec<String>,
}

/// Prepares the process of an emulated node: this program, which has to call [`serve_if_node`] first thing. It is not started.
///
/// It is in a process group of its own, so that Ctrl-C reaches the head only, and ends when the head has gone or has ended the
/// streams of all its workers.
///
/// ```
/// use pollux_tune::{ids::GpuType, internal::{emulate::{NodeLaunch, launch}, wire::Secret}};
/// let launched = launch(&NodeLaunch {
///     address: "127.0.0.1:4000".parse()?,
///     secret: Secret::random()?,
///     node: 1,
///     slots: 8..16,
///     gpu_type: GpuType::new("a100")?,
///     time_scale: 0.01,
///     machine_address: None,
///     arguments: Vec::new(),
/// })?;
/// let arguments: Vec<_> = launched.get_args().collect();
/// assert_eq!(arguments, ["emulated", "node", "1", "with", "8", "a100", "at", "time", "scale", "0.01"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn launch(launch: &NodeLaunch) -> Result<Process, Error> {
    let NodeLaunch { address, secret, node, slots, gpu_type, time_scale, machine_address, arguments } =
        launch;
    check(slots, *time_scale)?;
    let mut process = wire::this_program().map_err(Error::io("finding this program"))?;
    // For those who look at the list of processes: nobody reads it.
    let about = format!("emulated node {node} with {} {gpu_type} at time scale {time_scale}", slots.len());
    process.args(arguments).args(about.split(' '));
    process
        .env(ADDRESS, address.to_string())
        .env(SECRET, secret.reveal())
        .env(NODE, node.to_string())
        .env(SLOTS, format!("{}..{}", slots.start, slots.end))
        .env(GPU_TYPE, gpu_type.name())
        .env(TIME_SCALE, time_scale.to_string());
    match machine_address {
        Some(address) => process.env(MACHINE_ADDRESS, address.to_string()),
        None => process.env_remove(MACHINE_ADDRESS),
    };
    process.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    Ok(process)
}

fn check(slots: &Range<u32>, time_scale: f64) -> Result<(), Error> {
    Error::check_positive("the number of slots of an emulated node", slots.len() as f64)?;
    Error::check_positive("the time scale", time_scale)
}

/// If this process was started as an emulated node, hosts its workers until the head is gone, and then ends the process.
///
/// The program calls it first thing in `main`; programs that end in [`cli::main_with`](crate::cli) do.
pub fn serve_if_node() {
    if env::var_os(ADDRESS).is_none() {
        return;
    }
    wire::take_name();
    let served = from_environment().and_then(|launch| {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Error::io("starting the runtime of an emulated node"))?;
        runtime.block_on(serve(launch))
    });
    let code = match served {
        Ok(()) => 0,
        Err(error) => {
            let node = env::var(NODE).unwrap_or_default();
            print_error(&format!("emulated node {node}: {}", wire::with_causes(&error)));
            1
        }
    };
    process::exit(code);
}

#[expect(clippy::print_stderr, reason = "the head is out of reach, and a silent end helps nobody")]
fn print_error(message: &str) {
    eprintln!("{message}");
}

fn from_environment() -> Result<NodeLaunch, Error> {
    fn number<T: std::str::FromStr>(name: &'static str, text: &str) -> Result<T, Error> {
        text.parse().map_err(|_| Error::Environment { name, value: text.to_owned() })
    }
    let text = |name| env::var(name).map_err(|_| Error::Environment { name, value: String::new() });
    let slots = text(SLOTS)?;
    let (start, end) = slots.split_once("..").unwrap_or((&slots, ""));
    let launch = NodeLaunch {
        address: text(ADDRESS)?.parse()?,
        secret: text(SECRET)?.parse()?,
        node: number(NODE, &text(NODE)?)?,
        slots: number(SLOTS, start)?..number(SLOTS, end)?,
        gpu_type: GpuType::new(&text(GPU_TYPE)?)?,
        time_scale: number(TIME_SCALE, &text(TIME_SCALE)?)?,
        machine_address: env::var(MACHINE_ADDRESS)
            .ok()
            .map(|text| number(MACHINE_ADDRESS, &text))
            .transpose()?,
        arguments: Vec::new(),
    };
    check(&launch.slots, launch.time_scale)?;
    Ok(launch)
}

/// Hosts the workers of a node for as long as the head needs any of them.
async fn serve(launch: NodeLaunch) -> Result<(), Error> {
    let NodeLaunch { address, secret, node, slots, gpu_type, time_scale, machine_address, .. } = launch;
    let rendezvous = Arc::new(Rendezvous::new(time_scale));
    let (listener, rendezvous_addr) = listen(machine_address).await?;
    tokio::spawn(serve_remote(listener, rendezvous_addr.clone(), rendezvous.clone(), secret.clone()));
    let mut workers = JoinSet::new();
    for index in slots {
        let slot = SlotId { node: NodeId(node), index };
        let hello = Hello { version: VERSION, slot, pid: process::id() };
        let (events, commands) = wire::attach(&address, &secret, hello).await?;
        let place = Place {
            slot,
            gpu_type: gpu_type.clone(),
            time_scale,
            rendezvous: rendezvous.clone(),
            rendezvous_addr: rendezvous_addr.clone(),
            secret: secret.clone(),
        };
        workers.spawn(work(place, commands, events));
    }
    while let Some(ended) = workers.join_next().await {
        // A bug must not be taken for the end of a worker.
        ended.map_err(|error| Error::io("an emulated worker")(error.into()))?;
    }
    Ok(())
}
