//! A study at one moment as a few lines of a terminal: how far it is, which trial has which slot, and what each trial does.

use super::progress::{MachineStrip, Progress, TrialLine};
use crate::cli::{
    inspect::duration,
    terminal::{Paint, cut},
};

/// How the lines look.
#[derive(Debug, Clone)]
pub(in crate::cli) struct Look {
    /// Columns of the terminal.
    pub(in crate::cli) width: usize,
    pub(in crate::cli) paint: Paint,
    /// Whether devices are emulated.
    pub(in crate::cli) emulated: bool,
    /// The most trials that get a line.
    pub(in crate::cli) trials: usize,
}

/// What trials are painted with, in turn: readable on black and on white.
const COLOURS: [u8; 12] = [33, 202, 34, 170, 37, 136, 99, 160, 70, 205, 68, 130];
/// A trial without colours has the last digit of its number in this base.
const SYMBOLS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
/// How wide the bar is where there is room, and the least that still says something.
const BAR: usize = 20;
const BAR_MIN: usize = 5;
/// The most lines of machines.
const MACHINE_LINES: usize = 4;

/// The lines. `elapsed_s` are real seconds, where they are known, `left` says how many there still are.
pub(in crate::cli) fn lines(
    progress: &Progress,
    elapsed_s: Option<f64>,
    left: Option<&str>,
    look: &Look,
) -> Vec<String> {
    let mut lines = vec![headline(progress, elapsed_s, left, look)];
    if let Some(reason) = &progress.notice {
        lines.push(cut(reason, Some(look.width)));
    }
    if let Some(best) = &progress.best {
        let text = cut(best, Some(look.width));
        lines.push(look.paint.bold(&text));
    }
    lines.extend(machines(&progress.machines, look));
    let shown = &progress.running[..progress.running.len().min(look.trials)];
    let widths = Widths::of(shown);
    lines.extend(shown.iter().map(|trial| trial_line(trial, &widths, look)));
    let more = progress.running.len() - shown.len();
    if more > 0 {
        lines.push(look.paint.dim(&format!("and {more} more")));
    }
    lines
}

/// Where there is too little room, the bar gets shorter, then the slots go, which the cells of the machines show, too, then the bar.
fn headline(progress: &Progress, elapsed_s: Option<f64>, left: Option<&str>, look: &Look) -> String {
    let Progress { ended, wanted, part, busy, slots, seconds, .. } = progress;
    let before = format!("{ended} of {wanted} trials ");
    let emulated = look.emulated.then(|| format!("emulated: {}", duration(*seconds)));
    let times = [elapsed_s.map(duration), left.map(str::to_owned), emulated];
    let short = times.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let comma = if short.is_empty() { "" } else { ", " };
    let full = format!("{short}{comma}{busy}/{slots} slots");
    let room = |after: &str| look.width.saturating_sub(before.chars().count() + after.chars().count() + 1);
    let after = if room(&full) < BAR_MIN { short } else { full };
    let cells = Some(room(&after).min(BAR)).filter(|cells| *cells >= BAR_MIN).unwrap_or(0);
    let done = ((part.clamp(0.0, 1.0) * cells as f64) as usize).min(cells);
    let bar = (look.paint.colour(34, &"━".repeat(done)), look.paint.dim(&"─".repeat(cells - done)));
    let gap = if cells > 0 { " " } else { "" };
    let rest = look.width.saturating_sub(before.chars().count() + cells + gap.len());
    format!("{before}{}{}{gap}{}", bar.0, bar.1, cut(&after, Some(rest.max(1))))
}

/// Cells of all machines, as many machines in a line as fit.
fn machines(strips: &[MachineStrip], look: &Look) -> Vec<String> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    for (place, strip) in strips.iter().enumerate() {
        let label = cut(&strip.label, Some(look.width / 3));
        let room = look.width.saturating_sub(label.chars().count() + 4).max(1);
        let cells: String = strip.cells.iter().take(room).map(|cell| self::cell(*cell, look.paint)).collect();
        let width = label.chars().count() + 1 + strip.cells.len().min(room);
        let text = format!("{} {cells}", look.paint.dim(&label));
        let fits = |(used, _): &&mut (usize, String)| *used + 3 + width <= look.width;
        let count = lines.len();
        if let Some((used, line)) = lines.last_mut().filter(fits) {
            *used += 3 + width;
            line.push_str("   ");
            line.push_str(&text);
        } else if count == MACHINE_LINES {
            let rest = strips.len() - place;
            let more = look.paint.dim(&format!("and {rest} more machines"));
            return lines.into_iter().map(|(_, line)| line).chain([more]).collect();
        } else {
            lines.push((width, text));
        }
    }
    lines.into_iter().map(|(_, line)| line).collect()
}

/// A slot: the trial that has it, `·` if it is free, `x` if it has no worker.
fn cell(of: Cell, paint: Paint) -> String {
    match of {
        Cell::Free => paint.dim("·"),
        Cell::Down => paint.colour(160, "x"),
        Cell::Of(trial) => symbol(trial, paint),
    }
}

/// Who has a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cell {
    Free,
    Down,
    Of(u32),
}

/// What a trial is shown by.
fn symbol(trial: u32, paint: Paint) -> String {
    let symbol = char::from(SYMBOLS[trial as usize % SYMBOLS.len()]).to_string();
    paint.colour(COLOURS[trial as usize % COLOURS.len()], &symbol)
}

