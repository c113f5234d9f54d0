//! The rules of `docs/architecture.md`, checked on the source text: who may import whom, what pure code may name, and
//! where some crates and words may appear at all.
//! Test code may import more.

use std::{fs, path::Path};

use crate::source::{Named, module_of, paths, rust_files, tokens, without_tests};

/// Modules that decide: numbers and values in, values out.
const PURE: [&str; 7] = ["ids", "space", "tpe", "goodput", "alloc", "trials", "sim"];

/// What each module may import of the crate, besides itself and `ids`; `*` is everything. Some are still to come.
const MAP: [(&str, &[&str]); 18] = [
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
    ("emulate", &["wire", "worker", "sim", "goodput", "alloc", "space", "trials"]),
    ("agent", &["wire", "worker", "emulate", "store", "space", "trials"]),
    ("slurm", &["store", "space", "trials"]),
    (
        "actors",
        &[
            "trials", "alloc", "goodput", "tpe", "space", "store", "wire", "worker", "emulate", "agent",
            "slurm",
        ],
    ),
    ("dashboard", &["trials", "store", "space", "tpe", "goodput", "alloc", "wire"]),
    ("chaos", &["trials", "alloc", "goodput", "space", "store", "worker"]),
    ("cli", &["*"]),
    ("prelude", &["*"]),
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

/// What the pure modules may depend on; everything else comes with a feature.
const CORE: [&str; 11] = [
    "argmin",
    "csv",
    "flate2",
    "granit-parser",
    "libm",
    "rand",
    "rand_chacha",
    "serde",
    "serde_json",
    "strsim",
    "thiserror",
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

#[test]
fn the_core_depends_on_these_crates_alone() {
    let manifest =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).expect("it is there");
    let (_, rest) = manifest.split_once("[dependencies]\n").expect("it has dependencies");
    let always =
        rest.lines().take_while(|line| !line.is_empty()).filter(|line| !line.contains("optional = true"));
    let names: Vec<&str> = always.filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, CORE);
}

/// Every rule that a file breaks, as `file:line: what is wrong`.
fn check(file: &str, text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let mut broken = Vec::new();
    let lines = text.lines().count();
    let by_hand = !GENERATED.contains(&file);
    if lines > MAX_LINES && by_hand {
        broken.push(format!("{file}: {lines} lines; expected at most {MAX_LINES}"));
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
