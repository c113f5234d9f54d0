//! A reader of Rust source that knows just enough of it: comments, literals, paths and `use` trees. Items under `#[cfg(test)]`, files
//! called `tests.rs` and folders called `tests` count as test code.

use std::{
    fs,
    path::{Path, PathBuf},
};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// Identifiers, lifetimes, `::` and single characters, without comments and literals.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let (mut tokens, mut at, mut line) = (Vec::new(), 0, 1);
    while at < chars.len() {
        let start = at;
        at = skip(&chars, at);
        if at == start {
            let word = |c: char| c.is_alphanumeric() || c == '_';
            at += match chars[at] {
                c if word(c) => chars[at..].iter().take_while(|c| word(**c)).count(),
                ':' if chars.get(at + 1) == Some(&':') => 2,
                // A lifetime.
                '\'' => 1 + chars[at + 1..].iter().take_while(|c| word(**c)).count(),
                _ => 1,
            };
            tokens.push(Token { text: chars[start..at].iter().collect(), line });
        }
        line += chars[start..at].iter().filter(|c| **c == '\n').count();
    }
    tokens
}

/// The end of the white space, comment or literal that begins here; `at` itself if none does.
fn skip(chars: &[char], at: usize) -> usize {
    let next = |offset: usize| chars.get(at + offset).copied().unwrap_or(' ');
    let find = |from: usize, what: &str| {
        let what: Vec<char> = what.chars().collect();
        let rest = chars.get(from..).unwrap_or_default();
        rest.windows(what.len()).position(|window| window == what).map_or(chars.len(), |p| from + p)
    };
    match chars[at] {
        c if c.is_whitespace() => at + 1,
        '/' if next(1) == '/' => find(at, "\n"),
        '/' if next(1) == '*' => (find(at + 2, "*/") + 2).min(chars.len()),
        '"' => string_end(chars, at + 1),
        '\'' if next(1) == '\\' => (find(at + 3, "'") + 1).min(chars.len()),
        '\'' if next(2) == '\'' => at + 3,
        'b' | 'c' if next(1) == '"' => string_end(chars, at + 2),
        'b' | 'c' if next(1) == 'r' && matches!(next(2), '"' | '#') => skip(chars, at + 1),
        'r' if next(1) == '"' || (next(1) == '#' && matches!(next(2), '"' | '#')) => {
            let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
            let end = format!("\"{}", "#".repeat(hashes));
            (find(at + hashes + 2, &end) + end.len()).min(chars.len())
        }
        _ => at,
    }
}

fn string_end(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

pub(crate) fn is(tokens: &[Token], at: usize, expected: &[&str]) -> bool {
    expected.iter().enumerate().all(|(i, text)| tokens.get(at + i).is_some_and(|token| token.text == *text))
}

/// Leaves out whatever stands under `#[cfg(test)]`.
pub(crate) fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let gate = is(tokens, at, &["#", "[", "cfg", "(", "test", ")", "]"])
            || is(tokens, at, &["#", "[", "cfg", "(", "all", "(", "test"]);
        if gate {
            at = item_end(tokens, at);
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// The end of the item whose attributes begin here: its `;`, or the brace that closes its body.
pub(crate) fn item_end(tokens: &[Token], mut at: usize) -> usize {
    while is(tokens, at, &["#", "["]) {
        at = closing(tokens, at + 1) + 1;
    }
    let import = is(tokens, at, &["use"]) || is(tokens, at, &["pub", "use"]);
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            ";" => return at + 1,
            "{" if !import => return closing(tokens, at) + 1,
            "{" | "(" | "[" => at = closing(tokens, at) + 1,
            _ => at += 1,
        }
    }
    at
}

/// Where the bracket that opens here is closed.
pub(crate) fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len()
}

/// A path as the compiler would see it, from the crate root or from an external crate on.
#[derive(Debug, PartialEq)]
pub(crate) struct Named {
    pub(crate) of_crate: bool,
    pub(crate) segments: Vec<String>,
    pub(crate) line: usize,
}

