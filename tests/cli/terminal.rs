//! What `run` draws on a terminal of 80 columns, as a terminal shows it.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
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
use vt100::{Cell, Color, Parser, Screen};

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
    assert!(text.contains("emulated"), "{text}");
    assert!(rows(screen).iter().any(|row| row.starts_with("0 a100 ")), "a strip of slots: {text}");
    picture(screen);
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

/// The picture in the docs, on light and on dark.
fn picture(screen: &Screen) {
    if std::env::var_os("UPDATE_SCREENSHOTS").is_none() {
        return;
    }
    for (name, ground, text) in [("light", "#ffffff", "#1f2328"), ("dark", "#0d1117", "#e6edf3")] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/img/terminal-{name}.svg"));
        fs::write(path, drawn(screen, ground, text)).expect("it can be written");
    }
}

/// A screen as a drawing, one text for each run of equal cells.
fn drawn(screen: &Screen, ground: &str, text: &str) -> String {
    let (cell_width, line_height, margin) = (8.4, 18.0, 12.0);
    let used = rows(screen).iter().rposition(|row| !row.trim().is_empty()).map_or(0, |last| last + 1);
    let width = 2.0 * margin + cell_width * f64::from(COLUMNS);
    let height = 2.0 * margin + line_height * used as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"14\" fill=\"{text}\" xml:space=\"preserve\">\n\
         <title>pollux-tune run on a terminal of 80 columns</title>\n<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{ground}\"/>\n"
    );
    for row in 0..used as u16 {
        let style =
            |column: u16| screen.cell(row, column).map(|cell| (cell.fgcolor(), cell.bold(), cell.dim()));
        let mut column = 0;
        while column < COLUMNS {
            let (start, of) = (column, style(column));
            let mut run = String::new();
            while column < COLUMNS && style(column) == of {
                let contents = screen.cell(row, column).map_or("", Cell::contents);
                run.push_str(if contents.is_empty() { " " } else { contents });
                column += 1;
            }
            if run.trim().is_empty() {
                continue;
            }
            let (colour, bold, dim) = of.unwrap_or((Color::Default, false, false));
            let fill = if let Color::Idx(number) = colour {
                format!(" fill=\"{}\"", palette(number))
            } else {
                String::new()
            };
            let weight = if bold { " font-weight=\"bold\"" } else { "" };
            let opacity = if dim { " opacity=\"0.6\"" } else { "" };
            let (x, y) =
                (margin + cell_width * f64::from(start), margin + line_height * (f64::from(row) + 0.75));
            let length = cell_width * f64::from(column - start);
            let run = run.replace('&', "&amp;").replace('<', "&lt;");
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" textLength=\"{length:.1}\" lengthAdjust=\"spacingAndGlyphs\"{fill}{weight}{opacity}>{run}</text>"
            );
        }
    }
    svg + "</svg>\n"
}

/// A colour of the cube of 256.
fn palette(number: u8) -> String {
    const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let cube = usize::from(number.saturating_sub(16));
    let level = |of: usize| LEVELS[of % 6];
    format!("#{:02x}{:02x}{:02x}", level(cube / 36), level(cube / 6), level(cube))
}
