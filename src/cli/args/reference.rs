//! `completions` and `man`: what clap can tell of the whole command line. `docs/commands.md` is made of it, too.

use std::{
    fs,
    io::{Cursor, Write},
    path::PathBuf,
};

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};
use clap_mangen::generate_to;

use super::Cli;
use crate::cli::Error;

const PROGRAM: &str = "pollux-tune";

const PLACES: &str = "\
Examples:
  bash, where the package bash-completion is installed:
    pollux-tune completions bash > ~/.local/share/bash-completion/completions/pollux-tune
  zsh, with that folder in fpath:
    pollux-tune completions zsh > ~/.local/share/zsh/site-functions/_pollux-tune
  fish:
    pollux-tune completions fish > ~/.config/fish/completions/pollux-tune.fish";

/// Print what completes commands and options in a shell
#[derive(Debug, Args)]
#[command(after_long_help = PLACES, arg_required_else_help = true)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl CompletionsArgs {
    /// Prints the script of the shell.
    pub(crate) fn print(&self, out: &mut impl Write) -> Result<(), Error> {
        // The generator panics where nothing more can be written, as into a pipe that is closed.
        let mut script = Cursor::new(Vec::new());
        generate(self.shell, &mut Cli::command(), PROGRAM, &mut script);
        out.write_all(&script.into_inner()).map_err(Error::Stdout)
    }
}

/// Write the man pages of all commands into a folder
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct ManArgs {
    /// The folder, such as ~/.local/share/man/man1
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

impl ManArgs {
    /// Writes them; older ones are replaced.
    pub(crate) fn write(&self, out: &mut impl Write) -> Result<(), Error> {
        let failed = || Error::writing(&self.folder);
        fs::create_dir_all(&self.folder).map_err(failed())?;
        generate_to(Cli::command(), &self.folder).map_err(failed())?;
        writeln!(out, "wrote the pages of {PROGRAM} into {}", self.folder.display()).map_err(Error::Stdout)
    }
}

#[cfg(test)]
mod tests {
    use std::{env, path::Path};

    use clap::Command;

    use super::*;

    const PAGE: &str = "docs/commands.md";

    const HEAD: &str = "\
# Commands

What `pollux-tune` and its commands print with `--help`. This page is generated: `UPDATE_COMMANDS=1 cargo test --locked --lib the_page_of_commands`.
";

    /// A section for each command, those of commands of commands included.
    fn sections(command: &mut Command, name: &str) -> String {
        let help = command.render_long_help().to_string();
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        let own = format!("\n## {name}\n\n```text\n{}\n```\n", help.join("\n").trim_end());
        let inner = command.get_subcommands_mut().filter(|inner| inner.get_name() != "help");
        let sections = inner.map(|inner| {
            let name = format!("{name} {}", inner.get_name());
            sections(inner, &name)
        });
        own + &sections.collect::<String>()
    }

    #[test]
    fn the_page_of_commands_is_what_the_program_says() {
        let mut command = Cli::command();
        command.build();
        let page = HEAD.to_owned() + &sections(&mut command, PROGRAM);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
        if env::var_os("UPDATE_COMMANDS").is_some() {
            fs::write(&path, &page).expect("it can be written");
        }
        let written = fs::read_to_string(&path).unwrap_or_default();
        let differs = written.lines().zip(page.lines()).find(|(written, page)| written != page);
        assert!(
            written == page,
            "{PAGE} is not what the program says, at {differs:?}; update it: UPDATE_COMMANDS=1 cargo test --locked --lib the_page_of_commands"
        );
    }

    #[test]
    fn completions_name_all_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            CompletionsArgs { shell }.print(&mut script).expect("memory can be written");
            let script = String::from_utf8(script).expect("scripts are text");
            for command in Cli::command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
        }
    }

    #[test]
    fn each_command_has_a_man_page() {
        let folder = env::temp_dir().join(format!("pollux-man-{}", std::process::id()));
        ManArgs { folder: folder.join("man1") }.write(&mut Vec::new()).expect("it can be written");
        for name in ["pollux-tune", "pollux-tune-run", "pollux-tune-slurm-cancel"] {
            let page = fs::read_to_string(folder.join(format!("man1/{name}.1"))).expect("it is written");
            assert!(page.contains("pollux") && page.contains(".SH"), "{page}");
        }
        fs::remove_dir_all(&folder).expect("it is ours");
    }
}
