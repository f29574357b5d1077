//! Each state has its words, and each boundary two sides.

use super::*;
use crate::LeftOut;

/// An uplink on which all is well.
fn path() -> PathStatus {
    PathStatus {
        uplink: "wlan0".to_owned(),
        state: "up".to_owned(),
        transport: "quic".to_owned(),
        rtt_ms: 40.0,
        rtt_min_ms: 35.0,
        rate_mbit: 20.0,
        mtu: 1_444,
        ..PathStatus::default()
    }
}

fn lately() -> Lately {
    Lately {
        state_s: 100.0,
        bits: 1e6,
        share: 0.3,
        ..Lately::default()
    }
}

fn said(path: PathStatus, lately: Lately) -> Vec<(About, String)> {
    let tunnel = TunnelStatus {
        protection_bytes: 1,
        paths: vec![path.clone()],
        ..TunnelStatus::default()
    };
    let words = of_path(&tunnel, &path, &lately);
    words.into_iter().map(|w| (w.about, w.text)).collect()
}

#[track_caller]
fn first(path: PathStatus, lately: Lately, about: About, text: &str) {
    assert_eq!(said(path, lately)[0], (about, text.to_owned()));
}

#[test]
fn each_state_of_a_working_uplink_has_its_words() {
    first(path(), lately(), About::Fine, "works; carries 30 %");
    first(path(), Lately::default(), About::Fine, "works; idle");
    let lossy = PathStatus {
        loss: 0.08,
        ..path()
    };
    let past = Lately {
        lossy_s: 20.0,
        ..lately()
    };
    first(
        lossy,
        past,
        About::Lossy,
        "lost 8 % for 20 s: repaired; carries 30 %",
    );
    // What the hub sends is lost, which only the hub knows.
    let from_there = PathStatus {
        loss: 0.01,
        peer_loss: Some(0.2),
        ..path()
    };
    let with = |protection_bytes, recovered| TunnelStatus {
        protection_bytes,
        recovered,
        paths: vec![from_there.clone()],
        ..TunnelStatus::default()
    };
    for (tunnel, repaired) in [(with(0, 9), "repaired"), (with(9, 0), "not repaired")] {
        let text = format!("lost 20 % for 20 s: {repaired}; carries 30 %");
        assert_eq!(of_path(&tunnel, &from_there, &past)[0].text, text);
    }
    let tls = PathStatus {
        transport: "tls".to_owned(),
        ..path()
    };
    let over_tls = |transport_s| Lately {
        transport_s,
        ..Lately::default()
    };
    let text = "works over TLS for now, and tries UDP; idle";
    first(tls.clone(), over_tls(9.9), About::Fine, text);
    let text = "UDP is blocked here: TLS carries it";
    first(tls, over_tls(10.0), About::UdpBlocked, text);
    let small = PathStatus {
        mtu: 1_252,
        ..path()
    };
    let past = Lately {
        share: 0.0,
        small_s: 10.0,
        ..lately()
    };
    let text =
        "packets above 1,280 bytes do not pass: full packets other than those of TCP go in pieces";
    first(small, past, About::SmallPackets, text);
    let from_there = PathStatus {
        peer_mtu: Some(1_252),
        ..path()
    };
    first(from_there, past, About::SmallPackets, text);
    let over_tcp_there = PathStatus {
        peer_mtu: Some(0),
        ..path()
    };
    first(over_tcp_there, past, About::Fine, "works; idle");
}

