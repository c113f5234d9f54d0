//! The rules of `docs/architecture.md`, checked on the source text: who may import whom, what pure code may name, and
//! where some crates and words may appear at all.
//!
//! The reader below knows just enough Rust for that: comments, literals, paths and `use` trees. Items under
//! `#[cfg(test)]`, files called `tests.rs` and folders called `tests` count as test code, which may import more.

#![expect(clippy::disallowed_methods, reason = "tests read files; the list is for the pure modules")]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Modules that decide: numbers and values in, values out.
const PURE: [&str; 7] = ["ids", "space", "tpe", "goodput", "alloc", "trials", "sim"];

/// What each module may import of the crate, besides itself and `ids`; `*` is everything. Some are still to come.
const MAP: [(&str, &[&str]); 14] = [
    ("ids", &[]),
    ("goodput", &[]),
    ("alloc", &["goodput"]),
    ("space", &["goodput", "alloc"]),
    ("tpe", &["space"]),
    ("trials", &["space", "tpe", "goodput", "alloc"]),
    ("sim", &["space", "tpe", "goodput", "alloc", "trials"]),
    ("store", &["trials", "space", "tpe", "alloc"]),
    ("wire", &["space", "goodput", "alloc", "trials"]),
    ("worker", &["wire", "space", "goodput", "trials"]),
    ("emulate", &["wire", "sim", "goodput", "alloc", "space"]),
    ("actors", &["trials", "alloc", "goodput", "tpe", "space", "store", "wire", "worker", "emulate"]),
    ("dashboard", &["trials", "store"]),
    ("cli", &["*"]),
];

/// What pure code must not name: clocks, I/O, threads, runtimes, and generators that are not arguments.
const IMPURE: [&str; 17] = [
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "tokio",
    "actix",
    "actix_rt",
    "actix_web",
    "tonic",
    "rand::rng",
    "rand::random",
    "rand::thread_rng",
    "rand::rngs::SysRng",
    "rand::rngs::ThreadRng",
];

/// External crates that only one module may name.
const HOMES: [(&str, &str); 10] = [
    ("actix", "actors"),
    ("actix_rt", "actors"),
    ("actix_web", "dashboard"),
    ("tch", "worker"),
    ("c10d", "worker"),
    ("rusqlite", "store"),
    ("prost", "wire"),
    ("prost_types", "wire"),
    ("tonic", "wire"),
    ("tonic_prost", "wire"),
];

/// Written by a program, which does not count lines and has lints of its own.
const GENERATED: [&str; 1] = ["src/wire/proto.rs"];

const PURITY_LINE: &str = "#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)]";
const MAX_LINES: usize = 600;

#[test]
fn the_source_keeps_to_the_module_map() {
    let mut broken = Vec::new();
    for folder in ["src", "crates", "examples", "tests", "benches"] {
        for path in rust_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)) {
            let text = fs::read_to_string(&path).expect("the file can be read");
            let name = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).expect("it is in the package");
            broken.extend(check(&name.to_string_lossy().replace('\\', "/"), &text));
        }
    }
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
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

/// Every rule that a file breaks, as `file:line: what is wrong`.
fn check(file: &str, text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let mut broken = Vec::new();
    let lines = text.lines().count();
    let by_hand = !GENERATED.contains(&file);
    if lines > MAX_LINES && by_hand {
        broken.push(format!("{file}: {lines} lines, allowed are {MAX_LINES}"));
    }
    for token in tokens.iter().filter(|token| token.text == "unsafe") {
        if !file.starts_with("crates/c10d/") {
            broken.push(format!("{file}:{}: unsafe code outside crates/c10d", token.line));
        }
    }
    let Some(inside) = file.strip_prefix("src/") else { return broken };
    for (at, token) in tokens.iter().enumerate() {
        let attribute = at > 0 && matches!(tokens[at - 1].text.as_str(), "[" | ",");
        let is_allow = token.text == "allow" && tokens.get(at + 1).is_some_and(|next| next.text == "(");
        if is_allow && attribute && by_hand {
            broken.push(format!("{file}:{}: `allow`: write `expect` with a reason", token.line));
        }
    }
    let module = module_of(inside);
    let top = module.first().map_or("", String::as_str);
    if !top.is_empty() && !MAP.iter().any(|(name, _)| *name == top) {
        broken.push(format!("{file}: module `{top}` is not in the map"));
    }
    if PURE.iter().any(|pure| inside == format!("{pure}/mod.rs") || inside == format!("{pure}.rs")) {
        broken.extend(check_pure_head(file, text));
    }
    if inside.split('/').any(|part| part == "tests" || part == "tests.rs") {
        return broken;
    }
    for path in paths(&without_tests(&tokens), &module) {
        broken.extend(wrong_path(top, &path).map(|what| format!("{file}:{}: {what}", path.line)));
    }
    broken
}

