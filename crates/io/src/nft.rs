//! Firewall rules of a hub and a site, through the `nft` program (nft(8), libnftables-json(5)).
//!
//! Invariants: everything lies in one table of the caller's name, replaced or removed in one
//! transaction. Other tables are not touched. An `accept` here cannot overrule a `drop` in another
//! table: a firewall of the machine's owner keeps the last word.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nftables::batch::Batch;
use nftables::expr::{
    CT, Expression, Exthdr, Meta, MetaKey, NamedExpression, Payload, PayloadField, Prefix, RT,
    RTKey, Range, SetItem, TcpOption,
};
use nftables::schema::{Chain, NfListObject, Rule, Table};
use nftables::stmt::{
    Counter, JumpTarget, Mangle, Match, NAT, NATFamily, Operator, Reject, RejectType, Statement,
    VerdictMap,
};
use nftables::types::{NfChainPolicy, NfChainType, NfFamily, NfHook, RejectCode};

use netlink_packet_netfilter::nftables::{
    ChainAttribute, ChainMessage, NfTablesMessage, TableAttribute, TableMessage,
};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};
use netlink_sys::protocols::NETLINK_NETFILTER;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::helper::{Order, Refusal, order};
use crate::netlink::socket::NetlinkSocket;
use crate::program::{self, ProgramError};

/// What a hub needs: forwarding, address translation and MSS clamping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubNat {
    /// Name of the nftables table (family `inet`) that holds all of it.
    pub table: String,
    /// TUN interface.
    pub tun: String,
    /// Inner IPv4 network of the sites.
    pub pool_v4: Option<(Ipv4Addr, u8)>,
    /// Inner IPv6 network of the sites.
    pub pool_v6: Option<(Ipv6Addr, u8)>,
    /// Whether and how to translate the sites' addresses.
    pub translation: Translation,
    /// What sites may reach; `None` is everything.
    pub egress: Option<Egress>,
    /// Shared addresses of which packets are passed on to other hubs, wrapped (RFC 2003).
    pub passed: Vec<Ipv4Addr>,
    /// The only other interface that packets of the sites may come from and leave by, and nobody
    /// else's; `None` is any.
    pub onward: Option<String>,
}

/// A network: its first address and the length of its prefix, bits.
pub type Net = (IpAddr, u8);

/// Ports of an IPv4 address: the first and the last one.
pub type Ports = (Ipv4Addr, u16, u16);

/// What a site needs that sends from its ports of a shared address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SitePorts {
    /// Name of the nftables table (family `inet`) that holds all of it.
    pub table: String,
    /// TUN interface.
    pub tun: String,
    /// The ports. ICMP queries have identifiers of the same numbers (RFC 7597 §8.2).
    pub ports: Ports,
    /// Networks to which packets are not translated.
    pub inside: Vec<(Ipv4Addr, u8)>,
}

/// What sites may reach. What was opened stays open: rules are for new connections only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Egress {
    /// This machine's addresses that sites reach.
    pub own: Vec<IpAddr>,
    /// UDP ports of this machine that sites reach, each at one of its addresses or at any of them.
    pub udp_ports: Vec<(Option<IpAddr>, u16)>,
    /// The same of TCP.
    pub tcp_ports: Vec<(Option<IpAddr>, u16)>,
    /// Networks that sites do not reach unless they are allowed.
    pub closed: Vec<Net>,
    /// What sites may reach of these networks, and of this machine's addresses.
    pub allowed: Vec<Net>,
    /// The same of sites for which `allowed` does not count: their networks, and what they may reach.
    pub exceptions: Vec<(Vec<Net>, Vec<Net>)>,
    /// Ports of shared addresses of such sites, with their numbers in `exceptions`.
    pub exception_ports: Vec<(Ports, usize)>,
}

/// What addresses the packets of sites leave with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Translation {
    /// Their own.
    None,
    /// The one that the interface has to which the packets are routed. Connections end with the
    /// interface. Without an address of their family, packets are dropped.
    Masquerade,
    /// The first of these of their family; without one, their own. Connections outlive the
    /// interface.
    To(Vec<IpAddr>),
}

/// Why rules could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// The `nft` program is missing.
    #[error("the program nft is missing: install nftables")]
    Missing,
    /// `nft` refused, with its words.
    #[error("nft refused the rules: {0}")]
    Refused(String),
    /// `nft` did not work.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The name cannot be a table or interface name.
    #[error("{0:?} cannot be a table or interface name: 1 to 64 letters, digits and any of `_.@-`")]
    BadName(String),
    /// The helper did not do it.
    #[error(transparent)]
    Helper(#[from] Refusal),
}

impl From<NftError> for Refusal {
    fn from(error: NftError) -> Self {
        Self::new(error.to_string())
    }
}

