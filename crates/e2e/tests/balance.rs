//! `ropewalk balance`: flows over uplinks without a hub, with the kernel's own TCP, UDP and ICMP.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ropewalk_api::UplinkStatus;
use ropewalk_e2e::pushed::Pushed;
use ropewalk_e2e::{Ground, machine_state as state, ready, whole};
use ropewalk_testbed::balanced::{PORT, listen};
use ropewalk_testbed::topology::{Cut, SERVER, SERVER_V6};
use ropewalk_testbed::traffic::Endpoints;
use ropewalk_testbed::traffic::bulk::{self, BulkSpec};
use ropewalk_testbed::traffic::ping::{self, PingSpec};
use ropewalk_testbed::{Balanced, LinkSpec, Namespace, TopologySpec, programs};
use rustix::process::Signal;

const COMMAND: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(5);
const SERVERS: [IpAddr; 2] = [IpAddr::V4(SERVER), IpAddr::V6(SERVER_V6)];

fn ground(purpose: &str, uplinks: usize) -> (Ground, Balanced) {
    let links = vec![LinkSpec::unshaped(true); uplinks];
    let ground = Ground::new(&TopologySpec::new(purpose, links)).unwrap();
    let balanced = Balanced::new(&ground.topology).unwrap();
    (ground, balanced)
}

fn running(purpose: &str, uplinks: usize, more: &str) -> (Ground, Balanced) {
    let (ground, mut balanced) = ground(purpose, uplinks);
    balanced.configure(more).unwrap();
    balanced.start(uplinks).unwrap();
    (ground, balanced)
}

/// The uplink that an address of the site belongs to.
fn uplink(ground: &Ground, address: &IpAddr) -> usize {
    let uplinks = ground.topology.uplinks().iter();
    let found = uplinks
        .enumerate()
        .find(|(_, u)| u.addresses.contains(address));
    found
        .unwrap_or_else(|| panic!("{address} is of no uplink"))
        .0
}

fn by_uplink(ground: &Ground, counts: &BTreeMap<IpAddr, usize>) -> Vec<usize> {
    let mut out = vec![0; ground.topology.uplinks().len()];
    for (address, count) in counts {
        out[uplink(ground, address)] += count;
    }
    out
}

/// Weights 5, 3 and 2, and no affinity.
const WEIGHTS: &str = "[balance]\naffinity_minutes = 0\n\
    [[uplink]]\nmatch = \"up0\"\nweight = 5\n\
    [[uplink]]\nmatch = \"up1\"\nweight = 3\n\
    [[uplink]]\nmatch = \"up2\"\nweight = 2\n";

#[test]
fn flows_are_shared_by_weight_in_both_families_from_clients_and_from_here() {
    if !ready() {
        return;
    }
    let (ground, balanced) = running("balshare", 3, WEIGHTS);
    for from in [balanced.client(), ground.topology.site()] {
        for server in SERVERS {
            let counts = Balanced::count(from, server, 1_000).unwrap();
            let shares = by_uplink(&ground, &counts);
            for (share, weight) in shares.iter().zip([500, 300, 200_usize]) {
                assert!(share.abs_diff(weight) <= 30, "{shares:?} to {server}");
            }
        }
    }
    let status = balanced.status().unwrap();
    assert!(status.iter().all(|uplink| uplink.flows > 0), "{status:?}");
}

#[test]
fn udp_and_echoes_pass_in_both_families() {
    if !ready() {
        return;
    }
    let (ground, balanced) = running("balproto", 2, "");
    let server = ground.topology.server();
    for address in SERVERS {
        let here = SocketAddr::new(address, 9_000);
        let echo = server.enter(|| UdpSocket::bind(here)).unwrap().unwrap();
        echo.set_read_timeout(Some(PATIENCE)).unwrap();
        for from in [balanced.client(), ground.topology.site()] {
            let any = SocketAddr::new(
                if address.is_ipv4() {
                    [0; 4].into()
                } else {
                    [0; 16].into()
                },
                0,
            );
            let socket = from.enter(|| UdpSocket::bind(any)).unwrap().unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut buffer = [0; 16];
            for round in 0..20_u8 {
                socket.send_to(&[round], here).unwrap();
                let (_, came_from) = echo.recv_from(&mut buffer).unwrap();
                uplink(&ground, &came_from.ip());
                echo.send_to(&[round + 1], came_from).unwrap();
                assert_eq!(socket.recv(&mut buffer).unwrap(), 1);
                assert_eq!(buffer[0], round + 1);
            }
            let spec = PingSpec {
                count: 3,
                interval: Duration::from_millis(200),
                ..PingSpec::new(address)
            };
            let report = ping::run(from, &spec).unwrap();
            assert_eq!(report.received, 3, "{report:?}");
        }
    }
}

