//! `ropewalk completions`: completions for shells, and manual pages.

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use ropewalk_config::WrongUsage;

use super::Cli;

const EXAMPLES: &str = "Examples:
  ropewalk completions bash > /etc/bash_completion.d/ropewalk
  ropewalk completions zsh > ~/.zfunc/_ropewalk
  ropewalk completions fish > ~/.config/fish/completions/ropewalk.fish
  ropewalk completions man --directory ~/.local/share/man";

/// Print completions for a shell, or write manual pages
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Completions {
    /// The shell; `man` prints the manual page of the program instead
    #[arg(value_name = "SHELL")]
    shell: Target,
    /// With `man`: write the pages of all commands, each into the directory of its section in this one
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum Target {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
    Man,
}

impl Completions {
    /// Prints the completions, or writes the pages.
    ///
    /// # Errors
    /// The reader has gone, or a page cannot be written.
    pub fn run(self) -> anyhow::Result<()> {
        let mut command = Cli::command();
        if self.directory.is_some() && self.shell != Target::Man {
            let wrong = "--directory is for manual pages: redirect what is printed for a shell";
            anyhow::bail!(WrongUsage(wrong.to_owned()));
        }
        let mut out = Vec::new();
        let shell = match (self.shell, &self.directory) {
            (Target::Man, Some(directory)) => return super::pages::write(command, directory),
            (Target::Man, None) => None,
            (Target::Bash, _) => Some(Shell::Bash),
            (Target::Elvish, _) => Some(Shell::Elvish),
            (Target::Fish, _) => Some(Shell::Fish),
            (Target::Powershell, _) => Some(Shell::PowerShell),
            (Target::Zsh, _) => Some(Shell::Zsh),
        };
        match shell {
            Some(shell) => clap_complete::generate(shell, &mut command, "ropewalk", &mut out),
            None => out = ropewalk_manual::program(command)?,
        }
        super::output::print(&String::from_utf8_lossy(&out))?;
        Ok(())
    }
}