/// Replaces the table by the rules of a hub, in one transaction. Packets of the pools pass between
/// the TUN interface and the rest, or only one other interface, which then carries nothing else.
/// Packets from the TUN interface that name their own route are dropped.
/// Sites reach what [`Egress`] says. TCP handshakes get an MSS that fits. If asked for, packets from the pools leave with an address
/// of this machine.
///
/// # Errors
/// See [`NftError`].
pub fn apply_hub(nat: &HubNat) -> Result<(), NftError> {
    order(
        || Order::HubRules(Box::new(nat.clone())),
        || apply_hub_here(nat),
    )
}

pub(crate) fn apply_hub_here(nat: &HubNat) -> Result<(), NftError> {
    let mut table = NewTable::new(&nat.table, &nat.tun)?;
    let pools = pools(nat);
    table.drop_source_routes();
    table.chain(
        "forward",
        NfChainType::Filter,
        NfHook::Forward,
        PRIORITY_FILTER,
    );
    if let Some(onward) = &nat.onward {
        check_name(onward)?;
        // Addresses do not matter here: anybody near this machine can write those of a site.
        let (tun, onward) = (nat.tun.as_str(), onward.as_str());
        for (interface, partners) in [(tun, [tun, onward].as_slice()), (onward, &[tun])] {
            for (key, other) in [
                (MetaKey::Iifname, MetaKey::Oifname),
                (MetaKey::Oifname, MetaKey::Iifname),
            ] {
                let mut elsewhere = vec![named(key, Operator::EQ, interface)];
                let strangers = partners.iter();
                elsewhere.extend(strangers.map(|name| named(other, Operator::NEQ, name)));
                elsewhere.push(Statement::Drop(None));
                table.rule("forward", elsewhere);
            }
        }
    }
    let translates = nat.translation != Translation::None && !pools.is_empty();
    table.lost_and_wrapped(nat, &pools, translates);
    if let Some(egress) = &nat.egress {
        table.egress(egress);
    }
    for (ip, prefix) in &pools {
        let from = vec![
            table.interface(MetaKey::Iifname, Operator::EQ),
            address("saddr", *ip, *prefix),
            Statement::Accept(None),
        ];
        let to = vec![
            table.interface(MetaKey::Oifname, Operator::EQ),
            address("daddr", *ip, *prefix),
            Statement::Accept(None),
        ];
        table.rule("forward", from);
        table.rule("forward", to);
    }
    // Interfaces beyond the tunnel may take less than the tunnel.
    table.clamp();
    if translates {
        table.chain(
            "translate",
            NfChainType::NAT,
            NfHook::Postrouting,
            PRIORITY_SOURCE_NAT,
        );
        for (ip, prefix) in &pools {
            let Some(translate) = translate(&nat.translation, ip.is_ipv4()) else {
                continue;
            };
            let rule = vec![
                table.interface(MetaKey::Oifname, Operator::NEQ),
                address("saddr", *ip, *prefix),
                translate,
            ];
            table.rule("translate", rule);
        }
    }
    table.apply()
}

/// Replaces the table by the rules of a site with ports of a shared address, in one transaction. TCP, UDP and queries of
/// ICMP that leave by the TUN interface get a port of the site, those of networks behind the site as well. The rules
/// come before address translation of others at the usual place. What the kernel cannot translate is dropped, and so
/// is what comes for the shared address and belongs to no connection.
///
/// # Errors
/// See [`NftError`].
pub fn apply_site(rules: &SitePorts) -> Result<(), NftError> {
    order(
        || Order::SiteRules(Box::new(rules.clone())),
        || apply_site_here(rules),
    )
}

pub(crate) fn apply_site_here(rules: &SitePorts) -> Result<(), NftError> {
    let mut table = NewTable::new(&rules.table, &rules.tun)?;
    let (shared, first, last) = rules.ports;
    for (chain, kind, priority) in [
        ("lost", NfChainType::Filter, PRIORITY_SOURCE_NAT - 2),
        ("translate", NfChainType::NAT, PRIORITY_SOURCE_NAT - 1),
    ] {
        table.chain(chain, kind, NfHook::Postrouting, priority);
        let elsewhere = table.interface(MetaKey::Oifname, Operator::NEQ);
        table.rule(chain, vec![elsewhere, Statement::Accept(None)]);
        for (ip, prefix) in &rules.inside {
            let inside = address("daddr", IpAddr::V4(*ip), *prefix);
            table.rule(chain, vec![inside, Statement::Accept(None)]);
        }
    }
    let lost = vec![
        ip_protocol(&["icmp", "tcp", "udp"]),
        in_state(&["invalid"]),
        Statement::Counter(Counter::Anonymous(None)),
        Statement::Drop(None),
    ];
    table.rule("lost", lost);
    // The kernel takes a range of ports only where it knows the protocol: ICMP apart from the others.
    for protocols in [["tcp", "udp"].as_slice(), &["icmp"]] {
        let port = [first, last].map(|port| Expression::Number(port.into()));
        let translate = Statement::SNAT(Some(NAT {
            addr: Some(Expression::String(shared.to_string().into())),
            family: Some(NATFamily::IP),
            port: Some(Expression::Range(Box::new(Range { range: port }))),
            flags: None,
        }));
        table.rule("translate", vec![ip_protocol(protocols), translate]);
    }
    // The address is none of this machine's, so such a packet would go back into the tunnel.
    table.chain(
        "forward",
        NfChainType::Filter,
        NfHook::Forward,
        PRIORITY_FILTER,
    );
    let from_hub = table.interface(MetaKey::Iifname, Operator::EQ);
    let unknown = vec![
        from_hub,
        address("daddr", IpAddr::V4(shared), 32),
        Statement::Counter(Counter::Anonymous(None)),
        Statement::Drop(None),
    ];
    table.rule("forward", unknown);
    table.apply()
}