#[test]
fn the_machine_is_as_before_after_stop_interrupt_and_kill() {
    if !ready() {
        return;
    }
    let (ground, mut balanced) = ground("balstate", 2);
    let site = ground.topology.site();
    site.nft("table inet others { chain c { type filter hook forward priority 0; accept\n}\n}\n")
        .unwrap();
    site.sysctl("net/ipv4/conf/all/rp_filter", "1").unwrap();
    balanced.configure(WEIGHTS).unwrap();
    let before = state(site);
    let plan = balanced.program(&["balance", "--plan"]).unwrap();
    let plan = plan.success(COMMAND).unwrap();
    assert_eq!(state(site), before, "the plan changed something");
    for part in [
        "net.ipv4.ip_forward = 1",
        "rp_filter = 2",
        "fwmark 0x11000000",
        "snat ip to",
    ] {
        assert!(plan.contains(part), "{part} is not in:\n{plan}");
    }
    for signal in [Signal::TERM, Signal::INT] {
        balanced.start(2).unwrap();
        Balanced::count(balanced.client(), SERVER.into(), 10).unwrap();
        let during = state(site);
        assert!(during.contains("table inet ropewalk_balance"), "{during}");
        balanced.process().signal(signal);
        let status = balanced.process().wait(PATIENCE).unwrap();
        assert!(status.is_some_and(|status| status.success()));
        assert_eq!(state(site), before, "after {signal:?}");
    }
    balanced.start(2).unwrap();
    balanced.process().signal(Signal::USR2);
    balanced.process().signal(Signal::TERM);
    assert!(balanced.process().wait(PATIENCE).unwrap().is_some());
    assert_eq!(state(site), before, "after a restart that became a stop");
    balanced.start(2).unwrap();
    balanced.process().kill();
    assert_ne!(
        state(site),
        before,
        "kill -9 leaves what the next start must undo"
    );
    balanced.start(2).unwrap();
    balanced.process().stop();
    assert_eq!(state(site), before, "after kill -9 and the next start");
    balanced.start(2).unwrap();
    balanced.process().kill();
    let repair = balanced.program(&["doctor", "--repair"]).unwrap();
    repair.success(COMMAND).unwrap();
    assert_eq!(state(site), before, "after kill -9 and repair");
}

#[test]
fn a_second_balance_is_refused_also_with_a_state_directory_of_its_own() {
    if !ready() {
        return;
    }
    let (ground, balanced) = running("balsecond", 2, "[balance]\naffinity_minutes = 0\n");
    let site = ground.topology.site();
    let text = std::fs::read_to_string(balanced.config()).unwrap();
    let own = text
        .replace("/state\"", "/other\"")
        .replace("api.sock", "other.sock");
    assert_ne!(own, text);
    let path = ground.topology.directory().join("other.toml");
    std::fs::write(&path, own).unwrap();
    for config in [balanced.config(), path] {
        let second = site.program(programs::own("ropewalk").unwrap());
        let second = second.args(["balance", "--config"]).arg(config);
        let second = second.run(COMMAND).unwrap();
        assert!(!second.status.success(), "two balance: {}", second.stderr);
        let remedy = "only one at a time can balance on a machine";
        assert!(second.stderr.contains(remedy), "{}", second.stderr);
        assert!(!second.stderr.contains("state_dir"), "{}", second.stderr);
    }
    let counts = Balanced::count_at(site, SocketAddr::new(SERVERS[0], PORT), 8).unwrap();
    assert!(
        by_uplink(&ground, &counts).iter().all(|&n| n > 0),
        "{counts:?}"
    );
}

#[test]
fn what_servers_send_to_clients_during_a_start_after_a_kill_or_restart_is_not_refused() {
    if !ready() {
        return;
    }
    let (ground, mut balanced) = running("balpush", 1, "");
    let server = ground.topology.server();
    let mut pushed = Pushed::open(balanced.client(), server).unwrap();
    for signal in [Signal::KILL, Signal::USR2] {
        balanced.process().signal(signal);
        balanced.process().wait(PATIENCE).unwrap();
        // Else it would arrive now: the table goes on translating.
        ground.topology.cut(0, Cut::Blackhole).unwrap();
        pushed.send().unwrap();
        ground.topology.restore(0, Cut::Blackhole).unwrap();
        balanced.start(1).unwrap();
        pushed.receive().unwrap();
    }
}

