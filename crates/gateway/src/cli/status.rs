//! `ropewalk status`: what the gateway and each path do.

use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::Global;
use super::output::{self, Colour, Style, Table};
use crate::client::Client;
use crate::exit::{self, NotRunning};
use ropewalk_api::words::{self, About, Weight, Words};
use ropewalk_api::{KillSwitchStatus, PathStatus, Status, TunnelStatus, WorkerStatus};
use ropewalk_wire::Versions;

const EXAMPLES: &str = "Examples:
  ropewalk status                a table of tunnels and paths
  ropewalk status --watch        the same, every second
  ropewalk status --json | jq '.tunnels[].paths[] | {uplink, state, rtt_ms}'

Of `ropewalk balance` it shows uplinks with their shares of new connections, and why; of a site
with classes that go via = \"direct\" or \"auto\" it shows them too, and which way each class goes now.
Path states: up, leaving (announced to end), suspect (silent for too long, being probed),
connecting, down, disabled.
Exit code 3 when no gateway runs, so scripts can tell.";

/// Show tunnels and paths
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct StatusArgs {
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Refresh until stopped
    #[arg(long, short)]
    watch: bool,
    /// Seconds between refreshes
    #[arg(long, value_name = "SECONDS", default_value_t = 1, requires = "watch")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600))]
    interval: u64,
}

impl StatusArgs {
    /// Asks the running gateway.
    ///
    /// # Errors
    /// No gateway runs.
    pub fn run(self, global: &Global) -> anyhow::Result<()> {
        let client = Client::find(global.config.as_deref(), global.socket.as_deref())
            .map_err(|error| with_kill_switch(error, global))?;
        if !self.watch {
            let text = self.show(&client);
            let text = text.map_err(|error| with_kill_switch(error, global))?;
            return Ok(output::print(&text)?);
        }
        loop {
            let text = match self.show(&client) {
                Ok(text) => text,
                // A gateway that restarts is what one wants to watch.
                Err(error) if is_not_running(&error) => format!("{error:#}\n"),
                Err(error) => return Err(error),
            };
            let terminal = std::io::IsTerminal::is_terminal(&std::io::stdout());
            let clear = if terminal && !self.json {
                "\x1b[H\x1b[2J"
            } else {
                ""
            };
            output::print(&format!("{clear}{text}"))?;
            std::thread::sleep(Duration::from_secs(self.interval));
        }
    }

    fn show(&self, client: &Client) -> anyhow::Result<String> {
        if self.json {
            let value: Value = client.get("/v1/status")?;
            let text = if self.watch {
                serde_json::to_string(&value)?
            } else {
                serde_json::to_string_pretty(&value)?
            };
            return Ok(format!("{text}\n"));
        }
        Ok(render(&client.status()?, Style::of_stdout()))
    }
}

/// Where no gateway runs, its kill switch may still be on.
fn with_kill_switch(error: anyhow::Error, global: &Global) -> anyhow::Error {
    if !is_not_running(&error) {
        return error;
    }
    match super::kill_switch::note(global) {
        Some(note) => NotRunning(format!("{error:#}\n{note}")).into(),
        None => error,
    }
}

/// Whether `error` means that there is no gateway to talk to.
#[must_use]
pub fn is_not_running(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<NotRunning>()) && exit::code(error) == exit::NOT_RUNNING
}

/// The table of paths alone; where there are several peers, under the name of each.
#[must_use]
pub fn paths(status: &Status) -> String {
    let style = Style::of_stdout();
    let tunnels = status.tunnels.iter();
    let with_paths = tunnels.filter(|tunnel| !tunnel.paths.is_empty());
    let is_site = status.role == "site";
    let table = |tunnel: &TunnelStatus| {
        if is_site {
            return path_table(tunnel, style, "");
        }
        let peer = style.paint(Colour::Bold, &tunnel.peer);
        format!("{peer}\n{}", path_table(tunnel, style, "  "))
    };
    let text: String = with_paths.map(table).collect();
    if text.is_empty() {
        "no paths\n".to_owned()
    } else {
        text
    }
}

