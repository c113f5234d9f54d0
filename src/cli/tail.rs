//! `pollux-tune tail` and `top`: a study that somebody runs, from another terminal.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal, Write},
    path::Path,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use super::{
    inspect::{self, event},
    output::Format,
    run::{Best, Lines, Look, MovingLines, Pace, Progress, at, view_lines},
    terminal::{Paint, has_colours, stdout_width},
};
use crate::{
    cli,
    ids::TrialId,
    store::Reader,
    trials::engine::{Engine, Fact, JournalEntry, TrialKind},
};

/// How often the journal is looked at.
const EVERY: Duration = Duration::from_millis(200);
/// Where a terminal does not say how wide it is.
const USUAL_WIDTH: usize = 80;
/// Trials that get a line of their own.
const TRIAL_LINES: usize = 20;

/// Follows the facts of a study.
struct Follower {
    reader: Reader,
    engine: Engine,
    next: u64,
    emulated: bool,
}

/// What is printed of facts.
struct Printed {
    lines: Lines,
    emulated: bool,
    /// Only this trial.
    only: Option<TrialId>,
}

impl Printed {
    /// What `run` prints of a fact, or of one about a trial.
    fn of(&mut self, engine: &Engine, entry: &JournalEntry) -> Option<String> {
        let text = match (self.only, &entry.fact) {
            (None, _) => self.lines.of(entry, engine, false),
            (Some(only), Fact::Measured { trial, .. }) if *trial == only => {
                self.lines.of(entry, engine, false)
            }
            (Some(only), _) => event(entry, only),
        };
        Some(at(entry, engine, self.emulated, &text?))
    }
}

impl Follower {
    fn open(folder: &Path) -> Result<Self, cli::Error> {
        let reader = Reader::open(folder)?;
        let study = reader.study()?;
        let engine = Engine::new(&study, TrialKind::of(&study))?;
        let emulated = reader.folder().emulated().is_some();
        Ok(Self { reader, engine, next: 0, emulated })
    }

    /// Takes in what is new, one fact after the other.
    fn read(&mut self, mut each: impl FnMut(&Engine, &JournalEntry)) -> Result<u64, cli::Error> {
        let (engine, before) = (&mut self.engine, self.next);
        let mut next = before;
        self.reader.replay_from(before, |entry| -> Result<(), cli::Error> {
            engine.apply(&entry)?;
            next += 1;
            each(engine, &entry);
            Ok(())
        })?;
        self.next = next;
        Ok(next - before)
    }
}

/// New whole lines of a log, which may not be there yet.
struct Log {
    reader: Option<BufReader<File>>,
    part: String,
}

impl Log {
    const fn new() -> Self {
        Self { reader: None, part: String::new() }
    }

    fn read(&mut self, path: &Path) -> Vec<String> {
        if self.reader.is_none() {
            self.reader = File::open(path).ok().map(BufReader::new);
        }
        let mut lines = Vec::new();
        let Some(reader) = &mut self.reader else { return lines };
        let mut bytes = Vec::new();
        // What is no text is shown as well as it can be.
        while let Ok(count @ 1..) = reader.read_until(b'\n', &mut bytes) {
            self.part.push_str(&String::from_utf8_lossy(&bytes[..count]));
            bytes.clear();
            if self.part.ends_with('\n') {
                lines.push(std::mem::take(&mut self.part).trim_end().to_owned());
            }
        }
        lines
    }
}

/// What is followed, and how.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) trial: Option<u32>,
    /// So many lines of before.
    pub(super) lines: usize,
    pub(super) follow: bool,
}

