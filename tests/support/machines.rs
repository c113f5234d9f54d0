//! Machines of their own, as network namespaces that a bridge joins. It takes root and `ip` (iproute2).
//!
//! Namespaces have no addresses in common with the machine itself or with those of other tests, so that tests run side by side. They
//! are gone with the test, whatever becomes of it; what a killed one has left is removed by the next.

use std::{
    env,
    ffi::OsStr,
    fs::{self, File},
    net::{IpAddr, Ipv4Addr},
    os::fd::AsFd,
    path::Path,
    process::{self, Command, Output},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use rustix::{
    process::geteuid,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::packages::install;

const PLACE: &str = "/run/netns";
/// Names are this, the process of the test, a number of its machines, and that of the machine.
const PREFIX: &str = "pollux";

/// Some machines, and a hub in their middle: a machine, too, with the bridge.
pub(crate) struct Machines {
    hub: String,
    names: Vec<String>,
}

impl Machines {
    /// So many machines besides the hub. None if that is not possible here, of which the test then says why; where `CI` is `true` it
    /// has to be.
    pub(crate) fn new(count: u8) -> Option<Self> {
        static POSSIBLE: OnceLock<Result<(), String>> = OnceLock::new();
        if let Err(reason) = POSSIBLE.get_or_init(is_possible) {
            assert!(env::var_os("CI").is_none_or(|value| value != "true"), "no machines: {reason}");
            println!("skipped: {reason}");
            return None;
        }
        remove_left();
        Some(Self::make(count))
    }

    fn make(count: u8) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let world = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = |machine: &str| format!("{PREFIX}-{}-{world}-{machine}", process::id());
        let names = (0..count).map(|number| name(&number.to_string())).collect();
        let machines = Self { hub: name("hub"), names };
        let hub = &machines.hub;
        ip(&format!("netns add {hub}"));
        ip(&format!("-n {hub} link set lo up"));
        ip(&format!("-n {hub} link add bridge type bridge"));
        ip(&format!("-n {hub} addr add {}/24 dev bridge", Self::hub_address()));
        ip(&format!("-n {hub} link set bridge up"));
        for (number, name) in machines.names.iter().enumerate() {
            ip(&format!("netns add {name}"));
            ip(&format!("-n {name} link set lo up"));
            ip(&format!("-n {hub} link add port{number} type veth peer name eth0 netns {name}"));
            ip(&format!("-n {hub} link set port{number} master bridge up"));
            ip(&format!("-n {name} addr add {}/24 dev eth0", Self::address(number)));
            ip(&format!("-n {name} link set eth0 up"));
        }
        machines
    }

    pub(crate) fn hub_address() -> IpAddr {
        Ipv4Addr::new(10, 77, 0, 1).into()
    }

    /// Of a machine, from 0.
    pub(crate) fn address(machine: usize) -> IpAddr {
        Ipv4Addr::new(10, 77, 0, 11 + machine as u8).into()
    }

    /// A program on a machine. Its process is that of the program itself.
    pub(crate) fn command(&self, machine: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[machine]]).arg(program);
        command
    }

    /// This thread is on a machine from now on, or at the hub, with all processes and threads that it starts.
    pub(crate) fn enter(&self, machine: Option<usize>) {
        let name = machine.map_or(&self.hub, |machine| &self.names[machine]);
        let namespace = File::open(Path::new(PLACE).join(name)).expect("it was made");
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("we are root");
    }

    /// Cuts a machine off, without a word to anybody: what is sent to it or from it is lost. Or it is back.
    pub(crate) fn set_cut_off(&self, machine: usize, cut_off: bool) {
        let bridge = if cut_off { "nomaster" } else { "master bridge" };
        ip(&format!("-n {} link set port{machine} {bridge}", self.hub));
    }

    /// These machines cannot reach each other any more, but still all others; or they can again.
    pub(crate) fn set_parted(&self, machines: &[usize], parted: bool) {
        let isolated = if parted { "on" } else { "off" };
        for machine in machines {
            ip(&format!("-n {} link set dev port{machine} type bridge_slave isolated {isolated}", self.hub));
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for name in self.names.iter().chain([&self.hub]) {
            remove(name);
        }
    }
}

fn run(arguments: &str) -> Output {
    Command::new("ip").args(arguments.split(' ')).output().expect("there is an ip")
}

fn ip(arguments: &str) {
    let output = run(arguments);
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {problem}");
}

/// Ends what runs on a machine, and removes it.
fn remove(name: &str) {
    let pids = run(&format!("netns pids {name}")).stdout;
    let own = process::id().to_string();
    for pid in String::from_utf8_lossy(&pids).split_whitespace().filter(|pid| *pid != own) {
        // It may have ended, as the one that has made the list.
        let _ = Command::new("kill").args(["-9", pid]).output();
    }
    run(&format!("netns del {name}"));
}

/// Removes the machines of tests that were killed.
fn remove_left() {
    for entry in fs::read_dir(PLACE).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let mut parts = name.split('-');
        let (is_ours, owner) = (parts.next() == Some(PREFIX), parts.next());
        if let Some(owner) = owner.filter(|owner| is_ours && !Path::new("/proc").join(owner).exists()) {
            eprintln!("removing {name}, which process {owner} has left");
            remove(&name);
        }
    }
}

fn is_possible() -> Result<(), String> {
    if !geteuid().is_root() {
        return Err("only root can make network namespaces".to_owned());
    }
    let has_ip = || Command::new("ip").arg("-V").output().is_ok_and(|output| output.status.success());
    if !has_ip() && env::var_os("CI").is_some() {
        install(&["iproute2"], has_ip)?;
    }
    if !has_ip() {
        return Err("there is no program `ip`: install iproute2".to_owned());
    }
    // A container may have root without this right.
    let probe = format!("{PREFIX}-{}-probe", process::id());
    let made = run(&format!("netns add {probe}"));
    run(&format!("netns del {probe}"));
    if made.status.success() {
        return Ok(());
    }
    Err(format!("no network namespace can be made: {}", String::from_utf8_lossy(&made.stderr).trim()))
}
