//! What a hub is configured with.
//!
//! Invariant: the hub has at least one UDP address to listen on and at least one pool, at most one
//! per family. The pools are private ranges large enough for a hub and a site.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use ropewalk_core::hold::Freeze;

use super::HUB_CONFIG;
use super::common::{self, Common, RoleDefaults};
use super::egress::{self, Allowed};
use super::fleet::{self, FleetConfig};
use super::reader::{self, Problems, Section, read};
use super::survey::Table;
use super::values::patterns::{ADDRESS_PORT, HOST_PORT, PATH};
use super::values::{HostPort, not_an_address, parse_path};

/// UDP port of a hub unless configured otherwise.
pub const UDP_PORT: u16 = 4443;
/// TCP port of a hub for TLS unless configured otherwise: what every network lets through.
pub const TCP_PORT: u16 = 443;
/// Most addresses a hub may listen on, per protocol.
const LISTEN_MAX: usize = 16;
/// Most workers: an identifier of a connection has room for so many.
pub const WORKERS_MAX: u64 = 64;
/// Most endpoints in a token.
pub const ENDPOINTS_MAX: usize = 8;
/// Longest IPv4 pool prefix: four addresses, two of them usable.
const POOL_V4_PREFIX_MAX: u8 = 30;
/// Longest IPv6 pool prefix.
const POOL_V6_PREFIX_MAX: u8 = 126;
/// Shortest pool prefixes: anything larger is a mistake.
const POOL_V4_PREFIX_MIN: u8 = 8;
const POOL_V6_PREFIX_MIN: u8 = 32;

/// What every right pool matches, for schemas: a network whose prefix is within the limits above.
const POOL_V4: &str = "^[0-9.]+/0*([89]|[12][0-9]|30)$";
const POOL_V6: &str = "^[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*/0*(3[2-9]|[4-9][0-9]|1[01][0-9]|12[0-6])$";

/// Configuration of a hub.
#[derive(Clone, Debug, PartialEq)]
pub struct HubConfig {
    /// What both roles have in common.
    pub common: Common,
    /// UDP addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// TCP addresses to listen on.
    pub tcp_listen: Vec<SocketAddr>,
    /// Where sites reach this hub; empty means detect.
    pub public: Vec<HostPort>,
    /// Inner IPv4 network.
    pub pool_v4: Option<IpNet>,
    /// Inner IPv6 network.
    pub pool_v6: Option<IpNet>,
    /// Addresses that sites share, each site with a block of ports.
    pub shared: Option<Shared>,
    /// Whether sites may reach other networks through this hub.
    pub forward: bool,
    /// Whether their addresses are translated to the hub's.
    pub masquerade: bool,
    /// Routing table in which each site that is served has its routes, for a routing daemon.
    pub routes_table: Option<u32>,
    /// What sites may reach beside the internet and the hub's inner addresses, unless their entries
    /// say something else.
    pub allow: Vec<Allowed>,
    /// The fleet whose sites this hub serves; without one it has sites of its own.
    pub fleet: Option<Box<FleetConfig>>,
    /// File of the known sites, of a hub without a fleet.
    pub sites_file: PathBuf,
    /// Threads that move packets, 1 to [`WORKERS_MAX`]; `None` leaves the number to the program.
    pub workers: Option<usize>,
    /// Memory for packets of all sites, 10⁶ bytes; `None` leaves that to the program.
    pub memory_mb: Option<u64>,
    /// The interface of the tunnel to the next hub, where this is the side of a relay towards its
    /// sites.
    pub onward: Option<String>,
}

/// IPv4 addresses that sites share (RFC 7597). A site has a block of the ports of one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// The addresses, in the order in which they are filled; never empty, none twice.
    pub addresses: Vec<Ipv4Addr>,
    /// How many ports a site gets, [`PORTS_MIN`] to all from [`PORT_FIRST`] on.
    pub ports: u16,
}

