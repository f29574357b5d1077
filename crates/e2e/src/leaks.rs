//! What leaves a site beside its tunnel, situation by situation, with and without the kill switch.
//!
//! The far end of every uplink counts what comes in, in the kernel and before anything else sees it. What
//! goes to the hub's ports is no leak, and neither is what a link needs (ARP, neighbour discovery,
//! multicast reports, DHCP). Everything else is. Programs of the site and a host behind it try all
//! families and protocols: by the routes, and bound to each uplink as `curl --interface` does.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ropewalk_testbed::gateway::{Gateway, GatewaySpec, TCP_PORT, UDP_PORT, UP_LIMIT};
use ropewalk_testbed::topology::{Cut, HUB, HUB_V6, SERVER, SERVER_V6, Uplink};
use ropewalk_testbed::{Balanced, LinkSpec, Topology, TopologySpec};
use rustix::process::Signal;
use serde::Serialize;
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

use crate::Ground;
use crate::table::Table;

/// Packets that came out of all uplinks beside the tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Leaks {
    /// TCP over IPv4.
    pub tcp4: u64,
    /// UDP over IPv4.
    pub udp4: u64,
    /// ICMP.
    pub icmp: u64,
    /// Anything over IPv6.
    pub ipv6: u64,
    /// Queries of names, over both families.
    pub dns: u64,
    /// Datagrams of other programs to the hub's port.
    pub hub: u64,
    /// Whatever else.
    pub other: u64,
}

/// A situation and what leaked in it.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    /// In words.
    pub situation: &'static str,
    /// What came out.
    pub leaks: Leaks,
}

impl Leaks {
    /// All packets.
    #[must_use]
    pub const fn all(self) -> u64 {
        self.tcp4 + self.udp4 + self.icmp + self.ipv6 + self.dns + self.hub + self.other
    }
}

/// A site, its hub, a host behind the site, and counters at the far ends of its uplinks.
#[derive(Debug)]
pub struct LeakLab {
    /// The site's gateway.
    pub site: Gateway,
    /// The hub's gateway.
    pub hub: Gateway,
    /// The host behind the site.
    pub behind: Balanced,
    /// Namespaces and links. The last uplink is down.
    pub ground: Ground,
}

/// Uplinks that are there from the start; one more appears later.
const UPLINKS: usize = 2;
/// How long counted packets may be under way.
const SETTLE: Duration = Duration::from_millis(300);
/// How long a situation lasts in which a gateway starts or an uplink appears.
const CHANGE: Duration = Duration::from_secs(3);
/// Longest time of one command.
const COMMAND: Duration = Duration::from_secs(20);
/// Payload of a datagram to the hub's port that is not of the tunnel, bytes.
const STRANGE: usize = 7;

impl LeakLab {
    /// A hub and a joined site, of which neither runs; `network` are lines of the site's section of
    /// that name.
    ///
    /// # Errors
    /// Without root or the programs.
    pub fn new(purpose: &str, network: &str) -> Result<Self> {
        let spec = GatewaySpec {
            network: network.to_owned(),
            ..GatewaySpec::default()
        };
        Self::with(purpose, &spec)
    }

