//! `run`.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use clap::Args;

use crate::{
    agent::devices::{Request, SlotsWanted},
    alloc::PolicyKind,
    cli::run,
    space::KeepCheckpoints,
};

const EXAMPLES: &str = "\
Examples:
  Run a study, or resume it; its folder is studies/cifar10:
    pollux-tune run search-spaces/cifar10.yaml
  On two shares of the processor:
    pollux-tune run search-spaces/cifar10.yaml --slots 2 --cpu
  The same on two emulated machines, a hundred times as fast:
    pollux-tune run search-spaces/cifar10.yaml --emulate 2x8xa100 --time-scale 0.01 --folder /tmp/emulated
While it runs, and after: pollux-tune status, trials, show, best, timeline and stop, each with the folder.
Ctrl-C lets trials write their state (programs have ten seconds) and ends; the same command resumes. Ctrl-C twice kills
them at once.";

/// Run a study, or resume it
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, arg_required_else_help = true)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own on the command line")]
pub(crate) struct RunArgs {
    /// The study file, see docs/search-spaces.md
    #[arg(value_name = "STUDY.yaml")]
    file: PathBuf,
    /// Where the study is kept [default: studies/ and the name of the file]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Slots of this machine: 4, 4xcpu or 2xa100 [default: those of the study file, else one for each GPU, else 2; `search.parallel` for programs]
    #[arg(long, value_name = "SLOTS", help_heading = "Slots")]
    slots: Option<SlotsWanted>,
    /// Threads of each slot [default: cores divided by slots]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Slots")]
    threads: Option<u32>,
    /// Use CPU cores even if there are GPUs
    #[arg(long, help_heading = "Slots")]
    cpu: bool,
    /// Let agents of other machines join, at this address of ours, such as 10.0.0.1 or 0.0.0.0:4000 (see docs/clusters.md)
    #[arg(long, value_name = "IP[:PORT]", value_parser = listen_address, conflicts_with = "emulate", help_heading = "Machines")]
    listen: Option<SocketAddr>,
    /// Emulate these machines, such as 2x8xa100,4x4xt4 or a YAML file [without a value: those of the study file]
    #[arg(long, value_name = "CLUSTER", num_args = 0..=1, default_missing_value = "", help_heading = "Emulation")]
    emulate: Option<String>,
    /// Real seconds that an emulated second takes
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = time_scale, requires = "emulate", help_heading = "Emulation")]
    time_scale: f64,
    /// The policy that divides the slots, instead of the study file's: goodput, pollux, static, optimus or tiresias
    #[arg(long, value_name = "POLICY", help_heading = "Search")]
    policy: Option<PolicyKind>,
    /// The number of trials, instead of the study file's
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Search")]
    trials: Option<u32>,
    /// The best trials whose checkpoints are kept after their end, instead of the study file's: a number, all or none
    #[arg(long, value_name = "COUNT", help_heading = "Search")]
    keep_checkpoints: Option<KeepCheckpoints>,
    /// Learn from an earlier study before the first trial, also from a database of Optuna; may be given several times
    #[arg(long, value_name = "FOLDER|FILE[#NAME]", help_heading = "Search")]
    warm_start: Vec<PathBuf>,
    /// Only print what would be submitted to Slurm, and whether Slurm has it
    #[arg(long, help_heading = "Output")]
    dry_run: bool,
    /// Serve a live web page of the study while it runs, on this machine; prints its address (see docs/dashboard.md)
    #[arg(long, help_heading = "Output")]
    dashboard: bool,
    /// Print events as lines of JSON on the standard output, and the results as the last one (see docs/json.md)
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Print nothing while it runs
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

impl From<RunArgs> for run::Settings {
    fn from(args: RunArgs) -> Self {
        let RunArgs {
            file,
            folder,
            slots,
            threads,
            cpu,
            policy,
            trials,
            keep_checkpoints,
            warm_start,
            quiet,
            ..
        } = args;
        let (emulate, time_scale, listen) = (args.emulate, args.time_scale, args.listen);
        let (dry_run, dashboard, json) = (args.dry_run, args.dashboard, args.json);
        let emulate = emulate.map(|cluster| {
            let cluster = Some(cluster).filter(|text| !text.is_empty());
            run::Emulation { cluster, time_scale }
        });
        let folder = folder.unwrap_or_else(|| run::default_folder(&file));
        let devices = Request { slots, threads, cpu, only_gpus: false };
        Self {
            file,
            folder,
            devices,
            listen,
            emulate,
            policy,
            trials,
            keep_checkpoints,
            warm_start,
            dry_run,
            dashboard,
            json,
            quiet,
        }
    }
}

/// Without a port, any will do.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let of_ip = |ip: IpAddr| SocketAddr::new(ip, 0);
    let address = text.parse().or_else(|_| text.parse().map(of_ip));
    address.map_err(|_| {
        "expected an IP address of this machine, with a port or without: 10.0.0.1, 0.0.0.0:4000".to_owned()
    })
}

fn time_scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if (1e-4..=1.0).contains(&scale) => Ok(scale),
        _ => Err("expected a number from 0.0001 to 1".to_owned()),
    }
}
