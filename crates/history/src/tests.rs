//! Points are means, bounded, and outlive a restart.

use super::*;
use ropewalk_api::words::About;
use ropewalk_api::{BalanceStatus, PathStatus, UplinkStatus};

const START: u64 = 1_800_000_000_000;

fn site(bytes: u64, uplinks: &[&str]) -> Status {
    let path = |name: &&str| PathStatus {
        uplink: (*name).to_owned(),
        state: "up".to_owned(),
        transport: "quic".to_owned(),
        rtt_ms: 20.0,
        rtt_min_ms: 20.0,
        mtu: 1_400,
        tx_bytes: bytes,
        rx_bytes: 2 * bytes,
        ..PathStatus::default()
    };
    Status {
        role: "site".to_owned(),
        tunnels: vec![TunnelStatus {
            peer: "hub".to_owned(),
            up: true,
            tx_bytes: bytes,
            tx_packets: bytes / 1_000,
            paths: uplinks.iter().map(path).collect(),
            ..TunnelStatus::default()
        }],
        ..Status::default()
    }
}

/// A site that sends 1 Mbit/s over each of its uplinks, for so many seconds.
fn run(history: &mut History, from_ms: u64, seconds: u64, uplinks: &[&str]) -> u64 {
    for second in 0..=seconds {
        history.sample(
            from_ms + second * 1_000,
            &site((from_ms / 1_000 + second) * 125_000, uplinks),
        );
    }
    from_ms + seconds * 1_000
}

#[test]
fn points_are_rates_and_means_at_equal_distances() {
    let mut history = History::new(Kind::Site, 1);
    run(&mut history, START, 60, &["eth0"]);
    let minutes = history.points(Range::Minutes, usize::MAX);
    assert_eq!((minutes.step_s, minutes.offered.len()), (1, 60));
    assert_eq!(minutes.end_s, START / 1_000 + 60);
    let eth0 = &minutes.uplinks[0];
    assert!(eth0.sent.iter().all(|rate| *rate == Some(1e6)), "{eth0:?}");
    assert!(eth0.received.iter().all(|rate| *rate == Some(2e6)));
    assert_eq!((eth0.rtt_ms[3], eth0.loss[3]), (Some(20.0), Some(0.0)));
    let hour = history.points(Range::Hour, usize::MAX);
    assert_eq!(hour.offered, vec![Some(1e6); 7], "a begun point counts");
    assert_eq!(history.points(Range::Minutes, 1).offered.len(), 1);
}

#[test]
fn a_sample_that_is_late_leaves_no_gap_and_an_engine_that_hangs_does() {
    let mut history = History::new(Kind::Site, 1);
    // Each sample is a little later than a second after the one before; one is late by 4 s, one by 6.
    let mut now = START;
    for step in 0..100_u64 {
        let bytes = (now - START) * 125;
        history.sample(now, &site(bytes, &["eth0"]));
        now += match step {
            30 => 5_000,
            80 => 7_000,
            _ => 1_030,
        };
    }
    let points = history.points(Range::Minutes, usize::MAX);
    for (rates, rate) in [(&points.uplinks[0].sent, 1e6), (&points.offered, 1e6)] {
        let known = rates.iter().flatten();
        assert!(known.clone().all(|known| *known == rate), "{rates:?}");
        assert_eq!(rates.len() - known.count(), 6, "{rates:?}");
    }
}

#[test]
fn what_waits_and_what_is_dropped_was_asked_for() {
    let mut history = History::new(Kind::Site, 1);
    history.sample(START, &site(0, &["eth0"]));
    let mut status = site(100_000, &["eth0"]);
    status.tunnels[0].queue_bytes = 25_000;
    status.tunnels[0].queue_drops = 50;
    history.sample(START + 1_000, &status);
    // 100 kB sent, 25 kB more wait, 50 packets of 1 kB dropped.
    assert_eq!(history.points(Range::Minutes, 1).offered, [Some(1.4e6)]);
}

