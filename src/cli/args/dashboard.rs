//! `dashboard`.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
};

use clap::Args;

use crate::dashboard::{PORT, Settings};

const ABOUT: &str = "\
Show studies as a live web page

Prints an address for the browser, with a token without which nothing is shown, and serves until Ctrl-C. It shows
studies that run, that have ended and those of `ask-tell`, and needs no network. Described in docs/dashboard.md.";

const EXAMPLES: &str = "\
Examples:
  All studies in the folder studies:
    pollux-tune dashboard
  One study, at a port of your choice:
    pollux-tune dashboard studies/cifar10 --port 9000
  On a cluster, seen from your own machine:
    ssh -L 8787:127.0.0.1:8787 head pollux-tune dashboard studies/cifar10 --port 8787";

/// Show studies as a live web page
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub(crate) struct DashboardArgs {
    /// Folders of studies, or folders with many of them
    #[arg(value_name = "STUDY", default_value = "studies")]
    folders: Vec<PathBuf>,
    /// The address to listen at; others than that of this machine alone let everybody in who has the token, unencrypted
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    #[arg(long, value_name = "PORT", help = format!("The port [default: {PORT}, or another one if that is taken]"))]
    port: Option<u16>,
    /// Show a page without buttons: nothing can be stopped, paused, resumed, enqueued or retried from it
    #[arg(long)]
    read_only: bool,
}

impl From<DashboardArgs> for Settings {
    fn from(DashboardArgs { folders, host, port, read_only }: DashboardArgs) -> Self {
        Self { folders, host, port, actions: !read_only }
    }
}
