//! The kill switch of a site: a firewall table that lets only the tunnel out, and outlives the program.
//!
//! Rules go by interface and by packet mark, never by route. So a route that a network hands out
//! (DHCP option 121, router advertisements) changes nothing, and an uplink that appears later is shut
//! from its first packet on. The kernel keeps the table until [`lift`] or a reboot. The
//! file of the plan says what to set again after a reboot.
//!
//! Invariants: the file is written before the table is set, and removed after the table is. A full disk
//! does not keep the table from being set. Each
//! change of the table is one transaction, so there is no moment without rules. [`ruleset`] may be
//! carried out again at any time: it keeps the counter and an open portal.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use ipnet::IpNet;
use ropewalk_config::SiteConfig;
use ropewalk_config::uplinks::UplinkRules;
use ropewalk_io::helper::{self, Lane, Service};
use ropewalk_io::netlink::Interface;
use ropewalk_io::nft;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{files, uplinks};

/// Bit 30 of a packet's mark: sent by a gateway to its hub.
pub const TUNNEL_MARK: u32 = 0x4000_0000;
/// Bit 31 of a packet's mark: goes beside the tunnel while a portal is passed.
pub const PORTAL_MARK: u32 = 0x8000_0000;
/// Bits that the table of flows beside the tunnel sets on packets of this machine, and on all others.
const BESIDE_OWN: u32 = 0x3000_0000;
const BESIDE: u32 = 0x1000_0000;
/// Start of the name of the table (family `inet`); the TUN interface's name follows.
const TABLE_PREFIX: &str = "ropewalk_kill_";
/// The same of the table that is there while a portal is passed.
const PORTAL_PREFIX: &str = "ropewalk_portal_";
/// Name of the file of the plan, in the state directory.
const FILE: &str = "kill-switch.json";
/// Name of the helper's service.
const SERVICE: &str = "kill-switch";
/// Longest file that is read, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Set of the uplink that a portal is passed over.
const PORTAL_UPLINK: &str = "set portal_uplink { type ifname; flags timeout; }";
/// What a captive portal needs: names, and pages.
const PORTAL_PORTS: [(&str, u16); 4] = [("udp", 53), ("tcp", 53), ("tcp", 80), ("tcp", 443)];

/// A network that is reached beside the tunnel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Local {
    /// The only interface for it; `None` is any, uplinks included.
    pub interface: Option<String>,
    /// The network.
    pub network: IpNet,
}

impl fmt::Display for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.interface {
            Some(interface) => write!(f, "{} on {interface}", self.network),
            None => write!(f, "{}", self.network),
        }
    }
}

/// What the rules are made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// TUN interface, which everything may leave by.
    pub tun: String,
    /// UDP addresses of the hub.
    pub hub: Vec<SocketAddr>,
    /// TCP port of the hub; `None` without the fallback to TLS.
    pub tcp_port: Option<u16>,
    /// Whether the gateway looks names of the hub up.
    pub names: bool,
    /// Whether classes of traffic go beside the tunnel by configuration.
    pub beside: bool,
    /// Name servers that may be in a local network.
    pub dns: Vec<IpAddr>,
    /// Networks reached beside the tunnel.
    pub local: Vec<Local>,
    /// Networks of the tunnel, as the hub assigned them last.
    #[serde(default)]
    pub inner: Vec<IpNet>,
}

/// What the kernel says of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Packets that were refused.
    pub refused: u64,
    /// How long a portal may still be passed.
    pub portal: Option<Duration>,
    /// Networks reached beside the tunnel.
    pub local: Vec<Local>,
}

impl Plan {
    /// The plan of a configuration, with the addresses of the hub that need no look-up.
    #[must_use]
    pub fn new(config: &SiteConfig) -> Self {
        let literal = |end: &ropewalk_config::values::HostPort| {
            let ip: IpAddr = end.host.parse().ok()?;
            Some(SocketAddr::new(ip, end.port))
        };
        let hub: Vec<_> = config.endpoints.iter().filter_map(literal).collect();
        let local = config.local.iter().flatten();
        let any = |network: &IpNet| Local {
            interface: None,
            network: *network,
        };
        Self {
            tun: config.common.interface.clone(),
            names: hub.len() < config.endpoints.len(),
            hub,
            tcp_port: config.tcp_fallback.then_some(config.tcp_port),
            beside: config.direct.is_some(),
            dns: config.dns.clone(),
            local: local.map(any).collect(),
            inner: Vec::new(),
        }
    }