#[test]
fn what_other_programs_take_away_is_made_again() {
    if !ready() {
        return;
    }
    let (ground, balanced) = running("balkeep", 3, WEIGHTS);
    let site = ground.topology.site();
    let ours = |what: &str| {
        let text = state(site);
        text.matches(what).count()
    };
    let [table, rule] = ["table inet ropewalk_balance", "0x10000000/0x10000000"];
    // Where the number of a table begins that an uplink's route is in.
    let route = "dev up0 table 138005";
    assert_eq!((ours(table), ours(rule)), (1, 2));
    let routes = ours(route);
    assert!(routes >= 2, "{routes}");
    let mut streams = waiting(&ground, balanced.client(), SERVER.into());
    // As a firewall does that is loaded anew, and a network manager that is started anew.
    site.nft("flush ruleset\ntable inet ropewalk_balance {\nchain old {\n}\n}\n")
        .unwrap();
    site.ip("rule del priority 5200\nrule del priority 5201\n")
        .unwrap();
    let of_ipv6 = site
        .program("ip")
        .args("-6 rule del priority 5200".split(' '));
    of_ipv6.success(COMMAND).unwrap();
    site.ip("route flush table 1380057089\n").unwrap();
    let all = |_: &[UplinkStatus]| {
        let found = (ours(table), ours("chain old"), ours(rule), ours(route));
        found == (1, 0, 2, routes) && ours("numgen inc mod 256 vmap") > 0
    };
    let made_again = || {
        balanced.wait_for("table and rules", all).unwrap();
        let counts = Balanced::count(balanced.client(), SERVER.into(), 100).unwrap();
        let shares = by_uplink(&ground, &counts);
        for (share, weight) in shares.iter().zip([50, 30, 20_usize]) {
            assert!(share.abs_diff(weight) <= 6, "{shares:?}");
        }
    };
    made_again();
    // Again and again, also in the middle of its making.
    for _ in 0..40 {
        site.nft("flush ruleset\n").unwrap();
        std::thread::sleep(Duration::from_millis(37));
    }
    made_again();
    // Its rules only.
    site.nft("flush table inet ropewalk_balance\n").unwrap();
    made_again();
    for (at, stream) in &mut streams {
        stream.write_all(b"still here").unwrap();
        assert!(!ended(stream, Duration::from_millis(20)), "over up{at}");
    }
}

#[test]
fn a_new_configuration_that_cannot_be_carried_out_leaves_the_old_one_at_work() {
    if !ready() {
        return;
    }
    let (ground, mut balanced) = running("balreload", 3, WEIGHTS);
    let reload = |balanced: &mut Balanced, more: &str| {
        balanced.configure(more).unwrap();
        balanced.process().signal(Signal::HUP);
        std::thread::sleep(Duration::from_millis(500));
        let counts = Balanced::count(balanced.client(), SERVER.into(), 100).unwrap();
        by_uplink(&ground, &counts)
    };
    let nobody = "[[rule]]\nname = \"nobody\"\nuplinks = [\"up2\"]\nuser = [\"no-such-user\"]\n";
    let shares = reload(&mut balanced, &format!("{WEIGHTS}{nobody}"));
    assert!(
        shares[0].abs_diff(50) <= 6 && shares[2].abs_diff(20) <= 6,
        "{shares:?}"
    );
    let all = "[[rule]]\nname = \"all\"\nuplinks = [\"up2\"]\nprotocol = [\"tcp\"]\n";
    assert_eq!(
        reload(&mut balanced, &format!("{WEIGHTS}{all}")),
        [0, 0, 100]
    );
}

#[test]
fn a_connection_that_is_being_opened_over_a_dead_uplink_is_not_refused() {
    if !ready() {
        return;
    }
    let (ground, balanced) = running("balopen", 2, "[balance]\naffinity_minutes = 0\n");
    let site = ground.topology.site();
    ground.topology.cut(0, Cut::Blackhole).unwrap();
    let dead = |all: &[UplinkStatus]| state_of(all, "up0") == "dead";
    balanced.wait_for("dead uplink", dead).unwrap();
    for from in [balanced.client(), site] {
        for server in SERVERS {
            // Handshakes with the mark of the dead uplink: what is there of one that was under way
            // when the uplink died, until it is forgotten.
            let late = ["prerouting", "output"].map(|hook| {
                format!(
                    "chain {hook} {{ type filter hook {hook} priority -160; \
                     tcp dport {PORT} ct state new ct mark set 0x11000000\n}}\n"
                )
            });
            site.nft(&format!("table inet late {{\n{}}}\n", late.concat()))
                .unwrap();
            let namespace = from.clone();
            let opening = std::thread::spawn(move || Balanced::connect(&namespace, server, PORT));
            std::thread::sleep(Duration::from_millis(300));
            site.nft("delete table inet late\n").unwrap();
            let (_, came_from) = opening.join().unwrap().unwrap();
            assert_eq!(uplink(&ground, &came_from), 1, "to {server}");
        }
    }
}

