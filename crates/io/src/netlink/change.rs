//! Changes of links, addresses, routes and rules.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteProtocol, RouteScope,
    RouteType,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::socket::{explain, explain_value, route_socket};
use super::view::{family, table_of};
use super::{Result, RouteSpec, RuleSpec};
use crate::helper::{self, Order};

/// Sets an interface administratively up.
///
/// # Errors
/// See [`super::NetlinkError`].
pub fn set_up(ifindex: u32) -> Result<()> {
    helper::order(|| Order::SetUp(ifindex), || set_up_here(ifindex))
}

fn set_up_here(ifindex: u32) -> Result<()> {
    let mut link = LinkMessage::default();
    link.header.index = ifindex;
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    change(
        "setting an interface up",
        RouteNetlinkMessage::SetLink(link),
        0,
        &[],
    )
}

/// Puts an interface into a group, by which rules can tell it ([`RuleSpec::suppress_group`]).
///
/// # Errors
/// See [`super::NetlinkError`].
pub fn set_group(ifindex: u32, group: u32) -> Result<()> {
    helper::order(
        || Order::SetGroup(ifindex, group),
        || set_group_here(ifindex, group),
    )
}

fn set_group_here(ifindex: u32, group: u32) -> Result<()> {
    let mut link = LinkMessage::default();
    link.header.index = ifindex;
    link.attributes.push(LinkAttribute::Group(group));
    change(
        "putting an interface into a group",
        RouteNetlinkMessage::SetLink(link),
        0,
        &[],
    )
}

/// Sets the MTU of an interface, in bytes.
///
/// # Errors
/// See [`super::NetlinkError`]; `EINVAL` beyond what the interface takes.
pub fn set_mtu(ifindex: u32, mtu: u32) -> Result<()> {
    let mut link = LinkMessage::default();
    link.header.index = ifindex;
    link.attributes.push(LinkAttribute::Mtu(mtu));
    change(
        "setting the MTU",
        RouteNetlinkMessage::SetLink(link),
        0,
        &[],
    )
}

/// Sets how many packets may wait in an interface for whoever takes them out. Called with rights.
///
/// # Errors
/// See [`super::NetlinkError`].
pub(crate) fn set_queue_here(ifindex: u32, packets: u32) -> Result<()> {
    let mut link = LinkMessage::default();
    link.header.index = ifindex;
    link.attributes.push(LinkAttribute::TxQueueLen(packets));
    change(
        "setting the length of the queue",
        RouteNetlinkMessage::SetLink(link),
        0,
        &[],
    )
}

/// Adds an address; having it already is success.
///
/// # Errors
/// See [`super::NetlinkError`].
pub fn add_address(ifindex: u32, ip: IpAddr, prefix: u8) -> Result<()> {
    helper::order(
        || Order::AddAddress(ifindex, ip, prefix),
        || add_address_here(ifindex, ip, prefix),
    )
}

fn add_address_here(ifindex: u32, ip: IpAddr, prefix: u8) -> Result<()> {
    let message = RouteNetlinkMessage::NewAddress(address_message(ifindex, ip, prefix));
    change(
        "adding an address",
        message,
        NLM_F_CREATE | NLM_F_EXCL,
        &[libc::EEXIST],
    )
}

/// Removes an address; its absence, or that of its interface, is success.
///
/// # Errors
/// See [`super::NetlinkError`].
pub fn delete_address(ifindex: u32, ip: IpAddr, prefix: u8) -> Result<()> {
    helper::order(
        || Order::DeleteAddress(ifindex, ip, prefix),
        || delete_address_here(ifindex, ip, prefix),
    )
}

fn delete_address_here(ifindex: u32, ip: IpAddr, prefix: u8) -> Result<()> {
    let message = RouteNetlinkMessage::DelAddress(address_message(ifindex, ip, prefix));
    change(
        "removing an address",
        message,
        0,
        &[libc::EADDRNOTAVAIL, libc::ENODEV],
    )
}

/// Adds a route, or replaces the one with the same destination, table and metric.
///
/// # Errors
/// See [`super::NetlinkError`]; `ENETDOWN` while the interface is down, `ENETUNREACH` when an
/// IPv6 gateway is not on the link.
pub fn add_route(route: &RouteSpec) -> Result<()> {
    helper::order(|| Order::AddRoute(route.clone()), || add_route_here(route))
}