/// One line for all workers of a hub that has several.
fn workers(workers: &[WorkerStatus]) -> String {
    if workers.is_empty() {
        return String::new();
    }
    let one = |worker: &WorkerStatus| {
        format!(
            "{}: {} sites, {} paths up",
            worker.worker, worker.sites, worker.paths_up,
        )
    };
    let all: Vec<_> = workers.iter().map(one).collect();
    format!("workers {}\n", all.join("; "))
}

fn render(status: &Status, style: Style) -> String {
    if let Some(balance) = &status.balance {
        return super::balance_status::render(status, balance, style);
    }
    let mut out = format!(
        "{} {}  {}  running for {}\n",
        style.paint(Colour::Bold, &status.role),
        status.addresses.join(" "),
        style.paint(
            Colour::Dim,
            &format!(
                "{} MTU {}, version {}",
                status.interface, status.mtu, status.version
            )
        ),
        output::duration(status.uptime_s),
    );
    out.push_str(&format!("public key {}\n", status.public_key));
    if let Some(text) = onward(status, style) {
        out.push_str(&text);
    }
    out.push_str(&workers(&status.workers));
    #[cfg(feature = "fleet")]
    if let Some(fleet) = &status.fleet {
        out.push_str(&super::fleet::line(fleet, style));
    }
    for words in &status.words {
        out.push_str(&format!("{}\n", style.paint(Colour::Yellow, &words.text)));
    }
    if let Some(switch) = &status.kill_switch {
        out.push_str(&kill_switch(switch, style));
    }
    for tunnel in &status.tunnels {
        out.push('\n');
        out.push_str(&tunnel_head(tunnel, style));
        if !tunnel.paths.is_empty() {
            out.push_str(&path_table(tunnel, style, "  "));
        }
        for path in &tunnel.paths {
            if let Some(words) = notable(path) {
                out.push_str(&format!("  {}: {words}\n", path.uplink));
            } else if let Some(error) = path.last_error.as_ref().filter(|_| path.state != "up") {
                out.push_str(&format!("  {}: {error}\n", path.uplink));
            }
        }
    }
    if status.tunnels.is_empty() {
        out.push_str("no tunnels\n");
    }
    // Where no uplink is left, the words above say so, too.
    let left_out = words::left_out(status).filter(|_| status.paths().next().is_some());
    if let Some(text) = left_out {
        out.push_str(&format!("{}\n", style.paint(Colour::Dim, &text)));
    }
    if let Some(direct) = &status.direct {
        out.push('\n');
        out.push_str(&super::balance_status::direct(direct, style));
    }
    let drops: Vec<_> = status
        .drops
        .iter()
        .filter(|(_, count)| **count > 0)
        .collect();
    if !drops.is_empty() {
        let list: Vec<_> = drops
            .iter()
            .map(|(reason, count)| format!("{reason} {count}"))
            .collect();
        out.push_str(&format!("\ndropped: {}\n", list.join(", ")));
    }
    out
}

/// The side of a relay towards its next hub, in two lines.
fn onward(status: &Status, style: Style) -> Option<String> {
    let onward = status.onward.as_ref()?;
    let side = format!("{} MTU {}", onward.interface, onward.mtu);
    Some(format!(
        "onward {}  {}\npublic key there {}\n",
        onward.addresses.join(" "),
        style.paint(Colour::Dim, &side),
        onward.public_key,
    ))
}