#[test]
fn an_uplink_that_does_not_work_says_why_as_far_as_is_known() {
    let state = |state: &str, error: Option<&str>| PathStatus {
        state: state.to_owned(),
        last_error: error.map(str::to_owned),
        ..path()
    };
    let past = Lately {
        state_s: 12.0,
        ..lately()
    };
    for silent in ["suspect", "down", "connecting"] {
        let text = "no answer for 12 s: trying again";
        first(state(silent, None), past, About::Silent, text);
    }
    let just_now = Lately::default();
    let text = "no answer: trying again";
    first(state("suspect", None), just_now, About::Silent, text);
    let unreachable = "not connected for 12 s: network is unreachable; trying again";
    let error = Some("network is unreachable");
    first(state("down", error), past, About::Silent, unreachable);
    let stranger = Lately {
        stranger_s: Some(5.0),
        ..past
    };
    // A path that has just gone silent is suspect first.
    let old = state(
        "suspect",
        Some("key refused: the peer does not accept this key"),
    );
    first(old, past, About::Silent, "no answer for 12 s: trying again");
    for silent in ["suspect", "down", "connecting"] {
        let portal = said(state(silent, None), stranger);
        assert_eq!(portal[0].0, About::LoginPage, "{silent}");
    }
    let long_ago = Lately {
        stranger_s: Some(61.0),
        ..past
    };
    assert_eq!(said(state("down", None), long_ago)[0].0, About::Silent);
    assert_eq!(said(state("disabled", None), past)[0].0, About::Disabled);
    assert_eq!(said(state("leaving", None), past)[0].0, About::Leaving);
}

#[test]
fn a_key_that_is_refused_comes_with_the_way_out_and_is_no_login_page() {
    // A hub with another key, and a stranger a moment ago on another transport.
    for (error, remedy) in [
        (
            "key refused: the peer's key is not the expected one: check its address",
            "write that key into [hub]",
        ),
        (
            "key refused: the peer does not accept this key (not enrolled, or removed)",
            "`ropewalk join --force`",
        ),
    ] {
        let path = PathStatus {
            state: "connecting".to_owned(),
            last_error: Some(error.to_owned()),
            ..path()
        };
        let past = Lately {
            stranger_s: Some(5.0),
            ..lately()
        };
        let words = said(path, past).remove(0);
        assert_eq!(words.0, About::Key);
        assert!(
            words.1.contains(error) && words.1.contains(remedy),
            "{words:?}"
        );
        assert!(!words.1.contains("portal"), "{words:?}");
    }
}

#[test]
fn only_a_stranger_at_the_address_of_the_hub_is_a_login_page() {
    for stranger in [
        "protocol error: received corrupt message of type InvalidContentType",
        "protocol error: received fatal alert: HandshakeFailure",
        "protocol error: peer is incompatible: IncorrectCertificateTypeExtension",
        "protocol error: invalid peer certificate: BadEncoding",
    ] {
        assert!(is_stranger(stranger), "{stranger}");
    }
    for other in [
        "key refused: the peer does not accept this key (not enrolled, or removed)",
        "key refused: the peer's key is not the expected one: check its address, and whether its key was replaced",
        "closed by the peer: protocol error: received corrupt message",
        "timed out: check that the peer runs, its address, and that UDP is not blocked",
        "connection refused",
    ] {
        assert!(!is_stranger(other), "{other}");
    }
}

#[test]
fn a_quota_has_words_that_become_louder() {
    let with = |used: u64, standby| PathStatus {
        metered: true,
        standby,
        quota: Some(QuotaStatus {
            bytes: 10_000_000_000,
            used,
            ends_in_s: 4 * 86_400,
        }),
        ..path()
    };
    let of = |path| {
        let words = said(path, lately());
        let all: Vec<_> = words
            .into_iter()
            .filter(|w| w.0 == About::Metered)
            .collect();
        assert_eq!(all.len(), 1);
        all[0].1.clone()
    };
    assert_eq!(
        of(with(8_990_000_000, false)),
        "9.0 GB of 10.0 GB used; begins anew in 4 days"
    );
    first(
        with(8_990_000_000, false),
        lately(),
        About::Fine,
        "works; carries 30 %",
    );
    assert_eq!(
        said(with(9_000_000_000, false), lately())[0].0,
        About::Metered
    );
    assert_eq!(
        of(with(10_000_000_000, true)),
        "its quota is used up: 10.0 GB of 10.0 GB; kept for when nothing else works; begins anew in 4 days"
    );
    assert!(!of(with(10_000_000_000, false)).contains("kept"));
}

