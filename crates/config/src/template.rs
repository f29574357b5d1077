//! The commented configuration files that `hub --init`, `join` and `relay --join` write.
//!
//! Invariant: the parser accepts what is written. A test parses it back, also with every
//! commented key uncommented.

use std::net::SocketAddr;

use ipnet::IpNet;
use ropewalk_transport::PublicKey;

use super::Role;
use super::balance::TARGETS;
use super::site::SPARES_MAX;
use super::token::Place;
use super::values::HostPort;

/// What differs between the configurations of hubs.
#[derive(Clone, Debug)]
pub struct HubTemplate {
    /// UDP addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// TCP addresses to listen on.
    pub tcp_listen: Vec<SocketAddr>,
    /// Where sites reach the hub, if the user said so.
    pub public: Vec<HostPort>,
    /// Inner IPv4 network.
    pub pool_v4: IpNet,
    /// Inner IPv6 network.
    pub pool_v6: IpNet,
}

/// What differs between the configurations of sites.
#[derive(Clone, Debug)]
pub struct SiteTemplate {
    /// Name of the site.
    pub name: String,
    /// The hub's public key.
    pub hub_key: PublicKey,
    /// Where the hub is reached.
    pub endpoints: Vec<HostPort>,
    /// The hub's TCP port.
    pub tcp_port: u16,
    /// Further hubs, of which the first [`SPARES_MAX`] are written.
    pub spares: Vec<Place>,
}

/// What differs between the configurations of relays.
#[derive(Clone, Debug)]
pub struct RelayTemplate {
    /// Towards the next hub; its name is the relay's.
    pub site: SiteTemplate,
    /// UDP addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// TCP addresses to listen on.
    pub tcp_listen: Vec<SocketAddr>,
    /// Where sites reach the relay, if the user said so.
    pub public: Vec<HostPort>,
    /// Inner networks of its sites, one per family at most.
    pub pools: Vec<IpNet>,
    /// Whether the next hub routes them to the relay.
    pub routed: bool,
}

/// The configuration file of a hub.
#[must_use]
pub fn hub(values: &HubTemplate) -> String {
    let public = public(&values.public, "hub.example.org:4443");
    format!(
        "# Ropewalk hub. Keys after a single # show the default of a gateway in
# /etc/ropewalk, or an example where it says so; remove the # to change one.
# Check this file with `ropewalk doctor`; `ropewalk hub --help` explains the rest.

# Name of this hub in logs and metrics.
name = \"hub\"
# key_file = \"/etc/ropewalk/keys/hub.key\"
{STATE_DIR}
# sites_file = \"/var/lib/ropewalk/sites.toml\"
# Threads that move packets: a number, or \"auto\": one per processor, on machines with at least four.
# workers = \"auto\"
# Memory for packets that wait, in MB: a number, or \"auto\": a quarter of what this machine has.
# memory_mb = \"auto\"

[listen]
# UDP addresses for the tunnel, and TCP addresses for sites whose network blocks UDP.
udp = {listen}
tcp = {tcp}
# How sites reach this hub: addresses or names with the UDP port. They go into every token.
# Without it, `ropewalk invite` takes the address of the interface with the default route.
{public}

[pool]
# Networks the sites get their addresses from; the hub takes the first address of each.
# They must not overlap with networks that the hub or the sites reach otherwise.
ipv4 = \"{v4}\"
ipv6 = \"{v6}\"
# Public addresses that sites share, each site with a block of so many ports. Sites translate to them
# themselves, so connections survive a move to another hub.
# shared = [\"203.0.113.7\"]  # example; none by default
# ports = 4032                # example; 1008 by default

[network]
# Let the sites reach the internet through this hub, with its addresses (nftables).
# forward = true
# masquerade = true

[egress]
# What sites reach beside the internet and the inner addresses of this hub: private networks, the
# networks and services of this machine, other sites.
# allow = [\"10.1.0.0/16\", \"site:farm\"] # example
{common}
# Several hubs with the same sites share their state on etcd: section [fleet], which `ropewalk fleet init` shows.
",
        listen = list(&values.listen),
        tcp = list(&values.tcp_listen),
        v4 = values.pool_v4,
        v6 = values.pool_v6,
        common = common("ropehub0", "hub"),
    )
}

