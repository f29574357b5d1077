//! A key decides who may connect, and as whom.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::Duration;

use ropewalk_api::Status;
use ropewalk_e2e::{Ground, Lab, ready, two_links};
use ropewalk_testbed::gateway::{self, Gateway, GatewaySpec};
use ropewalk_testbed::topology::HUB;
use ropewalk_testbed::traffic::ping::{self, PingSpec};
use ropewalk_testbed::{LinkSpec, Namespace, TopologySpec, veth};

const PATIENCE: Duration = Duration::from_secs(20);

/// Longer than a connection takes, for things that must not happen.
const A_WHILE: Duration = Duration::from_secs(3);

fn stays_down(site: &Gateway) {
    std::thread::sleep(A_WHILE);
    let status = site.status().unwrap();
    assert_eq!(status.paths_up(), 0, "{status:?}");
    assert!(!status.tunnels.iter().any(|tunnel| tunnel.up), "{status:?}");
}

#[test]
fn two_sites_have_addresses_of_their_own_and_reach_each_other() {
    if !ready() {
        return;
    }
    let lab = Lab::new("sites", vec![LinkSpec::unshaped(true)]).unwrap();
    let second = Namespace::create("second", "site").unwrap();
    veth((&second, "up0"), (lab.topology.hub(), "isp9"), 1_500).unwrap();
    second
        .ip("addr add 192.168.99.2/24 dev up0\nroute add default via 192.168.99.1 dev up0\n")
        .unwrap();
    lab.topology
        .hub()
        .ip("addr add 192.168.99.1/24 dev isp9\n")
        .unwrap();
    let token = lab.hub.invite("second").unwrap();
    let directory = lab.topology.directory();
    let mut other = Gateway::site(
        &second,
        directory,
        "second",
        &token,
        &GatewaySpec::default(),
    )
    .unwrap();
    other.start().unwrap();
    let other_status = other.wait_paths(1, PATIENCE).unwrap();
    let status = lab.site.status().unwrap();
    for v6 in [false, true] {
        let (a, b) = (
            status.address(v6).unwrap(),
            other_status.address(v6).unwrap(),
        );
        assert_ne!(a, b);
        let spec = PingSpec {
            count: 3,
            ..PingSpec::new(b)
        };
        let report = ping::run(lab.topology.site(), &spec).unwrap();
        assert_eq!(report.received, 3, "{a} to {b}: {report:?}");
    }
    let up = |status: &Status| status.tunnels.iter().filter(|tunnel| tunnel.up).count() == 2;
    lab.hub.wait_for("two tunnels", PATIENCE, up).unwrap();
}

#[test]
fn a_revoked_site_is_thrown_out_and_stays_out() {
    if !ready() {
        return;
    }
    let lab = Lab::new("revoke", two_links()).unwrap();
    lab.hub
        .run(&["invite", "--revoke", "site"])
        .unwrap()
        .success()
        .unwrap();
    lab.site.wait_paths(0, PATIENCE).unwrap();
    stays_down(&lab.site);
}

#[test]
fn a_site_refuses_a_hub_with_another_key() {
    if !ready() {
        return;
    }
    let ground = Ground::new(&TopologySpec::new("hubkey", two_links())).unwrap();
    let directory = ground.topology.directory();
    let spec = GatewaySpec::default();
    let mut hub = Gateway::hub(ground.topology.hub(), directory, &spec).unwrap();
    hub.start().unwrap();
    let token = hub.invite("site").unwrap();
    let site_namespace = ground.topology.site();
    let mut site = Gateway::site(site_namespace, directory, "site", &token, &spec).unwrap();
    hub.stop();
    let key = hub.directory().join("keys/hub.key");
    std::fs::remove_file(&key).unwrap();
    hub.start().unwrap();
    assert!(key.exists(), "the hub made no new key");
    site.start().unwrap();
    stays_down(&site);
    let log = site.process().unwrap().log();
    assert!(
        log.contains("key"),
        "the log does not say that it is the key:\n{log}"
    );
}

#[test]
fn a_damaged_token_is_refused_with_a_reason() {
    if !ready() {
        return;
    }
    let ground = Ground::new(&TopologySpec::new("token", vec![LinkSpec::unshaped(true)])).unwrap();
    let directory = ground.topology.directory();
    let spec = GatewaySpec::default();
    let mut hub = Gateway::hub(ground.topology.hub(), directory, &spec).unwrap();
    hub.start().unwrap();
    let token = hub.invite("site").unwrap();
    let cut = &token[..token.len() - 5];
    let error = Gateway::site(ground.topology.site(), directory, "site", cut, &spec).unwrap_err();
    assert!(format!("{error:#}").contains("token"), "{error:#}");
    assert!(!directory.join("site/site.toml").exists());
    let error = hub.invite("site").unwrap_err();
    assert!(
        format!("{error:#}").contains("site"),
        "a name given twice: {error:#}"
    );
}

#[test]
fn a_hub_that_is_started_later_is_found() {
    if !ready() {
        return;
    }
    let ground = Ground::new(&TopologySpec::new("later", two_links())).unwrap();
    let directory = ground.topology.directory();
    let spec = GatewaySpec::default();
    let mut hub = Gateway::hub(ground.topology.hub(), directory, &spec).unwrap();
    hub.start().unwrap();
    let token = hub.invite("site").unwrap();
    let mut site = Gateway::site(ground.topology.site(), directory, "site", &token, &spec).unwrap();
    hub.stop();
    site.start().unwrap();
    stays_down(&site);
    assert!(site.is_running(), "a site must wait for its hub");
    hub.start().unwrap();
    site.wait_paths(2, PATIENCE).unwrap();
    let spec = PingSpec {
        count: 3,
        ..PingSpec::new(HUB.into())
    };
    assert_eq!(
        ping::run(ground.topology.site(), &spec).unwrap().received,
        3
    );
    assert!(gateway::UP_LIMIT > A_WHILE);
}