    /// Name of the table.
    #[must_use]
    pub fn table(&self) -> String {
        table(&self.tun)
    }
}

/// Name of the table of the site with this TUN interface.
#[must_use]
pub fn table(tun: &str) -> String {
    let sound = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!(
        "{TABLE_PREFIX}{}",
        tun.chars().map(sound).collect::<String>()
    )
}

/// What of a kill switch takes rights.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Sets the rules.
    Set(Plan),
    /// Ends a portal.
    ClosePortal { tun: String },
}

/// What the helper of a site does for its kill switch: that of the interface `tun`.
#[must_use]
pub fn service(tun: String) -> Service {
    Service::new(SERVICE, move |order: Order| {
        let (Order::Set(Plan { tun: asked, .. }) | Order::ClosePortal { tun: asked }) = &order;
        if *asked != tun {
            bail!("the kill switch of {asked} is not this site's");
        }
        carry_out(&order)
    })
}

fn carry_out(order: &Order) -> anyhow::Result<()> {
    match order {
        Order::Set(plan) => nft::run_script(&ruleset(plan)).map_err(Into::into),
        Order::ClosePortal { tun } => close_portal_here(tun),
    }
}

/// The script for nft(8) that makes the table, or brings it up to date.
#[must_use]
pub fn ruleset(plan: &Plan) -> String {
    let name = plan.table();
    let chains = chains(plan);
    let mut out = format!(
        "table inet {name} {{\n\tcounter refused {{ }}\n\
         \tset portal {{ type inet_proto . inet_service; flags timeout; }}\n\t{PORTAL_UPLINK}\n"
    );
    for (family, kind) in [(4, "ipv4_addr"), (6, "ipv6_addr")] {
        let _ = writeln!(
            out,
            "\tset hub{family} {{ type {kind} . inet_proto . inet_service; }}"
        );
    }
    for (chain, hook, _) in &chains {
        let _ = writeln!(out, "\tchain {chain} {{ {hook} }}");
    }
    out.push_str("}\n");
    for (chain, _, _) in &chains {
        let _ = writeln!(out, "flush chain inet {name} {chain}");
    }
    for family in [4, 6] {
        let _ = writeln!(out, "flush set inet {name} hub{family}");
    }
    for address in &plan.hub {
        let (ip, family) = (address.ip(), if address.is_ipv4() { 4 } else { 6 });
        let tcp = plan.tcp_port.map(|port| ("tcp", port));
        for (protocol, port) in [("udp", address.port())].into_iter().chain(tcp) {
            let _ = writeln!(
                out,
                "add element inet {name} hub{family} {{ {ip} . {protocol} . {port} }}"
            );
        }
    }
    let _ = writeln!(out, "table inet {name} {{");
    for (chain, _, rules) in &chains {
        let _ = writeln!(out, "\tchain {chain} {{");
        for rule in rules {
            let _ = writeln!(out, "\t\t{rule}");
        }
        out.push_str("\t}\n");
    }
    out.push_str("}\n");
    out
}

type Chain = (&'static str, &'static str, Vec<String>);

fn chains(plan: &Plan) -> Vec<Chain> {
    vec![
        (
            "refuse",
            "",
            vec![
                "counter name refused".into(),
                // At once, so that programs try the other family or say what is wrong.
                "reject with icmpx admin-prohibited".into(),
            ],
        ),
        ("local", "", local(plan)),
        (
            "output",
            "type filter hook output priority filter; policy drop;",
            output(plan),
        ),
        (
            "forward",
            "type filter hook forward priority filter; policy drop;",
            forward(plan),
        ),
    ]
}