/// The configuration file of a site.
#[must_use]
pub fn site(values: &SiteTemplate) -> String {
    format!(
        "# Ropewalk site. Keys after a single # show the default of a gateway in
# /etc/ropewalk, or an example where it says so; remove the # to change one.
# Check this file with `ropewalk doctor`; `ropewalk up --help` explains the rest.

# Name of this site in logs and metrics; the hub knows it by its key.
name = \"{name}\"
# key_file = \"/etc/ropewalk/keys/site.key\"
{STATE_DIR}

[hub]
key = \"{key}\"
# Where the hub is reached, preferred first.
endpoints = {endpoints}
# TCP port of the hub for networks that block UDP, and whether to use it then.
tcp_port = {tcp_port}
# tcp_fallback = true
{spares}
[network]
# What goes through the tunnel. The default is everything; [] is only the hub and its sites.
# routes = [\"0.0.0.0/0\", \"::/0\"]
# Where the hub may give this site addresses. Without the key: private, shared and unique local networks,
# but those of uplinks.
# assigned = [\"10.201.0.0/16\"]  # example
# Refuse everything that would leave beside the tunnel, also before the tunnel is up, and after this
# program has ended. `ropewalk down` lifts it. Without it, traffic leaves beside the tunnel then.
kill_switch = true
# What is reached beside the tunnel all the same. Without the key: the private networks of interfaces
# that are no uplinks.
# local = [\"192.168.0.0/16\"]  # example
# Name servers of this machine while the tunnel runs. They must be reached through the tunnel.
# dns = [\"192.0.2.53\"]  # example

{UPLINKS}{QUOTA}
# Classes of traffic that go beside the tunnel, each connection over one uplink. What goes via \"auto\"
# does so only while the hub is not reached though uplinks work. An example:
# [[class]]
# name = \"video\"
# protocol = [\"tcp\", \"udp\"]
# ports = [\"443\"]
# via = \"direct\"

# How they are spread; the keys are those of `ropewalk balance`, as are [probe] and [[rule]].
[direct]
# via = \"tunnel\"     # of what belongs to no class
# mode = \"weighted\"   # or least-finish, cheapest, failover
# affinity_minutes = 10
# affinity_sites = \"opened\"
# flow_kib = 100
# Forward for a network behind this machine.
# forward = false
{common}",
        name = values.name,
        key = values.hub_key,
        endpoints = list(&values.endpoints),
        tcp_port = values.tcp_port,
        spares = spares(&values.spares),
        common = common("ropewalk0", "site"),
    )
}

/// The hubs to which the site moves when its hub does not answer any more.
fn spares(spares: &[Place]) -> String {
    let section = |(before, spare): (usize, &Place)| {
        let others = if before == 0 {
            "the one above does"
        } else {
            "those above do"
        };
        format!(
            "\n# To this hub the site moves when {others} not answer any more.\n[[spare]]\nkey = \"{}\"\nendpoints = {}\n",
            spare.key,
            list(&spare.endpoints)
        )
    };
    let written = spares.iter().take(SPARES_MAX);
    written.enumerate().map(section).collect()
}

/// The configuration file of a relay.
#[must_use]
pub fn relay(values: &RelayTemplate) -> String {
    let (origin, masquerade) = if values.routed {
        (
            "# What the hub routes to this relay, by its token: other networks would not be reached.",
            "# masquerade = false",
        )
    } else {
        (
            "# Chosen at random: the hub knows nothing of these networks.",
            "masquerade = true",
        )
    };
    format!(
        "# Ropewalk relay. Keys after a single # show the default of a gateway in
# /etc/ropewalk, or an example where it says so; remove the # to change one.
# Check this file with `ropewalk doctor`; `ropewalk relay --help` explains the rest.

# Name of this relay in logs and metrics; the hub knows it by its key.
name = \"{name}\"
# Its key towards the sites:
# key_file = \"/etc/ropewalk/keys/relay.key\"
{STATE_DIR}
# sites_file = \"/var/lib/ropewalk/relay-sites.toml\"
# workers = \"auto\"
# memory_mb = \"auto\"

[hub]
# The next hub, or the next relay, and this relay's key there.
key = \"{key}\"
# key_file = \"/etc/ropewalk/keys/relay-hub.key\"
# Where it is reached, preferred first.
endpoints = {endpoints}
# Its TCP port for networks that block UDP, and whether to use it then.
tcp_port = {tcp_port}
# tcp_fallback = true

[listen]
# UDP addresses for the sites, and TCP addresses for those whose network blocks UDP.
udp = {listen}
tcp = {tcp}
# How sites reach this relay: addresses or names with the UDP port. They go into every token.
# Without it, `ropewalk invite` takes the address of the interface with the default route.
{public}

[pool]
{origin}
# The sites get their addresses from them; the relay takes the first address of each.
{pools}

[network]
# Translate the sites' addresses to that of this relay at the hub. Then nobody behind the hub can
# open connections to them.
{masquerade}

[egress]
# What sites reach beside the next hub and the inner addresses of this relay: the services of this
# machine, other sites of this relay. The next hub has its own rules.
# allow = [\"site:farm\"] # example

{UPLINKS}
# The tunnel to the hub, where it is to differ from [tunnel].
[onward]
# interface = \"ropewalk0\"
# scheduler = \"auto\"
# protect = \"adaptive\"
# congestion = \"bdp\"

# The tunnels to the sites.{common}",
        name = values.site.name,
        key = values.site.hub_key,
        endpoints = list(&values.site.endpoints),
        tcp_port = values.site.tcp_port,
        listen = list(&values.listen),
        tcp = list(&values.tcp_listen),
        public = public(&values.public, "relay.example.org:4443"),
        pools = pools(&values.pools),
        common = common("ropehub0", "relay"),
    )
}