/// Every path of at least two segments, and whatever is imported.
pub(crate) fn paths(tokens: &[Token], module: &[String]) -> Vec<Named> {
    let mut found = Vec::new();
    let mut here = module.to_vec();
    // For each open brace, whether it is the body of an inline module.
    let mut bodies = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let before = if at > 0 { tokens[at - 1].text.as_str() } else { "" };
        match tokens[at].text.as_str() {
            "{" => {
                let inline = at > 1 && tokens[at - 2].text == "mod";
                if inline {
                    here.push(before.to_owned());
                }
                bodies.push(inline);
            }
            "}" if bodies.pop() == Some(true) => {
                here.pop();
            }
            word if starts_path(word) => {
                let mut whole = Vec::new();
                let line = tokens[at].line;
                let end = tree(tokens, at, &mut Vec::new(), &mut whole);
                let import =
                    before == "use" || before == "crate" || is(tokens, at.saturating_sub(2), &["use", "::"]);
                let long = whole.into_iter().filter(|path| path.len() > 1 || import);
                found.extend(long.map(|path| resolve(path, &here, line)));
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

pub(crate) fn starts_path(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Reads a path or a `use` tree, collects all its paths, and returns where it ends.
pub(crate) fn tree(
    tokens: &[Token],
    mut at: usize,
    prefix: &mut Vec<String>,
    whole: &mut Vec<Vec<String>>,
) -> usize {
    let depth = prefix.len();
    while let Some(token) = tokens.get(at) {
        if token.text == "{" {
            at += 1;
            while at < tokens.len() && tokens[at].text != "}" {
                let next = tree(tokens, at, prefix, whole);
                at = next.max(at + 1);
            }
            prefix.truncate(depth);
            return at + 1;
        }
        if token.text == "*" || starts_path(&token.text) {
            prefix.push(token.text.clone());
            at += 1;
        }
        if !is(tokens, at, &["::"]) {
            break;
        }
        at += 1;
    }
    if prefix.len() > depth {
        whole.push(prefix.clone());
        let renamed = is(tokens, at, &["as"]) && [",", "}", ";"].iter().any(|end| is(tokens, at + 2, &[end]));
        at += if renamed { 2 } else { 0 };
    }
    prefix.truncate(depth);
    at
}

/// Takes `crate`, `self`, `super` and the crate's own name out of a path, and a last `*` or `self`.
pub(crate) fn resolve(mut path: Vec<String>, module: &[String], line: usize) -> Named {
    let relative = matches!(path[0].as_str(), "self" | "super");
    let of_crate = relative || matches!(path[0].as_str(), "crate" | "pollux_tune");
    let mut segments = if relative { module.to_vec() } else { Vec::new() };
    if path.len() > 1 && path.last().is_some_and(|last| last == "*" || last == "self") {
        path.pop();
    }
    for segment in path {
        match segment.as_str() {
            "super" => {
                segments.pop();
            }
            "crate" | "self" => {}
            "pollux_tune" if segments.is_empty() => {}
            _ => segments.push(segment),
        }
    }
    Named { of_crate, segments, line }
}

pub(crate) fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.expect("the folder can be listed").path();
        if path.is_dir() && !path.ends_with("target") {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// The module path of a file below `src/`; empty for the roots of the library and of programs.
pub(crate) fn module_of(inside: &str) -> Vec<String> {
    if inside == "lib.rs" || inside == "main.rs" || inside.starts_with("bin/") {
        return Vec::new();
    }
    let inside = inside.trim_end_matches(".rs");
    inside.trim_end_matches("/mod").split('/').map(str::to_owned).collect()
}

/// Tokens as a text, with spaces where `rustfmt` would put them, more or less.
pub(crate) fn shown(tokens: &[Token]) -> String {
    let is_word = |text: &str| text.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '\'');
    let mut text = String::new();
    for (at, token) in tokens.iter().enumerate() {
        let token = token.text.as_str();
        let before = if at > 0 { tokens[at - 1].text.as_str() } else { "" };
        let arrow = token == ">" && before == "-";
        let apart = match token {
            "{" | "}" | "=" | "+" | "-" => true,
            "&" | "[" => is_word(before) || before == ">",
            _ if is_word(token) => is_word(before) || matches!(before, ")" | ">" | "]"),
            _ => false,
        };
        let after = matches!(before, "," | ";" | ":" | "=" | "+" | "{");
        let last = tokens.get(at + 1).is_none_or(|next| matches!(next.text.as_str(), ")" | "}" | "]"));
        if token == "," && last {
            continue;
        }
        if at > 0 && (apart || after) && !arrow && !text.ends_with(' ') {
            text.push(' ');
        }
        text.push_str(token);
        if arrow {
            text.push(' ');
        }
    }
    text
}
