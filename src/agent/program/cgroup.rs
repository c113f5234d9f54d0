//! A control group for each program, where the system lets us make one: nothing that the program starts can leave it.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// Set to `off`, no control groups are made.
const SWITCH: &str = "POLLUX_TUNE_CGROUPS";

/// A control group (version 2).
#[derive(Debug)]
pub(super) struct Cgroup(PathBuf);

impl Cgroup {
    /// A new one below that of this process. Without the right to make one there is none.
    pub(super) fn create() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if env::var_os(SWITCH).is_some_and(|value| value == "off") {
            return None;
        }
        let name = format!("pollux-tune-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = own()?.join(name);
        fs::create_dir(&path).ok()?;
        Some(Self(path))
    }

    /// One that is there already.
    pub(super) const fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Moves a process into it.
    pub(super) fn add(&self, pid: u32) -> io::Result<()> {
        fs::write(self.0.join("cgroup.procs"), pid.to_string())
    }

    /// The processes in it, and in those that they have made below it.
    pub(super) fn members(&self) -> Vec<i32> {
        let mut members = Vec::new();
        for folder in folders(&self.0) {
            let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            members.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
        }
        members
    }

    /// Ends all of them at once, also those that are just being started.
    pub(super) fn kill(&self) {
        // Old systems do not know this; then each is killed by itself.
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
    }

    /// Removes it, once nothing is in it.
    pub(super) fn remove(&self) {
        // The innermost first.
        for folder in folders(&self.0).iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// A folder, and those in it, each before what is in it.
fn folders(root: &Path) -> Vec<PathBuf> {
    let mut found = vec![root.to_owned()];
    let mut next = 0;
    while let Some(folder) = found.get(next) {
        let inner = fs::read_dir(folder).into_iter().flatten().flatten();
        let inner = inner.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let inner: Vec<PathBuf> = inner.map(|entry| entry.path()).collect();
        found.extend(inner);
        next += 1;
    }
    found
}

/// Whether programs get control groups of their own here.
#[cfg(feature = "cli")]
pub(crate) fn can_make_cgroups() -> bool {
    let made = Cgroup::create();
    made.iter().for_each(Cgroup::remove);
    made.is_some()
}

/// The control group of this process.
fn own() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mount = mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let path = words.nth(1)?;
        (words.next()? == "cgroup2").then_some(path)
    })?;
    Some(Path::new(mount).join(own))
}