/// Prints what happens in a study until nobody runs it.
pub(super) fn tail(folder: &Path, settings: &Settings, out: &mut impl Write) -> Result<(), cli::Error> {
    let mut follower = Follower::open(folder)?;
    let only = settings.trial.map(TrialId);
    if let (Some(trial), None) =
        (settings.trial, only.map(|id| follower.reader.trial(id)).transpose()?.flatten())
    {
        let (folder, count) = (folder.display().to_string(), follower.reader.trials()?.len());
        return Err(inspect::Error::NoTrial { trial, folder, count }.into());
    }
    let mut printed = Printed { lines: Lines::default(), emulated: follower.emulated, only };
    let path = only.map(|trial| follower.reader.folder().log(trial));
    let mut log = Log::new();
    let mut before: VecDeque<String> = VecDeque::new();
    let keep = |before: &mut VecDeque<String>, line| {
        before.push_back(line);
        if before.len() > settings.lines {
            before.pop_front();
        }
    };
    follower.read(|engine, entry| {
        printed.of(engine, entry).into_iter().for_each(|line| keep(&mut before, line));
    })?;
    if let Some(path) = &path {
        log.read(path).into_iter().for_each(|line| keep(&mut before, line));
    }
    let mut news: Vec<String> = before.into();
    loop {
        for line in news.drain(..) {
            writeln!(out, "{line}").map_err(cli::Error::Stdout)?;
        }
        out.flush().map_err(cli::Error::Stdout)?;
        if !settings.follow {
            return Ok(());
        }
        thread::sleep(EVERY);
        // Asked first: what is written until it ends is read after that.
        let was_run = follower.reader.is_run();
        let count = follower.read(|engine, entry| {
            news.extend(printed.of(engine, entry));
        })?;
        news.extend(path.iter().flat_map(|path| log.read(path)));
        if !was_run && count == 0 && news.is_empty() {
            return writeln!(out, "nobody runs the study in {}", folder.display())
                .map_err(cli::Error::Stdout);
        }
    }
}

/// Shows a study that somebody runs as `run` does, until nobody runs it.
pub(super) fn top(folder: &Path, once: bool, out: &mut impl Write) -> Result<(), cli::Error> {
    let mut follower = Follower::open(folder)?;
    let (mut best, mut pace, began) = (Best::default(), Pace::default(), Instant::now());
    follower.read(|_, _| {})?;
    best.update(&follower.engine, &[]);
    let is_moving = !once && io::stderr().is_terminal();
    let look = |width: Option<usize>, paint| Look {
        width: width.unwrap_or(USUAL_WIDTH),
        paint,
        emulated: follower.emulated,
        trials: TRIAL_LINES,
    };
    if !is_moving || !follower.reader.is_run() {
        let progress = Progress::of(&follower.engine, &best);
        for line in view_lines(&progress, elapsed_s(&follower), None, &look(stdout_width(), Paint(false))) {
            writeln!(out, "{line}").map_err(cli::Error::Stdout)?;
        }
        return inspect::status(folder, Format::Text, out);
    }
    let mut lines = MovingLines::default();
    loop {
        let was_run = follower.reader.is_run();
        let mut entries = Vec::new();
        let count = follower.read(|_, entry| entries.push(entry.clone()))?;
        best.update(&follower.engine, &entries);
        let progress = Progress::of(&follower.engine, &best);
        let left = pace.left(began.elapsed().as_secs_f64(), progress.part).filter(|_| progress.proceeds());
        let (width, trials) = MovingLines::room(TRIAL_LINES);
        let look = Look { width, paint: Paint(has_colours()), emulated: follower.emulated, trials };
        lines.show(view_lines(&progress, elapsed_s(&follower), left.as_deref(), &look));
        if !was_run && count == 0 {
            lines.clear();
            return inspect::status(folder, Format::Text, out);
        }
        thread::sleep(EVERY);
    }
}

/// For how long the study has run, in real seconds; none where that is not known.
fn elapsed_s(follower: &Follower) -> Option<f64> {
    let state = follower.engine.state();
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let until_s = if follower.reader.is_run() { now_s.max(state.at_s) } else { state.at_s };
    (!follower.emulated).then_some(until_s - state.started_s)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_log_is_read_line_by_line_as_it_grows() {
        let path = std::env::temp_dir().join(format!("pollux-tune-tail-{}.log", std::process::id()));
        let _ = fs::remove_file(&path);
        let mut log = Log::new();
        assert!(log.read(&path).is_empty(), "it is not there yet");
        fs::write(&path, "one\ntwo").unwrap();
        assert_eq!(log.read(&path), ["one"]);
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b" and more\n\xff\n").unwrap();
        assert_eq!(log.read(&path), ["two and more", "\u{fffd}"]);
        assert!(log.read(&path).is_empty());
        fs::remove_file(&path).unwrap();
    }
}