fn pools(nat: &HubNat) -> Vec<Net> {
    let v4 = nat.pool_v4.map(|(ip, prefix)| (IpAddr::V4(ip), prefix));
    let v6 = nat.pool_v6.map(|(ip, prefix)| (IpAddr::V6(ip), prefix));
    v4.into_iter().chain(v6).collect()
}

/// The statement that translates packets of a family; `None` leaves them as they are.
fn translate(translation: &Translation, ipv4: bool) -> Option<Statement<'static>> {
    match translation {
        Translation::None => None,
        Translation::Masquerade => Some(Statement::Masquerade(None)),
        Translation::To(addresses) => {
            let own = addresses.iter().find(|own| own.is_ipv4() == ipv4)?;
            let family = if ipv4 { NATFamily::IP } else { NATFamily::IP6 };
            Some(Statement::SNAT(Some(NAT {
                addr: Some(Expression::String(own.to_string().into())),
                family: Some(family),
                port: None,
                flags: None,
            })))
        }
    }
}

/// Removes the table; its absence is success.
///
/// # Errors
/// See [`NftError`].
pub fn remove(table: &str) -> Result<(), NftError> {
    order(
        || Order::RemoveTable(table.to_owned()),
        || remove_here(table),
    )
}

pub(crate) fn remove_here(table: &str) -> Result<(), NftError> {
    check_name(table)?;
    let mut batch = Batch::new();
    // Adding what exists is no error, deleting what does not would be one.
    batch.add(NfListObject::Table(table_object(table)));
    batch.delete(NfListObject::Table(table_object(table)));
    run(batch, Vec::new())
}

/// The number that the kernel gave to a table of family `inet` when it was made; `None` when there is
/// none. A table that was removed and made again has another one.
///
/// Source: `linux/netfilter/nf_tables.h`.
///
/// # Errors
/// Not permitted, or the kernel has no nftables.
pub fn table_handle(name: &str) -> std::io::Result<Option<u64>> {
    order(
        || Order::TableHandle(name.to_owned()),
        || table_handle_here(name),
    )
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the kernel's attributes grow: those without a use here are passed over"
)]
pub(crate) fn table_handle_here(name: &str) -> std::io::Result<Option<u64>> {
    let table = vec![TableAttribute::Name(name.to_owned())];
    let request = NfTablesMessage::GetTable(TableMessage { attributes: table });
    Ok(match ask(request)? {
        Some(NfTablesMessage::NewTable(table)) => {
            table
                .attributes
                .iter()
                .find_map(|attribute| match attribute {
                    TableAttribute::Handle(handle) => Some(*handle),
                    _ => None,
                })
        }
        _ => None,
    })
}

/// How many rules a chain of a table of family `inet` has; `None` when there is no such chain.
///
/// Source: `linux/netfilter/nf_tables.h`.
///
/// # Errors
/// Not permitted, or the kernel has no nftables.
pub fn chain_rules(table: &str, chain: &str) -> std::io::Result<Option<u32>> {
    order(
        || Order::ChainRules(table.to_owned(), chain.to_owned()),
        || chain_rules_here(table, chain),
    )
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the kernel's attributes grow: those without a use here are passed over"
)]
pub(crate) fn chain_rules_here(table: &str, chain: &str) -> std::io::Result<Option<u32>> {
    let names = vec![
        ChainAttribute::Table(table.to_owned()),
        ChainAttribute::Name(chain.to_owned()),
    ];
    let request = NfTablesMessage::GetChain(ChainMessage { attributes: names });
    Ok(match ask(request)? {
        Some(NfTablesMessage::NewChain(chain)) => {
            chain
                .attributes
                .iter()
                .find_map(|attribute| match attribute {
                    ChainAttribute::Use(rules) => Some(*rules),
                    _ => None,
                })
        }
        _ => None,
    })
}

/// Asks the kernel for one object of family `inet`; `None` when there is no such object.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the kernel's attributes grow: those without a use here are passed over"
)]
fn ask(request: NfTablesMessage) -> std::io::Result<Option<NfTablesMessage>> {
    let header = NetfilterHeader::new(NetfilterProtoFamily::Inet, 0, 0);
    let request = NetfilterMessage::new(header, request);
    match NetlinkSocket::open(NETLINK_NETFILTER)?.ask(request) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
        Ok(answer) => Ok(answer.and_then(|answer| match answer.inner {
            NetfilterMessageInner::NfTables(message) => Some(message),
            _ => None,
        })),
    }
}