#[test]
fn memory_and_file_stay_within_their_bounds() {
    let names: Vec<String> = (0..40).map(|n| format!("uplink{n:08}")).collect();
    let mut history = History::new(Kind::Site, 1);
    let mut now = START;
    // Two days, sampled once a minute, then an hour and the last minutes in full, with uplinks that come and go.
    let steps = [(2_880, 60_000), (360, 10_000), (400, 1_000)];
    let steps = steps
        .into_iter()
        .flat_map(|(count, ms)| (0..count).map(move |_| ms));
    for (number, step_ms) in (0_u64..).zip(steps) {
        let of = |n: u64| names[((number / 300 * 4 + n) % 40) as usize].as_str();
        let uplinks: Vec<&str> = (0..16).map(of).collect();
        history.sample(now, &site(number * 1_234_567, &uplinks));
        history.happened(now, "x".repeat(5_000));
        now += step_ms;
    }
    for (range, length) in [Range::Minutes, Range::Hour, Range::Day]
        .into_iter()
        .zip(POINTS)
    {
        let points = history.points(range, usize::MAX);
        assert_eq!(points.offered.len(), length);
        assert!(points.uplinks.len() <= UPLINKS_MAX);
        assert!(
            points
                .uplinks
                .iter()
                .all(|uplink| uplink.loss.len() == length)
        );
    }
    let file = history.save().unwrap();
    assert!((file.len() as u64) < BYTES_MAX, "{}", file.len());
    assert!(
        file.len() > 500_000,
        "{} bytes: points are missing",
        file.len()
    );
    let cells =
        POINTS.iter().sum::<usize>() * (UPLINKS_MAX * size_of::<Rate>() + size_of::<Point>());
    assert!(cells < 1 << 20, "{cells} bytes of points");
}

#[test]
fn points_outlive_a_restart_and_the_time_between_is_a_gap() {
    let mut before = History::new(Kind::Site, 1);
    let end = run(&mut before, START, 600, &["eth0", "wlan0"]);
    before.happened(end, "stopped");
    let text = before.save().unwrap();
    let mut after = History::new(Kind::Site, 1);
    after.restore(&text).unwrap();
    for range in [Range::Minutes, Range::Hour, Range::Day] {
        let all = |history: &History| history.points(range, usize::MAX);
        assert_eq!(all(&after), all(&before));
    }
    run(&mut after, end + 100_000, 20, &["wlan0", "eth0"]);
    let minutes = after.points(Range::Minutes, usize::MAX).offered;
    let unknown = minutes.iter().filter(|rate| rate.is_none()).count();
    assert_eq!((minutes.len(), unknown), (300, 100));
    let hour = after.points(Range::Hour, 13);
    let wlan0 = hour
        .uplinks
        .iter()
        .find(|uplink| uplink.name == "wlan0")
        .unwrap();
    let known: Vec<bool> = wlan0.sent.iter().map(Option::is_some).collect();
    assert_eq!(
        known.iter().filter(|known| !**known).count(),
        9,
        "{known:?}"
    );
    assert!(known[0] && known[12] && !known[5], "{known:?}");
    assert!(after.events().iter().any(|event| event.what == "stopped"));
    // A version that kept no minutes wrote a file without them.
    let mut old: serde_json::Value = serde_json::from_str(&text).unwrap();
    old.as_object_mut().unwrap().remove("minutes");
    let mut after = History::new(Kind::Site, 1);
    after.restore(&old.to_string()).unwrap();
    assert!(after.points(Range::Minutes, 9).offered.is_empty());
    assert_eq!(after.points(Range::Hour, 9), before.points(Range::Hour, 9));
}

#[test]
fn a_file_that_is_not_ours_is_refused_as_a_whole() {
    let mut history = History::new(Kind::Site, 1);
    run(&mut history, START, 20, &["eth0"]);
    let text = history.save().unwrap();
    let mut fresh = History::new(Kind::Site, 1);
    let other = text.replace("\"format\":1", "\"format\":2");
    assert!(matches!(fresh.restore(&other), Err(FileError::Format(2))));
    for broken in ["", "[]", "{\"format\":1}", &text[..text.len() - 3]] {
        assert!(
            matches!(fresh.restore(broken), Err(FileError::Shape(_))),
            "{broken}"
        );
    }
    let long = text.replace("eth0", &"e".repeat(65));
    assert!(matches!(fresh.restore(&long), Err(FileError::Bound)));
    assert!(fresh.points(Range::Hour, 9).offered.is_empty());
    // Lists of unequal length are read as far as they go.
    let short = text.replace("\"sent\":[", "\"sent\":[], \"x\":[");
    fresh.restore(&short).unwrap();
    assert_eq!(fresh.points(Range::Hour, 1).uplinks[0].sent, [None]);
}