/// First port that a site gets: those below are of services that everybody knows (RFC 6335 §6).
pub const PORT_FIRST: u16 = 1_024;
/// All ports of an address: one site has it for itself.
const PORTS_ALL: u16 = u16::MAX - PORT_FIRST + 1;
/// Fewest ports of a site. Fewer would not do for one web page.
pub const PORTS_MIN: u16 = 64;
/// Ports of a site unless configured otherwise: 64 sites share an address.
const PORTS: u16 = 1_008;
/// Most shared addresses of a hub: as many as the most sites have with a few blocks each.
const SHARED_MAX: usize = 1_024;

impl HubConfig {
    /// Whether this is the side of a relay towards its sites.
    #[must_use]
    pub const fn is_relay(&self) -> bool {
        self.onward.is_some()
    }

    /// The hub's own inner addresses, with the prefix of their pool.
    #[must_use]
    pub fn own_addresses(&self) -> Vec<IpNet> {
        let pools = self.pool_v4.into_iter().chain(self.pool_v6);
        pools
            .filter_map(|pool| {
                let first = pool.hosts().find(|ip| *ip != pool.network())?;
                IpNet::new(first, pool.prefix_len()).ok()
            })
            .collect()
    }

    /// Addresses whose sites may be at several hubs at once: what comes here for a site at another hub is passed on to
    /// that one. None where each site has an address of its own.
    #[must_use]
    pub fn passed(&self) -> &[Ipv4Addr] {
        let several = |shared: &&Shared| self.routes_table.is_some() && shared.ports < PORTS_ALL;
        let shared = self.shared.as_ref().filter(several);
        shared.map_or(&[], |shared| &shared.addresses)
    }

    /// Whether there are such addresses.
    #[must_use]
    pub fn passes_on(&self) -> bool {
        !self.passed().is_empty()
    }

    /// The TCP port a site falls back to: 443 if the hub listens there, else the first one.
    #[must_use]
    pub fn tcp_port(&self) -> u16 {
        let ports: Vec<u16> = self.tcp_listen.iter().map(SocketAddr::port).collect();
        if ports.is_empty() || ports.contains(&TCP_PORT) {
            TCP_PORT
        } else {
            ports[0]
        }
    }

    /// UDP port that a token names when an endpoint is detected.
    #[must_use]
    pub fn udp_port(&self) -> u16 {
        self.listen.first().map_or(UDP_PORT, SocketAddr::port)
    }
}

/// Parses `text`, which was read from `path`.
///
/// # Errors
/// Every problem found.
pub fn parse(path: &Path, text: &str) -> Result<HubConfig, Problems> {
    read(path, text, |root| read_all(root, path))
}

/// What is asked of such a file.
#[must_use]
pub fn survey() -> Table {
    reader::survey(|root| read_all(root, Path::new(HUB_CONFIG)))
}

fn read_all(root: &mut Section<'_>, path: &Path) -> HubConfig {
    let defaults = RoleDefaults {
        role: "hub",
        interface: "ropehub0",
    };
    let common = common::read(root, path, defaults);
    let (listen, tcp_listen, public) = root.section("listen", read_listen);
    let ((pool_v4, pool_v6), shared) = root.section("pool", |pool| {
        let pools = read_pools(pool);
        (pools, read_shared(pool, pools.0))
    });
    let (forward, masquerade, routes_table) = root.section("network", |network| {
        read_network(network, shared.as_ref(), common.hold.freeze)
    });
    let allow = root.section("egress", |section| {
        let allow = egress::read(section);
        if !forward && allow.is_some() {
            section.reject(
                "allow",
                "without forwarding there are no rules of what sites reach",
                "set forward = true in [network], or remove allow",
            );
        }
        allow
    });
    let allow = allow.unwrap_or_default();
    let fleet = root.optional("fleet", fleet::read).flatten().map(Box::new);
    if root.has("fleet") && !root.has("name") {
        root.reject(
            "name",
            "missing",
            "write a name that no other hub has: each hub of a fleet is known by its name",
        );
    }
    let shown = "\"/var/lib/ropewalk/sites.toml\"";
    let sites_file = root.like(PATH).text("sites_file", shown, parse_path);
    let workers = read_workers(root);
    let memory_mb = root.integer_or_auto("memory_mb", MEMORY_MB);
    HubConfig {
        workers,
        memory_mb,
        sites_file: sites_file.unwrap_or_else(|| common.state_dir.join("sites.toml")),
        common,
        listen,
        tcp_listen,
        public,
        pool_v4,
        pool_v6,
        shared,
        forward,
        masquerade,
        routes_table,
        allow,
        fleet,
        onward: None,
    }
}

