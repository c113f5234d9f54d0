//! The command line: what the user typed (`args`) becomes plain settings, and a command gets those.
//!
//! Data go to stdout, everything else to stderr. `ExitStatus` has the exit codes.
//!
//! *Architecture invariant:* commands know nothing of clap and write only to the handles they are given.

mod agent;
mod annotate;
mod args;
mod ask_tell;
mod chaos;
mod compare;
mod dashboard;
mod doctor;
mod error;
mod explain;
mod export;
mod figure;
mod fit;
mod fsck;
mod init;
mod inspect;
mod json;
mod nodes;
mod output;
mod paper;
mod parallel;
mod pause;
mod picture;
mod plot;
mod profile;
mod remove_study;
mod report;
mod results;
mod retry;
mod run;
mod simulate;
mod simulate_study;
mod slurm;
mod sparkline;
mod stop;
mod study;
mod table3;
mod tail;
mod terminal;
mod timeline;
mod train;
mod trial_table;
mod warm_start;

use std::{
    io::{self, BufRead, Write},
    panic,
    process::{self, ExitCode},
};

use clap::Parser;

#[doc(hidden)]
pub use self::ask_tell::answer_requests;
use self::{
    args::{
        BestArgs, CancelArgs, CheckArgs, Cli, Command, CompareArgs, DrainArgs, EnqueueArgs, ExplainArgs,
        FolderArgs, FsckArgs, ImportanceArgs, PauseArgs, RemoveArgs, ResumeArgs, RetryArgs, RmArgs, ShowArgs,
        SimulateCommand, SlurmCommand, StopArgs, TimelineArgs, TopArgs, format,
    },
    error::{Error, ExitStatus},
};
use crate::wire::with_causes;

/// What a program can train; without the feature `torch`, nothing.
#[cfg(feature = "torch")]
type Trainables<'a> = &'a crate::worker::Registry;
#[cfg(not(feature = "torch"))]
type Trainables<'a> = std::marker::PhantomData<&'a ()>;

/// The `pollux-tune` program with the trainables it comes with. Started again as a worker or as an emulated node, it is one.
#[must_use]
pub fn main() -> ExitCode {
    crate::actors::launch_if_program();
    #[cfg(feature = "torch")]
    return main_with(&crate::worker::Registry::builtin());
    #[cfg(not(feature = "torch"))]
    run_program(std::marker::PhantomData)
}

/// The `pollux-tune` program with trainables of your own: all there is to the `main` of a program that trains.
///
/// Started again as a worker, it works. See the example `cifar10`.
#[cfg(feature = "torch")]
#[must_use]
pub fn main_with(trainables: &crate::worker::Registry) -> ExitCode {
    crate::actors::launch_if_program();
    crate::worker::serve_if_worker(trainables);
    run_program(trainables)
}

fn run_program(trainables: Trainables) -> ExitCode {
    crate::emulate::serve_if_node();
    let default_hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        default_hook(info);
        process::exit(ExitStatus::Bug.code().into());
    }));
    let cli = Cli::parse();
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    let outcome = run(cli.command, trainables, &mut io::stdin().lock(), &mut stdout, &mut io::stderr())
        .and_then(|status| stdout.flush().map(|()| status).map_err(Error::Stdout));
    let status = match outcome {
        Ok(status) => status,
        Err(error) if error.is_broken_pipe() => ExitStatus::Success,
        Err(error) => {
            // Without stderr there is nowhere to report to.
            let _ = writeln!(io::stderr(), "error: {}", with_causes(&error));
            error.exit_status()
        }
    };
    status.into()
}