/// Carries out a script in the language of nft(8), in one transaction. Never by the helper: what makes
/// scripts has a [`crate::helper::Service`] that makes them from typed parts.
///
/// # Errors
/// See [`NftError`]; nothing was changed then.
pub fn run_script(script: &str) -> Result<(), NftError> {
    run_text(script, &["-f", "-"]).map(drop)
}

/// Whether nft(8) understands a script, with the names of users, control groups and so on in it.
/// Nothing is changed.
///
/// # Errors
/// See [`NftError`].
pub fn check_script(script: &str) -> Result<(), NftError> {
    run_text(script, &["--check", "-f", "-"]).map(drop)
}

/// A table of family `inet` with all that is in it, as JSON (libnftables-json(5)).
///
/// # Errors
/// See [`NftError`].
pub fn list_table(name: &str) -> Result<String, NftError> {
    order(
        || Order::ListTable(name.to_owned()),
        || list_table_here(name),
    )
}

pub(crate) fn list_table_here(name: &str) -> Result<String, NftError> {
    check_name(name)?;
    run_text("", &["-j", "list", "table", "inet", name])
}

/// What version `nft` says it is.
///
/// # Errors
/// See [`NftError`].
pub fn version() -> Result<String, NftError> {
    Ok(run_text("", &["--version"])?.trim().to_owned())
}

/// All chains of all tables, as JSON (libnftables-json(5)).
///
/// # Errors
/// See [`NftError`].
pub fn list_chains() -> Result<String, NftError> {
    run_text("", &["-j", "list", "chains"])
}

fn run_text(script: &str, arguments: &[&str]) -> Result<String, NftError> {
    run_one_of(&NFT_PATHS, script, arguments)
}

fn run_one_of(programs: &[&str], script: &str, arguments: &[&str]) -> Result<String, NftError> {
    for program in programs {
        match program::run(program, arguments, script) {
            Err(error) if error.is_missing() => {}
            Err(ProgramError::Failed(_, words)) => return Err(NftError::Refused(words)),
            other => return Ok(other?),
        }
    }
    Err(NftError::Missing)
}

/// Whether `name` can stand in rules as the name of a table or interface.
#[must_use]
pub fn is_name(name: &str) -> bool {
    check_name(name).is_ok()
}

/// Chain priorities as nft(8) names them: `raw`, `mangle`, `filter`, `srcnat`.
const PRIORITY_RAW: i32 = -300;
const PRIORITY_MANGLE: i32 = -150;
const PRIORITY_FILTER: i32 = 0;
const PRIORITY_SOURCE_NAT: i32 = 100;

/// A table in the making.
struct NewTable<'a> {
    batch: Batch<'a>,
    name: &'a str,
    tun: &'a str,
    /// Rules with what the types of the crate cannot say, as JSON. They stand behind all others of their chain.
    untyped: Vec<Value>,
}

impl<'a> NewTable<'a> {
    fn new(name: &'a str, tun: &'a str) -> Result<Self, NftError> {
        check_name(name)?;
        check_name(tun)?;
        let mut batch = Batch::new();
        batch.add(NfListObject::Table(table_object(name)));
        batch.delete(NfListObject::Table(table_object(name)));
        batch.add(NfListObject::Table(table_object(name)));
        Ok(Self {
            batch,
            name,
            tun,
            untyped: Vec::new(),
        })
    }

    fn chain(&mut self, chain: &'a str, kind: NfChainType, hook: NfHook, priority: i32) {
        self.batch.add(NfListObject::Chain(Chain {
            family: NfFamily::INet,
            table: self.name.into(),
            name: chain.into(),
            newname: None,
            handle: None,
            _type: Some(kind),
            hook: Some(hook),
            prio: Some(priority),
            dev: None,
            policy: Some(NfChainPolicy::Accept),
        }));
    }

    /// Drops packets from sites that name their own route, before anything looks at their destination. It may be an
    /// address of this machine, which then sends them on to any other (RFC 791 §3.1, RFC 5095, RFC 7126 §4.3).
    fn drop_source_routes(&mut self) {
        self.chain(
            "routes",
            NfChainType::Filter,
            NfHook::Prerouting,
            PRIORITY_RAW,
        );
        let type_0 = Statement::Match(Match {
            left: Expression::Named(NamedExpression::Exthdr(Exthdr {
                name: "rt".into(),
                field: Some("type".into()),
                offset: None,
            })),
            right: Expression::Number(0),
            op: Operator::EQ,
        });
        let from_site = self.interface(MetaKey::Iifname, Operator::EQ);
        self.rule("routes", vec![from_site, type_0, Statement::Drop(None)]);
        let (table, tun) = (self.name, self.tun);
        let options = ["lsrr", "ssrr"].map(|option| {
            let from_site = json!({"op": "==", "left": {"meta": {"key": "iifname"}}, "right": tun});
            let has = json!({"op": "==", "left": {"ip option": {"name": option}}, "right": true});
            let statements = json!([{"match": from_site}, {"match": has}, {"drop": null}]);
            json!({"add": {"rule": {
                "family": "inet", "table": table, "chain": "routes", "expr": statements,
            }}})
        });
        self.untyped.extend(options);
    }