#[test]
fn the_radio_of_an_uplink_is_told_before_what_it_costs() {
    let radio = |technology: &str, signal| PathStatus {
        technology: Some(technology.to_owned()),
        signal,
        metered: true,
        said_metered: Some(true),
        ..path()
    };
    let words = said(radio("LTE", Some(0.62)), lately());
    let abouts: Vec<_> = words.iter().map(|words| words.0).collect();
    assert_eq!(abouts, [About::Fine, About::Radio, About::Metered]);
    assert_eq!(words[1].1, "LTE, signal 62 %");
    let metered = &words[2].1;
    assert!(
        metered.starts_with("metered, as NetworkManager says: "),
        "{metered}"
    );
    let text = |path| said(path, lately())[1].1.clone();
    assert_eq!(text(radio("Wi-Fi", Some(0.07))), "Wi-Fi, weak signal: 7 %");
    assert_eq!(text(radio("5G", None)), "5G");
    let by_hand = PathStatus {
        metered: true,
        ..path()
    };
    assert!(said(by_hand, lately())[1].1.starts_with("metered: "));
}

#[test]
fn what_matters_most_is_said_first() {
    let flapping = Lately {
        failures: 4,
        ..lately()
    };
    let metered = PathStatus {
        metered: true,
        rx_bytes: 1_900_000_000,
        ..path()
    };
    let words = said(metered.clone(), flapping);
    assert_eq!(
        words[0],
        (
            About::Flapping,
            "it failed 4 times in 10 minutes".to_owned()
        )
    );
    let calm = said(metered, lately());
    let abouts: Vec<_> = calm.iter().map(|words| words.0).collect();
    assert_eq!(abouts, [About::Fine, About::Metered]);
    assert!(calm[1].1.starts_with("metered: 1.9 GB used"), "{calm:?}");
    let silent = PathStatus {
        state: "suspect".to_owned(),
        ..path()
    };
    assert_eq!(said(silent, flapping)[0].0, About::Silent);
}

#[test]
fn boundaries_hold() {
    let about = |path, lately| said(path, lately)[0].0;
    assert_eq!(
        about(
            PathStatus {
                loss: 0.019,
                ..path()
            },
            lately()
        ),
        About::Fine
    );
    assert_eq!(
        about(
            PathStatus {
                mtu: 1_253,
                ..path()
            },
            lately()
        ),
        About::Fine
    );
    let young = Lately {
        small_s: 9.0,
        ..lately()
    };
    assert_eq!(
        about(
            PathStatus {
                mtu: 1_200,
                ..path()
            },
            young
        ),
        About::Fine
    );
    // A satellite has a long way and no queue.
    let satellite = PathStatus {
        rtt_ms: 700.0,
        rtt_min_ms: 560.0,
        ..path()
    };
    assert_eq!(about(satellite, lately()), About::Fine);
}

#[test]
fn a_slow_uplink_is_told_beside_a_fast_one_and_a_standby_rests() {
    let full = |from_peer, towards_peer| PathStatus {
        peer_full_mbit: from_peer,
        full_mbit: towards_peer,
        ..path()
    };
    let standby = PathStatus {
        standby: true,
        ..path()
    };
    let best = full(Some(16.0), Some(4.0));
    let words = |path: &PathStatus| {
        let tunnel = TunnelStatus {
            paths: vec![best.clone(), path.clone(), standby.clone()],
            ..TunnelStatus::default()
        };
        let slow = Lately {
            slow_s: SLOW_S,
            ..lately()
        };
        let said = of_path(&tunnel, path, &slow).remove(0);
        (said.about, said.text)
    };
    let text = "slow: receives at most 0.3 Mbit/s, the best uplink 16; carries 30 %".to_owned();
    assert_eq!(words(&full(Some(0.3), None)), (About::Slow, text));
    let text = "slow: sends at most 0.1 Mbit/s, the best uplink 4.0; carries 30 %".to_owned();
    assert_eq!(words(&full(Some(9.0), Some(0.1))), (About::Slow, text));
    // A path that was not full may be as fast as the best one.
    for other in [full(None, None), full(Some(0.8), Some(0.2)), best.clone()] {
        assert_eq!(words(&other).0, About::Fine, "{other:?}");
    }
    assert_eq!(words(&standby).0, About::Standby);
}

