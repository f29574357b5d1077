//! The tunnel carries traffic whole, over every path, with every scheduler.

use std::time::Duration;

use ropewalk_e2e::{Lab, ready, two_links, whole};
use ropewalk_testbed::LinkSpec;
use ropewalk_testbed::gateway::{Gateway, GatewaySpec};
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::traffic::bulk::{self, Amount, BulkSpec};
use ropewalk_testbed::traffic::ping::{self, PingSpec};
use ropewalk_testbed::traffic::probe::{Probe, ProbeSpec};
use ropewalk_types::SchedulerKind;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn downloads_and_uploads_are_whole_over_both_families() {
    if !ready() {
        return;
    }
    let lab = Lab::new("whole", two_links()).unwrap();
    let amount = Amount::Bytes {
        bytes: 5_000_000,
        limit: LIMIT,
    };
    for ends in [lab.topology.endpoints(), lab.topology.endpoints_v6()] {
        for direction in [Direction::Download, Direction::Upload] {
            let spec = BulkSpec {
                amount,
                direction,
                ..BulkSpec::download(3, LIMIT)
            };
            whole(bulk::run(&ends, &spec).unwrap()).unwrap();
        }
    }
}

#[test]
fn one_download_uses_every_path() {
    if !ready() {
        return;
    }
    let lab = Lab::new("paths", two_links()).unwrap();
    let before = lab.site.status().unwrap();
    let report = lab
        .transfer(Direction::Download, 4, 8_000_000, LIMIT)
        .unwrap();
    let after = lab.site.status().unwrap();
    for (old, new) in before.paths().zip(after.paths()) {
        let carried = new.rx_bytes - old.rx_bytes;
        assert!(
            carried > report.bytes / 10,
            "{} carried {carried}",
            new.uplink
        );
    }
}

#[test]
fn the_server_answers_pings_through_the_tunnel_in_both_families() {
    if !ready() {
        return;
    }
    let lab = Lab::new("ping", two_links()).unwrap();
    for ends in [lab.topology.endpoints(), lab.topology.endpoints_v6()] {
        let mut spec = PingSpec::new(ends.server_address);
        spec.count = 10;
        let report = ping::run(&ends.client, &spec).unwrap();
        assert_eq!((report.received, report.duplicates), (10, 0), "{report:?}");
    }
}

#[test]
fn switching_schedulers_while_running_loses_no_packet() {
    if !ready() {
        return;
    }
    let lab = Lab::new("switch", two_links()).unwrap();
    let ends = lab.topology.endpoints();
    let up = Probe::start(&ends, &ProbeSpec::fine(Direction::Upload)).unwrap();
    let down = Probe::start(&ends, &ProbeSpec::fine(Direction::Download)).unwrap();
    for name in SchedulerKind::ALL.map(SchedulerKind::name) {
        lab.site
            .run(&["scheduler", name])
            .unwrap()
            .success()
            .unwrap();
        std::thread::sleep(Duration::from_millis(400));
    }
    for probe in [up, down] {
        let report = probe.finish().unwrap().report();
        assert_eq!(report.received, report.sent, "{report:?}");
        assert_eq!(report.duplicates, 0, "{report:?}");
    }
}

#[test]
fn every_scheduler_delivers_a_download_whole() {
    if !ready() {
        return;
    }
    let lab = Lab::new("sched", two_links()).unwrap();
    for name in SchedulerKind::ALL.map(SchedulerKind::name) {
        lab.site
            .run(&["scheduler", name])
            .unwrap()
            .success()
            .unwrap();
        let report = lab.transfer(Direction::Download, 3, 1_500_000, LIMIT);
        report.unwrap_or_else(|error| panic!("{name}: {error:#}"));
    }
}

#[test]
fn an_unknown_scheduler_is_refused_and_nothing_changes() {
    if !ready() {
        return;
    }
    let lab = Lab::new("unknown", two_links()).unwrap();
    let finished = lab.site.run(&["scheduler", "htm"]).unwrap();
    assert!(!finished.status.success());
    assert!(
        finished.stderr.contains("htmt"),
        "no suggestion: {}",
        finished.stderr
    );
    lab.passes().unwrap();
}

