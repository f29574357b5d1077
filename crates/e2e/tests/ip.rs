//! Every kind of IP packet gets through, or is answered as a router would.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use ropewalk_e2e::packet::{self, DESTINATION_OPTIONS, UDP};
use ropewalk_e2e::{Ground, Lab, ready, two_links};
use ropewalk_testbed::gateway::GatewaySpec;
use ropewalk_testbed::topology::{SERVER, SERVER_V6};
use ropewalk_testbed::traffic::Direction;
use ropewalk_testbed::traffic::ping::{self, PingSpec};
use ropewalk_testbed::{LinkSpec, Namespace, TopologySpec, programs};

const LIMIT: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(5);

#[test]
fn fragments_up_to_the_largest_packet_come_back_whole() {
    if !ready() {
        return;
    }
    let lab = Lab::new("frag", two_links()).unwrap();
    // 65,507 bytes of payload, 8 of ICMP and 20 of IP make 65,535: the largest IPv4 packet.
    for (target, size) in [
        (IpAddr::from(SERVER), 4_000),
        (SERVER_V6.into(), 4_000),
        (SERVER.into(), 65_507),
        (SERVER_V6.into(), 65_487),
    ] {
        // The server's first answer over IPv6 may be too big for the tunnel; the hub then tells
        // it the MTU instead of passing it on (RFC 8201 §3).
        let first = PingSpec {
            size,
            count: 1,
            ..PingSpec::new(target)
        };
        ping::run(lab.topology.site(), &first).unwrap();
        // An emulated link of a busy machine may lose a fragment, and with it a packet.
        let mut spec = PingSpec {
            size,
            count: 5,
            ..PingSpec::new(target)
        };
        spec.interval = Duration::from_millis(300);
        let report = ping::run(lab.topology.site(), &spec).unwrap();
        let whole = report.received >= 3;
        assert!(
            whole,
            "{size} bytes to {target}: {report:?}; {}",
            lab.explain()
        );
    }
}

#[test]
fn protocols_without_ports_arrive_in_both_families() {
    if !ready() {
        return;
    }
    let lab = Lab::new("proto", two_links()).unwrap();
    let any = b"any protocol".to_vec();
    // 253 is for experiments (RFC 3692), 47 is GRE, 132 SCTP. The hub's kernel translates SCTP that is sound.
    for (protocol, payload) in [(253, any.clone()), (47, any), (132, sctp_init())] {
        for target in [IpAddr::from(SERVER), SERVER_V6.into()] {
            let socket = packet::raw(lab.topology.server(), target, protocol).unwrap();
            packet::send(lab.topology.site(), target, protocol, &payload).unwrap();
            let came = packet::receive(&socket, SOON, |got| got.ends_with(&payload)).unwrap();
            assert!(came, "protocol {protocol} to {target}");
        }
    }
}

/// The first packet of an association (RFC 9260 §3.3.2), with its CRC32c (§A).
fn sctp_init() -> Vec<u8> {
    let words = [
        0x1388_1389_u32,
        0,
        0,
        0x0100_0014,
        1,
        0x0001_0000,
        0x0001_0001,
        1,
    ];
    let mut packet: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let mut sum = !0_u32;
    for byte in &packet {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0x82f6_3b78 * (sum & 1));
        }
    }
    packet[8..12].copy_from_slice(&(!sum).to_le_bytes());
    packet
}

#[test]
fn ipv6_extension_headers_arrive() {
    if !ready() {
        return;
    }
    let lab = Lab::new("ext", two_links()).unwrap();
    let address = SocketAddr::new(SERVER_V6.into(), 7_777);
    let server = lab
        .topology
        .server()
        .enter(|| UdpSocket::bind(address))
        .unwrap()
        .unwrap();
    server.set_read_timeout(Some(SOON)).unwrap();
    let Some(IpAddr::V6(source)) = lab.site.status().unwrap().address(true) else {
        panic!("the site has no inner IPv6 address");
    };
    let segment = packet::udp_over_ipv6((source, 5_555), (SERVER_V6, 7_777), b"behind options");
    let options = packet::options_header(UDP, &segment);
    packet::send(
        lab.topology.site(),
        SERVER_V6.into(),
        DESTINATION_OPTIONS,
        &options,
    )
    .unwrap();
    let mut buffer = [0; 64];
    let (length, _) = server.recv_from(&mut buffer).expect("nothing came");
    assert_eq!(&buffer[..length], b"behind options");
}

