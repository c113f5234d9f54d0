//! Processes that tests look for, to kill them.

use std::fs;

use rustix::process::Pid;

/// The processes that a process has started and that are still there.
pub(crate) fn children(parent: u32) -> Vec<Pid> {
    let parent = parent.to_string();
    let is_child = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name may hold anything, but ends with the last bracket.
        stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(2)).is_some_and(|of| of == parent)
    };
    let all = fs::read_dir("/proc").expect("processes").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_child).filter_map(Pid::from_raw).collect()
}
