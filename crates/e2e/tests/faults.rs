//! Bad input and faults: a clear error or a counted drop, never a crash, and nothing left behind.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use ropewalk_api::Status;
use ropewalk_e2e::packet;
use ropewalk_e2e::pushed::Pushed;
use ropewalk_e2e::{Ground, Lab, ready, two_links, whole};
use ropewalk_testbed::gateway::{Gateway, GatewaySpec, TCP_PORT, UDP_PORT};
use ropewalk_testbed::topology::{Cut, HUB, SERVER};
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::traffic::bulk::{Amount, Bulk, BulkSpec};
use ropewalk_testbed::traffic::probe::{Probe, ProbeSpec};
use ropewalk_testbed::{Finished, LinkSpec, Namespace, Program, Shape, TopologySpec, programs};
use ropewalk_transport::{CongestionControl, Endpoint, EndpointConfig, Identity, PublicKey};
use ropewalk_types::Instant;
use rustix::process::Signal;

const PATIENCE: Duration = Duration::from_secs(25);
const LIMIT: Duration = Duration::from_secs(90);
/// As the service manager sends when it starts a gateway anew.
const RESTART: Signal = Signal::USR2;
/// Handshakes begun in the flood: many times what the hub takes without asking for proof.
const FLOOD: u32 = 1_000;

fn ground(purpose: &str) -> Ground {
    Ground::new(&TopologySpec::new(purpose, vec![LinkSpec::unshaped(true)])).unwrap()
}

/// A hub that has run once, so that its configuration is known to be good.
fn hub_of(ground: &Ground) -> Gateway {
    let spec = GatewaySpec::default();
    Gateway::hub(ground.topology.hub(), ground.topology.directory(), &spec).unwrap()
}

/// A joined site, not started; the hub is stopped again.
fn joined(ground: &Ground) -> (Gateway, Gateway) {
    let mut hub = hub_of(ground);
    hub.start().unwrap();
    let token = hub.invite("site").unwrap();
    let (site, directory) = (ground.topology.site(), ground.topology.directory());
    let site = Gateway::site(site, directory, "site", &token, &GatewaySpec::default()).unwrap();
    hub.stop();
    (hub, site)
}

/// Runs a gateway command that must fail by itself, soon, without a panic.
fn fails(program: Program) -> Finished {
    let finished = program.run(Duration::from_secs(20)).unwrap();
    assert!(
        !finished.status.success(),
        "it went well: {}",
        finished.stderr
    );
    assert!(
        finished.status.code().is_some(),
        "killed by a signal: {}",
        finished.stderr
    );
    assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
    finished
}

#[test]
fn a_wrong_configuration_names_file_line_key_and_remedy() {
    if !ready() {
        return;
    }
    let ground = ground("config");
    let hub = hub_of(&ground);
    let good = std::fs::read_to_string(hub.config()).unwrap();
    let cases = [
        ("[tunnel]", "[tunnel]\nschedular = \"auto\"", "schedular"),
        ("[tunnel]", "[tunnel]\nmtu = \"big\"", "mtu"),
        ("[tunnel]", "[tunnel]\nmtu = 100", "mtu"),
        ("[tunnel]", "[tunnel]\nscheduler = \"fastest\"", "scheduler"),
        ("[tunnel]", "[tunnel", "TOML"),
        ("10.86.0.0/24", "10.86.0.1/24", "ipv4"),
        ("10.86.0.0/24", "fd00::/64", "ipv4"),
    ];
    for (from, to, key) in cases {
        assert!(good.contains(from));
        std::fs::write(hub.config(), good.replacen(from, to, 1)).unwrap();
        let finished = fails(hub.program(&["hub"]).unwrap());
        let file = hub.config().display().to_string();
        assert!(
            finished.stderr.contains(&format!("{file}:")),
            "{to}: {}",
            finished.stderr
        );
        assert!(finished.stderr.contains(key), "{to}: {}", finished.stderr);
        assert_eq!(finished.status.code(), Some(2), "{to}: {}", finished.stderr);
    }
}

