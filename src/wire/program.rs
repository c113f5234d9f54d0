//! This program, started again as a worker or as what launches a program.

use std::{env, ffi::OsString, fs, io, os::unix::process::CommandExt, path::Path, process::Command};

/// The file that this process runs, whatever its name means by now: an upgrade in the middle of a study removes or replaces the file of
/// that name.
pub(super) const THIS: &str = "/proc/self/exe";
/// What the system calls the processes of a program, for lists of processes.
const NAME: &str = "/proc/self/comm";
/// What the system adds to the path of a file that was removed.
const DELETED: &str = " (deleted)";

/// Prepares another process of the very same program, also if another version is installed at its place.
pub(crate) fn this_program() -> io::Result<Command> {
    let path = env::current_exe()?;
    if !Path::new(THIS).exists() {
        return Ok(Command::new(path));
    }
    let mut again = Command::new(THIS);
    // What people know it by.
    again.arg0(shown(path.into_os_string()));
    Ok(again)
}

fn shown(path: OsString) -> OsString {
    match path.to_str().and_then(|path| path.strip_suffix(DELETED)) {
        Some(kept) => kept.into(),
        None => path,
    }
}

/// Gives a process that [`this_program`] has started the name of its program, which would be `exe` otherwise.
pub(crate) fn take_name() {
    if let Some(program) = env::args_os().next()
        && let Some(name) = Path::new(&program).file_name()
    {
        // Only lists of processes show it.
        let _ = fs::write(NAME, name.as_encoded_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_started_again_is_the_file_and_not_its_name() {
        assert_eq!(this_program().expect("this is a program").get_program(), THIS);
        for (path, known_by) in [("/a/tune (deleted)", "/a/tune"), ("/a/tune", "/a/tune")] {
            assert_eq!(shown(path.into()), known_by);
        }
    }
}
