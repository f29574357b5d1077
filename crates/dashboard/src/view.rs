//! What the pages show, made of a status: pure. Pages compute no words and no decisions.

use ropewalk_api::words::{self, Words};
use ropewalk_api::{
    BalanceStatus, History, KillSwitchStatus, PathStatus, RuleStatus, SiteStatus, Status,
    TunnelStatus, UplinkStatus,
};
use serde::Serialize;

/// Bytes of data below which a share of protection would say nothing.
const SHARE_BYTES_MIN: u64 = 1_000_000;

/// One message to a page.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct View {
    /// `site`, `hub`, `relay` or `balance`.
    pub role: String,
    /// Name in the configuration.
    pub name: String,
    /// Program version.
    pub version: String,
    /// Interface name.
    pub interface: String,
    /// Inner addresses.
    pub addresses: Vec<String>,
    /// Seconds since the start.
    pub uptime_s: f64,
    /// Time of the message, seconds since 1970.
    pub now_s: u64,
    /// What is to be said of the whole gateway.
    pub words: Vec<Words>,
    /// Which interfaces a site leaves out, why, and what helps; empty for none.
    pub left_out: String,
    /// The kill switch of a site.
    pub kill_switch: Option<KillSwitchStatus>,
    /// The newest points of the charts.
    pub points: History,
    /// The tunnel of a site, with its uplinks.
    pub tunnel: Option<Tunnel>,
    /// The sites of a hub or relay.
    pub sites: Vec<SiteStatus>,
    /// How `ropewalk balance` spreads flows.
    pub balance: Option<Balance>,
}

/// How flows are spread over uplinks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Balance {
    /// How new flows are shared.
    pub mode: String,
    /// Seconds that a client keeps its uplink to a site; 0 for not at all.
    pub affinity_s: u64,
    /// The uplinks.
    pub uplinks: Vec<Balanced>,
    /// The rules, in the order in which they are tried.
    pub rules: Vec<RuleStatus>,
}

/// An uplink over which flows are spread.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Balanced {
    /// Interface.
    pub name: String,
    /// The state in words.
    pub words: Vec<Words>,
    /// Whether it carries new flows.
    pub used: bool,
    /// Flows on the uplink.
    pub flows: u64,
    /// Mbit/s, if it was seen full or probed.
    pub capacity_mbit: Option<f64>,
    /// Mbit/s in the last second, in the direction that carries more.
    pub load_mbit: f64,
    /// Median round trip of the probes, milliseconds.
    pub rtt_ms: Option<f64>,
    /// Bytes sent by the interface.
    pub sent_bytes: u64,
    /// Bytes received by the interface.
    pub received_bytes: u64,
    /// Times that the uplink stopped working.
    pub failures: u64,
    /// Connections ended because the uplink stopped working.
    pub severed: u64,
    /// Costs money by the byte.
    pub metered: bool,
}

/// The tunnel of a site.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tunnel {
    /// Whether any uplink works.
    pub up: bool,
    /// Scheduler when sending.
    pub send: &'static str,
    /// Scheduler of the hub towards this site.
    pub receive: &'static str,
    /// Why the scheduler does what it does.
    pub reason: String,
    /// What protection costs, and what it saved.
    pub protection: String,
    /// Inner bytes.
    pub sent_bytes: u64,
    /// Inner bytes.
    pub received_bytes: u64,
    /// The uplinks.
    pub uplinks: Vec<Uplink>,
}

/// An uplink of a site.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Uplink {
    /// Name.
    pub name: String,
    /// `up`, `leaving`, `suspect`, `connecting`, `down` or `disabled`.
    pub state: String,
    /// `quic`, `tls` or nothing.
    pub via: String,
    /// The state in words.
    pub words: Vec<Words>,
    /// Round trip, milliseconds.
    pub rtt_ms: f64,
    /// Share of packets lost, `0..=1`.
    pub loss: f64,
    /// What it carries towards the hub when it is full, Mbit/s, if it was within the last minute.
    pub full_mbit: Option<f64>,
    /// The same from the hub.
    pub hub_full_mbit: Option<f64>,
    /// Outer bytes of the present connection.
    pub sent_bytes: u64,
    /// Outer bytes of the present connection.
    pub received_bytes: u64,
    /// Used only while no other works.
    pub standby: bool,
    /// Costs money by the byte.
    pub metered: bool,
    /// Largest UDP payload, bytes.
    pub mtu: usize,
    /// The hub's address.
    pub remote: String,
}

/// What is to be shown of a status.
#[must_use]
pub fn of(status: Status, points: History, now_s: u64) -> View {
    let left_out = words::left_out(&status).unwrap_or_default();
    let status = status.in_short();
    let tunnel = status.tunnels.into_iter().next().map(of_tunnel);
    View {
        role: status.role,
        name: status.name,
        version: status.version,
        interface: status.interface,
        addresses: status.addresses,
        uptime_s: status.uptime_s,
        now_s,
        words: status.words,
        left_out,
        kill_switch: status.kill_switch,
        points,
        tunnel,
        sites: status.sites,
        balance: status.balance.map(of_balance),
    }
}

fn of_balance(balance: BalanceStatus) -> Balance {
    Balance {
        mode: balance.mode,
        affinity_s: balance.affinity_s,
        uplinks: balance.uplinks.into_iter().map(of_uplink).collect(),
        rules: balance.rules,
    }
}