/// What this machine itself may send.
fn output(plan: &Plan) -> Vec<String> {
    let tun = &plan.tun;
    let own = format!("meta mark & {TUNNEL_MARK:#x} != 0");
    let mut rules = vec![
        format!("oifname {{ \"lo\", \"{tun}\" }} accept"),
        format!("{own} ip daddr . meta l4proto . th dport @hub4 accept"),
        format!("{own} ip6 daddr . meta l4proto . th dport @hub6 accept"),
    ];
    if plan.names {
        // Only the gateway has the mark, and it asks for names of the hub alone.
        rules.push(format!(
            "{own} meta l4proto {{ tcp, udp }} th dport 53 accept"
        ));
    }
    rules.extend(
        [
            // DHCP clients renew by unicast (RFC 2131 §4.4.5).
            "udp sport 68 udp dport 67 accept",
            "udp sport 546 udp dport 547 ip6 daddr { ff02::1:2, fe80::/10 } accept",
            // RFC 4861 §7.1: what comes from elsewhere has another hop limit.
            "icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert } \
             ip6 hoplimit 255 accept",
            // Without reports, switches that snoop keep neighbour discovery from this machine.
            "icmpv6 type { mld-listener-report, mld-listener-done, mld2-listener-report } \
             ip6 daddr ff02::/16 accept",
        ]
        .map(str::to_owned),
    );
    rules.push(format!(
        // A socket that is bound to another uplink has the mark, too.
        "meta mark & {PORTAL_MARK:#x} != 0 oifname @portal_uplink meta l4proto . th dport @portal accept"
    ));
    if plan.beside {
        rules.push(format!("meta mark & {BESIDE_OWN:#x} != 0 accept"));
    }
    rules.extend(["jump local".to_owned(), "goto refuse".to_owned()]);
    rules
}

/// What this machine may forward.
fn forward(plan: &Plan) -> Vec<String> {
    let mut rules = vec![format!("oifname \"{}\" accept", plan.tun)];
    if plan.beside {
        rules.push(format!("meta mark & {BESIDE:#x} != 0 accept"));
    }
    rules.extend(["jump local".to_owned(), "goto refuse".to_owned()]);
    rules
}

fn local(plan: &Plan) -> Vec<String> {
    const QUERY: &str = "meta l4proto { tcp, udp } th dport { 53, 853 }";
    let mut rules = Vec::new();
    let servers = |network: &IpNet| {
        let within = plan.dns.iter().filter(|server| network.contains(*server));
        let accept = |server: &IpAddr| format!("{} daddr {server} accept", family(*server));
        within.map(accept).collect::<Vec<_>>()
    };
    let mut automatic = Vec::new();
    for Local { interface, network } in &plan.local {
        let ip = family(network.addr());
        let Some(interface) = interface else {
            // A resolver there would ask on in the clear for every name.
            rules.extend(servers(network));
            rules.push(format!("{ip} daddr {network} {QUERY} goto refuse"));
            rules.push(format!("{ip} daddr {network} accept"));
            continue;
        };
        if nft::is_name(interface) {
            automatic.push((format!("oifname \"{interface}\""), ip, network));
        }
    }
    // All of an interface before what is refused there: resolvers have link-local addresses, too.
    for (on, _, network) in &automatic {
        let on_it = |rule| format!("{on} {rule}");
        rules.extend(servers(network).into_iter().map(on_it));
    }
    for (on, ip, network) in automatic {
        let refused = format!("{on} {QUERY} goto refuse");
        if !rules.contains(&refused) {
            rules.push(refused);
        }
        rules.push(format!("{on} {ip} daddr {network} accept"));
        // What hosts there need to find this machine and each other.
        let groups = [
            "ip daddr { 224.0.0.0/4, 255.255.255.255 }",
            "ip6 daddr { fe80::/10, ff02::/16 }",
        ];
        for group in groups {
            let rule = format!("{on} {group} accept");
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
    }
    rules
}

const fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "ip" } else { "ip6" }
}

