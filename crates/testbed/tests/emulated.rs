//! The testbed proves itself on emulated links: TCP over each, MPTCP over both.
//!
//! Needs `ropewalk-linkem` built in the same profile (`make test` builds the programs first).
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::Duration;

use ropewalk_testbed::topology::SERVER;
use ropewalk_testbed::traffic::bulk::{self, BulkSpec};
use ropewalk_testbed::traffic::ping::{self, PingSpec};
use ropewalk_testbed::traffic::probe::{Probe, ProbeSpec};
use ropewalk_testbed::{LinkSpec, Topology, TopologySpec, programs};

/// Payload of a full TCP segment with timestamps, over the bytes of its IP packet.
const TCP_SHARE: f64 = 1_448.0 / 1_500.0;

fn two_links(purpose: &str) -> Option<Topology> {
    if programs::own("ropewalk-linkem").is_err() {
        eprintln!("skipped: ropewalk-linkem is not built");
        return None;
    }
    let links = vec![
        LinkSpec::steady(16.0, Duration::from_millis(25)),
        LinkSpec::steady(8.0, Duration::from_millis(35)),
    ];
    Some(Topology::build(&TopologySpec::new(purpose, links)).unwrap())
}

#[test]
fn tcp_and_mptcp_reach_their_share_of_the_links() {
    let Some(topology) = two_links("emu") else {
        return;
    };
    let ends = topology.endpoints();
    let time = Duration::from_secs(8);
    let mut alone = Vec::new();
    for (uplink, rate) in [("up0", 16.0), ("up1", 8.0)] {
        let report = bulk::run(&ends.through(uplink), &BulkSpec::download(3, time)).unwrap();
        assert_eq!(report.broken(), 0, "{:?}", report.reasons());
        let ceiling = rate * TCP_SHARE;
        println!(
            "{uplink}: {:.2} of {ceiling:.2} Mbit/s",
            report.goodput_mbit
        );
        assert!(
            report.goodput_mbit < ceiling * 1.02,
            "more than the link carries"
        );
        alone.push(report.goodput_mbit);
    }
    if !topology.enable_mptcp().unwrap() {
        eprintln!("skipped the rest: this kernel has no MPTCP");
        return;
    }
    let spec = BulkSpec::download(3, time).over_mptcp();
    let report = bulk::run(&ends, &spec).unwrap();
    println!(
        "MPTCP: {:.2} of {:.2} Mbit/s",
        report.goodput_mbit,
        24.0 * TCP_SHARE
    );
    assert_eq!(report.broken(), 0, "{:?}", report.reasons());
    assert!(
        report.goodput_mbit > alone[0],
        "MPTCP is no better than the better link: {alone:?}"
    );
}

#[test]
fn delay_and_loss_are_those_of_the_link() {
    let Some(topology) = two_links("delay") else {
        return;
    };
    let mut spec = PingSpec::new(SERVER.into());
    spec.count = 10;
    let report = ping::run(topology.site(), &spec).unwrap();
    assert!(report.rtt_ms.min >= 50.0, "{report:?}");
    topology.uplinks()[0].link.set("both", "loss=50%").unwrap();
    let probe = Probe::start(&topology.endpoints(), &ProbeSpec::call()).unwrap();
    std::thread::sleep(Duration::from_secs(4));
    let report = probe.finish().unwrap().report();
    assert!((0.3..0.7).contains(&report.delivered_ratio), "{report:?}");
    let error = topology.uplinks()[0]
        .link
        .set("both", "loss=much")
        .unwrap_err();
    assert!(error.to_string().contains("much"), "{error:#}");
}

#[test]
fn the_capacity_of_a_trace_is_that_of_its_window() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.csv");
    std::fs::write(&path, "1,1000000\n2,2000000\n3,500000\n").unwrap();
    let mut link = LinkSpec::steady(1.0, Duration::ZERO);
    if let LinkSpec::Emulated { down, .. } = &mut link {
        down.capacity = ropewalk_testbed::Capacity::Trace(path);
    }
    for (from, to, mbit) in [(0, 1, 8.0), (1, 3, 10.0), (0, 6, 28.0 / 3.0)] {
        let capacity = link
            .capacity_mbit(Duration::from_secs(from), Duration::from_secs(to))
            .unwrap();
        assert!(
            (capacity - mbit).abs() < mbit * 0.01,
            "{from} to {to}: {capacity}"
        );
    }
}