#[test]
fn an_expired_ttl_is_answered_by_the_hub() {
    if !ready() {
        return;
    }
    let lab = Lab::new("ttl", two_links()).unwrap();
    for target in [IpAddr::from(SERVER), SERVER_V6.into()] {
        let ping = lab.topology.site().program("ping");
        let ping = ping.args(["-n", "-c", "2", "-i", "0.2", "-W", "3", "-t", "1"]);
        let finished = ping
            .arg(target.to_string())
            .run(Duration::from_secs(15))
            .unwrap();
        let text = finished.stdout.to_lowercase();
        assert!(
            text.contains("time to live exceeded") || text.contains("hop limit"),
            "{target}: {text}"
        );
    }
}

#[test]
fn a_path_of_mtu_1280_beside_one_of_9000_carries_everything() {
    if !ready() {
        return;
    }
    let [a, b] = <[LinkSpec; 2]>::try_from(two_links()).unwrap();
    let lab = Lab::new("mtu", vec![a.with_mtu(1_280), b.with_mtu(9_000)]).unwrap();
    lab.transfer(Direction::Download, 3, 3_000_000, LIMIT)
        .unwrap();
    lab.transfer(Direction::Upload, 3, 3_000_000, LIMIT)
        .unwrap();
    for gateway in [&lab.site, &lab.hub] {
        assert_eq!(gateway.status().unwrap().mtu, 1_500);
    }
    for size in [1_200, 1_400, 1_472, 4_000] {
        let spec = PingSpec {
            size,
            count: 3,
            ..PingSpec::new(SERVER.into())
        };
        let report = ping::run(lab.topology.site(), &spec).unwrap();
        assert_eq!(report.received, 3, "{size} bytes: {report:?}");
    }
}

/// Sends a full UDP packet that forbids fragments; says what the kernel thinks of the way after that.
const PATH_MTU: &str = "
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
s.connect((sys.argv[1], 9))
s.send(bytes(1472))
time.sleep(0.5)
print(s.getsockopt(socket.IPPROTO_IP, 14))  # IP_MTU
";

#[test]
fn full_packets_pass_and_udp_that_forbids_fragments_is_told_what_fits() {
    if !ready() {
        return;
    }
    let lab = Lab::new("big", two_links()).unwrap();
    let Some(inner) = lab.site.status().unwrap().address(false) else {
        panic!("the site has no inner IPv4 address");
    };
    let route = "route add 10.86.0.0/24 via 198.51.100.1\n";
    lab.topology.server().ip(route).unwrap();
    for (from, target) in [
        (lab.topology.site(), IpAddr::from(SERVER)),
        (lab.topology.server(), inner),
    ] {
        let target = target.to_string();
        let ping = from.program("ping");
        let ping = ping.args(["-n", "-M", "do", "-c", "3", "-i", "0.2", "-W", "2"]);
        let ping = ping.args(["-s", "1472", &target]);
        let text = ping.run(Duration::from_secs(15)).unwrap().stdout;
        assert!(text.contains(" 3 received"), "{text}");
        let python = from.program("python3").args(["-c", PATH_MTU, &target]);
        let finished = python.run(Duration::from_secs(15)).unwrap();
        assert_eq!(finished.stdout.trim(), "1458", "{}", finished.stderr);
    }
}

#[test]
fn a_configured_mtu_is_kept() {
    if !ready() {
        return;
    }
    let spec = GatewaySpec {
        tunnel: "mtu = 1300".into(),
        ..GatewaySpec::default()
    };
    let ground = ropewalk_e2e::Ground::new(&TopologySpec::new("fixmtu", two_links())).unwrap();
    let lab = ground.connect(&spec, &spec).unwrap();
    assert_eq!(lab.site.status().unwrap().mtu, 1_300);
    lab.transfer(Direction::Download, 2, 1_000_000, LIMIT)
        .unwrap();
}