/// The private networks of interfaces that are no uplinks and cannot become one as they are now. An
/// interface with a default route is an uplink, whatever it carries. A network counts if its address is
/// permanent, for others come from hosts of that network, and if it shares nothing with `inner`, the
/// networks of the tunnel.
#[must_use]
pub fn local_networks(
    interfaces: &[Interface],
    rules: &UplinkRules,
    tun: &str,
    hub: &[SocketAddr],
    inner: &[IpNet],
) -> Vec<Local> {
    let uplinks = uplinks::select(interfaces, rules, tun, hub);
    let is_uplink = |interface: &Interface| {
        uplinks.iter().any(|uplink| uplink.name == interface.name)
            || rules.include.iter().any(|p| p.matches(&interface.name))
            || rules
                .marks
                .iter()
                .any(|m| m.pattern.matches(&interface.name))
    };
    let inside = interfaces.iter().filter(|interface| {
        interface.up
            && !interface.loopback
            && interface.name != tun
            && !interface.default_route_v4
            && !interface.default_route_v6
            && !uplinks::is_tunnel(interface)
            && !is_uplink(interface)
    });
    let nets = inside.flat_map(|interface| {
        let permanent = interface.addresses.iter().filter(|a| a.permanent);
        permanent.filter_map(|address| {
            let network = IpNet::new(address.ip, address.prefix).ok()?.trunc();
            let is_free = !inner.iter().any(|inner| overlap(inner, &network));
            (is_free && is_private(&network)).then(|| Local {
                interface: Some(interface.name.clone()),
                network,
            })
        })
    });
    let mut nets: Vec<Local> = nets.collect();
    nets.sort();
    nets.dedup();
    nets
}

/// RFC 1918, RFC 3927 and RFC 4193.
const PRIVATE: [&str; 5] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "169.254.0.0/16",
    "fc00::/7",
];

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}

fn is_private(network: &IpNet) -> bool {
    let mut nets = PRIVATE.iter().filter_map(|net| net.parse::<IpNet>().ok());
    nets.any(|net| net.contains(network))
}