    /// Drops what cannot be translated, and lets out what is passed on to other hubs.
    fn lost_and_wrapped(&mut self, nat: &HubNat, pools: &[Net], translates: bool) {
        if translates && nat.passed.is_empty() {
            self.drop_lost(None);
        } else if translates {
            // What comes back to a shared address may take the way by another hub, and the kernel then sees one
            // direction.
            for pool in pools {
                self.drop_lost(Some(*pool));
            }
        }
        if let (Some((pool, prefix)), false) = (nat.pool_v4, nat.passed.is_empty()) {
            self.let_wrapped_out(&nat.passed, (pool.into(), prefix));
        }
    }

    /// Drops packets that the kernel can give to no connection, such as a late FIN, a datagram with a wrong checksum or a
    /// message between neighbours (ICMPv6 types 130 to 137 and 143):
    /// it does not translate them, and they would leave with the inner address of the site. What goes from site to
    /// site is never translated. Of protocols that the kernel does not know, each packet begins a connection. `from` is
    /// where such packets come from, if not from anywhere.
    fn drop_lost(&mut self, from: Option<Net>) {
        let from_site = self.interface(MetaKey::Iifname, Operator::EQ);
        let outside = self.interface(MetaKey::Oifname, Operator::NEQ);
        let from = from.map(|(ip, prefix)| address("saddr", ip, prefix));
        let mut rule: Vec<_> = [from_site, outside].into_iter().chain(from).collect();
        rule.extend([in_state(&["invalid", "untracked"]), Statement::Drop(None)]);
        self.rule("forward", rule);
    }

    /// Lets packets out that the hub has wrapped for another hub. Sites cannot send such packets, as they have no port.
    fn let_wrapped_out(&mut self, shared: &[Ipv4Addr], (pool, prefix): Net) {
        let addresses = shared.iter().map(|ip| {
            let ip = Expression::String(ip.to_string().into());
            SetItem::Element(ip)
        });
        let is_wrapped = Statement::Match(Match {
            left: field("ip", "protocol"),
            right: Expression::Number(PROTOCOL_IPV4),
            op: Operator::EQ,
        });
        let from_shared = Statement::Match(Match {
            left: field("ip", "saddr"),
            right: Expression::Named(NamedExpression::Set(addresses.collect())),
            op: Operator::EQ,
        });
        let rule = vec![
            self.interface(MetaKey::Iifname, Operator::EQ),
            self.interface(MetaKey::Oifname, Operator::NEQ),
            is_wrapped,
            from_shared,
            address("daddr", pool, prefix),
            Statement::Accept(None),
        ];
        self.rule("forward", rule);
    }

    /// A chain that others lead to.
    fn plain_chain(&mut self, chain: impl Into<Cow<'a, str>>) {
        self.batch.add(NfListObject::Chain(Chain {
            family: NfFamily::INet,
            table: self.name.into(),
            name: chain.into(),
            newname: None,
            handle: None,
            _type: None,
            hook: None,
            prio: None,
            dev: None,
            policy: None,
        }));
    }

    fn rule(&mut self, chain: impl Into<Cow<'a, str>>, statements: Vec<Statement<'a>>) {
        self.batch.add(NfListObject::Rule(Rule {
            family: NfFamily::INet,
            table: self.name.into(),
            chain: chain.into(),
            expr: Cow::Owned(statements),
            handle: None,
            index: None,
            comment: None,
        }));
    }

    /// Rules for new connections of sites to others and to this machine.
    fn egress(&mut self, egress: &Egress) {
        for chain in [CLOSED, EGRESS] {
            self.plain_chain(chain);
        }
        for (ip, prefix) in &egress.closed {
            self.rule(CLOSED, vec![address("daddr", *ip, *prefix), reject()]);
        }
        self.exceptions(&egress.exceptions, &egress.exception_ports);
        for (ip, prefix) in &egress.allowed {
            let to = address("daddr", *ip, *prefix);
            self.rule(EGRESS, vec![to, Statement::Accept(None)]);
        }
        self.rule(EGRESS, vec![goto(CLOSED)]);
        self.chain("input", NfChainType::Filter, NfHook::Input, PRIORITY_FILTER);
        for chain in ["forward", "input"] {
            let from_site = self.interface(MetaKey::Iifname, Operator::EQ);
            // Also what tells of an error of such a connection.
            let open = in_state(&["established", "related"]);
            self.rule(chain, vec![from_site, open, Statement::Accept(None)]);
        }
        for ip in &egress.own {
            let prefix = if ip.is_ipv4() { 32 } else { 128 };
            self.input([address("daddr", *ip, prefix)]);
        }
        for (protocol, ports) in [("udp", &egress.udp_ports), ("tcp", &egress.tcp_ports)] {
            for (ip, port) in ports {
                let place = ip.map(|ip| address("daddr", ip, if ip.is_ipv4() { 32 } else { 128 }));
                let port = Statement::Match(Match {
                    left: field(protocol, "dport"),
                    right: Expression::Number((*port).into()),
                    op: Operator::EQ,
                });
                self.input(place.into_iter().chain([port]));
            }
        }
        for chain in ["forward", "input"] {
            let from_site = self.interface(MetaKey::Iifname, Operator::EQ);
            let egress = JumpTarget {
                target: EGRESS.into(),
            };
            self.rule(chain, vec![from_site, Statement::Jump(egress)]);
        }
        let from_site = self.interface(MetaKey::Iifname, Operator::EQ);
        self.rule("input", vec![from_site, reject()]);
    }