/// Adds a route unless there is one with the same destination, table and metric. True when there was none.
///
/// # Errors
/// As [`add_route`].
pub fn keep_route(route: &RouteSpec) -> Result<bool> {
    helper::order(
        || Order::KeepRoute(route.clone()),
        || keep_route_here(route),
    )
}

fn keep_route_here(route: &RouteSpec) -> Result<bool> {
    let message = RouteNetlinkMessage::NewRoute(new_route(route));
    let added =
        route_socket().and_then(|mut socket| socket.change(message, NLM_F_CREATE | NLM_F_EXCL));
    let is_new = added.is_ok();
    explain("adding a route", forgive(added, &[libc::EEXIST])).map(|()| is_new)
}

fn add_route_here(route: &RouteSpec) -> Result<()> {
    let message = RouteNetlinkMessage::NewRoute(new_route(route));
    change("adding a route", message, NLM_F_CREATE | NLM_F_REPLACE, &[])
}

fn new_route(route: &RouteSpec) -> RouteMessage {
    let mut message = route_message(route);
    message.header.protocol = RouteProtocol::Static;
    message.header.kind = RouteType::Unicast;
    message.header.scope = if route.gateway.is_none() && route.destination.is_ipv4() {
        RouteScope::Link
    } else {
        RouteScope::Universe
    };
    // Uplinks with a /32 address have their gateway outside of every network of theirs.
    if route.gateway.is_some_and(|ip| ip.is_ipv4()) {
        message.header.flags = RouteFlags::Onlink;
    }
    message
}

/// Removes a route; its absence, or that of its interface, is success.
///
/// # Errors
/// See [`super::NetlinkError`].
pub fn delete_route(route: &RouteSpec) -> Result<()> {
    helper::order(
        || Order::DeleteRoute(route.clone()),
        || delete_route_here(route),
    )
}

fn delete_route_here(route: &RouteSpec) -> Result<()> {
    let mut message = route_message(route);
    // Any scope.
    message.header.scope = RouteScope::NoWhere;
    let message = RouteNetlinkMessage::DelRoute(message);
    change(
        "removing a route",
        message,
        0,
        &[libc::ESRCH, libc::ENOENT, libc::ENODEV],
    )
}

/// Adds a rule; having it already is success. True when it was not there.
///
/// # Errors
/// See [`super::NetlinkError`].
pub fn add_rule(rule: &RuleSpec) -> Result<bool> {
    helper::order(|| Order::AddRule(rule.clone()), || add_rule_here(rule))
}

fn add_rule_here(rule: &RuleSpec) -> Result<bool> {
    let message = RouteNetlinkMessage::NewRule(rule_message(rule));
    let added =
        route_socket().and_then(|mut socket| socket.change(message, NLM_F_CREATE | NLM_F_EXCL));
    let is_new = added.is_ok();
    explain("adding a rule", forgive(added, &[libc::EEXIST])).map(|()| is_new)
}

/// Removes a rule; its absence is success.
///
/// # Errors
/// See [`super::NetlinkError`].
pub fn delete_rule(rule: &RuleSpec) -> Result<()> {
    helper::order(
        || Order::DeleteRule(rule.clone()),
        || delete_rule_here(rule),
    )
}

fn delete_rule_here(rule: &RuleSpec) -> Result<()> {
    let message = RouteNetlinkMessage::DelRule(rule_message(rule));
    change("removing a rule", message, 0, &[libc::ENOENT])
}

/// Removes all routes of a table, of both families; that it has none is success.
///
/// # Errors
/// See [`super::NetlinkError`].
pub fn flush_table(table: u32) -> Result<()> {
    helper::order(|| Order::FlushTable(table), || flush_table_here(table))
}

fn flush_table_here(table: u32) -> Result<()> {
    const STEP: &str = "emptying a routing table";
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        let found = route_socket()
            .and_then(|mut socket| socket.dump(&RouteNetlinkMessage::GetRoute(request)));
        for message in explain_value(STEP, found)? {
            let RouteNetlinkMessage::NewRoute(route) = message else {
                continue;
            };
            if table_of(&route) == table {
                change(
                    STEP,
                    RouteNetlinkMessage::DelRoute(route),
                    0,
                    &[libc::ESRCH, libc::ENOENT, libc::ENODEV],
                )?;
            }
        }
    }
    Ok(())
}

