//! What `run` draws on a terminal of 80 columns, as a terminal shows it.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Read,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use vt100::{Color, Parser, Screen};

use super::nodes::{PROGRAM, folder};

const COLUMNS: u16 = 80;
const ROWS: u16 = 24;
/// Parameters whose names and values take more than a line.
const YAML: &str = "
space:
  learning_rate: {log: [1e-5, 1e-1]}
  weight_decay: {log: [1e-6, 1e-2]}
  momentum: {float: [0.5, 0.99]}
  label_smoothing: {float: [0, 0.2]}
  width: {int: [16, 128]}
objective: {maximize: accuracy}
trial: {trainable: cifar10, epochs: 20, initial_batch: 128, max_batch: 4Ki}
search: {trials: 40}
";

/// A program on a terminal of its own.
struct Terminal {
    master: File,
    screen: Parser,
    program: Child,
}

impl Terminal {
    fn start(command: &mut Command) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&master).expect("it is ours");
        unlockpt(&master).expect("it can be opened");
        let size = Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).expect("it has a size");
        let side = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("its other side");
        let copy = |of: &OwnedFd| Stdio::from(of.try_clone().expect("a copy"));
        let program = command.stdin(Stdio::null()).stdout(copy(&side)).stderr(copy(&side)).spawn();
        // The program alone has it: its end is the end of what can be read.
        drop(side);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let program = program.expect("it can be started");
        Self { master: File::from(master), screen: Parser::new(ROWS, COLUMNS, 500), program }
    }

    /// Takes in what is drawn next; no more at the end of the program.
    fn draw(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let count = self.master.read(&mut bytes).unwrap_or(0);
        self.screen.process(&bytes[..count]);
        count > 0
    }

    /// Draws until the screen is like this, and looks at each screen on the way.
    fn until(&mut self, what: &str, is_so: impl Fn(&Screen) -> bool) {
        while !is_so(self.screen.screen()) {
            assert!(self.draw(), "{what} never came:\n{}", self.screen.screen().contents());
            check(self.screen.screen());
        }
    }

    fn interrupt(&self) {
        let pid = Pid::from_child(&self.program);
        kill_process(pid, Signal::INT).expect("it runs");
    }

    /// Draws to the end, and gives the exit code.
    fn end(mut self) -> (Option<i32>, String) {
        while self.draw() {
            check(self.screen.screen());
        }
        let code = self.program.wait().expect("it ends").code();
        (code, self.screen.screen().contents())
    }
}

/// No line goes on in the next one, but a command that can be copied.
fn check(screen: &Screen) {
    for (row, text) in (0..).zip(rows(screen)) {
        let is_fine = !screen.row_wrapped(row) || text.starts_with("stopped; to resume: ");
        assert!(is_fine, "line {row} is broken:\n{}", screen.contents());
    }
}

/// The program by its name, as users type it.
fn program(root: &Path) -> Command {
    let mut command = Command::new("pollux-tune");
    let folder = Path::new(PROGRAM).parent().expect("it is in a folder");
    command.current_dir(root).env("PATH", folder).env("TERM", "xterm-256color").env_remove("NO_COLOR");
    command
}

/// A run on two emulated machines.
fn run(root: &Path, file: &Path) -> Command {
    let mut command = program(root);
    command.args(["run", "--emulate", "2x8xa100", "--time-scale", "0.02", "--folder", "study"]).arg(file);
    command
}

fn study(name: &str) -> (PathBuf, PathBuf) {
    let (root, file) = folder(&format!("terminal-{name}"));
    fs::write(&file, YAML).expect("it can be written");
    (root, file)
}

fn rows(screen: &Screen) -> Vec<String> {
    screen.rows(0, COLUMNS).collect()
}

/// Trials run, some have ended, and it is known how long it takes.
fn is_busy(screen: &Screen) -> bool {
    let rows = rows(screen);
    let has = |what: &dyn Fn(&str) -> bool| rows.iter().any(|row| what(row));
    has(&|row| row.contains(" of 40 trials ") && row.contains(" left"))
        && has(&|row| row.starts_with("best accuracy"))
        && rows.iter().filter(|row| row.contains(" %  accuracy ")).count() >= 3
}

fn colours(screen: &Screen) -> BTreeSet<String> {
    let cells = (0..ROWS).flat_map(|row| (0..COLUMNS).filter_map(move |column| screen.cell(row, column)));
    cells.map(|cell| format!("{:?} {} {}", cell.fgcolor(), cell.bold(), cell.dim())).collect()
}

#[test]
fn a_run_fits_into_eighty_columns_from_its_first_line_to_its_last() {
    let (root, file) = study("colours");
    let mut terminal = Terminal::start(&mut run(&root, &file));
    terminal.until("a busy study", is_busy);
    let screen = terminal.screen.screen();
    assert!(colours(screen).len() > 4, "each trial has its colour: {:?}", colours(screen));
    let text = screen.contents();
    let head = rows(screen).into_iter().find(|row| row.contains(" of 40 trials ")).expect("it is busy");
    assert!(head.contains(" left, emulated: ") && !head.contains('…'), "the head line is cut: {head}");
    assert!(rows(screen).iter().any(|row| row.starts_with("0 a100 ")), "a strip of slots: {text}");
    // A terminal shows the keys where the cursor is: after the last line.
    terminal.screen.process(b"^C");
    terminal.interrupt();
    let (code, last) = terminal.end();
    assert_eq!(code, Some(130), "{last}");
    assert!(last.contains("stopped; to resume: "), "{last}");
    let headlines = last.lines().filter(|line| line.contains(" of 40 trials ")).count();
    assert_eq!(headlines, 0, "a line that moves has stayed:\n{last}");

    // All commands that print tables and long lines of this study.
    for (command, arguments) in [
        ("status", &[][..]),
        ("trials", &[]),
        ("best", &[]),
        ("show", &["0"]),
        ("explain", &["0"]),
        ("compare", &["--trials", "0,1,2"]),
        ("top", &["--once"]),
    ] {
        let mut shown = program(&root);
        shown.arg(command).arg("study").args(arguments);
        let (code, last) = Terminal::start(&mut shown).end();
        assert_eq!(code, Some(0), "{command}: {last}");
    }
}

#[test]
fn there_are_no_colours_for_those_who_want_none() {
    let (root, file) = study("plain");
    let mut terminal = Terminal::start(run(&root, &file).env("NO_COLOR", "1"));
    terminal.until("a busy study", is_busy);
    let screen = terminal.screen.screen();
    assert_eq!(colours(screen), BTreeSet::from([format!("{:?} false false", Color::Default)]));
    terminal.interrupt();
    assert_eq!(terminal.end().0, Some(130));
}
