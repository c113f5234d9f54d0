//! `slurm status`, `slurm cancel` and `run --dry-run`: the jobs of a study in the queue, and the scripts that they are made of.

use std::{io::Write, path::Path};

use serde_json::json;

use super::{
    json as shape,
    output::{Format, pluralize},
};
use crate::{
    cli,
    ids::StudyId,
    slurm::{self, AgentPlace, QueuedJob, Script, Slurm, Tools},
    space::PilotSpec,
    store::Reader,
    trials::pilots::JobState,
    wire::with_causes,
};

/// Prints the jobs of a study that Slurm knows of.
pub(super) fn status(folder: &Path, format: Format, out: &mut impl Write) -> Result<(), cli::Error> {
    let jobs = Slurm::jobs(&Tools::hasty(), Reader::open(folder)?.study_id()?)?;
    for QueuedJob { job, node, state, .. } in &jobs {
        let (name, about) = match state {
            JobState::Pending { reason } => ("pending", reason.as_str()),
            JobState::Running { .. } => ("running", node.as_str()),
            JobState::Ended { reason, .. } => ("ended", reason.as_str()),
        };
        match format {
            Format::Text => writeln!(out, "{job:<12} {name:<8} {about}"),
            Format::Json => {
                let ends_s = match state {
                    JobState::Running { ends_s, .. } => *ends_s,
                    _ => None,
                };
                let object =
                    json!({"job": job, "state": name, "node": node, "about": about, "ends_s": ends_s});
                writeln!(out, "{}", shape::object(object))
            }
        }
        .map_err(cli::Error::Stdout)?;
    }
    if jobs.is_empty() && matches!(format, Format::Text) {
        writeln!(out, "Slurm has no jobs of the study in {}", folder.display())
            .map_err(cli::Error::Stdout)?;
    }
    Ok(())
}

/// What Slurm says of a study that is not done, in lines for `status`; nothing if it asks for no nodes.
pub(super) fn summary(reader: &Reader, specs: &[PilotSpec], is_run: bool) -> Vec<String> {
    if specs.is_empty() {
        return Vec::new();
    }
    let jobs = reader.study_id().map_err(cli::Error::from);
    let jobs = jobs.and_then(|study| Slurm::jobs(&Tools::hasty(), study).map_err(cli::Error::from));
    match jobs {
        Ok(jobs) => job_lines(&jobs, reader.folder().root(), is_run),
        Err(error) => vec![format!("cannot be asked: {}", with_causes(&error))],
    }
}

fn job_lines(jobs: &[QueuedJob], folder: &Path, is_run: bool) -> Vec<String> {
    let line = |QueuedJob { job, node, state, .. }: &QueuedJob| match state {
        JobState::Pending { reason } => Some(format!("job {job} waits in the queue: {reason}")),
        JobState::Running { .. } => Some(format!("job {job} runs on {node}")),
        JobState::Ended { .. } => None,
    };
    let mut lines: Vec<String> = jobs.iter().filter_map(line).collect();
    if !lines.is_empty() && !is_run {
        let folder = folder.display();
        lines.push(format!(
            "nobody runs the study: `pollux-tune run` takes these jobs over, `pollux-tune slurm cancel {folder}` ends them"
        ));
    }
    lines
}

/// Ends all jobs of a study.
pub(super) fn cancel(folder: &Path, out: &mut impl Write) -> Result<(), cli::Error> {
    let jobs = Slurm::cancel_all(&Tools::default(), Reader::open(folder)?.study_id()?)?;
    let what = if jobs.is_empty() { String::new() } else { format!(": {}", jobs.join(", ")) };
    writeln!(out, "{} cancelled{what}", pluralize(jobs.len(), "job")).map_err(cli::Error::Stdout)
}

/// Finds out whether Slurm has what a study file asks for, before anything is begun.
pub(super) fn check(specs: &[PilotSpec]) -> Result<(), cli::Error> {
    if !specs.is_empty() {
        slurm::check(&Tools::hasty(), specs)?;
    }
    Ok(())
}

/// Prints what would be submitted, and what was found out about it.
pub(super) fn dry_run(specs: &[PilotSpec], folder: &Path, out: &mut impl Write) -> Result<(), cli::Error> {
    let tools = Tools::hasty();
    let checked = if specs.is_empty() { Vec::new() } else { slurm::check(&tools, specs)? };
    // Without a study there is no id of it yet.
    let study = Reader::open(folder).and_then(|reader| reader.study_id()).unwrap_or(StudyId(0));
    let place = AgentPlace::of(folder).map_err(cli::Error::system("find this program"))?;
    for (spec, checked) in specs.iter().zip(checked) {
        let script = Script::new(study, spec, &place);
        let Script { path, text, .. } = &script;
        write!(out, "{}\n\n{}:\n{text}\n", checked.line, path.display()).map_err(cli::Error::Stdout)?;
        let answer = slurm::test(&tools, &script)?;
        writeln!(out, "sbatch --test-only: {answer}\n").map_err(cli::Error::Stdout)?;
    }
    if specs.is_empty() {
        let nothing = "the study file asks for no nodes of Slurm";
        writeln!(out, "{nothing}").map_err(cli::Error::Stdout)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trials::pilots::JobEnd;

    #[test]
    fn jobs_are_named_with_what_they_wait_for_and_those_of_a_dead_head_with_what_to_do() {
        let job =
            |job: &str, state| QueuedJob { job: job.to_owned(), kind: None, node: "t4-0".to_owned(), state };
        let ended = JobState::Ended { end: JobEnd::Ended, reason: String::new(), log: String::new() };
        let jobs = [
            job("1_0", ended),
            job("2_0", JobState::Running { since_s: 1.0, ends_s: None }),
            job("3_0", JobState::Pending { reason: "Resources".to_owned() }),
        ];
        let wanted = ["job 2_0 runs on t4-0", "job 3_0 waits in the queue: Resources"];
        assert_eq!(job_lines(&jobs, Path::new("s"), true), wanted);
        let left = job_lines(&jobs, Path::new("s"), false);
        assert_eq!(left[..2], wanted);
        assert!(left[2].contains("pollux-tune slurm cancel s"), "{}", left[2]);
        assert!(job_lines(&jobs[..1], Path::new("s"), false).is_empty(), "nothing is left");
    }
}