/// How wide the columns of trials are.
struct Widths {
    trial: usize,
    metric: usize,
    place: usize,
}

impl Widths {
    fn of(trials: &[TrialLine]) -> Self {
        let widest = |of: fn(&TrialLine) -> usize| trials.iter().map(of).max().unwrap_or(0);
        Self {
            trial: widest(|trial| trial.trial.to_string().len()),
            metric: widest(|trial| trial.metric.chars().count()),
            place: widest(|trial| trial.place.chars().count()),
        }
    }
}

fn trial_line(line: &TrialLine, widths: &Widths, look: &Look) -> String {
    let Widths { trial, metric, place } = widths;
    let text = format!(
        "{:>trial$} {:>3.0} %  {:metric$}  {:place$}  {}",
        line.trial.to_string(),
        100.0 * line.part,
        line.metric,
        line.place,
        line.params
    );
    format!(
        "{} {}",
        symbol(line.trial.0, look.paint),
        cut(text.trim_end(), Some(look.width.saturating_sub(2)))
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TrialId;

    fn progress() -> Progress {
        let strip =
            |label: &str, cells: &[Cell]| MachineStrip { label: label.to_owned(), cells: cells.to_vec() };
        let trial = |number: u32, part: f64, place: &str| TrialLine {
            trial: TrialId(number),
            part,
            metric: "accuracy 0.91".to_owned(),
            place: place.to_owned(),
            params: "lr=0.0134 momentum=0.9 weight_decay=0.0001 optimizer=sgd".to_owned(),
        };
        Progress {
            ended: 7,
            wanted: 40,
            part: 0.25,
            busy: 3,
            slots: 5,
            seconds: 4000.0,
            notice: None,
            best: Some("best accuracy 0.93 (trial 3): lr=0.01 momentum=0.95".to_owned()),
            machines: vec![
                strip("gpu1 t4", &[Cell::Of(7), Cell::Of(7), Cell::Free]),
                strip("gpu2 a100", &[Cell::Of(12), Cell::Down]),
            ],
            running: vec![trial(7, 0.5, "2 slots, batch 256"), trial(12, 0.05, "1 slot, batch 64")],
        }
    }

    fn look(width: usize) -> Look {
        Look { width, paint: Paint(false), emulated: false, trials: 8 }
    }

    #[test]
    fn a_study_is_shown_in_eighty_columns() {
        let shown = lines(&progress(), Some(130.0), Some("4 to 6 min left"), &look(80));
        assert_eq!(
            shown,
            [
                "7 of 40 trials ━━━━━─────────────── 2 min 10 s, 4 to 6 min left, 3/5 slots",
                "best accuracy 0.93 (trial 3): lr=0.01 momentum=0.95",
                "gpu1 t4 77·   gpu2 a100 cx",
                "7  7  50 %  accuracy 0.91  2 slots, batch 256  lr=0.0134 momentum=0.9 weight_de…",
                "c 12   5 %  accuracy 0.91  1 slot, batch 64    lr=0.0134 momentum=0.9 weight_de…",
            ]
        );
    }

    #[test]
    fn the_bar_gives_way_before_a_time_is_cut() {
        let look = Look { emulated: true, ..look(80) };
        let head = |elapsed_s, left: &str, seconds, ended| {
            let progress = Progress { ended, seconds, ..progress() };
            lines(&progress, Some(elapsed_s), Some(left), &look).swap_remove(0)
        };
        assert_eq!(
            head(9.9, "1 to 2 min left", 500.0, 7),
            "7 of 40 trials ━━─────── 9.9 s, 1 to 2 min left, emulated: 8 min 20 s, 3/5 slots"
        );
        assert_eq!(
            head(750.0, "1 h 20 min to 2 h 40 min left", 40_000.0, 17),
            "17 of 40 trials 12 min 30 s, 1 h 20 min to 2 h 40 min left, emulated: 11 h 6 min"
        );
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for width in [20, 33, 60, 80, 200] {
            for emulated in [false, true] {
                let look = Look { emulated, ..look(width) };
                for line in lines(&progress(), Some(130.0), Some("4 to 6 min left"), &look) {
                    assert!(line.chars().count() <= width, "{width}: {line}");
                }
            }
        }
    }

    #[test]
    fn emulated_time_is_named_and_many_trials_are_counted() {
        let look = Look { emulated: true, trials: 1, ..look(100) };
        let shown = lines(&progress(), Some(130.0), None, &look);
        assert!(shown[0].ends_with(" 2 min 10 s, emulated: 1 h 6 min, 3/5 slots"), "{}", shown[0]);
        assert_eq!(shown.last().map(String::as_str), Some("and 1 more"));
    }

    #[test]
    fn machines_share_lines_and_are_not_too_many() {
        let mut progress = progress();
        progress.machines = (0..40)
            .map(|node| MachineStrip { label: format!("node{node:02}"), cells: vec![Cell::Free; 8] })
            .collect();
        let shown = machines(&progress.machines, &look(80));
        assert_eq!(shown[0], "node00 ········   node01 ········   node02 ········   node03 ········");
        assert_eq!((shown.len(), shown[4].as_str()), (5, "and 24 more machines"));
    }
}
