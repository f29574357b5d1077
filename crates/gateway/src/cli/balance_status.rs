//! What `ropewalk status` shows of `ropewalk balance`.

use super::output::{self, Colour, Style, Table};
use crate::engine::control::Status;
use crate::service::balance::status::{BalanceStatus, UplinkStatus};

/// Uplinks and rules as tables.
#[must_use]
pub fn render(status: &Status, balance: &BalanceStatus, style: Style) -> String {
    let affinity = match balance.affinity_s {
        0 => "no affinity".to_owned(),
        seconds => format!("affinity {} min", seconds / 60),
    };
    let side = format!(
        "mode {}, {affinity}, version {}",
        balance.mode, status.version
    );
    let mut out = format!(
        "{}  {}  running for {}\n\n",
        style.paint(Colour::Bold, &status.role),
        style.paint(Colour::Dim, &side),
        output::duration(status.uptime_s),
    );
    if balance.uplinks.is_empty() {
        out.push_str("no uplinks: no interface has an address and a default route\n");
        return out;
    }
    out.push_str(&uplinks(&balance.uplinks, style));
    if !balance.rules.is_empty() {
        let mut table = Table::new(&["RULE", "IPv4 OVER", "IPv6 OVER", "ADDRESSES OF NAMES"]);
        for rule in &balance.rules {
            let over = |uplinks: &[String]| match uplinks {
                [] => "none".to_owned(),
                some => some.join(", "),
            };
            table.row(vec![
                (rule.rule.clone(), None),
                (over(&rule.uplinks_ipv4), None),
                (over(&rule.uplinks_ipv6), None),
                (rule.addresses.to_string(), None),
            ]);
        }
        out.push('\n');
        out.push_str(&table.render(style, ""));
    }
    out
}

fn uplinks(uplinks: &[UplinkStatus], style: Style) -> String {
    let mut table = Table::new(&[
        "UPLINK",
        "IPv4",
        "IPv6",
        "SHARE %",
        "FLOWS",
        "CAPACITY Mbit/s",
        "LOAD Mbit/s",
        "RTT ms",
        "SENT",
        "RECEIVED",
        "WHY",
    ]);
    for uplink in uplinks {
        let colour = |state: &str| match state {
            "up" => Some(Colour::Green),
            "unproven" | "captive" => Some(Colour::Yellow),
            "none" => Some(Colour::Dim),
            _ => Some(Colour::Red),
        };
        let capacity = if uplink.capacity_measured {
            format!("{:.1}", uplink.capacity_mbit)
        } else if uplink.capacity_probed {
            format!("about {:.1}", uplink.capacity_mbit)
        } else {
            "not known".to_owned()
        };
        table.row(vec![
            (uplink.uplink.clone(), None),
            (uplink.state_ipv4.clone(), colour(&uplink.state_ipv4)),
            (uplink.state_ipv6.clone(), colour(&uplink.state_ipv6)),
            (shares(uplink), None),
            (uplink.flows.to_string(), None),
            (capacity, None),
            (format!("{:.1}", uplink.load_mbit), None),
            (
                uplink
                    .rtt_ms
                    .map_or_else(|| "-".to_owned(), |rtt| format!("{rtt:.1}")),
                None,
            ),
            (output::bytes(uplink.tx_bytes), None),
            (output::bytes(uplink.rx_bytes), None),
            (uplink.reason.clone(), None),
        ]);
    }
    table.render(style, "")
}

/// One number where both families agree, else both.
fn shares(uplink: &UplinkStatus) -> String {
    let percent = |share: f64| format!("{:.0}", share * 100.0);
    let (v4, v6) = (percent(uplink.share_ipv4), percent(uplink.share_ipv6));
    if v4 == v6 || uplink.state_ipv6 == "none" {
        v4
    } else if uplink.state_ipv4 == "none" {
        v6
    } else {
        format!("{v4} / {v6}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uplinks_show_state_share_and_reason() {
        let uplink = |name: &str, state: &str, share: f64, reason: &str| UplinkStatus {
            uplink: name.to_owned(),
            state_ipv4: state.to_owned(),
            state_ipv6: "none".to_owned(),
            share_ipv4: share,
            reason: reason.to_owned(),
            ..UplinkStatus::default()
        };
        let balance = BalanceStatus {
            mode: "weighted".to_owned(),
            affinity_s: 600,
            uplinks: vec![
                uplink("eth0", "up", 0.75, "measured capacity"),
                uplink("wwan0", "dead", 0.0, "no answer to probes"),
            ],
            ..BalanceStatus::default()
        };
        let text = render(&Status::default(), &balance, Style::plain());
        for part in [
            "mode weighted",
            "affinity 10 min",
            "75",
            "not known",
            "no answer to probes",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        assert!(!text.contains('\x1b'));
    }
}
