//! From bytes to lines, in bounded memory.

/// The longest line that is kept.
pub(super) const LONGEST: usize = 1 << 20;

/// Cuts output into lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The line that is not complete yet.
    begun: Vec<u8>,
    /// Bytes of it that were too many.
    lost: u64,
}

/// A line without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pub(super) text: &'a [u8],
    /// Bytes that it had beyond [`LONGEST`].
    pub(super) lost: u64,
}

impl Lines {
    /// Takes more of the output, and hands out the lines that it completes.
    pub(super) fn take(&mut self, mut bytes: &[u8], mut each: impl FnMut(Line<'_>)) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (rest, after) = (&bytes[..end], &bytes[end + 1..]);
            if self.begun.is_empty() && self.lost == 0 && rest.len() <= LONGEST {
                each(Line { text: rest, lost: 0 });
            } else {
                self.keep(rest);
                self.end(&mut each);
            }
            bytes = after;
        }
        self.keep(bytes);
    }

    /// The output is over: hands out what has no end.
    pub(super) fn finish(&mut self, mut each: impl FnMut(Line<'_>)) {
        if !self.begun.is_empty() {
            self.end(&mut each);
        }
    }

    fn end(&mut self, each: &mut impl FnMut(Line<'_>)) {
        each(Line { text: &self.begun, lost: self.lost });
        self.begun.clear();
        self.lost = 0;
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = LONGEST - self.begun.len();
        let (kept, lost) = bytes.split_at(bytes.len().min(room));
        self.begun.extend_from_slice(kept);
        self.lost += lost.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<(Vec<u8>, u64)> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for piece in pieces {
            lines.take(piece, |line| found.push((line.text.to_vec(), line.lost)));
        }
        lines.finish(|line| found.push((line.text.to_vec(), line.lost)));
        found
    }

    #[test]
    fn lines_do_not_depend_on_how_the_bytes_arrive() {
        let whole = lines(&[b"one\n\ntwo\nthree"]);
        let expected = ["one", "", "two", "three"].map(|line| (line.as_bytes().to_vec(), 0));
        assert_eq!(whole, expected);
        assert_eq!(lines(&[b"on", b"e\n", b"\ntw", b"o", b"\nthr", b"ee"]), expected);
    }

    #[test]
    fn a_line_without_an_end_takes_no_more_memory_than_a_long_one() {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        let piece = vec![b'x'; 1 << 16];
        for _ in 0..1600 {
            lines.take(&piece, |line| found.push((line.text.len(), line.lost)));
        }
        assert!(lines.begun.capacity() <= 2 * LONGEST, "{}", lines.begun.capacity());
        lines.take(b"\nnext\n", |line| found.push((line.text.len(), line.lost)));
        assert_eq!(found, [(LONGEST, 1600 * (1 << 16) - LONGEST as u64), (4, 0)]);
    }

    #[test]
    fn the_longest_line_is_whole() {
        let line = vec![b'x'; LONGEST];
        assert_eq!(lines(&[&line, b"\n"]), [(line.clone(), 0)]);
        assert_eq!(lines(&[&line, b"y\n"]), [(line, 1)]);
    }
}