#[test]
fn a_clock_that_is_set_back_forgets_the_future_and_goes_on() {
    let mut history = History::new(Kind::Site, 1);
    run(&mut history, START, 100, &["eth0"]);
    run(&mut history, START + 50_000, 10, &["eth0"]);
    let points = history.points(Range::Minutes, usize::MAX);
    assert_eq!(points.end_s, START / 1_000 + 60);
    assert_eq!(points.offered.len(), 60);
    let far = START + 10_000_000_000;
    run(&mut history, far, 3, &["eth0"]);
    let points = history.points(Range::Minutes, usize::MAX);
    assert_eq!(points.offered.len(), POINTS[0]);
    assert!(
        history
            .events()
            .iter()
            .any(|event| event.what.contains("clock was set"))
    );
}

#[test]
fn words_know_the_past_of_a_path() {
    let mut history = History::new(Kind::Site, 1);
    let now = run(&mut history, START, 40, &["eth0", "wlan0"]);
    let mut status = site(1, &["eth0", "wlan0"]);
    history.describe(now, &mut status);
    assert_eq!(
        status.tunnels[0].paths[0].words[0].text,
        "works; carries 50 %"
    );
    for second in 1..=20 {
        let mut status = site((now / 1_000 + second) * 125_000, &["eth0", "wlan0"]);
        status.tunnels[0].paths[0].loss = 0.08;
        status.tunnels[0].paths[1].state = "suspect".to_owned();
        history.sample(now + second * 1_000, &status);
        history.describe(now + second * 1_000, &mut status);
        let words = |index: usize| status.tunnels[0].paths[index].words[0].text.clone();
        let past = second - 1;
        let lasts = match past {
            0 => String::new(),
            _ => format!(" for {past} s"),
        };
        let lost = match past {
            0..5 => "works; carries 50 %".to_owned(),
            _ => format!("lost 8 %{lasts}: not repaired; carries 50 %"),
        };
        assert_eq!(words(0), lost);
        assert_eq!(words(1), format!("no answer{lasts}: trying again"));
    }
    let newest = history.points(Range::Minutes, 1);
    let shown = newest.uplinks.iter().map(|uplink| uplink.rtt_ms[0]);
    assert_eq!(shown.collect::<Vec<_>>(), [Some(20.0), None]);
    let events: Vec<_> = history
        .events()
        .into_iter()
        .map(|event| event.what)
        .collect();
    let all = [
        "the tunnel is up",
        "eth0: up",
        "wlan0: up",
        "wlan0: no answer",
    ];
    assert_eq!(events, all);
}

#[test]
fn an_uplink_that_comes_and_goes_and_one_behind_a_login_page_are_known() {
    let mut history = History::new(Kind::Site, 1);
    let mut now = START;
    let mut status = site(1, &["eth0"]);
    for state in [
        "up",
        "suspect",
        "up",
        "suspect",
        "down",
        "connecting",
        "up",
        "down",
        "up",
    ] {
        status.tunnels[0].paths[0].state = state.to_owned();
        now += 1_000;
        history.sample(now, &status);
    }
    history.describe(now, &mut status);
    let words = &status.tunnels[0].paths[0].words[0];
    assert_eq!(words.text, "it failed 3 times in 10 minutes");
    // Whoever reads what happened counts as many.
    let mut events: Vec<_> = history
        .events()
        .into_iter()
        .map(|event| event.what)
        .collect();
    events.retain(|what| what == "eth0: up");
    assert_eq!(events.len(), 1 + 3);
    let path = &mut status.tunnels[0].paths[0];
    path.state = "connecting".to_owned();
    path.last_error = Some("protocol error: received corrupt message of type X".to_owned());
    history.sample(now + 1_000, &status);
    let path = &mut status.tunnels[0].paths[0];
    // What the attempts over UDP say hides the answer of the stranger for a while.
    path.last_error = Some("timed out: check".to_owned());
    history.sample(now + 2_000, &status);
    history.describe(now + 2_000, &mut status);
    assert_eq!(status.tunnels[0].paths[0].words[0].about, About::LoginPage);
}

/// The words of a path of which each second has such a state.
fn words_each_second(history: &mut History, from_ms: u64, paths: &[PathStatus]) -> Vec<About> {
    let mut now = from_ms;
    let each = paths.iter().map(|path| {
        now += 1_000;
        let mut status = site((now - START) * 125, &["eth0", "wlan0"]);
        let known = &mut status.tunnels[0].paths[0];
        (known.rtt_ms, known.rtt_min_ms, known.mtu) = (path.rtt_ms, path.rtt_min_ms, path.mtu);
        history.sample(now, &status);
        history.describe(now, &mut status);
        status.tunnels[0].paths[0].words[0].about
    });
    each.collect()
}

