//! Placeholders in the arguments of programs.

/// Placeholders that are no parameters.
pub(crate) const BUILT_IN: [&str; 4] = ["trial", "slots", "folder", "port"];

/// A part of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    Text(&'a str),
    /// A placeholder, without its braces.
    Name(&'a str),
}

/// Takes an argument apart. `{name}` is a placeholder if it looks like one or is known, `{{name}}` is the text `{name}`, and a variable of a
/// shell, `${name}`, is left alone.
pub(crate) fn pieces(word: &str, is_known: impl Fn(&str) -> bool) -> Vec<Piece<'_>> {
    let is_name = |name: &&str| is_identifier(name) || is_known(name);
    let (mut pieces, mut begin, mut at) = (Vec::new(), 0, 0);
    while let Some(open) = word[at..].find('{').map(|place| at + place) {
        let inner = &word[open + 1..];
        at = open + 1;
        let upto = |inner: &'_ str, end| inner.split_once(end).map(|(name, _)| name.len());
        let quoted = inner.strip_prefix('{').and_then(|inner| Some(&inner[..upto(inner, "}}")?]));
        let plain = upto(inner, "}").map(|length| &inner[..length]);
        if word[..open].ends_with('$') {
            continue;
        }
        if let Some(name) = quoted.filter(is_name) {
            at += name.len() + 3;
            pieces.extend([Piece::Text(&word[begin..open]), Piece::Text(&word[open + 1..at - 1])]);
            begin = at;
        } else if let Some(name) = plain.filter(is_name) {
            at += name.len() + 1;
            pieces.extend([Piece::Text(&word[begin..open]), Piece::Name(name)]);
            begin = at;
        }
    }
    pieces.push(Piece::Text(&word[begin..]));
    pieces.retain(|piece| *piece != Piece::Text(""));
    pieces
}

/// Whether somebody who writes this in braces means a placeholder.
fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With placeholders in angle brackets.
    fn shown(word: &str) -> String {
        let text = |piece: Piece<'_>| match piece {
            Piece::Text(text) => text.to_owned(),
            Piece::Name(name) => format!("<{name}>"),
        };
        pieces(word, |name| name == "a b").into_iter().map(text).collect()
    }

    #[test]
    fn names_in_braces_are_placeholders_and_other_braces_are_not() {
        for (word, expected) in [
            ("", ""),
            ("--lr={lr}", "--lr=<lr>"),
            ("{lr}{trial}", "<lr><trial>"),
            ("{\"loss\": {x}}", "{\"loss\": <x>}"),
            ("{a b} {b a}", "<a b> {b a}"),
            ("${HOME}/{trial}", "${HOME}/<trial>"),
            ("{{lr}} {lr}", "{lr} <lr>"),
            ("awk '{print $1}' {", "awk '{print $1}' {"),
            ("{}{é}{{}}", "{}{é}{{}}"),
            ("{{{lr}}}", "{{lr}}"),
        ] {
            assert_eq!(shown(word), expected, "{word}");
        }
    }
}
