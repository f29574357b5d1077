//! Queue management, ECN, shared links and traffic beside the carrier.

use ropewalk_plan::{Plan, Report};
use ropewalk_sim::run;

fn report(text: &str) -> Report {
    let plan = Plan::parse(&format!("name = \"test\"\n{text}")).expect("a valid plan");
    let report = run(&plan, plan.seed).expect("a plan that can be simulated");
    assert_eq!(
        report.notes,
        Vec::<String>::new(),
        "nothing is lost on the way"
    );
    report
}

/// One CUBIC connection and a ping over 20 Mbit/s, a round trip of 40 ms and four times the product
/// of both as a queue; `queue` adds to the link and `tcp` to the connection.
fn over_deep_queue(queue: &str, tcp: &str) -> Report {
    report(&format!(
        "duration = \"30s\"\nwarmup = \"10s\"\n[[path]]\nname = \"a\"\n\
         both = {{ rate = \"20Mbit\", delay = \"20ms\", queue = \"400kB\", {queue} }}\n\
         [[traffic]]\nkind = \"tcp\"\n{tcp}\n[[traffic]]\nkind = \"ping\""
    ))
}

fn ping_ms(report: &Report) -> f64 {
    report.traffic[1].delay_ms.expect("pings").p50
}

#[test]
fn management_keeps_the_standing_queue_of_a_cubic_flow_near_its_target() {
    let plain = over_deep_queue("", "");
    assert!(ping_ms(&plain) > 140.0, "{} ms", ping_ms(&plain));
    for (aqm, target_ms) in [("codel", 5.0), ("pie", 15.0)] {
        for ecn in [false, true] {
            let managed = over_deep_queue(
                &format!("aqm = \"{aqm}\", ecn = {ecn}"),
                &format!("ecn = {ecn}"),
            );
            let wait_ms = ping_ms(&managed) - 40.0;
            let goodput = managed.traffic[0].goodput_mbit / managed.ceiling_mbit;
            let path = &managed.paths[0];
            assert!(
                (target_ms * 0.2..target_ms * 2.0).contains(&wait_ms) && goodput > 0.85,
                "{aqm} {ecn}: {wait_ms} ms, {goodput}"
            );
            assert_eq!(
                (path.marked > 0, path.dropped_aqm > 0),
                (ecn, !ecn),
                "{path:?}"
            );
            let again = managed.traffic[0].flows[0].retransmits;
            assert!(
                !ecn || again == 0 || aqm == "pie",
                "{aqm}: {again} sent again"
            );
        }
    }
}

#[test]
fn flows_with_a_queue_each_leave_a_ping_alone() {
    let managed = over_deep_queue("aqm = \"fq-codel\"", "flows = 4");
    assert!(ping_ms(&managed) < 43.0, "{} ms", ping_ms(&managed));
}

#[test]
fn a_sender_without_ecn_and_one_with_bbr_are_told_nothing() {
    for tcp in ["", "ecn = true\ncongestion = \"bbr\""] {
        let step = over_deep_queue("ce_threshold = \"1ms\"", tcp);
        assert_eq!(step.paths[0].marked > 0, tcp.contains("ecn"), "{tcp}");
        assert!(
            step.traffic[0].goodput_mbit > 0.9 * step.ceiling_mbit,
            "{tcp}"
        );
    }
}

#[test]
fn marks_come_through_a_tunnel_and_stand_in_for_losses() {
    let managed = |ecn: bool| {
        report(&format!(
            "duration = \"20s\"\nwarmup = \"8s\"\n[[path]]\nname = \"a\"\n\
             both = {{ rate = \"20Mbit\", delay = \"20ms\", queue = \"400kB\", \
             ce_threshold = \"5ms\" }}\n[carrier]\nkind = \"tunnel\"\n\
             [[traffic]]\nkind = \"tcp\"\necn = {ecn}"
        ))
    };
    // The tunnel's own congestion control is marked either way; only hosts that can be told are.
    for ecn in [false, true] {
        let report = managed(ecn);
        assert!(report.paths[0].marked > 0, "{:?}", report.paths);
        assert!(report.traffic[0].goodput_mbit > 0.5 * report.ceiling_mbit);
    }
}