#[test]
fn a_queue_that_stands_is_told_after_a_while_and_neither_flickers_nor_wears_off() {
    let mut history = History::new(Kind::Site, 1);
    let now = run(&mut history, START, 40, &["eth0", "wlan0"]);
    let path = |rtt_ms, rtt_min_ms| PathStatus {
        rtt_ms,
        rtt_min_ms,
        mtu: 1_400,
        ..PathStatus::default()
    };
    let mut paths = vec![path(150.0, 20.0); 10];
    // The queue is short for moments, and what stands for long is the smallest of the last seconds.
    for _ in 0..6 {
        paths.extend([path(600.0, 90.0), path(90.0, 90.0), path(700.0, 90.0)]);
    }
    paths.extend(vec![path(700.0, 650.0); 60]);
    paths.extend(vec![path(21.0, 20.0); 30]);
    let said = words_each_second(&mut history, now, &paths);
    let told: Vec<usize> = (0..said.len())
        .filter(|at| said[*at] == About::Bloated)
        .collect();
    let all: Vec<usize> = (22..10 + 18 + 60).collect();
    assert_eq!(told, all, "{said:?}");
}

#[test]
fn small_packets_are_told_when_they_last_and_no_longer() {
    let mut history = History::new(Kind::Site, 1);
    let now = run(&mut history, START, 40, &["eth0"]);
    let path = |mtu| PathStatus {
        mtu,
        rtt_ms: 20.0,
        rtt_min_ms: 20.0,
        ..PathStatus::default()
    };
    // Discovery starts again after losses, for a moment.
    let mut paths = Vec::new();
    for _ in 0..8 {
        paths.extend([path(1_200), path(1_200), path(1_400)]);
    }
    paths.extend(vec![path(1_232); 20]);
    paths.extend(vec![path(1_400); 3]);
    let said = words_each_second(&mut history, now, &paths);
    let told: Vec<usize> = (0..said.len())
        .filter(|at| said[*at] == About::SmallPackets)
        .collect();
    assert_eq!(told, (34..44).collect::<Vec<_>>(), "{said:?}");
}

#[test]
fn a_hub_remembers_its_sites_as_one_and_tells_who_came() {
    let mut history = History::new(Kind::Hub, 5);
    let hub = |bytes: u64, up: bool| Status {
        role: "hub".to_owned(),
        tunnels: (0..3)
            .map(|n| TunnelStatus {
                peer: format!("s{n}"),
                up,
                tx_bytes: bytes,
                rx_bytes: bytes,
                ..TunnelStatus::default()
            })
            .collect(),
        ..Status::default()
    };
    history.sample(START, &hub(0, false));
    history.sample(START + 5_000, &hub(1_000_000, true));
    let points = history.points(Range::Minutes, 9);
    assert_eq!(points.up, [Some(3.0)]);
    assert_eq!(points.uplinks[0].name, ALL_SITES);
    assert_eq!(points.uplinks[0].sent, [Some(4.8e6)]);
    // One of the sites goes, and takes its counters along; the others send on.
    let mut fewer = hub(1_500_000, true);
    fewer.tunnels.pop();
    history.sample(START + 10_000, &fewer);
    // It is back, and counts anew.
    let mut back = hub(2_000_000, true);
    back.tunnels[2].tx_bytes = 250_000;
    history.sample(START + 15_000, &back);
    let points = history.points(Range::Minutes, 2);
    assert_eq!(points.uplinks[0].sent, [Some(1.6e6), Some(2e6)]);
    assert_eq!(points.offered, points.uplinks[0].sent);
    let events: Vec<_> = history
        .events()
        .into_iter()
        .map(|event| event.what)
        .collect();
    assert_eq!(events, ["site s0: up", "site s1: up", "site s2: up"]);
}

