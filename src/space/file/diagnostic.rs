use std::fmt::{self, Write};

use thiserror::Error;

use super::super::Error as SpaceError;

/// All mistakes in one file, in the order of their places.
///
/// ```
/// use pollux_tune::space::Study;
/// let text = "space:\n  lr: {log: [1e-1, 1e-5]}\nobjektive: {minimize: loss}\n";
/// let problems = Study::from_yaml("study.yaml", text).unwrap_err();
/// assert_eq!(problems.list().len(), 3);
/// let first = &problems.list()[0];
/// assert_eq!((first.line(), first.column(), first.path()), (1, 1, "objective"));
/// assert!(problems.to_string().contains("study.yaml:3:1: objektive: unknown key `objektive`"));
/// assert!(problems.to_string().contains("did you mean `objective`?"));
/// ```
#[derive(Debug, Clone, PartialEq, Error)]
pub struct Diagnostics {
    file: String,
    list: Vec<Diagnostic>,
}

/// One mistake, and where it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Diagnostic {
    place: Place,
    path: String,
    mistake: DiagnosticKind,
    /// The line of the file.
    excerpt: String,
}

/// A place in a file, counted from 1, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) column: usize,
    /// How many characters to mark.
    pub(super) width: usize,
}

/// What can be wrong in a study file.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum DiagnosticKind {
    /// The file is not YAML.
    #[error("not YAML: {0}")]
    Syntax(String),
    /// YAML that study files do not use.
    #[error("{found} cannot be used; expected {allowed}")]
    Unsupported {
        /// What was found.
        found: &'static str,
        /// What to write instead.
        allowed: &'static str,
    },
    /// A key that does not exist.
    #[error("unknown key `{key}`; expected one of {allowed}{}", after(.hint.as_deref()))]
    UnknownKey {
        /// The key.
        key: String,
        /// The keys there are.
        allowed: String,
        /// What to write instead, such as "did you mean `step`?".
        hint: Option<String>,
    },
    /// A key that is there twice.
    #[error("the key `{key}` is given twice, first in line {first}; expected each key once")]
    DuplicateKey {
        /// The key.
        key: String,
        /// The line of the first one.
        first: usize,
    },
    /// A key that must be there.
    #[error("missing; expected {allowed}")]
    Missing {
        /// What it must hold.
        allowed: String,
    },
    /// A value of another type or size than it should have.
    #[error("found {found}; expected {allowed}{}", after(.hint.as_deref()))]
    BadValue {
        /// What is there.
        found: String,
        /// What could be there.
        allowed: String,
        /// What to write instead, such as "did you mean `adam`?".
        hint: Option<String>,
    },
    /// A word that some readers take for a truth value and others for a text.
    #[error("`{0}` can mean a truth value or a text; write true or false, or put the text in quotes")]
    Ambiguous(String),
    /// Two settings that contradict each other.
    #[error("{found}; expected {allowed}")]
    Conflict {
        /// What contradicts what.
        found: String,
        /// What would not.
        allowed: &'static str,
    },
    /// A setting that changes nothing, next to the others.
    #[error("`{key}` has no effect {place}; use {allowed}")]
    NoEffect {
        /// The setting.
        key: String,
        /// Where it has none, such as "with the rule `none`".
        place: String,
        /// What would have one.
        allowed: String,
    },
    /// A constraint that no point keeps, or none that keeps those before it.
    #[error("{}; loosen a constraint or widen a domain", infeasible(*.tries, *.alone))]
    Infeasible {
        /// How many random points were tried.
        tries: usize,
        /// Whether it is this constraint alone, and not together with those before it.
        alone: bool,
    },
    /// What is wrong with the space itself.
    #[error(transparent)]
    Space(#[from] SpaceError),
}

fn after(hint: Option<&str>) -> String {
    hint.map_or_else(String::new, |hint| format!("; {hint}"))
}

fn infeasible(tries: usize, alone: bool) -> String {
    let which = if alone { "this constraint" } else { "this constraint and those before it" };
    format!("none of {tries} random points satisfies {which}")
}

/// A hint to a word that was probably meant.
pub(super) fn did_you_mean(word: &str) -> String {
    format!("did you mean `{word}`?")
}

impl Diagnostic {
    pub(super) fn new(place: Place, path: String, mistake: DiagnosticKind, text: &str) -> Self {
        let line = text.lines().nth(place.line - 1).unwrap_or_default();
        // Broken files can have lines that nobody reads, and characters that terminals obey.
        let visible = |c: char| if c.is_control() && c != '\t' { ' ' } else { c };
        let excerpt = line.chars().take(400).map(visible).collect();
        Self { place, path, mistake, excerpt }
    }

    /// The line, counted from 1.
    #[must_use]
    pub const fn line(&self) -> usize {
        self.place.line
    }

    /// The column, counted from 1, in characters.
    #[must_use]
    pub const fn column(&self) -> usize {
        self.place.column
    }

    /// The field, such as `search.trials`; empty if the file as a whole is wrong.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What is wrong.
    #[must_use]
    pub const fn mistake(&self) -> &DiagnosticKind {
        &self.mistake
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { line, column, .. } = self.place;
        let colon = if self.path.is_empty() { "" } else { ": " };
        write!(f, "{line}:{column}: {}{colon}{}", self.path, self.mistake)
    }
}

impl Diagnostics {
    pub(super) fn new(file: &str, mut list: Vec<Diagnostic>) -> Self {
        list.sort_by_key(|problem| problem.place);
        Self { file: file.to_owned(), list }
    }

    /// The mistakes, at least one.
    #[must_use]
    pub fn list(&self) -> &[Diagnostic] {
        &self.list
    }

    /// The mistakes of both, in the order of their places.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.list.extend(other.list);
        Self::new(&self.file, self.list)
    }

    /// For people: every mistake with its line and a mark below it.
    #[must_use]
    pub fn report(&self) -> String {
        let mut report = String::new();
        for problem in &self.list {
            let Place { line, column, width } = problem.place;
            let _ = writeln!(report, "{}:{problem}", self.file);
            // Tabs stay tabs below, so that the mark stands where it should.
            let blank: String = problem
                .excerpt
                .chars()
                .take(column - 1)
                .map(|c| if c == '\t' { '\t' } else { ' ' })
                .collect();
            let left = problem.excerpt.chars().count().saturating_sub(column - 1);
            let mark = "^".repeat(width.min(left).max(1));
            let gutter = " ".repeat(line.to_string().len());
            let _ = writeln!(report, " {line} | {}\n {gutter} | {blank}{mark}", problem.excerpt);
        }
        report
    }
}

impl fmt::Display for Diagnostics {
    /// One line for each mistake.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, problem) in self.list.iter().enumerate() {
            let newline = if place > 0 { "\n" } else { "" };
            write!(f, "{newline}{}:{problem}", self.file)?;
        }
        Ok(())
    }
}