#[test]
fn a_replaced_address_is_left_alone_until_it_is_gone() {
    if !ready() {
        return;
    }
    let (ground, balanced) = running("baladdr", 1, "");
    let site = ground.topology.site();
    // Else the second address of a network goes with the first.
    site.sysctl("net/ipv4/conf/up0/promote_secondaries", "1")
        .unwrap();
    for (server, length, new) in [
        (SERVERS[0], 24, "192.168.10.77"),
        (SERVERS[1], 64, "fd00:10:a::77"),
    ] {
        let family = usize::from(server.is_ipv6());
        let old = ground.topology.uplinks()[0].addresses[family];
        let open = || Balanced::connect(balanced.client(), server, PORT).unwrap();
        let (mut stream, from) = open();
        assert_eq!(from, old);
        // As privacy addresses are replaced (RFC 8981 §3.4), and addresses of a router's new lease.
        site.ip(&format!("addr add {new}/{length} dev up0 nodad\n"))
            .unwrap();
        site.ip(&format!(
            "addr change {old}/{length} dev up0 preferred_lft 0\n"
        ))
        .unwrap();
        let moved = (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(50));
            open().1.to_string() == new
        });
        assert!(moved, "new connections still come from {old}");
        stream.write_all(b"still here").unwrap();
        assert!(!ended(&mut stream, Duration::from_millis(500)), "{old}");
        site.ip(&format!("addr del {old}/{length} dev up0\n"))
            .unwrap();
        assert!(ended(&mut stream, PATIENCE), "{old} is gone");
        assert_eq!(open().1.to_string(), new);
    }
}

/// Connections that wait for data, by the uplink they are on.
fn waiting(ground: &Ground, from: &Namespace, server: IpAddr) -> Vec<(usize, TcpStream)> {
    let open = |_| {
        let (stream, address) = Balanced::connect(from, server, PORT).unwrap();
        (uplink(ground, &address), stream)
    };
    (0..12).map(open).collect()
}

/// Whether the far end or the network has ended a connection on which nothing is sent.
fn ended(stream: &mut TcpStream, patience: Duration) -> bool {
    stream.set_read_timeout(Some(patience)).unwrap();
    loop {
        match stream.read(&mut [0; 64]) {
            // What the server sends back of what was sent before.
            Ok(1..) => {}
            Ok(0) => return true,
            Err(error) => {
                return !matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                );
            }
        }
    }
}

fn state_of(status: &[UplinkStatus], name: &str) -> String {
    let uplink = status.iter().find(|uplink| uplink.uplink == name);
    uplink
        .map(|uplink| uplink.state_ipv4.clone())
        .unwrap_or_default()
}

#[test]
fn a_dead_uplink_ends_its_waiting_connections_and_no_others_and_comes_back() {
    if !ready() {
        return;
    }
    for cut in [Cut::Blackhole, Cut::InterfaceDown] {
        let (ground, balanced) = running("baldead", 3, WEIGHTS);
        for from in [balanced.client(), ground.topology.site()] {
            for server in SERVERS {
                let mut streams = waiting(&ground, from, server);
                ground.topology.cut(0, cut).unwrap();
                let dead =
                    |all: &[UplinkStatus]| ["dead", "absent"].contains(&&*state_of(all, "up0"));
                balanced.wait_for("dead uplink", dead).unwrap();
                for (at, stream) in streams.iter_mut().filter(|(at, _)| *at == 0) {
                    assert!(ended(stream, PATIENCE), "{cut:?}, to {server} over up{at}");
                }
                let counts = Balanced::count(from, server, 20).unwrap();
                assert_eq!(by_uplink(&ground, &counts)[0], 0, "{cut:?}");
                ground.topology.restore(0, cut).unwrap();
                let back = |all: &[UplinkStatus]| state_of(all, "up0") == "up";
                balanced.wait_for("uplink that is back", back).unwrap();
                for (at, stream) in streams.iter_mut().filter(|(at, _)| *at != 0) {
                    let quiet = Duration::from_millis(20);
                    assert!(!ended(stream, quiet), "{cut:?}, to {server} over up{at}");
                }
                assert!(streams.iter().any(|(at, _)| *at == 0));
                assert!(streams.iter().any(|(at, _)| *at == 1));
                let counts = Balanced::count(from, server, 20).unwrap();
                assert!(by_uplink(&ground, &counts)[0] > 5, "{cut:?}: {counts:?}");
            }
        }
    }
}