    /// A chain for each of these sites, and a map that leads there by the sender: one look-up, however many
    /// they are.
    fn exceptions(&mut self, exceptions: &[(Vec<Net>, Vec<Net>)], ports: &[(Ports, usize)]) {
        let mut ways: Vec<Way> = Vec::new();
        for (number, (places, allowed)) in exceptions.iter().enumerate() {
            self.plain_chain(site_chain(number));
            for (ip, prefix) in allowed {
                let to = address("daddr", *ip, *prefix);
                self.rule(site_chain(number), vec![to, Statement::Accept(None)]);
            }
            self.rule(site_chain(number), vec![goto(CLOSED)]);
            ways.extend(places.iter().map(|place| (*place, number)));
        }
        self.exception_ports(ports);
        let (single, nested) = split(ways);
        // The kernel refuses a map with networks that are part of one another. The first site counts.
        for ((ip, prefix), number) in nested {
            let from = address("saddr", ip, prefix);
            self.rule(EGRESS, vec![from, goto(site_chain(number))]);
        }
        for ipv4 in [true, false] {
            let of_family = single.iter().filter(|((ip, _), _)| ip.is_ipv4() == ipv4);
            let items = of_family.map(|((ip, prefix), number)| {
                SetItem::MappingStatement(network(*ip, *prefix), goto(site_chain(*number)))
            });
            let items: Vec<_> = items.collect();
            if items.is_empty() {
                continue;
            }
            let map = VerdictMap {
                key: field(if ipv4 { "ip" } else { "ip6" }, "saddr"),
                data: Expression::Named(NamedExpression::Set(items)),
            };
            self.rule(EGRESS, vec![Statement::VerdictMap(map)]);
        }
    }

    /// The same for what such sites send from their ports of a shared address. The protocols differ in where the port
    /// is, so there is a map for each.
    fn exception_ports(&mut self, ports: &[(Ports, usize)]) {
        if ports.is_empty() {
            return;
        }
        for (protocols, of, name) in [
            (["tcp", "udp"].as_slice(), "th", "sport"),
            (&["icmp"], "icmp", "id"),
        ] {
            let items = ports.iter().map(|((ip, first, last), number)| {
                let range = [*first, *last].map(|port| Expression::Number(port.into()));
                let place = Expression::Named(NamedExpression::Concat(vec![
                    Expression::String(ip.to_string().into()),
                    Expression::Range(Box::new(Range { range })),
                ]));
                SetItem::MappingStatement(place, goto(site_chain(*number)))
            });
            let map = VerdictMap {
                key: Expression::Named(NamedExpression::Concat(vec![
                    field("ip", "saddr"),
                    field(of, name),
                ])),
                data: Expression::Named(NamedExpression::Set(items.collect())),
            };
            let rule = vec![ip_protocol(protocols), Statement::VerdictMap(map)];
            self.rule(EGRESS, rule);
        }
    }

    /// Lets packets of sites to this machine in.
    fn input(&mut self, which: impl IntoIterator<Item = Statement<'a>>) {
        let mut rule = vec![self.interface(MetaKey::Iifname, Operator::EQ)];
        rule.extend(which);
        rule.push(Statement::Accept(None));
        self.rule("input", rule);
    }

    fn interface(&self, key: MetaKey, op: Operator) -> Statement<'a> {
        named(key, op, self.tun)
    }

    /// `rt mtu` is the smaller MSS of the routes there and back, so one rule per direction does.
    fn clamp(&mut self) {
        self.chain(
            "clamp",
            NfChainType::Filter,
            NfHook::Forward,
            PRIORITY_MANGLE,
        );
        for key in [MetaKey::Iifname, MetaKey::Oifname] {
            let is_handshake = Statement::Match(Match {
                left: field("tcp", "flags"),
                right: Expression::String("syn".into()),
                op: Operator::IN,
            });
            let set = Statement::Mangle(Mangle {
                key: Expression::Named(NamedExpression::TcpOption(TcpOption {
                    name: "maxseg".into(),
                    field: Some("size".into()),
                })),
                value: Expression::Named(NamedExpression::RT(RT {
                    key: RTKey::MTU,
                    family: None,
                })),
            });
            let rule = vec![self.interface(key, Operator::EQ), is_handshake, set];
            self.rule("clamp", rule);
        }
    }

    fn apply(self) -> Result<(), NftError> {
        run(self.batch, self.untyped)
    }
}