#[test]
fn a_disabled_path_carries_nothing_until_it_is_enabled() {
    if !ready() {
        return;
    }
    let lab = Lab::new("disable", two_links()).unwrap();
    lab.site
        .run(&["path", "disable", "up0"])
        .unwrap()
        .success()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let before = lab.topology.site().interface_bytes("up0").unwrap().0;
    let report = lab
        .transfer(Direction::Download, 2, 2_000_000, LIMIT)
        .unwrap();
    let carried = lab.topology.site().interface_bytes("up0").unwrap().0 - before;
    assert!(carried < report.bytes / 20, "up0 carried {carried}");
    lab.site
        .run(&["path", "enable", "up0"])
        .unwrap()
        .success()
        .unwrap();
    lab.site.wait_paths(2, Duration::from_secs(15)).unwrap();
    let finished = lab.site.run(&["path", "disable", "nothing0"]).unwrap();
    assert!(!finished.status.success() && finished.stderr.contains("nothing0"));
}

#[test]
fn bare_links_with_and_without_udp_segmentation_carry_the_tunnel() {
    if !ready() {
        return;
    }
    for segmentation in [true, false] {
        let links = vec![
            LinkSpec::unshaped(segmentation),
            LinkSpec::unshaped(segmentation),
        ];
        let lab = Lab::new("veth", links).unwrap();
        lab.transfer(Direction::Download, 3, 20_000_000, LIMIT)
            .unwrap();
        lab.transfer(Direction::Upload, 3, 20_000_000, LIMIT)
            .unwrap();
    }
}

#[test]
fn dscp_and_ecn_reach_the_far_end_of_the_tunnel() {
    if !ready() {
        return;
    }
    let lab = Lab::new("dscp", two_links()).unwrap();
    let count = "table inet marks { counter inner { }\ncounter outer { }\n\
        chain seen { type filter hook prerouting priority -200;\n";
    let server = format!(
        "{count}icmp type echo-request ip dscp ef ip ecn ect0 counter name inner\n}}\n}}\n"
    );
    lab.topology.server().nft(&server).unwrap();
    let hub = format!("{count}udp dport 4443 ip dscp ef counter name outer\n}}\n}}\n");
    lab.topology.hub().nft(&hub).unwrap();
    // Expedited forwarding (46) and ECT(0) (RFC 3246, RFC 3168): 46 << 2 | 2.
    let target = lab.topology.endpoints().server_address.to_string();
    let ping = lab.topology.site().program("ping");
    let ping = ping.args(["-Q", "0xba", "-c", "5", "-i", "0.05", "-n", &target]);
    ping.success(Duration::from_secs(15)).unwrap();
    for (namespace, name) in [
        (lab.topology.server(), "inner"),
        (lab.topology.hub(), "outer"),
    ] {
        let list = namespace
            .program("nft")
            .args(["list", "counter", "inet", "marks", name]);
        let text = list.success(Duration::from_secs(5)).unwrap();
        let packets = text
            .split("packets ")
            .nth(1)
            .and_then(|t| t.split(' ').next());
        let packets: u64 = packets.and_then(|n| n.parse().ok()).unwrap();
        assert!(packets >= 5, "{name}: {text}");
    }
}

#[test]
fn metered_and_standby_uplinks_carry_nothing_while_others_can() {
    if !ready() {
        return;
    }
    let more = "[[uplink]]\nmatch = \"up1\"\nstandby = true\n".to_owned();
    let site = GatewaySpec {
        more,
        ..GatewaySpec::default()
    };
    let spec = ropewalk_testbed::TopologySpec::new("standby", two_links());
    let ground = ropewalk_e2e::Ground::new(&spec).unwrap();
    let lab = ground.connect(&GatewaySpec::default(), &site).unwrap();
    let carried = |gateway: &Gateway| gateway.namespace().interface_bytes("up1").unwrap().0;
    let before = carried(&lab.site);
    let report = lab
        .transfer(Direction::Download, 3, 4_000_000, LIMIT)
        .unwrap();
    let standby = carried(&lab.site) - before;
    assert!(
        standby < report.bytes / 20,
        "the standby uplink carried {standby}"
    );
    lab.topology.uplinks()[0].link.set_blackhole(true).unwrap();
    lab.transfer(Direction::Download, 3, 1_000_000, LIMIT)
        .unwrap();
}