/// Whether the hub forwards, whether it translates addresses, and the table for routes to sites.
fn read_network(
    network: &mut Section<'_>,
    shared: Option<&Shared>,
    freeze: Freeze,
) -> (bool, bool, Option<u32>) {
    let forward = network.boolean("forward").unwrap_or(true);
    let masquerade = network.boolean("masquerade").unwrap_or(forward);
    if masquerade && !forward {
        network.reject(
            "masquerade",
            "address translation without forwarding has no effect",
            "set forward = true or masquerade = false",
        );
    }
    if shared.is_some() && !forward {
        network.reject(
            "forward",
            "sites with a block of a shared address reach nothing without forwarding",
            "set forward = true, or remove shared from [pool]",
        );
    }
    let table = network.integer("routes_table", ROUTES_TABLE);
    let table = table.and_then(|table| u32::try_from(table).ok());
    if table.is_some() && freeze == Freeze::ProxyAck {
        network.reject(
            "routes_table",
            "a hub whose sites may move to another hub must not acknowledge for them: what it had in custody is \
             lost with the hub",
            "set freeze = \"off\" or \"planned\" in [hold], or remove routes_table",
        );
    }
    (forward, masquerade, table)
}

/// What `routes_table` may be: the tables below are of the kernel and of distributions.
const ROUTES_TABLE: RangeInclusive<u64> = 256..=u32::MAX as u64;

pub(super) fn read_workers(root: &mut Section<'_>) -> Option<usize> {
    let workers = root.integer_or_auto("workers", 1..=WORKERS_MAX);
    workers.and_then(|count| usize::try_from(count).ok())
}

/// What `memory_mb` may be. Less would not hold the bursts of a few sites.
pub(super) const MEMORY_MB: RangeInclusive<u64> = 16..=1_000_000;

type Listen = (Vec<SocketAddr>, Vec<SocketAddr>, Vec<HostPort>);

pub(super) fn read_listen(listen: &mut Section<'_>) -> Listen {
    let parse = |text: &str| {
        let address = text
            .parse::<SocketAddr>()
            .map_err(|_| not_an_address(text))?;
        if address.port() == 0 {
            return Err(format!("{text:?} has port 0"));
        }
        Ok(address)
    };
    let udp = listen.like(ADDRESS_PORT).list(
        "udp",
        "[\"0.0.0.0:4443\", \"[::]:4443\"]",
        LISTEN_MAX,
        parse,
    );
    let shown = "[\"0.0.0.0:443\", \"[::]:443\"]";
    let tcp = listen
        .like(ADDRESS_PORT)
        .list("tcp", shown, LISTEN_MAX, parse);
    let public = listen.like(HOST_PORT).list(
        "public",
        "[\"hub.example.org:4443\"]",
        ENDPOINTS_MAX,
        str::parse::<HostPort>,
    );
    listen.reject_empty(
        "udp",
        udp.as_ref(),
        "a hub needs an address to listen on",
        "write [\"0.0.0.0:4443\", \"[::]:4443\"] or remove the key",
    );
    listen.reject_twice("udp", udp.as_ref());
    listen.reject_twice("tcp", tcp.as_ref());
    (
        udp.unwrap_or_else(|| any_address(UDP_PORT)),
        tcp.unwrap_or_else(|| any_address(TCP_PORT)),
        public.unwrap_or_default(),
    )
}

/// Every address of this machine with `port`; IPv6 only where the kernel has it.
#[must_use]
pub fn any_address(port: u16) -> Vec<SocketAddr> {
    let mut addresses = vec![SocketAddr::new([0; 4].into(), port)];
    if Path::new(IPV6_ADDRESSES).exists() {
        addresses.push(SocketAddr::new([0_u16; 8].into(), port));
    }
    addresses
}

