//! `ropewalk top`: the running gateway in a terminal.

use std::io::IsTerminal;
use std::sync::Arc;

use anyhow::bail;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use ropewalk_config::WrongUsage;
use ropewalk_top::{Gateway, Look, Range};
use serde_json::Value;

use super::{Global, dashboard, output};
use crate::client::Client;

const EXAMPLES: &str = "Examples:
  ropewalk top                         the running site, hub or relay; `?` lists the keys
  ropewalk top --range hour            the graph begins with the last hour
  ropewalk top --once                  one frame as text, with all rows
  ropewalk top --once --size 80x24     the same as in a terminal of 80 columns and 24 lines
  ssh -t root@boat ropewalk top        the gateway of another machine
  ropewalk --config ./hub.toml top     where several gateways run

Keys of a site: u takes an uplink in or out, e announces its end, m marks it metered, s standby, c
chooses the scheduler. Keys of a hub: / finds sites, o orders them, x revokes one. For all: t and v
change the graph, d runs the doctor, w writes a report to a file, q ends. What interrupts traffic
is asked for first. `ropewalk status --watch` shows the same words line by line, and
`ropewalk status --json` has all figures for programs.
Without colours (NO_COLOR) letters tell uplinks apart.";

/// Show the running gateway in this terminal: a graph, each uplink or site in words, and keys to act
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Top {
    /// Print one frame as text, and end
    #[arg(long)]
    once: bool,
    /// How far the graph reaches back at first
    #[arg(long, value_name = "RANGE", default_value = "minute", value_parser = range_parser())]
    range: Range,
    /// Columns and lines of that frame [default: 100 columns, and lines for all rows]
    #[arg(long, value_name = "COLUMNSxLINES", requires = "once", value_parser = parse_size)]
    size: Option<(u16, u16)>,
}

/// Takes the names of ranges, and tells shells of them.
fn range_parser() -> impl TypedValueParser<Value = Range> {
    PossibleValuesParser::new(["minute", "hour", "day"]).try_map(|name| name.parse::<Range>())
}

/// Columns of a frame as text.
const WIDTH: u16 = 100;
/// Smallest frame that says something. Smaller: rows of uplinks have no room.
const COLUMNS_MIN: u16 = 40;
const LINES_MIN: u16 = 10;
/// Largest number of columns or lines that can be asked for. More: memory.
const SIDE_MAX: u16 = 1_000;

fn parse_size(text: &str) -> Result<(u16, u16), String> {
    let (columns, lines) = text.split_once('x').ok_or("write 80x24")?;
    let number = |what: &str, text: &str, least: u16| {
        let number = text.parse().ok();
        number
            .filter(|number| (least..=SIDE_MAX).contains(number))
            .ok_or_else(|| format!("{what}: {text:?} is not from {least} to {SIDE_MAX}"))
    };
    let columns = number("columns", columns, COLUMNS_MIN)?;
    Ok((columns, number("lines", lines, LINES_MIN)?))
}

impl Top {
    /// Shows until the person at the terminal has seen enough.
    ///
    /// # Errors
    /// There is no terminal, or no gateway runs.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        if !self.once {
            need_terminal()?;
        }
        let client = Client::find(global.config.as_deref(), global.socket.as_deref())?;
        // Whoever may not use the socket hears so with the exit code of all commands.
        let status = client.status()?;
        if status.balance.is_some() {
            bail!(
                "`ropewalk balance` runs here: it has no tunnel to show; see `ropewalk status --watch`"
            );
        }
        let socket = client.socket().to_owned();
        let command = dashboard::command(socket, global.config.clone())?;
        let gateway = Gateway {
            ask: Arc::new(move |path, body| {
                let asked = match body {
                    Some(body) => client.post::<Value>(path, body),
                    None => client.get::<Value>(path),
                };
                asked.map_err(|error| format!("{error:#}"))
            }),
            command,
        };
        if self.once {
            let look = Look {
                colours: false,
                unicode: unicode(),
            };
            let (width, height) = match self.size {
                Some((width, height)) => (width, Some(height)),
                None => (WIDTH, None),
            };
            let text = ropewalk_top::once(&gateway, look, self.range, width, height)?;
            return Ok(output::print(&text)?);
        }
        let look = Look {
            colours: output::colours_wanted(),
            unicode: unicode(),
        };
        ropewalk_top::run(gateway, look, self.range)
    }
}

/// Refuses to run where nobody could see or press anything.
fn need_terminal() -> anyhow::Result<()> {
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && !dumb {
        return Ok(());
    }
    let text = "this needs a terminal; use `ropewalk status --watch` for lines, `ropewalk status --json` \
                for programs, or `ropewalk top --once` for one frame as text";
    Err(WrongUsage(text.to_owned()).into())
}

/// Whether the locale has more than ASCII.
fn unicode() -> bool {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
    locale.is_some_and(|name| {
        let name = name.to_ascii_lowercase();
        name.contains("utf-8") || name.contains("utf8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_two_sides_within_bounds() {
        assert_eq!(parse_size("80x24"), Ok((80, 24)));
        assert_eq!(parse_size("40x10"), Ok((40, 10)));
        for text in ["80", "x", "39x10", "40x9", "1001x24", "-1x24", "80x24x2"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