#[test]
fn an_uplink_that_got_slow_is_told_unless_the_way_got_longer() {
    let fell = |rtt_min_ms| PathStatus {
        peer_full_mbit: Some(2.0),
        rtt_min_ms,
        ..path()
    };
    let slow = |slow_s, most| Lately {
        slow_s,
        most_mbit: [most, 0.0],
        tunnel: TunnelLately {
            nearest_ms: 20.0,
            ..TunnelLately::default()
        },
        ..lately()
    };
    let text =
        "slower than before: receives at most 2.0 Mbit/s, 17 within the last minutes; carries 30 %";
    first(fell(20.0), slow(SLOW_S, 17.0), About::Slow, text);
    for (path, lately) in [
        (fell(20.0), slow(9.0, 17.0)),
        (fell(20.0), slow(SLOW_S, 10.0)),
        (fell(640.0), slow(SLOW_S, 17.0)),
    ] {
        first(path, lately, About::Fine, "works; carries 30 %");
    }
}

#[test]
fn small_packets_are_a_note_as_long_as_they_are_those_of_some_mobile_network() {
    let of = |mtu| {
        let path = PathStatus { mtu, ..path() };
        let small = Lately {
            small_s: DISCOVERY_S,
            ..lately()
        };
        let tunnel = TunnelStatus {
            paths: vec![path.clone()],
            ..TunnelStatus::default()
        };
        let words = of_path(&tunnel, &path, &small);
        let about = words
            .iter()
            .find(|words| words.about == About::SmallPackets);
        about.map(|words| words.weight)
    };
    assert_eq!(of(1_372), None, "1,400 bytes with the headers");
    assert_eq!(of(1_371), Some(Weight::Good));
    assert_eq!(of(1_253), Some(Weight::Good));
    assert_eq!(of(1_252), Some(Weight::Worse));
}

#[test]
fn an_uplink_that_failed_often_is_told_until_it_has_worked_for_a_while() {
    let failed = |failed_s| Lately {
        failures: FLAPS,
        failed_s,
        ..lately()
    };
    let text = "it failed 3 times in 10 minutes";
    first(path(), failed(179.0), About::Flapping, text);
    first(path(), failed(180.0), About::Fine, "works; carries 30 %");
}

#[test]
fn a_queue_is_told_when_it_stands_and_a_far_hub_is_none() {
    let tunnel = |paths: Vec<PathStatus>| TunnelStatus {
        paths,
        ..TunnelStatus::default()
    };
    let with = |rtt_min_ms, rtt_ms| PathStatus {
        rtt_min_ms,
        rtt_ms,
        ..path()
    };
    let stands = |loaded_s, bloated_s| Lately {
        loaded_s,
        bloated_s,
        bloated_ms: 900.0,
        rtt_least_ms: 40.0,
        ..lately()
    };
    let text = |tunnel: &TunnelStatus, path, lately| of_path(tunnel, path, &lately).remove(0).text;
    let queue = with(120.0, 900.0);
    let alone = tunnel(vec![queue.clone()]);
    let expected = "round trip rose from 40 to 900 ms under load: a bloated queue; carries 30 %";
    assert_eq!(text(&alone, &queue, stands(0.0, 12.0)), expected);
    let foreign = text(&alone, &queue, stands(12.0, 12.0));
    assert!(foreign.contains("without load of ours"), "{foreign}");
    let gone = with(80.0, 900.0);
    assert_eq!(
        text(&alone, &gone, stands(0.0, 12.0)),
        "works; carries 30 %"
    );
    let new = text(&alone, &queue, stands(0.0, 11.0));
    assert_eq!(new, "works; carries 30 %");
    // A queue that stands for long is the smallest round trip of the last seconds.
    let (near, standing) = (with(30.0, 31.0), with(880.0, 900.0));
    let beside = tunnel(vec![near.clone(), standing.clone()]);
    assert_eq!(text(&beside, &standing, stands(0.0, 60.0)), expected);
    let far = tunnel(vec![standing.clone(), standing.clone()]);
    assert_eq!(text(&far, &standing, stands(0.0, 60.0)), new);
    // Queues on all uplinks are none the less queues.
    let waves = with(400.0, 900.0);
    let everywhere = tunnel(vec![waves.clone(), waves.clone()]);
    assert_eq!(text(&everywhere, &waves, stands(0.0, 60.0)), expected);
}

