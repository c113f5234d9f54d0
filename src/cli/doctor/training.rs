//! What trains: this program, GPUs and their driver, and other machines.

use std::{env, fs, path::Path};

use super::Finding;
use crate::{
    agent::devices::{self, Devices, Readings, Request},
    cli::output::pluralize,
    slurm::{self, Partitions, Tools},
    space::{Machines, Program, Study},
    wire::with_causes,
};

/// That of CUDA 13, which PyTorch 2.13 comes with.
const OLDEST_DRIVER: u32 = 580;
const DRIVER: &str = "/proc/driver/nvidia/version";

/// This program, and its libtorch.
pub(super) fn program(study: Option<&Study>, gpus: &Gpus) -> Finding {
    const CHECK: &str = "program";
    let name = format!("pollux-tune {}", env!("CARGO_PKG_VERSION"));
    let trains = study.is_some_and(|study| matches!(study.trial.program, Some(Program::Trainable(_))));
    if !cfg!(feature = "torch") {
        let found = format!(
            "{name}, without libtorch: it runs Python scripts and programs, and no trainables in Rust"
        );
        return if trains {
            let remedy = "this study has one: `make install FEATURES=torch`, see docs/install.md";
            Finding::problem(CHECK, found, remedy)
        } else {
            Finding::ok(CHECK, found)
        };
    }
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let libtorch = loaded(&maps, "libtorch_cpu.so").map(Path::new);
    let libtorch = libtorch.and_then(Path::parent).and_then(Path::parent);
    let version = libtorch.and_then(|folder| fs::read_to_string(folder.join("build-version")).ok());
    let version = version.map_or_else(String::new, |version| format!(" {}", version.trim()));
    let place = libtorch.map_or_else(String::new, |folder| format!(" ({})", folder.display()));
    let found = format!("{name} with libtorch{version}{place}");
    if gpus.count() > 0 && !cfg!(feature = "cuda") {
        let found = format!("{found}, built without CUDA: trainables in Rust would not use the GPUs");
        return Finding::missing(
            CHECK,
            trains,
            found,
            "build with the feature `cuda`: `make run` does where there are GPUs",
        );
    }
    Finding::ok(CHECK, found)
}

/// The path of a library that this process has loaded.
fn loaded<'a>(maps: &'a str, name: &str) -> Option<&'a str> {
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    paths.into_iter().find(|path| path.rsplit('/').next() == Some(name))
}

/// The GPUs of this machine, and what is said of them.
pub(super) struct Gpus {
    devices: Option<Devices>,
    there: String,
    /// What the driver says of itself.
    driver: Option<String>,
}

impl Gpus {
    pub(super) fn read() -> Self {
        #[cfg(feature = "torch")]
        let usable = Some(crate::worker::gpus()).filter(|_| cfg!(feature = "cuda"));
        #[cfg(not(feature = "torch"))]
        let usable = None;
        let readings = Readings::read(usable);
        let request = Request::default();
        Self {
            there: devices::there(&readings, &request),
            devices: devices::decide(&readings, &request).ok(),
            driver: fs::read_to_string(DRIVER).ok(),
        }
    }

    /// Those that a study would use.
    pub(super) fn count(&self) -> usize {
        let nodes = self.devices.iter().flat_map(|devices| &devices.nodes);
        nodes.flat_map(|node| &node.slots).filter(|slot| slot.device.is_some()).count()
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        const CHECK: &str = "gpus";
        let mut findings = vec![match (self.count(), &self.driver) {
            (0, None) => Finding::ok(CHECK, format!("{}: studies run on shares of the cores", self.there)),
            (0, Some(_)) => Finding::problem(
                CHECK,
                format!("{}, though a driver of NVIDIA is loaded", self.there),
                "see what `nvidia-smi -L` says, and whether CUDA_VISIBLE_DEVICES or the container hides them",
            ),
            _ => Finding::ok(CHECK, self.there.clone()),
        }];
        let notes = self.devices.iter().flat_map(|devices| &devices.notes);
        findings
            .extend(notes.map(|note| Finding::note(CHECK, note.clone(), "see docs/running.md, \"Trials\"")));
        findings.extend(self.driver.as_deref().and_then(driver));
        findings
    }
}

