//! What goes wrong with uplinks in the field, each named in words by `GET /v1/status`, as `ropewalk status` and the
//! dashboard show them. A wrong clock is tested in `crates/api`: a namespace has the clock of its machine.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::time::{Duration, SystemTime};

use ropewalk_api::words::About;
use ropewalk_api::{PathStatus, Status};
use ropewalk_e2e::{Ground, ready};
use ropewalk_testbed::gateway::{Gateway, GatewaySpec, TCP_PORT};
use ropewalk_testbed::topology::Cut;
use ropewalk_testbed::traffic::bulk::{Bulk, BulkSpec};
use ropewalk_testbed::{LinkSpec, TopologySpec};

const PATIENCE: Duration = Duration::from_secs(60);
/// Longest time of the traffic: longer than all waiting.
const TRAFFIC: Duration = Duration::from_secs(170);
/// The site looks once a second at its uplinks.
const LOOK: Duration = Duration::from_millis(1_500);
/// Ports of login pages' servers, in the hub's namespace: this one and the number of the uplink.
const PAGE_PORT: u16 = 8_080;

fn link(rate_mbit: f64, seed: u64) -> LinkSpec {
    LinkSpec::steady(rate_mbit, Duration::from_millis(15)).with_seed(seed)
}

fn path<'a>(status: &'a Status, uplink: &str) -> Option<&'a PathStatus> {
    status.paths().find(|path| path.uplink == uplink)
}

/// Waits until the words for an uplink are about this, and gives them.
fn wait(site: &Gateway, uplink: &str, about: About) -> String {
    let text = |status: &Status| {
        let words = path(status, uplink)?.words.iter();
        words
            .into_iter()
            .find(|words| words.about == about)
            .map(|words| words.text.clone())
    };
    let what = format!("{about:?} of {uplink}");
    let status = site.wait_for(&what, PATIENCE, |status| text(status).is_some());
    let said = text(&status.unwrap()).unwrap();
    println!("{uplink}: {said}");
    said
}

/// A login page answers whatever comes by TCP, and drops UDP.
fn put_behind_a_login_page(ground: &Ground, uplink: usize) {
    let hub = ground.topology.hub();
    let far = &ground.topology.uplinks()[uplink].far_interface;
    let port = PAGE_PORT + u16::try_from(uplink).unwrap();
    hub.nft(&format!(
        "table inet testbed_portal{uplink} {{ chain pre {{ type nat hook prerouting priority dstnat; \
         iifname \"{far}\" tcp dport {TCP_PORT} redirect to :{port}; }}; \
         chain deaf {{ type filter hook prerouting priority raw; \
         iifname \"{far}\" meta l4proto udp drop; }}; }}"
    ))
    .unwrap();
    let page: SocketAddr = (Ipv6Addr::UNSPECIFIED, port).into();
    let listener = hub.enter(|| TcpListener::bind(page)).unwrap().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.read(&mut [0; 2_048]);
            let page = "HTTP/1.1 302 Found\r\nLocation: http://login.example/\r\n\r\n";
            let _ = stream.write_all(page.as_bytes());
        }
    });
}

/// The site carried almost its quota before it started.
fn spend_quota(site: &Gateway, uplink: &str, bytes: u64) {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    let empty = serde_json::json!({
        "step_s": 10, "end_s": 0, "offered": [], "up": [], "uplinks": []
    });
    let used = serde_json::json!({
        "uplink": uplink, "since_s": now.as_secs(), "bytes": bytes
    });
    let file = serde_json::json!({
        "format": 1, "hour": empty, "day": empty, "events": [], "used": [used]
    });
    let state = site.directory().join("state");
    std::fs::create_dir_all(&state).unwrap();
    std::fs::write(state.join("site-history.json"), file.to_string()).unwrap();
}

/// Large packets vanish in both directions, and nobody says so.
fn drop_large_packets(ground: &Ground, uplink: usize) {
    let (topology, uplink) = (&ground.topology, &ground.topology.uplinks()[uplink]);
    for (namespace, interface) in [
        (topology.site(), &uplink.interface),
        (topology.hub(), &uplink.far_interface),
    ] {
        let rule = format!("iifname \"{interface}\" meta length > 1260 drop");
        let hook = "type filter hook prerouting priority raw";
        let table = format!("table inet testbed_small {{ chain in {{ {hook}; {rule}; }}; }}");
        namespace.nft(&table).unwrap();
    }
}

/// With nothing left of its quota the uplink carries nothing while others work.
fn stands_by(site: &Gateway, uplink: &str) {
    let used_up = |status: &Status| {
        let said = |path: &PathStatus| path.words.iter().any(|w| w.text.contains("used up"));
        path(status, uplink).is_some_and(|path| path.standby && said(path))
    };
    let status = site.wait_for("a used quota", PATIENCE, used_up).unwrap();
    let before = path(&status, uplink).unwrap().tx_bytes;
    std::thread::sleep(Duration::from_secs(5));
    let sent = path(&site.status().unwrap(), uplink).unwrap().tx_bytes - before;
    println!("{uplink}: {sent} bytes in 5 s");
    assert!(sent < 100_000, "{sent} bytes over a used quota");
}