#[test]
fn little_traffic_has_no_shares() {
    let probes = Lately {
        share: 0.77,
        bits: 15_000.0,
        ..Lately::default()
    };
    first(path(), probes, About::Fine, "works; idle");
    let little = Lately {
        bits: 15_400.0,
        ..probes
    };
    first(path(), little, About::Fine, "works; carries 77 %");
}

#[test]
fn a_site_that_works_and_has_no_spare_ready_says_so() {
    let now = CLOCK_MIN_S + 1;
    let spare = |up, no_spare_s| Status {
        role: "site".to_owned(),
        tunnels: vec![TunnelStatus {
            up,
            no_spare_s,
            paths: vec![PathStatus::default()],
            ..TunnelStatus::default()
        }],
        ..Status::default()
    };
    for quiet in [
        spare(true, None),
        spare(true, Some(59.9)),
        spare(false, Some(90.0)),
    ] {
        assert_eq!(
            of_gateway(&quiet, now, TunnelLately::default()),
            [],
            "{quiet:?}"
        );
    }
    let said = of_gateway(&spare(true, Some(NO_SPARE_S)), now, TunnelLately::default());
    assert_eq!(said[0].about, About::Spare);
    assert!(
        said[0]
            .text
            .starts_with("no spare hub has answered for 60 s: ")
    );
}

/// A site whose smallest round trip is this.
fn far(rtt_min_ms: f64) -> Status {
    Status {
        role: "site".to_owned(),
        tunnels: vec![TunnelStatus {
            paths: vec![PathStatus {
                rtt_min_ms,
                ..path()
            }],
            ..TunnelStatus::default()
        }],
        ..Status::default()
    }
}

#[test]
fn a_hub_that_was_near_is_far_now_and_tcp_that_is_refused_is_told_in_an_outage() {
    let now = CLOCK_MIN_S + 1;
    let text = |nearest_ms| {
        let lately = TunnelLately {
            nearest_ms,
            ..TunnelLately::default()
        };
        of_gateway(&far(210.0), now, lately).remove(0).text
    };
    assert!(text(150.0).ends_with("a hub near you answers sooner"));
    assert!(text(22.0).ends_with("210 ms there and back at best, 22 within the last minutes"));
    let down = Status {
        role: "site".to_owned(),
        tunnels: vec![TunnelStatus {
            down_s: Some(9.0),
            paths: vec![path()],
            ..TunnelStatus::default()
        }],
        ..Status::default()
    };
    for is_refused in [false, true] {
        let lately = TunnelLately {
            is_refused,
            ..TunnelLately::default()
        };
        let said = of_gateway(&down, now, lately).remove(0).text;
        assert_eq!(
            said.contains("TCP is refused at the hub's address"),
            is_refused
        );
    }
}

