//! Where UDP is blocked the tunnel runs over TLS on TCP, and returns when UDP works.

use std::time::Duration;

use ropewalk_api::Status;
use ropewalk_e2e::{Ground, Lab, ready, two_links, whole};
use ropewalk_testbed::TopologySpec;
use ropewalk_testbed::gateway::GatewaySpec;
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::traffic::bulk::{Amount, Bulk, BulkSpec};

const PATIENCE: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(60);

fn all_over(transport: &'static str) -> impl Fn(&Status) -> bool {
    move |status| status.paths_up() == 2 && status.paths().all(|path| path.transport == transport)
}

#[test]
fn with_udp_blocked_from_the_start_the_tunnel_comes_up_over_tls() {
    if !ready() {
        return;
    }
    let ground = Ground::new(&TopologySpec::new("tls", two_links())).unwrap();
    ground.topology.block_udp(true).unwrap();
    let spec = GatewaySpec::default();
    let lab = ground.connect(&spec, &spec).unwrap();
    lab.site
        .wait_for("TLS on both paths", PATIENCE, all_over("tls"))
        .unwrap();
    lab.transfer(Direction::Download, 2, 2_000_000, LIMIT)
        .unwrap();
    lab.transfer(Direction::Upload, 2, 2_000_000, LIMIT)
        .unwrap();
}

#[test]
fn a_download_survives_a_block_in_mid_flight_and_udp_is_used_again_after_it() {
    if !ready() {
        return;
    }
    let lab = Lab::new("block", two_links()).unwrap();
    lab.site
        .wait_for("QUIC on both paths", PATIENCE, all_over("quic"))
        .unwrap();
    let amount = Amount::Bytes {
        bytes: 8_000_000,
        limit: LIMIT,
    };
    let spec = BulkSpec {
        amount,
        ..BulkSpec::download(3, LIMIT)
    };
    let bulk = Bulk::start(&lab.topology.endpoints(), &spec).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    lab.topology.block_udp(true).unwrap();
    lab.site
        .wait_for("TLS on both paths", PATIENCE, all_over("tls"))
        .unwrap();
    whole(bulk.finish().unwrap()).unwrap();
    lab.passes().unwrap();
    lab.topology.block_udp(false).unwrap();
    let limit = Duration::from_secs(120);
    lab.site
        .wait_for("QUIC on both paths again", limit, all_over("quic"))
        .unwrap();
    lab.passes().unwrap();
}

#[test]
fn udp_blocked_on_one_uplink_changes_only_that_path() {
    if !ready() {
        return;
    }
    let lab = Lab::new("half", two_links()).unwrap();
    lab.topology.site().block_udp(&["up0"]).unwrap();
    lab.topology.hub().block_udp(&["isp0"]).unwrap();
    let mixed = |status: &Status| {
        let over = |uplink, transport| {
            status.paths().any(|path| {
                path.uplink == uplink && path.transport == transport && path.state == "up"
            })
        };
        over("up0", "tls") && over("up1", "quic")
    };
    lab.site
        .wait_for("TLS on up0, QUIC on up1", PATIENCE, mixed)
        .unwrap();
    lab.transfer(Direction::Download, 3, 3_000_000, LIMIT)
        .unwrap();
}
