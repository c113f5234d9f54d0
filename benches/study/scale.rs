//! What a study of very many trials costs: the time and memory to open it again.

use std::{fs, path::Path, process::Command, time::Instant};

use pollux_tune::{
    actors::Runner,
    space::Study,
    store::{Reader, Store},
    trials::engine::Metrics,
};

use crate::{Result, run, study};

const FOLDER: &str = "POLLUX_TUNE_BENCH_FOLDER";
/// The number of trials, and the algorithm.
const SETTINGS: &str = "POLLUX_TUNE_BENCH_STUDY";

/// Runs a study of so many trials, and opens it again in a process of its own, which runs one more.
#[expect(clippy::print_stdout, reason = "it prints a table")]
pub(crate) fn measure(folder: &Path, trials: u32) -> Result<()> {
    let (seconds, facts) = run(&study(trials, "random")?, &mut Store::open(folder)?)?;
    println!("{trials} trials run in {seconds:.1} s, {facts} facts");
    for (more, algorithm) in (1..).zip(["random", "tpe"]) {
        let settings = format!("{} {algorithm}", trials + more);
        let output =
            Command::new(std::env::current_exe()?).env(FOLDER, folder).env(SETTINGS, settings).output()?;
        print!("{}", String::from_utf8(output.stdout)?);
    }
    let start = Instant::now();
    let status = Reader::open(folder)?.status()?;
    println!("status of {} facts: {:.1} ms", status.facts, 1e3 * start.elapsed().as_secs_f64());
    Ok(())
}

/// Not a measurement by itself: opens the study that [`measure`] has made. Gives whether that was asked for.
#[expect(clippy::print_stdout, reason = "it prints a table")]
pub(crate) fn open_if_asked() -> Result<bool> {
    let Some(folder) = std::env::var_os(FOLDER) else { return Ok(false) };
    let settings = std::env::var(SETTINGS)?;
    let (trials, algorithm) = settings.split_once(' ').ok_or("two words")?;
    let study: Study = study(trials.parse()?, algorithm)?;
    let start = Instant::now();
    Runner::new(study).folder(&folder).run_function(|trial| {
        let loss = trial.params().float("lr")?;
        Ok(Metrics::from([("loss".to_owned(), loss.into())]))
    })?;
    println!(
        "opened again, and one more trial by {algorithm}: {:.2} s, of the processor {:.2} s, {:.0} MB at most",
        start.elapsed().as_secs_f64(),
        processor_s(),
        peak_mb()?
    );
    Ok(true)
}

/// What this process has had of the processor, also where others have most of it.
pub(crate) fn processor_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

/// The most memory that this process has had.
fn peak_mb() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}
