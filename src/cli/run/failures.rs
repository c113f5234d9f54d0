//! Failed trials of a study in a few lines: what went wrong, how often, and what to do.

use std::{collections::BTreeMap, path::Path};

use crate::{
    cli::output::pluralize,
    ids::TrialId,
    trials::{End, State, Trial},
};

/// So many kinds of failures are shown.
const KINDS: usize = 10;

/// A line for each kind of failure, the most frequent first; nothing if no trial has failed.
pub(super) fn summary<'a>(folder: &Path, trials: impl ExactSizeIterator<Item = &'a Trial>) -> Vec<String> {
    let all = trials.len();
    let mut kinds: BTreeMap<String, (usize, TrialId, &str)> = BTreeMap::new();
    for trial in trials {
        let State::Ended(End::Failed(reason)) = &trial.state else { continue };
        let line = headline(reason);
        kinds.entry(kind(line)).or_insert((0, trial.id, line)).0 += 1;
    }
    let failed: usize = kinds.values().map(|(count, ..)| count).sum();
    let mut kinds: Vec<_> = kinds.into_values().collect();
    let Some(&(_, example, _)) = kinds.iter().min_by_key(|(_, trial, _)| *trial) else { return Vec::new() };
    kinds.sort_by_key(|&(count, trial, _)| (std::cmp::Reverse(count), trial));
    let mut lines = vec![format!("{failed} of {} failed:", pluralize(all, "trial"))];
    lines.extend(kinds.iter().take(KINDS).map(|(count, trial, line)| {
        let place = if *count == 1 { format!("trial {trial}") } else { format!("such as trial {trial}") };
        format!("  {count:>5}  {line} ({place})")
    }));
    if kinds.len() > KINDS {
        let rest: usize = kinds[KINDS..].iter().map(|(count, ..)| count).sum();
        lines.push(format!("  {rest:>5}  for other reasons"));
    }
    let folder = folder.display();
    lines.push(format!("  to see more: pollux-tune show {folder} {example}"));
    lines.push(format!("  to run them again when the cause is gone: pollux-tune retry {folder}"));
    lines
}

/// The line of a reason that says most: the first, but of a traceback of Python the last.
fn headline(reason: &str) -> &str {
    let mut lines = reason.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    if first.starts_with("Traceback (most recent call last)") {
        lines.next_back().unwrap_or(first)
    } else {
        first
    }
}

/// What failures have in common: the text without its numbers, which name trials, epochs and seconds.
fn kind(line: &str) -> String {
    let mut kind = String::new();
    for c in line.chars() {
        let c = if c.is_ascii_digit() { '0' } else { c };
        if c != '0' || !kind.ends_with('0') {
            kind.push(c);
        }
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{space::Study, trials::Search};

    #[test]
    fn of_a_traceback_the_last_line_counts() {
        let traceback = "Traceback (most recent call last):\n  File \"train.py\", line 3, in train\nValueError: a mistake\n";
        assert_eq!(headline(traceback), "ValueError: a mistake");
        assert_eq!(headline("it ended with exit code 1\nmore"), "it ended with exit code 1");
        assert_eq!(headline("Traceback (most recent call last):"), "Traceback (most recent call last):");
        assert_eq!(headline(""), "");
    }

    #[test]
    fn failures_are_grouped_by_what_they_have_in_common() {
        let yaml = "{space: {x: {float: [0, 1]}}, objective: {minimize: loss}}";
        let mut search = Search::new(&Study::from_yaml("study.yaml", yaml).unwrap()).unwrap();
        let reasons = [
            Some("it ended with exit code 1, see s/logs/trial-0.log\nTraceback\n0"),
            None,
            Some("no finite value at epoch 3.20"),
            Some("it ended with exit code 1, see s/logs/trial-3.log\nTraceback\n3"),
            Some("it ended with exit code 1, see s/logs/trial-10.log"),
        ];
        for reason in reasons {
            let trial = search.ask().unwrap().id;
            let end = reason.map_or_else(|| End::Done(vec![1.0]), |reason| End::Failed(reason.to_owned()));
            search.tell(trial, end).unwrap();
        }
        let lines = summary(Path::new("s"), search.trials());
        assert_eq!(
            lines,
            [
                "4 of 5 trials failed:",
                "      3  it ended with exit code 1, see s/logs/trial-0.log (such as trial 0)",
                "      1  no finite value at epoch 3.20 (trial 2)",
                "  to see more: pollux-tune show s 0",
                "  to run them again when the cause is gone: pollux-tune retry s",
            ]
        );
        let fine = Search::new(&Study::from_yaml("study.yaml", yaml).unwrap()).unwrap();
        assert!(summary(Path::new("s"), fine.trials()).is_empty());
    }
}
