//! The script of a pilot.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
};

use crate::{ids::StudyId, space::PilotSpec, store::Folder};

/// Before the end of its time a job is warned, so many seconds, or a quarter of its time if that is shorter.
const WARNING_S: u64 = 120;

/// What an agent is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentPlace {
    /// This program, at a path that nodes know.
    pub program: PathBuf,
    /// The folder of the study, absolute.
    pub folder: PathBuf,
    /// The file that lets agents join, absolute.
    pub join_file: PathBuf,
    /// Where the head runs: paths in a study file may begin there.
    pub directory: PathBuf,
}

impl AgentPlace {
    /// This program, for the study in a folder.
    pub fn of(folder: &Path) -> std::io::Result<Self> {
        let folder = std::path::absolute(folder)?;
        let join_file = folder.join("cluster").join("join.json");
        Ok(Self { program: std::env::current_exe()?, folder, join_file, directory: std::env::current_dir()? })
    }
}

/// A script that `sbatch` takes. There is nothing secret in it: it names the file that only its owner can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// The name of its jobs, which no other study and no other kind has.
    pub name: String,
    /// Where it is kept.
    pub path: PathBuf,
    /// What it says.
    pub text: String,
}

impl Script {
    /// The script of a kind of pilots.
    #[must_use]
    pub fn new(study: StudyId, spec: &PilotSpec, place: &AgentPlace) -> Self {
        let options = options(spec, place);
        let body = body(spec, place);
        let hash = blake3::hash(format!("{options}{body}").as_bytes()).to_hex();
        let kind = &hash.as_str()[..8];
        let name = format!("{}{kind}", job_prefix(study));
        let path = place.folder.join("cluster").join(format!("pilot-{kind}.sbatch"));
        let mut text = String::from("#!/bin/bash\n");
        let _ = writeln!(text, "# A node of {spec} for the study in {}.", shown(&place.folder));
        text.push_str(
            "# The study submits it when it can make use of it. By hand: sbatch and the name of this file.\n",
        );
        let _ = writeln!(text, "#SBATCH --job-name={name}");
        // However it is submitted. It makes no other kind of pilot, so that those of an earlier head are known wherever this one runs.
        let _ = writeln!(text, "#SBATCH --chdir={}", option(&shown(&place.directory)));
        text.push_str(&options);
        text.push_str(&body);
        Self { name, path, text }
    }
}

/// How the names of all jobs of a study begin.
pub(super) fn job_prefix(study: StudyId) -> String {
    format!("pollux-tune-{study}-")
}

fn options(spec: &PilotSpec, place: &AgentPlace) -> String {
    let log = Folder::new(&place.folder).logs().join("pilot-%A_%a.log");
    // What is in front of the name of the file is no pattern.
    let log = shown(&log).replace('%', "%%").replace("pilot-%%A_%%a.log", "pilot-%A_%a.log");
    let seconds = spec.time.map(|time| time.as_secs());
    let warning_s = seconds.map_or(WARNING_S, |seconds| WARNING_S.min(seconds / 4));
    let mut lines = vec![
        // A task of an array is sent SIGTERM when it is cancelled, and has time to save.
        "--array=0".to_owned(),
        "--nodes=1".to_owned(),
        "--ntasks=1".to_owned(),
        format!("--cpus-per-task={}", spec.cores()),
        "--no-requeue".to_owned(),
        "--open-mode=append".to_owned(),
        format!("--signal=B:USR1@{warning_s}"),
        format!("--output={}", option(&log)),
    ];
    lines.extend(spec.gres.as_ref().map(|gres| format!("--gres={gres}")));
    lines.extend(spec.partition.as_ref().map(|partition| format!("--partition={partition}")));
    lines.extend(seconds.map(|seconds| format!("--time={}", seconds.div_ceil(60))));
    lines.extend(spec.account.as_ref().map(|account| format!("--account={account}")));
    lines.extend(spec.qos.as_ref().map(|qos| format!("--qos={qos}")));
    lines.extend(spec.extra.iter().cloned());
    lines.iter().fold(String::new(), |text, line| text + "#SBATCH " + line + "\n")
}

