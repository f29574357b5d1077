//! `ropewalk scheduler`: lists the schedulers and switches between them.

use anyhow::bail;
use clap::{Args, ValueEnum};
use ropewalk_api::{Changed, Direction, SchedulerRequest, Status};
use ropewalk_core::schedule::SchedulerKind;

use super::Global;
use super::output::{self, Colour, Style, Table};
use crate::client::Client;

const EXAMPLES: &str = "Examples:
  ropewalk scheduler                          list all; the current ones are marked
  ropewalk scheduler htmt                     both directions, every tunnel
  ropewalk scheduler redundant --direction send
  ropewalk scheduler ecf --site boat          on a hub: this site only

Switching loses no packet. It lasts until the next start; to keep it, set `scheduler` in [tunnel]
of the configuration.";

/// List the schedulers, or choose one
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SchedulerArgs {
    /// The scheduler to use
    #[arg(value_parser = str::parse::<SchedulerKind>)]
    kind: Option<SchedulerKind>,
    /// Direction, seen from this machine
    #[arg(long, value_enum, default_value_t = Way::Both, requires = "kind")]
    direction: Way,
    /// On a hub: only the tunnel to this site
    #[arg(long, value_name = "NAME", requires = "kind")]
    site: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Way {
    Send,
    Receive,
    Both,
}

impl SchedulerArgs {
    /// Asks the running gateway; the list works without one.
    ///
    /// # Errors
    /// No gateway runs, or it has no such site, or no tunnel.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        let client = Client::find(global.config.as_deref(), global.socket.as_deref());
        let Some(kind) = self.kind else {
            let status = client.and_then(|client| client.status());
            if status.as_ref().is_ok_and(|s| s.balance.is_some()) {
                bail!("`ropewalk balance` runs here: it has no tunnel, and so no scheduler");
            }
            if let Err(error) = &status {
                output::note(&format!("{error:#}; the list has no mark"));
            }
            output::print(&list(status.ok().as_ref(), Style::of_stdout()))?;
            return Ok(());
        };
        let request = SchedulerRequest {
            kind,
            direction: match self.direction {
                Way::Send => Direction::Send,
                Way::Receive => Direction::Receive,
                Way::Both => Direction::Both,
            },
            site: self.site,
        };
        let Changed { changed } = client?.post("/v1/scheduler", &request)?;
        let tunnels = if changed == 1 { "tunnel" } else { "tunnels" };
        output::note(&format!(
            "{kind} schedules {changed} {tunnels}, direction {}",
            request.direction.name()
        ));
        Ok(())
    }
}

fn list(status: Option<&Status>, style: Style) -> String {
    let mut table = Table::new(&["SCHEDULER", "USED", "WHAT IT DOES"]);
    for kind in SchedulerKind::ALL {
        let tunnels = status.map_or(&[][..], |status| &status.tunnels);
        let send = tunnels.iter().any(|tunnel| tunnel.scheduler_send == kind);
        let receive = tunnels
            .iter()
            .any(|tunnel| tunnel.scheduler_receive == kind);
        let used = match (send, receive) {
            (true, true) => "send, receive",
            (true, false) => "send",
            (false, true) => "receive",
            (false, false) => "",
        };
        let mark = (send || receive).then_some(Colour::Green);
        table.row(vec![
            (kind.name().to_owned(), mark),
            (used.to_owned(), mark),
            (kind.describe().to_owned(), None),
        ]);
    }
    table.render(style, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_api::TunnelStatus;

    #[test]
    fn list_marks_what_each_direction_uses() {
        let tunnel = TunnelStatus {
            scheduler_send: SchedulerKind::Htmt,
            ..TunnelStatus::default()
        };
        let status = Status {
            tunnels: vec![tunnel],
            ..Status::default()
        };
        let text = list(Some(&status), Style::plain());
        let line = |name: &str| {
            text.lines()
                .find(|line| line.starts_with(name))
                .unwrap()
                .to_owned()
        };
        assert!(line("htmt ").contains("  send  "), "{text}");
        assert!(line("auto ").contains("  receive  "), "{text}");
        assert!(!line("ecf ").contains("send"), "{text}");
    }
}