/// A pure module says so in its first lines, to readers and to clippy.
fn check_pure_head(file: &str, text: &str) -> Vec<String> {
    let mut broken = Vec::new();
    let mut code = text.lines().filter(|line| !line.starts_with("//") && !line.trim().is_empty());
    if code.next() != Some(PURITY_LINE) {
        broken.push(format!("{file}: a pure module begins with {PURITY_LINE}"));
    }
    if !text.lines().any(|line| line.starts_with("//!") && line.contains("Architecture invariant")) {
        broken.push(format!("{file}: its documentation has no \"Architecture invariant\""));
    }
    broken
}

/// The module path of a file below `src/`; empty for the roots of the library and of programs.
fn module_of(inside: &str) -> Vec<String> {
    if inside == "lib.rs" || inside == "main.rs" || inside.starts_with("bin/") {
        return Vec::new();
    }
    let inside = inside.trim_end_matches(".rs");
    inside.trim_end_matches("/mod").split('/').map(str::to_owned).collect()
}

fn wrong_path(top: &str, path: &Named) -> Option<String> {
    let shown = path.segments.join("::");
    if path.of_crate {
        if top.is_empty() {
            return None;
        }
        let target = path.segments.first().map_or("the crate root", String::as_str);
        let allowed = MAP.iter().find(|(name, _)| *name == top).map_or(&[][..], |(_, allowed)| *allowed);
        let fine = target == top || target == "ids" || allowed == ["*"] || allowed.contains(&target);
        return (!fine).then(|| format!("`{top}` may not import `{target}` (crate::{shown})"));
    }
    let home = HOMES.iter().find(|(name, home)| path.segments[0] == *name && top != *home);
    if let Some((name, home)) = home {
        return Some(format!("`{name}` belongs in src/{home}/ ({shown})"));
    }
    let impure = |forbidden: &&&str| {
        let forbidden: Vec<&str> = forbidden.split("::").collect();
        let shared = path.segments.iter().zip(&forbidden).take_while(|(a, b)| a == b).count();
        // `use std::time` brings the clocks along as well.
        shared == forbidden.len() || (shared > 1 && shared == path.segments.len())
    };
    let found = PURE.contains(&top).then(|| IMPURE.iter().find(impure)).flatten();
    found.map(|forbidden| format!("`{top}` is pure and names {forbidden} ({shown})"))
}

#[derive(Debug, Clone, PartialEq)]
struct Token {
    text: String,
    line: usize,
}

/// Identifiers, `::` and single characters, without comments and literals.
fn tokens(text: &str) -> Vec<Token> {
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
                _ => 1,
            };
            tokens.push(Token { text: chars[start..at].iter().collect(), line });
        }
        line += chars[start..at].iter().filter(|c| **c == '\n').count();
    }
    tokens
}

/// The end of the white space, comment, literal or lifetime that begins here; `at` itself if none does.
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
        '\'' => at + 1,
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

fn is(tokens: &[Token], at: usize, expected: &[&str]) -> bool {
    expected.iter().enumerate().all(|(i, text)| tokens.get(at + i).is_some_and(|token| token.text == *text))
}