#[test]
fn a_stop_ends_waiting_connections_over_other_uplinks_than_the_main_one() {
    if !ready() {
        return;
    }
    let (ground, mut balanced) = running("balstop", 3, WEIGHTS);
    let open = |from, server| waiting(&ground, from, server);
    let clients = [balanced.client(), ground.topology.site()];
    let mut streams: Vec<_> = clients
        .into_iter()
        .flat_map(|from| SERVERS.map(|server| open(from, server)))
        .flatten()
        .collect();
    balanced.process().stop();
    // The main route leads over the first uplink.
    for (at, stream) in &mut streams {
        let patience = if *at == 0 {
            Duration::from_millis(20)
        } else {
            PATIENCE
        };
        assert_eq!(ended(stream, patience), *at != 0, "over up{at}");
    }
    assert!(streams.iter().any(|(at, _)| *at == 0));
}

#[test]
fn a_datagram_flow_moves_to_another_uplink_when_its_own_dies() {
    if !ready() {
        return;
    }
    let (ground, balanced) = running("baludp", 2, "[balance]\nmode = \"failover\"\n");
    let here = SocketAddr::new(SERVER.into(), 9_000);
    let server = ground.topology.server().enter(|| UdpSocket::bind(here));
    let server = server.unwrap().unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let socket = balanced
        .client()
        .enter(|| UdpSocket::bind("0.0.0.0:0"))
        .unwrap()
        .unwrap();
    let mut buffer = [0; 16];
    let mut over = || {
        socket.send_to(b"x", here).unwrap();
        let (_, from) = server.recv_from(&mut buffer).unwrap();
        server.send_to(b"y", from).unwrap();
        uplink(&ground, &from.ip())
    };
    assert_eq!(
        over(),
        0,
        "the metric of the default routes orders unmarked uplinks"
    );
    ground.topology.cut(0, Cut::Blackhole).unwrap();
    let dead = |all: &[UplinkStatus]| state_of(all, "up0") == "dead";
    balanced.wait_for("dead uplink", dead).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(over(), 1);
}

#[test]
fn a_client_keeps_its_uplink_to_a_site_until_that_dies() {
    if !ready() {
        return;
    }
    let (ground, balanced) = running("balstick", 3, "");
    for server in SERVERS {
        let counts = Balanced::count(balanced.client(), server, 60).unwrap();
        assert_eq!(counts.len(), 1, "{counts:?}");
    }
    let counts = Balanced::count(balanced.client(), SERVER.into(), 1).unwrap();
    let home = uplink(&ground, counts.keys().next().unwrap());
    ground.topology.cut(home, Cut::Blackhole).unwrap();
    let name = format!("up{home}");
    let dead = |all: &[UplinkStatus]| state_of(all, &name) == "dead";
    balanced.wait_for("dead uplink", dead).unwrap();
    let counts = Balanced::count(balanced.client(), SERVER.into(), 30).unwrap();
    assert_eq!(counts.len(), 1, "{counts:?}");
    assert_ne!(uplink(&ground, counts.keys().next().unwrap()), home);
}

#[test]
fn a_web_site_that_is_opened_keeps_its_uplink_and_what_its_page_fetches_is_spread() {
    if !ready() {
        return;
    }
    let (ground, balanced) = running("balopened", 2, "");
    ground.topology.give_server("198.18.0.0/16").unwrap();
    listen(&ground.topology, 443).unwrap();
    let uplinks = |site: u8| {
        let address = SocketAddr::new(IpAddr::from([198, 18, site, 1]), 443);
        let counts = Balanced::count_at(balanced.client(), address, 6).unwrap();
        counts.into_keys().collect::<Vec<_>>()
    };
    let opened = uplinks(0);
    assert_eq!(opened.len(), 1, "{opened:?}");
    for site in 1..4 {
        assert_eq!(uplinks(site).len(), 2, "fetched for the page: site {site}");
    }
    // Longer than the pause by which a site that is opened is told.
    std::thread::sleep(Duration::from_millis(1_500));
    let next = uplinks(4);
    assert_eq!(next.len(), 1, "{next:?}");
    assert_eq!(uplinks(0), opened);
}

