//! `ropewalk completions`: completions for shells.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;

const EXAMPLES: &str = "Examples:
  ropewalk completions bash > /etc/bash_completion.d/ropewalk
  ropewalk completions zsh > ~/.zfunc/_ropewalk
  ropewalk completions fish > ~/.config/fish/completions/ropewalk.fish";

/// Print completions for a shell
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Completions {
    /// The shell; `man` prints the manual page instead
    #[arg(value_name = "SHELL")]
    shell: Target,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Target {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
    Man,
}

impl Completions {
    /// Prints the completions.
    ///
    /// # Errors
    /// The reader has gone.
    pub fn run(self) -> anyhow::Result<()> {
        let mut command = Cli::command();
        let mut out = Vec::new();
        let shell = match self.shell {
            Target::Bash => Some(Shell::Bash),
            Target::Elvish => Some(Shell::Elvish),
            Target::Fish => Some(Shell::Fish),
            Target::Powershell => Some(Shell::PowerShell),
            Target::Zsh => Some(Shell::Zsh),
            Target::Man => None,
        };
        match shell {
            Some(shell) => clap_complete::generate(shell, &mut command, "ropewalk", &mut out),
            None => manual(command, &mut out)?,
        }
        super::output::print(&String::from_utf8_lossy(&out))?;
        Ok(())
    }
}

/// One page for the program and all its commands.
fn manual(mut command: clap::Command, out: &mut Vec<u8>) -> std::io::Result<()> {
    command.build();
    clap_mangen::Man::new(command.clone()).render(out)?;
    for sub in command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help")
    {
        let page = clap_mangen::Man::new(sub.clone());
        out.extend_from_slice(
            format!(".SH COMMAND {}\n", sub.get_name().to_uppercase()).as_bytes(),
        );
        page.render_synopsis_section(out)?;
        page.render_description_section(out)?;
        page.render_options_section(out)?;
        page.render_extra_section(out)?;
    }
    Ok(())
}