/// Protocol number of IP in IP (RFC 2003).
const PROTOCOL_IPV4: u32 = 4;

/// Chain of what sites may reach.
const EGRESS: &str = "egress";
/// Chain of what they do not reach otherwise.
const CLOSED: &str = "closed";

/// A network of a site with rules of its own, and the number of that site.
type Way = (Net, usize);

/// Name of the chain of a site with rules of its own.
fn site_chain(number: usize) -> String {
    format!("site{number}")
}

/// Those networks that have no address in common with another one, and the others in the order of their sites.
fn split(mut ways: Vec<Way>) -> (Vec<Way>, Vec<Way>) {
    // A network stands right before all that are part of it.
    ways.sort_unstable();
    let mut shared = vec![false; ways.len()];
    let mut outer = 0;
    for at in 1..ways.len() {
        if is_within(ways[at].0, ways[outer].0) {
            shared[outer] = true;
            shared[at] = true;
        } else {
            outer = at;
        }
    }
    let marked = ways.into_iter().zip(shared);
    let (nested, single): (Vec<_>, Vec<_>) = marked.partition(|(_, shared)| *shared);
    let plain = |list: Vec<(Way, bool)>| list.into_iter().map(|(way, _)| way);
    let mut nested: Vec<_> = plain(nested).collect();
    nested.sort_by_key(|(_, number)| *number);
    (plain(single).collect(), nested)
}

fn goto<'a>(chain: impl Into<Cow<'a, str>>) -> Statement<'a> {
    Statement::Goto(JumpTarget {
        target: chain.into(),
    })
}

