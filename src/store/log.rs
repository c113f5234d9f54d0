//! The end of what a process has printed.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

/// So much of a log tells what has happened at its end.
const TAIL: u64 = 1000;

/// The last lines of a log; none if it cannot be read.
#[must_use]
pub fn tail(path: &Path) -> String {
    let read = || {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut text = Vec::new();
        file.take(TAIL).read_to_end(&mut text)?;
        io::Result::Ok((length > TAIL, text))
    };
    let (is_cut, text) = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    // The first line may have lost its beginning.
    let whole = if is_cut { text.split_once('\n').map_or("", |(_, rest)| rest) } else { &text };
    let lines: Vec<&str> = whole.lines().filter(|line| !line.trim().is_empty()).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process};

    use super::*;

    #[test]
    fn the_last_whole_lines_are_shown() {
        let path = env::temp_dir().join(format!("pollux-tail-{}", process::id()));
        assert_eq!(tail(&path), "", "there is none");
        fs::write(&path, "one\n\ntwo\nthree\n").expect("it can be written");
        assert_eq!(tail(&path), "one\ntwo\nthree");
        fs::write(&path, "x".repeat(2000) + "\nthree\n").expect("it can be written");
        assert_eq!(tail(&path), "three", "half a line is none");
        fs::remove_file(path).expect("it can be removed");
    }
}