#[test]
fn a_pool_that_overlaps_a_network_of_the_machine_is_refused() {
    if !ready() {
        return;
    }
    let ground = ground("overlap");
    let hub = hub_of(&ground);
    let good = std::fs::read_to_string(hub.config()).unwrap();
    std::fs::write(
        hub.config(),
        good.replace("10.86.0.0/24", "192.168.10.0/24"),
    )
    .unwrap();
    let finished = fails(hub.program(&["hub"]).unwrap());
    assert!(
        finished.stderr.contains("192.168.10.0/24"),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_bad_key_file_is_refused_without_printing_it() {
    if !ready() {
        return;
    }
    let ground = ground("key");
    let (_hub, site) = joined(&ground);
    let key = site.directory().join("keys/site.key");
    std::fs::write(&key, "c2VjcmV0IGJ1dCB0b28gc2hvcnQ=\n").unwrap();
    let finished = fails(site.program(&["up"]).unwrap());
    assert!(finished.stderr.contains("site.key"), "{}", finished.stderr);
    assert!(
        !finished.stderr.contains("c2VjcmV0"),
        "the key is in the log: {}",
        finished.stderr
    );
}

#[test]
fn without_permission_the_error_says_what_is_needed() {
    if !ready() || programs::in_path("setpriv").is_none() {
        return;
    }
    let ground = ground("perm");
    let (_hub, site) = joined(&ground);
    let program = ground
        .topology
        .site()
        .program("setpriv")
        .args(["--bounding-set", "-net_admin"]);
    let program = program
        .args(["--inh-caps", "-net_admin"])
        .arg(programs::own("ropewalk").unwrap());
    let finished = fails(program.args(["up", "--config"]).arg(site.config()));
    let text = finished.stderr.to_lowercase();
    assert!(
        text.contains("root") || text.contains("cap_net_admin"),
        "{}",
        finished.stderr
    );
}

#[test]
fn without_a_tun_device_the_error_names_it() {
    if !ready() || programs::in_path("unshare").is_none() {
        return;
    }
    let ground = ground("notun");
    let (_hub, site) = joined(&ground);
    let script = format!(
        "mount -t tmpfs none /dev/net && exec {} up --config {}",
        programs::own("ropewalk").unwrap().display(),
        site.config().display()
    );
    let program = ground.topology.site().program("unshare");
    let finished = fails(program.args(["-m", "sh", "-c", &script]));
    assert!(
        finished.stderr.contains("/dev/net/tun"),
        "{}",
        finished.stderr
    );
}

#[test]
fn an_interface_that_does_not_exist_is_waited_for_and_used_when_it_comes() {
    if !ready() {
        return;
    }
    let ground = ground("missing");
    let (mut hub, mut site) = joined(&ground);
    hub.start().unwrap();
    let config = std::fs::read_to_string(site.config()).unwrap();
    std::fs::write(site.config(), config.replace("\"up*\"", "\"usb0\"")).unwrap();
    site.start().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(site.status().unwrap().paths_up(), 0);
    let log = site.process().unwrap().log();
    assert!(
        log.contains("usb0"),
        "nobody says that usb0 is missing:\n{log}"
    );
    ground
        .topology
        .site()
        .ip(
            "link set up0 down\nlink set up0 name usb0\nlink set usb0 up\n\
             route replace default via 192.168.10.1 dev usb0\n",
        )
        .unwrap();
    site.wait_paths(1, PATIENCE).unwrap();
}

/// A UDP socket of the site that goes past the tunnel, as a stranger's would.
fn outside(lab: &Lab) -> UdpSocket {
    let socket = lab
        .topology
        .site()
        .enter(|| UdpSocket::bind("192.168.10.2:0"));
    let socket = socket.unwrap().unwrap();
    socket2::SockRef::from(&socket)
        .bind_device(Some(b"up0"))
        .unwrap();
    socket
}

#[test]
fn garbage_on_the_hubs_port_is_counted_and_disturbs_nobody() {
    if !ready() {
        return;
    }
    let lab = Lab::new("garbage", two_links()).unwrap();
    let count = |status: &Status| status.drops["garbage_datagrams"];
    let before = count(&lab.hub.status().unwrap());
    let probe = Probe::start(
        &lab.topology.endpoints(),
        &ProbeSpec::fine(Direction::Download),
    )
    .unwrap();
    let socket = outside(&lab);
    let mut noise = 1_u64;
    for round in 0..4_000_usize {
        let bytes: Vec<u8> = (0..round % 1_400)
            .map(|_| {
                noise = noise
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                noise.to_be_bytes()[0]
            })
            .collect();
        let _ = socket.send_to(&bytes, SocketAddr::new(HUB.into(), UDP_PORT));
        if round % 50 == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let report = probe.finish().unwrap().report();
    assert!(report.delivered_ratio > 0.95, "{report:?}");
    let counted = count(&lab.hub.status().unwrap()) - before;
    assert!(
        counted > 1_000,
        "only {counted} of 4000 garbage datagrams are counted"
    );
    lab.passes().unwrap();
}

/// First flights only, as from forged addresses: nobody ever answers the hub.
fn flood(lab: &Lab, hub_key: PublicKey) {
    let socket = outside(lab);
    let target = SocketAddr::new(HUB.into(), UDP_PORT);
    let config = EndpointConfig::new(Identity::generate().unwrap(), std::time::Instant::now());
    let mut endpoint = Endpoint::new(config).unwrap();
    let mut buffer = Vec::new();
    for _ in 0..FLOOD {
        let congestion = CongestionControl::default();
        let id = endpoint
            .connect(Instant::ZERO, target, hub_key, congestion)
            .unwrap();
        let first = endpoint
            .poll_transmit(Instant::ZERO, id, &mut buffer)
            .unwrap();
        socket.send_to(&buffer[..first.size], target).unwrap();
        endpoint.close(Instant::ZERO, id, "");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_flood_gets_no_answer_or_a_retry_and_sites_still_get_in() {
    if !ready() {
        return;
    }
    let mut lab = Lab::new("flood", two_links()).unwrap();
    let probe = Probe::start(
        &lab.topology.endpoints(),
        &ProbeSpec::fine(Direction::Download),
    )
    .unwrap();
    let hub_key = lab.hub.status().unwrap().public_key.parse().unwrap();
    let another = Identity::generate().unwrap().public_key();
    for (key, counted) in [(another, "strangers_ignored"), (hub_key, "retries_sent")] {
        flood(&lab, key);
        let drops = lab.hub.status().unwrap().drops;
        assert!(drops[counted] > u64::from(FLOOD) / 2, "{drops:?}");
    }
    lab.site.kill();
    lab.site.start().unwrap();
    lab.site.wait_paths(2, PATIENCE).unwrap();
    assert!(probe.finish().unwrap().report().received > 0);
    lab.passes().unwrap();
}

#[test]
fn idle_tcp_connections_of_one_address_take_no_place_from_others() {
    if !ready() {
        return;
    }
    let lab = Lab::new("idle-tcp", two_links()).unwrap();
    let target = SocketAddr::new(HUB.into(), TCP_PORT);
    let connect = || {
        let some = || {
            let connections = (0..40).map(|_| TcpStream::connect_timeout(&target, PATIENCE));
            connections.collect::<std::io::Result<Vec<TcpStream>>>()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(some)).collect();
            let done = threads.into_iter().map(|thread| thread.join().unwrap());
            done.collect::<std::io::Result<Vec<_>>>()
        })
    };
    // They never say a word, and come from one address of the site's.
    let idle = lab.topology.site().enter(connect).unwrap().unwrap();
    let refused = |status: &Status| status.drops["streams_refused"] >= 20;
    lab.hub
        .wait_for("refused connection", PATIENCE, refused)
        .unwrap();
    lab.topology.block_udp(true).unwrap();
    let over_tls = |status: &Status| status.paths().any(|path| path.transport == "tls");
    lab.site
        .wait_for("path over TLS", PATIENCE, over_tls)
        .unwrap();
    // Waiting for them, and for an idle tunnel over TLS, takes no processor time.
    let processor = || {
        let gateways = [&lab.hub, &lab.site];
        gateways.map(|gateway| gateway.process().unwrap().cpu_seconds())
    };
    let before = processor();
    std::thread::sleep(Duration::from_secs(2));
    for (after, before) in processor().iter().zip(before) {
        assert!(after - before < 0.6, "{} s of 2 s", after - before);
    }
    drop(idle);
    lab.passes().unwrap();
}

#[test]
fn a_full_entry_waits_without_work() {
    if !ready() {
        return;
    }
    let lab = Lab::new("full", vec![LinkSpec::unshaped(true)]).unwrap();
    // A fast path is given a long queue.
    lab.transfer(Direction::Upload, 2, 200_000_000, LIMIT)
        .unwrap();
    lab.topology.cut(0, Cut::Blackhole).unwrap();
    let flood = || {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_nonblocking(true)?;
        for _ in 0..40_000 {
            // What finds no room is lost, as it should be.
            let _ = socket.send_to(&[0; 1_300], SocketAddr::new(SERVER.into(), 9));
        }
        Ok::<_, std::io::Error>(())
    };
    lab.topology.site().enter(flood).unwrap().unwrap();
    let processor = || lab.site.process().unwrap().cpu_seconds();
    let before = processor();
    std::thread::sleep(Duration::from_secs(2));
    let spent = processor() - before;
    assert!(spent < 1.0, "{spent} s of 2 s: {}", lab.explain());
    lab.topology.restore(0, Cut::Blackhole).unwrap();
    lab.site.wait_paths(1, PATIENCE).unwrap();
    lab.passes().unwrap();
}

#[test]
fn replayed_datagrams_deliver_nothing_twice() {
    if !ready() {
        return;
    }
    let lab = Lab::new("replay", two_links()).unwrap();
    let probe = Probe::start(
        &lab.topology.endpoints(),
        &ProbeSpec::fine(Direction::Upload),
    )
    .unwrap();
    let wanted = |packet: &[u8]| packet::is_udp_to(packet, UDP_PORT);
    let captured =
        packet::capture(lab.topology.hub(), 100, Duration::from_secs(5), wanted).unwrap();
    assert!(captured.len() >= 50, "captured {}", captured.len());
    const RAW: u8 = 255;
    let socket = packet::raw(lab.topology.site(), HUB.into(), RAW).unwrap();
    socket.bind_device(Some(b"up0")).unwrap();
    for packet in captured.iter().cycle().take(1_000) {
        packet::inject(&socket, packet).unwrap();
        std::thread::sleep(Duration::from_micros(200));
    }
    let report = probe.finish().unwrap().report();
    assert_eq!(report.duplicates, 0, "{report:?}");
    assert!(report.delivered_ratio > 0.95, "{report:?}");
    lab.passes().unwrap();
}

#[test]
fn a_restarted_hub_gets_its_sites_back() {
    if !ready() {
        return;
    }
    let mut lab = Lab::new("restart", two_links()).unwrap();
    assert!(lab.hub.stop(), "the hub did not end well");
    lab.hub.start().unwrap();
    lab.site.wait_paths(2, PATIENCE).unwrap();
    lab.passes().unwrap();
}

#[test]
fn an_idle_site_notices_that_its_hub_was_killed() {
    if !ready() {
        return;
    }
    let mut lab = Lab::new("idle-kill", two_links()).unwrap();
    std::thread::sleep(Duration::from_secs(4));
    lab.hub.kill();
    lab.hub.start().unwrap();
    // Far less than the ten seconds after which an idle path looks for itself.
    let limit = Duration::from_secs(6);
    lab.hub.wait_paths(2, limit).unwrap();
    lab.passes().unwrap();
}

#[test]
fn killed_gateways_start_again_and_clean_up_what_was_left() {
    if !ready() {
        return;
    }
    let mut lab = Lab::new("kill", two_links()).unwrap();
    for round in 0..2 {
        if round == 0 {
            lab.hub.kill()
        } else {
            lab.site.kill()
        }
        std::thread::sleep(Duration::from_millis(300));
        if round == 0 {
            lab.hub.start().unwrap()
        } else {
            lab.site.start().unwrap()
        }
        lab.site.wait_paths(2, PATIENCE).unwrap();
        lab.passes().unwrap();
    }
}

#[test]
fn what_servers_send_while_a_killed_or_restarted_hub_is_away_is_not_refused() {
    if !ready() {
        return;
    }
    let mut lab = Lab::new("push", vec![LinkSpec::unshaped(true)]).unwrap();
    let mut pushed = Pushed::open(lab.topology.site(), lab.topology.server()).unwrap();
    for signal in [Signal::KILL, RESTART] {
        assert!(lab.hub.end(signal, PATIENCE), "it runs on");
        pushed.send().unwrap();
        lab.hub.start().unwrap();
        pushed.receive().unwrap();
    }
}

/// Everything a gateway could leave in a namespace.
fn traces(namespace: &Namespace) -> String {
    let show = |arguments: &[&str]| {
        let program = Program::new("ip")
            .args(["-n", namespace.name()])
            .args(arguments);
        program.success(Duration::from_secs(5)).unwrap()
    };
    let nft = namespace.program("nft").args(["list", "ruleset"]);
    let nft = nft.success(Duration::from_secs(5)).unwrap();
    let forward = ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"]
        .map(|key| namespace.sysctl_value(key).unwrap())
        .join(" ");
    let links = show(&["-brief", "link"]);
    let links: Vec<&str> = links
        .lines()
        .filter_map(|l| l.split_whitespace().next())
        .collect();
    let routes = show(&["route"]) + &show(&["-6", "route", "show", "proto", "static"]);
    format!(
        "{links:?}\n{}{routes}{nft}{forward}",
        show(&["rule"]) + &show(&["-6", "rule"])
    )
}

#[test]
fn stopping_and_restarting_after_a_kill_removes_everything_that_was_set() {
    if !ready() {
        return;
    }
    let mut spec = TopologySpec::new("clean", vec![LinkSpec::unshaped(true)]);
    spec.forwarding = false;
    let ground = Ground::new(&spec).unwrap();
    let (hub_namespace, site_namespace) = (
        ground.topology.hub().clone(),
        ground.topology.site().clone(),
    );
    let before = (traces(&hub_namespace), traces(&site_namespace));
    let gateway = GatewaySpec::default();
    let mut lab = ground.connect(&gateway, &gateway).unwrap();
    assert_ne!(
        before,
        (traces(&hub_namespace), traces(&site_namespace)),
        "nothing was set"
    );
    assert!(
        lab.site.stop() && lab.hub.stop(),
        "a gateway did not end well"
    );
    assert_eq!(before, (traces(&hub_namespace), traces(&site_namespace)));
    lab.hub.start().unwrap();
    lab.site.start().unwrap();
    lab.site.wait_paths(1, PATIENCE).unwrap();
    lab.hub.kill();
    lab.site.kill();
    lab.hub.start().unwrap();
    lab.site.start().unwrap();
    lab.site.wait_paths(1, PATIENCE).unwrap();
    assert!(
        lab.site.stop() && lab.hub.stop(),
        "a gateway did not end well"
    );
    assert_eq!(
        before,
        (traces(&hub_namespace), traces(&site_namespace)),
        "after the kill"
    );
}

#[test]
fn a_gateway_that_stood_still_goes_on() {
    if !ready() {
        return;
    }
    let lab = Lab::new("still", two_links()).unwrap();
    let amount = Amount::Bytes {
        bytes: 6_000_000,
        limit: LIMIT,
    };
    let spec = BulkSpec {
        amount,
        ..BulkSpec::download(2, LIMIT)
    };
    let bulk = Bulk::start(&lab.topology.endpoints(), &spec).unwrap();
    // To the process this is a jump of its clock: all timers are due at once.
    for gateway in [&lab.site, &lab.hub] {
        std::thread::sleep(Duration::from_millis(700));
        gateway.signal(Signal::STOP);
        std::thread::sleep(Duration::from_secs(3));
        gateway.signal(Signal::CONT);
    }
    whole(bulk.finish().unwrap()).unwrap();
    lab.site.wait_paths(2, PATIENCE).unwrap();
    lab.passes().unwrap();
}

#[test]
fn a_full_disk_under_the_log_does_not_stop_the_tunnel() {
    if !ready() || programs::in_path("unshare").is_none() {
        return;
    }
    let ground = ground("disk");
    let (mut hub, site) = joined(&ground);
    hub.start().unwrap();
    let disk = ground.topology.directory().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let config = std::fs::read_to_string(site.config()).unwrap();
    let log = disk.join("site.log");
    let config = format!(
        "{config}[log]\nfile = \"{}\"\nlevel = \"debug\"\n",
        log.display()
    );
    std::fs::write(site.config(), config).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=4096 none {disk} && head -c 4096 /dev/zero > {disk}/filler; \
         exec {} up --config {}",
        programs::own("ropewalk").unwrap().display(),
        site.config().display(),
        disk = disk.display(),
    );
    let program = ground
        .topology
        .site()
        .program("unshare")
        .args(["-m", "sh", "-c", &script]);
    let mut process = program
        .start(ground.topology.directory(), "full-disk")
        .unwrap();
    site.wait_paths(1, PATIENCE)
        .unwrap_or_else(|e| panic!("{e:#}\n{}", process.log_tail()));
    assert!(process.is_running());
    let status = process.stop();
    assert!(
        status.is_some_and(|status| status.success()),
        "{status:?}\n{}",
        process.log_tail()
    );
}

#[test]
fn a_path_with_much_loss_and_a_path_with_much_delay_still_carry_a_download() {
    if !ready() {
        return;
    }
    let clean = || LinkSpec::steady(20.0, Duration::from_millis(10));
    let lossy = clean().with_loss(0.3).with_seed(3);
    let far = Shape::steady(20.0, Duration::from_millis(300));
    let slow = LinkSpec::Emulated {
        down: far.clone(),
        up: far,
        mtu: 1_500,
        seed: 4,
    };
    for (name, bad) in [("30 % loss", lossy), ("600 ms", slow)] {
        let lab = Lab::new("bad", vec![clean(), bad]).unwrap();
        let report = lab.transfer(Direction::Download, 3, 4_000_000, LIMIT);
        report.unwrap_or_else(|error| panic!("{name}: {error:#}"));
        lab.transfer(Direction::Upload, 3, 2_000_000, LIMIT)
            .unwrap_or_else(|error| panic!("{name}: {error:#}"));
    }
}

#[test]
fn two_gateways_do_not_share_a_state_directory() {
    if !ready() {
        return;
    }
    let lab = Lab::new("twice", two_links()).unwrap();
    let finished = fails(lab.site.program(&["up"]).unwrap());
    assert!(finished.stderr.contains("already"), "{}", finished.stderr);
    assert!(Path::new(lab.site.config()).exists());
    lab.passes().unwrap();
}

#[test]
fn a_hub_takes_back_inner_addresses_that_another_program_has_removed() {
    if !ready() {
        return;
    }
    let ground = ground("addresses");
    let mut hub = hub_of(&ground);
    hub.start().unwrap();
    let (status, namespace) = (hub.status().unwrap(), ground.topology.hub());
    let interface = &status.interface;
    let run = |command: &str| {
        let shell = namespace.program("sh").args(["-c", command]);
        shell.success(PATIENCE).unwrap()
    };
    let listed = || run(&format!("ip -o addr show dev {interface}"));
    let before = listed();
    let word = |address: String| {
        let mut words = before.split_whitespace();
        let found = words.find(|word| word.starts_with(&format!("{address}/")));
        found.unwrap().to_owned()
    };
    let [v4, v6] = [false, true].map(|v6| word(status.address(v6).unwrap().to_string()));
    let switch = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    for (what, gone) in [
        (format!("ip addr del {v4} dev {interface}"), &v4),
        (format!("ip addr del {v6} dev {interface}"), &v6),
        (format!("echo 1 > {switch}; echo 0 > {switch}"), &v6),
    ] {
        run(&what);
        let begun = std::time::Instant::now();
        while !listed().contains(gone) {
            assert!(begun.elapsed() < PATIENCE, "{gone} stays away after {what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
