//! What `squeue` and `sbatch` print.

use super::{Error, QueuedJob};
use crate::trials::pilots::{JobEnd, JobState};

/// Array job, name, state, start, end, node, reason: the last may hold anything.
pub(super) const FORMAT: &str = "%F|%j|%T|%S|%e|%N|%r";

/// A line of the queue.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) job: String,
    pub(super) name: String,
    pub(super) node: String,
    pub(super) state: JobState,
}

impl Row {
    pub(super) fn into_job(self, names: &[&str]) -> QueuedJob {
        let Self { job, name, node, state } = self;
        QueuedJob { kind: names.iter().position(|known| *known == name), job, node, state }
    }
}

pub(super) fn parse(text: &str) -> Result<Vec<Row>, Error> {
    text.lines().filter(|line| !line.trim().is_empty()).map(row).collect()
}

fn row(line: &str) -> Result<Row, Error> {
    let strange = || Error::Strange { program: "squeue", text: line.to_owned() };
    let mut fields = line.splitn(7, '|').map(str::trim);
    let mut next = || fields.next().ok_or_else(strange);
    let (job, name, state, start, end, node, reason) =
        (next()?, next()?, next()?, next()?, next()?, next()?, next()?);
    if job.is_empty() || !job.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(strange());
    }
    // What is not known is `N/A`.
    let time = |text: &str| text.parse::<f64>().ok().filter(|time| time.is_finite());
    // Some states have a reason of their own: `CANCELLED by 1000`.
    let state = match state.split([' ', '+']).next().unwrap_or_default() {
        "PENDING" | "CONFIGURING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "SPECIAL_EXIT"
        | "RESV_DEL_HOLD" => JobState::Pending { reason: reason.to_owned() },
        "RUNNING" | "COMPLETING" | "SUSPENDED" | "SIGNALING" | "STAGE_OUT" | "STOPPED" | "RESIZING" => {
            JobState::Running { since_s: time(start).unwrap_or(0.0), ends_s: time(end) }
        }
        name => {
            let end = match name {
                "PREEMPTED" => JobEnd::Preempted,
                "TIMEOUT" | "DEADLINE" => JobEnd::TimeLimit,
                _ => JobEnd::Ended,
            };
            let reason = if reason.is_empty() || reason == "None" {
                name.to_owned()
            } else {
                format!("{name}, {reason}")
            };
            JobState::Ended { end, reason, log: String::new() }
        }
    };
    Ok(Row { job: format!("{job}_0"), name: name.to_owned(), node: node.to_owned(), state })
}

/// The job of `sbatch --parsable`, which is `JOB` or `JOB;CLUSTER`.
pub(super) fn submitted(text: &str) -> Result<String, Error> {
    let line = text.lines().last().unwrap_or_default().trim();
    let job = line.split(';').next().unwrap_or_default();
    if job.is_empty() || !job.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Error::Strange { program: "sbatch", text: line.to_owned() });
    }
    Ok(format!("{job}_0"))
}

/// Whether a job that was to be cancelled was gone already.
pub(super) fn is_gone(text: &str) -> bool {
    text.split("; ").all(|part| {
        part.contains("Invalid job id") || part.contains("already completing or completed") || part.is_empty()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_queue_are_understood() {
        let text = "5|a|PENDING|1794969463|1794971263||Resources\n7|b|PENDING|N/A|N/A||PartitionTimeLimit\n\
                    1|a|RUNNING|1794969403|1794969463|t4-0|None\n9|a|RUNNING|1794969403|N/A|t4-1|None\n\
                    3|a|CANCELLED|1|2|t4-2|None\n2|a|PREEMPTED|1|2|t4-1|None\n\
                    4|a|FAILED|1|2|t4-1|NonZeroExitCode\n6|a|TIMEOUT|1|2|t4-1|TimeLimit\n";
        let rows = parse(text).unwrap();
        let jobs: Vec<&str> = rows.iter().map(|row| row.job.as_str()).collect();
        assert_eq!(jobs, ["5_0", "7_0", "1_0", "9_0", "3_0", "2_0", "4_0", "6_0"]);
        assert_eq!(rows[1].state, JobState::Pending { reason: "PartitionTimeLimit".to_owned() });
        let running = JobState::Running { since_s: 1_794_969_403.0, ends_s: Some(1_794_969_463.0) };
        assert_eq!((rows[2].node.as_str(), &rows[2].state), ("t4-0", &running));
        assert_eq!(rows[3].state, JobState::Running { since_s: 1_794_969_403.0, ends_s: None });
        let ends: Vec<(JobEnd, &str)> = rows[4..]
            .iter()
            .filter_map(|row| match &row.state {
                JobState::Ended { end, reason, .. } => Some((*end, reason.as_str())),
                _ => None,
            })
            .collect();
        assert_eq!(
            ends,
            [
                (JobEnd::Ended, "CANCELLED"),
                (JobEnd::Preempted, "PREEMPTED"),
                (JobEnd::Ended, "FAILED, NonZeroExitCode"),
                (JobEnd::TimeLimit, "TIMEOUT, TimeLimit"),
            ]
        );
        assert_eq!(rows[0].clone().into_job(&["b", "a"]).kind, Some(1));
        for wrong in ["x|a|RUNNING|1|2|n|r", "1|a|RUNNING", "slurm_load_jobs error"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_job_is_found_in_what_sbatch_prints() {
        assert_eq!(submitted("17\n").unwrap(), "17_0");
        assert_eq!(submitted("17;lab\n").unwrap(), "17_0");
        for wrong in ["", "Submitted batch job 17", ";"] {
            assert!(submitted(wrong).is_err(), "{wrong}");
        }
        assert!(is_gone("error: Kill job error on job id 3_0: Invalid job id specified"));
        assert!(!is_gone("error: Unable to contact slurm controller"));
    }
}