/// Exists if the kernel has IPv6.
const IPV6_ADDRESSES: &str = "/proc/net/if_inet6";

pub(super) fn read_pools(pool: &mut Section<'_>) -> (Option<IpNet>, Option<IpNet>) {
    let v4 = pool
        .like(POOL_V4)
        .text("ipv4", "\"10.201.16.0/20\"", |text| {
            let limits = POOL_V4_PREFIX_MIN..=POOL_V4_PREFIX_MAX;
            parse_pool(text, limits, IpAddr::is_ipv4, "IPv4")
        });
    let v6 = pool
        .like(POOL_V6)
        .text("ipv6", "\"fd12:3456:789a::/64\"", |text| {
            let limits = POOL_V6_PREFIX_MIN..=POOL_V6_PREFIX_MAX;
            parse_pool(text, limits, IpAddr::is_ipv6, "IPv6")
        });
    pool.require_one(
        &["ipv4", "ipv6"],
        "no address pool",
        "write [pool] with ipv4 = \"10.201.16.0/20\" or ipv6 = \"fd12:3456:789a::/64\"",
    );
    (v4, v6)
}

/// What every right shared address matches, for schemas.
const ADDRESS_V4: &str = "^[0-9]+(\\.[0-9]+){3}$";

fn read_shared(pool: &mut Section<'_>, inner: Option<IpNet>) -> Option<Shared> {
    let shown = "[\"203.0.113.7\"]";
    let addresses = pool
        .like(ADDRESS_V4)
        .list("shared", shown, SHARED_MAX, |text| {
            let ip: Ipv4Addr = text
                .parse()
                .map_err(|_| format!("{text:?} is not an IPv4 address"))?;
            if ip.is_loopback() || ip.is_multicast() || ip.is_unspecified() || ip.is_broadcast() {
                return Err(format!("sites cannot send from {ip}"));
            }
            match inner {
                Some(inner) if inner.contains(&IpAddr::V4(ip)) => Err(format!(
                    "{ip} is in {inner}, which holds the sites' own addresses"
                )),
                _ => Ok(ip),
            }
        });
    pool.reject_empty(
        "shared",
        addresses.as_ref(),
        "there is no address to share",
        "write [\"203.0.113.7\"] or remove the key",
    );
    pool.reject_twice("shared", addresses.as_ref());
    let range = u64::from(PORTS_MIN)..=u64::from(u16::MAX - PORT_FIRST) + 1;
    let ports = pool.integer("ports", range);
    if addresses.is_none() && ports.is_some() && !pool.has("shared") {
        pool.reject(
            "ports",
            "there is no address whose ports sites could share",
            "add shared = [\"203.0.113.7\"], or remove the key",
        );
    }
    if addresses.is_some() && inner.is_none() && !pool.has("ipv4") {
        pool.reject(
            "shared",
            "sites without an inner IPv4 address cannot share one",
            "add ipv4 = \"10.201.16.0/20\", or remove the key",
        );
    }
    let ports = ports.and_then(|ports| u16::try_from(ports).ok());
    Some(Shared {
        addresses: addresses?,
        ports: ports.unwrap_or(PORTS),
    })
}

fn parse_pool(
    text: &str,
    prefix_len: std::ops::RangeInclusive<u8>,
    family: impl Fn(&IpAddr) -> bool,
    family_name: &str,
) -> Result<IpNet, String> {
    let net: IpNet = text
        .parse()
        .map_err(|_| format!("{text:?} is not a network"))?;
    if !family(&net.addr()) {
        return Err(format!("{text} is not an {family_name} network"));
    }
    if net.addr() != net.network() {
        return Err(format!(
            "{text} has bits beyond its prefix, the network is {}",
            net.trunc()
        ));
    }
    if !prefix_len.contains(&net.prefix_len()) {
        return Err(format!(
            "the prefix of {text} must have {} to {} bits",
            prefix_len.start(),
            prefix_len.end()
        ));
    }
    if net.addr().is_loopback() || net.addr().is_multicast() || net.addr().is_unspecified() {
        return Err(format!("{text} cannot be given to sites"));
    }
    Ok(net)
}