/// What is refused beside the tunnel, in a line.
fn kill_switch(switch: &KillSwitchStatus, style: Style) -> String {
    if !switch.is_set {
        let text = if switch.on {
            "kill switch missing although it is configured: traffic may leave beside the tunnel"
        } else {
            "kill switch off: traffic may leave beside the tunnel"
        };
        return format!("{}\n", style.paint(Colour::Yellow, text));
    }
    let mut text = format!("kill switch on: {} packets refused", switch.refused);
    let missing = |family: &str| !switch.families.iter().any(|own| own == family);
    // Before the hub has said what it carries, all is refused.
    if !switch.families.is_empty() {
        for (family, name) in [("ipv4", "IPv4"), ("ipv6", "IPv6")] {
            if !missing(family) {
                continue;
            }
            text += &if family == "ipv6" && switch.no_ipv6 {
                "; IPv6 blocked, this machine had no IPv6 when the site started: switch it on, then \
                 restart the site"
                    .to_owned()
            } else {
                format!("; {name} blocked, the hub does not carry it")
            };
        }
    }
    if !switch.local.is_empty() {
        text += &format!("; local {}", switch.local.join(", "));
    }
    if let Some(seconds) = switch.portal_s {
        text += &style.paint(Colour::Yellow, &super::kill_switch::portal(seconds));
    }
    text + "\n"
}

fn tunnel_head(tunnel: &TunnelStatus, style: Style) -> String {
    let state = if tunnel.up {
        style.paint(Colour::Green, "up")
    } else {
        style.paint(Colour::Red, "down")
    };
    let mut out = format!(
        "{} {state}  {}  sent {} received {}\n",
        style.paint(Colour::Bold, &tunnel.peer),
        tunnel.peer_addresses.join(" "),
        output::bytes(tunnel.tx_bytes),
        output::bytes(tunnel.rx_bytes),
    );
    if let Some(hub) = &tunnel.serving_hub {
        let at = tunnel.serving_hub_addresses.join(", ");
        let at = if at.is_empty() {
            "an unknown address"
        } else {
            &at
        };
        out.push_str(&format!("  served by the {hub} at {at}\n"));
    }
    let send = tunnel.scheduler_send.name();
    let receive = tunnel.scheduler_receive.name();
    out.push_str(&format!("  scheduler {send} sending, {receive} receiving"));
    if !tunnel.reason.is_empty() {
        out.push_str(&format!("; sending: {}", tunnel.reason));
    }
    out.push('\n');
    let newest = Versions::OURS.newest();
    if (1..newest).contains(&tunnel.wire_version) {
        let version = tunnel.wire_version;
        out.push_str(&format!(
            "  version {version} of the wire in use, this program speaks {newest}: upgrade the other end\n"
        ));
    }
    let hold = hold(tunnel);
    if !hold.is_empty() {
        out.push_str(&format!("  {hold}\n"));
    }
    let protection = protection(tunnel);
    if !protection.is_empty() {
        out.push_str(&format!("  {protection}\n"));
    }
    out
}

/// The state of a path in words. While all is well these are what is used of its quota, if it has one, and which packets
/// are too large. Nothing where the gateway is of a version without words.
fn notable(path: &PathStatus) -> Option<String> {
    let notable = path.words.iter().any(|words| words.weight != Weight::Good);
    let is_told = |words: &&Words| {
        notable
            || path.quota.is_some() && words.about == About::Metered
            || words.about == About::SmallPackets
    };
    let told = path.words.iter().filter(is_told);
    let told: Vec<_> = told.map(|words| words.text.as_str()).collect();
    (!told.is_empty()).then(|| told.join("; "))
}

/// What outages of all paths came to; nothing while there was none.
fn hold(tunnel: &TunnelStatus) -> String {
    if tunnel.outages == 0 {
        return String::new();
    }
    let mut parts = vec![format!(
        "{} outage{} of all paths, {:.1} s together",
        tunnel.outages,
        if tunnel.outages == 1 { "" } else { "s" },
        tunnel.outage_s
    )];
    if let Some(down) = tunnel.down_s {
        parts.push(format!("one for {down:.1} s now"));
    }
    if tunnel.hold_bytes > 0 {
        parts.push(format!("{} held", output::bytes(tunnel.hold_bytes)));
    }
    let counts = [
        (tunnel.replayed, "packet replayed", "packets replayed"),
        (
            tunnel.hold_dropped_full,
            "dropped for space",
            "dropped for space",
        ),
        (
            tunnel.hold_dropped_old,
            "dropped for age",
            "dropped for age",
        ),
        (tunnel.freeze_stopped, "sender stopped", "senders stopped"),
        (
            tunnel.freeze_resets,
            "connection reset",
            "connections reset",
        ),
    ];
    for (count, one, many) in counts.into_iter().filter(|(count, ..)| *count > 0) {
        let what = if count == 1 { one } else { many };
        parts.push(format!("{count} {what}"));
    }
    format!("hold {}", parts.join(", "))
}

