//! What is known of the terminal: how wide it is, and whether it takes colours. Files and pipes get neither.

use std::{
    env,
    io::{self, IsTerminal},
};

use rustix::termios::tcgetwinsize;

/// The narrowest terminal that is written for.
const NARROWEST: usize = 20;
/// And the lowest.
const LOWEST: usize = 4;
/// Where a terminal does not say how many lines it has.
const USUAL_HEIGHT: usize = 24;

/// How many columns the terminal behind the standard output has; none if there is none.
pub(super) fn stdout_width() -> Option<usize> {
    let out = io::stdout();
    if !out.is_terminal() {
        return None;
    }
    tcgetwinsize(&out).ok().and_then(|size| usable(size.ws_col))
}

/// How many columns and lines the terminal behind the standard error has; none if there is none.
pub(super) fn stderr_size() -> Option<(usize, usize)> {
    let out = io::stderr();
    if !out.is_terminal() {
        return None;
    }
    let size = tcgetwinsize(&out).ok()?;
    let height = if size.ws_row == 0 { USUAL_HEIGHT } else { usize::from(size.ws_row).max(LOWEST) };
    Some((usable(size.ws_col)?, height))
}

/// How many columns a text takes, without what only a terminal sees.
pub(super) fn visible_width(text: &str) -> usize {
    let mut is_code = false;
    let is_shown = |c: &char| {
        let was_code = is_code;
        is_code = *c == '\u{1b}' || (is_code && *c != 'm');
        !was_code && !is_code
    };
    text.chars().filter(is_shown).count()
}

/// A terminal that says it has no columns does not know.
fn usable(columns: u16) -> Option<usize> {
    (columns > 0).then(|| usize::from(columns).max(NARROWEST))
}

/// Whether what goes to the terminal behind the standard error may have colours: <https://no-color.org>.
pub(super) fn has_colours() -> bool {
    io::stderr().is_terminal() && wants_colours(env::var("NO_COLOR").ok(), env::var("TERM").ok())
}

fn wants_colours(no_color: Option<String>, term: Option<String>) -> bool {
    no_color.is_none_or(|value| value.is_empty()) && term.is_none_or(|term| term != "dumb")
}

/// A line of at most so many columns; what is cut off is shown by `…`.
pub(super) fn cut(line: &str, width: Option<usize>) -> String {
    let Some(width) = width.filter(|width| line.chars().count() > *width) else { return line.to_owned() };
    let kept: String = line.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// Lines of at most so many columns, broken between words. What comes after the first one stands below its text: two columns further in
/// than the line, or where its second column begins.
pub(super) fn fold(line: &str, width: Option<usize>) -> String {
    let Some(width) = width.filter(|width| line.chars().count() > *width) else { return line.to_owned() };
    let start = line.chars().take_while(|c| *c == ' ').count();
    let text: Vec<char> = line.chars().skip(start).collect();
    // Two blanks end a first column.
    let column = text.windows(2).position(|pair| pair == [' ', ' ']);
    let column = column.map(|end| end + text[end..].iter().take_while(|c| **c == ' ').count());
    let hang = start + column.filter(|column| start + column <= width / 2).unwrap_or(2);
    let mut lines = vec![String::new()];
    let mut used = 0;
    for (place, word) in line.split(' ').enumerate() {
        let length = word.chars().count();
        let last = lines.len() - 1;
        if place > 0 && used + 1 + length > width && used > hang {
            lines.push(format!("{}{word}", " ".repeat(hang)));
            used = hang + length;
            continue;
        }
        if place > 0 {
            lines[last].push(' ');
            used += 1;
        }
        lines[last].push_str(word);
        used += length;
    }
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

/// Text of several lines, each folded to the terminal behind the standard output.
pub(super) fn folded(text: &str) -> String {
    let width = stdout_width();
    text.lines().map(|line| fold(line, width)).collect::<Vec<_>>().join("\n")
}

/// How to paint on a terminal, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Paint(pub(super) bool);

impl Paint {
    /// Text of a colour of the palette of 256.
    pub(super) fn colour(self, number: u8, text: &str) -> String {
        if self.0 && !text.is_empty() {
            format!("\u{1b}[38;5;{number}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }

    pub(super) fn bold(self, text: &str) -> String {
        if self.0 && !text.is_empty() { format!("\u{1b}[1m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    pub(super) fn dim(self, text: &str) -> String {
        if self.0 && !text.is_empty() { format!("\u{1b}[2m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_where_the_terminal_ends() {
        assert_eq!(cut("trial 1", Some(7)), "trial 1");
        assert_eq!(cut("trial 12", Some(7)), "trial…", "no blank before it");
        assert_eq!(cut("größer als es passt", Some(8)), "größer…");
        assert_eq!(cut("whatever", None), "whatever");
    }

    #[test]
    fn long_lines_are_folded_between_words() {
        assert_eq!(fold("short", Some(20)), "short");
        assert_eq!(fold("a line of several words", None), "a line of several words");
        assert_eq!(fold("a line of several words", Some(12)), "a line of\n  several\n  words");
        let status = "  best    trial 3: loss 0.5, lr=0.1 width=64";
        assert_eq!(fold(status, Some(30)), "  best    trial 3: loss 0.5,\n          lr=0.1 width=64");
        assert_eq!(fold("averyverylongword and more", Some(10)), "averyverylongword\n  and more");
    }

    #[test]
    fn who_wants_no_colours_gets_none() {
        let text = |text: &str| Some(text.to_owned());
        assert!(wants_colours(None, text("xterm")) && wants_colours(text(""), None));
        assert!(!wants_colours(text("1"), text("xterm")) && !wants_colours(None, text("dumb")));
        assert_eq!(Paint(false).colour(3, "a"), "a");
        assert_eq!(Paint(true).colour(3, "a"), "\u{1b}[38;5;3ma\u{1b}[0m");
        assert_eq!(visible_width(&format!("x{}m", Paint(true).colour(3, "a"))), 3);
    }
}
