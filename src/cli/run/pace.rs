//! How long a study still takes, by how it has proceeded.

use std::collections::VecDeque;

use crate::cli::inspect::duration;

/// Nothing is said before this part of the study was seen,
const PART_MIN: f64 = 0.02;
/// and before so many real seconds have passed.
const SECONDS_MIN: f64 = 3.0;
/// So many moments are kept; every other one goes when there are more.
const MOMENTS: usize = 256;
/// Estimates that differ by less are one.
const ALIKE: f64 = 1.3;

/// How far a study was when, since it is watched.
#[derive(Debug, Default)]
pub(in crate::cli) struct Pace {
    moments: VecDeque<(f64, f64)>,
}

impl Pace {
    /// What a study still takes, once that can be estimated, from the part of it that is done: by its pace since it is watched, and by
    /// that of the last third of this time. Where they differ, both are named.
    pub(in crate::cli) fn left(&mut self, now_s: f64, part: f64) -> Option<String> {
        self.moments.push_back((now_s, part));
        if self.moments.len() > MOMENTS {
            let mut place = 0;
            self.moments.retain(|_| {
                place += 1;
                place % 2 == 1
            });
        }
        let &(first_s, first) = self.moments.front()?;
        let (passed_s, done, rest) = (now_s - first_s, part - first, (1.0 - part).max(0.0));
        if done < PART_MIN || passed_s < SECONDS_MIN {
            return None;
        }
        let recent = self.moments.iter().rev().find(|(at_s, _)| now_s - at_s >= passed_s / 3.0);
        let &(since_s, then) = recent.unwrap_or(&(first_s, first));
        let overall_s = rest * passed_s / done;
        // Trials that ended early count as a whole: the part may have stood still since, but never shrinks for long.
        let recent_s = if part > then { rest * (now_s - since_s) / (part - then) } else { f64::INFINITY };
        let (least_s, most_s) = (overall_s.min(recent_s), overall_s.max(recent_s));
        Some(match (most_s.is_finite(), most_s <= ALIKE * least_s) {
            (false, _) => format!("{} or more left", rounded(least_s)),
            (true, true) => format!("about {} left", rounded(0.5 * (least_s + most_s))),
            (true, false) => format!("{} left", range(&rounded(least_s), &rounded(most_s))),
        })
    }
}

/// Seconds with no more digits than an estimate has.
fn rounded(seconds: f64) -> String {
    match seconds {
        s if s < 60.0 => format!("{:.0} s", s.max(1.0)),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => duration((s / 600.0).round() * 600.0),
    }
}

/// Both ends, with their unit once if it is the same: `1 to 2 min`.
fn range(least: &str, most: &str) -> String {
    match (least.split_once(' '), most.split_once(' ')) {
        (Some((number, unit)), Some((_, same))) if unit == same => format!("{number} to {most}"),
        _ => format!("{least} to {most}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_before_enough_was_seen() {
        // Half of it was done when the study was continued.
        assert_eq!(pace_at(&[(10.0, 0.5), (11.0, 0.6)]), "", "too soon");
        assert_eq!(pace_at(&[(10.0, 0.5), (40.0, 0.51)]), "", "too little");
        assert_eq!(pace_at(&[(10.0, 0.5), (70.0, 0.6)]), "about 4 min left");
    }

    fn pace_at(moments: &[(f64, f64)]) -> String {
        let mut pace = Pace::default();
        moments.iter().filter_map(|(at_s, part)| pace.left(*at_s, *part)).last().unwrap_or_default()
    }

    #[test]
    fn estimates_that_differ_are_both_named() {
        // A tenth in a minute, evenly: four minutes for the rest.
        let even: Vec<(f64, f64)> = (0..=60).map(|s| (f64::from(s), 0.5 + f64::from(s) / 600.0)).collect();
        assert_eq!(pace_at(&even), "about 4 min left");
        // The last third brought half as much as before.
        let slower: Vec<(f64, f64)> = (0..=90)
            .map(|s| {
                (f64::from(s), if s <= 60 { f64::from(s) / 600.0 } else { 0.1 + f64::from(s - 60) / 1200.0 })
            })
            .collect();
        assert_eq!(pace_at(&slower), "10 to 18 min left");
        // And nothing at all.
        let still: Vec<(f64, f64)> = (0..=90).map(|s| (f64::from(s), f64::from(s.min(30)) / 600.0)).collect();
        assert_eq!(pace_at(&still), "28 min or more left");
        assert_eq!(rounded(7300.0), "2 h 0 min");
        assert_eq!(range(&rounded(50.0), &rounded(80.0)), "50 s to 1 min");
        assert_eq!(range(&rounded(7300.0), &rounded(9000.0)), "2 h 0 min to 2 h 30 min");
    }
}