#[test]
fn a_site_that_comes_and_goes_pushes_no_other_out_of_what_happened() {
    let tunnel = |name: &str, up: bool| TunnelStatus {
        peer: name.to_owned(),
        up,
        ..TunnelStatus::default()
    };
    let mut history = History::new(Kind::Hub, 10);
    let mut now = START;
    history.happened(now, "the gateway started");
    for turn in 0..2_000_u64 {
        let tunnels = vec![tunnel("calm", true), tunnel("restless", turn % 2 == 0)];
        let role = "hub".to_owned();
        let status = Status {
            role,
            tunnels,
            ..Status::default()
        };
        history.sample(now, &status);
        now += 10_000;
    }
    let whats = |history: &History| -> Vec<String> {
        history
            .events()
            .into_iter()
            .map(|event| event.what)
            .collect()
    };
    let events = whats(&history);
    assert_eq!(events.len(), 200);
    assert_eq!(events[..2], ["the gateway started", "site calm: up"]);
    // The newest of the restless one are kept.
    let newest = history.events().pop().unwrap();
    assert_eq!(
        (newest.what.as_str(), newest.at_s),
        ("site restless: down", now / 1_000 - 10)
    );
    // The file knows who is who.
    let mut next = History::new(Kind::Hub, 10);
    next.restore(&history.save().unwrap()).unwrap();
    for _ in 0..150 {
        next.happened(now, "something else");
    }
    assert!(whats(&next).contains(&"site calm: up".to_owned()));
}

#[test]
fn uplinks_that_are_balanced_have_points_and_news() {
    let mut history = History::new(Kind::Balance, 1);
    let status = |bytes: u64, state: &str| Status {
        role: "balance".to_owned(),
        balance: Some(BalanceStatus {
            uplinks: vec![UplinkStatus {
                uplink: "lte".to_owned(),
                state_ipv4: state.to_owned(),
                state_ipv6: "none".to_owned(),
                rtt_ms: Some(30.0),
                tx_bytes: bytes,
                rx_bytes: 2 * bytes,
                ..UplinkStatus::default()
            }],
            ..BalanceStatus::default()
        }),
        ..Status::default()
    };
    for (second, state) in (0..).zip(["unproven", "up", "up", "dead", "dead", "up"]) {
        history.sample(START + second * 1_000, &status(second * 125_000, state));
    }
    history.sample(
        START + 6_000,
        &Status {
            balance: Some(BalanceStatus::default()),
            ..status(0, "up")
        },
    );
    let points = history.points(Range::Minutes, usize::MAX);
    let lte = &points.uplinks[0];
    assert_eq!(
        (lte.name.as_str(), lte.sent[0], lte.rtt_ms[0]),
        ("lte", Some(1e6), Some(30.0))
    );
    assert_eq!((lte.received[0], lte.loss[0]), (Some(2e6), None));
    let events = history.events();
    let told: Vec<_> = events.iter().map(|event| event.what.as_str()).collect();
    let expected = [
        "lte: unproven",
        "lte: up",
        "lte: dead",
        "lte: up",
        "lte: gone",
    ];
    assert_eq!(told, expected);
}

#[test]
fn an_uplink_is_compared_with_what_it_carried_in_the_minutes_before() {
    let mut history = History::new(Kind::Site, 1);
    let mut status = site(1, &["eth0"]);
    let mut now = START;
    let mut slow = |seconds: u64, full: Option<f64>| {
        for _ in 0..seconds {
            status.tunnels[0].paths[0].peer_full_mbit = full;
            now += 1_000;
            history.sample(now, &status);
        }
        history.describe(now, &mut status);
        let words = &status.tunnels[0].paths[0].words;
        words.iter().any(|words| words.about == About::Slow)
    };
    assert!(!slow(5, Some(17.0)));
    assert!(!slow(60, None));
    assert!(!slow(10, Some(2.0)), "for 9 s");
    assert!(slow(1, Some(2.0)));
    // After 5 to 10 minutes this is what it carries.
    assert!(slow(240, Some(2.0)));
    assert!(!slow(360, Some(2.0)));
}

#[test]
fn what_was_longer_ago_than_minutes_or_on_an_uplink_that_is_gone_is_not_compared() {
    let mut history = History::new(Kind::Site, 1);
    let mut status = site(1, &["eth0", "sat0"]);
    let mut now = START;
    let mut look = |near: &str, rtts: [f64; 2], seconds: u64| {
        for _ in 0..seconds {
            for (path, rtt) in status.tunnels[0].paths.iter_mut().zip(rtts) {
                (path.rtt_ms, path.rtt_min_ms) = (rtt, rtt);
            }
            near.clone_into(&mut status.tunnels[0].paths[0].state);
            now += 1_000;
            history.sample(now, &status);
        }
        history.describe(now, &mut status);
        let words = status.words.iter();
        let far = words.into_iter().find(|words| words.about == About::Far);
        far.map(|words| words.text.clone())
    };
    assert_eq!(look("up", [20.0, 600.0], 5), None);
    let far = |text: Option<String>, now: bool| {
        assert_eq!(text.unwrap().starts_with("the hub is far now"), now);
    };
    far(look("up", [640.0, 640.0], 5), true);
    far(look("up", [640.0, 640.0], 600), false);
    assert_eq!(look("up", [20.0, 600.0], 5), None);
    far(look("disabled", [20.0, 600.0], 5), false);
}

