//! The present state of all interfaces, put together from three dumps.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::socket::{NetlinkSocket, route_socket};
use super::{Address, DefaultRoute, Interface, NetlinkError, Result};

/// All interfaces of this network namespace, by index.
///
/// # Errors
/// See [`NetlinkError`].
pub fn snapshot() -> Result<Vec<Interface>> {
    read().map_err(|source| NetlinkError::Io {
        step: "reading interfaces",
        source,
    })
}

/// All interfaces of this network namespace, by index, without their routes: those may be a million.
///
/// # Errors
/// See [`NetlinkError`].
pub fn addresses() -> Result<Vec<Interface>> {
    let read = || {
        Ok(read_addresses(&mut route_socket()?)?
            .into_values()
            .collect())
    };
    read().map_err(|source| NetlinkError::Io {
        step: "reading addresses",
        source,
    })
}

fn read_addresses(
    socket: &mut NetlinkSocket<RouteNetlinkMessage>,
) -> io::Result<BTreeMap<u32, Interface>> {
    let mut interfaces = BTreeMap::new();
    for message in socket.dump(&RouteNetlinkMessage::GetLink(LinkMessage::default()))? {
        if let RouteNetlinkMessage::NewLink(link) = message {
            interfaces.insert(link.header.index, interface(&link));
        }
    }
    for message in socket.dump(&RouteNetlinkMessage::GetAddress(AddressMessage::default()))? {
        if let RouteNetlinkMessage::NewAddress(message) = message {
            let interface = interfaces.get_mut(&message.header.index);
            if let (Some(interface), Some(address)) = (interface, address(&message)) {
                interface.addresses.push(address);
            }
        }
    }
    Ok(interfaces)
}

fn read() -> io::Result<Vec<Interface>> {
    let mut socket = route_socket()?;
    let mut interfaces = read_addresses(&mut socket)?;
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        for message in socket.dump(&RouteNetlinkMessage::GetRoute(request))? {
            let RouteNetlinkMessage::NewRoute(route) = message else {
                continue;
            };
            for (index, default) in default_routes(&route) {
                if let Some(interface) = interfaces.get_mut(&index) {
                    if family == AddressFamily::Inet {
                        interface.default_route_v4 = true;
                    } else {
                        interface.default_route_v6 = true;
                    }
                    interface.default_routes.push(default);
                }
            }
        }
    }
    for interface in interfaces.values_mut() {
        interface.default_routes.sort_unstable();
    }
    Ok(interfaces.into_values().collect())
}

fn interface(link: &LinkMessage) -> Interface {
    let flags = link.header.flags;
    let mut interface = Interface {
        name: String::new(),
        index: link.header.index,
        mtu: 0,
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::Running),
        loopback: flags.contains(LinkFlags::Loopback),
        kind: None,
        addresses: Vec::new(),
        default_route_v4: false,
        default_route_v6: false,
        default_routes: Vec::new(),
    };
    for attribute in &link.attributes {
        if let LinkAttribute::IfName(name) = attribute {
            interface.name.clone_from(name);
        } else if let LinkAttribute::Mtu(mtu) = attribute {
            interface.mtu = *mtu;
        } else if let LinkAttribute::LinkInfo(infos) = attribute {
            interface.kind = infos.iter().find_map(kind);
        }
    }
    interface
}

fn kind(info: &LinkInfo) -> Option<String> {
    if let LinkInfo::Kind(kind) = info {
        Some(kind.to_string())
    } else {
        None
    }
}

fn address(message: &AddressMessage) -> Option<Address> {
    // The low eight flags stand in the header, all of them in an attribute since Linux 3.14.
    let mut flags = AddressFlags::from_bits_retain(u32::from(message.header.flags.bits()));
    let (mut local, mut address) = (None, None);
    for attribute in &message.attributes {
        if let AddressAttribute::Local(ip) = attribute {
            local = Some(*ip);
        } else if let AddressAttribute::Address(ip) = attribute {
            address = Some(*ip);
        } else if let AddressAttribute::Flags(all) = attribute {
            flags = *all;
        }
    }
    // On point-to-point links `Address` is the peer's and `Local` is this side's.
    let ip = local.or(address)?;
    Some(Address {
        ip,
        prefix: message.header.prefix_len,
        // The same bit says "secondary" for IPv4 and "temporary" for IPv6.
        temporary: ip.is_ipv6() && flags.contains(AddressFlags::Secondary),
        deprecated: flags.contains(AddressFlags::Deprecated),
        tentative: flags.contains(AddressFlags::Dadfailed)
            || flags.contains(AddressFlags::Tentative) && !flags.contains(AddressFlags::Optimistic),
        permanent: flags.contains(AddressFlags::Permanent),
    })
}

/// Interfaces a default route leads through, several when it is multipath.
fn default_routes(route: &RouteMessage) -> Vec<(u32, DefaultRoute)> {
    let header = &route.header;
    let is_default = header.destination_prefix_length == 0
        && header.kind == RouteType::Unicast
        && !header.flags.contains(RouteFlags::Cloned);
    if !is_default {
        return Vec::new();
    }
    let ipv6 = header.address_family == AddressFamily::Inet6;
    let (mut index, mut several) = (None, Vec::new());
    let mut default = DefaultRoute {
        table: table_of(route),
        metric: 0,
        ipv6,
        gateway: None,
    };
    for attribute in &route.attributes {
        if let RouteAttribute::Oif(found) = attribute {
            index = Some(*found);
        } else if let RouteAttribute::Gateway(found) = attribute {
            default.gateway = ip(found);
        } else if let RouteAttribute::Priority(metric) = attribute {
            default.metric = *metric;
        } else if let RouteAttribute::MultiPath(hops) = attribute {
            several.extend(hops);
        }
    }
    let hops = several.into_iter().map(|hop| {
        let gateway = hop.attributes.iter().find_map(|attribute| {
            if let RouteAttribute::Gateway(found) = attribute {
                ip(found)
            } else {
                None
            }
        });
        (hop.interface_index, DefaultRoute { gateway, ..default })
    });
    let one = index.map(|index| (index, default));
    one.into_iter().chain(hops).collect()
}

/// The routing table a route is in: numbers above 255 are in an attribute.
pub(super) fn table_of(route: &RouteMessage) -> u32 {
    let number = route.attributes.iter().find_map(|attribute| {
        if let RouteAttribute::Table(number) = attribute {
            Some(*number)
        } else {
            None
        }
    });
    number.unwrap_or_else(|| route.header.table.into())
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    if let RouteAddress::Inet(ip) = address {
        Some((*ip).into())
    } else if let RouteAddress::Inet6(ip) = address {
        Some((*ip).into())
    } else {
        None
    }
}

/// Whether an event can change what [`snapshot`] gives.
pub(super) fn matters(message: &RouteNetlinkMessage) -> bool {
    use RouteNetlinkMessage::{DelAddress, DelLink, DelRoute, NewAddress, NewLink, NewRoute};
    if let NewRoute(route) | DelRoute(route) = message {
        return route.header.destination_prefix_length == 0;
    }
    matches!(
        message,
        NewLink(_) | DelLink(_) | NewAddress(_) | DelAddress(_)
    )
}

/// Address family of `ip`.
pub(super) fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}
