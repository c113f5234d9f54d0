//! The GPUs of a machine that is not there: a fake `nvidia-smi` lists them.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{self, Command, Output},
    thread,
};

/// How a program reports.
const SAY: &str = r#"echo '{"loss": 0.5}'"#;

/// A folder with a study of programs that write down which GPU they see, and with an `nvidia-smi`.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str) -> Self {
        let root = env::temp_dir().join(format!("pollux-gpus-{name}-{}", process::id()));
        fs::create_dir_all(&root).expect("a folder");
        let list = "GPU 0: Tesla T4 (UUID: GPU-aaaa)\nGPU 1: NVIDIA A100-PCIE-40GB (UUID: GPU-bbbb)\nGPU 2: Tesla T4 (UUID: GPU-cccc)";
        let fake = root.join("nvidia-smi");
        fs::write(&fake, format!("#!/bin/sh\n[ \"$1\" = -L ] && echo '{list}'\nexit 0\n")).expect("a file");
        fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).expect("a program");
        let script = format!("echo $CUDA_VISIBLE_DEVICES >> {}; {SAY}", root.join("seen").display());
        let script = serde_json::to_string(&script).expect("a text");
        let study = format!(
            "space: {{x: {{float: [0, 1]}}}}\nobjective: {{minimize: loss}}\n\
             trial: {{command: [sh, -c, {script}]}}\nsearch: {{trials: 4, parallel: 1}}\n"
        );
        fs::write(root.join("study.yaml"), study).expect("a file");
        Self(root)
    }

    fn run(&self, arguments: &[&str], visible: Option<&str>) -> Output {
        self.run_with(arguments, &[("CUDA_VISIBLE_DEVICES", visible)])
    }

    /// With variables that are set, or are not.
    fn run_with(&self, arguments: &[&str], variables: &[(&str, Option<&str>)]) -> Output {
        let _ = fs::remove_file(self.0.join("seen"));
        let _ = fs::remove_dir_all(self.0.join("study"));
        let mut run = Command::new(env!("CARGO_BIN_EXE_pollux-tune"));
        run.arg("run")
            .arg(self.0.join("study.yaml"))
            .arg("--folder")
            .arg(self.0.join("study"))
            .args(arguments);
        let path = env::var("PATH").expect("a path");
        run.env("PATH", format!("{}:{path}", self.0.display()));
        for name in [
            "CUDA_VISIBLE_DEVICES",
            "GPU_DEVICE_ORDINAL",
            "SLURM_JOB_ID",
            "SLURM_JOB_GPUS",
            "SLURM_STEP_GPUS",
        ] {
            run.env_remove(name);
        }
        for (name, value) in variables {
            match value {
                Some(value) => run.env(name, value),
                None => run.env_remove(name),
            };
        }
        run.output().expect("it runs")
    }

    /// The GPUs that programs saw, each once.
    fn seen(&self) -> Vec<String> {
        let text = fs::read_to_string(self.0.join("seen")).expect("programs ran");
        let mut seen: Vec<String> = text.lines().map(str::to_owned).collect();
        seen.sort_unstable();
        seen.dedup();
        seen
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if !thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

#[test]
fn programs_see_a_gpu_of_those_that_were_given() {
    let machine = Machine::new("given");
    for (visible, arguments, expected) in [
        (Some("GPU-cc"), &[][..], "GPU-cccc"),
        (Some("1"), &[], "GPU-bbbb"),
        (None, &["--slots", "1xa100"], "GPU-bbbb"),
        (None, &["--slots", "1"], "GPU-aaaa"),
    ] {
        let output = machine.run(arguments, visible);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(machine.seen(), [expected], "{visible:?} {arguments:?}");
    }
}

#[test]
fn slots_that_are_not_there_or_make_no_sense_are_refused_before_anything_is_written() {
    let machine = Machine::new("refused");
    for (slots, expected) in [
        ("2xa100", "2xa100 were asked for, and this machine has 3 GPUs (1 a100, 2 t4)"),
        (
            "four",
            "expected a number of slots from 0 to 1024 (4), with `xcpu` for shares of the cores (4xcpu), or with a type of GPU (2xa100)",
        ),
    ] {
        let output = machine.run(&["--slots", slots], None);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(expected), "{said}");
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(!machine.0.join("study").exists());
    }
}

#[test]
fn programs_have_the_threads_of_a_slot_unless_somebody_has_said_how_many() {
    let machine = Machine::new("threads");
    let study = fs::read_to_string(machine.0.join("study.yaml")).expect("a study");
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let cases = [
        // Arguments of `run`, settings of the trial, what is set where `run` is started, what programs find.
        ("1xcpu", "gpus: 1", None, cores.to_string()),
        ("2xcpu", "gpus: 1", None, (cores / 2).max(1).to_string()),
        // A program on two slots has a process for each.
        ("2xcpu", "gpus: 2", None, (cores / 2).max(1).to_string()),
        // Two programs share a slot.
        ("1xcpu", "gpus: 0.5", None, (cores / 2).max(1).to_string()),
        ("1xcpu", "gpus: 1", Some("71"), "71".to_owned()),
        ("1xcpu", "gpus: 1, env: {OMP_NUM_THREADS: 72}", Some("71"), "72".to_owned()),
    ];
    for (slots, trial, set, expected) in cases {
        let study = study.replace("$CUDA_VISIBLE_DEVICES", "$OMP_NUM_THREADS");
        let study = study.replace("]}\nsearch", &format!("], {trial}}}\nsearch"));
        assert!(study.contains(trial), "{study}");
        fs::write(machine.0.join("study.yaml"), study).expect("a file");
        let output = machine.run_with(&["--slots", slots], &[("OMP_NUM_THREADS", set)]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(machine.seen(), [expected], "{slots} {trial} {set:?}");
    }
}