/// The configuration file of `ropewalk balance`.
#[must_use]
pub fn balance() -> String {
    format!(
        "# Ropewalk balance: spreads connections over several uplinks, without a hub. Keys after a
# single # show the default, or an example where it says so; remove the # to change one.
# See what it would do with `ropewalk balance --plan`; `ropewalk balance --help` explains the rest.

# name = \"balance\"
# Lock and list of changes.
# state_dir = \"/var/lib/ropewalk\"

[balance]
# weighted (by weight, or by measured capacity), least-finish, cheapest or failover.
# mode = \"weighted\"
# A client keeps its uplink to a site for so long after its last new connection; 0 switches this off.
# affinity_minutes = 10
# To which sites: those that it opens (opened), or also those that pages are put together from (all).
# affinity_sites = \"opened\"
# Forward for a network behind this machine.
# forward = true
# What a new connection is expected to carry, for least-finish.
# flow_kib = 100

[probe]
# Who is asked whether an uplink leads anywhere; each family needs targets of its own.
# targets = {targets}
# A page that is answered with status 204, to find captive portals.
# portal = \"http://connectivity-check.example.org/generate_204\"  # example; none by default
# How the capacity of idle uplinks is probed: train, vps, or none.
# capacity = \"train\"

[uplinks]
# Interfaces to use, by name, * and ? allowed. The default is every interface with a default
# route, except VPNs.
# include = [\"eth*\", \"wlan0\", \"wwan?\"]  # example
# exclude = [\"docker*\"]  # example; none by default

# Marks of uplinks; the first entry that matches an interface counts. Mode failover goes by their
# order. An example:
# [[uplink]]
# match = \"wwan*\"
# weight = 3                 # fixed share instead of the measured capacity, 1 to 1000
# metered = true             # costs by the byte: mode cheapest uses it last
# standby = true             # carries connections only while nothing else works
# gateway = [\"192.0.2.1\"]    # next hop, if not that of its default route
# dns = [\"192.0.2.53\"]       # resolver for queries that go out here

# Rules for new connections; the first one that matches counts. An example:
# [[rule]]
# name = \"backups\"
# uplinks = [\"eth*\"]
# mode = \"failover\"         # if not as in [balance]
# strict = true              # rather fail than take another uplink
# affinity = false
# source = [\"10.0.0.0/24\"]
# destination = [\"192.0.2.0/24\", \"2001:db8::/32\"]
# domain = [\"backup.example.org\"]
# protocol = [\"tcp\"]
# ports = [\"443\", \"8000-8100\"]
# dscp = [\"cs1\"]
# user = [\"backup\"]
# cgroup = \"system.slice/backup.service\"
{common}",
        targets = list(&TARGETS),
        common = api_and_log("balance", ""),
    )
}

/// A configuration file as the role's command writes it, with addresses of documentation, for manuals.
#[must_use]
pub fn example(role: Role) -> String {
    let ports = |port| {
        [[0; 4].into(), std::net::IpAddr::from([0_u16; 8])].map(|ip| SocketAddr::new(ip, port))
    };
    let (listen, tcp_listen) = (ports(4_443).to_vec(), ports(443).to_vec());
    let host = |host: &str| HostPort {
        host: host.to_owned(),
        port: 4_443,
    };
    let pool_v4 = IpNet::new_assert([10, 201, 16, 0].into(), 20);
    let pool_v6 = IpNet::new_assert([0xfd12, 0x3456, 0x789a, 0, 0, 0, 0, 0].into(), 64);
    let site = SiteTemplate {
        name: "boat".to_owned(),
        hub_key: PublicKey::from_bytes([1; 32]),
        endpoints: vec![host("hub.example.org")],
        tcp_port: 443,
        spares: Vec::new(),
    };
    match role {
        Role::Hub => hub(&HubTemplate {
            listen,
            tcp_listen,
            public: vec![host("hub.example.org")],
            pool_v4,
            pool_v6,
        }),
        Role::Site => self::site(&site),
        Role::Relay => relay(&RelayTemplate {
            site: SiteTemplate {
                name: "harbour".to_owned(),
                ..site
            },
            listen,
            tcp_listen,
            public: vec![host("relay.example.org")],
            pools: vec![IpNet::new_assert([10, 201, 16, 192].into(), 26)],
            routed: true,
        }),
        Role::Balance => balance(),
    }
}