/// The uplink fails for longer than the site's look once a second, and comes back.
fn fail(ground: &Ground, site: &Gateway, uplink: usize) {
    let name = &ground.topology.uplinks()[uplink].interface;
    let is_up = |status: &Status| path(status, name).is_some_and(PathStatus::is_up);
    ground.topology.cut(uplink, Cut::Blackhole).unwrap();
    site.wait_for("its silence", PATIENCE, |status| !is_up(status))
        .unwrap();
    std::thread::sleep(LOOK);
    ground.topology.restore(uplink, Cut::Blackhole).unwrap();
    site.wait_for("its return", PATIENCE, is_up).unwrap();
    std::thread::sleep(LOOK);
}

/// Uplinks with these troubles: none, loss, a low rate, a long queue, no UDP, a login page, small packets, a
/// quota, none yet.
fn troubled() -> (Ground, Gateway, Gateway) {
    let links = vec![
        link(20.0, 1),
        link(8.0, 2).with_loss(0.08),
        link(0.3, 3),
        link(3.0, 4).with_queue(4_000_000),
        link(4.0, 5),
        link(4.0, 6),
        link(4.0, 7),
        link(4.0, 8),
        link(4.0, 9),
    ];
    let ground = Ground::new(&TopologySpec::new("troubles", links)).unwrap();
    let topology = &ground.topology;
    let blocked = &topology.uplinks()[4];
    topology.site().block_udp(&[&blocked.interface]).unwrap();
    topology.hub().block_udp(&[&blocked.far_interface]).unwrap();
    put_behind_a_login_page(&ground, 5);
    drop_large_packets(&ground, 6);
    let directory = topology.directory();
    let mut hub = Gateway::hub(topology.hub(), directory, &GatewaySpec::default()).unwrap();
    hub.start().unwrap();
    let spec = GatewaySpec {
        more: "[[uplink]]\nmatch = \"up7\"\nmetered = true\nquota_gb = 1\n".to_owned(),
        ..GatewaySpec::default()
    };
    let token = hub.invite("site").unwrap();
    let mut site = Gateway::site(topology.site(), directory, "site", &token, &spec).unwrap();
    spend_quota(&site, "up7", 999_900_000);
    site.start().unwrap();
    // All but that behind the login page.
    site.wait_paths(8, PATIENCE).unwrap();
    (ground, hub, site)
}

#[test]
fn every_trouble_of_an_uplink_is_named_while_the_others_work() {
    if !ready() {
        return;
    }
    let (ground, _hub, site) = troubled();
    let topology = &ground.topology;
    let spec = BulkSpec::download(4, TRAFFIC).upload();
    let bulk = Bulk::start(&topology.endpoints(), &spec).unwrap();
    // Somebody else fills the queue of up3.
    let flood = "-q -n -i 0.003 -s 1300 -w 170 -I up3 203.0.113.1";
    let ping = topology.site().program("ping").args(flood.split(' '));
    let mut ping = ping.start(topology.directory(), "flood").unwrap();

    assert!(wait(&site, "up1", About::Lossy).starts_with("lost "));
    // Before the queue is so long that the connection ends, and the next one knows no shorter round trip.
    wait(&site, "up3", About::Bloated);
    assert!(wait(&site, "up4", About::UdpBlocked).contains("TLS carries it"));
    assert!(wait(&site, "up5", About::LoginPage).contains("ropewalk portal"));
    // Or what the site remembers was not read.
    assert!(wait(&site, "up7", About::Metered).contains("1.0 GB of 1.0 GB"));
    stands_by(&site, "up7");
    (0..3).for_each(|_| fail(&ground, &site, 8));
    wait(&site, "up8", About::Flapping);
    wait(&site, "up2", About::Slow);
    assert!(wait(&site, "up6", About::SmallPackets).contains("packets above 1,2"));
    // Of an uplink that has worked, too: a train leaves the station.
    put_behind_a_login_page(&ground, 8);
    wait(&site, "up8", About::LoginPage);
    let status = site.status().unwrap();
    let good = &path(&status, "up0").unwrap().words;
    assert!(
        good.iter().all(|words| words.about == About::Fine),
        "{good:?}"
    );
    ping.stop();
    bulk.stop().unwrap();
}

#[test]
fn a_hub_that_is_far_is_named() {
    if !ready() {
        return;
    }
    let far = |seed| LinkSpec::steady(10.0, Duration::from_millis(120)).with_seed(seed);
    let ground = Ground::new(&TopologySpec::new("far", vec![far(1), far(2)])).unwrap();
    let spec = GatewaySpec::default();
    let lab = ground.connect(&spec, &spec).unwrap();
    let named = |status: &Status| status.words.iter().any(|words| words.about == About::Far);
    let status = lab.site.wait_for("a far hub", PATIENCE, named).unwrap();
    println!("{:?}", status.words);
}
