//! How much of a core a head needs: 64 emulated workers, 16 trials at a time, in real time.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::Result;

const TRIALS: usize = 16;

/// The share of a core that the head uses over so many seconds, once all trials train.
pub(crate) fn load(folder: &Path, seconds: u64) -> Result<f64> {
    fs::create_dir_all(folder)?;
    let file = folder.join("study.yaml");
    fs::write(
        &file,
        format!(
            "space: {{lr: {{log: [1e-4, 1e-1]}}, width: {{int: [32, 128]}}}}\nobjective: {{maximize: accuracy}}\n\
             trial: {{trainable: cifar10, epochs: 100}}\nsearch: {{trials: {TRIALS}, parallel: {TRIALS}}}\n"
        ),
    )?;
    let mut head = Command::new(env!("CARGO_BIN_EXE_pollux-tune"))
        .arg("run")
        .arg(&file)
        .args(["--emulate", "16x4xt4", "--folder"])
        .arg(folder.join("run"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let lines = BufReader::new(head.stderr.take().ok_or("no output")?).lines();
    let mut lines = lines.map_while(std::result::Result::ok);
    let began = lines.by_ref().filter(|line| line.contains("launched")).take(TRIALS).count();
    // What it says from now on must not fill the pipe.
    let drain = thread::spawn(move || lines.count());
    let (start, before) = (Instant::now(), cpu_seconds(head.id())?);
    thread::sleep(Duration::from_secs(seconds));
    let (wall, used) = (start.elapsed().as_secs_f64(), cpu_seconds(head.id())? - before);
    if let Some(pid) = Pid::from_raw(head.id().cast_signed()) {
        kill_process(pid, Signal::INT)?;
    }
    head.wait()?;
    let _ = drain.join();
    if began == TRIALS { Ok(used / wall) } else { Err(format!("only {began} trials began").into()) }
}

/// Processor time of a process, without its children.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |place: usize| fields.get(place).and_then(|field| field.parse::<f64>().ok()).ok_or("no stat");
    // The kernel counts in hundredths, whatever its own clock does.
    Ok((ticks(11)? + ticks(12)?) / 100.0)
}