/// The networks of `[pool]`, each under the key of its family.
fn pools(pools: &[IpNet]) -> String {
    let line = |pool: &IpNet| match pool {
        IpNet::V4(pool) => format!("ipv4 = \"{pool}\""),
        IpNet::V6(pool) => format!("ipv6 = \"{pool}\""),
    };
    pools.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Where state lies. Without their own, two gateways of one role would undo each other's changes.
const STATE_DIR: &str = "\
# Lock and list of changes. A second gateway of this role on one machine needs its own, and its own
# `socket` in [api] and `interface` in [tunnel].
# state_dir = \"/var/lib/ropewalk\"";

/// How a site or a relay is told what to use.
const UPLINKS: &str = "[uplinks]
# Interfaces to use, by name, * and ? allowed. The default is every interface with a way to the
# hub, except other VPNs. An interface that is named here is used in any case.
# include = [\"eth*\", \"wlan0\", \"wwan?\"]  # example
# exclude = [\"docker*\"]  # example; none by default
# Where wpa_supplicant has its control sockets: it says when Wi-Fi is about to end, and the uplink is
# then left for 10 seconds at most. \"\" for nowhere.
# wpa_supplicant = \"/run/wpa_supplicant\"
# The system bus, where NetworkManager and ModemManager say what is metered, which technology and
# signal there are, and what is about to end. \"\" for nowhere.
# system_bus = \"/run/dbus/system_bus_socket\"

# Marks of uplinks; the first entry that matches an interface counts. An example:
# [[uplink]]
# match = \"wwan*\"
# metered = true      # costs by the byte: scheduler cost-aware uses it last. What NetworkManager
#                     # says counts unless this is written
# standby = true      # carries traffic only while nothing else works
# weight = 3          # fixed share under weighted-round-robin, 1 to 1000
# bottleneck = 1      # shares a bottleneck with the uplinks of the same number, 1 to 15
# congestion = \"bdp\"  # newreno, cubic, bbr or bdp
";

/// What a site may write into an `[[uplink]]`, and a relay may not.
const QUOTA: &str = "\
# quota_gb = 10       # carries 10 GB a month; then it is used only while nothing else works
# quota_day = 1       # day of the month on which the count begins anew, 1 to 28
";

fn public(endpoints: &[HostPort], example: &str) -> String {
    if endpoints.is_empty() {
        format!("# public = [\"{example}\"]  # example")
    } else {
        format!("public = {}", list(endpoints))
    }
}

fn common(interface: &str, role: &str) -> String {
    format!(
        "
[tunnel]
# interface = \"{interface}\"
# Which path carries the next packet; `ropewalk scheduler` lists all and changes it while running.
# scheduler = \"auto\"
# One direction only, seen from here:
# scheduler_send = \"auto\"
# scheduler_receive = \"auto\"
# congestion = \"bdp\"
# How packets that this end sends are protected against loss, and how many combinations per hundred
# they get instead of as many as measured loss asks for.
# protect = \"adaptive\"  # or duplicate, code, block, none
# redundancy_percent = 20  # example
# Whether the other end puts packets of a flow in order; off leaves that to the receivers.
# order = \"on\"
# Inner MTU from 1280 to 9000; without it 1500, or more where all paths take more.
# mtu = 1280  # example
# offload = true
# socket_buffer_bytes = 4194304
{api_and_log}
# Other protection for some packets, by codepoint, protocol, ports and size: sections [[class]].
",
        api_and_log = api_and_log(role, " They can reconfigure the tunnel."),
    )
}

/// `powers` says what else the API can do than tell.
fn api_and_log(role: &str, powers: &str) -> String {
    format!(
        "
[api]
# socket = \"/run/ropewalk/{role}.sock\"
# A group whose members may use the API, besides root.{powers}
# group = \"netdev\"  # example; none by default
# The API and Prometheus metrics over HTTP, for this machine only. It has no password.
# listen = \"127.0.0.1:9490\"  # example; off by default

[log]
# format = \"text\"     # or json
# level = \"info\"      # error, warn, info, debug, trace
# file = \"/var/log/ropewalk/{role}.log\"  # example; none by default
# file_mib_max = 10
"
    )
}

fn list<T: ToString>(values: &[T]) -> String {
    let quoted: Vec<_> = values
        .iter()
        .map(|value| format!("\"{}\"", value.to_string()))
        .collect();
    format!("[{}]", quoted.join(", "))
}