/// Switches IPv6 off in a namespace, as many containers and rented servers have it.
fn without_ipv6(namespace: &Namespace) {
    for which in ["all", "default"] {
        let key = format!("net/ipv6/conf/{which}/disable_ipv6");
        namespace.sysctl(&key, "1").expect("the namespace takes it");
    }
}

#[test]
fn hub_and_site_without_ipv6_carry_ipv4_and_say_so_once() {
    if !ready() {
        return;
    }
    let ground = Ground::new(&TopologySpec::new("nov6", two_links())).unwrap();
    without_ipv6(ground.topology.site());
    without_ipv6(ground.topology.hub());
    let spec = GatewaySpec::default();
    let lab = ground.connect(&spec, &spec).unwrap();
    lab.transfer(Direction::Download, 1, 2_000_000, LIMIT)
        .unwrap();
    let hub_log = lab.hub.process().unwrap().log();
    let said = "this machine has no IPv6: the hub carries IPv4 only";
    assert_eq!(hub_log.matches(said).count(), 1, "{hub_log}");
    let status = lab.site.status().unwrap();
    assert!(status.address(false).is_some() && status.address(true).is_none());
    let doctor = lab.hub.run(&["doctor"]).unwrap();
    let line = doctor.stdout.lines().find(|line| line.contains("IPv6"));
    assert!(
        line.is_some_and(|line| line.contains("switched off")),
        "{}",
        doctor.stdout
    );
}

#[test]
fn a_site_without_ipv6_uses_a_hub_that_has_it() {
    if !ready() {
        return;
    }
    let ground = Ground::new(&TopologySpec::new("nov6site", two_links())).unwrap();
    without_ipv6(ground.topology.site());
    let spec = GatewaySpec::default();
    let lab = ground.connect(&spec, &spec).unwrap();
    lab.transfer(Direction::Upload, 1, 2_000_000, LIMIT)
        .unwrap();
    let log = lab.site.process().unwrap().log();
    let said = "this machine has no IPv6: the tunnel carries IPv4 only";
    assert_eq!(log.matches(said).count(), 1, "{log}");
    let status = lab.site.status().unwrap();
    assert!(status.address(false).is_some() && status.address(true).is_none());
}

/// New network namespaces take their settings from the one they are made in.
struct Inherited(String);

impl Inherited {
    const KEY: &str = "/proc/sys/net/core/devconf_inherit_init_net";

    fn new() -> Self {
        let former = std::fs::read_to_string(Self::KEY).expect("a kernel since 4.20");
        std::fs::write(Self::KEY, "3").expect("a kernel since 5.8");
        Self(former)
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        std::fs::write(Self::KEY, &self.0).ok();
    }
}

#[test]
fn the_demo_runs_on_a_machine_without_ipv6() {
    if !ready() {
        return;
    }
    let machine = Namespace::create("nov6demo", "machine").unwrap();
    without_ipv6(&machine);
    let _inherited = Inherited::new();
    let lock = std::env::temp_dir().join("ropewalk-demo-nov6.lock");
    let demo = machine
        .program(programs::own("ropewalk").unwrap())
        .args(["demo", "--json", "--seconds", "6"])
        // This test holds the lock of its lane.
        .env("ROPEWALK_TESTBED_LOCK", lock);
    let result = demo.run(Duration::from_secs(120)).unwrap();
    let printed = (&result.stdout, &result.stderr);
    let report: serde_json::Value = serde_json::from_str(&result.stdout).expect(&result.stderr);
    assert_eq!(report["broken_connections"], 0, "{printed:?}");
    let carried = report["goodput_mbit"]["ropewalk"].as_f64();
    assert!(carried.is_some_and(|mbit| mbit > 1.0), "{printed:?}");
}
