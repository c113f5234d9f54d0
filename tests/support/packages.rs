//! Debian packages that tests need, installed where that can be done.

use std::{
    env,
    fs::File,
    process::{Command, Stdio},
};

/// Installs packages, unless `are_there` after all: tests of one run, and of others, want the same ones at the same time, and only one of
/// them gets the lock of the package manager.
pub(crate) fn install(packages: &[&str], are_there: impl Fn() -> bool) -> Result<(), String> {
    let failed = |problem: String| {
        Err(format!("the packages {} could not be installed: {problem}", packages.join(" ")))
    };
    if !rustix::process::geteuid().is_root() {
        return failed("only root could do that".to_owned());
    }
    let lock = File::create(env::temp_dir().join("pollux-tune-packages.lock"));
    if let Err(problem) =
        lock.as_ref().map_err(ToString::to_string).and_then(|lock| lock.lock().map_err(|e| e.to_string()))
    {
        return failed(problem);
    }
    if are_there() {
        return Ok(());
    }
    for arguments in
        [&["update"][..], &[&["install", "--yes", "--no-install-recommends"][..], packages].concat()]
    {
        // Somebody else on the machine may be installing, too.
        let command = ["-qq", "-o", "DPkg::Lock::Timeout=600"].iter().chain(arguments);
        let output = Command::new("apt-get")
            .args(command)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .output();
        match output {
            Err(problem) => return failed(problem.to_string()),
            // What is known of packages may do.
            Ok(output) if !output.status.success() && arguments != ["update"] => {
                return failed(String::from_utf8_lossy(&output.stderr).trim().to_owned());
            }
            Ok(_) => {}
        }
    }
    if are_there() { Ok(()) } else { failed("they are installed and not found".to_owned()) }
}
