//! `pollux-tune doctor`: whether this machine has what studies need.
//!
//! What is read and what is made of it are apart, so that machines that are not at hand can be tested.

mod python;
mod system;
mod training;

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use serde_json::json;

use super::{
    ExitStatus,
    output::{Format, pluralize},
    run::default_folder,
    study,
};
use crate::{cli, space::Study};

/// What to look at.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) study: Option<PathBuf>,
    pub(crate) format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Ok,
    /// It works, but perhaps not as well as it could.
    Note,
    /// A study would fail, or lose something.
    Problem,
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Problem => "problem",
        }
    }
}

/// What was found out about one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    check: &'static str,
    level: Level,
    found: String,
    /// Nothing if all is well.
    remedy: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, found: found.into(), remedy: None }
    }

    fn note(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, level: Level::Note, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn problem(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, level: Level::Problem, found: found.into(), remedy: Some(remedy.into()) }
    }

    /// A problem for those who need it, a note for others.
    fn missing(
        check: &'static str,
        is_needed: bool,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let level = if is_needed { Level::Problem } else { Level::Note };
        Self { level, ..Self::note(check, found, remedy) }
    }
}

/// Looks at everything, and prints what was found.
pub(crate) fn run(
    settings: &Settings,
    out: &mut impl Write,
    stderr: &mut impl Write,
) -> Result<ExitStatus, cli::Error> {
    let study = match &settings.study {
        Some(file) => Some(study::load(file, stderr)?.1),
        None => None,
    };
    let folder =
        settings.study.as_ref().map_or_else(|| PathBuf::from("studies"), |file| default_folder(file));
    let paths_from = settings.study.as_deref().map_or_else(|| Path::new(""), study::folder_of);
    let findings = all(study.as_ref(), paths_from, &folder);
    let text = match settings.format {
        Format::Json => json_of(&findings),
        Format::Text => text_of(&findings),
    };
    writeln!(out, "{text}").map_err(cli::Error::Stdout)?;
    let is_ready = findings.iter().all(|finding| finding.level != Level::Problem);
    Ok(if is_ready { ExitStatus::Success } else { ExitStatus::Failure })
}

fn all(study: Option<&Study>, paths_from: &Path, folder: &Path) -> Vec<Finding> {
    let gpus = training::Gpus::read();
    let mut findings = vec![training::program(study, &gpus)];
    findings.extend(gpus.findings());
    findings.push(python::check(study, paths_from, gpus.count()));
    findings.extend(training::machines(study));
    findings.extend(system::all(folder));
    findings
}

fn text_of(findings: &[Finding]) -> String {
    let mut lines = Vec::new();
    for Finding { check, level, found, remedy } in findings {
        lines.push(format!("{:<8} {check:<9} {found}", level.name()));
        lines.extend(remedy.iter().map(|remedy| format!("{:18} -> {remedy}", "")));
    }
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (notes, problems) =
        (pluralize(count(Level::Note), "note"), pluralize(count(Level::Problem), "problem"));
    lines.push(format!("{problems}, {notes}"));
    lines.join("\n")
}

fn json_of(findings: &[Finding]) -> String {
    let object = |Finding { check, level, found, remedy }: &Finding| json!({"check": check, "level": level.name(), "found": found, "remedy": remedy});
    let is_ready = findings.iter().all(|finding| finding.level != Level::Problem);
    json!({"ready": is_ready, "findings": findings.iter().map(object).collect::<Vec<_>>()}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_is_a_line_and_has_its_remedy_below() {
        let findings = [
            Finding::ok("disk", "1 GB"),
            Finding::note("files", "256", "raise it"),
            Finding::missing("python", true, "none", "install it"),
        ];
        let expected = "ok       disk      1 GB\n\
            note     files     256\n                   -> raise it\n\
            problem  python    none\n                   -> install it\n\
            1 problem, 1 note";
        assert_eq!(text_of(&findings), expected);
        let json: serde_json::Value = serde_json::from_str(&json_of(&findings)).expect("it is JSON");
        assert_eq!((&json["ready"], &json["findings"][1]["level"]), (&json!(false), &json!("note")));
        assert_eq!(json["findings"][0]["remedy"], json!(null));
    }
}
