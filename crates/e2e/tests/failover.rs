//! Uplinks fail and return, one or all of them; connections live on.

use std::time::Duration;

use ropewalk_e2e::{Lab, ready, two_links, whole};
use ropewalk_testbed::topology::Cut;
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::traffic::bulk::{Amount, Bulk, BulkSpec};
use ropewalk_testbed::traffic::probe::{Probe, ProbeSpec};

/// Enough for a slow machine; how fast it is, the benchmark `bench-failover` says.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn a_stream_goes_on_after_every_kind_of_cut_of_either_uplink() {
    if !ready() {
        return;
    }
    let lab = Lab::new("cuts", two_links()).unwrap();
    let probe = Probe::start(
        &lab.topology.endpoints(),
        &ProbeSpec::fine(Direction::Download),
    )
    .unwrap();
    for cut in Cut::ALL {
        for uplink in [0, 1] {
            lab.topology.cut(uplink, cut).unwrap();
            std::thread::sleep(Duration::from_secs(1));
            let before = probe.arrived();
            std::thread::sleep(Duration::from_secs(1));
            let flowing = probe.arrived() > before + 20;
            assert!(
                flowing,
                "{} of uplink {uplink} stopped the stream: {}",
                cut.name(),
                lab.explain()
            );
            lab.topology.restore(uplink, cut).unwrap();
            lab.site.wait_paths(2, PATIENCE).unwrap();
        }
    }
    let report = probe.finish().unwrap().report();
    assert!(report.delivered_ratio > 0.8, "{report:?}");
}

#[test]
fn downloads_survive_a_cut_and_a_return_whole() {
    if !ready() {
        return;
    }
    for cut in Cut::ALL {
        let lab = Lab::new("survive", two_links()).unwrap();
        let amount = Amount::Bytes {
            bytes: 8_000_000,
            limit: Duration::from_secs(60),
        };
        let spec = BulkSpec {
            amount,
            ..BulkSpec::download(4, PATIENCE)
        };
        let bulk = Bulk::start(&lab.topology.endpoints(), &spec).unwrap();
        std::thread::sleep(Duration::from_secs(1));
        lab.topology.cut(0, cut).unwrap();
        std::thread::sleep(Duration::from_secs(2));
        lab.topology.restore(0, cut).unwrap();
        whole(bulk.finish().unwrap()).unwrap_or_else(|e| panic!("{}: {e:#}", cut.name()));
        lab.site.wait_paths(2, PATIENCE).unwrap();
    }
}

#[test]
fn a_returning_uplink_carries_traffic_again() {
    if !ready() {
        return;
    }
    let lab = Lab::new("return", two_links()).unwrap();
    for cut in Cut::ALL {
        lab.topology.cut(0, cut).unwrap();
        lab.site.wait_paths(1, PATIENCE).unwrap();
        lab.topology.restore(0, cut).unwrap();
        lab.site.wait_paths(2, PATIENCE).unwrap();
        let before = lab.topology.site().interface_bytes("up0").unwrap().0;
        let limit = Duration::from_secs(60);
        let report = lab
            .transfer(Direction::Download, 4, 4_000_000, limit)
            .unwrap();
        let carried = lab.topology.site().interface_bytes("up0").unwrap().0 - before;
        assert!(
            carried > report.bytes / 50,
            "after {} up0 carried {carried}",
            cut.name()
        );
    }
}

#[test]
fn a_download_survives_three_seconds_without_any_uplink() {
    if !ready() {
        return;
    }
    let lab = Lab::new("dark", two_links()).unwrap();
    let amount = Amount::Bytes {
        bytes: 8_000_000,
        limit: Duration::from_secs(90),
    };
    let spec = BulkSpec {
        amount,
        ..BulkSpec::download(3, PATIENCE)
    };
    let bulk = Bulk::start(&lab.topology.endpoints(), &spec).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    for uplink in [0, 1] {
        lab.topology.cut(uplink, Cut::Blackhole).unwrap();
    }
    std::thread::sleep(Duration::from_secs(3));
    for uplink in [0, 1] {
        lab.topology.restore(uplink, Cut::Blackhole).unwrap();
    }
    whole(bulk.finish().unwrap()).unwrap();
}

#[test]
fn a_new_address_and_a_renamed_interface_become_paths() {
    if !ready() {
        return;
    }
    let lab = Lab::new("rename", two_links()).unwrap();
    let site = lab.topology.site();
    site.ip("addr flush dev up0\naddr add 192.168.10.77/24 dev up0\n\
         route replace default via 192.168.10.1 dev up0 metric 100\n")
        .unwrap();
    lab.site.wait_paths(2, PATIENCE).unwrap();
    site.ip(
        "link set up1 down\nlink set up1 name upnew\nlink set upnew up\n\
         addr replace 192.168.11.2/24 dev upnew\n\
         route replace default via 192.168.11.1 dev upnew metric 101\n",
    )
    .unwrap();
    let named = |status: &ropewalk_api::Status| {
        status
            .paths()
            .any(|path| path.uplink == "upnew" && path.state == "up")
    };
    lab.site
        .wait_for("path over upnew", PATIENCE, named)
        .unwrap();
    lab.passes().unwrap();
}

#[test]
fn a_nat_that_changes_its_mapping_does_not_end_the_tunnel() {
    if !ready() {
        return;
    }
    let lab = Lab::new("nat", two_links()).unwrap();
    let amount = Amount::Bytes {
        bytes: 6_000_000,
        limit: Duration::from_secs(60),
    };
    let spec = BulkSpec {
        amount,
        ..BulkSpec::download(2, PATIENCE)
    };
    let bulk = Bulk::start(&lab.topology.endpoints(), &spec).unwrap();
    // From now on other source ports arrive at the hub, as behind a NAT that was restarted. No
    // connection tracking, which would keep the mapping of what it has seen.
    let mut out = String::from("table ip rebind { chain out {\n");
    out += "type filter hook postrouting priority 300;\n";
    let mut back = String::from("}\nchain back {\ntype filter hook prerouting priority -350;\n");
    for (path, port) in lab.hub.status().unwrap().paths().zip(20_000..) {
        let (uplink, former) = (&path.uplink, path.remote.unwrap().port());
        out += &format!("oifname {uplink} udp dport 4443 udp sport set {port}\n");
        back += &format!("iifname {uplink} udp sport 4443 udp dport set {former}\n");
    }
    lab.topology.site().nft(&(out + &back + "}\n}\n")).unwrap();
    whole(bulk.finish().unwrap()).unwrap();
    let rebound = |status: &ropewalk_api::Status| {
        let port = |path: &ropewalk_api::PathStatus| path.remote.map(|a| a.port());
        status.paths_up() == 2
            && status
                .paths()
                .all(|path| port(path).is_some_and(|p| (20_000..21_000).contains(&p)))
    };
    lab.hub
        .wait_for("path from a new port", PATIENCE, rebound)
        .unwrap();
    lab.passes().unwrap();
}