/// Two paths through one link of 10 Mbit/s, with `carrier`, and `beside` beside it.
fn shared(carrier: &str, beside: &str) -> Report {
    report(&format!(
        "duration = \"20s\"\nwarmup = \"5s\"\n\
         [[path]]\nname = \"a\"\nthrough = \"cell\"\nboth = {{ rate = \"20Mbit\", delay = \"5ms\" }}\n\
         [[path]]\nname = \"b\"\nthrough = \"cell\"\nboth = {{ rate = \"30Mbit\", delay = \"10ms\" }}\n\
         [[link]]\nname = \"cell\"\nboth = {{ rate = \"10Mbit\", delay = \"10ms\", queue = \"100kB\", aqm = \"fq-codel\" }}\n\
         [carrier]\n{carrier}\n[[traffic]]\nkind = \"tcp\"\n{beside}"
    ))
}

#[test]
fn a_shared_link_limits_all_its_paths_together() {
    for carrier in ["kind = \"tunnel\"", "kind = \"path\"\npath = \"b\""] {
        let report = shared(carrier, "");
        let goodput = report.traffic[0].goodput_mbit;
        assert!(
            report.ceiling_mbit < 10.0,
            "{carrier}: {}",
            report.ceiling_mbit
        );
        let share = goodput / report.ceiling_mbit;
        assert!((0.85..=1.01).contains(&share), "{carrier}: {share}");
        let cell = &report.links[0];
        assert_eq!(cell.name, "cell");
        // What waits or is on its way at the edges of the counted time is one product.
        let paths: u64 = report.paths.iter().map(|path| path.bytes).sum();
        let passed = cell.bytes - (cell.dropped + cell.dropped_aqm) * 1_491;
        assert!(paths.abs_diff(passed) < 400_000, "{paths} {passed}");
    }
}

#[test]
fn traffic_beside_the_carrier_shares_the_link_until_it_leaves() {
    for carrier in ["kind = \"tunnel\"", "kind = \"direct\""] {
        for place in ["cell", "a"] {
            let beside = format!(
                "[[traffic]]\nkind = \"tcp\"\nbeside = \"{place}\"\nstart = \"2s\"\nuntil = \"12s\""
            );
            let report = shared(carrier, &beside);
            let series = |section: usize, seconds: std::ops::Range<usize>| -> f64 {
                let count = seconds.len() as f64;
                report.traffic[section].series_mbit[seconds]
                    .iter()
                    .sum::<f64>()
                    / count
            };
            let during = (series(0, 6..12), series(1, 6..12));
            let sum = during.0 + during.1;
            assert!((8.0..10.0).contains(&sum), "{carrier} {place}: {during:?}");
            assert!(
                during.0 > 2.0 && during.1 > 2.0,
                "{carrier} {place}: {during:?}"
            );
            assert!(series(1, 13..20) < 1e-9 && series(1, 0..2) < 1e-9);
            assert!(series(0, 15..20) > 8.0, "{carrier} {place}");
        }
    }
}

#[test]
fn hosts_with_a_tunnel_of_their_own_share_a_link_with_the_carrier() {
    // Two neighbours at one place have a site each.
    let two = "[[traffic]]\nkind = \"tcp\"\nbeside = \"a\"\ntunnel = true\n";
    let three = shared("kind = \"tunnel\"", &two.repeat(2));
    assert!(three.traffic.iter().all(|t| t.goodput_mbit > 1.5));
    for place in ["cell", "a"] {
        let beside = format!("[[traffic]]\nkind = \"tcp\"\nbeside = \"{place}\"\ntunnel = true");
        let report = shared("kind = \"tunnel\"", &beside);
        let [first, second] = [0, 1].map(|section| report.traffic[section].goodput_mbit);
        assert!((8.0..9.6).contains(&(first + second)), "{first} {second}");
        assert!(first > 3.0 && second > 3.0, "{place}: {first} {second}");
    }
}

#[test]
fn equal_seeds_give_equal_runs_over_shared_links() {
    let beside = "[[traffic]]\nkind = \"tcp\"\nbeside = \"b\"\nflows = 2";
    let hash = |carrier, beside: &str| shared(carrier, beside).trace_hash;
    for carrier in ["kind = \"tunnel\"", "kind = \"direct\""] {
        assert_eq!(hash(carrier, beside), hash(carrier, beside));
    }
    let tunnel = format!("{beside}\ntunnel = true");
    let carrier = "kind = \"tunnel\"";
    assert_eq!(hash(carrier, &tunnel), hash(carrier, &tunnel));
    assert_ne!(hash(carrier, &tunnel), hash(carrier, beside));
}

