//! What this crate asks the helper for, and what of it the configuration can lead to.
//!
//! The checks here are all that stands between a gateway that was taken over and the rights of the
//! helper. They know the gateway's own names and numbers, and nothing else passes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Refusal, not_understood};
use crate::netlink::{self, RouteSpec, RuleSpec, TABLE_MAIN};
use crate::nft::{self, HubNat, SitePorts};
use crate::{conntrack, sysctl, tcp, tun, udp};

/// Tables up to this one are of the kernel and of distributions (`RT_TABLE_LOCAL` is 255).
const TABLE_OF_KERNEL_MAX: u32 = 255;
/// Start of the names of all tables of nftables that are ours.
const TABLES: &str = "ropewalk_";
/// Upper halves of the numbers of our routing tables: of balancing, and of relays.
const ROUTING_TABLES: [u32; 2] = [0x5242, 0x5257];
/// The routing table of an open portal.
const PORTAL_TABLE: u32 = 0x5250;
/// Places of our rules of routing.
const PRIORITIES: std::ops::Range<u32> = 5_000..5_300;
/// Bits that our packet marks are made of.
const MARKS: u32 = 0xff00_0000;
/// Largest socket buffer, bytes. More: larger bursts survive, more memory of the kernel.
const BUFFER_BYTES_MAX: i32 = 256 << 20;

/// What the helper works for, by the configuration that was read before it was made.
#[derive(Debug)]
pub struct Scope {
    /// Names of the TUN interfaces.
    interfaces: Vec<String>,
    /// Those that were made: kernel index and name.
    made: Mutex<BTreeMap<u32, String>>,
}

impl Scope {
    /// For gateways with these TUN interfaces.
    #[must_use]
    pub fn new(interfaces: Vec<String>) -> Self {
        Self {
            interfaces,
            made: Mutex::default(),
        }
    }

    fn made(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, String>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_ours(&self, interface: &str) -> bool {
        let mut configured = self.interfaces.iter();
        configured.any(|name| name == interface) || self.made().values().any(|n| n == interface)
    }

    fn has_made(&self, ifindex: u32) -> bool {
        self.made().contains_key(&ifindex)
    }
}

/// An order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    HubRules(Box<HubNat>),
    SiteRules(Box<SitePorts>),
    RemoveTable(String),
    TableHandle(String),
    ChainRules(String, String),
    ListTable(String),
    Setting { key: String, value: String },
    SetUp(u32),
    SetGroup(u32, u32),
    AddAddress(u32, IpAddr, u8),
    DeleteAddress(u32, IpAddr, u8),
    AddRoute(RouteSpec),
    KeepRoute(RouteSpec),
    DeleteRoute(RouteSpec),
    AddRule(RuleSpec),
    DeleteRule(RuleSpec),
    FlushTable(u32),
    ForgetConnections(Vec<IpAddr>, Vec<conntrack::Ports>),
    OpenTun { name: String, flags: i32 },
    SetMtu { name: String, bytes: usize },
    Mark(u32),
    ReceiveBuffer(i32),
    SendBuffer(i32),
    Congestion(String),
}

impl Order {
    /// Checks the order and does what it says.
    pub(super) fn carry_out(
        self,
        scope: &Scope,
        descriptor: Option<OwnedFd>,
    ) -> Result<(Value, Option<OwnedFd>), Refusal> {
        if !self.is_within(scope) {
            return Err(Refusal::new(format!(
                "the helper does not do this for a gateway: {self:?}"
            )));
        }
        let socket = || descriptor.as_ref().ok_or_else(|| Refusal::new("no socket"));
        let done = match self {
            Self::HubRules(nat) => value(nft::apply_hub_here(&nat)),
            Self::SiteRules(rules) => value(nft::apply_site_here(&rules)),
            Self::RemoveTable(name) => value(nft::remove_here(&name)),
            Self::TableHandle(name) => value(nft::table_handle_here(&name)),
            Self::ChainRules(table, chain) => value(nft::chain_rules_here(&table, &chain)),
            Self::ListTable(name) => value(nft::list_table_here(&name)),
            Self::Setting { key, value: text } => value(sysctl::write_here(&key, &text)),
            Self::SetUp(ifindex) => value(netlink::set_up(ifindex)),
            Self::SetGroup(ifindex, group) => value(netlink::set_group(ifindex, group)),
            Self::AddAddress(ifindex, ip, prefix) => {
                value(netlink::add_address(ifindex, ip, prefix))
            }
            Self::DeleteAddress(ifindex, ip, prefix) => {
                value(netlink::delete_address(ifindex, ip, prefix))
            }
            Self::AddRoute(route) => value(netlink::add_route(&route)),
            Self::KeepRoute(route) => value(netlink::keep_route(&route)),
            Self::DeleteRoute(route) => value(netlink::delete_route(&route)),
            Self::AddRule(rule) => value(netlink::add_rule(&rule)),
            Self::DeleteRule(rule) => value(netlink::delete_rule(&rule)),
            Self::FlushTable(table) => value(netlink::flush_table(table)),
            Self::ForgetConnections(addresses, ports) => {
                value(conntrack::forget_here(&addresses, &ports))
            }
            Self::OpenTun { name, flags } => {
                let (tun, made) = tun::open_here(&name, flags)?;
                scope.made().insert(made.ifindex, made.name.clone());
                let answer = serde_json::to_value(made).map_err(not_understood)?;
                return Ok((answer, Some(tun)));
            }
            Self::SetMtu { name, bytes } => value(tun::set_mtu_here(&name, bytes)),
            Self::Mark(mark) => {
                let socket = socket2::SockRef::from(socket()?);
                value(socket.set_mark(mark))
            }
            Self::ReceiveBuffer(bytes) => {
                value(udp::force_buffer(socket()?, libc::SO_RCVBUFFORCE, bytes))
            }
            Self::SendBuffer(bytes) => {
                value(udp::force_buffer(socket()?, libc::SO_SNDBUFFORCE, bytes))
            }
            Self::Congestion(name) => value(tcp::set_congestion_here(socket()?, &name)),
        };
        done.map(|value| (value, None))
    }

