//! The testbed proves itself on bare veth pairs.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::Duration;

use ropewalk_testbed::topology::Cut;
use ropewalk_testbed::traffic::bulk::{self, Amount, BulkSpec};
use ropewalk_testbed::traffic::ping::{self, PingSpec};
use ropewalk_testbed::traffic::probe::{Probe, ProbeSpec};
use ropewalk_testbed::traffic::{Direction, iperf};
use ropewalk_testbed::{LinkSpec, Topology, TopologySpec, topology};

fn two_veths(purpose: &str) -> Topology {
    let links = vec![LinkSpec::unshaped(true), LinkSpec::unshaped(false)];
    Topology::build(&TopologySpec::new(purpose, links)).unwrap()
}

#[test]
fn a_download_is_whole_over_either_uplink_and_both_families() {
    let topology = two_veths("bulk");
    let amount = Amount::Bytes {
        bytes: 30_000_000,
        limit: Duration::from_secs(20),
    };
    for ends in [topology.endpoints(), topology.endpoints_v6()] {
        for uplink in ["up0", "up1"] {
            let before = topology.site().interface_bytes(uplink).unwrap().0;
            let spec = BulkSpec {
                amount,
                ..BulkSpec::download(2, Duration::ZERO)
            };
            let report = bulk::run(&ends.through(uplink), &spec).unwrap();
            assert_eq!(report.broken(), 0, "{:?}", report.reasons());
            assert_eq!(report.bytes, 60_000_000);
            let carried = topology.site().interface_bytes(uplink).unwrap().0 - before;
            assert!(carried > 60_000_000, "{uplink} carried {carried}");
        }
    }
}

#[test]
fn every_cut_stops_the_stream_and_every_restore_brings_it_back() {
    let topology = two_veths("cut");
    let ends = topology.endpoints();
    for cut in Cut::ALL {
        let probe =
            Probe::start(&ends.through("up0"), &ProbeSpec::fine(Direction::Upload)).unwrap();
        topology.cut(0, cut).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let cut_off = probe.arrived();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(
            probe.arrived(),
            cut_off,
            "{} lets packets through",
            cut.name()
        );
        topology.restore(0, cut).unwrap();
        let back = probe.arrived();
        let restored = (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            probe.arrived() > back
        });
        let report = probe.finish().unwrap().report();
        assert!(restored, "{} was not undone", cut.name());
        assert!(report.longest_gap_ms >= 300.0, "{report:?}");
        assert!(report.delivered_ratio < 1.0, "{report:?}");
    }
}

#[test]
fn blocked_udp_leaves_tcp_and_ping_alone() {
    let topology = two_veths("udp");
    topology.block_udp(true).unwrap();
    let ends = topology.endpoints();
    let mut spec = PingSpec::new(topology::SERVER_V6.into());
    spec.count = 3;
    assert_eq!(ping::run(topology.site(), &spec).unwrap().received, 3);
    let report = iperf::run(&ends, &iperf::IperfSpec::tcp(1, 1)).unwrap();
    assert!(report.goodput_mbit > 1.0, "{report:?}");
    let refused = Probe::start(&ends, &ProbeSpec::fine(Direction::Download));
    assert!(refused.is_err(), "UDP came through");
    topology.block_udp(false).unwrap();
    let probe = Probe::start(&ends, &ProbeSpec::call()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(probe.finish().unwrap().report().received > 5);
}

#[test]
fn namespaces_are_gone_after_the_topology() {
    let topology = two_veths("gone");
    let path = std::path::PathBuf::from("/run/netns").join(topology.site().name());
    assert!(path.exists());
    let directory = topology.directory().to_owned();
    drop(topology);
    assert!(!path.exists() && !directory.exists());
}