/// Whether the first network is the second one or a part of it.
fn is_within((ip, prefix): Net, (of, length): Net) -> bool {
    let start = |bits: u128, width: u8| bits.checked_shr(u32::from(width - length)).unwrap_or(0);
    prefix >= length
        && match (ip, of) {
            (IpAddr::V4(ip), IpAddr::V4(of)) => {
                start(ip.to_bits().into(), 32) == start(of.to_bits().into(), 32)
            }
            (IpAddr::V6(ip), IpAddr::V6(of)) => {
                start(ip.to_bits(), 128) == start(of.to_bits(), 128)
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
}

/// Whether a packet is one of IPv4 and of one of these protocols.
fn ip_protocol(protocols: &[&'static str]) -> Statement<'static> {
    let names = protocols
        .iter()
        .map(|name| Expression::String((*name).into()));
    let mut names: Vec<_> = names.collect();
    let right = match names.len() {
        1 => names.remove(0),
        _ => Expression::Named(NamedExpression::Set(
            names.into_iter().map(SetItem::Element).collect(),
        )),
    };
    Statement::Match(Match {
        left: field("ip", "protocol"),
        right,
        op: Operator::EQ,
    })
}

/// Whether the connection that a packet belongs to is in one of these states (nft(8), `ct state`).
fn in_state(states: &[&'static str]) -> Statement<'static> {
    let states = states.iter().map(|name| Expression::String((*name).into()));
    Statement::Match(Match {
        left: Expression::Named(NamedExpression::CT(CT {
            key: "state".into(),
            family: None,
            dir: None,
        })),
        right: Expression::List(states.collect()),
        op: Operator::IN,
    })
}

/// Tells the sender that somebody forbids it (RFC 1812 §5.2.7.1, RFC 4443 §3.1).
fn reject() -> Statement<'static> {
    let code = Some(RejectCode::AdminProhibited);
    Statement::Reject(Some(Reject::new(Some(RejectType::ICMPX), code)))
}

/// Whether a packet's interface has this name.
fn named(key: MetaKey, op: Operator, interface: &str) -> Statement<'_> {
    Statement::Match(Match {
        left: Expression::Named(NamedExpression::Meta(Meta { key })),
        right: Expression::String(interface.into()),
        op,
    })
}

fn table_object(name: &str) -> Table<'_> {
    Table {
        family: NfFamily::INet,
        name: name.into(),
        handle: None,
    }
}

fn field<'a>(protocol: &'a str, name: &'a str) -> Expression<'a> {
    Expression::Named(NamedExpression::Payload(Payload::PayloadField(
        PayloadField {
            protocol: protocol.into(),
            field: name.into(),
        },
    )))
}

fn address<'a>(name: &'a str, ip: IpAddr, prefix: u8) -> Statement<'a> {
    let protocol = if ip.is_ipv4() { "ip" } else { "ip6" };
    Statement::Match(Match {
        left: field(protocol, name),
        right: network(ip, prefix),
        op: Operator::EQ,
    })
}

fn network<'a>(ip: IpAddr, prefix: u8) -> Expression<'a> {
    Expression::Named(NamedExpression::Prefix(Prefix {
        addr: Box::new(Expression::String(ip.to_string().into())),
        len: prefix.into(),
    }))
}

/// Longest name taken, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Names go into JSON, where they cannot break out; `*` and `@` have a meaning to nft though.
fn check_name(name: &str) -> Result<(), NftError> {
    let sound = (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.starts_with('@')
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_.@-".contains(&b));
    if sound {
        Ok(())
    } else {
        Err(NftError::BadName(name.to_owned()))
    }
}

/// Where distributions put nft, should PATH lack it.
const NFT_PATHS: [&str; 3] = ["nft", "/usr/sbin/nft", "/sbin/nft"];

fn run(batch: Batch<'_>, untyped: Vec<Value>) -> Result<(), NftError> {
    let refused = |error: serde_json::Error| NftError::Refused(error.to_string());
    let mut script = serde_json::to_value(batch.to_nftables()).map_err(refused)?;
    if let Some(Value::Array(commands)) = script.get_mut("nftables") {
        commands.extend(untyped);
    }
    run_text(&script.to_string(), &["-j", "-f", "-"]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_says_what_to_install() {
        let error = run_one_of(&["/nonexistent/nft"], "", &[]).expect_err("no such program");
        assert!(error.to_string().contains("install nftables"), "{error}");
    }

    #[test]
    fn networks_that_share_addresses_are_told_from_those_that_do_not() {
        let net = |text: &str, prefix| (text.parse::<IpAddr>().expect("an address"), prefix);
        let ways = vec![
            (net("10.86.0.9", 32), 0),
            (net("10.90.1.0", 24), 2),
            (net("10.90.0.0", 16), 1),
            (net("10.91.0.0", 16), 3),
            (net("fd00::", 8), 5),
            (net("fd00::7", 128), 4),
            (net("0.0.0.0", 32), 6),
        ];
        let (single, nested) = split(ways);
        let numbers = |list: &[Way]| list.iter().map(|(_, n)| *n).collect::<Vec<_>>();
        assert_eq!(numbers(&single), [6, 0, 3]);
        assert_eq!(numbers(&nested), [1, 2, 4, 5]);
        assert!(is_within(net("10.0.0.1", 32), net("0.0.0.0", 0)));
    }

    #[test]
    fn rules_of_a_thousand_sites_are_one_look_up_and_the_kernel_takes_them() {
        let Ok(namespace) = crate::netns::Namespace::anonymous() else {
            eprintln!("skipped: needs root");
            return;
        };
        let sites = (0..1_000_u32).map(|number| {
            let v4 = IpAddr::from(Ipv4Addr::from_bits(0x0a56_0002 + number));
            let v6 = IpAddr::from(Ipv6Addr::from_bits((0xfd << 120) + 2 + u128::from(number)));
            let allowed = vec![(IpAddr::from([10, 1, 0, 0]), 16), (v6, 128)];
            (vec![(v4, 32), (v6, 128)], allowed)
        });
        let mut exceptions: Vec<_> = sites.collect();
        // Networks of a relay, one in the other.
        let relay = [([10, 90, 0, 0], 16), ([10, 90, 1, 0], 24)];
        let places = relay.map(|(ip, prefix)| (IpAddr::from(ip), prefix));
        exceptions.push((places.to_vec(), Vec::new()));
        let nat = HubNat {
            table: "ropewalk_test_map".to_owned(),
            tun: "rope0".to_owned(),
            pool_v4: Some(([10, 86, 0, 0].into(), 16)),
            pool_v6: None,
            translation: Translation::Masquerade,
            egress: Some(Egress {
                exceptions,
                closed: vec![([10, 0, 0, 0].into(), 8)],
                ..Egress::default()
            }),
            passed: Vec::new(),
            onward: None,
        };
        let begin = std::time::Instant::now();
        let applied = namespace.enter(|| {
            apply_hub_here(&nat)?;
            chain_rules_here(&nat.table, EGRESS).map_err(|e| NftError::Refused(e.to_string()))
        });
        eprintln!("applied within {:?}", begin.elapsed());
        match applied.expect("a namespace") {
            // Two rules for the networks of the relay, a map for each family, and the end. The kernel counts
            // the two jumps to the chain as well.
            Ok(rules) => assert_eq!(rules, Some(7)),
            Err(NftError::Missing) => eprintln!("skipped: no nft"),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_table_that_is_made_again_has_another_handle() {
        const NAME: &str = "ropewalk_test_handle";
        let make = || run_script(&format!("table inet {NAME} {{ }}"));
        if let Err(error) = make() {
            eprintln!("skipped: needs root and nft ({error})");
            return;
        }
        let first = table_handle(NAME).expect("an answer");
        assert!(first.is_some());
        make().expect("the same table");
        assert_eq!(table_handle(NAME).expect("an answer"), first);
        remove(NAME).expect("removed");
        assert_eq!(table_handle(NAME).expect("an answer"), None);
        make().expect("a new table");
        let second = table_handle(NAME).expect("an answer");
        remove(NAME).expect("removed");
        assert!(second.is_some() && second != first, "{second:?}");
    }

    #[test]
    fn names_with_a_meaning_to_nft_are_refused() {
        for name in ["", "a b", "wg*", "@set", "x;y", "tun\"0"] {
            assert!(matches!(remove(name), Err(NftError::BadName(_))), "{name}");
        }
        assert!(check_name("ropewalk-tun0.5").is_ok());
    }
}