fn address_message(ifindex: u32, ip: IpAddr, prefix: u8) -> AddressMessage {
    let mut address = AddressMessage::default();
    address.header.family = family(ip);
    address.header.index = ifindex;
    address.header.prefix_len = prefix;
    address.attributes.push(AddressAttribute::Local(ip));
    address.attributes.push(AddressAttribute::Address(ip));
    address
}

/// The main routing table (`RT_TABLE_MAIN`).
pub const TABLE_MAIN: u32 = 254;

fn route_message(route: &RouteSpec) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(route.destination);
    message.header.destination_prefix_length = route.prefix;
    let table = route.table.unwrap_or(TABLE_MAIN);
    // Tables above 255 do not fit the header; the attribute rules.
    message.header.table = u8::try_from(table).unwrap_or(0);
    message.attributes.push(RouteAttribute::Table(table));
    if route.prefix > 0 {
        let destination = RouteAddress::from(network(route.destination, route.prefix));
        message
            .attributes
            .push(RouteAttribute::Destination(destination));
    }
    message.attributes.push(RouteAttribute::Oif(route.ifindex));
    if let Some(gateway) = route.gateway {
        message
            .attributes
            .push(RouteAttribute::Gateway(gateway.into()));
    }
    if let Some(metric) = route.metric {
        message.attributes.push(RouteAttribute::Priority(metric));
    }
    if let Some(mtu) = route.mtu {
        let metrics = vec![RouteMetric::Mtu(mtu)];
        message.attributes.push(RouteAttribute::Metrics(metrics));
    }
    message
}

fn rule_message(rule: &RuleSpec) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = if rule.ipv6 {
        AddressFamily::Inet6
    } else {
        AddressFamily::Inet
    };
    message.header.action = RuleAction::ToTable;
    message.header.table = u8::try_from(rule.table).unwrap_or(0);
    message.attributes.push(RuleAttribute::Table(rule.table));
    message
        .attributes
        .push(RuleAttribute::Priority(rule.priority));
    if let Some(mark) = rule.fwmark {
        message.attributes.push(RuleAttribute::FwMark(mark));
        message
            .attributes
            .push(RuleAttribute::FwMask(rule.fwmask.unwrap_or(u32::MAX)));
    }
    if let Some(length) = rule.suppress_prefix {
        message
            .attributes
            .push(RuleAttribute::SuppressPrefixLen(length));
    }
    if let Some(group) = rule.suppress_group {
        message
            .attributes
            .push(RuleAttribute::SuppressIfGroup(group));
    }
    if let Some((ip, prefix)) = rule.source {
        message.header.src_len = prefix;
        message
            .attributes
            .push(RuleAttribute::Source(network(ip, prefix)));
    }
    message
}

/// The network that `ip` is in: the kernel refuses host bits.
fn network(ip: IpAddr, prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX
                .checked_shl(32u32.saturating_sub(prefix.into()))
                .unwrap_or(0);
            IpAddr::V4((u32::from(ip) & mask).into())
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX
                .checked_shl(128u32.saturating_sub(prefix.into()))
                .unwrap_or(0);
            IpAddr::V6((u128::from(ip) & mask).into())
        }
    }
}

/// Asks for a change; the error numbers in `already` mean that it is as wanted.
fn change(
    step: &'static str,
    message: RouteNetlinkMessage,
    flags: u16,
    already: &[i32],
) -> Result<()> {
    let result = route_socket().and_then(|mut socket| socket.change(message, flags));
    explain(step, forgive(result, already))
}

fn forgive(result: io::Result<()>, already: &[i32]) -> io::Result<()> {
    match result {
        Err(e) if e.raw_os_error().is_some_and(|code| already.contains(&code)) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_bits_are_cleared() {
        let net = |ip: &str, prefix| network(ip.parse().expect("address"), prefix).to_string();
        assert_eq!(net("10.1.2.3", 8), "10.0.0.0");
        assert_eq!(net("10.1.2.3", 32), "10.1.2.3");
        assert_eq!(net("10.1.2.3", 0), "0.0.0.0");
        assert_eq!(net("fd00:1::5", 64), "fd00:1::");
        assert_eq!(net("fd00:1::5", 0), "::");
        assert_eq!(net("fd00:1::5", 128), "fd00:1::5");
    }
}