#[test]
fn rules_choose_uplinks_by_port_address_and_user_and_strict_ones_refuse() {
    if !ready() {
        return;
    }
    let rules = "[balance]\naffinity_minutes = 0\n\
        [[rule]]\nname = \"port\"\nuplinks = [\"up1\"]\nports = [\"7000\"]\nsource = [\"10.77.0.0/24\"]\n\
        [[rule]]\nname = \"root\"\nuplinks = [\"up2\"]\nuser = [\"root\"]\nprotocol = [\"tcp\"]\n\
        [[rule]]\nname = \"strict\"\nuplinks = [\"up0\"]\nsource = [\"fd00:77::/64\"]\nstrict = true\n";
    let (ground, balanced) = running("balrule", 3, rules);
    let site = ground.topology.site();
    for (from, server, wanted) in [
        (balanced.client(), SERVERS[0], 1),
        (site, SERVERS[0], 2),
        (balanced.client(), SERVERS[1], 0),
        (site, SERVERS[1], 2),
    ] {
        let counts = Balanced::count(from, server, 20).unwrap();
        let shares = by_uplink(&ground, &counts);
        assert_eq!(shares[wanted], 20, "{shares:?} to {server}");
    }
    ground.topology.cut(0, Cut::Blackhole).unwrap();
    ground.topology.cut(1, Cut::Blackhole).unwrap();
    let dead = |all: &[UplinkStatus]| {
        ["up0", "up1"]
            .iter()
            .all(|name| state_of(all, name) == "dead")
    };
    balanced.wait_for("two dead uplinks", dead).unwrap();
    let counts = Balanced::count(balanced.client(), SERVERS[0], 10).unwrap();
    assert_eq!(by_uplink(&ground, &counts)[2], 10, "others take over");
    let refused = Balanced::connect(balanced.client(), SERVERS[1], PORT).unwrap_err();
    assert!(format!("{refused:#}").contains("refused"), "{refused:#}");
}

#[test]
fn flows_to_the_addresses_of_a_name_follow_its_rule() {
    if !ready() {
        return;
    }
    // An address is a name that is its own answer: no resolver is needed.
    let rule = format!(
        "[balance]\naffinity_minutes = 0\n\
         [[rule]]\nname = \"name\"\nuplinks = [\"up1\"]\ndomain = [\"{SERVER}\"]\n"
    );
    let (ground, balanced) = running("balname", 2, &rule);
    let share = || {
        let counts = Balanced::count(balanced.client(), SERVER.into(), 20).unwrap();
        by_uplink(&ground, &counts)
    };
    let named = (0..50).find(|_| {
        std::thread::sleep(Duration::from_millis(50));
        share() == [0, 20]
    });
    assert!(named.is_some(), "{:?}", share());
    let counts = Balanced::count(balanced.client(), SERVER_V6.into(), 20).unwrap();
    assert_eq!(by_uplink(&ground, &counts), [10, 10], "another address");
}

#[test]
fn metered_uplinks_cost_nothing_until_they_are_needed() {
    if !ready() {
        return;
    }
    let more = "[balance]\nmode = \"cheapest\"\naffinity_minutes = 0\n\
        [[uplink]]\nmatch = \"up0\"\nmetered = true\n";
    let (ground, balanced) = running("balcheap", 3, more);
    let share = || {
        let counts = Balanced::count(balanced.client(), SERVER.into(), 20).unwrap();
        by_uplink(&ground, &counts)
    };
    assert_eq!(share(), [0, 10, 10]);
    for index in [1, 2] {
        ground.topology.cut(index, Cut::Blackhole).unwrap();
    }
    let dead = |all: &[UplinkStatus]| {
        ["up1", "up2"]
            .iter()
            .all(|name| state_of(all, name) == "dead")
    };
    balanced.wait_for("two dead uplinks", dead).unwrap();
    assert_eq!(share(), [20, 0, 0]);
}

#[test]
fn an_uplink_behind_a_captive_portal_is_left_out_until_the_portal_lets_through() {
    if !ready() {
        return;
    }
    let (ground, mut balanced) = ground("balportal", 2);
    let captive = Arc::new(AtomicBool::new(true));
    let page = SocketAddr::new(SERVER.into(), 8_080);
    let listener = ground.topology.server().enter(|| TcpListener::bind(page));
    let listener = listener.unwrap().unwrap();
    let (asked, caught) = (
        Arc::clone(&captive),
        ground.topology.uplinks()[0].addresses[0],
    );
    std::thread::spawn(move || {
        while let Ok((mut stream, from)) = listener.accept() {
            let _ = stream.read(&mut [0; 256]);
            let portal = from.ip() == caught && asked.load(Ordering::Relaxed);
            let status = if portal {
                "302 Found"
            } else {
                "204 No Content"
            };
            let _ = stream.write_all(format!("HTTP/1.0 {status}\r\n\r\n").as_bytes());
        }
    });
    let more = format!(
        "capacity = \"none\"\nportal = \"http://{SERVER}:8080/generate_204\"\n\
         [balance]\naffinity_minutes = 0\n"
    );
    balanced.configure_probe(&more).unwrap();
    balanced.launch().unwrap();
    let left_out =
        |all: &[UplinkStatus]| state_of(all, "up0") == "captive" && state_of(all, "up1") == "up";
    balanced.wait_for("captive portal", left_out).unwrap();
    let counts = Balanced::count(balanced.client(), SERVER.into(), 20).unwrap();
    assert_eq!(by_uplink(&ground, &counts), [0, 20]);
    captive.store(false, Ordering::Relaxed);
    let back = |all: &[UplinkStatus]| state_of(all, "up0") == "up";
    balanced.wait_for("way through the portal", back).unwrap();
    let counts = Balanced::count(balanced.client(), SERVER.into(), 20).unwrap();
    assert_eq!(by_uplink(&ground, &counts), [10, 10]);
}

