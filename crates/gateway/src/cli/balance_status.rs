//! What `ropewalk status` shows of `ropewalk balance`, and of what a site sends beside its tunnel.

use super::output::{self, Colour, Style, Table};
use ropewalk_api::{BalanceStatus, DirectStatus, Status, UplinkStatus};

/// Uplinks and rules as tables, under a line of who it is.
#[must_use]
pub fn render(status: &Status, balance: &BalanceStatus, style: Style) -> String {
    let side = format!("{}, version {}", sharing(balance), status.version);
    let head = format!(
        "{}  {}  running for {}\n\n",
        style.paint(Colour::Bold, &status.role),
        style.paint(Colour::Dim, &side),
        output::duration(status.uptime_s),
    );
    head + &tables(balance, style)
}

/// What a site sends beside its tunnel: which classes, and over which uplinks.
#[must_use]
pub fn direct(direct: &DirectStatus, style: Style) -> String {
    let state = if direct.fallen_back {
        style.paint(
            Colour::Yellow,
            "fallen back: the hub is not reached, auto goes direct",
        )
    } else {
        "auto goes through the tunnel".to_owned()
    };
    let mut table = Table::new(&["CLASS", "VIA", "NOW IPv4", "NOW IPv6"]);
    for class in &direct.classes {
        let colour = |now: &str| (class.via == "auto" && now == "direct").then_some(Colour::Yellow);
        table.row(vec![
            (class.class.clone(), None),
            (class.via.clone(), None),
            (class.now_ipv4.clone(), colour(&class.now_ipv4)),
            (class.now_ipv6.clone(), colour(&class.now_ipv6)),
        ]);
    }
    let times = match direct.fallbacks {
        0 => String::new(),
        1 => ", fell back once".to_owned(),
        count => format!(", fell back {count} times"),
    };
    format!(
        "{}  {state}{times}  {}\n{}\n{}",
        style.paint(Colour::Bold, "direct"),
        style.paint(Colour::Dim, &sharing(&direct.spread)),
        table.render(style, "  "),
        tables(&direct.spread, style),
    )
}

fn sharing(balance: &BalanceStatus) -> String {
    let affinity = match balance.affinity_s {
        0 => "no affinity".to_owned(),
        seconds => format!("affinity {} min", seconds / 60),
    };
    format!("mode {}, {affinity}", balance.mode)
}

fn tables(balance: &BalanceStatus, style: Style) -> String {
    if balance.uplinks.is_empty() {
        return "no uplinks: no interface has an address and a default route\n".to_owned();
    }
    let mut out = uplinks(&balance.uplinks, style);
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
    use ropewalk_api::WayStatus;

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

    #[test]
    fn a_site_shows_which_way_each_class_goes_now() {
        let way = |class: &str, via: &str, now: &str| WayStatus {
            class: class.to_owned(),
            via: via.to_owned(),
            now_ipv4: now.to_owned(),
            now_ipv6: now.to_owned(),
        };
        let mut status = DirectStatus {
            classes: vec![
                way("mail", "auto", "tunnel"),
                way("others", "tunnel", "tunnel"),
            ],
            ..DirectStatus::default()
        };
        let text = direct(&status, Style::plain());
        assert!(text.contains("auto goes through the tunnel"), "{text}");
        status.fallen_back = true;
        status.fallbacks = 1;
        status.classes[0] = way("mail", "auto", "direct");
        let text = direct(&status, Style::plain());
        for part in ["the hub is not reached", "fell back once", "auto    direct"] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
    }
}