/// What follows from the text in which the driver says its version.
fn driver(text: &str) -> Option<Finding> {
    const CHECK: &str = "driver";
    let version = text.split_whitespace().find(|word| {
        word.contains('.')
            && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    })?;
    let major: u32 = version.split('.').next()?.parse().ok()?;
    Some(if major < OLDEST_DRIVER {
        let found =
            format!("the driver of NVIDIA is version {version}: a PyTorch for CUDA 13 finds no GPU with it");
        Finding::note(
            CHECK,
            found,
            format!("install version {OLDEST_DRIVER} or later, or a PyTorch for an older CUDA"),
        )
    } else {
        Finding::ok(CHECK, format!("the driver of NVIDIA is version {version}"))
    })
}

/// Where other machines come from.
pub(super) fn machines(study: Option<&Study>) -> Vec<Finding> {
    let machines = study.and_then(|study| study.machines.as_ref());
    let mut findings = vec![slurm(machines)];
    if machines.is_some_and(|machines| !machines.hosts.is_empty()) {
        findings.push(if is_in_path("ssh") {
            Finding::ok("ssh", "there is one for the hosts of this study")
        } else {
            Finding::problem(
                "ssh",
                "there is no `ssh`, and this study has hosts",
                "install an OpenSSH client",
            )
        });
    }
    findings
}

fn slurm(machines: Option<&Machines>) -> Finding {
    const CHECK: &str = "slurm";
    let specs = machines.map_or(&[][..], |machines| &machines.slurm);
    if specs.is_empty() && !is_in_path("sinfo") {
        return Finding::ok(CHECK, "no Slurm here, and none is asked for");
    }
    let remedy = "run it on a machine from which jobs are submitted; `sinfo` has to answer there";
    if let Some(absent) =
        ["sinfo", "sbatch", "squeue", "scancel"].into_iter().find(|program| !is_in_path(program))
    {
        return Finding::missing(
            CHECK,
            !specs.is_empty(),
            format!("there is no `{absent}` in the PATH"),
            remedy,
        );
    }
    let tools = Tools::hasty();
    let asked = Partitions::ask(&tools)
        .and_then(|_| if specs.is_empty() { Ok(Vec::new()) } else { slurm::check(&tools, specs) });
    match asked {
        Ok(_) if specs.is_empty() => Finding::ok(CHECK, "the controller answers"),
        Ok(_) => {
            let kinds = pluralize(specs.len(), "kind");
            Finding::ok(
                CHECK,
                format!("the controller answers, and has what this study asks for ({kinds} of nodes)"),
            )
        }
        Err(error) => Finding::missing(CHECK, !specs.is_empty(), with_causes(&error), remedy),
    }
}

fn is_in_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::Level;

    #[test]
    fn the_version_of_a_driver_is_read_from_what_it_says() {
        let of = |version: &str| {
            driver(&format!("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue\nGCC version:  gcc version 12.2.0"))
                .map(|finding| (finding.level, finding.found.contains(version)))
        };
        assert_eq!(of("535.129.03"), Some((Level::Note, true)));
        assert_eq!(of("580.65.06"), Some((Level::Ok, true)));
        assert_eq!(driver("nothing"), None);
    }

    #[test]
    fn a_library_is_found_among_those_that_are_loaded() {
        let maps = "7f00-7f01 r-xp 00000000 08:01 1  /a/lib/libc10.so\n7f02-7f03 r-xp 00000000 08:01 2  /a b/lib/libtorch_cpu.so\n7f04-7f05 rw-p 00000000 00:00 0\n";
        assert_eq!(loaded(maps, "libtorch_cpu.so"), Some("/a b/lib/libtorch_cpu.so"));
        assert_eq!(loaded(maps, "libtorch.so"), None);
    }

    #[test]
    fn a_driver_without_gpus_is_a_problem_and_a_machine_without_a_driver_is_none() {
        let gpus = |driver: Option<&str>| {
            let there = "no GPUs".to_owned();
            Gpus { devices: None, there, driver: driver.map(str::to_owned) }.findings()[0].level
        };
        assert_eq!((gpus(None), gpus(Some("Kernel Module 580.1"))), (Level::Ok, Level::Problem));
    }
}
