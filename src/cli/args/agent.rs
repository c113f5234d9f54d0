//! `agent`.

use std::{net::IpAddr, path::PathBuf};

use clap::Args;

use crate::{
    agent::devices::SlotsWanted,
    cli::agent::{Settings, Way},
    wire::HostPort,
};

const EXAMPLES: &str = "\
Examples:
  On a machine that sees the folder of the study:
    pollux-tune agent --join-file studies/cifar10/cluster/join.json
  On another one, with a copy of that file that only you can read:
    pollux-tune agent --join head.example.org:4000 --token-file join.json
  With four shares of the processor as slots:
    pollux-tune agent --join-file join.json --slots 4xcpu
SIGTERM, SIGINT and SIGUSR1 (before the end of a job) let the head move trials away first; twice ends at once.
See docs/clusters.md.";

/// Serve a study on another machine, with the GPUs of this one
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct AgentArgs {
    /// What the head has written for its agents, cluster/join.json in the folder of the study; `-` is standard input
    #[arg(long, value_name = "FILE", required_unless_present = "join", conflicts_with = "join")]
    join_file: Option<PathBuf>,
    /// End when standard input ends
    #[arg(long, hide = true)]
    tethered: bool,
    /// Where the head listens, instead of what the token file says
    #[arg(long, value_name = "HOST:PORT", requires = "token_file")]
    join: Option<HostPort>,
    /// A copy of the join file, which has the token and the certificate of the head
    #[arg(long, value_name = "FILE", requires = "join")]
    token_file: Option<PathBuf>,
    /// The name of this machine, as others see it [default: its host name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The slots to give: a number, 4xcpu for shares of the cores, or 2xa100 [default: all GPUs, else 2xcpu]
    #[arg(long, value_name = "SLOTS", help_heading = "Slots")]
    slots: Option<SlotsWanted>,
    /// Threads of each slot [default: cores divided by slots]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Slots")]
    threads: Option<u32>,
    /// Use CPU cores even if there are GPUs; a type of GPU in --slots is then only what they are called
    #[arg(long, help_heading = "Slots")]
    cpu: bool,
    /// End with an error instead of using CPU cores if there are no GPUs that can be used
    #[arg(long, conflicts_with = "cpu", help_heading = "Slots")]
    only_gpus: bool,
    /// The address at which workers of other machines reach this one [default: that on the way to the head]
    #[arg(long, value_name = "IP", help_heading = "Network")]
    address: Option<IpAddr>,
    /// What this machine is part of: only machines of one island train a trial together
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true,
        help_heading = "Network"
    )]
    island: String,
    /// Where files are kept if the folder of the study is out of reach [default: the folder for temporary files]
    #[arg(long, value_name = "FOLDER")]
    scratch: Option<PathBuf>,
    /// The job that this runs in, as whoever has submitted it calls it
    #[arg(long, value_name = "JOB", hide = true)]
    job: Option<String>,
}

impl From<AgentArgs> for Settings {
    fn from(args: AgentArgs) -> Self {
        let AgentArgs { join_file, join, token_file, name, slots, threads, cpu, only_gpus, .. } = args;
        let AgentArgs { tethered, address, island, scratch, job, .. } = args;
        let way = match (join_file, join, token_file) {
            (_, Some(address), Some(file)) => Way::At { address, file },
            (file, _, _) => Way::File(file.unwrap_or_default()),
        };
        Self { way, tethered, name, slots, threads, cpu, only_gpus, address, island, scratch, job }
    }
}
