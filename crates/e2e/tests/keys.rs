//! Keys change while traffic flows, and a hub cannot give a site any address.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use ropewalk_api::Status;
use ropewalk_e2e::{Ground, Lab, ready, two_links};
use ropewalk_testbed::gateway::{Gateway, GatewaySpec};
use ropewalk_testbed::topology::SERVER;
use ropewalk_testbed::traffic::ping::{self, PingReport, PingSpec};
use ropewalk_testbed::{LinkSpec, TopologySpec};

const PATIENCE: Duration = Duration::from_secs(20);

/// Pings the server through the tunnel every 20 ms for 4 s, and meanwhile does `work`.
fn pinged(lab: &Lab, work: impl FnOnce()) -> PingReport {
    let spec = PingSpec {
        count: 200,
        interval: Duration::from_millis(20),
        ..PingSpec::new(SERVER.into())
    };
    std::thread::scope(|scope| {
        let pings = scope.spawn(|| ping::run(lab.topology.site(), &spec).unwrap());
        std::thread::sleep(Duration::from_millis(500));
        work();
        pings.join().unwrap()
    })
}

/// A lab over two links whose hub has so many workers.
fn lab(purpose: &str, workers: usize) -> Lab {
    let hub = GatewaySpec {
        root: format!("workers = {workers}\n"),
        ..GatewaySpec::default()
    };
    let ground = Ground::new(&TopologySpec::new(purpose, two_links())).unwrap();
    ground.connect(&hub, &GatewaySpec::default()).unwrap()
}

fn key(gateway: &Gateway) -> String {
    gateway.status().unwrap().public_key
}

fn run(gateway: &Gateway, arguments: &[&str]) -> String {
    gateway.run(arguments).unwrap().success().unwrap()
}

#[test]
fn a_site_gets_a_new_key_while_it_runs_and_every_ping_is_answered() {
    if ready() {
        for workers in [1, 2] {
            rotate_site(&lab("keys", workers));
        }
    }
}

fn rotate_site(lab: &Lab) {
    let old = key(&lab.site);
    let report = pinged(lab, || {
        let text = run(&lab.site, &["key", "rotate", "--json"]);
        let said: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(said["state"], "idle", "{text}");
        assert_ne!(said["public_key"], old.as_str(), "{text}");
    });
    assert_eq!(report.received, report.sent, "{report:?}");
    let new = key(&lab.site);
    assert_ne!(new, old);
    let shown = run(&lab.site, &["key"]);
    assert_eq!(shown.trim(), new, "the file has another key");
    let file = lab.site.directory().join("keys/site.key");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!lab.site.directory().join("keys/site.key.next").exists());
    let sites = lab.hub.directory().join("state/sites.toml");
    let listed = || std::fs::read_to_string(&sites).unwrap();
    assert!(listed().contains(&new) && !listed().contains(&format!("key = \"{old}\"\nnext")));
    assert!(!listed().contains("next_key"), "{}", listed());
    // The change survives a start of both.
    let has_it = |status: &Status| status.tunnels.iter().any(|t| t.peer_key == new && t.up);
    lab.hub.wait_for("the new key", PATIENCE, has_it).unwrap();
}

#[test]
fn a_site_that_lost_power_in_the_middle_comes_back_with_either_key() {
    if !ready() {
        return;
    }
    let mut lab = Lab::new("keycut", vec![LinkSpec::unshaped(true)]).unwrap();
    let file = lab.site.directory().join("keys/site.key");
    let kept = std::fs::read(&file).unwrap();
    run(&lab.site, &["key", "rotate"]);
    let new = key(&lab.site);
    let now = std::fs::read(&file).unwrap();
    lab.site.kill();
    // The hub has ended the old key, and the site has not written that down.
    std::fs::write(&file, kept).unwrap();
    let next = file.with_file_name("site.key.next");
    std::fs::write(&next, now).unwrap();
    std::fs::set_permissions(&next, std::fs::Permissions::from_mode(0o600)).unwrap();
    lab.site.start().unwrap();
    lab.site.wait_paths(1, PATIENCE).unwrap();
    assert_eq!(key(&lab.site), new);
    let settled = |status: &Status| status.rotation.is_none();
    lab.site.wait_for("one key", PATIENCE, settled).unwrap();
    assert!(!next.exists());
    // One that does not run prepares the change, and makes it at its start.
    assert!(lab.site.stop());
    let said = lab.site.run(&["key", "rotate"]).unwrap();
    assert!(said.stderr.contains("does not run"), "{}", said.stderr);
    said.success().unwrap();
    lab.site.start().unwrap();
    let other = |status: &Status| status.public_key != new && status.rotation.is_none();
    lab.site.wait_for("its third key", PATIENCE, other).unwrap();
    lab.site.wait_paths(1, PATIENCE).unwrap();
}

#[test]
fn a_hub_announces_its_next_key_and_takes_it_up_when_told_to() {
    if ready() {
        for workers in [1, 2] {
            rotate_hub(lab("hubkeys", workers));
        }
    }
}

