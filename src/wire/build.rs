use std::{
    env,
    fs::File,
    io::{self, Read},
    sync::OnceLock,
};

use super::{VERSION, program::THIS, secret::digits};

/// Bytes of the executable's hash that are shown: enough to tell two of them apart.
const SHOWN: usize = 8;
const READ_BYTES: usize = 1 << 16;

/// This program: its version, that of its messages, and its executable. Two processes have the same if they run copies of one file.
pub fn build() -> &'static str {
    static BUILD: OnceLock<String> = OnceLock::new();
    BUILD.get_or_init(|| {
        let executable = executable().unwrap_or_else(|_| "unknown".to_owned());
        format!("pollux-tune {} (messages {VERSION}, executable {executable})", env!("CARGO_PKG_VERSION"))
    })
}

/// The file that this process runs, also if another one is at its place by now.
fn executable() -> io::Result<String> {
    let mut file = File::open(THIS).or_else(|_| File::open(env::current_exe()?))?;
    let mut hash = blake3::Hasher::new();
    let mut bytes = vec![0; READ_BYTES];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(digits(&hash.finalize().as_bytes()[..SHOWN])),
            read => hash.update(&bytes[..read]),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_names_version_and_executable() {
        let build = build();
        assert!(
            build.starts_with(&format!("pollux-tune {} (messages {VERSION}, ", env!("CARGO_PKG_VERSION")))
        );
        assert!(!build.contains("unknown"), "{build}");
        assert_eq!(executable().expect("it can be read").len(), 2 * SHOWN);
    }
}