    /// Whether the configuration can lead to the order.
    fn is_within(&self, scope: &Scope) -> bool {
        match self {
            Self::HubRules(nat) => {
                let onward = nat.onward.as_ref().is_none_or(|name| scope.is_ours(name));
                is_table(&nat.table) && scope.is_ours(&nat.tun) && onward
            }
            Self::SiteRules(rules) => is_table(&rules.table) && scope.is_ours(&rules.tun),
            Self::RemoveTable(name)
            | Self::TableHandle(name)
            | Self::ChainRules(name, _)
            | Self::ListTable(name) => is_table(name),
            Self::Setting { key, value } => is_setting(key, value),
            Self::SetUp(ifindex)
            | Self::SetGroup(ifindex, _)
            | Self::AddAddress(ifindex, _, _)
            | Self::DeleteAddress(ifindex, _, _) => scope.has_made(*ifindex),
            Self::AddRoute(route) | Self::KeepRoute(route) | Self::DeleteRoute(route) => {
                match route.table {
                    None | Some(TABLE_MAIN) => scope.has_made(route.ifindex),
                    // A hub tells a routing daemon in a table of the user which sites it serves.
                    Some(table) => {
                        is_routing_table(table)
                            || (table > TABLE_OF_KERNEL_MAX && scope.has_made(route.ifindex))
                    }
                }
            }
            Self::AddRule(rule) | Self::DeleteRule(rule) => {
                let is_selective = rule.fwmark.is_some_and(|mark| mark & MARKS != 0);
                let main = rule.table == TABLE_MAIN && is_selective;
                PRIORITIES.contains(&rule.priority) && (main || is_routing_table(rule.table))
            }
            Self::FlushTable(table) => is_routing_table(*table),
            // The pool is not known here. Who forges this ends connections, as wrong rules would.
            Self::ForgetConnections(..) => true,
            Self::OpenTun { name, flags } => {
                let mut configured = scope.interfaces.iter();
                configured.any(|own| own == name) && flags & !tun::FLAGS == 0
            }
            Self::SetMtu { name, .. } => scope.is_ours(name),
            Self::Mark(mark) => mark & !MARKS == 0,
            Self::Congestion(name) => name == "bbr",
            Self::ReceiveBuffer(bytes) | Self::SendBuffer(bytes) => {
                (0..=BUFFER_BYTES_MAX).contains(bytes)
            }
        }
    }
}

fn value<A: Serialize, E>(done: Result<A, E>) -> Result<Value, Refusal>
where
    Refusal: From<E>,
{
    serde_json::to_value(done?).map_err(not_understood)
}

/// Whether this program makes nftables tables of this name.
#[must_use]
pub fn is_table(name: &str) -> bool {
    name.starts_with(TABLES) && nft::is_name(name)
}

/// Whether this program fills the routing table of this number.
#[must_use]
pub const fn is_routing_table(table: u32) -> bool {
    table == PORTAL_TABLE || table >> 16 == ROUTING_TABLES[0] || table >> 16 == ROUTING_TABLES[1]
}