#[test]
fn an_uplink_that_is_plugged_in_is_used_and_one_that_is_unplugged_is_not() {
    if !ready() {
        return;
    }
    let more = "[balance]\naffinity_minutes = 0\n";
    let (ground, mut balanced) = ground("balplug", 2);
    ground.topology.cut(1, Cut::InterfaceDown).unwrap();
    balanced.configure(more).unwrap();
    balanced.start(1).unwrap();
    let share = |balanced: &Balanced| {
        let counts = Balanced::count(balanced.client(), SERVER.into(), 20).unwrap();
        by_uplink(&ground, &counts)
    };
    assert_eq!(share(&balanced), [20, 0]);
    ground.topology.restore(1, Cut::InterfaceDown).unwrap();
    let two = |all: &[UplinkStatus]| all.iter().filter(|u| u.state_ipv4 == "up").count() == 2;
    balanced.wait_for("second uplink", two).unwrap();
    assert_eq!(share(&balanced), [10, 10]);
    ground.topology.cut(0, Cut::AddressRemoved).unwrap();
    let gone = |all: &[UplinkStatus]| state_of(all, "up0") == "absent";
    balanced.wait_for("uplink without address", gone).unwrap();
    assert_eq!(share(&balanced), [0, 20]);
}

#[test]
fn shares_follow_what_idle_uplinks_are_probed_for_and_metered_ones_cost_little() {
    if !ready() {
        return;
    }
    for method in ["train", "vps"] {
        let link = |mbit| LinkSpec::steady(mbit, Duration::from_millis(10));
        let links = vec![link(20.0), link(5.0), link(5.0)];
        let ground = Ground::new(&TopologySpec::new("balprobe", links)).unwrap();
        let mut balanced = Balanced::new(&ground.topology).unwrap();
        let metered = "[[uplink]]\nmatch = \"up2\"\nmetered = true\n";
        let more = format!("capacity = \"{method}\"\n[balance]\naffinity_minutes = 0\n{metered}");
        balanced.configure_probe(&more).unwrap();
        balanced.start(3).unwrap();
        let probed = |all: &[UplinkStatus]| all.iter().all(|uplink| uplink.capacity_probed);
        balanced.wait_for("probed uplinks", probed).unwrap();
        let status = balanced.status().unwrap();
        assert!(status.iter().all(|uplink| !uplink.capacity_measured));
        for (uplink, mbit) in status.iter().zip([20.0, 5.0, 5.0]) {
            let ratio = uplink.capacity_mbit / mbit;
            assert!((0.7..1.4).contains(&ratio), "{method}: {uplink:?}");
        }
        let counts = Balanced::count(balanced.client(), SERVER.into(), 120).unwrap();
        let shares = by_uplink(&ground, &counts);
        assert!(shares[0] > 2 * shares[1], "{method}: {shares:?}");
        // Three series at first; the probes of life add 44 bytes 13 times a second.
        let sent = |at: usize| {
            let name = &ground.topology.uplinks()[at].interface;
            ground.topology.site().interface_bytes(name).unwrap().1
        };
        let before = sent(2);
        std::thread::sleep(Duration::from_secs(2));
        assert!(
            sent(2) - before < 10_000,
            "{method}: metered and still probed"
        );
        assert!(sent(2) < 400_000, "{method}: {}", sent(2));
    }
}

#[test]
fn shares_follow_the_capacity_that_was_seen_and_no_open_flow_notices() {
    if !ready() {
        return;
    }
    let delay = Duration::from_millis(10);
    let links = vec![LinkSpec::steady(40.0, delay), LinkSpec::steady(10.0, delay)];
    let ground = Ground::new(&TopologySpec::new("balcap", links)).unwrap();
    let mut balanced = Balanced::new(&ground.topology).unwrap();
    balanced
        .configure("[balance]\naffinity_minutes = 0\n")
        .unwrap();
    balanced.start(2).unwrap();
    let ends = Endpoints {
        client: balanced.client().clone(),
        ..ground.topology.endpoints()
    };
    let before = balanced.status().unwrap();
    assert!(
        before
            .iter()
            .all(|uplink| (uplink.share_ipv4 - 0.5).abs() < 0.01)
    );
    // On a busy machine the emulated links are not full without a break, and a download may end before both were
    // seen so.
    let mut status = Vec::new();
    for _ in 0..3 {
        let report = bulk::run(&ends, &BulkSpec::download(8, Duration::from_secs(6))).unwrap();
        whole(report).unwrap();
        status = balanced.status().unwrap();
        if status.iter().all(|uplink| uplink.capacity_measured) {
            break;
        }
    }
    assert!(
        status.iter().all(|uplink| uplink.capacity_measured),
        "{status:?}"
    );
    let ratio = status[0].capacity_mbit / status[1].capacity_mbit;
    assert!((2.5..6.0).contains(&ratio), "{status:?}");
    let counts = Balanced::count(balanced.client(), SERVER.into(), 200).unwrap();
    let shares = by_uplink(&ground, &counts);
    assert!(shares[0] > 2 * shares[1], "{shares:?} with {status:?}");
}

