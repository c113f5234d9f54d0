//! What is known of the terminal: how wide it is, and whether it takes colours. Files and pipes get neither.

use std::{
    env,
    io::{self, IsTerminal},
};

use rustix::termios::tcgetwinsize;

/// The narrowest terminal that is written for.
const NARROWEST: usize = 20;

/// How many columns the terminal behind the standard output has; none if there is none.
pub(super) fn stdout_width() -> Option<usize> {
    let out = io::stdout();
    if !out.is_terminal() {
        return None;
    }
    tcgetwinsize(&out).ok().and_then(|size| usable(size.ws_col))
}

/// The same for the standard error.
pub(super) fn stderr_width() -> Option<usize> {
    let out = io::stderr();
    if !out.is_terminal() {
        return None;
    }
    tcgetwinsize(&out).ok().and_then(|size| usable(size.ws_col))
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
    fn who_wants_no_colours_gets_none() {
        let text = |text: &str| Some(text.to_owned());
        assert!(wants_colours(None, text("xterm")) && wants_colours(text(""), None));
        assert!(!wants_colours(text("1"), text("xterm")) && !wants_colours(None, text("dumb")));
        assert_eq!(Paint(false).colour(3, "a"), "a");
        assert_eq!(Paint(true).colour(3, "a"), "\u{1b}[38;5;3ma\u{1b}[0m");
    }
}