    /// The same with a whole specification of the site.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with(purpose: &str, spec: &GatewaySpec) -> Result<Self> {
        let links = vec![LinkSpec::unshaped(true); UPLINKS + 1];
        let ground = Ground::new(&TopologySpec::new(purpose, links))?;
        let topology = &ground.topology;
        let behind = Balanced::new(topology)?;
        let site = topology.site();
        site.sysctl("net/ipv4/ip_forward", "1")?;
        if site.has_ipv6()? {
            site.sysctl("net/ipv6/conf/all/forwarding", "1")?;
        }
        topology.cut(UPLINKS, Cut::InterfaceDown)?;
        count_at(topology)?;
        let default = GatewaySpec::default();
        let mut hub = Gateway::hub(topology.hub(), topology.directory(), &default)?;
        hub.start()?;
        let token = hub.invite("site")?;
        let site = Gateway::site(site, topology.directory(), "site", &token, spec)?;
        hub.stop();
        Ok(Self {
            site,
            hub,
            behind,
            ground,
        })
    }

    /// Starts both, and waits for the tunnel.
    ///
    /// # Errors
    /// If it does not come up.
    pub fn connect(&mut self) -> Result<()> {
        if !self.hub.is_running() {
            self.hub.start()?;
        }
        if !self.site.is_running() {
            self.site.start()?;
        }
        self.wait_up()
    }

    fn wait_up(&self) -> Result<()> {
        self.site.wait_paths(UPLINKS, UP_LIMIT)?;
        let assigned = |status: &ropewalk_api::Status| !status.addresses.is_empty();
        self.site.wait_for("addresses", UP_LIMIT, assigned)?;
        Ok(())
    }

    /// The topology.
    #[must_use]
    pub const fn topology(&self) -> &Topology {
        &self.ground.topology
    }

    /// Tries everything once, and counts what came out.
    ///
    /// # Errors
    /// If a namespace cannot be entered or `nft` fails.
    pub fn provoke(&self) -> Result<Leaks> {
        self.provoke_for(Duration::ZERO)
    }

    /// Tries everything again and again for `time`, at least once, and counts what came out.
    ///
    /// # Errors
    /// As [`Self::provoke`].
    pub fn provoke_for(&self, time: Duration) -> Result<Leaks> {
        self.add_link_local()?;
        self.reset()?;
        let end = Instant::now() + time;
        loop {
            self.try_all()?;
            if Instant::now() >= end {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        std::thread::sleep(SETTLE);
        self.counted()
    }

    /// Gives the uplinks link-local addresses, which the topology takes away with all others. Without one the
    /// kernel does not ask for the next hop of a packet that it forwards over IPv6.
    fn add_link_local(&self) -> Result<()> {
        let site = self.topology().site();
        if !site.has_ipv6()? {
            return Ok(());
        }
        let uplinks = self.topology().uplinks().iter();
        let add =
            |uplink: &Uplink| format!("addr replace fe80::2/64 dev {} nodad\n", uplink.interface);
        site.ip(&uplinks.map(add).collect::<String>())
    }

    fn try_all(&self) -> Result<()> {
        let topology = self.topology();
        let ups: Vec<String> = topology
            .uplinks()
            .iter()
            .map(|u| u.interface.clone())
            .collect();
        let gateways: Vec<IpAddr> = topology.uplinks().iter().flat_map(|u| u.gateways).collect();
        let ways = std::iter::once(None).chain(ups.iter().map(|name| Some(name.as_str())));
        let ways: Vec<Option<&str>> = ways.collect();
        topology.site().enter(|| try_from(&ways, &gateways))?;
        self.behind.client().enter(|| try_from(&[None], &gateways))
    }

    /// Queries the resolvers of the uplinks' networks alone, and counts what came out.
    ///
    /// # Errors
    /// As [`Self::provoke`].
    pub fn query(&self) -> Result<Leaks> {
        self.reset()?;
        let uplinks = self.topology().uplinks().iter();
        let gateways: Vec<IpAddr> = uplinks.flat_map(|uplink| uplink.gateways).collect();
        let ask = || gateways.iter().for_each(|ip| query(None, *ip));
        self.topology().site().enter(ask)?;
        std::thread::sleep(SETTLE);
        self.counted()
    }

    /// Forgets what was counted.
    ///
    /// # Errors
    /// If `nft` fails.
    pub fn reset(&self) -> Result<()> {
        self.counters("reset").map(drop)
    }

    /// What came out since the counters were reset.
    ///
    /// # Errors
    /// If `nft` fails.
    pub fn counted(&self) -> Result<Leaks> {
        let value = self.counters("list")?;
        let objects = value["nftables"].as_array().context("no counters")?;
        let of = |name: &str| {
            let counters = objects.iter().filter_map(|object| object.get("counter"));
            let mut named = counters.filter(|counter| counter["name"] == name);
            named.next().and_then(|counter| counter["packets"].as_u64())
        };
        let all = KINDS.map(of);
        let [
            Some(dns),
            Some(hub),
            Some(tcp4),
            Some(udp4),
            Some(icmp),
            Some(ipv6),
            Some(other),
        ] = all
        else {
            anyhow::bail!("a counter is missing: {value}");
        };
        Ok(Leaks {
            tcp4,
            udp4,
            icmp,
            ipv6,
            dns,
            hub,
            other,
        })
    }

    fn counters(&self, verb: &str) -> Result<Value> {
        let program = self.topology().hub().program("nft");
        let words = ["-j", verb, "counters", "table", "netdev", "leaks"];
        let text = program.args(words).success(COMMAND)?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Takes the site's firewall away and sets the kill switch again, as a start of the machine does.
    ///
    /// # Errors
    /// If a command fails.
    pub fn boot(&self) -> Result<()> {
        self.topology().site().nft("flush ruleset\n")?;
        self.site.run(&["kill-switch", "restore"])?.success()?;
        Ok(())
    }
}

const KINDS: [&str; 7] = ["dns", "hub", "tcp4", "udp4", "icmp4", "ipv6", "other"];

/// Counts, at the far ends of the uplinks, what is not of the tunnel.
fn count_at(topology: &Topology) -> Result<()> {
    let mut table = "table netdev leaks {\n".to_owned();
    for kind in KINDS {
        table += &format!("counter {kind} {{ }}\n");
    }
    for uplink in topology.uplinks() {
        let name = &uplink.far_interface;
        let strange = STRANGE + 8;
        table += &format!(
            "chain {name} {{\ntype filter hook ingress device \"{name}\" priority 0;\n\
             ether type arp accept\n\
             ip daddr {HUB} udp dport {UDP_PORT} udp length {strange} counter name hub accept\n\
             ip6 daddr {HUB_V6} udp dport {UDP_PORT} udp length {strange} counter name hub accept\n"
        );
        for hub in [format!("ip daddr {HUB}"), format!("ip6 daddr {HUB_V6}")] {
            table +=
                &format!("{hub} udp dport {UDP_PORT} accept\n{hub} tcp dport {TCP_PORT} accept\n");
        }
        table += "udp sport 68 udp dport 67 accept\n\
             icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert } accept\n\
             icmpv6 type { mld-listener-report, mld-listener-done, mld2-listener-report } accept\n\
             meta l4proto { tcp, udp } th dport 53 counter name dns accept\n\
             ip6 version 6 counter name ipv6 accept\n\
             ip protocol tcp counter name tcp4 accept\n\
             ip protocol udp counter name udp4 accept\n\
             ip protocol icmp counter name icmp4 accept\n\
             counter name other\n}\n";
    }
    topology.hub().nft(&(table + "}\n"))
}

/// Tries every family and protocol over each way: an interface, or what the routes say. What the system
/// refuses does not leave, and is no error.
fn try_from(ways: &[Option<&str>], gateways: &[IpAddr]) {
    for way in ways {
        for server in [IpAddr::from(SERVER), IpAddr::from(SERVER_V6)] {
            connect(*way, SocketAddr::new(server, 80));
            send(*way, SocketAddr::new(server, 9), b"leak");
            ping(*way, server);
            query(*way, server);
        }
        for hub in [IpAddr::from(HUB), IpAddr::from(HUB_V6)] {
            send(*way, SocketAddr::new(hub, UDP_PORT), &[0; STRANGE]);
        }
    }
    for gateway in gateways {
        query(None, *gateway);
    }
}

fn socket(
    way: Option<&str>,
    to: SocketAddr,
    kind: Type,
    protocol: Option<Protocol>,
) -> Option<Socket> {
    let socket = Socket::new(Domain::for_address(to), kind, protocol).ok()?;
    socket.set_nonblocking(true).ok()?;
    socket.bind_device(way.map(str::as_bytes)).ok()?;
    Some(socket)
}

fn connect(way: Option<&str>, to: SocketAddr) {
    if let Some(socket) = socket(way, to, Type::STREAM, None) {
        let _ = socket.connect(&to.into());
    }
}

fn send(way: Option<&str>, to: SocketAddr, payload: &[u8]) {
    if let Some(socket) = socket(way, to, Type::DGRAM, None) {
        let _ = socket.send_to(payload, &to.into());
    }
}

fn ping(way: Option<&str>, to: IpAddr) {
    let (protocol, kind) = if to.is_ipv4() {
        (Protocol::ICMPV4, 8)
    } else {
        (Protocol::ICMPV6, 128)
    };
    let to = SocketAddr::new(to, 0);
    if let Some(socket) = socket(way, to, Type::RAW, Some(protocol)) {
        // An echo request; the kernel fills in the checksum of ICMPv6. That of ICMP is !0x0800.
        let _ = socket.send_to(&[kind, 0, 0xf7, 0xff, 0, 0, 0, 0], &to.into());
    }
}

fn query(way: Option<&str>, to: IpAddr) {
    let to = SocketAddr::new(to, 53);
    // The root's name servers.
    send(
        way,
        to,
        &[0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1],
    );
    connect(way, to);
}

/// Every situation in which a site could leak, with or without the kill switch.
///
/// # Errors
/// If a part does not start, or the tunnel does not come up.
pub fn matrix(kill_switch: bool) -> Result<Vec<Case>> {
    let purpose = if kill_switch { "leakon" } else { "leakoff" };
    let mut lab = LeakLab::new(purpose, &format!("kill_switch = {kill_switch}"))?;
    let mut cases = Vec::new();
    let mut add = |situation, leaks| {
        eprintln!("{situation}: {leaks:?}");
        cases.push(Case { situation, leaks });
    };
    lab.site.start()?;
    add("no answer of the hub yet", lab.provoke()?);
    lab.connect()?;
    add("tunnel up", lab.provoke()?);
    add("resolvers of the uplinks' networks queried", lab.query()?);
    add("routes of DHCP option 121", with_routes(&lab, false)?);
    add("routes of router advertisements", with_routes(&lab, true)?);
    add("an uplink appears later", late_uplink(&lab)?);
    lab.site.kill();
    add("killed (kill -9)", lab.provoke()?);
    lab.site.start()?;
    add("while it starts again", lab.provoke_for(CHANGE)?);
    lab.wait_up()?;
    for _ in 0..3 {
        lab.site.kill();
        lab.site.start()?;
    }
    lab.site.kill();
    std::thread::sleep(CHANGE);
    add("nobody starts it again after crashes", lab.provoke()?);
    add("an uplink appears while it is gone", late_uplink(&lab)?);
    if kill_switch {
        lab.boot()?;
    }
    add("boot, before the site starts", lab.provoke()?);
    lab.connect()?;
    add("hub unreachable", unreachable(&lab)?);
    lab.wait_up()?;
    lab.site.end(Signal::TERM, COMMAND);
    add("stopped", lab.provoke()?);
    without_ipv6(&mut lab)?;
    add("a hub without IPv6", lab.provoke()?);
    Ok(cases)
}

/// More specific routes than those into the tunnel, over the uplinks.
fn with_routes(lab: &LeakLab, ipv6: bool) -> Result<Leaks> {
    let uplinks = lab.topology().uplinks();
    let (family, [v4, v6]) = (usize::from(ipv6), ["198.51.100.0/24", "2001:db8:51::/48"]);
    let (net, host) = if ipv6 {
        (v6, format!("{SERVER_V6}/128"))
    } else {
        (v4, format!("{SERVER}/32"))
    };
    let protocol = if ipv6 { "ra" } else { "dhcp" };
    let mut commands = String::new();
    for (uplink, net) in uplinks.iter().zip([net, host.as_str()]) {
        let (gateway, interface) = (uplink.gateways[family], &uplink.interface);
        commands += &format!("route add {net} via {gateway} dev {interface} proto {protocol}\n");
    }
    let site = lab.topology().site();
    site.ip(&commands)?;
    let leaks = lab.provoke();
    site.ip(&commands.replace("route add", "route del"))?;
    leaks
}

/// An uplink that the site did not have comes up with addresses and default routes while everything
/// is tried.
fn late_uplink(lab: &LeakLab) -> Result<Leaks> {
    let topology = lab.topology();
    let leaks = std::thread::scope(|scope| {
        let tries = scope.spawn(|| lab.provoke_for(CHANGE));
        std::thread::sleep(Duration::from_millis(200));
        let restored = topology
            .restore(UPLINKS, Cut::InterfaceDown)
            .and_then(|()| lab.add_link_local());
        let leaks = tries
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        restored.and(leaks)
    });
    topology.cut(UPLINKS, Cut::InterfaceDown)?;
    leaks
}

fn unreachable(lab: &LeakLab) -> Result<Leaks> {
    let topology = lab.topology();
    // Behind the counters, so that they still count.
    let deaf = "table inet deaf { chain c { type filter hook prerouting priority -300;\n\
                udp dport 4443 drop\ntcp dport 443 drop\n}\n}\n";
    topology.hub().nft(deaf)?;
    let down = |status: &ropewalk_api::Status| status.tunnels.iter().all(|tunnel| !tunnel.up);
    lab.site.wait_for("outage", UP_LIMIT, down)?;
    let leaks = lab.provoke();
    topology.hub().nft("delete table inet deaf\n")?;
    leaks
}

/// Starts both with a hub that has addresses of IPv4 only.
fn without_ipv6(lab: &mut LeakLab) -> Result<()> {
    lab.hub.stop();
    let sites = lab.hub.directory().join("state/sites.toml");
    for file in [lab.hub.config(), &sites] {
        let text = std::fs::read_to_string(file)?;
        let without: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with("ipv6 ="))
            .collect();
        ensure!(
            without.len() + 1 == text.lines().count(),
            "no line for IPv6"
        );
        std::fs::write(file, without.join("\n") + "\n")?;
    }
    lab.connect()
}

/// A column per kind of packet, and a row per situation.
#[must_use]
pub fn table(cases: &[Case]) -> Table {
    let columns = [
        "situation",
        "IPv4 TCP",
        "IPv4 UDP",
        "ICMP",
        "IPv6",
        "DNS",
        "to the hub",
        "other",
    ];
    let mut table = Table::new(&columns);
    for Case { situation, leaks } in cases {
        let counts = [
            leaks.tcp4,
            leaks.udp4,
            leaks.icmp,
            leaks.ipv6,
            leaks.dns,
            leaks.hub,
            leaks.other,
        ];
        let counts = counts.iter().map(ToString::to_string);
        let cells: Vec<String> = std::iter::once((*situation).to_owned())
            .chain(counts)
            .collect();
        table.row(&cells);
    }
    table
}