#[test]
fn clients_leave_an_uplink_that_has_become_slow() {
    if !ready() {
        return;
    }
    let links = vec![LinkSpec::steady(30.0, Duration::from_millis(10)); 2];
    let ground = Ground::new(&TopologySpec::new("balslow", links)).unwrap();
    ground.topology.give_server("198.18.0.0/16").unwrap();
    let mut balanced = Balanced::new(&ground.topology).unwrap();
    let downloads = format!(
        "[[rule]]\nname = \"downloads\"\nuplinks = [\"up*\"]\ndestination = [\"{SERVER}\"]\naffinity = false\n"
    );
    balanced.configure(&downloads).unwrap();
    balanced.start(2).unwrap();
    let ends = Endpoints {
        client: balanced.client().clone(),
        ..ground.topology.endpoints()
    };
    let fill = |seconds| {
        let spec = BulkSpec::download(8, Duration::from_secs(seconds));
        whole(bulk::run(&ends, &spec).unwrap()).unwrap();
    };
    let sites = || -> Vec<usize> {
        let site = |number: u8| IpAddr::from([198, 18, number, 1]);
        let home = |number| {
            let counts = Balanced::count(balanced.client(), site(number), 2).unwrap();
            assert_eq!(counts.len(), 1, "a site has one uplink: {counts:?}");
            uplink(&ground, counts.keys().next().unwrap())
        };
        (0..12).map(home).collect()
    };
    let before = sites();
    fill(3);
    assert_eq!(sites(), before, "no uplink has become slow");
    let slow = &ground.topology.uplinks()[0].link;
    slow.set("both", "rate=3Mbit").unwrap();
    fill(7);
    let after = sites();
    let over = |homes: &[usize]| homes.iter().filter(|&&home| home == 0).count();
    assert!((5..=7).contains(&over(&before)), "{before:?}");
    assert!(over(&after) <= 3, "{after:?}");
    let others = before
        .iter()
        .zip(&after)
        .filter(|(before, _)| **before == 1);
    assert!(
        others.clone().all(|(_, after)| *after == 1),
        "{before:?} {after:?}"
    );
}

#[test]
fn queries_go_to_the_resolver_of_the_uplink_they_go_out_over() {
    if !ready() {
        return;
    }
    let more = "[balance]\naffinity_minutes = 0\n\
        [[uplink]]\nmatch = \"up0\"\ndns = [\"192.168.10.1\"]\n\
        [[uplink]]\nmatch = \"up1\"\ndns = [\"192.168.11.1\"]\n";
    let (ground, balanced) = running("baldns", 2, more);
    let hub = ground.topology.hub();
    let resolvers: Vec<UdpSocket> = ["192.168.10.1:53", "192.168.11.1:53"]
        .iter()
        .map(|address| hub.enter(|| UdpSocket::bind(address)).unwrap().unwrap())
        .collect();
    let client = balanced.client();
    let mut asked = [0, 0];
    for _ in 0..10 {
        let socket = client
            .enter(|| UdpSocket::bind("0.0.0.0:0"))
            .unwrap()
            .unwrap();
        socket
            .send_to(b"query", SocketAddr::new(SERVER.into(), 53))
            .unwrap();
        std::thread::sleep(Duration::from_millis(20));
        for (at, resolver) in resolvers.iter().enumerate() {
            resolver.set_nonblocking(true).unwrap();
            if let Ok((_, from)) = resolver.recv_from(&mut [0; 16]) {
                assert_eq!(uplink(&ground, &from.ip()), at, "{from}");
                asked[at] += 1;
                resolver.send_to(b"answer", from).unwrap();
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                let (_, answered) = socket.recv_from(&mut [0; 16]).unwrap();
                assert_eq!(
                    answered.ip(),
                    IpAddr::from(SERVER),
                    "as if from whom was asked"
                );
            }
        }
    }
    assert_eq!(asked, [5, 5]);
}