#[test]
fn a_refusal_between_attempts_that_time_out_is_told() {
    let mut history = History::new(Kind::Site, 1);
    let mut status = site(1, &["eth0"]);
    let mut now = START;
    let mut refused = |state: &str, error: &str, seconds: u64| {
        let tunnel = &mut status.tunnels[0];
        tunnel.down_s = (state != "up").then_some(5.0);
        state.clone_into(&mut tunnel.paths[0].state);
        tunnel.paths[0].last_error = Some(error.to_owned());
        for _ in 0..seconds {
            now += 1_000;
            history.sample(now, &status);
        }
        history.describe(now, &mut status);
        let mut words = status.words.iter();
        words.any(|words| words.text.contains("TCP is refused"))
    };
    assert!(!refused("down", "timed out", 3));
    let error = "TCP connection to 192.0.2.1:443: Connection refused (os error 111)";
    assert!(refused("down", error, 1));
    assert!(refused("down", "timed out", 59));
    assert!(!refused("down", "timed out", 1));
    assert!(refused("down", error, 1));
    refused("up", error, 1);
    assert!(!refused("down", "timed out", 1));
}

#[test]
fn the_newest_round_trip_is_told_of_a_path_that_carries_little() {
    let mut history = History::new(Kind::Site, 1);
    let mut status = site(1, &["eth0"]);
    let mut shown = |transport: &str, bytes: u64| {
        let mut now = START;
        for _ in 0..20 {
            let path = &mut status.tunnels[0].paths[0];
            (path.rtt_ms, path.rtt_min_ms) = (440.0, 72.0);
            transport.clone_into(&mut path.transport);
            path.rx_bytes += bytes;
            now += 1_000;
            history.sample(now, &status);
        }
        history.describe(now, &mut status);
        status.tunnels[0].paths[0].rtt_shown_ms()
    };
    assert_eq!(shown("quic", 1_000), 72.0);
    assert_eq!(shown("quic", 1_000_000), 440.0, "a download");
    assert_eq!(shown("tls", 1_000), 440.0, "its smallest is minutes old");
}

#[test]
fn an_uplink_is_not_blamed_for_a_hub_that_goes_away_nor_twice_for_one_failure() {
    let mut history = History::new(Kind::Site, 1);
    let mut status = site(1, &["eth0", "wlan0"]);
    let mut now = START;
    let mut look =
        |history: &mut History, status: &mut Status, states: [&str; 2], failed: [u64; 2]| {
            for (path, (state, failed)) in status.tunnels[0]
                .paths
                .iter_mut()
                .zip(states.iter().zip(failed))
            {
                (*state).clone_into(&mut path.state);
                path.failures += failed;
            }
            now += 1_000;
            history.sample(now, status);
            now
        };
    let blamed = |history: &History, status: &mut Status, now: u64| {
        history.describe(now, status);
        let paths = &status.tunnels[0].paths;
        let about = |path: &PathStatus| {
            path.words
                .iter()
                .any(|words| words.about == About::Flapping)
        };
        paths.iter().map(about).collect::<Vec<_>>()
    };
    // The hub goes away four times: each path is suspected, and then closed.
    for _ in 0..4 {
        look(&mut history, &mut status, ["up", "up"], [0, 0]);
        look(&mut history, &mut status, ["suspect", "up"], [1, 0]);
        look(&mut history, &mut status, ["down", "suspect"], [1, 1]);
        look(&mut history, &mut status, ["down", "down"], [0, 1]);
    }
    let now = look(&mut history, &mut status, ["up", "up"], [0, 0]);
    assert_eq!(blamed(&history, &mut status, now), [false, false]);
    // One uplink fails, which counts twice.
    for failures in 1..=3 {
        // The counter of the former connection is gone the second time.
        status.tunnels[0].paths[0].failures = 0;
        let first = u64::from(failures != 2);
        look(&mut history, &mut status, ["suspect", "up"], [first, 0]);
        look(&mut history, &mut status, ["down", "up"], [1, 0]);
        let now = look(&mut history, &mut status, ["up", "up"], [0, 0]);
        assert_eq!(blamed(&history, &mut status, now), [failures == 3, false]);
    }
}