#[test]
fn a_gateway_tells_a_far_hub_an_outage_and_a_wrong_clock() {
    let now = CLOCK_MIN_S + 1;
    assert!(of_gateway(&far(179.0), now, TunnelLately::default()).is_empty());
    assert_eq!(
        of_gateway(&far(210.0), now, TunnelLately::default())[0].about,
        About::Far
    );
    assert_eq!(
        of_gateway(&far(10.0), 86_400, TunnelLately::default())[0].about,
        About::Clock
    );
    let mut down = far(10.0);
    down.tunnels[0].down_s = Some(4.0);
    down.tunnels[0].hold_bytes = 2_000;
    let words = of_gateway(&down, now, TunnelLately::default());
    assert_eq!(
        words[0].text,
        "no uplink reaches the hub for 4 s; 2.0 kB held until one does"
    );
    let none = |uptime_s| Status {
        role: "site".to_owned(),
        uptime_s,
        left_out: vec![LeftOut {
            name: "wlan1".to_owned(),
            why: "looks like another VPN (tun)".to_owned(),
        }],
        ..Status::default()
    };
    assert!(
        of_gateway(&none(1.0), now, TunnelLately::default()).is_empty(),
        "it looks for them"
    );
    let words = of_gateway(&none(9.0), now, TunnelLately::default());
    assert_eq!(words[0].about, About::NoUplink);
    assert_eq!(
        words[0].text,
        "there is no uplink; left out: wlan1 looks like another VPN (tun); if they are uplinks, name all uplinks under \
         [uplinks] of the configuration, such as include = [\"wlan1\"], also those that are unplugged now. Then run \
         `ropewalk reload`"
    );
    let bare = Status {
        left_out: Vec::new(),
        ..none(9.0)
    };
    let words = of_gateway(&bare, now, TunnelLately::default());
    assert!(words[0].text.contains("no interface that"));
    // Whoever writes only the one that is left out loses the others.
    let mut one = far(10.0);
    one.left_out = none(9.0).left_out;
    assert!(
        of_gateway(&one, now, TunnelLately::default()).is_empty(),
        "a VPN may be one"
    );
    assert!(left_out(&one).unwrap().contains("[\"wlan0\", \"wlan1\"]"));
}

#[test]
fn an_uplink_that_is_balanced_says_what_it_takes_and_why() {
    let uplink = |state: &str, share: f64, reason: &str| UplinkStatus {
        state_ipv4: state.to_owned(),
        state_ipv6: "none".to_owned(),
        share_ipv4: share,
        reason: reason.to_owned(),
        ..UplinkStatus::default()
    };
    let said = |uplink: &UplinkStatus| {
        let words = of_balanced(uplink);
        (words.weight, words.text)
    };
    let works = uplink("up", 0.7, "measured capacity");
    let text = "works; takes 70 % of new flows: measured capacity".to_owned();
    assert_eq!(said(&works), (Weight::Good, text));
    let both = UplinkStatus {
        state_ipv6: "up".to_owned(),
        share_ipv6: 0.5,
        ..works
    };
    assert!(
        said(&both)
            .1
            .starts_with("works; takes 70 % (IPv4) and 50 % (IPv6) of")
    );
    let idle = uplink("up", 0.0, "metered: others cost nothing");
    let text = "works; takes no new flows: metered: others cost nothing".to_owned();
    assert_eq!(said(&idle), (Weight::Good, text));
    let dead = uplink("dead", 0.0, "no answer to probes");
    assert_eq!(said(&dead), (Weight::Bad, "no answer to probes".to_owned()));
    assert_eq!(
        of_balanced(&uplink("captive", 0.0, "")).about,
        About::LoginPage
    );
    let status = |uplinks| Status {
        role: "balance".to_owned(),
        balance: Some(BalanceStatus {
            uplinks,
            ..BalanceStatus::default()
        }),
        ..Status::default()
    };
    let now_s = CLOCK_MIN_S;
    assert!(of_gateway(&status(vec![works_again()]), now_s, TunnelLately::default()).is_empty());
    for uplinks in [vec![], vec![dead]] {
        assert_eq!(
            of_gateway(&status(uplinks), now_s, TunnelLately::default())[0].about,
            About::Down
        );
    }
}

fn works_again() -> UplinkStatus {
    UplinkStatus {
        state_ipv4: "up".to_owned(),
        ..UplinkStatus::default()
    }
}
