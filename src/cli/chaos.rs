//! `pollux-tune chaos`: studies in virtual time, with all the faults that a seed stands for.

use std::{
    collections::BTreeMap,
    io::Write,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use serde_json::json;

use super::{Error, ExitStatus, output::Format};
use crate::chaos::{self, Fault, Summary, Violation};

/// Which studies to run.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) from: u64,
    pub(crate) seeds: u64,
    pub(crate) threads: usize,
    pub(crate) format: Format,
}

/// How often to say how far it is.
const PROGRESS_EVERY: u64 = 500;

/// What happened in all runs together.
#[derive(Default)]
struct Total {
    runs: u64,
    trials: u64,
    events: u64,
    seconds: f64,
    faults: BTreeMap<Fault, u64>,
    /// The longest recovery, and the seed of it.
    recovery: (f64, u64),
    violations: BTreeMap<u64, Violation>,
}

impl Total {
    fn add(&mut self, seed: u64, result: Result<Summary, Box<Violation>>) {
        self.runs += 1;
        match result {
            Ok(summary) => {
                self.trials += summary.trials;
                self.events += summary.events;
                self.seconds += summary.seconds;
                for (fault, count) in summary.faults {
                    *self.faults.entry(fault).or_default() += count;
                }
                if summary.recovery_s > self.recovery.0 {
                    self.recovery = (summary.recovery_s, seed);
                }
            }
            Err(violation) => {
                self.violations.insert(seed, *violation);
            }
        }
    }

    fn faults(&self) -> u64 {
        self.faults.values().sum()
    }
}

/// Runs all seeds. Those that break a rule are shown with their last events.
pub(crate) fn run(
    settings: &Settings,
    out: &mut impl Write,
    stderr: &mut (impl Write + Send),
) -> Result<ExitStatus, Error> {
    let last = settings.from.saturating_add(settings.seeds);
    let next = AtomicU64::new(settings.from);
    let total = Mutex::new((Total::default(), &mut *stderr));
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= last {
            return;
        }
        let result = chaos::run(seed);
        let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
        total.0.add(seed, result);
        if total.0.runs.is_multiple_of(PROGRESS_EVERY) {
            let (runs, broken) = (total.0.runs, total.0.violations.len());
            // The results do not depend on it.
            let _ = writeln!(total.1, "{runs} of {} seeds done, {broken} broke a rule", settings.seeds);
        }
    };
    thread::scope(|scope| {
        for _ in 0..settings.threads.max(1) {
            scope.spawn(work);
        }
    });
    let (total, _) = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    for violation in total.violations.values() {
        writeln!(stderr, "{violation}\n").map_err(Error::Stdout)?;
    }
    match settings.format {
        Format::Json => print_json(&total, out),
        Format::Text => print(&total, out),
    }
    .map_err(Error::Stdout)?;
    Ok(if total.violations.is_empty() { ExitStatus::Success } else { ExitStatus::Failure })
}

fn print(total: &Total, out: &mut impl Write) -> std::io::Result<()> {
    let Total { runs, trials, events, seconds, recovery: (recovery_s, seed), .. } = total;
    let hours = seconds / 3600.0;
    writeln!(
        out,
        "{runs} studies, {trials} trials, {events} events, {hours:.0} hours of virtual time, {} faults",
        total.faults()
    )?;
    for (fault, count) in &total.faults {
        writeln!(out, "  {fault:<20} {count:>8}")?;
    }
    writeln!(out, "longest recovery: {recovery_s:.0} s of virtual time (seed {seed})")?;
    match total.violations.len() {
        0 => writeln!(out, "no rule was broken"),
        broken => writeln!(out, "{broken} studies broke a rule"),
    }
}

fn print_json(total: &Total, out: &mut impl Write) -> std::io::Result<()> {
    let faults: BTreeMap<String, u64> =
        total.faults.iter().map(|(fault, count)| (fault.to_string(), *count)).collect();
    let broken: BTreeMap<u64, &str> =
        total.violations.iter().map(|(seed, violation)| (*seed, violation.rule.as_str())).collect();
    let line = json!({
        "studies": total.runs,
        "trials": total.trials,
        "events": total.events,
        "virtual_s": total.seconds,
        "faults": faults,
        "longest_recovery_s": total.recovery.0,
        "longest_recovery_seed": total.recovery.1,
        "broken": broken,
    });
    writeln!(out, "{line}")
}