fn rotate_hub(mut lab: Lab) {
    let old = key(&lab.hub);
    let away = lab.hub.invite("away").unwrap();
    let early = lab.hub.run(&["key", "rotate", "--switch"]).unwrap();
    assert!(early.stderr.contains("no next key"), "{}", early.stderr);
    run(&lab.hub, &["key", "rotate"]);
    let knows = |status: &Status| {
        let mut sites = status.tunnels.iter();
        sites.any(|site| site.peer == "site" && site.knows_next_key == Some(true))
    };
    lab.hub
        .wait_for("the site to know", PATIENCE, knows)
        .unwrap();
    let text = run(&lab.hub, &["key", "rotate", "--status"]);
    assert!(text.contains("KNOWS THE NEXT KEY"), "{text}");
    // A site knows the next key also after it has started again.
    assert!(lab.site.stop());
    lab.site.start().unwrap();
    lab.site.wait_paths(2, PATIENCE).unwrap();
    let report = pinged(&lab, || {
        run(&lab.hub, &["key", "rotate", "--switch"]);
    });
    assert_eq!(report.received, report.sent, "{report:?}");
    let new = key(&lab.hub);
    assert_ne!(new, old);
    // New connections have it, after a start of the hub as well.
    for _ in 0..2 {
        assert!(lab.site.stop());
        lab.site.start().unwrap();
        let status = lab.site.wait_paths(2, PATIENCE).unwrap();
        assert_eq!(status.tunnels[0].peer_key, new);
        assert!(lab.hub.stop());
        lab.hub.start().unwrap();
    }
    lab.site.wait_paths(2, PATIENCE).unwrap();
    assert_eq!(run(&lab.hub, &["key"]).trim(), new);
    // Its configuration has the first key still. Whoever was away needs a new token.
    let directory = lab.topology.directory();
    let spec = GatewaySpec::default();
    let error = Gateway::site(lab.topology.site(), directory, "away", &away, &spec).unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains("the hub has another key than this token"),
        "{error}"
    );
}

#[test]
fn a_site_whose_key_was_removed_says_so_and_nobody_else_learns_of_it() {
    if !ready() {
        return;
    }
    let lab = Lab::new("removed", vec![LinkSpec::unshaped(true)]).unwrap();
    run(&lab.hub, &["invite", "--revoke", "site"]);
    let refused = |status: &Status| {
        let mut errors = status.paths().filter_map(|path| path.last_error.as_ref());
        errors.any(|error| error.contains("does not accept this key (not enrolled, or removed)"))
    };
    lab.site.wait_for("a word", PATIENCE, refused).unwrap();
    let text = run(&lab.site, &["status"]);
    assert!(text.contains("does not accept this key"), "{text}");
}

#[test]
fn a_site_takes_no_address_that_its_user_does_not_allow() {
    if !ready() {
        return;
    }
    let ground = Ground::new(&TopologySpec::new(
        "assigned",
        vec![LinkSpec::unshaped(true)],
    ))
    .unwrap();
    let site = GatewaySpec {
        network: "assigned = [\"10.99.0.0/16\", \"fc00::/7\"]".to_owned(),
        ..GatewaySpec::default()
    };
    let lab = ground.connect(&GatewaySpec::default(), &site).unwrap();
    let has = |status: &Status| status.address(true).is_some();
    let status = lab.site.wait_for("an address", PATIENCE, has).unwrap();
    let command = ["address", "show", "dev", &status.interface];
    let (mut listed, end) = (String::new(), Instant::now() + PATIENCE);
    while !listed.contains("fd86:1:") {
        assert!(Instant::now() < end, "no address of IPv6:\n{listed}");
        std::thread::sleep(Duration::from_millis(50));
        listed = lab.topology.site().ip_json(&command).unwrap().to_string();
    }
    assert!(!listed.contains("10.86.0."), "{listed}");
    let log = lab.site.process().unwrap().log();
    let words = "but this site takes addresses of 10.99.0.0/16 only";
    assert!(
        log.contains("the hub assigns 10.86.0.") && log.contains(words),
        "{log}"
    );
}

/// The hub tells its sites apart by the key with which it started. Sites that know later ones only find their worker
/// all the same, and change their own keys.
#[test]
fn after_a_hub_with_workers_has_changed_its_key_twice_sites_connect_and_change_theirs() {
    if !ready() {
        return;
    }
    let mut lab = lab("twice", 3);
    for _ in 0..2 {
        run(&lab.hub, &["key", "rotate"]);
        let knows = |status: &Status| {
            let mut sites = status.tunnels.iter();
            sites.any(|site| site.peer == "site" && site.knows_next_key == Some(true))
        };
        lab.hub
            .wait_for("the site to know", PATIENCE, knows)
            .unwrap();
        run(&lab.hub, &["key", "rotate", "--switch"]);
        // The site sees the next key only when it connects.
        assert!(lab.site.stop());
        lab.site.start().unwrap();
        by_quic(&lab.site, 2);
    }
    for _ in 0..3 {
        let old = key(&lab.site);
        run(&lab.site, &["key", "rotate"]);
        assert_ne!(key(&lab.site), old);
    }
    by_quic(&lab.site, 2);
    // Machines that know the last key only, each with a way in three to fall to the right worker at once.
    for name in ["one", "two", "three"] {
        let token = lab.hub.invite(name).unwrap();
        let (place, directory) = (lab.topology.site(), lab.topology.directory());
        assert!(lab.site.stop());
        let spec = GatewaySpec::default();
        let mut site = Gateway::site(place, directory, name, &token, &spec).unwrap();
        site.start().unwrap();
        by_quic(&site, 2);
        lab.site = site;
    }
}

/// Waits until a site has so many paths over QUIC.
fn by_quic(site: &Gateway, count: usize) {
    let all = |status: &Status| {
        status
            .paths()
            .filter(|path| path.state == "up" && path.transport == "quic")
            .count()
            == count
    };
    site.wait_for("paths over QUIC", Duration::from_secs(8), all)
        .unwrap();
}