fn body(spec: &PilotSpec, place: &AgentPlace) -> String {
    let mut text = String::new();
    if let Some(setup) = &spec.setup {
        let _ = writeln!(text, "{}", setup.trim_end());
    }
    text.push_str("job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}_${SLURM_ARRAY_TASK_ID:-0}\n");
    // The agent takes the place of the shell, so that it is what Slurm signals.
    let _ = write!(
        text,
        "exec {} agent --join-file {} --name \"${{SLURMD_NODENAME:-$(hostname)}}-${{job%_*}}\" --job \"slurm:$job\"",
        quoted(&place.program),
        quoted(&place.join_file),
    );
    match &spec.slots {
        Some(slots) => {
            let _ = write!(text, " --slots {slots}");
        }
        // A node whose GPUs cannot be used must not train on its cores, as if that were the same.
        None if spec.gres.is_some() => text.push_str(" --only-gpus"),
        None => {}
    }
    text.push('\n');
    text
}

/// A path without what would end a line.
fn shown(path: &Path) -> String {
    path.display().to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A value as `sbatch` takes it.
fn option(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Machines;

    fn script(spec: &str, folder: &str) -> Script {
        let spec = Machines::from_yaml("c.yaml", &format!("cluster: {{slurm: {{{spec}}}}}")).unwrap().slurm;
        let folder = PathBuf::from(folder);
        let join_file = folder.join("cluster/join.json");
        let directory = "/home/me/my work".into();
        let place = AgentPlace { program: "/opt/it's/pollux-tune".into(), folder, join_file, directory };
        Script::new(StudyId(0xfeed), &spec[0], &place)
    }

    #[test]
    fn a_script_asks_for_what_the_study_file_says() {
        let spec = "nodes: 0..4, gres: 'gpu:t4:4', partition: spot, time: 90s, setup: \"module load cuda\\nexport X=1\", \
                    account: me, qos: low, extra: [--mem=8G], slots: 2xcpu";
        let script = script(spec, "/data/my 10% study");
        let name = script.name.clone();
        assert!(name.starts_with("pollux-tune-0000000000000000000000000000feed-"), "{name}");
        let wanted = format!(
            r#"#!/bin/bash
# A node of gpu:t4:4 (spot) for the study in /data/my 10% study.
# The study submits it when it can make use of it. By hand: sbatch and the name of this file.
#SBATCH --job-name={name}
#SBATCH --chdir="/home/me/my work"
#SBATCH --array=0
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@22
#SBATCH --output="/data/my 10%% study/logs/pilot-%A_%a.log"
#SBATCH --gres=gpu:t4:4
#SBATCH --partition=spot
#SBATCH --time=2
#SBATCH --account=me
#SBATCH --qos=low
#SBATCH --mem=8G
module load cuda
export X=1
job=${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}_${{SLURM_ARRAY_TASK_ID:-0}}
exec '/opt/it'\''s/pollux-tune' agent --join-file '/data/my 10% study/cluster/join.json' --name "${{SLURMD_NODENAME:-$(hostname)}}-${{job%_*}}" --job "slurm:$job" --slots 2xcpu
"#
        );
        assert_eq!(script.text, wanted);
    }

    #[test]
    fn an_agent_of_a_node_with_gpus_does_not_make_do_with_cores() {
        let last = |spec: &str| script(spec, "/data").text.lines().last().unwrap_or_default().to_owned();
        assert!(last("gres: 'gpu:8'").ends_with(" --only-gpus"));
        assert!(last("gres: 'gpu:8', slots: 2xcpu").ends_with(" --slots 2xcpu"), "cores were asked for");
        assert!(!last("slots: 2xcpu").contains("--only-gpus"));
    }

    #[test]
    fn the_number_of_nodes_does_not_make_another_kind_and_all_else_does() {
        let name = |spec: &str| script(spec, "/data").name;
        assert_eq!(name("nodes: 1, gres: 'gpu:8'"), name("nodes: 0..4, gres: 'gpu:8'"));
        assert_ne!(name("gres: 'gpu:8'"), name("gres: 'gpu:4'"));
        assert_ne!(name("gres: 'gpu:8'"), name("gres: 'gpu:8', setup: x"));
    }
}
