//! `slurm status`, `slurm cancel` and `run --dry-run`: the jobs of a study in the queue, and the scripts that they are made of.

use std::{io::Write, path::Path};

use serde_json::json;

use super::output::{Format, pluralize};
use crate::{
    cli,
    ids::StudyId,
    slurm::{self, AgentPlace, QueuedJob, Script, Slurm, Tools},
    space::PilotSpec,
    store::Reader,
    trials::pilots::JobState,
};

/// Prints the jobs of a study that Slurm knows of.
pub(super) fn status(folder: &Path, format: Format, out: &mut impl Write) -> Result<(), cli::Error> {
    let jobs = Slurm::jobs(&Tools::default(), Reader::open(folder)?.study_id()?)?;
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
                writeln!(out, "{object}")
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

/// Ends all jobs of a study.
pub(super) fn cancel(folder: &Path, out: &mut impl Write) -> Result<(), cli::Error> {
    let jobs = Slurm::cancel_all(&Tools::default(), Reader::open(folder)?.study_id()?)?;
    let what = if jobs.is_empty() { String::new() } else { format!(": {}", jobs.join(", ")) };
    writeln!(out, "{} cancelled{what}", pluralize(jobs.len(), "job")).map_err(cli::Error::Stdout)
}

/// Finds out whether Slurm has what a study file asks for, before anything is begun.
pub(super) fn check(specs: &[PilotSpec]) -> Result<(), cli::Error> {
    if !specs.is_empty() {
        slurm::check(&Tools::default(), specs)?;
    }
    Ok(())
}

/// Prints what would be submitted, and what was found out about it.
pub(super) fn dry_run(specs: &[PilotSpec], folder: &Path, out: &mut impl Write) -> Result<(), cli::Error> {
    let checked = if specs.is_empty() { Vec::new() } else { slurm::check(&Tools::default(), specs)? };
    // Without a study there is no id of it yet.
    let study = Reader::open(folder).and_then(|reader| reader.study_id()).unwrap_or(StudyId(0));
    let place = AgentPlace::of(folder).map_err(cli::Error::system("find this program"))?;
    for (spec, checked) in specs.iter().zip(checked) {
        let Script { path, text, .. } = Script::new(study, spec, &place);
        write!(out, "{}\n\n{}:\n{text}\n", checked.line, path.display()).map_err(cli::Error::Stdout)?;
    }
    if specs.is_empty() {
        let nothing = "the study file asks for no nodes of Slurm";
        writeln!(out, "{nothing}").map_err(cli::Error::Stdout)?;
    }
    Ok(())
}