fn of_uplink(uplink: UplinkStatus) -> Balanced {
    let known = uplink.capacity_measured || uplink.capacity_probed;
    Balanced {
        words: vec![words::of_balanced(&uplink)],
        used: uplink.is_used(),
        name: uplink.uplink,
        flows: uplink.flows,
        capacity_mbit: known.then_some(uplink.capacity_mbit),
        load_mbit: uplink.load_mbit,
        rtt_ms: uplink.rtt_ms,
        sent_bytes: uplink.tx_bytes,
        received_bytes: uplink.rx_bytes,
        failures: uplink.failures,
        severed: uplink.severed,
        metered: uplink.metered,
    }
}

fn of_tunnel(tunnel: TunnelStatus) -> Tunnel {
    Tunnel {
        up: tunnel.up,
        send: tunnel.scheduler_send.name(),
        receive: tunnel.scheduler_receive.name(),
        protection: protection(&tunnel),
        sent_bytes: tunnel.tx_bytes,
        received_bytes: tunnel.rx_bytes,
        reason: tunnel.reason,
        uplinks: tunnel.paths.into_iter().map(of_path).collect(),
    }
}

fn of_path(path: PathStatus) -> Uplink {
    let (loss, rtt_ms) = (path.worse_loss(), path.rtt_shown_ms());
    Uplink {
        name: path.uplink,
        state: path.state,
        via: path.transport,
        words: path.words,
        rtt_ms,
        loss,
        full_mbit: path.full_mbit,
        hub_full_mbit: path.peer_full_mbit,
        sent_bytes: path.tx_bytes,
        received_bytes: path.rx_bytes,
        standby: path.standby,
        metered: path.metered,
        mtu: path.mtu,
        remote: path
            .remote
            .map_or_else(String::new, |remote| remote.to_string()),
    }
}

/// What protection against loss costs and saves, in words; nothing while it does neither.
fn protection(tunnel: &TunnelStatus) -> String {
    let mut parts = Vec::new();
    if tunnel.protection_bytes > 0 && tunnel.data_bytes >= SHARE_BYTES_MIN {
        let share = 100.0 * tunnel.protection_bytes as f64 / tunnel.data_bytes as f64;
        parts.push(format!("costs {share:.1} % more data when sending"));
    }
    let again = tunnel.repairs_sent + tunnel.rescued;
    let saved = tunnel.recovered + tunnel.repairs_asked + tunnel.rescues_asked;
    for (count, what) in [
        (again, "sent again"),
        (saved, "asked for again or recovered when receiving"),
    ] {
        if count > 0 {
            let packets = if count == 1 { "packet" } else { "packets" };
            parts.push(format!("{count} {packets} {what}"));
        }
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use ropewalk_api::words::Weight;

    use super::*;

    fn tunnel(peer: &str, states: &[(&str, Weight)]) -> TunnelStatus {
        let path = |(state, weight): &(&str, Weight)| PathStatus {
            uplink: "eth0".to_owned(),
            state: (*state).to_owned(),
            words: vec![Words {
                weight: *weight,
                ..Words::default()
            }],
            ..PathStatus::default()
        };
        TunnelStatus {
            peer: peer.to_owned(),
            peer_key: "KEY".to_owned(),
            data_bytes: 2_000_000,
            protection_bytes: 50_000,
            repairs_sent: 1,
            paths: states.iter().map(path).collect(),
            ..TunnelStatus::default()
        }
    }

    #[test]
    fn a_site_shows_its_uplinks_and_a_hub_its_sites_with_what_is_wrong() {
        let status = |role: &str| Status {
            role: role.to_owned(),
            public_key: "KEY".to_owned(),
            tunnels: vec![tunnel("a", &[("up", Weight::Good), ("down", Weight::Bad)])],
            ..Status::default()
        };
        let view = |status| of(status, History::default(), 7);
        let site = view(status("site"));
        let shown = site.tunnel.clone().unwrap();
        assert_eq!(shown.uplinks.len(), 2);
        assert_eq!(
            shown.protection,
            "costs 2.5 % more data when sending; 1 packet sent again"
        );
        assert!(site.sites.is_empty());
        let hub = view(status("hub"));
        assert!(hub.tunnel.is_none());
        assert_eq!((hub.sites[0].paths, hub.sites[0].words.len()), ([1, 2], 1));
        // A gateway that was asked for little sends the same line.
        let sent = serde_json::to_string(&status("hub").in_short()).unwrap();
        let read = view(serde_json::from_str(&sent).unwrap());
        assert_eq!(read.sites, hub.sites);
        for view in [site, hub] {
            assert!(!serde_json::to_string(&view).unwrap().contains("KEY"));
        }
    }

    #[test]
    fn balance_shows_its_uplinks_and_no_capacity_that_nobody_knows() {
        let uplink = |known| UplinkStatus {
            state_ipv4: "up".to_owned(),
            capacity_mbit: 20.0,
            capacity_probed: known,
            ..UplinkStatus::default()
        };
        let status = Status {
            role: "balance".to_owned(),
            balance: Some(BalanceStatus {
                uplinks: vec![uplink(true), uplink(false)],
                ..BalanceStatus::default()
            }),
            ..Status::default()
        };
        let view = of(status, History::default(), 7);
        let shown = view.balance.unwrap().uplinks;
        let capacities: Vec<_> = shown.iter().map(|uplink| uplink.capacity_mbit).collect();
        assert_eq!(capacities, [Some(20.0), None]);
        assert!(shown.iter().all(|uplink| uplink.words.len() == 1));
    }
}