/// File of the plan in a state directory.
#[must_use]
pub fn path(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

/// A kill switch that is set.
#[derive(Debug)]
pub struct KillSwitch {
    path: PathBuf,
    plan: Plan,
    /// The kernel's number of the table that was made last.
    handle: Option<u64>,
}

impl KillSwitch {
    /// Writes the plan to the file at `path`, and sets the rules.
    ///
    /// # Errors
    /// `nft` is missing or refuses, or the file cannot be written.
    pub fn set(path: &Path, plan: Plan) -> anyhow::Result<Self> {
        let mut this = Self::of(path, plan);
        this.write()?;
        Ok(this)
    }

    /// By this plan, which [`Self::keep`] carries out at its first call.
    #[must_use]
    pub fn of(path: &Path, plan: Plan) -> Self {
        Self {
            path: path.to_owned(),
            plan,
            handle: None,
        }
    }

    /// What the rules are made from.
    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Takes over other values, if they are others.
    ///
    /// # Errors
    /// As [`Self::set`]; the former rules stay then.
    pub fn update(&mut self, change: impl FnOnce(&mut Plan)) -> anyhow::Result<()> {
        let former = self.plan.clone();
        change(&mut self.plan);
        if self.plan == former {
            return Ok(());
        }
        self.write().inspect_err(|_| self.plan = former)
    }

    /// Sets the rules again where another program took them away, as a firewall does that is loaded
    /// anew; true when it did.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn keep(&mut self) -> anyhow::Result<bool> {
        let name = self.plan.table();
        let is_whole = self.handle.is_some()
            && nft::table_handle(&name)? == self.handle
            && nft::chain_rules(&name, "output")? > Some(0)
            && nft::chain_rules(&name, "forward")? > Some(0);
        if !is_whole {
            self.write()?;
        }
        Ok(!is_whole)
    }

    fn write(&mut self) -> anyhow::Result<()> {
        let text = serde_json::to_vec_pretty(&self.plan)?;
        let is_written = std::fs::read(&self.path).is_ok_and(|present| present == text);
        if !is_written && let Err(error) = self.write_file(&text) {
            tracing::error!(
                error = format!("{error:#}"),
                "the kill switch is set, but after a start of the machine it is as it was before, until the \
                 site starts"
            );
        }
        let order = Order::Set(self.plan.clone());
        helper::delegate(Lane::Slow, SERVICE, &order, carry_out)?;
        self.handle = nft::table_handle(&self.plan.table())?;
        Ok(())
    }

    fn write_file(&self, text: &[u8]) -> anyhow::Result<()> {
        files::create_parent(&self.path)?;
        files::write_atomically(&self.path, text, files::SECRET, true)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// The plan in the file at `path`; `None` when there is no file.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub fn read(path: &Path) -> anyhow::Result<Option<Plan>> {
    let damaged = || format!("{} is damaged; run `ropewalk down`", path.display());
    let text = files::read_state(path, FILE_BYTES_MAX).with_context(damaged)?;
    let plan = text.map(|text| serde_json::from_str(&text));
    plan.transpose().with_context(damaged)
}

/// Takes the table of the site with this TUN interface away, and the file at `path`; true when there
/// was either. What is left of a portal stays: see [`close_portal`].
///
/// # Errors
/// `nft` is missing or refuses, or the file cannot be removed.
pub fn lift(path: &Path, tun: &str) -> anyhow::Result<bool> {
    let name = table(tun);
    let was_set = nft::table_handle(&name)?.is_some();
    if was_set {
        nft::remove(&name).context("the kill switch cannot be lifted")?;
    }
    let removed = files::remove(path);
    let removed = removed.with_context(|| format!("cannot remove {}", path.display()))?;
    Ok(removed || was_set)
}

/// What the kernel says of the table of the site with this TUN interface; `None` when there is none.
///
/// # Errors
/// Not permitted, or `nft` is missing.
pub fn state(tun: &str) -> anyhow::Result<Option<State>> {
    let name = table(tun);
    if nft::table_handle(&name)?.is_none() {
        return Ok(None);
    }
    Ok(Some(parse_state(&nft::list_table(&name)?)))
}

fn parse_state(listed: &str) -> State {
    let value: Value = serde_json::from_str(listed).unwrap_or_default();
    let objects = value["nftables"].as_array().into_iter().flatten();
    let mut state = State::default();
    for object in objects {
        if let Some(counter) = object.get("counter").filter(|c| c["name"] == "refused") {
            state.refused = counter["packets"].as_u64().unwrap_or_default();
        }
        if let Some(set) = object.get("set").filter(|set| set["name"] == "portal") {
            let elements = set["elem"].as_array().into_iter().flatten();
            let ends = elements.filter_map(|element| element["elem"]["expires"].as_u64());
            state.portal = ends.max().map(Duration::from_secs);
        }
        if let Some(rule) = object.get("rule").filter(|rule| rule["chain"] == "local") {
            state.local.extend(accepted(rule));
        }
    }
    // Name servers have rules of their own before the rule of their network.
    let all = state.local.clone();
    let is_part = |one: &Local| {
        let mut others = all.iter().filter(|other| *other != one);
        others.any(|other| other.interface == one.interface && other.network.contains(&one.network))
    };
    state.local.retain(|local| !is_part(local));
    state.local.sort();
    state.local.dedup();
    state
}

/// The network that a rule of the chain `local` accepts; `None` for other rules, and for groups.
fn accepted(rule: &Value) -> Option<Local> {
    let parts = rule["expr"].as_array()?;
    parts.iter().find(|part| part.get("accept").is_some())?;
    let mut matches = parts.iter().filter_map(|part| part.get("match"));
    let to = matches
        .clone()
        .find_map(|one| (one["left"]["payload"]["field"] == "daddr").then_some(&one["right"]))?;
    let address = to.as_str().or_else(|| to["prefix"]["addr"].as_str())?;
    let address: IpAddr = address.parse().ok()?;
    let network = match to["prefix"]["len"].as_u64() {
        Some(length) => IpNet::new(address, u8::try_from(length).ok()?).ok()?,
        None => IpNet::from(address),
    };
    let interface = matches.find(|one| one["left"]["meta"]["key"] == "oifname");
    let interface = interface.and_then(|one| one["right"].as_str());
    Some(Local {
        interface: interface.map(str::to_owned),
        network,
    })
}

/// Opens what a captive portal needs for `time`, over `uplink` alone and for this machine only; the kernel
/// ends it. Queries go to `resolver` then.
///
/// Marks and addresses are changed in a table of their own: address translation makes the kernel track
/// every connection, which costs only while the table is there.
///
/// # Errors
/// The kill switch is not set, `uplink` has a name that rules cannot have, or `nft` refuses.
pub fn open_portal(
    tun: &str,
    uplink: &str,
    time: Duration,
    resolver: Option<IpAddr>,
) -> anyhow::Result<()> {
    if !nft::is_name(uplink) {
        bail!("the portal cannot be opened: rules cannot name the uplink {uplink:?}; rename it");
    }
    let (kill, portal) = (table(tun), portal_table(tun));
    let query = resolver.map(|ip| {
        let (word, digit) = (family(ip), if ip.is_ipv4() { 4 } else { 6 });
        format!(
            "meta mark & {PORTAL_MARK:#x} != 0 meta nfproto ipv{digit} meta l4proto {{ tcp, udp }} \
             th dport 53 dnat {word} to {ip}"
        )
    });
    let mut script = format!(
        // An older version made the table without the set of the uplink.
        "flush set inet {kill} portal\n\
         table inet {kill} {{\n\t{PORTAL_UPLINK}\n}}\nflush set inet {kill} portal_uplink\n\
         table inet {portal} {{ }}\ndelete table inet {portal}\n\
         table inet {portal} {{\n\
         \tset portal {{ type inet_proto . inet_service; flags timeout; }}\n\
         \tchain divert {{\n\t\ttype route hook output priority mangle;\n\
         \t\toifname != \"lo\" meta mark & {TUNNEL_MARK:#x} == 0 meta l4proto . th dport @portal \
         fib daddr type unicast meta mark set meta mark | {PORTAL_MARK:#x}\n\t}}\n\
         \tchain query {{\n\t\ttype nat hook output priority -110;\n\t\t{}\n\t}}\n\
         \tchain leave {{\n\t\ttype nat hook postrouting priority srcnat;\n\
         \t\tmeta mark & {PORTAL_MARK:#x} != 0 oifname \"{uplink}\" masquerade\n\t}}\n}}\n",
        query.unwrap_or_default()
    );
    let seconds = time.as_secs().max(1);
    let _ = writeln!(
        script,
        "add element inet {kill} portal_uplink {{ \"{uplink}\" timeout {seconds}s }}"
    );
    for (protocol, port) in PORTAL_PORTS {
        for name in [&kill, &portal] {
            let _ = writeln!(
                script,
                "add element inet {name} portal {{ {protocol} . {port} timeout {seconds}s }}"
            );
        }
    }
    nft::run_script(&script).context("the portal cannot be opened")
}

/// Ends a portal at once, and takes away what is left of it.
///
/// # Errors
/// `nft` is missing or refuses.
pub fn close_portal(tun: &str) -> anyhow::Result<()> {
    let tun = tun.to_owned();
    helper::delegate(Lane::Slow, SERVICE, &Order::ClosePortal { tun }, carry_out)
}

fn close_portal_here(tun: &str) -> anyhow::Result<()> {
    for (name, script) in [
        (
            table(tun),
            format!("flush set inet {} portal\n", table(tun)),
        ),
        (
            portal_table(tun),
            format!("delete table inet {}\n", portal_table(tun)),
        ),
    ] {
        if nft::table_handle(&name)?.is_some() {
            nft::run_script(&script).context("the portal cannot be closed")?;
        }
    }
    Ok(())
}

fn portal_table(tun: &str) -> String {
    table(tun).replacen(TABLE_PREFIX, PORTAL_PREFIX, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            tun: "rope-0".to_owned(),
            hub: vec![
                "192.0.2.1:4443".parse().unwrap(),
                "[2001:db8::1]:4443".parse().unwrap(),
            ],
            tcp_port: Some(443),
            names: false,
            beside: false,
            dns: Vec::new(),
            local: Vec::new(),
            inner: Vec::new(),
        }
    }

    fn local(interface: Option<&str>, network: &str) -> Local {
        Local {
            interface: interface.map(str::to_owned),
            network: network.parse().unwrap(),
        }
    }

    #[test]
    fn only_marked_packets_reach_the_hub_and_names_only_where_the_hub_has_one() {
        let rules = output(&plan());
        let to_hub = |rule: &&String| rule.contains("@hub");
        assert!(
            rules
                .iter()
                .filter(to_hub)
                .all(|r| r.starts_with("meta mark & 0x40000000 != 0"))
        );
        assert!(!rules.iter().any(|rule| rule.contains("dport 53")));
        let named = Plan {
            names: true,
            ..plan()
        };
        let rules = output(&named);
        let query = rules.iter().find(|rule| rule.contains("dport 53")).unwrap();
        assert!(query.starts_with("meta mark & 0x40000000 != 0"), "{query}");
        assert_eq!(rules.last().unwrap(), "goto refuse");
        assert_eq!(forward(&named).last().unwrap(), "goto refuse");
    }

    #[test]
    fn resolvers_in_local_networks_are_refused_unless_they_are_configured() {
        let plan = Plan {
            dns: vec!["192.168.1.53".parse().unwrap()],
            local: vec![local(None, "192.168.0.0/16")],
            ..plan()
        };
        let rules = super::local(&plan);
        assert_eq!(rules[0], "ip daddr 192.168.1.53 accept");
        assert!(rules[1].contains("{ 53, 853 } goto refuse"));
        assert_eq!(rules[2], "ip daddr 192.168.0.0/16 accept");
        let plan = Plan {
            local: vec![
                local(Some("br-lan"), "10.1.0.0/16"),
                local(Some("br-lan"), "192.168.0.0/16"),
                local(Some("br-v6"), "fd00:50::/64"),
            ],
            ..plan
        };
        let rules = super::local(&plan);
        let at = |text: &str| {
            let found = rules.iter().position(|rule| rule == text);
            found.unwrap_or_else(|| panic!("{text}: {rules:?}"))
        };
        let refused =
            "oifname \"br-lan\" meta l4proto { tcp, udp } th dport { 53, 853 } goto refuse";
        assert!(at("oifname \"br-lan\" ip daddr 192.168.1.53 accept") < at(refused));
        for network in ["10.1.0.0/16", "192.168.0.0/16"] {
            assert!(at(refused) < at(&format!("oifname \"br-lan\" ip daddr {network} accept")));
        }
        assert!(
            at(&refused.replace("lan", "v6"))
                < at("oifname \"br-v6\" ip6 daddr { fe80::/10, ff02::/16 } accept")
        );
    }

    fn interface(name: &str, net: &str, has_default: bool) -> Interface {
        let net: IpNet = net.parse().unwrap();
        Interface {
            default_route_v4: has_default,
            ..Interface::card(name, 1, &[(net.addr(), net.prefix_len())])
        }
    }

    #[test]
    fn private_networks_of_interfaces_that_are_no_uplinks_are_local() {
        let mut vpn = interface("wg0", "10.5.0.2/24", false);
        vpn.kind = Some("wireguard".to_owned());
        let interfaces = [
            interface("br-lan", "192.168.50.1/24", false),
            interface("br-v6", "fd00:50::1/64", false),
            interface("wlan0", "192.168.1.7/24", true),
            interface("up1", "192.168.2.7/24", false),
            interface("public", "198.51.100.7/24", false),
            interface("wide", "10.0.0.1/4", false),
            interface("rope-0", "10.9.0.2/20", false),
            vpn,
        ];
        let rules = UplinkRules {
            include: vec!["up*".parse().unwrap(), "wlan0".parse().unwrap()],
            ..UplinkRules::default()
        };
        let found = local_networks(&interfaces, &rules, "rope-0", &plan().hub, &[]);
        assert_eq!(
            found,
            [
                local(Some("br-lan"), "192.168.50.0/24"),
                local(Some("br-v6"), "fd00:50::/64"),
            ]
        );
    }

    #[test]
    fn a_network_of_a_lease_or_of_the_tunnel_is_not_local() {
        let mut lease = interface("eth1", "10.7.7.7/8", false);
        lease.addresses[0].permanent = false;
        let interfaces = [
            lease,
            interface("eth2", "10.0.0.1/8", false),
            interface("eth3", "10.9.4.1/24", false),
            interface("eth4", "10.10.0.1/16", false),
            interface("br-v6", "fd00:50::1/64", false),
        ];
        let inner = ["10.9.0.2/20", "fd00::2/32"].map(|text| text.parse().unwrap());
        let found = |inner| {
            let rules = UplinkRules::default();
            let found = local_networks(&interfaces, &rules, "rope-0", &plan().hub, inner);
            found
                .into_iter()
                .filter_map(|local| local.interface)
                .collect::<Vec<_>>()
        };
        assert_eq!(found(&[]), ["br-v6", "eth2", "eth3", "eth4"]);
        assert_eq!(found(&inner), ["br-v6", "eth4"]);
    }

    #[test]
    fn the_kernels_words_tell_refusals_and_the_time_of_the_portal() {
        let text = r#"{"nftables": [{"counter": {"name": "refused", "packets": 7, "bytes": 1}},
            {"set": {"name": "portal", "elem": [{"elem": {"val": {"concat": ["udp", 53]},
            "timeout": 300, "expires": 299}}]}}, {"set": {"name": "hub4"}}]}"#;
        let state = parse_state(text);
        assert_eq!(
            (state.refused, state.portal),
            (7, Some(Duration::from_secs(299)))
        );
        assert_eq!(parse_state("{}"), State::default());
    }

    #[test]
    fn the_kernels_words_tell_the_local_networks() {
        let rule = |chain: &str, on: &str, to: &str, verdict: &str| {
            let on = format!(
                r#"{{"match": {{"op": "==", "left": {{"meta": {{"key": "oifname"}}}}, "right": "{on}"}}}}"#
            );
            let to = format!(
                r#"{{"match": {{"op": "==", "left": {{"payload": {{"protocol": "ip", "field": "daddr"}}}},
                "right": {to}}}}}"#
            );
            format!(
                r#"{{"rule": {{"chain": "{chain}", "expr": [{on}, {to}, {{"{verdict}": null}}]}}}}"#
            )
        };
        let net = r#"{"prefix": {"addr": "192.168.50.0", "len": 24}}"#;
        let other = r#"{"prefix": {"addr": "10.0.0.0", "len": 8}}"#;
        let rules = [
            rule("local", "br", r#""192.168.50.53""#, "accept"),
            rule("local", "br", net, "accept"),
            rule("local", "br", other, "goto"),
            rule("output", "br", other, "accept"),
            rule("local", "br", r#"{"set": ["255.255.255.255"]}"#, "accept"),
            rule("local", "eth1", r#""10.1.2.3""#, "accept"),
        ];
        let state = parse_state(&format!(r#"{{"nftables": [{}]}}"#, rules.join(",")));
        let told: Vec<_> = state.local.iter().map(Local::to_string).collect();
        assert_eq!(told, ["192.168.50.0/24 on br", "10.1.2.3/32 on eth1"]);
    }

    #[test]
    fn a_plan_survives_the_file_and_a_damaged_file_says_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let path = path(directory.path());
        assert_eq!(read(&path).unwrap(), None);
        let plan = Plan {
            local: vec![local(Some("br"), "10.0.0.0/8"), local(None, "fd00::/8")],
            ..plan()
        };
        std::fs::write(&path, serde_json::to_vec(&plan).unwrap()).unwrap();
        assert_eq!(read(&path).unwrap(), Some(plan));
        std::fs::write(&path, "{").unwrap();
        assert!(
            read(&path)
                .unwrap_err()
                .to_string()
                .contains("ropewalk down")
        );
    }
}
