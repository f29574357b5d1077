//! `ropewalk doctor`: checks everything and says what to do.

use anyhow::bail;
use clap::Args;
use serde_json::json;

use super::Global;
use super::output::{self, Colour, Style, printable};
use crate::doctor::{self, Check, State};
use ropewalk_config::WrongUsage;

const EXAMPLES: &str = "Examples:
  ropewalk doctor                check this machine and its gateway
  ropewalk doctor --json         the same for programs
  ropewalk doctor --repair       undo what a gateway that was killed left behind

Without --config the gateway that runs is checked, and what any role has left is undone.
Nothing is changed without --repair. Exit code 1 when a check failed, 2 when the
file given with --config is missing; warnings are no failure.";

/// Check kernel, privileges, offloads, MTU, UDP and TCP to the hub, keys and left-overs
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Undo what a gateway that was killed left behind
    #[arg(long)]
    repair: bool,
}

impl DoctorArgs {
    /// Checks, or repairs.
    ///
    /// # Errors
    /// A check failed, or something cannot be undone.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        let given = global.config.as_deref();
        if self.repair {
            let mut done = Vec::new();
            let result = doctor::repair(given, &mut done);
            if self.json {
                let ok = result.is_ok();
                output::print(&format!("{}\n", json!({ "ok": ok, "undone": done })))?;
            } else if done.is_empty() && result.is_ok() {
                output::note("nothing was left behind");
            } else {
                done.iter().for_each(|line| output::note(line));
            }
            return result;
        }
        let checks = doctor::run(&doctor::default_config(given), given.is_some());
        let failed = checks
            .iter()
            .filter(|check| check.state == State::Fail)
            .count();
        if self.json {
            let text =
                serde_json::to_string_pretty(&json!({ "ok": failed == 0, "checks": checks }))?;
            output::print(&format!("{text}\n"))?;
        } else {
            output::print(&render(&checks, Style::of_stdout()))?;
        }
        // As with every other command.
        if let Some(path) = given.filter(|path| !path.exists()) {
            bail!(WrongUsage(format!("{} is missing", path.display())));
        }
        if failed > 0 {
            bail!("{failed} of {} checks failed", checks.len());
        }
        Ok(())
    }
}

fn render(checks: &[Check], style: Style) -> String {
    let mut out = String::new();
    for check in checks {
        let (word, colour) = match check.state {
            State::Ok => ("ok  ", Colour::Green),
            State::Warn => ("warn", Colour::Yellow),
            State::Fail => ("FAIL", Colour::Red),
        };
        // Other programs and hubs say a part of what is found.
        let found: Vec<String> = check.found.lines().map(printable).collect();
        let found = found.join("\n      ");
        out.push_str(&format!(
            "{}  {}: {found}\n",
            style.paint(colour, word),
            check.name
        ));
        if let Some(remedy) = &check.remedy {
            out.push_str(&format!("      {}\n", style.paint(Colour::Bold, remedy)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hub of the fleet or a server may say anything.
    #[test]
    fn what_others_say_moves_no_cursor() {
        let check = Check {
            name: "fleet".to_owned(),
            state: State::Ok,
            found: "one\u{1b}[2J\ntwo".to_owned(),
            remedy: None,
        };
        let text = render(&[check], Style::plain());
        assert_eq!(text, "ok    fleet: one\\u{1b}[2J\n      two\n");
    }
}