/// Leaves out whatever stands under `#[cfg(test)]`.
fn without_tests(tokens: &[Token]) -> Vec<Token> {
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
fn item_end(tokens: &[Token], mut at: usize) -> usize {
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
fn closing(tokens: &[Token], open: usize) -> usize {
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
struct Named {
    of_crate: bool,
    segments: Vec<String>,
    line: usize,
}

/// Every path of at least two segments, and whatever is imported.
fn paths(tokens: &[Token], module: &[String]) -> Vec<Named> {
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

fn starts_path(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Reads a path or a `use` tree, collects all its paths, and returns where it ends.
fn tree(tokens: &[Token], mut at: usize, prefix: &mut Vec<String>, whole: &mut Vec<Vec<String>>) -> usize {
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
fn resolve(mut path: Vec<String>, module: &[String], line: usize) -> Named {
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

/// What is wrong with a file of one line, as one text.
fn verdict(file: &str, text: &str) -> String {
    check(file, text).join("; ")
}

#[test]
fn forbidden_imports_are_found_however_they_are_written() {
    for text in [
        "use crate::alloc::Plan;",
        "use crate::{goodput::Tier, alloc};",
        "use crate::{\n    alloc::{Plan, Reason},\n    goodput::Tier,\n};",
        "pub(crate) use crate::alloc as other;",
        "use super::super::alloc::Plan;",
        "use super::{Error, super::{alloc::Plan, goodput::Tier}};",
        "fn f() -> crate::alloc::Plan { todo!() }",
        "fn f(x: u8) { g(x as crate::alloc::Count) }",
        "mod inner { use super::super::super::alloc::Plan; }",
        "use pollux_tune::alloc::Plan;",
    ] {
        let found = verdict("src/goodput/batch.rs", text);
        assert!(found.contains("`goodput` may not import `alloc`"), "{text}: {found}");
    }
    for text in ["use crate::*;", "use super::super::*;", "use crate::{self};"] {
        assert!(verdict("src/goodput/batch.rs", text).contains("the crate root"), "{text}");
    }
    assert!(
        verdict("src/store/mod.rs", "use crate::goodput::Fit;").contains("`store` may not import `goodput`")
    );
    assert!(verdict("src/goodput.rs", "use super::alloc::Plan;").contains("may not import `alloc`"));
    assert!(verdict("src/util/mod.rs", "").contains("module `util` is not in the map"));
}

#[test]
fn what_is_allowed_passes() {
    for (file, text) in [
        ("src/alloc/plan.rs", "use crate::{alloc::Row, goodput::{self, Tier}};"),
        ("src/alloc/pollux/space.rs", "use super::super::instance::{Instance, Row};"),
        ("src/alloc/plan.rs", "mod inner { use super::super::Error; }"),
        ("src/goodput/fit/mod.rs", "// use crate::alloc;\n/* unsafe */ const A: &str = \"crate::alloc\";"),
        ("src/goodput/fit/mod.rs", "const A: &str = r#\"use \"crate::alloc\";\"#; const B: char = '\"';"),
        ("src/goodput/batch.rs", "#[cfg(test)]\nmod tests { use crate::alloc::Plan; use std::fs; }"),
        ("src/goodput/batch.rs", "#[cfg(test)]\nuse crate::{alloc::Plan};\n#[cfg(test)]\nmod tests;"),
        ("src/goodput/noise/tests.rs", "use crate::alloc::Plan;"),
        ("src/goodput/batch.rs", "use std::{fmt as fs, time::Duration};\nfn f(time: f64) -> f64 { time }"),
        ("src/cli/mod.rs", "use crate::{actors::System, sim};"),
        ("src/main.rs", "fn main() { pollux_tune::cli::main() }"),
        ("src/actors/mod.rs", "use actix::Actor;\n#[actix::main]\nasync fn f() {}"),
        ("src/dashboard/mod.rs", "use actix_web::web;"),
        ("src/worker/mod.rs", "use c10d::ProcessGroup;\nuse tch::Tensor;"),
        ("src/wire/gateway.rs", "use tonic::Status;"),
        ("src/wire/proto.rs", "#![allow(dead_code)]"),
        ("crates/c10d/src/lib.rs", "unsafe {}"),
    ] {
        assert_eq!(verdict(file, text), "", "{file}: {text}");
    }
}

#[test]
fn code_after_a_test_is_read_again() {
    let text = "#[cfg(test)]\nfn f() { if a { b() } }\nuse crate::alloc::Plan;";
    assert_eq!(check("src/goodput/batch.rs", text).len(), 1);
    assert!(verdict("src/goodput/batch.rs", text).starts_with("src/goodput/batch.rs:3:"));
}

#[test]
fn clocks_input_and_hidden_randomness_are_found_in_pure_code() {
    for text in [
        "use std::fs;",
        "use std::{fmt, net::TcpStream};",
        "let now = std::time::Instant::now();",
        "use std::time::{Duration, SystemTime};",
        "use std::time;",
        "use std::time::*;",
        "let seed = ::std::env::var(name);",
        "use tokio;",
        "#[tokio::main]\nasync fn f() {}",
        "let x = rand::rng().random();",
        "use rand::{Rng, thread_rng};",
    ] {
        assert!(verdict("src/alloc/plan.rs", text).contains("`alloc` is pure"), "{text}");
        assert_eq!(verdict("src/worker/plan.rs", text), "", "{text}");
    }
}

#[test]
fn crates_and_words_stay_where_they_belong() {
    assert!(verdict("src/cli/mod.rs", "use actix::System;").contains("belongs in src/actors/"));
    assert!(verdict("src/actors/mod.rs", "use actix_web::web;").contains("belongs in src/dashboard/"));
    assert!(verdict("src/trials/mod.rs", "fn f(x: tch::Tensor) {}").contains("belongs in src/worker/"));
    assert!(verdict("src/sim/mod.rs", "use c10d::Store;").contains("belongs in src/worker/"));
    assert!(verdict("src/main.rs", "use prost::Message;").contains("belongs in src/wire/"));
    assert!(verdict("src/actors/mod.rs", "use tonic::Status;").contains("belongs in src/wire/"));
    assert!(verdict("src/worker/mod.rs", "fn f() { unsafe { g() } }").contains("unsafe code"));
    assert!(verdict("tests/a.rs", "unsafe fn f() {}").contains("unsafe code"));
    assert!(verdict("src/cli/mod.rs", "#[allow(dead_code)]\nfn f() {}").contains("`expect`"));
    assert!(verdict("src/cli/mod.rs", "#![cfg_attr(test, allow(dead_code))]").contains("`expect`"));
    assert!(verdict("src/cli/mod.rs", &"\n".repeat(601)).contains("601 lines"));
}

#[test]
fn a_pure_module_says_so() {
    let good = format!("//! Text.\n//!\n//! *Architecture invariant:* text.\n\n{PURITY_LINE}\n\nmod a;\n");
    assert_eq!(verdict("src/sim/mod.rs", &good), "");
    assert_eq!(verdict("src/sim/heap.rs", "mod a;"), "", "only the head of the module");
    assert!(verdict("src/sim/mod.rs", &good.replace("invariant", "")).contains("Architecture invariant"));
    let late = format!("//! *Architecture invariant:* text.\nmod a;\n{PURITY_LINE}\n");
    assert!(verdict("src/sim/mod.rs", &late).contains("begins with"));
}