/// Whether this program changes this setting to this value: forwarding, the filter of reverse paths, and router
/// advertisements.
#[must_use]
pub fn is_setting(key: &str, value: &str) -> bool {
    let of_interface = |start: &str, end: &str| {
        let name = key
            .strip_prefix(start)
            .and_then(|rest| rest.strip_suffix(end));
        name.is_some_and(|name| !name.contains('/') && name != "." && name != "..")
    };
    let known = matches!(key, "net.ipv4.ip_forward" | "net.ipv6.conf.all.forwarding")
        || of_interface("net/ipv4/conf/", "/rp_filter")
        || of_interface("net/ipv6/conf/", "/accept_ra");
    known && matches!(value, "0" | "1" | "2")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::Translation;

    fn scope() -> Scope {
        let scope = Scope::new(vec!["rope0".to_owned()]);
        scope.made().insert(7, "rope0".to_owned());
        scope
    }

    fn route(table: Option<u32>, ifindex: u32) -> RouteSpec {
        RouteSpec {
            destination: [0; 4].into(),
            prefix: 0,
            ifindex,
            gateway: None,
            table,
            metric: None,
            mtu: None,
        }
    }

    fn rule(priority: u32, mark: Option<u32>, table: u32) -> RuleSpec {
        RuleSpec {
            ipv6: false,
            priority,
            fwmark: mark,
            fwmask: None,
            source: None,
            suppress_prefix: None,
            suppress_group: None,
            table,
        }
    }

    fn setting(key: &str, value: &str) -> Order {
        Order::Setting {
            key: key.to_owned(),
            value: value.to_owned(),
        }
    }

    fn hub(table: &str, tun: &str, onward: Option<&str>) -> Order {
        Order::HubRules(Box::new(HubNat {
            table: table.to_owned(),
            tun: tun.to_owned(),
            pool_v4: None,
            pool_v6: None,
            translation: Translation::None,
            egress: None,
            passed: Vec::new(),
            onward: onward.map(str::to_owned),
        }))
    }

    fn site(table: &str, tun: &str) -> Order {
        Order::SiteRules(Box::new(SitePorts {
            table: table.to_owned(),
            tun: tun.to_owned(),
            ports: ([203, 0, 113, 7].into(), 1_024, 2_031),
            inside: Vec::new(),
        }))
    }

    fn tun(name: &str, flags: i32) -> Order {
        Order::OpenTun {
            name: name.to_owned(),
            flags,
        }
    }

    #[test]
    fn what_a_gateway_needs_is_within_and_what_it_does_not_need_is_refused() {
        let scope = scope();
        let marked = Some(0x1000_0000);
        let within = [
            hub("ropewalk_rope0", "rope0", None),
            site("ropewalk_ports_rope0", "rope0"),
            Order::RemoveTable("ropewalk_kill_rope0".into()),
            setting("net.ipv4.ip_forward", "1"),
            setting("net/ipv4/conf/eth0.5/rp_filter", "2"),
            setting("net/ipv6/conf/wlan0/accept_ra", "2"),
            Order::AddAddress(7, [10, 0, 0, 1].into(), 24),
            Order::AddRoute(route(None, 7)),
            Order::AddRoute(route(Some(0x5242_0001), 2)),
            Order::AddRoute(route(Some(4_443), 7)),
            Order::KeepRoute(route(None, 7)),
            Order::AddRule(rule(5_200, marked, TABLE_MAIN)),
            Order::AddRule(rule(5_000, None, 0x5257_0007)),
            Order::FlushTable(0x5242_0003),
            Order::ForgetConnections(vec![IpAddr::from([10, 77, 0, 2])], Vec::new()),
            tun("rope0", libc::IFF_TUN | libc::IFF_NO_PI),
            Order::Mark(0x4000_0000),
            Order::Congestion("bbr".into()),
            Order::ReceiveBuffer(4 << 20),
        ];
        for order in within {
            assert!(order.is_within(&scope), "{order:?}");
        }
        let refused = [
            hub("filter", "rope0", None),
            site("filter", "rope0"),
            site("ropewalk_ports_rope0", "eth0"),
            hub("ropewalk_rope0", "eth0", None),
            hub("ropewalk_rope0", "rope0", Some("eth0")),
            Order::RemoveTable("filter".into()),
            Order::RemoveTable("ropewalk_x; flush ruleset".into()),
            Order::ListTable("../etc".into()),
            setting("kernel.core_pattern", "1"),
            setting("net.ipv4.ip_forward", "|/bin/sh"),
            setting("net/ipv4/conf/../../../kernel/x/rp_filter", "1"),
            setting("net/ipv4/conf/../rp_filter", "1"),
            Order::AddAddress(2, [10, 0, 0, 1].into(), 24),
            Order::SetUp(2),
            Order::AddRoute(route(None, 2)),
            Order::AddRoute(route(Some(TABLE_MAIN), 2)),
            Order::AddRoute(route(Some(255), 7)),
            Order::AddRoute(route(Some(4_443), 2)),
            Order::AddRule(rule(100, marked, TABLE_MAIN)),
            Order::AddRule(rule(5_200, None, TABLE_MAIN)),
            Order::DeleteRule(rule(0, None, 255)),
            Order::FlushTable(TABLE_MAIN),
            tun("eth0", libc::IFF_TUN),
            tun("rope0", libc::IFF_TAP),
            Order::Mark(1),
            Order::Congestion("cubic".into()),
            Order::ReceiveBuffer(-1),
            Order::SetMtu {
                name: "eth0".into(),
                bytes: 68,
            },
        ];
        for order in refused {
            assert!(!order.is_within(&scope), "{order:?}");
            let refusal = order.carry_out(&scope, None).expect_err("refused");
            assert!(refusal.text.contains("does not do this"), "{refusal}");
        }
    }
}
