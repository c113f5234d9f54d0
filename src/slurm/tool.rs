//! The programs of Slurm.

use std::{
    env,
    io::{Read, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::Error;

/// A busy controller may take a while for what changes something.
const PATIENCE: Duration = Duration::from_secs(60);
/// A question can be asked again later.
const PATIENCE_OF_QUESTIONS: Duration = Duration::from_secs(30);
/// Somebody waits for the answer.
const SHORT_PATIENCE: Duration = Duration::from_secs(15);
const GLANCE: Duration = Duration::from_millis(10);

/// What study files have keys for may also be set for all jobs of a user.
const DEFAULTS: [&str; 5] =
    ["SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_RESERVATION", "SBATCH_CLUSTERS"];
/// Where Slurm is.
const PLACES: [&str; 2] = ["SLURM_CONF", "SLURM_CONF_SERVER"];

/// A program of Slurm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tool {
    Sbatch,
    Squeue,
    Scancel,
    Sinfo,
}

impl Tool {
    const fn program(self) -> &'static str {
        match self {
            Self::Sbatch => "sbatch",
            Self::Squeue => "squeue",
            Self::Scancel => "scancel",
            Self::Sinfo => "sinfo",
        }
    }
}

/// The Slurm whose programs are run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tools {
    /// Its configuration; none for that which this machine or the environment names.
    pub conf: Option<PathBuf>,
    /// Whether somebody waits for answers.
    pub is_hasty: bool,
}

/// What a program of Slurm has printed.
#[derive(Debug, Default)]
pub(super) struct Printed {
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Tools {
    /// The Slurm of this machine, for somebody who waits for the answer.
    #[must_use]
    pub const fn hasty() -> Self {
        Self { conf: None, is_hasty: true }
    }

    /// Its configuration, if somebody has named one that is not there: the programs of Slurm would look for a controller for a minute.
    fn missing_conf(&self) -> Option<PathBuf> {
        let named = self.conf.clone().or_else(|| env::var_os("SLURM_CONF").map(PathBuf::from))?;
        (!named.exists()).then_some(named)
    }

    /// Runs a program, and returns what it prints.
    pub(super) fn run(&self, tool: Tool, arguments: &[&str]) -> Result<String, Error> {
        self.run_with(tool, arguments, "").map(|printed| printed.stdout)
    }

    /// The same, for a program that reads this.
    pub(super) fn run_with(&self, tool: Tool, arguments: &[&str], input: &str) -> Result<Printed, Error> {
        if let Some(path) = self.missing_conf() {
            return Err(Error::NoConf { path });
        }
        let program = tool.program();
        let start = |error: std::io::Error| Error::Start { program, problem: error.to_string() };
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The head may be a job of Slurm itself, whose variables would become options of its pilots; and users may have set how they
        // want tables to look.
        let ours = |name: &str| {
            let prefixes = ["SLURM_", "SBATCH_", "SQUEUE_", "SINFO_", "SCANCEL_"];
            let is_kept = PLACES.contains(&name) || DEFAULTS.contains(&name);
            !is_kept && prefixes.iter().any(|prefix| name.starts_with(prefix))
        };
        for (name, _) in env::vars_os().filter(|(name, _)| name.to_str().is_some_and(ours)) {
            command.env_remove(name);
        }
        if let Some(conf) = &self.conf {
            command.env("SLURM_CONF", conf);
        }
        // Seconds since 1970 are the same everywhere.
        command.env("SLURM_TIME_FORMAT", "%s");
        let mut child = command.spawn().map_err(start)?;
        if let Some(mut stdin) = child.stdin.take() {
            // Who does not read it says why. It is less than a pipe holds.
            let _ = stdin.write_all(input.as_bytes());
        }
        let stdout = child.stdout.take().map(reader);
        let stderr = child.stderr.take().map(reader);
        let patience = match tool {
            _ if self.is_hasty => SHORT_PATIENCE,
            Tool::Sbatch | Tool::Scancel => PATIENCE,
            Tool::Squeue | Tool::Sinfo => PATIENCE_OF_QUESTIONS,
        };
        let status = wait(&mut child, program, patience)?;
        let text = |reader: Option<thread::JoinHandle<String>>| {
            reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
        };
        let (stdout, stderr) = (text(stdout), text(stderr));
        if status.success() {
            return Ok(Printed { stdout, stderr });
        }
        let said = if stderr.trim().is_empty() { stdout } else { stderr };
        let said = said.lines().map(|line| line.trim_start_matches(&format!("{program}: ")).trim());
        let text = said.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        Err(Error::Refused { program, text: if text.is_empty() { status.to_string() } else { text } })
    }
}

fn wait(
    child: &mut Child,
    program: &'static str,
    patience: Duration,
) -> Result<std::process::ExitStatus, Error> {
    let until = Instant::now() + patience;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() < until => thread::sleep(GLANCE),
            Ok(None) => {
                // Gone already, if this fails.
                let _ = child.kill();
                let _ = child.wait();
                return Err(Error::Silent { program, seconds: patience.as_secs() });
            }
            Err(error) => return Err(Error::Start { program, problem: error.to_string() }),
        }
    }
}

/// Reads all, beside the wait: a pipe that is full would hold the program up.
fn reader(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read until then will do.
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