/// Bytes of data below which a share of protection would say nothing: the first packets of every flow
/// may go in copies, so an idle tunnel would claim more than 100 %.
const SHARE_BYTES_MIN: u64 = 1_000_000;

/// What protection against loss cost when sending, and what it saved; nothing while it did neither.
fn protection(tunnel: &TunnelStatus) -> String {
    let sent = [
        (tunnel.repairs_sent, "sent again"),
        (tunnel.rescued, "rescued"),
        (tunnel.coded_sent, "repair symbols"),
    ];
    let received = [
        (tunnel.repairs_asked, "asked for"),
        (tunnel.rescues_asked, "overdue"),
        (tunnel.recovered, "recovered"),
    ];
    let list = |counts: &[(u64, &str)]| {
        let some = counts.iter().filter(|(count, _)| *count > 0);
        some.map(|(count, what)| format!("{count} {what}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let (sent, received) = (list(&sent), list(&received));
    let mut parts = Vec::new();
    if !sent.is_empty() || tunnel.protection_bytes > 0 {
        let cost = if tunnel.data_bytes < SHARE_BYTES_MIN {
            format!("{} more", output::bytes(tunnel.protection_bytes))
        } else {
            let share = 100.0 * tunnel.protection_bytes as f64 / tunnel.data_bytes as f64;
            format!("{share:.1} % more")
        };
        let colon = if sent.is_empty() { "" } else { ": " };
        parts.push(format!("sending {cost}{colon}{sent}"));
    }
    if !received.is_empty() {
        parts.push(format!("receiving: {received}"));
    }
    if parts.is_empty() {
        return String::new();
    }
    format!("protection {}", parts.join("; "))
}

fn path_table(tunnel: &TunnelStatus, style: Style, indent: &str) -> String {
    let columns = [
        "UPLINK",
        "STATE",
        "VIA",
        "RTT ms",
        "RATE Mbit/s",
        "LOSS %",
        "SENT",
        "RECEIVED",
        "REMOTE",
    ];
    let mut table = Table::new(&columns);
    for path in &tunnel.paths {
        let colour = match path.state.as_str() {
            "up" => Colour::Green,
            "connecting" | "suspect" | "leaving" => Colour::Yellow,
            "disabled" => Colour::Dim,
            _ => Colour::Red,
        };
        // Whatever is known of a path without an answer is old.
        let carries = matches!(path.state.as_str(), "up" | "leaving");
        let known = |figure: f64| {
            let text = carries.then(|| format!("{figure:.1}"));
            text.unwrap_or_else(|| "-".to_owned())
        };
        let loss = known(path.worse_loss() * 100.0);
        let lossy = (carries && path.worse_loss() >= LOSS_NOTABLE).then_some(Colour::Yellow);
        table.row(vec![
            (uplink_name(path), None),
            (path.state.clone(), Some(colour)),
            (path.transport.clone(), None),
            (known(path.rtt_shown_ms()), None),
            (format!("{:.1}", path.rate_mbit), None),
            (loss, lossy),
            (output::bytes(path.tx_bytes), None),
            (output::bytes(path.rx_bytes), None),
            (
                path.remote
                    .map_or_else(|| "-".to_owned(), |remote| remote.to_string()),
                None,
            ),
        ]);
    }
    table.render(style, indent)
}

/// Loss from which it is worth a colour.
const LOSS_NOTABLE: f64 = 0.02;

fn uplink_name(path: &PathStatus) -> String {
    let mut marks = Vec::from_iter(words::radio(path));
    for (set, mark) in [(path.standby, "standby"), (path.metered, "metered")] {
        if set {
            marks.push(mark.to_owned());
        }
    }
    if marks.is_empty() {
        path.uplink.clone()
    } else {
        format!("{} ({})", path.uplink, marks.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_api::{LeftOut, QuotaStatus};

    #[test]
    fn status_shows_paths_with_state_marks_and_errors() {
        let path = |uplink: &str, state: &str| PathStatus {
            uplink: uplink.to_owned(),
            state: state.to_owned(),
            transport: "quic".to_owned(),
            rtt_ms: 12.34,
            loss: 0.031,
            metered: uplink == "wwan0",
            technology: (uplink == "wwan0").then(|| "LTE".to_owned()),
            signal: Some(0.62),
            last_error: Some("timed out".to_owned()),
            ..PathStatus::default()
        };
        let status = Status {
            role: "site".to_owned(),
            uptime_s: 61.0,
            tunnels: vec![TunnelStatus {
                peer: "hub".to_owned(),
                up: true,
                reason: "wlan0 does not pay".to_owned(),
                repairs_sent: 7,
                rescued: 2,
                data_bytes: 2_000_000,
                protection_bytes: 50_000,
                recovered: 4,
                serving_hub: Some("spare".to_owned()),
                serving_hub_addresses: vec!["192.0.2.2:4443".to_owned()],
                paths: vec![path("wlan0", "up"), path("wwan0", "down")],
                ..TunnelStatus::default()
            }],
            left_out: vec![LeftOut {
                name: "tap0".to_owned(),
                why: "looks like another VPN (tun)".to_owned(),
            }],
            drops: [("garbage".to_owned(), 3), ("none".to_owned(), 0)].into(),
            ..Status::default()
        };
        let text = render(&status, Style::plain());
        for part in [
            "running for 1 min 1 s",
            "hub up",
            "  served by the spare at 192.0.2.2:4443\n",
            "scheduler auto sending, auto receiving; sending: wlan0 does not pay",
            "  protection sending 2.5 % more: 7 sent again, 2 rescued; receiving: 4 recovered\n",
            "wwan0 (LTE, signal 62 %, metered)  down",
            "12.3",
            "3.1",
            "  wwan0: timed out",
            "\nleft out: tap0 looks like another VPN (tun); if they are uplinks, name all uplinks under [uplinks] \
             of the configuration, such as include = [\"wlan0\", \"wwan0\", \"tap0\"]",
            "dropped: garbage 3\n",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        assert!(
            !text.contains("  wlan0: timed out"),
            "errors of working paths are stale"
        );
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn what_is_wrong_with_an_uplink_stands_in_words_below_the_table() {
        let said = |weight, text: &str| Words {
            weight,
            text: text.to_owned(),
            ..Words::default()
        };
        let path = |uplink: &str, words: Vec<Words>| PathStatus {
            uplink: uplink.to_owned(),
            state: "connecting".to_owned(),
            last_error: Some("timed out".to_owned()),
            words,
            ..PathStatus::default()
        };
        let lossy = said(Weight::Worse, "lost 8 % for 20 s: repaired");
        let metered = said(Weight::Good, "metered: 2 GB used");
        let status = Status {
            words: vec![said(Weight::Worse, "the hub is far")],
            tunnels: vec![TunnelStatus {
                paths: vec![
                    path("eth0", vec![lossy, metered]),
                    path("wlan0", vec![said(Weight::Good, "out of use")]),
                    path("old0", Vec::new()),
                ],
                ..TunnelStatus::default()
            }],
            ..Status::default()
        };
        let text = render(&status, Style::plain());
        for part in [
            "\nthe hub is far\n",
            "  eth0: lost 8 % for 20 s: repaired; metered: 2 GB used\n",
            "  old0: timed out\n",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        assert!(!text.contains("out of use"), "{text}");
    }

    #[test]
    fn whose_fault_it_is_that_the_tunnel_carries_no_ipv6_is_told() {
        let text = |no_ipv6| {
            let switch = KillSwitchStatus {
                is_set: true,
                on: true,
                families: vec!["ipv4".to_owned()],
                no_ipv6,
                ..KillSwitchStatus::default()
            };
            kill_switch(&switch, Style::plain())
        };
        assert!(text(false).contains("IPv6 blocked, the hub does not carry it"));
        let own = text(true);
        assert!(own.contains("this machine had no IPv6"), "{own}");
        assert!(
            own.contains("restart the site") && !own.contains("the hub"),
            "{own}"
        );
    }

    #[test]
    fn what_is_used_of_a_quota_is_told_while_all_is_well() {
        let used = Words {
            about: About::Metered,
            text: "36.0 kB of 1.0 GB used; begins anew in 4 days".to_owned(),
            ..Words::default()
        };
        let works = Words {
            text: "works; idle".to_owned(),
            ..Words::default()
        };
        let path = |uplink: &str, quota| PathStatus {
            uplink: uplink.to_owned(),
            state: "up".to_owned(),
            words: vec![works.clone(), used.clone()],
            quota,
            ..PathStatus::default()
        };
        let quota = Some(QuotaStatus::default());
        let status = Status {
            tunnels: vec![TunnelStatus {
                paths: vec![path("sat0", quota), path("wwan0", None)],
                ..TunnelStatus::default()
            }],
            ..Status::default()
        };
        let text = render(&status, Style::plain());
        let line = "  sat0: 36.0 kB of 1.0 GB used; begins anew in 4 days\n";
        assert!(text.contains(line), "{text}");
        assert!(!text.contains("  wwan0: "), "{text}");
    }

    #[test]
    fn a_peer_that_speaks_an_older_version_of_the_wire_is_named() {
        let text = |wire_version| {
            let tunnel = TunnelStatus {
                wire_version,
                ..TunnelStatus::default()
            };
            tunnel_head(&tunnel, Style::plain())
        };
        let newest = Versions::OURS.newest();
        assert!(text(newest - 1).contains("upgrade the other end"));
        for fine in [0, newest, newest + 1] {
            assert!(!text(fine).contains("wire"), "{fine}");
        }
    }

    #[test]
    fn paths_of_a_hub_stand_under_the_name_of_their_site_and_a_down_path_tells_no_loss() {
        let tunnel = |peer: &str, state: &str| TunnelStatus {
            peer: peer.to_owned(),
            paths: vec![PathStatus {
                uplink: "eth0".to_owned(),
                state: state.to_owned(),
                ..PathStatus::default()
            }],
            ..TunnelStatus::default()
        };
        let status = |role: &str| Status {
            role: role.to_owned(),
            tunnels: vec![tunnel("boat", "up"), tunnel("barn", "down")],
            ..Status::default()
        };
        let text = paths(&status("hub"));
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].contains("boat") && lines[3].contains("barn"),
            "{text}"
        );
        assert!(
            lines[2].contains(" 0.0 ") && !lines[2].contains(" - "),
            "{text}"
        );
        let cells: Vec<&str> = lines[5].split_whitespace().collect();
        assert_eq!(cells[3..5], ["0.0", "-"], "{text}");
        assert!(!paths(&status("site")).contains("boat"));
    }

    #[test]
    fn an_idle_tunnel_tells_bytes_of_protection_and_no_share() {
        let idle = TunnelStatus {
            data_bytes: 1_000,
            protection_bytes: 1_259,
            ..TunnelStatus::default()
        };
        assert!(
            protection(&idle).ends_with("sending 1.3 kB more"),
            "{}",
            protection(&idle)
        );
        let busy = TunnelStatus {
            data_bytes: 2_000_000,
            protection_bytes: 50_000,
            ..TunnelStatus::default()
        };
        assert!(
            protection(&busy).ends_with("sending 2.5 % more"),
            "{}",
            protection(&busy)
        );
    }

    #[test]
    fn one_packet_is_not_called_packets() {
        let replayed = |replayed| {
            hold(&TunnelStatus {
                outages: 1,
                replayed,
                ..TunnelStatus::default()
            })
        };
        assert!(replayed(1).ends_with("1 packet replayed"));
        assert!(replayed(2).ends_with("2 packets replayed"));
    }
}