/// A tunnel with one CUBIC connection beside bare ones over one link, which stop after 40 of 70 s.
/// The share of the tunnel until then, and the mean of pings in the given seconds, in ms.
fn beside_cubic(link: &str, flows: u32, seed: u64, alone: (u32, u32)) -> (f64, f64) {
    let text = |from: u32, to: u32| {
        format!(
            "seed = {seed}\nduration = \"{to}s\"\nwarmup = \"{from}s\"\n[[path]]\nname = \"a\"\n\
             both = {{ jitter = \"0.2ms\", {link} }}\n[carrier]\nkind = \"tunnel\"\n\
             [[traffic]]\nkind = \"tcp\"\n[[traffic]]\nkind = \"ping\"\n\
             [[traffic]]\nkind = \"tcp\"\nbeside = \"a\"\nuntil = \"40s\"\nflows = {flows}"
        )
    };
    let together = report(&text(15, 40));
    let [tunnel, _, bare] = &together.traffic[..] else {
        panic!("three kinds of traffic");
    };
    let share = tunnel.goodput_mbit / (tunnel.goodput_mbit + bare.goodput_mbit);
    (share, ping_ms(&report(&text(alone.0, alone.1))))
}

/// Mean share of two seeds, and the pings of both.
fn shares_and_pings(link: &str, flows: u32, alone: (u32, u32)) -> (f64, Vec<f64>) {
    let runs = (1..=2).map(|seed| beside_cubic(link, flows, seed, alone));
    let (shares, pings): (Vec<_>, Vec<_>) = runs.unzip();
    (shares.iter().sum::<f64>() / 2.0, pings)
}

#[test]
fn a_tunnel_holds_its_own_in_a_deep_queue_and_empties_it_when_alone() {
    let link = "rate = \"20Mbit\", delay = \"20ms\", queue = \"400kB\"";
    let (share, pings) = shares_and_pings(link, 1, (60, 70));
    // Ten seeds have 0.27 to 0.38, and 0.13 on average where the tunnel yields.
    assert!(
        (0.24..0.8).contains(&share),
        "an equal share is 0.5: {share}"
    );
    assert!(pings.iter().all(|ms| *ms < 70.0), "{pings:?} ms of 40");
}

#[test]
fn a_tunnel_leaves_others_their_share_of_a_short_queue() {
    // One bandwidth-delay product.
    let link = "rate = \"50Mbit\", delay = \"10ms\", queue = \"125kB\"";
    let (share, pings) = shares_and_pings(link, 4, (45, 70));
    assert!(
        (0.12..0.32).contains(&share),
        "an equal share is 0.2: {share}"
    );
    assert!(pings.iter().all(|ms| *ms < 35.0), "{pings:?} ms of 20");
}

/// Mean share over four seeds of four connections in a tunnel over `paths` paths through one link of 20 Mbit/s,
/// beside four bare ones.
fn share(paths: usize, coupled: bool) -> f64 {
    let seeds = 1..=4_u32;
    let shares = seeds.clone().map(|seed| share_of(seed, paths, coupled));
    shares.sum::<f64>() / f64::from(*seeds.end())
}

fn share_of(seed: u32, paths: usize, coupled: bool) -> f64 {
    let path = |nth: usize| {
        format!("[[path]]\nname = \"p{nth}\"\nthrough = \"cell\"\nboth = {{ delay = \"1ms\" }}\n")
    };
    let paths: String = (0..paths).map(path).collect();
    let tcp = "[[traffic]]\nkind = \"tcp\"\nflows = 4\ncongestion = \"cubic\"\ndirection = \"up\"";
    let report = report(&format!(
        "seed = {seed}\nduration = \"30s\"\nwarmup = \"10s\"\n{paths}\
         [[link]]\nname = \"cell\"\n\
         both = {{ rate = \"20Mbit\", delay = \"19ms\", jitter = \"0.2ms\", queue = \"100kB\" }}\n\
         [carrier]\nkind = \"tunnel\"\ncoupled = {coupled}\n{tcp}\n{tcp}\nbeside = \"cell\""
    ));
    let all: f64 = report
        .traffic
        .iter()
        .map(|section| section.goodput_mbit)
        .sum();
    report.traffic[0].goodput_mbit / all
}

#[test]
fn coupled_paths_through_one_link_take_the_share_of_one() {
    let (one, two, coupled) = (share(1, false), share(2, false), share(2, true));
    assert!(two > one + 0.06, "{one} {two}");
    assert!(coupled < two - 0.06, "{two} {coupled}");
    assert!((coupled - one).abs() < 0.08, "{one} {coupled}");
}