/// Runs the command that the user asked for.
fn run(
    command: Command,
    trainables: Trainables,
    stdin: &mut impl BufRead,
    out: &mut impl Write,
    stderr: &mut (impl Write + Send),
) -> Result<ExitStatus, Error> {
    match command {
        // The commands with an exit status of their own.
        Command::Run(args) => return run::run(&(*args).into(), trainables, out, stderr),
        Command::Agent(args) => return agent::run((*args).into(), stderr),
        Command::Chaos(args) => return chaos::run(&args.into(), out, stderr),
        Command::Doctor(args) => return doctor::run(&args.into(), out, stderr),
        Command::Init(args) => init::run(&args.into(), out),
        Command::Check(CheckArgs { files }) => study::check(&files, trainables, out, stderr),
        Command::Schema => study::schema(out),
        Command::AskTell(args) => ask_tell::run(&args.into(), stdin, out, stderr),
        Command::Status(FolderArgs { folder, json }) => inspect::status(&folder, format(json), out),
        Command::Trials(args) => {
            let (folder, json) = (args.folder.clone(), args.json);
            trial_table::list(&folder, &args.into(), format(json), out)
        }
        Command::Show(ShowArgs { folder, trial, json }) => inspect::show(&folder, trial, format(json), out),
        Command::Explain(ExplainArgs { folder, trial, json }) => {
            explain::run(&folder, trial, format(json), out)
        }
        Command::Compare(CompareArgs { folders, trials, json }) => {
            compare::run(&folders, &trials, format(json), out)
        }
        Command::Tail(args) => tail::tail(&args.folder, &(&args).into(), out),
        Command::Top(TopArgs { folder, once }) => tail::top(&folder, once, out),
        Command::Rm(RmArgs { folders, yes }) => remove_study::run(&folders, yes, stdin, out, stderr),
        Command::Timeline(TimelineArgs { folder, svg }) => timeline::run(&folder, svg, out),
        Command::Nodes(FolderArgs { folder, json }) => nodes::list(&folder, format(json), out),
        Command::Drain(DrainArgs { folder, nodes }) => nodes::drain(&folder, &nodes, None, out),
        Command::Remove(RemoveArgs { folder, nodes, grace }) => {
            nodes::drain(&folder, &nodes, Some(grace), out)
        }
        Command::Dashboard(args) => dashboard::run(&args.into(), out, stderr),
        Command::Pause(PauseArgs { folder }) => pause::pause(&folder, out),
        Command::Resume(ResumeArgs { folder }) => pause::resume(&folder, out),
        Command::Enqueue(EnqueueArgs { folder, values }) => pause::enqueue(&folder, &values, out),
        Command::Tag(args) => annotate::tag(&args.folder, &args.tags, &args.trials, args.remove, out),
        Command::Note(args) => annotate::note(&args.folder, args.text.as_deref(), &args.trials, out),
        Command::Stop(StopArgs { folder, trial, .. }) if !trial.is_empty() => {
            stop::trials(&folder, &trial, out)
        }
        Command::Stop(StopArgs { folder, no_wait, .. }) => stop::run(&folder, no_wait, out, stderr),
        Command::Retry(RetryArgs { folder, trials }) => retry::run(&folder, &trials, out),
        Command::Fsck(FsckArgs { folder, repair }) => return fsck::run(&folder, repair, out),
        Command::Slurm(SlurmCommand::Status(FolderArgs { folder, json })) => {
            slurm::status(&folder, format(json), out)
        }
        Command::Slurm(SlurmCommand::Cancel(CancelArgs { folder })) => slurm::cancel(&folder, out),
        Command::Best(BestArgs { journal, count, json }) => results::best(&journal, count, format(json), out),
        Command::Export(args) => export::run(&args.into(), out),
        Command::Report(args) => report::run(&args.into(), out),
        Command::Plot(args) => picture::run(&args.into(), out),
        Command::Importance(ImportanceArgs { journal, objective, json }) => {
            results::importance(&journal, objective.as_deref(), format(json), out)
        }
        Command::Fit(args) => fit::run(&args.into(), out, stderr),
        #[cfg(feature = "torch")]
        Command::Train(args) => train::run(&(*args).into(), trainables, out, stderr),
        #[cfg(not(feature = "torch"))]
        Command::Train(args) => train::run(&args.name),
        Command::Completions(args) => args.print(out),
        Command::Man(args) => args.write(out),
        Command::Simulate(SimulateCommand::Workload(args)) => simulate::workload(&args.into(), out, stderr),
        Command::Simulate(SimulateCommand::Study(args)) => simulate_study::run(&args.into(), out, stderr),
        Command::Simulate(SimulateCommand::Paper(args)) => paper::run(&args.into(), stderr),
    }
    .map(|()| ExitStatus::Success)
}
