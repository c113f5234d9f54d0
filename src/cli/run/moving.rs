//! Lines at the end of a terminal that change in their place.

use std::{
    fmt::Write as _,
    io::{self, Write},
};

use crate::cli::terminal::{fold, stderr_size, visible_width};

/// Where a terminal does not say how large it is.
const USUAL: (usize, usize) = (80, 24);
/// Columns at the end of a line that stay free: the `^C` that a terminal shows there must not begin another line.
const FREE: usize = 3;
/// Lines of the view that are none of a trial, at most.
const OTHERS: usize = 10;

/// Lines on the terminal behind the standard error.
#[derive(Debug, Default)]
pub(in crate::cli) struct MovingLines {
    /// Those that are there.
    lines: Vec<String>,
}

impl MovingLines {
    /// How wide they may be, and how many of them may be about trials. The terminal may have become larger or smaller.
    pub(in crate::cli) fn room(trials: usize) -> (usize, usize) {
        let (width, height) = stderr_size().unwrap_or(USUAL);
        (width.saturating_sub(FREE).max(1), trials.min(height.saturating_sub(OTHERS)).max(1))
    }

    /// Shows these instead of those before.
    pub(in crate::cli) fn show(&mut self, mut lines: Vec<String>) {
        let (_, height) = stderr_size().unwrap_or(USUAL);
        lines.truncate(height.saturating_sub(1));
        self.draw(None, lines);
    }

    /// A line above them, which stays.
    pub(super) fn print(&mut self, line: &str) {
        let width = stderr_size().unwrap_or(USUAL).0;
        let folded: Vec<String> = line.lines().map(|line| fold(line, Some(width))).collect();
        let lines = self.lines.clone();
        self.draw(Some(&folded.join("\n")), lines);
    }

    pub(in crate::cli) fn clear(&mut self) {
        self.draw(None, Vec::new());
    }

    fn draw(&mut self, above: Option<&str>, lines: Vec<String>) {
        let (width, _) = stderr_size().unwrap_or(USUAL);
        let text = redrawn(&self.lines, above, &lines, width);
        // In one piece, so that nothing flickers. Without stderr there is nowhere to report to.
        let _ = io::stderr().lock().write_all(text.as_bytes());
        self.lines = lines;
    }
}

/// What a terminal of so many columns is sent, whose cursor is at the end of the lines of before: it is there again afterwards.
fn redrawn(before: &[String], above: Option<&str>, lines: &[String], width: usize) -> String {
    // A terminal that has become narrower has broken them.
    let rows: usize = before.iter().map(|line| visible_width(line).div_ceil(width.max(1)).max(1)).sum();
    let mut text = String::new();
    if rows > 0 {
        text.push('\r');
        if rows > 1 {
            let _ = write!(text, "\u{1b}[{}A", rows - 1);
        }
        text.push_str("\u{1b}[J");
    }
    if let Some(above) = above {
        text.push_str(above);
        text.push('\n');
    }
    text.push_str(&lines.join("\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn lines_are_drawn_over_those_of_before() {
        assert_eq!(redrawn(&[], None, &lines(&["a", "b"]), 80), "a\nb");
        let before = lines(&["a", "\u{1b}[1mb\u{1b}[0m", "c"]);
        assert_eq!(redrawn(&before, None, &lines(&["d"]), 80), "\r\u{1b}[2A\u{1b}[Jd");
        assert_eq!(redrawn(&before, Some("news"), &before[..1], 80), "\r\u{1b}[2A\u{1b}[Jnews\na");
        assert_eq!(redrawn(&before[..1], None, &[], 80), "\r\u{1b}[J");
        // What was 60 columns wide takes three lines of 20.
        assert_eq!(redrawn(&["x".repeat(60)], None, &[], 20), "\r\u{1b}[2A\u{1b}[J");
    }
}
