//! Metrics that a program writes to a file, for those whose output is not their own.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use super::lines::{Line, Lines};

/// As much is read at once.
const PIECE: u64 = 1 << 20;

/// The file, as far as it was read.
#[derive(Debug)]
pub(super) struct MetricsFile {
    path: PathBuf,
    read: u64,
    lines: Lines,
}

impl MetricsFile {
    /// What is there already is from an earlier start.
    pub(super) fn at(path: &Path) -> Self {
        let read = path.metadata().map_or(0, |file| file.len());
        Self { path: path.to_owned(), read, lines: Lines::default() }
    }

    /// Shows lines that are new and complete. Whether anything has come; a file that cannot be read has nothing new.
    pub(super) fn read(&mut self, mut show: impl FnMut(&str)) -> bool {
        let length = self.path.metadata().map_or(0, |file| file.len());
        if length < self.read {
            // It was begun anew.
            (self.read, self.lines) = (0, Lines::default());
        }
        if length == self.read {
            return false;
        }
        let mut bytes = Vec::new();
        let read = File::open(&self.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.read))?;
            file.take(PIECE).read_to_end(&mut bytes)
        });
        if read.is_err() {
            return false;
        }
        self.read += bytes.len() as u64;
        self.lines.take(&bytes, |Line { text, lost }| {
            if lost == 0 {
                show(&String::from_utf8_lossy(text));
            }
        });
        !bytes.is_empty()
    }

    /// The program has ended: shows all that is left.
    pub(super) fn finish(&mut self, mut show: impl FnMut(&str)) {
        while self.read(&mut show) {}
        self.lines.finish(|Line { text, .. }| show(&String::from_utf8_lossy(text)));
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, io::Write, process};

    use super::*;

    #[test]
    fn lines_are_read_once_and_when_they_are_complete() {
        let path = env::temp_dir().join(format!("pollux-metrics-file-{}", process::id()));
        fs::write(&path, "of an earlier start\n").expect("it can be written");
        let mut file = MetricsFile::at(&path);
        let mut lines = |append: &str| {
            let to = fs::OpenOptions::new().append(true).open(&path);
            to.and_then(|mut to| to.write_all(append.as_bytes())).expect("it can be written");
            let mut lines = Vec::new();
            let is_new = file.read(|line| lines.push(line.to_owned()));
            assert_eq!(is_new, !append.is_empty());
            lines
        };
        assert_eq!(lines(""), [""; 0]);
        assert_eq!(lines("a\nb"), ["a"]);
        assert_eq!(lines("c\n\n"), ["bc", ""]);
        fs::write(&path, "x\n").expect("it can be written");
        let mut anew = Vec::new();
        assert!(file.read(|line| anew.push(line.to_owned())));
        assert_eq!(anew, ["x"]);
        let _ = fs::OpenOptions::new().append(true).open(&path).and_then(|mut to| to.write_all(b"y\nz"));
        file.finish(|line| anew.push(line.to_owned()));
        assert_eq!(anew, ["x", "y", "z"]);
        fs::remove_file(&path).expect("it is there");
        assert!(!file.read(|_| panic!("there is no file")));
    }
}
